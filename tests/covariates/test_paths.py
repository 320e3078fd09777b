"""Paths against dense normals: covariances, densities, KL, and what visits tell each other."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from lacova.covariates import factorised
from lacova.covariates.paths import Memory, before, correlated, kl_of_pairs, memory, spread
from lacova.covariates.scenarios import StandardDraws, complete, fill
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution, Paths
from tests.covariates.cases import generator

SPACE = CovariateSpace(("a", "c", "b"), (0, 2, 0), (False, False, False))
# Rows of two patients, not in the order of time. Column a: the run 2, 0, 3 and the run 5, 6; column b: the run 1, 2, 3,
# 0 and the run 6, 4.
RUNS = {0: [(2, 0, 3), (5, 6)], 2: [(1, 2, 3, 0), (6, 4)]}
PATIENT = torch.tensor([0, 0, 0, 0, 1, 1, 1])


def paths_of(runs, n, columns, coupling):
    steps = torch.zeros(2, n, columns, dtype=torch.long)
    precision = torch.zeros(n, columns, dtype=torch.float64)
    for q, several in runs.items():
        for run in several:
            for first, second in pairwise(run):
                steps[0, second, q], steps[1, first, q] = first - second, second - first
                precision[second, q] = coupling[second, q]
    return Paths(steps[0], steps[1], precision)


def some_paths(seed=0, strength=3.0):
    coupling = strength * torch.rand(7, 3, generator=generator(seed), dtype=torch.float64)
    return paths_of(RUNS, 7, 3, coupling)


def some_distribution(paths, seed=1):
    g = generator(seed)
    mean, spread_of = (torch.randn(7, 3, generator=g, dtype=torch.float64) for _ in range(2))
    log_prob = torch.randn(7, 3, 2, generator=g, dtype=torch.float64).log_softmax(-1)
    return FactorisedDistribution(mean, (0.7 * spread_of).exp(), log_prob, paths)


def batch_of(paths, x_mask=None, y_mask=None):
    gaps = torch.zeros(7, 3, dtype=torch.bool)
    for q, several in RUNS.items():
        gaps[[row for run in several for row in run], q] = True
    p = some_distribution(paths, 5)
    x = torch.randn(7, 3, generator=generator(9), dtype=torch.float64)
    x[:, 1] = 1.0
    return Batch(
        torch.zeros(7, 1, dtype=torch.float64), torch.ones(7, 1, dtype=torch.bool) if y_mask is None else y_mask, x,
        ~gaps if x_mask is None else x_mask, PATIENT, conditional_prior=ConditionalPrior(p, torch.zeros(7).double()),
    )  # fmt: skip


def dense(distribution, q, run):
    """The normal of a run: precisions between neighbours as stated, the variances as they are."""
    rows, paths = list(run), distribution.paths
    sd = distribution.var[rows, q].sqrt()
    correlation = torch.eye(len(run), dtype=torch.float64)
    for i in range(len(run)):
        for j in range(i):
            product = 1.0
            for k in range(j + 1, i + 1):  # the root of ρ/(1 − ρ²) = κ
                kappa = float(paths.coupling[rows[k], q] * sd[k] * sd[k - 1])
                product *= (-1 + (1 + 4 * kappa**2) ** 0.5) / (2 * kappa)
            correlation[i, j] = correlation[j, i] = product
    return MultivariateNormal(distribution.mean[rows, q], sd[:, None] * correlation * sd)


def every_run():
    return [(q, run) for q, several in RUNS.items() for run in several]


@pytest.mark.parametrize(("q", "run"), every_run())
def test_neighbours_have_the_stated_precision_and_others_none(q, run):
    distribution = some_distribution(some_paths())
    precision = torch.linalg.inv(dense(distribution, q, run).covariance_matrix)
    rows = list(run)
    for i in range(len(run)):
        for j in range(i):
            expected = -distribution.paths.coupling[rows[i], q] if i == j + 1 else torch.tensor(0.0).double()
            assert_close(precision[i, j], expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kappa", [0.0, 1e-6, 0.3, 7.0, 1e5, 1e9])
def test_memory_solves_its_equation(kappa):
    kappa = torch.tensor(kappa, dtype=torch.float64)
    kept = Memory.of(kappa)
    assert_close(kept.correlation, kappa * kept.remainder, rtol=1e-12, atol=0)
    assert_close(kept.loss * (1 + kept.correlation), kept.remainder, rtol=1e-12, atol=0)
    assert_close(kept.correlation + kept.loss, torch.ones(()).double(), rtol=1e-12, atol=0)


def test_draws_are_linear_in_the_random_numbers_and_have_the_covariance_of_the_runs():
    distribution, n = some_distribution(some_paths()), 21
    eps = torch.eye(n, dtype=torch.float64).view(n, 7, 3)  # one random number each
    root = correlated(eps, distribution, batch_of(distribution.paths)).flatten(1).T
    sd = distribution.var.sqrt().flatten()
    covariance = sd[:, None] * (root @ root.T) * sd
    expected = torch.diag(distribution.var.flatten())
    for q, run in every_run():
        at = torch.tensor(run) * 3 + q
        expected[at[:, None], at] = dense(distribution, q, run).covariance_matrix
    assert_close(covariance, expected, rtol=1e-8, atol=1e-10)


def test_every_way_to_draw_follows_the_paths():
    distribution = some_distribution(some_paths())
    batch = batch_of(distribution.paths)
    draws = 40_000
    drawn = factorised.draw(distribution, batch, SPACE, draws, generator(2))
    eps = StandardDraws.draw(batch.x, draws, 0, SPACE, generator(3))
    filled = fill(distribution, batch, SPACE, eps)
    lines = complete(distribution, batch, SPACE, couple=True, samples=draws, generator=generator(4), every_unit=True)
    units = [lines.x[(lines.unit[lines.scenario] == unit)].view(draws, -1, 3) for unit in (0, 1)]
    for x in (drawn, filled, torch.cat(units, 1)):
        assert torch.equal(x[:, batch.x_mask], batch.x[batch.x_mask].expand(draws, -1))
        for q, run in every_run():
            true = dense(distribution, q, run)
            # 6 standard errors of a covariance of standardised draws
            assert_close(torch.cov(x[:, run, q].T), true.covariance_matrix, rtol=0.03 * 2, atol=0.03)
            assert_close(x[:, run, q].mean(0), true.mean, rtol=0, atol=6 * float(true.variance.max() / draws) ** 0.5)


@pytest.mark.parametrize("coupled", [True, False], ids=["q with paths", "q without"])
@pytest.mark.parametrize("strength", [3.0, 400.0])
def test_kl_is_that_of_dense_normals(coupled, strength):
    paths = some_paths(strength=strength)
    q, p, batch = some_distribution(paths, 2), some_distribution(paths, 3), batch_of(paths)
    expected = torch.zeros(()).double()
    for column, run in every_run():
        other = dense(q, column, run)
        if not coupled:
            other = MultivariateNormal(other.mean, torch.diag(other.variance))
        expected += kl_divergence(other, dense(p, column, run))
    value = factorised.kl(q if coupled else q.by_entry(), p, batch, SPACE)
    assert_close(value, expected, rtol=1e-8, atol=0)
    assert factorised.kl(p, p, batch, SPACE).abs() < 1e-10


def test_no_other_coupling_is_nearer_to_the_prior():
    """KL[q ‖ p] at the means and variances of q, over the correlations of q."""
    paths = some_paths()
    q, p = some_distribution(paths, 2), some_distribution(paths, 3)
    batch = batch_of(paths)
    least = factorised.kl(q, p, batch, SPACE)
    assert least < factorised.kl(q.by_entry(), p, batch, SPACE) - 0.1
    for factor in (0.5, 0.9, 1.1, 2.0):
        other = replace(q, paths=replace(paths, coupling=factor * paths.coupling))
        assert factorised.kl(other, p, batch, SPACE) > least + 1e-4


def test_a_prior_that_is_nearly_constant_loses_no_digits_in_single_precision():
    paths = some_paths(strength=2e5)
    p = some_distribution(paths, 3)
    p = replace(p, var=torch.ones_like(p.var))
    q = replace(p, mean=p.mean + 0.3, var=0.9 * p.var)
    exact = kl_of_pairs(q, p, paths)
    single = kl_of_pairs(q.to(torch.float32), p.to(torch.float32), paths.to(torch.float32))
    assert_close(single.double(), exact, rtol=1e-3, atol=1e-4)  # of numbers with 7 digits


def test_density_is_that_of_dense_normals():
    paths = some_paths()
    p, batch = some_distribution(paths, 3), batch_of(paths)
    x = torch.randn(5, 7, 3, generator=generator(6), dtype=torch.float64)
    x[..., 1] = 1.0
    value = factorised.log_density(p, x, factorised.free_entries(batch, SPACE), SPACE)
    for patient in (0, 1):
        expected = sum(
            dense(p, q, run).log_prob(x[:, run, q]) for q, run in every_run() if int(PATIENT[run[0]]) == patient
        )
        assert_close(value[:, patient == PATIENT].sum(1), expected, rtol=1e-8, atol=0)


def test_what_visits_tell_is_averaged_over_the_run():
    paths = some_paths()
    prior, own = some_distribution(paths, 3), some_distribution(None, 4)
    told = torch.tensor([True, False, True, True, False, False, False])
    batch = batch_of(paths, y_mask=told[:, None])
    q = spread(own, prior, batch)
    for column, run in every_run():
        rows = list(run)
        weight, p = told[rows].double(), dense(prior, column, run)
        ratio = 0.5 * (own.var[rows, column] / prior.var[rows, column]).log()
        sd = p.variance.sqrt()
        correlation = p.covariance_matrix / sd / sd[:, None]
        ratio = (correlation @ (weight * ratio) / (correlation @ weight).clamp_min(1.0)).exp()
        assert_close(q.var[rows, column], p.variance * ratio**2, rtol=1e-8, atol=0)
        now = dense(q, column, run)
        correlation = now.covariance_matrix / now.variance.sqrt() / now.variance.sqrt()[:, None]
        vote = weight * (own.mean[rows, column] - p.mean) / sd / ratio
        shift = ratio * (correlation @ vote) / (correlation @ weight).clamp_min(1.0)
        assert_close(q.mean[rows, column], p.mean + sd * shift, rtol=1e-8, atol=1e-12)
    alone = ~paths.linked
    for part, same in ((q.mean, own.mean), (q.var, own.var), (q.log_prob, own.log_prob)):
        assert torch.equal(part[alone], same[alone])


def test_without_measurements_a_run_is_a_path_of_the_prior():
    paths = some_paths()
    prior, own = some_distribution(paths, 3), some_distribution(None, 4)
    batch = batch_of(paths, y_mask=torch.zeros(7, 1, dtype=torch.bool))
    q = spread(own, prior, batch)
    assert_close(q.mean[paths.linked], prior.mean[paths.linked], rtol=1e-12, atol=0)
    assert_close(q.var[paths.linked], prior.var[paths.linked], rtol=1e-12, atol=0)
    numbers = replace(q, log_prob=prior.log_prob)
    assert factorised.kl(numbers, prior, batch, SPACE).abs() < 1e-10


def test_paths_go_with_their_rows():
    paths = some_paths()
    distribution = some_distribution(paths)
    both = distribution.above(distribution)
    first, second = both.halves()
    for half in (first, second, distribution.take(torch.arange(7))):
        assert all(torch.equal(a, b) for a, b in zip(half.paths.parts, paths.parts, strict=True))
    second_patient = distribution.take(torch.tensor([4, 5, 6])).paths
    assert torch.equal(second_patient.before, paths.before[4:])
    # Without row 0, the run 2, 0, 3 of column a has no neighbours left, and 1, 2, 3, 0 of column b is 1, 2, 3.
    rows = torch.tensor([False, True, True, True, True, False, True])
    cut = distribution.take(rows).paths
    expected = paths_of({2: [(0, 1, 2), (4, 3)]}, 5, 3, paths.coupling[rows])
    assert all(torch.equal(a, b) for a, b in zip(cut.parts, expected.parts, strict=True))
    assert torch.equal(before(paths.coupling, paths)[3], paths.coupling[[0, 3, 2], [0, 1, 2]])
    assert (memory(distribution).correlation[paths.before == 0] == 0).all()
