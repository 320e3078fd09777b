"""Covariate priors: what they learn, and a KL that equals the exact one on average."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal, kl_divergence
from torch.testing import assert_close

from lacova.covariates import factorised
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.mixture import Mixture
from lacova.covariates.prior import MIN_VARIANCE, FactorisedPrior, JointPrior
from lacova.covariates.scenarios import complete
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from tests.covariates import cases
from tests.covariates.cases import CATEGORIES, MIXED, as_table, generator, rows_with_extremes, table

NODES, WEIGHTS = (torch.tensor(v) for v in np.polynomial.hermite_e.hermegauss(120))
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def joint_batch(space, gaps, mixture=None):
    """A joint prior, and rows with these gaps, each a patient of its own, with their conditional prior."""
    gaps = torch.as_tensor(gaps)
    x = rows_with_extremes(space, n=len(gaps) + 1, seed=3)[0][:-1]
    prior = JointPrior(mixture or cases.mixture(space))
    t = table(x, ~gaps)
    return prior, Batch(t.y, t.y_mask, t.x, t.x_mask, torch.arange(len(x)), conditional_prior=prior.condition(t))


def sampled_kl(prior, q, b, samples=1, seed=0):
    """The prior's KL over scenarios of the batch."""
    scenarios = complete(q, b, prior.space, couple=False, samples=samples, generator=generator(seed))
    return prior.kl(q, scenarios, b)


def exact_kl(prior, q, b):
    """Σ over rows of E_q[log q(x_u) − log p(x_u | x_o)]: a sum over levels, quadrature over at most one number.

    p(x_u | x_o) = p(x) / p(x_o), with p(x_o) the integral of p(x) over x_u on a fine grid.
    """
    space, total = prior.space, 0.0
    axis = torch.arange(-30.0, 30.0, 0.1, dtype=torch.float64)
    for i in range(len(b)):
        missing = (~b.x_mask[i]).nonzero()[:, 0].tolist()
        if not missing:
            continue
        levels = [c for c in missing if space.levels[c]]
        number = next((c for c in missing if not space.levels[c]), None)
        evidence = 0.0
        for codes in itertools.product(*(range(space.levels[c]) for c in levels)):
            x, log_q = b.x[i].clone(), torch.zeros((), dtype=torch.float64)
            for c, code in zip(levels, codes, strict=True):
                x[c] = code
                log_q = log_q + q.log_prob[i, c, code]
            probability = log_q.exp()
            if number is None:
                log_p = prior.mixture.log_density(x)
                total = total + probability * (log_q - log_p)
                evidence = evidence + log_p.exp()
                continue
            normal = Normal(q.mean[i, number], q.var[i, number].sqrt())
            points = normal.mean + normal.stddev * NODES
            at = torch.where(torch.arange(len(x)) == number, points[:, None], x)
            log_ratio = log_q + normal.log_prob(points) - prior.mixture.log_density(at)
            total = total + probability * (WEIGHTS * log_ratio).sum()
            on_grid = torch.where(torch.arange(len(x)) == number, axis[:, None], x)
            evidence = evidence + prior.mixture.log_density(on_grid).exp().sum() * 0.1
        total = total + torch.log(evidence)
    return total


def test_factorised_prior_learns_observed_moments_and_frequencies():
    b = cases.batch(visits=(3, 1, 2, 4, 2), missing=0.4, seed=5)
    t = as_table(b)
    prior = FactorisedPrior.learn(cases.SPACE, t)
    for c, (levels, static) in enumerate(zip(cases.SPACE.levels, cases.SPACE.static, strict=True)):
        seen = [i for i in range(len(b)) if b.x_mask[i, c] and not (static and i != b.owner[i])]
        assert len(seen) > 1
        values = b.x[seen, c]
        if levels:
            share = torch.stack([(values == v).double().mean() for v in range(levels)])
            assert_close(prior.log_prob[c, :levels].exp(), share, rtol=1e-8, atol=1e-14)
            assert (prior.log_prob[c, levels:] == -torch.inf).all()
        else:
            assert_close(prior.mean[c], values.mean(), rtol=1e-8, atol=1e-14)
            assert_close(prior.var[c], values.var(correction=0), rtol=1e-8, atol=0)


def test_every_row_counts_where_nothing_is_static_or_there_is_no_patient():
    space = CovariateSpace(("a",), (0,), (True,))
    x, mask = torch.tensor([[0.0], [0.0], [0.0], [4.0]], dtype=torch.float64), torch.ones(4, 1, dtype=torch.bool)
    patient = torch.tensor([0, 0, 0, 1])
    assert FactorisedPrior.learn(space, table(x, mask)).mean == 1.0
    assert FactorisedPrior.learn(space, table(x, mask, patient)).mean == 2.0
    assert FactorisedPrior.learn(replace(space, static=(False,)), table(x, mask, patient)).mean == 1.0
    assert FactorisedPrior.learn(space, table(x * 0.0, mask)).var == MIN_VARIANCE


def test_factorised_prior_is_the_same_for_every_row():
    b = cases.batch(missing=0.5)
    prior = FactorisedPrior.learn(cases.SPACE, as_table(cases.batch((20,) * 3, 0.3, seed=2)))
    conditional = prior.condition(as_table(b))
    b = replace(b, conditional_prior=conditional)
    for i in range(len(b)):
        assert torch.equal(conditional.distribution.mean[i], prior.mean)
        assert torch.equal(conditional.distribution.var[i], prior.var)
        assert torch.equal(conditional.distribution.log_prob[i], prior.log_prob)
    assert (conditional.log_marginal == 0).all()

    q = cases.distribution(b)
    scenarios = complete(q, b, cases.SPACE, couple=False, samples=1, generator=generator())
    assert_close(
        prior.kl(q, scenarios, b), factorised.kl(q, conditional.distribution, b, cases.SPACE), rtol=1e-12, atol=0
    )
    x = prior.draw(b, 5_000, generator())
    assert torch.equal(x[:, b.x_mask], b.x[b.x_mask].expand(5_000, -1))
    density = prior.log_density(x, b)
    for i in range(len(b)):
        expected = torch.zeros(5_000, dtype=torch.float64)
        for c in (~b.x_mask[i]).nonzero()[:, 0].tolist():
            if cases.SPACE.levels[c]:
                distribution = Categorical(logits=prior.log_prob[c])
                share = (x[:, i, c, None] == torch.arange(3)).double().mean(0)
                assert_close(share, distribution.probs, rtol=0, atol=0.03)
            else:
                distribution = Normal(prior.mean[c], prior.var[c].sqrt())
                assert (x[:, i, c].mean() - distribution.mean).abs() < 5 * distribution.stddev / math.sqrt(5_000)
                assert_close(x[:, i, c].var(), distribution.variance, rtol=0.1, atol=0)
            expected += distribution.log_prob(x[:, i, c])
        assert_close(density[:, i], expected, rtol=1e-8, atol=1e-10)


def test_a_batch_without_a_conditional_prior_is_refused():
    b = cases.batch()
    with pytest.raises(ValueError, match=r"has no conditional prior: call CovariatePrior\.condition"):
        FactorisedPrior.learn(cases.SPACE, as_table(b)).draw(b, 1, generator())


@pytest.mark.parametrize("space", [MIXED, CATEGORIES], ids=["mixed", "categories"])
def test_joint_kl_over_missing_categories_is_exact(space):
    gaps = torch.zeros(6, len(space.names), dtype=torch.bool)
    gaps[1, space.categorical[0]] = gaps[2, space.categorical[1]] = True
    gaps[3:, space.categorical] = True
    prior, b = joint_batch(space, gaps)
    q = cases.distribution(b, space)
    assert_close(sampled_kl(prior, q, b), exact_kl(prior, q, b), rtol=1e-8, atol=0)


@pytest.mark.parametrize(
    "gaps",
    [[True, False, False, False, False], [False, True, False, False, True], [False, True, True, True, False]],
    ids=["number", "number and category", "number and two categories"],
)
def test_joint_kl_and_its_gradient_are_unbiased(gaps):
    prior, b = joint_batch(MIXED, [gaps])
    start = cases.distribution(b, MIXED)
    mean, log_var = start.mean.clone().requires_grad_(), start.var.log().requires_grad_()
    logits = torch.where(start.log_prob.isneginf(), 0.0, start.log_prob).requires_grad_()
    padded = torch.where(start.log_prob.isneginf(), -torch.inf, logits)
    q = FactorisedDistribution(mean, log_var.exp(), padded.log_softmax(-1))
    exact, average = exact_kl(prior, q, b), sampled_kl(prior, q, b, samples=100_000)
    assert exact > 0
    assert_close(average, exact, rtol=0, atol=0.03)
    leaves = [mean, log_var, logits] if any(gaps[c] for c in MIXED.categorical) else [mean, log_var]
    for leaf in leaves:
        expected = torch.autograd.grad(exact, leaf, retain_graph=True)[0]
        assert expected.abs().max() > 0.1
        assert_close(torch.autograd.grad(average, leaf, retain_graph=True)[0], expected, rtol=0, atol=0.05)


def test_few_samples_give_the_exact_kl_on_average():
    """One sample has a large variance, the mean over many does not. Copies of one row serve as samples."""
    prior, b = joint_batch(MIXED, [[True, True, False, False, False]] * 4_000)
    one = torch.zeros(4_000, dtype=torch.long)
    b = replace(b, x=b.x[one], x_mask=b.x_mask[one], conditional_prior=b.conditional_prior.take(one))
    q = cases.distribution(b, MIXED).take(one)
    exact = exact_kl(prior, q.take(one[:1]), b.take(torch.arange(4_000) < 1))
    assert_close(sampled_kl(prior, q, b) / 4_000, exact, rtol=0, atol=0.1)


def test_complete_rows_add_nothing_to_the_joint_kl():
    gaps = torch.zeros(5, 5, dtype=torch.bool)
    prior, b = joint_batch(MIXED, gaps)
    assert sampled_kl(prior, cases.distribution(b, MIXED), b) == 0.0
    gaps[2:, 1] = True
    prior, b = joint_batch(MIXED, gaps)
    q, incomplete = cases.distribution(b, MIXED), ~b.x_mask.all(1)
    assert_close(sampled_kl(prior, q, b), sampled_kl(prior, q.take(incomplete), b.take(incomplete)), rtol=1e-8, atol=0)


@pytest.mark.parametrize("seed", range(3))
def test_joint_kl_is_zero_for_the_conditional_prior_itself_and_positive_otherwise(seed):
    prior, b = joint_batch(MIXED, [[False, True, False, False, False], [False, False, False, True, False]])
    assert abs(sampled_kl(prior, b.conditional_prior.distribution, b)) < 1e-12
    assert sampled_kl(prior, cases.distribution(b, MIXED, seed=seed), b) > 0
    prior, b = joint_batch(MIXED, ~rows_with_extremes(MIXED, n=20, seed=seed)[1])
    assert sampled_kl(prior, cases.distribution(b, MIXED, seed=seed), b, samples=2_000) > 0
    assert sampled_kl(prior, b.conditional_prior.distribution, b, samples=2_000) > -0.2


def test_joint_kl_of_independent_columns_is_the_analytic_one(monkeypatch):
    """Two samples at ±1 integrate the squares of independent normals exactly."""
    one = cases.mixture(MIXED, components=1)
    diagonal = Mixture(MIXED, one.log_weight, one.mean, torch.diag_embed(one.covariance.diagonal(dim1=1, dim2=2)),
                       one.log_level)  # fmt: skip
    prior, b = joint_batch(MIXED, ~rows_with_extremes(MIXED, n=8, seed=1)[1], diagonal)
    q = cases.distribution(b, MIXED)
    two_points = torch.tensor([1.0, -1.0]).double()[:, None, None]
    monkeypatch.setattr(torch, "randn", lambda samples, *shape, **_: two_points.expand(samples, *shape))
    average = sampled_kl(prior, q, b, samples=2)
    expected = 0.0
    for i, c in (~b.x_mask).nonzero().tolist():
        if MIXED.levels[c]:
            p = Categorical(logits=one.log_level[0, MIXED.categorical.index(c), : MIXED.levels[c]])
            expected += kl_divergence(Categorical(logits=q.log_prob[i, c, : MIXED.levels[c]]), p)
        else:
            k = MIXED.continuous.index(c)
            p = Normal(one.mean[0, k], one.covariance[0, k, k].sqrt())
            expected += kl_divergence(Normal(q.mean[i, c], q.var[i, c].sqrt()), p)
    assert_close(average, expected, rtol=1e-8, atol=0)
    assert_close(average, factorised.kl(q, b.conditional_prior.distribution, b, MIXED), rtol=1e-8, atol=0)


def test_gradient_of_the_joint_kl_reaches_gaps_only():
    prior, b = joint_batch(MIXED, ~rows_with_extremes(MIXED, n=10, seed=2)[1])
    start = cases.distribution(b, MIXED)
    mean, var = start.mean.clone().requires_grad_(), start.var.clone().requires_grad_()
    logits = torch.where(start.log_prob.isneginf(), 0.0, start.log_prob).requires_grad_()
    padded = torch.where(start.log_prob.isneginf(), -torch.inf, logits)
    sampled_kl(prior, FactorisedDistribution(mean, var, padded.log_softmax(-1)), b).backward()
    number = torch.tensor([n == 0 for n in MIXED.levels])
    for gradient in (mean.grad, var.grad):
        assert torch.isfinite(gradient).all()
        assert torch.equal(gradient != 0, ~b.x_mask & number)
    assert torch.isfinite(logits.grad).all()
    assert torch.equal((logits.grad != 0).any(-1), ~b.x_mask & ~number)


def test_joint_log_density_is_normalised_and_has_the_ratios_of_the_joint():
    gaps = [[False] * 5, [True, True, False, False, True], [False, True, False, True, False], [True] * 5]
    prior, b = joint_batch(MIXED, gaps)
    x = prior.draw(b, 6, generator())
    log_p, joint = prior.log_density(x, b), prior.mixture.log_density(x)
    assert (log_p[:, 0] == 0).all()
    assert_close(log_p[1:, 1:] - log_p[:1, 1:], joint[1:, 1:] - joint[:1, 1:], rtol=1e-8, atol=1e-10)
    every = b.x.expand(6, -1, -1).clone()
    every[:, 2, 1], every[:, 2, 3] = torch.arange(6) // 2, torch.arange(6) % 2
    assert_close(prior.log_density(every, b)[:, 2].logsumexp(0), torch.zeros(()).double(), rtol=0, atol=1e-10)
    level, a, d = torch.meshgrid(torch.arange(3.0), *[torch.arange(-27.0, 27.0, 0.2)] * 2, indexing="ij")
    grid = b.x.expand(a.numel(), -1, -1).clone()
    grid[:, 1, 0], grid[:, 1, 1], grid[:, 1, 4] = a.flatten(), level.flatten(), d.flatten()
    assert_close(prior.log_density(grid, b)[:, 1].exp().sum() * 0.04, torch.ones(()).double(), rtol=1e-6, atol=0)


def test_joint_draws_have_the_conditional_distribution_and_keep_observed_entries():
    prior, b = joint_batch(MIXED, ~rows_with_extremes(MIXED, n=5, seed=4)[1])
    draws = 50_000
    x = prior.draw(b, draws, generator())
    assert torch.equal(x[:, b.x_mask], b.x[b.x_mask].expand(draws, -1))
    p = b.conditional_prior.distribution
    for i, c in (~b.x_mask).nonzero().tolist():
        if MIXED.levels[c]:
            share = (x[:, i, c, None] == torch.arange(3)).double().mean(0)
            assert_close(share, p.log_prob[i, c].exp(), rtol=0, atol=0.012)
        else:
            assert (x[:, i, c].mean() - p.mean[i, c]).abs() < 5 * (p.var[i, c] / draws).sqrt()
            assert_close(x[:, i, c].var(), p.var[i, c], rtol=0.05, atol=0)


def test_joint_prior_conditions_in_chunks_in_the_precision_of_the_table(monkeypatch):
    prior, b = joint_batch(MIXED, ~rows_with_extremes(MIXED, n=30)[1])
    monkeypatch.setattr(Mixture, "chunk", lambda self: 7)
    chunked = prior.condition(as_table(b))
    pairs = zip(cases.parts(chunked.distribution), cases.parts(b.conditional_prior.distribution), strict=True)
    for one, other in pairs:
        assert_close(one, other, rtol=1e-8, atol=1e-10)
    assert_close(chunked.log_marginal, b.conditional_prior.log_marginal, rtol=1e-8, atol=1e-10)
    single = prior.condition(replace(as_table(b), x=b.x.float()))
    tensors = (*cases.parts(single.distribution), single.log_marginal)
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    batch = replace(b, x=b.x.float(), conditional_prior=single)
    assert sampled_kl(prior, cases.distribution(b, MIXED).to(torch.float32), batch).dtype == torch.float32
    assert prior.draw(batch, 2, generator()).dtype == torch.float32


def test_joint_prior_learns_dependence_between_columns():
    x, mask = rows_with_extremes(MIXED, n=400, missing=0.3, seed=6)
    full = torch.randn(400, generator=generator()).double()
    x[:, 0], x[:, 2], x[:, 3] = full, -full, (full > 0).double()
    t = table(x, mask)
    prior = JointPrior.learn(MIXED, t, seed=0)
    p = prior.condition(t).distribution
    only_b = ~mask[:, 0] & mask[:, 2]
    assert (p.mean[only_b, 0] - full[only_b]).abs().mean() < 0.3
    only_a = ~mask[:, 3] & mask[:, 0]
    assert ((p.log_prob[only_a, 3].argmax(-1) == x[only_a, 3]).double().mean()) > 0.85


def test_an_update_makes_the_completed_covariates_more_likely():
    before = cases.patients_table(100, 0.0, seed=11)
    prior = JointPrior.learn(cases.SPACE, before, seed=0, components=3)
    after = cases.patients_table(100, 0.0, seed=12)
    after = replace(after, x=torch.where(torch.tensor(cases.SPACE.levels) == 0, after.x * 0.5 + 1.0, after.x))
    likelihood = [float(prior.mixture.log_density(after.x).sum())]
    for _ in range(3):
        prior.update(after)
        likelihood.append(float(prior.mixture.log_density(after.x).sum()))
    assert likelihood == sorted(likelihood)
    assert likelihood[-1] > likelihood[0] + 100.0


def test_updates_of_the_other_priors():
    before, after = cases.patients_table(100, 0.0, seed=11), cases.patients_table(100, 0.0, seed=12)
    prior = FactorisedPrior.learn(cases.SPACE, before)
    prior.update(after)
    expected = FactorisedPrior.learn(cases.SPACE, after)
    assert_close(prior.mean, expected.mean)
    assert_close(prior.log_prob, expected.log_prob)
    along = LongitudinalPrior.learn(cases.SPACE, before, 0, seed=0, components=2)
    rates, across = along.rates.clone(), along.across.mixture.mean.clone()
    along.update(after)
    assert torch.equal(along.rates, rates)
    assert_close(along.marginal.mean, expected.mean)
    assert not torch.equal(along.across.mixture.mean, across)


def test_a_sample_without_a_level_or_a_column_leaves_a_prior_that_allows_both():
    """A bootstrap sample of patients may lack a rare level, and all values of a column that is rarely known."""
    table = cases.patients_table(100, 0.0, seed=11)
    category = next(q for q in cases.SPACE.categorical if not cases.SPACE.static[q])
    number = next(q for q in cases.SPACE.continuous if q != 0)
    x, mask = table.x.clone(), table.x_mask.clone()
    x[:, category] = 0.0
    mask[:, number] = False
    sample = replace(table, x=x, x_mask=mask)
    for prior in (
        FactorisedPrior.learn(cases.SPACE, table),
        LongitudinalPrior.learn(cases.SPACE, table, 0, seed=0, components=2),
    ):
        before = getattr(prior, "marginal", prior).mean[number].clone()
        prior.update(sample)
        marginal = getattr(prior, "marginal", prior)
        levels = cases.SPACE.levels[category]
        assert_close(marginal.log_prob[category, :levels].exp().sum(), torch.ones(()), check_dtype=False)
        assert marginal.log_prob[category, :levels].min() > math.log(1e-4)
        assert marginal.mean[number] == before
        p = prior.condition(cases.patients_table(20, 0.4, seed=3)).distribution
        assert torch.isfinite(p.mean).all()
        assert torch.isfinite(p.log_prob[:, category, :levels]).all()
