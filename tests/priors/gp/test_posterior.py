import pytest
import torch

from lacova.data.batches import blocks
from lacova.nn import linalg
from lacova.priors.gp.bounds import patient_bound, project, row_bound
from lacova.priors.gp.inducing import Whitened
from lacova.priors.gp.posterior import (
    History,
    latent_posterior,
    patient_encoder_spread,
    predict_blocks,
    row_encoder_spread,
)
from tests.priors.gp import toys

RTOL = 1e-8
both_kinds = pytest.mark.parametrize("trends", [False, True], ids=["gp and cat", "other kernels"])


@pytest.fixture(autouse=True)
def _almost_no_jitter(monkeypatch):
    monkeypatch.setitem(linalg.JITTER, torch.float64, 1e-14)


def cache_posterior(t):
    a = project(t.kernel, t.inducing, t.x)
    rows, one = torch.arange(t.n), torch.ones(t.n, dtype=t.x.dtype)
    m = len(t.inducing)
    q = Whitened(torch.zeros(toys.L, m).double(), torch.eye(m).double().repeat(toys.L, 1, 1))
    if not t.kernel.own:
        stats = row_bound(
            a, t.kernel.diagonal(t.x, t.kernel.shared), q, t.noise, t.mean, t.var, rows, one, 1.0
        ).statistics
        return latent_posterior(stats, row_encoder_spread(a, t.noise, t.var, one))
    weight = torch.ones(int(t.group.max()) + 1, dtype=t.x.dtype)
    stats = patient_bound(t.kernel, a, t.x, blocks(t.group), q, t.noise, t.mean, t.var, rows, weight, 1.0).statistics
    return latent_posterior(stats, patient_encoder_spread(t.kernel, a, t.x, blocks(t.group), t.noise, t.var, weight))


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
    posterior = cache_posterior(t)
    mean, covariance, pad = predict_blocks(
        t.kernel, t.inducing, posterior, t.noise, new, torch.tensor([0, 0, 1, 2, 2, 2])
    )
    for l in range(toys.L):
        want_mean, want_covariance = dense_prediction(t, l, new, group, low_rank)
        torch.testing.assert_close(mean[l][pad.filled], want_mean, rtol=RTOL, atol=1e-8)
        block = covariance[l, 2]
        torch.testing.assert_close(block, want_covariance[3:, 3:], rtol=RTOL, atol=1e-8)
        torch.testing.assert_close(covariance[l, 1, 0, 0], want_covariance[2, 2], rtol=RTOL, atol=1e-8)


@both_kinds
@pytest.mark.parametrize("low_rank", [False, True])
def test_prediction_with_history_of_a_training_patient_equals_dense_algebra(low_rank, trends):
    t = toys.toy(visits=(3, 1, 4, 2), trends=trends)
    if not low_rank:
        t.inducing = t.x
    new = toys.toy(visits=(5,), seed=9).x
    posterior = cache_posterior(t)
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
        want_mean, want_covariance = dense_prediction(t, l, new, torch.tensor([2, 2, 0, 3, 7]), low_rank)
        torch.testing.assert_close(mean[l][pad.filled], want_mean, rtol=RTOL, atol=1e-8)
        torch.testing.assert_close(covariance[l, 0], want_covariance[:2, :2], rtol=RTOL, atol=1e-8)
        for block, row in ((1, 2), (2, 3), (3, 4)):
            torch.testing.assert_close(covariance[l, block, 0, 0], want_covariance[row, row], rtol=RTOL, atol=1e-8)


def test_history_of_a_new_patient_narrows_its_prediction():
    t = toys.toy(visits=(4, 4, 4))
    posterior = cache_posterior(t)
    x = t.x[:2] + 0.01
    history = History(
        t.x[:4], t.mean[:, :4].T, 0.01 * t.var[:, :4].T, torch.zeros(4, dtype=torch.long), torch.tensor([False])
    )
    group = torch.zeros(2, dtype=torch.long)
    _, alone, _ = predict_blocks(t.kernel, t.inducing, posterior, t.noise, x, group)
    _, informed, _ = predict_blocks(t.kernel, t.inducing, posterior, t.noise, x, group, history)
    assert (informed.diagonal(dim1=-2, dim2=-1) < alone.diagonal(dim1=-2, dim2=-1)).all()
