"""Prediction with the posterior of v against dense algebra."""

import pytest
import torch

from lacova.nn import linalg
from lacova.priors.base import History
from lacova.priors.gp.posterior import predict_blocks
from tests.priors.gp import toys
from tests.priors.gp.toys import both_kinds, posterior_of

TOLERANCE = {"rtol": 1e-8, "atol": 1e-8}


@pytest.fixture(autouse=True)
def _almost_no_jitter(monkeypatch):
    monkeypatch.setitem(linalg.JITTER, torch.float64, 1e-14)


def dense_prediction(t, l, x, group, low_rank):
    """K*Σ⁻¹μ and K** − K*Σ⁻¹K*ᵀ + K*Σ⁻¹WΣ⁻¹K*ᵀ, plus σ_z²; K^(A) exact or through the inducing points."""

    def shared(a, b):
        if not low_rank:
            return toys.kernel_by_loops(t.kernel, a, b, t.kernel.shared, l)
        left = toys.kernel_by_loops(t.kernel, a, t.inducing, t.kernel.shared, l)
        right = toys.kernel_by_loops(t.kernel, t.inducing, b, t.kernel.shared, l)
        return left @ torch.linalg.solve(
            toys.kernel_by_loops(t.kernel, t.inducing, t.inducing, t.kernel.shared, l), right
        )

    def own(a, ga, b, gb):
        return toys.kernel_by_loops(t.kernel, a, b, t.kernel.own, l) * (ga[:, None] == gb[None, :])

    eye = torch.eye(t.n, dtype=x.dtype)
    sigma = shared(t.x, t.x) + own(t.x, t.group, t.x, t.group) + t.noise[l] * eye
    cross = shared(x, t.x) + own(x, group, t.x, t.group)
    itself = toys.kernel_by_loops(t.kernel, x, x, t.kernel.shared, l) + own(x, group, x, group)
    gain = cross @ torch.linalg.inv(sigma)
    covariance = itself - gain @ cross.T + gain @ torch.diag(t.var[l]) @ gain.T
    return gain @ t.mean[l], covariance + t.noise[l] * torch.eye(len(x), dtype=x.dtype)


@both_kinds
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("low_rank", [False, True])
def test_prediction_equals_dense_algebra(own, low_rank, trends):
    t = toys.toy(visits=(3, 1, 4, 2), own=own, trends=trends)
    if not low_rank:
        t.inducing = t.x
    new = toys.toy(visits=(2, 1, 3), seed=9).x
    group = torch.tensor([4, 4, 5, 6, 6, 6])  # patients never seen
    posterior = posterior_of(t)
    mean, covariance, pad = predict_blocks(
        t.kernel, t.inducing, posterior, t.noise, new, torch.tensor([0, 0, 1, 2, 2, 2])
    )
    for l in range(toys.L):
        expected_mean, expected_covariance = dense_prediction(t, l, new, group, low_rank)
        torch.testing.assert_close(mean[l][pad.filled], expected_mean, **TOLERANCE)
        block = covariance[l, 2]
        torch.testing.assert_close(block, expected_covariance[3:, 3:], **TOLERANCE)
        torch.testing.assert_close(covariance[l, 1, 0, 0], expected_covariance[2, 2], **TOLERANCE)


@both_kinds
@pytest.mark.parametrize("low_rank", [False, True])
def test_prediction_with_history_of_a_training_patient_equals_dense_algebra(low_rank, trends):
    t = toys.toy(visits=(3, 1, 4, 2), trends=trends)
    if not low_rank:
        t.inducing = t.x
    new = toys.toy(visits=(5,), seed=9).x
    posterior = posterior_of(t)
    # New rows of patients 2, 2, 0, 3, and of one who was never seen.
    past = torch.cat([torch.arange(4, 8), torch.arange(3), torch.arange(8, 10)])
    history = History(
        t.x[past], t.mean[:, past].T, t.var[:, past].T,
        torch.tensor([0] * 4 + [1] * 3 + [2] * 2), torch.tensor([True, True, True, False]),
    )  # fmt: skip
    mean, covariance, pad = predict_blocks(
        t.kernel, t.inducing, posterior, t.noise, new, torch.tensor([0, 0, 1, 2, 3]), history
    )
    for l in range(toys.L):
        expected_mean, expected_covariance = dense_prediction(t, l, new, torch.tensor([2, 2, 0, 3, 7]), low_rank)
        torch.testing.assert_close(mean[l][pad.filled], expected_mean, **TOLERANCE)
        torch.testing.assert_close(covariance[l, 0], expected_covariance[:2, :2], **TOLERANCE)
        for block, row in ((1, 2), (2, 3), (3, 4)):
            torch.testing.assert_close(covariance[l, block, 0, 0], expected_covariance[row, row], **TOLERANCE)


def test_history_of_a_new_patient_narrows_its_prediction():
    t = toys.toy(visits=(4, 4, 4))
    posterior = posterior_of(t)
    x = t.x[:2] + 0.01
    history = History(
        t.x[:4], t.mean[:, :4].T, 0.01 * t.var[:, :4].T, torch.zeros(4, dtype=torch.long), torch.tensor([False])
    )
    group = torch.zeros(2, dtype=torch.long)
    _, without, _ = predict_blocks(t.kernel, t.inducing, posterior, t.noise, x, group)
    _, with_history, _ = predict_blocks(t.kernel, t.inducing, posterior, t.noise, x, group, history)
    assert (with_history.diagonal(dim1=-2, dim2=-1) < without.diagonal(dim1=-2, dim2=-1)).all()
