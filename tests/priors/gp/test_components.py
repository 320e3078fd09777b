"""Components of the Gaussian process, and rows at two covariates, against dense algebra."""

import pytest
import torch

from lacova.nn import linalg
from lacova.priors.gp.components import component_lines, inducing_shift, joint_lines
from lacova.priors.gp.posterior import History, predict_blocks
from tests.priors.gp import toys
from tests.priors.gp.test_posterior import both_kinds, cache_posterior

RTOL = 1e-8
LOOSE = {"rtol": RTOL, "atol": 1e-8}
PAST = torch.cat([torch.arange(4, 8), torch.arange(3), torch.arange(8, 10)])
GROUP = torch.tensor([0, 0, 1, 2, 3])  # new rows of training patients 2, 2, 0, 3, and of one who was never seen
WHO = torch.tensor([2, 2, 0, 3, 7])


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


def dense_components(t, l, x, who):
    """Mean (R×n) and covariance (R×n×R×n) of all components at x given Z ~ q(Z), by loops and inverses.

    Shared components are seen through the inducing inputs by the training rows, as the posterior of v is.
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
        alike = torch.ones(n, n).double() if r in shared else (who[:, None] == who[None, :]).double()
        prior[r, :, r, :] = toys.kernel_by_loops(t.kernel, x, x, (r,), l) * alike
        if r in shared:
            cross[r] = toys.kernel_by_loops(t.kernel, x, t.inducing, (r,), l) @ kss @ kxs.T
        else:
            cross[r] = toys.kernel_by_loops(t.kernel, x, t.x, (r,), l) * (who[:, None] == t.group[None, :])
    flat = cross.flatten(0, 1)
    gain = flat @ torch.linalg.inv(sigma)
    covariance = prior.reshape(count * n, -1) - gain @ flat.T + gain @ torch.diag(t.var[l]) @ gain.T
    return (gain @ t.mean[l]).view(count, n), covariance.view(count, n, count, n)


@both_kinds
@pytest.mark.parametrize("own", [True, False])
def test_components_equal_dense_algebra(own, trends):
    t = toys.toy(visits=(3, 1, 4, 2), own=own, trends=trends)
    new, posterior = toys.toy(visits=(5,), seed=9).x, cache_posterior(t)
    group = GROUP if own else torch.arange(5)
    past = with_history(t) if own else None
    lines, pad = component_lines(t.kernel, t.inducing, posterior, t.noise, new, group, past)
    whole = marginal(lines, posterior)
    for l in range(toys.L):
        mean, covariance = dense_components(t, l, new, WHO)
        torch.testing.assert_close(lines.mean[l][pad.filled], mean.T, **LOOSE)
        at_row = covariance.diagonal(dim1=1, dim2=3).permute(2, 0, 1)  # n×R×R
        torch.testing.assert_close(whole[l][pad.filled], at_row, **LOOSE)


@both_kinds
@pytest.mark.parametrize("past", [True, False])
def test_components_add_up_to_the_prediction_of_z(past, trends):
    t = toys.toy(visits=(3, 1, 4, 2), trends=trends)
    new, posterior = toys.toy(visits=(5,), seed=9).x, cache_posterior(t)
    given = with_history(t) if past else None
    mean, covariance, pad = predict_blocks(t.kernel, t.inducing, posterior, t.noise, new, GROUP, given)
    lines, same = component_lines(t.kernel, t.inducing, posterior, t.noise, new, GROUP, given)
    assert torch.equal(same.places, pad.places)
    torch.testing.assert_close(lines.mean.sum(-1)[:, pad.filled], mean[:, pad.filled], **LOOSE)
    total = marginal(lines, posterior).sum((-2, -1)) + t.noise[:, None, None]
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(total[:, pad.filled], diagonal[:, pad.filled], **LOOSE)


@both_kinds
def test_rows_at_two_covariates_are_joint(trends):
    t = toys.toy(visits=(3, 1, 4, 2), trends=trends)
    new, other, posterior = toys.toy(visits=(5,), seed=9).x, toys.toy(visits=(5,), seed=10).x, cache_posterior(t)
    lines, pad = joint_lines(t.kernel, t.inducing, posterior, t.noise, (new, other), GROUP, with_history(t))
    whole = marginal(lines, posterior)[:, :, 0]
    places = [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)]  # patient and place of each row
    n = pad.places.shape[1]
    for l in range(toys.L):
        mean, covariance = dense_components(t, l, torch.cat([new, other]), torch.cat([WHO, WHO]))
        mean, covariance = mean.sum(0), covariance.sum((0, 2))
        for i, (p, k) in enumerate(places):
            torch.testing.assert_close(lines.mean[l, p, 0, [k, n + k]], mean[[i, 5 + i]], **LOOSE)
            pair = torch.tensor([i, 5 + i])
            found = whole[l, p][[k, n + k]][:, [k, n + k]]
            torch.testing.assert_close(found, covariance[pair][:, pair], **LOOSE)
        torch.testing.assert_close(whole[l, 0, 0, n + 1], covariance[0, 6], **LOOSE)


def test_draws_have_the_moments_of_the_lines():
    t = toys.toy(visits=(3, 1, 4, 2))
    new, posterior = toys.toy(visits=(5,), seed=9).x, cache_posterior(t)
    draws, generator = 20_000, torch.Generator().manual_seed(0)
    lines, pad = component_lines(t.kernel, t.inducing, posterior, t.noise, new, GROUP, with_history(t))
    shift = inducing_shift(posterior, draws, generator)
    level = t.kernel.log_variance.exp().sum(0)
    f = lines.sample(shift, 1, level, generator)[:, :, pad.filled]  # draws×L×5×R
    whole = marginal(lines, posterior)[:, pad.filled]
    sd = whole.diagonal(dim1=-2, dim2=-1).sqrt()
    assert ((f.mean(0) - lines.mean[:, pad.filled]).abs() < 5 * sd / draws**0.5).all()
    centred = f - f.mean(0)
    found = torch.einsum("slni,slnj->lnij", centred, centred) / draws
    assert ((found - whole).abs() < 0.05 * sd[..., :, None] * sd[..., None, :]).all()


def test_draws_of_different_patients_share_v_and_versions_do_not_change_the_law():
    t = toys.toy(visits=(3, 1, 4, 2), own=False)
    new, posterior = toys.toy(visits=(2,), seed=9).x[[0, 0]], cache_posterior(t)
    draws, level = 4000, t.kernel.log_variance.exp().sum(0)
    f = []
    for versions in (1, draws):
        generator = torch.Generator().manual_seed(0)
        shift = inducing_shift(posterior, draws, generator)
        x, group = new.repeat(versions, 1), torch.arange(2 * versions)
        lines, _ = component_lines(t.kernel, t.inducing, posterior, t.noise, x, group)
        f.append(lines.sample(shift, versions, level, generator))
    torch.testing.assert_close(*f)
    posterior_share = marginal(lines, posterior) - lines.covariance
    sums = f[0].sum(-1)[:, :, :, 0]  # draws×L×2
    for l in range(toys.L):
        found = torch.cov(sums[:, l].T)[0, 1]
        assert found == pytest.approx(float(posterior_share[l, 0, 0].sum()), rel=0.15)


def test_a_history_unlike_the_training_rows_still_has_a_law():
    """A training patient's visits may be completed otherwise than in training, or be others."""
    t = toys.toy(visits=(3, 1, 4, 2))
    posterior, x = cache_posterior(t), toys.toy(visits=(4,), seed=3).x
    group = torch.zeros(4, dtype=torch.long)
    history = History(x, torch.zeros(4, toys.L).double(), torch.full((4, toys.L), 9.0).double(), group, group[:1] == 0)
    for lines, _ in (
        component_lines(t.kernel, t.inducing, posterior, t.noise, x, group, history),
        joint_lines(t.kernel, t.inducing, posterior, t.noise, (x, x + 1.0), group, history),
    ):
        assert (torch.linalg.eigvalsh(lines.covariance) > -1e-10).all()
