"""Components of the Gaussian process, and rows at two covariates, against dense algebra."""

import pytest
import torch

from lacova.nn import linalg
from lacova.priors.base import History
from lacova.priors.gp.components import component_lines, inducing_shift, joint_lines
from lacova.priors.gp.posterior import predict_blocks
from tests.priors.gp import toys
from tests.priors.gp.toys import both_kinds, posterior_of

TOLERANCE = {"rtol": 1e-8, "atol": 1e-8}
PAST = torch.cat([torch.arange(4, 8), torch.arange(3), torch.arange(8, 10)])
GROUP = torch.tensor([0, 0, 1, 2, 3])  # new rows of training patients 2, 2, 0, 3, and of one who was never seen
PATIENT = torch.tensor([2, 2, 0, 3, 7])


@pytest.fixture(autouse=True)
def _almost_no_jitter(monkeypatch):
    monkeypatch.setitem(linalg.JITTER, torch.float64, 1e-14)
    with torch.no_grad():
        yield


def with_history(t):
    group = torch.tensor([0] * 4 + [1] * 3 + [2] * 2)
    trained = torch.tensor([True, True, True, False])
    return History(t.x[PAST], t.mean[:, PAST].T, t.var[:, PAST].T, group, trained)


def marginal(lines, posterior):
    """Covariance over v too: slope (H + HGH) slopeᵀ + covariance."""
    factor = posterior.q.precision_factor
    h = torch.cholesky_inverse(factor)
    spread = h + h @ posterior.encoder_spread @ h
    return lines.covariance + lines.slope @ spread[:, None, None] @ lines.slope.mT


def dense_components(t, l, x, patient):
    """Mean (R×n) and covariance (R×n×R×n) of all components at x given Z ~ q(Z), by loops and inverses.

    The training rows enter the shared components through the inducing inputs, as in the posterior of v.
    """
    n, count = len(x), len(t.kernel.components)
    shared = t.kernel.shared
    kss = torch.linalg.inv(toys.kernel_by_loops(t.kernel, t.inducing, t.inducing, shared, l))
    kxs = toys.kernel_by_loops(t.kernel, t.x, t.inducing, shared, l)
    same = (t.group[:, None] == t.group[None, :]).double()
    own = toys.kernel_by_loops(t.kernel, t.x, t.x, t.kernel.own, l) * same
    sigma = kxs @ kss @ kxs.T + own + t.noise[l] * torch.eye(t.n, dtype=x.dtype)
    cross, prior = torch.zeros(count, n, t.n).double(), torch.zeros(count, n, count, n).double()
    for r in range(count):
        same_patient = torch.ones(n, n).double() if r in shared else (patient[:, None] == patient[None, :]).double()
        prior[r, :, r, :] = toys.kernel_by_loops(t.kernel, x, x, (r,), l) * same_patient
        if r in shared:
            cross[r] = toys.kernel_by_loops(t.kernel, x, t.inducing, (r,), l) @ kss @ kxs.T
        else:
            cross[r] = toys.kernel_by_loops(t.kernel, x, t.x, (r,), l) * (patient[:, None] == t.group[None, :])
    flat = cross.flatten(0, 1)
    gain = flat @ torch.linalg.inv(sigma)
    covariance = prior.reshape(count * n, -1) - gain @ flat.T + gain @ torch.diag(t.var[l]) @ gain.T
    return (gain @ t.mean[l]).view(count, n), covariance.view(count, n, count, n)


@both_kinds
@pytest.mark.parametrize("own", [True, False])
def test_components_equal_dense_algebra(own, trends):
    t = toys.toy(visits=(3, 1, 4, 2), own=own, trends=trends)
    new, posterior = toys.toy(visits=(5,), seed=9).x, posterior_of(t)
    group = GROUP if own else torch.arange(5)
    past = with_history(t) if own else None
    lines, pad = component_lines(t.kernel, t.inducing, posterior, t.noise, new, group, past)
    total_covariance = marginal(lines, posterior)
    for l in range(toys.L):
        mean, covariance = dense_components(t, l, new, PATIENT)
        torch.testing.assert_close(lines.mean[l][pad.filled], mean.T, **TOLERANCE)
        at_row = covariance.diagonal(dim1=1, dim2=3).permute(2, 0, 1)  # n×R×R
        torch.testing.assert_close(total_covariance[l][pad.filled], at_row, **TOLERANCE)


@both_kinds
@pytest.mark.parametrize("past", [True, False])
def test_components_add_up_to_the_prediction_of_z(past, trends):
    t = toys.toy(visits=(3, 1, 4, 2), trends=trends)
    new, posterior = toys.toy(visits=(5,), seed=9).x, posterior_of(t)
    history = with_history(t) if past else None
    mean, covariance, pad = predict_blocks(t.kernel, t.inducing, posterior, t.noise, new, GROUP, history)
    lines, pad_lines = component_lines(t.kernel, t.inducing, posterior, t.noise, new, GROUP, history)
    assert torch.equal(pad_lines.places, pad.places)
    torch.testing.assert_close(lines.mean.sum(-1)[:, pad.filled], mean[:, pad.filled], **TOLERANCE)
    total = marginal(lines, posterior).sum((-2, -1)) + t.noise[:, None, None]
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(total[:, pad.filled], diagonal[:, pad.filled], **TOLERANCE)


@both_kinds
def test_rows_at_two_covariates_are_joint(trends):
    t = toys.toy(visits=(3, 1, 4, 2), trends=trends)
    new, other, posterior = toys.toy(visits=(5,), seed=9).x, toys.toy(visits=(5,), seed=10).x, posterior_of(t)
    lines, pad = joint_lines(t.kernel, t.inducing, posterior, t.noise, (new, other), GROUP, with_history(t))
    total_covariance = marginal(lines, posterior)[:, :, 0]
    places = [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)]  # patient and place of each row
    n = pad.places.shape[1]
    for l in range(toys.L):
        mean, covariance = dense_components(t, l, torch.cat([new, other]), torch.cat([PATIENT, PATIENT]))
        mean, covariance = mean.sum(0), covariance.sum((0, 2))
        for i, (p, k) in enumerate(places):
            torch.testing.assert_close(lines.mean[l, p, 0, [k, n + k]], mean[[i, 5 + i]], **TOLERANCE)
            pair = torch.tensor([i, 5 + i])
            block = total_covariance[l, p][[k, n + k]][:, [k, n + k]]
            torch.testing.assert_close(block, covariance[pair][:, pair], **TOLERANCE)
        torch.testing.assert_close(total_covariance[l, 0, 0, n + 1], covariance[0, 6], **TOLERANCE)


def test_draws_have_the_moments_of_the_lines():
    t = toys.toy(visits=(3, 1, 4, 2))
    new, posterior = toys.toy(visits=(5,), seed=9).x, posterior_of(t)
    draws, generator = 20_000, torch.Generator().manual_seed(0)
    lines, pad = component_lines(t.kernel, t.inducing, posterior, t.noise, new, GROUP, with_history(t))
    shift = inducing_shift(posterior, draws, generator)
    prior_variance = t.kernel.log_variance.exp().sum(0)
    f = lines.sample(shift, 1, prior_variance, generator)[:, :, pad.filled]  # draws×L×5×R
    total_covariance = marginal(lines, posterior)[:, pad.filled]
    sd = total_covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    assert ((f.mean(0) - lines.mean[:, pad.filled]).abs() < 5 * sd / draws**0.5).all()
    centred = f - f.mean(0)
    sampled = torch.einsum("slni,slnj->lnij", centred, centred) / draws
    assert ((sampled - total_covariance).abs() < 0.05 * sd[..., :, None] * sd[..., None, :]).all()


def test_draws_of_different_patients_share_v_whatever_the_number_of_versions():
    t = toys.toy(visits=(3, 1, 4, 2), own=False)
    new, posterior = toys.toy(visits=(2,), seed=9).x[[0, 0]], posterior_of(t)
    draws, prior_variance = 4000, t.kernel.log_variance.exp().sum(0)
    f = []
    for versions in (1, draws):
        generator = torch.Generator().manual_seed(0)
        shift = inducing_shift(posterior, draws, generator)
        x, group = new.repeat(versions, 1), torch.arange(2 * versions)
        lines, _ = component_lines(t.kernel, t.inducing, posterior, t.noise, x, group)
        f.append(lines.sample(shift, versions, prior_variance, generator))
    torch.testing.assert_close(*f)
    posterior_share = marginal(lines, posterior) - lines.covariance
    sums = f[0].sum(-1)[:, :, :, 0]  # draws×L×2
    for l in range(toys.L):
        sampled = torch.cov(sums[:, l].T)[0, 1]
        assert sampled == pytest.approx(float(posterior_share[l, 0, 0].sum()), rel=0.15)


def test_a_history_unlike_the_training_rows_has_a_valid_covariance():
    """A training patient's visits may be completed differently than in training, or be other visits."""
    t = toys.toy(visits=(3, 1, 4, 2))
    posterior, x = posterior_of(t), toys.toy(visits=(4,), seed=3).x
    group = torch.zeros(4, dtype=torch.long)
    history = History(x, torch.zeros(4, toys.L).double(), torch.full((4, toys.L), 9.0).double(), group, group[:1] == 0)
    for lines, _ in (
        component_lines(t.kernel, t.inducing, posterior, t.noise, x, group, history),
        joint_lines(t.kernel, t.inducing, posterior, t.noise, (x, x + 1.0), group, history),
    ):
        assert (torch.linalg.eigvalsh(lines.covariance) > -1e-10).all()
