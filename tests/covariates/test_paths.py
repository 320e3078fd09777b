"""Paths against dense normals: covariances, densities, KL, and what visits tell each other."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from lacova.covariates import factorised
from lacova.covariates.dependence import correlated
from lacova.covariates.paths import Memory, before, kl_of_levels, kl_of_pairs, memory, spread
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
    exact = kl_of_pairs(q, p)
    single = kl_of_pairs(q.to(torch.float32), p.to(torch.float32))
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
    q = spread(own, prior, batch, SPACE)
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
    q = spread(own, prior, batch, SPACE)
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


LEVELS = CovariateSpace(("a", "c", "b"), (0, 3, 0), (False, False, False))
CHAIN = {1: [(2, 0, 3, 1), (6, 4)]}  # of 3 levels


def chain_case(seed=0, possible=3):
    """Paths, prior, posterior of each entry, and a batch in which row 3 and row 4 have no measurements."""
    g = generator(seed)
    paths = paths_of(CHAIN, 7, 3, torch.rand(7, 3, generator=g, dtype=torch.float64))
    logits = 1.5 * torch.randn(2, 7, 3, 3, generator=g, dtype=torch.float64)
    logits[..., possible:] = -torch.inf
    zero, one = torch.zeros(7, 3).double(), torch.ones(7, 3).double()
    prior, own = (
        FactorisedDistribution(zero, one, part.log_softmax(-1), chain)
        for part, chain in zip(logits, (paths, None), strict=True)
    )
    gaps = torch.zeros(7, 3, dtype=torch.bool)
    gaps[[row for run in CHAIN[1] for row in run], 1] = True
    told = torch.tensor([True, True, True, False, False, True, True])
    batch = Batch(
        torch.zeros(7, 1).double(), told[:, None], torch.zeros(7, 3).double(), ~gaps, PATIENT,
        conditional_prior=ConditionalPrior(prior, torch.zeros(7).double()),
    )  # fmt: skip
    return paths, prior, own, batch


def step_of(distribution, row, last):
    """P(b | a) as the module states it, in a loop."""
    then, now = (distribution.log_prob[at, 1].exp().tolist() for at in (last, row))
    keep = float(distribution.paths.coupling[row, 1])
    more = [max(0.0, n - t) for t, n in zip(then, now, strict=True)]
    total = sum(more)
    step = torch.zeros(3, 3, dtype=torch.float64)
    for a in range(3):
        kept = min(then[a], now[a]) / then[a] if then[a] else 0.0
        for b in range(3):
            stays = kept * (a == b) + (1 - kept) * (more[b] / total if total else 0.0)
            step[a, b] = (1 - keep) * now[b] + keep * stays
    return step


def table_of(distribution):
    """Return the joint table of the run of 4, over its 3⁴ paths."""
    run = CHAIN[1][0]
    probs = distribution.log_prob[list(run), 1].exp()
    if distribution.paths is None:
        return torch.einsum("a,b,c,d->abcd", *probs)
    steps = [step_of(distribution, run[k], run[k - 1]) for k in (1, 2, 3)]
    return torch.einsum("a,ab,bc,cd->abcd", probs[0], *steps)


def kl_of(q, p):
    category = torch.tensor([1])
    return kl_of_levels(q.columns(category), p.columns(category))[list(CHAIN[1][0])].sum()


def marginals(table):
    return torch.stack([table.sum([j for j in range(4) if j != k]) for k in range(4)])


@pytest.mark.parametrize("possible", [3, 2])
@pytest.mark.parametrize("seed", range(3))
def test_levels_of_a_run_are_a_chain_with_their_own_probabilities(seed, possible):
    _, prior, own, batch = chain_case(seed, possible)
    run = list(CHAIN[1][0])
    q = spread(own, prior, batch, LEVELS)
    levels = torch.cartesian_prod(*[torch.arange(possible)] * 4)
    x = torch.zeros(len(levels), 7, 3, dtype=torch.float64)
    x[:, run, 1] = levels.double()
    entries = torch.zeros(7, 3, dtype=torch.bool)
    entries[run, 1] = True
    for distribution in (prior, q):
        table = table_of(distribution)
        assert_close(marginals(table), distribution.log_prob[run, 1].exp(), rtol=1e-10, atol=1e-14)
        log_density = factorised.log_density(distribution, x, entries, LEVELS).sum(1)
        assert_close(log_density.exp(), table[tuple(levels.T)], rtol=1e-8, atol=1e-14)
    p = table_of(prior)
    for distribution in (q, q.by_entry()):
        table = table_of(distribution)
        used = table > 0
        expected = (table[used] * (table[used] / p[used]).log()).sum()
        assert_close(kl_of(distribution, prior), expected, rtol=1e-8, atol=1e-12)
    assert kl_of(prior, prior).abs() < 1e-12


def test_what_visits_tell_of_a_category_is_averaged_over_the_run():
    paths, prior, own, batch = chain_case()
    run = list(CHAIN[1][0])
    q = spread(own, prior, batch, LEVELS)
    weight, keep = batch.y_mask[run, 0].double(), paths.coupling[run, 1]
    told = (own.log_prob - prior.log_prob)[run, 1]
    for k in range(4):
        near = torch.stack([weight[j] * torch.prod(keep[min(j, k) + 1 : max(j, k) + 1]) for j in range(4)])
        expected = (prior.log_prob[run[k], 1] + near @ told / max(1.0, float(near.sum()))).log_softmax(0)
        assert_close(q.log_prob[run[k], 1], expected, rtol=1e-8, atol=0)
    silent = spread(own, prior, replace(batch, y_mask=torch.zeros(7, 1, dtype=torch.bool)), LEVELS)
    assert_close(silent.log_prob[run, 1], prior.log_prob[run, 1], rtol=1e-10, atol=1e-12)


def test_draws_of_levels_follow_the_paths():
    _, prior, own, batch = chain_case()
    run, draws = list(CHAIN[1][0]), 60_000
    q = spread(own, prior, batch, LEVELS)
    posterior = table_of(q)
    eps = StandardDraws.draw(batch.x, draws, 0, LEVELS, generator(3))
    sampled = complete(q, batch, LEVELS, couple=True, samples=draws, generator=generator(4), every_unit=True, cap=1)
    assert sampled.unit.max() == 1
    first = sampled.x[sampled.unit[sampled.scenario] == 0].view(draws, -1, 3)
    for x in (factorised.draw(q, batch, LEVELS, draws, generator(2)), fill(q, batch, LEVELS, eps), first):
        code = (x[:, run, 1].long() * torch.tensor([27, 9, 3, 1])).sum(1)
        share = torch.bincount(code, minlength=81).double() / draws
        assert_close(share, posterior.flatten(), rtol=0, atol=6 * 0.5 / draws**0.5)


def test_scenarios_of_a_patient_have_the_probabilities_of_their_paths():
    _, prior, own, batch = chain_case(possible=2)
    run = list(CHAIN[1][0])
    q = spread(own, prior, batch, LEVELS)
    posterior = table_of(q)
    scenarios = complete(q, batch, LEVELS, couple=True, samples=1, generator=generator(), cap=81)
    for v in range(len(scenarios.weight)):
        if scenarios.unit[v] == 0:
            levels = scenarios.x[scenarios.scenario == v][run, 1].long()
            assert_close(scenarios.weight[v].double(), posterior[tuple(levels)], rtol=1e-8, atol=1e-14)
    assert_close(scenarios.weight[scenarios.unit == 0].sum(), torch.ones(()).double(), rtol=1e-8, atol=0)
    alone = complete(q, batch, LEVELS, couple=False, samples=1, generator=generator(), cap=81)
    for v in range(len(alone.weight)):
        row = int(alone.row[alone.scenario == v])
        if row in run:
            level = int(alone.x[alone.scenario == v][0, 1])
            assert_close(alone.weight[v], q.log_prob[row, 1, level].exp(), rtol=1e-8, atol=0)


def test_gradients_of_sampled_paths_are_unbiased():
    """Of E f over the posterior, f a random function of the path: score functions against the exact sum."""
    _, prior, own, batch = chain_case(possible=2)
    run = list(CHAIN[1][0])
    value = torch.randn(3, 3, 3, 3, generator=generator(8), dtype=torch.float64)
    gradients = []
    for cap, samples in ((81, 1), (1, 40_000)):
        log_prob = own.log_prob.clone().requires_grad_()
        q = spread(replace(own, log_prob=log_prob), prior, batch, LEVELS)
        scenarios = complete(q, batch, LEVELS, couple=True, samples=samples, generator=generator(), cap=cap)
        of_first = (scenarios.unit == 0).nonzero()[:, 0]
        lines = scenarios.x[torch.isin(scenarios.scenario, of_first)].view(len(of_first), -1, 3)
        total = (scenarios.weight[of_first] * value[tuple(lines[:, run, 1].long().T)]).sum()
        gradients.append(torch.autograd.grad(total, log_prob)[0][run, 1, :2])
    assert gradients[0].abs().max() > 0.1
    assert_close(gradients[1], gradients[0], rtol=0, atol=0.03)  # of 40,000 draws


def test_levels_with_gradients_are_finite_where_levels_are_impossible():
    _, prior, own, batch = chain_case(possible=2)
    log_prob = own.log_prob.clone().requires_grad_()
    q = spread(replace(own, log_prob=log_prob), prior, batch, LEVELS)
    factorised.kl(q, prior, batch, LEVELS).backward()
    assert log_prob.grad[..., :2].isfinite().all()
