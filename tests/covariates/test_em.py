"""EM: the objective never falls, closed forms are reached, known mixtures recovered, and poor data survived."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from lacova.covariates import em
from lacova.covariates.mixture import Mixture
from lacova.covariates.prior import JointPrior
from lacova.data.covariate_space import CovariateSpace
from tests.covariates.cases import generator, rows, table

MIXED = CovariateSpace(("a", "c3", "b"), (0, 3, 0), (False,) * 3)
TRUTH = Mixture(
    MIXED, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log(),
    torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]], dtype=torch.float64),
    torch.tensor([[[1.0, 0.7], [0.7, 1.0]], [[0.5, 0.0], [0.0, 1.5]], [[1.0, -0.5], [-0.5, 0.8]]], dtype=torch.float64),
    torch.tensor([[[0.8, 0.1, 0.1]], [[0.1, 0.8, 0.1]], [[0.2, 0.2, 0.6]]], dtype=torch.float64).log(),
)  # fmt: skip


def numbers(k):
    return CovariateSpace(tuple("abcdef"[:k]), (0,) * k, (False,) * k)


def sample(mixture, n, missing, seed=0):
    """Rows of a mixture with gaps at random."""
    g = generator(seed)
    empty = torch.zeros(1, len(mixture.space.names), dtype=torch.float64)
    x = mixture.draw(mixture.condition(empty, empty.bool()), empty, empty.bool(), n, g)[:, 0]
    mask = torch.rand(x.shape, generator=g) >= missing
    return torch.where(mask, x, 0.0), mask


def penalised(mixture, x, mask, prior):
    return float(mixture.condition(x, mask).log_marginal.sum() + prior.log_prior(mixture))


def assert_sound(mixture):
    """Finite, normalised, positive definite, and usable for rows without any entry."""
    assert_close(mixture.log_weight.exp().sum(), torch.tensor(1.0, dtype=torch.float64))
    assert torch.isfinite(mixture.mean).all()
    assert torch.isfinite(mixture.factor).all()
    for j, q in enumerate(mixture.space.categorical):
        probs = mixture.log_level[:, j].exp()
        assert_close(probs.sum(-1), torch.ones(len(mixture), dtype=torch.float64))
        assert (probs[:, : mixture.space.levels[q]] > 0).all()
        assert (probs[:, mixture.space.levels[q] :] == 0).all()
    empty = torch.zeros(1, len(mixture.space.names), dtype=torch.float64)
    conditional = mixture.condition(empty, empty.bool())
    assert torch.isfinite(mixture.draw(conditional, empty, empty.bool(), 5, generator())).all()


@given(
    levels=st.lists(st.sampled_from([0, 0, 2, 3]), min_size=1, max_size=4),
    n=st.integers(1, 40),
    missing=st.sampled_from([0.0, 0.2, 0.5, 0.8]),
    components=st.integers(1, 5),
    strength=st.sampled_from([0.5, 5.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_penalised_likelihood_never_falls(levels, n, missing, components, strength, seed):
    space = CovariateSpace(tuple("abcd"[: len(levels)]), tuple(levels), (False,) * len(levels))
    x, mask = rows(space, n, missing, seed)
    prior = em.regulariser(space, x, mask, strength)
    first = em.initial_mixture(space, x, mask, components, prior, seed)
    result = em.run_em(first, x, mask, prior, iterations=15, tol=-1.0)
    objective = torch.tensor([*result.objective, penalised(result.mixture, x, mask, prior)], dtype=torch.float64)
    assert len(objective) == 16
    assert objective[0] == pytest.approx(penalised(first, x, mask, prior), rel=1e-10)
    # The M-step adds 1e-8 of a row to each component, which may cost as much.
    slack = 1e-9 * objective.abs() + 1e-8 * components
    assert (objective.diff() >= -slack[1:]).all()


def test_complete_data_and_one_component_give_the_closed_form():
    x, mask = rows(MIXED, 50, 0.0, seed=1)
    prior = em.regulariser(MIXED, x, mask, strength=3.0)
    mixture = em.run_em(em.initial_mixture(MIXED, x, mask, 1, prior, 0), x, mask, prior, iterations=1).mixture
    numbers, codes = x[:, [0, 2]], x[:, 1]
    centre = numbers.mean(0)
    spread = torch.diag(0.05 * numbers.var(0, correction=0))
    scatter = sum(torch.outer(row - centre, row - centre) for row in numbers)
    counts = torch.stack([(codes == v).sum() for v in range(3)]).double()
    assert_close(mixture.mean[0], centre, rtol=1e-8, atol=1e-12)
    assert_close(mixture.covariance[0], (scatter + 3.0 * spread) / 53.0, rtol=1e-8, atol=1e-12)
    assert_close(mixture.log_level[0, 0].exp(), (counts + (counts + 0.5) / 51.5) / 51.0, rtol=1e-8, atol=0)
    assert mixture.log_weight.abs() < 1e-12


def test_em_ends_where_the_penalised_likelihood_is_flat():
    x, mask = sample(TRUTH, 150, 0.4, seed=2)
    prior = em.regulariser(MIXED, x, mask, strength=5.0)
    end = em.run_em(
        em.initial_mixture(MIXED, x, mask, 3, prior, 0), x, mask, prior, iterations=2_000, tol=1e-14
    ).mixture
    step = 1e-4
    for c, k in itertools.product(range(3), range(2)):
        for which in ("mean", "covariance"):
            sides = []
            for sign in (-1.0, 1.0):
                mean, covariance = end.mean.clone(), end.covariance.clone()
                if which == "mean":
                    mean[c, k] += sign * step
                else:
                    covariance[c, 0, k] += sign * step
                    covariance[c, k, 0] = covariance[c, 0, k]
                moved = Mixture(MIXED, end.log_weight, mean, covariance, end.log_level)
                sides.append(penalised(moved, x, mask, prior))
            assert abs(sides[1] - sides[0]) / (2 * step) < 1e-2
            assert max(sides) < penalised(end, x, mask, prior)


def test_a_known_mixture_is_recovered_from_rows_with_gaps():
    x, mask = sample(TRUTH, 3_000, 0.3)
    mixture = em.fit_mixture(MIXED, x, mask, components=3)
    order = torch.cdist(TRUTH.mean, mixture.mean).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2]
    assert_close(mixture.log_weight[order].exp(), TRUTH.log_weight.exp(), rtol=0, atol=0.03)
    assert_close(mixture.mean[order], TRUTH.mean, rtol=0, atol=0.15)
    assert_close(mixture.covariance[order], TRUTH.covariance, rtol=0, atol=0.2)
    assert_close(mixture.log_level[order].exp(), TRUTH.log_level.exp(), rtol=0, atol=0.06)


def test_the_number_of_components_is_chosen():
    x, mask = sample(TRUTH, 1_000, 0.3)
    assert 3 <= len(em.fit_mixture(MIXED, x, mask)) <= 5
    x, mask = rows(numbers(2), 600, 0.2, seed=0)
    assert len(em.fit_mixture(numbers(2), x, mask)) <= 2


def test_visits_of_a_patient_are_held_out_together():
    """A patient's rows are alike: if they were held out one by one, a component for each patient would seem best."""
    g = generator(3)
    patient = torch.arange(60).repeat_interleave(10)
    x = torch.randn(60, 2, generator=g).double()[patient] + 0.05 * torch.randn(600, 2, generator=g).double()
    mask = torch.ones_like(x, dtype=torch.bool)
    assert len(em.fit_mixture(numbers(2), x, mask)) > 8
    assert len(em.fit_mixture(numbers(2), x, mask, group=patient)) <= 2
    assert len(JointPrior.learn(numbers(2), table(x, mask, patient), seed=0).mixture) <= 2


def test_memory_chunks_do_not_change_the_fit(monkeypatch):
    x, mask = sample(TRUTH, 100, 0.3)
    at_once = em.fit_mixture(MIXED, x, mask, components=2)
    monkeypatch.setattr(Mixture, "chunk", lambda self: 7)
    chunked = em.fit_mixture(MIXED, x, mask, components=2)
    for name in ("log_weight", "mean", "factor", "log_level"):
        assert_close(getattr(chunked, name), getattr(at_once, name), rtol=1e-8, atol=1e-10)


def constant(x, mask):
    x[:, 0] = 0.0


def collinear(x, mask):
    x[:, 2] = x[:, 0]
    mask[:, 2] = mask[:, 0]


def rare_level(x, mask):
    x[:, 1] = 0.0
    x[3, 1], mask[3, 1] = 2.0, True


def sparse_column(x, mask):
    mask[:, 0] = torch.arange(len(x)) % 20 == 0


def unseen_column(x, mask):
    mask[:, 0] = False


def empty_rows(x, mask):
    mask[::3] = False


def nothing(x, mask):
    mask[:] = False


@pytest.mark.parametrize(
    "damage", [constant, collinear, rare_level, sparse_column, unseen_column, empty_rows, nothing],
    ids=lambda f: f.__name__,
)  # fmt: skip
@pytest.mark.parametrize("components", [3, None])
def test_poor_data(damage, components):
    x, mask = rows(MIXED, 100, 0.2, seed=0)
    damage(x, mask)
    x = torch.where(mask, x, 0.0)
    mixture = em.fit_mixture(MIXED, x, mask, components)
    assert_sound(mixture)
    assert torch.isfinite(mixture.condition(x, mask).log_marginal).all()


@pytest.mark.parametrize("n", [1, 2, 5, 12])
@pytest.mark.parametrize("components", [8, None])
def test_fewer_rows_than_components(n, components):
    x, mask = rows(MIXED, n, 0.2, seed=0)
    mixture = em.fit_mixture(MIXED, x, mask, components)
    assert_sound(mixture)
    assert len(mixture) <= n


def test_equal_rows():
    x, mask = rows(MIXED, 30, 0.2, seed=0)
    mixture = em.fit_mixture(MIXED, x[:1].expand(30, -1), mask[:1].expand(30, -1), components=4)
    assert len(mixture) == 1
    assert_sound(mixture)


@pytest.mark.parametrize("space", [numbers(2), CovariateSpace(("c", "d"), (2, 3), (False,) * 2)], ids=["all", "none"])
def test_only_numbers_and_only_categories(space):
    x, mask = rows(space, 60, 0.3, seed=0)
    for components in (3, None):
        assert_sound(em.fit_mixture(space, x, mask, components))


def test_empty_rows_have_no_influence():
    x, mask = rows(MIXED, 40, 0.2, seed=0)
    mask[5] = False
    informative = mask.any(1)
    with_empty = em.fit_mixture(MIXED, x, mask, 2)
    without = em.fit_mixture(MIXED, x[informative], mask[informative], 2)
    for name in ("log_weight", "mean", "factor", "log_level"):
        assert torch.equal(getattr(with_empty, name), getattr(without, name))


def test_the_same_seed_gives_the_same_mixture():
    x, mask = sample(TRUTH, 200, 0.3)
    one, other, third = (em.fit_mixture(MIXED, x, mask, components=6, seed=s) for s in (3, 3, 4))
    for name in ("log_weight", "mean", "factor", "log_level"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert not torch.equal(one.mean, third.mean)


def test_large_tables_are_fitted_on_a_sample_and_finished_on_all_rows(monkeypatch):
    x, mask = sample(TRUTH, 2_000, 0.3)
    full = em.fit_mixture(MIXED, x, mask, components=3)
    sizes = []
    iteration = em._iteration
    monkeypatch.setattr(em, "MAX_ROWS", 300)
    monkeypatch.setattr(em, "_iteration", lambda m, x, *rest: (sizes.append(len(x)), iteration(m, x, *rest))[1])
    sampled = em.fit_mixture(MIXED, x, mask, components=3)
    assert sizes[-2:] == [int(mask.any(1).sum())] * 2
    assert set(sizes[:-2]) == {300}
    order = torch.cdist(full.mean, sampled.mean).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2]
    assert_close(sampled.mean[order], full.mean, rtol=0, atol=0.05)
    assert_close(sampled.log_weight[order].exp(), full.log_weight.exp(), rtol=0, atol=0.02)
    assert_close(sampled.log_level[order].exp(), full.log_level.exp(), rtol=0, atol=0.04)
    new_x, new_mask = sample(TRUTH, 1_000, 0.3, seed=9)
    gap = sampled.condition(new_x, new_mask).log_marginal.mean() - full.condition(new_x, new_mask).log_marginal.mean()
    assert gap.abs() < 0.01
