"""Covariates with memory: neighbours, bridges and rates, against the processes that generate them."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from lacova.covariates.dependence import correlated
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.mixture import Mixture
from lacova.covariates.paths import log_steps, memory
from lacova.covariates.prior import FactorisedPrior, JointPrior
from lacova.covariates.processes import Sides, fit_number, fit_rate
from lacova.covariates.visits import Visits, clock_of
from lacova.data.batches import Batches
from lacova.data.covariate_space import CovariateSpace
from tests.covariates import cases
from tests.covariates.cases import generator, share_within_patients, table

# time, number, 3 levels, static 2 levels, static number
SPACE = CovariateSpace(("t", "a", "c3", "s2", "sa"), (0, 0, 3, 2, 0), (False, False, False, True, True))


def ragged(seed=0, visits=(4, 1, 6, 3, 5), missing=0.4, space=SPACE):
    """Patients with these numbers of visits, rows in random order, with gaps in time and tied times."""
    g = generator(seed)
    patient = torch.repeat_interleave(torch.arange(len(visits)), torch.tensor(visits))
    patient = patient[torch.randperm(len(patient), generator=g)]
    n = len(patient)
    x = torch.randn(n, len(space.names), generator=g, dtype=torch.float64)
    x[:, 0] = torch.randint(6, (n,), generator=g).double() / 3.0
    for q in space.categorical:
        x[:, q] = torch.randint(space.levels[q], (n,), generator=g).double()
    mask = torch.rand(x.shape, generator=g) > missing
    return table(*(share_within_patients(values, patient, space) for values in (x, mask)), patient)


def prior_with_rates(space, rates, time=0, components=3):
    """A prior with random mixture and marginals, and the given rates."""
    g = generator(7)
    q = len(space.names)
    log_prob = torch.full((q, space.max_levels), -torch.inf, dtype=torch.float64)
    for c in space.categorical:
        log_prob[c, : space.levels[c]] = torch.randn(space.levels[c], generator=g).double().log_softmax(0)
    marginal = FactorisedPrior(
        space, torch.randn(q, generator=g).double(), 30.0 + torch.rand(q, generator=g).double(), log_prob
    )
    return LongitudinalPrior(
        cases.mixture(space, components), marginal, torch.as_tensor(rates, dtype=torch.float64), time
    )


def neighbours_of(t, clock, q):
    """Value and distance (N,) of a column's neighbours, before and after."""
    sides = Visits.of(t, clock, torch.tensor([q])).neighbours()
    return [(value[:, 0], distance[:, 0]) for value, distance in zip(*sides, strict=True)]


def bridge_levels(values, gaps, rate_matrix, marginal):
    """p(x | level before, level after) of one column, from levels and distances (N×2)."""
    level, distance = values.T[..., None].long(), gaps.T[..., None]
    return Sides.of(level, distance, rate_matrix[None], marginal[None]).bridge()[:, 0]


@pytest.mark.parametrize("seed", range(4))
def test_neighbours_equal_a_double_loop(seed):
    t = ragged(seed, visits=(6, 1, 9, 5, 8))
    for time in (0, None):
        clock = clock_of(t, time)
        for q in (1, 2):
            sides = neighbours_of(t, clock, q)
            neighbours = 0
            for i in range(len(t)):
                here = (float(clock[i]), i)
                before, after = (-math.inf, -1), (math.inf, -1)  # in order of time, then of the table
                for j in range(len(t)):
                    if j == i or t.patient[j] != t.patient[i] or not t.x_mask[j, q] or clock[[i, j]].isnan().any():
                        continue
                    there = (float(clock[j]), j)
                    before = max(before, there) if there < here else before
                    after = min(after, there) if there > here else after
                for (value, distance), (when, j) in zip(sides, (before, after), strict=True):
                    neighbours += j >= 0
                    assert distance[i] == (abs(when - clock[i]) if j >= 0 else math.inf)
                    assert value[i] == (t.x[j, q] if j >= 0 else 0.0)
            assert neighbours > 10
    assert (torch.stack([d for _, d in neighbours_of(t, clock_of(t, 0), 1)]) == 0).any()  # ties occur


def test_without_a_time_column_visits_are_counted():
    t = ragged()
    clock = clock_of(t, None)
    for i in range(len(t)):
        assert clock[i] == sum(int(t.patient[j] == t.patient[i]) for j in range(i))
    assert torch.equal(clock_of(t, 0).isnan(), ~t.x_mask[:, 0])


def single_rate_matrix(stationary, rate):
    """G = rate (1 πᵀ − I)."""
    k = len(stationary)
    return rate * (stationary.expand(k, k) - torch.eye(k, dtype=torch.float64))


def transition(stationary, rate, gap):
    """P(gap) = ρ I + (1 − ρ) 1 πᵀ, ρ = exp(−rate · gap): exp(gap · G) in closed form."""
    rho, k = math.exp(-rate * gap), len(stationary)
    return rho * torch.eye(k, dtype=torch.float64) + (1.0 - rho) * stationary.expand(k, k)


@pytest.mark.parametrize("stationary", [[0.3, 0.7], [0.2, 0.5, 0.3]], ids=["2 levels", "3 levels"])
def test_bridge_of_levels_equals_the_markov_chain(stationary):
    pi, rate = torch.tensor(stationary, dtype=torch.float64), 0.8
    for first in (0.05, 0.7, 3.0, math.inf):
        for second in (0.1, 1.5, math.inf):
            to, on = (
                pi.expand(len(pi), -1) if math.isinf(gap) else transition(pi, rate, gap) for gap in (first, second)
            )  # without a neighbour every row is π
            for before in range(len(pi)):
                for after in range(len(pi)):
                    expected = to[before] * on[:, after] / (to[before] * on[:, after]).sum()
                    gaps = torch.tensor([[first, second]], dtype=torch.float64)
                    values = torch.tensor([[before, after]], dtype=torch.float64)
                    assert_close(
                        bridge_levels(values, gaps, single_rate_matrix(pi, rate), pi)[0],
                        expected,
                        rtol=1e-8,
                        atol=1e-11,
                    )
    none = bridge_levels(
        torch.zeros(1, 2).double(), torch.full((1, 2), math.inf).double(), single_rate_matrix(pi, rate), pi
    )
    assert_close(none[0], pi, rtol=1e-12, atol=0)


def simulate(stationary, rate, patients=400, visits=12, seed=0, missing=0.2):
    """Time and one column with memory: levels with probabilities `stationary`, or a standard OU process if None."""
    g = generator(seed)
    when = torch.rand(patients, visits, generator=g, dtype=torch.float64).mul(4.0 * visits / 12).sort(1).values
    value = torch.empty(patients, visits, dtype=torch.float64)
    for i in range(visits):
        rho = torch.exp(-rate * (when[:, i] - when[:, i - 1])) if i else torch.zeros(patients).double()
        if stationary is None:
            value[:, i] = torch.randn(patients, generator=g, dtype=torch.float64) * (1.0 - rho**2).sqrt()
            value[:, i] += rho * value[:, i - 1] if i else 0.0
        else:
            fresh = torch.multinomial(torch.tensor(stationary), patients, replacement=True, generator=g).double()
            stay = torch.rand(patients, generator=g) < rho
            value[:, i] = torch.where(stay, value[:, i - 1], fresh) if i else fresh
    x = torch.stack([when.flatten(), value.flatten()], 1)
    mask = torch.rand(x.shape, generator=g) > missing
    mask[:, 0] = True
    patient = torch.arange(patients).repeat_interleave(visits)
    order = torch.randperm(len(x), generator=g)
    space = CovariateSpace(("t", "v"), (0, len(stationary or ())), (False, False))
    return space, table(x[order], mask[order], patient[order]), x[order, 1]


@pytest.mark.parametrize("rate", [0.3, 2.0])
@pytest.mark.parametrize("stationary", [None, [0.35, 0.65], [0.2, 0.5, 0.3]], ids=["numbers", "2 levels", "3 levels"])
def test_rates_are_recovered(stationary, rate):
    space, t, _ = simulate(stationary, rate, patients=1_500)
    marginal = FactorisedPrior.learn(space, t)
    if stationary is None:
        fitted, lasting = fit_number(marginal, t, clock_of(t, 0), 1)
        assert float(fitted) == pytest.approx(rate, rel=0.4)  # the grid has steps of 1.6
        assert float(lasting) >= 0.9
    else:
        assert float(fit_rate(marginal, t, clock_of(t, 0), 1)) == pytest.approx(rate, rel=0.15)


RISING = torch.tensor([[-0.5, 0.45, 0.05], [0.02, -0.62, 0.6], [0.01, 0.04, -0.05]], dtype=torch.float64)


def simulate_chain(rate_matrix, patients, visits=6, seed=0):
    """Visits about one unit of time apart, of a column with these rates between its levels."""
    g = generator(seed)
    when = torch.arange(visits).double() + 0.3 * torch.rand(patients, visits, generator=g, dtype=torch.float64)
    value = torch.zeros(patients, visits, dtype=torch.float64)
    for i in range(1, visits):
        step = torch.matrix_exp((when[:, i] - when[:, i - 1])[:, None, None] * rate_matrix)
        probability = step[torch.arange(patients), value[:, i - 1].long()]
        value[:, i] = torch.multinomial(probability, 1, generator=g)[:, 0].double()
    x = torch.stack([when.flatten(), value.flatten()], 1)
    space = CovariateSpace(("t", "v"), (0, len(rate_matrix)), (False, False))
    return space, table(x, torch.ones_like(x, dtype=torch.bool), torch.arange(patients).repeat_interleave(visits))


def test_rates_between_levels_are_recovered():
    space, t = simulate_chain(RISING, patients=800)
    rate_matrix = LongitudinalPrior.learn(space, t, 0, seed=0, components=1).generators[1]
    assert_close(rate_matrix.sum(1), torch.zeros(3).double(), rtol=0, atol=1e-10)
    assert_close(rate_matrix, RISING, rtol=0.1, atol=0.02)


def test_bridge_with_a_rate_per_pair_of_levels_equals_the_chain():
    """The middle of three steps of a chain whose levels mostly rise."""
    start = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    to, on = (torch.matrix_exp(gap * RISING) for gap in (0.8, 2.5))
    for before in (None, 0, 1, 2):
        for after in (None, 0, 1, 2):
            weight = start if before is None else to[before]
            weight = weight if after is None else weight * on[:, after]
            values = torch.tensor([[before or 0, after or 0]], dtype=torch.float64)
            gaps = [math.inf if before is None else 0.8, math.inf if after is None else 2.5]
            gaps = torch.tensor([gaps], dtype=torch.float64)
            probs = bridge_levels(values, gaps, RISING, start)[0]
            assert_close(probs, weight / weight.sum(), rtol=1e-8, atol=1e-10)


def test_a_rising_column_is_not_bridged_downwards():
    """After level 1 comes level 2, not 0; with one rate, 0 would be as likely as it is overall."""
    space, t = simulate_chain(RISING, patients=400, seed=1)
    prior = LongitudinalPrior.learn(space, t, 0, seed=0, components=1)
    values = torch.tensor([[1.0, 0.0]]).double()
    after_one = torch.tensor([[1.0, math.inf]]).double()
    overall = prior.marginal.log_prob[1].exp()
    free = bridge_levels(values, after_one, prior.generators[1], overall)[0]
    single = bridge_levels(values, after_one, single_rate_matrix(overall.double(), float(prior.rates[1])), overall)[0]
    assert free[2] > 5.0 * free[0]
    assert free[0] < single[0]


def test_a_column_without_pairs_has_no_memory():
    t = ragged(visits=(1, 1, 1, 1), missing=0.0)
    prior = LongitudinalPrior.learn(SPACE, t, 0, seed=0, components=1)
    assert torch.isinf(prior.rates).all()


def test_time_and_static_columns_have_no_rate():
    t = ragged(visits=(8,) * 12, missing=0.2)
    rates = LongitudinalPrior.learn(SPACE, t, 0, seed=0, components=1).rates
    assert torch.isfinite(rates).tolist() == [False, True, True, False, False]
    rates = LongitudinalPrior.learn(SPACE, t, None, seed=0, components=1).rates
    assert torch.isfinite(rates).tolist() == [True, True, True, False, False]


def test_without_memory_the_prior_is_the_pooled_mixture():
    t = ragged()
    prior = prior_with_rates(SPACE, [math.inf] * 5)
    conditional, mixture = prior.condition(t), JointPrior(prior.across.mixture).condition(t).distribution
    for i in range(len(t)):
        own = t.patient == t.patient[i]
        for q in range(5):
            rows = own if SPACE.static[q] else torch.arange(len(t)) == i
            assert_close(conditional.distribution.mean[i, q], mixture.mean[rows, q].mean(), rtol=1e-8, atol=1e-12)
            assert_close(conditional.distribution.var[i, q], mixture.var[rows, q].mean(), rtol=1e-8, atol=1e-12)
            if SPACE.levels[q]:
                expected = mixture.log_prob[rows, q].mean(0).log_softmax(0)
                assert_close(conditional.distribution.log_prob[i, q], expected, rtol=1e-8, atol=1e-12)
    assert (conditional.log_marginal == 0).all()


@pytest.mark.parametrize("time", [0, None])
def test_conditional_priors_are_normalised_and_static_ones_shared(time):
    t = ragged()
    p = prior_with_rates(SPACE, [math.inf, 0.7, 1.3, math.inf, math.inf], time).condition(t).distribution
    assert torch.isfinite(p.mean).all()
    assert (p.var > 0).all()
    for q in SPACE.categorical:
        assert_close(p.log_prob[:, q].exp().sum(-1), torch.ones(len(t)).double(), rtol=1e-10, atol=0)
        assert (p.log_prob[:, q, SPACE.levels[q] :] == -torch.inf).all()
    for patient in range(5):
        own = t.patient == patient
        for part in cases.parts(p):
            assert torch.equal(part[own][:, 3:], part[own][:1, 3:].expand_as(part[own][:, 3:]))


def test_rows_with_unknown_time_and_patients_with_one_visit_fall_back_to_the_mixture():
    t = ragged(seed=1)
    prior = prior_with_rates(SPACE, [math.inf, 0.7, 1.3, math.inf, math.inf])
    p, mixture = prior.condition(t).distribution, JointPrior(prior.across.mixture).condition(t).distribution
    without_neighbours = ~t.x_mask[:, 0] | (torch.bincount(t.patient)[t.patient] == 1)
    assert without_neighbours.sum() > 3
    gaps = ~t.x_mask & without_neighbours[:, None]
    assert_close(p.mean[:, 1][gaps[:, 1]], mixture.mean[:, 1][gaps[:, 1]], rtol=1e-8, atol=1e-12)
    assert_close(p.var[:, 1][gaps[:, 1]], mixture.var[:, 1][gaps[:, 1]], rtol=1e-8, atol=0)
    assert_close(p.log_prob[:, 2][gaps[:, 2]], mixture.log_prob[:, 2][gaps[:, 2]], rtol=1e-8, atol=1e-12)
    changed = ~t.x_mask & ~without_neighbours[:, None]
    assert (p.log_prob[:, 2][changed[:, 2]] - mixture.log_prob[:, 2][changed[:, 2]]).abs().max() > 0.1


@pytest.mark.parametrize("time", [0, None])
def test_independent_columns_use_their_own_process_only(time):
    """With independent columns, the distribution of a gap is that of its process given its neighbours."""
    t = ragged(seed=2, missing=0.3)
    marginal = prior_with_rates(SPACE, [math.inf] * 5).marginal
    c = SPACE.continuous
    mixture = Mixture(
        SPACE, torch.zeros(1).double(), marginal.mean[c][None], torch.diag(marginal.var[c])[None],
        marginal.log_prob[SPACE.categorical][None],
    )  # fmt: skip
    rates = torch.tensor([math.inf, 0.7, 1.3, math.inf, math.inf], dtype=torch.float64)
    p = LongitudinalPrior(mixture, marginal, rates, time).condition(t).distribution
    clock = clock_of(t, time)
    for q in (1, 2):
        (first, to), (second, on) = neighbours_of(t, clock, q)
        for i in (~t.x_mask[:, q]).nonzero()[:, 0].tolist():
            if 0.0 in (to[i], on[i]):
                continue  # tied times
            if q == 2:
                pi = marginal.log_prob[2].exp()
                before = pi if to[i].isinf() else transition(pi, 1.3, to[i])[int(first[i])]
                after = torch.ones(3) if on[i].isinf() else transition(pi, 1.3, on[i])[:, int(second[i])]
                expected = before * after / (before * after).sum()
                assert_close(p.log_prob[i, q].exp(), expected, rtol=1e-8, atol=1e-12)
            else:
                near = [(s * d, v) for s, d, v in ((-1, to[i], first[i]), (1, on[i], second[i])) if not d.isinf()]
                when = torch.tensor([0.0, *(d for d, _ in near)], dtype=torch.float64)
                value = torch.tensor([v for _, v in near], dtype=torch.float64)
                k = marginal.var[1] * torch.exp(-0.7 * (when[:, None] - when).abs())
                gain = k[0, 1:] @ torch.linalg.inv(k[1:, 1:])
                assert_close(p.mean[i, 1], marginal.mean[1] + gain @ (value - marginal.mean[1]), rtol=1e-8, atol=1e-10)
                assert_close(p.var[i, 1], k[0, 0] - gain @ k[1:, 0], rtol=1e-8, atol=0)


def test_both_sources_are_multiplied_and_the_marginal_divided_out():
    t = ragged(seed=3)
    prior = prior_with_rates(SPACE, [math.inf, 0.7, 1.3, math.inf, math.inf])
    p, across = prior.condition(t).distribution, JointPrior(prior.across.mixture).condition(t).distribution
    clock, marginal, compared = clock_of(t, 0), prior.marginal, 0
    for q, rate in ((1, 0.7), (2, 1.3)):
        sides = neighbours_of(t, clock, q)
        values, gaps = (torch.stack(v, 1) for v in zip(*sides, strict=True))
        for i in (~t.x_mask[:, q]).nonzero()[:, 0].tolist():
            if q == 2:
                pi = marginal.log_prob[2].exp()
                along = bridge_levels(values[i : i + 1], gaps[i : i + 1], single_rate_matrix(pi, rate), pi)[
                    0
                ].clamp_min(1e-12)
                expected = across.log_prob[i, 2].exp() * along / pi
                assert_close(p.log_prob[i, 2].exp(), expected / expected.sum(), rtol=1e-8, atol=1e-12)
            else:
                own = clock[(t.patient == t.patient[i]) & ~clock.isnan()]
                if len(own.unique()) < len(own):
                    continue  # tied times
                compared += 1
                centre, scale = marginal.mean[1], marginal.var[1]
                near = [(s * d, v) for s, d, v in zip((-1, 1), gaps[i], values[i], strict=True) if not d.isinf()]
                when = torch.tensor([0.0, *(d for d, _ in near)], dtype=torch.float64)
                value = torch.tensor([v for _, v in near], dtype=torch.float64)
                k = scale * torch.exp(-rate * (when[:, None] - when).abs())
                gain = k[0, 1:] @ torch.linalg.inv(k[1:, 1:])
                parts = [
                    (across.mean[i, 1], across.var[i, 1], 1.0),
                    (centre + gain @ (value - centre), k[0, 0] - gain @ k[1:, 0], 1.0),
                    (centre, scale, -1.0),
                ]
                precision = sum(sign / v for _, v, sign in parts)
                assert_close(p.var[i, 1], 1.0 / precision, rtol=1e-8, atol=0)
                expected = sum(sign * m / v for m, v, sign in parts) / precision
                assert_close(p.mean[i, 1], expected, rtol=1e-8, atol=1e-10)
    assert compared > 1


def test_a_sticky_indicator_is_imputed_far_better_than_by_its_mode():
    space, t, truth = simulate([0.4, 0.6], rate=0.25, patients=200, missing=0.3, seed=4)
    prior = LongitudinalPrior.learn(space, t, 0, seed=0)
    gaps = ~t.x_mask[:, 1]
    guess = prior.condition(t).distribution.log_prob[gaps, 1].argmax(-1)
    mode = (truth[gaps] == 1).double().mean()
    assert (guess == truth[gaps]).double().mean() > mode + 0.2
    counted = LongitudinalPrior.learn(space, t, None, seed=0).condition(t).distribution.log_prob[gaps, 1]
    assert torch.isfinite(counted).all()


def test_an_ou_column_is_imputed_far_better_than_by_its_mean():
    space, t, truth = simulate(None, rate=0.25, patients=200, missing=0.3, seed=5)
    p = LongitudinalPrior.learn(space, t, 0, seed=0).condition(t).distribution
    gaps = ~t.x_mask[:, 1]
    error = (p.mean[:, 1] - truth)[gaps]
    assert error.square().mean() < 0.3 * truth[gaps].square().mean()
    assert 0.8 < (error.square() / p.var[gaps, 1]).mean() < 1.25


def tied(values, rate=1.0):
    """Three visits of one patient at the same time; the level of the middle one is missing."""
    space = CovariateSpace(("t", "v"), (0, 2), (False, False))
    x = torch.tensor([[0.0, values[0]], [0.0, 0.0], [0.0, values[1]]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    return prior_with_rates(space, [math.inf, rate]), table(x, mask, torch.zeros(3, dtype=torch.long))


def test_tied_visits_that_agree_settle_the_level():
    prior, t = tied([1.0, 1.0])
    assert prior.condition(t).distribution.log_prob[1, 1].exp()[1] > 0.999


def test_tied_visits_that_disagree_are_handled():
    """Both neighbours have correlation 1, so that no level is possible: without a lower bound, 0/0 would give NaN. The
    network of the posterior would receive it, even at observed entries."""
    prior, t = tied([0.0, 1.0])
    assert torch.isfinite(prior.condition(t).distribution.log_prob[1, 1]).all()


def test_a_number_without_neighbours_keeps_the_wide_distribution_of_the_mixture():
    """A patient with one visit, in a rare group with a large variance: the prior should be the mixture's distribution
    of that group. Clamping at the stationary precision would narrow it, and scale down the shift of the mean."""
    space = CovariateSpace(("c", "v"), (2, 0), (False, False))
    g = generator(0)
    c = (torch.rand(600, generator=g) < 0.1).double()
    v = torch.where(c == 1, 2.0 + 3.0 * torch.randn(600, generator=g).double(), 0.3 * torch.randn(600, generator=g))
    full = table(torch.stack([c, v], 1), torch.ones(600, 2, dtype=torch.bool), torch.arange(600) // 2)
    prior = LongitudinalPrior.learn(space, full, None, seed=0, components=2)
    single_visit = table(
        torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[True, False]]), torch.zeros(1, dtype=torch.long)
    )
    p, mixture = prior.condition(single_visit).distribution, prior.across.condition(single_visit).distribution
    assert mixture.var[0, 1] > 2.0 * prior.marginal.var[1]
    assert_close(p.var[0, 1], mixture.var[0, 1], rtol=1e-8, atol=0)
    assert_close(p.mean[0, 1], mixture.mean[0, 1], rtol=1e-8, atol=0)


@pytest.mark.parametrize("time", [0, None])
@pytest.mark.parametrize("lasting", [1.0, 0.6])
def test_the_numbers_of_a_run_are_those_of_the_process_given_what_is_observed(time, lasting):
    """With independent columns, against the dense normal of a patient's visits. Rows are in random order.

    With noise, a path is no Markov chain: it has the variances, and the correlations of neighbours.
    """
    visits, pairs = (6, 1, 9, 5, 8), 0
    t = ragged(seed=4, visits=visits, missing=0.6)
    marginal = prior_with_rates(SPACE, [math.inf] * 5).marginal
    c = SPACE.continuous
    mixture = Mixture(
        SPACE, torch.zeros(1).double(), marginal.mean[c][None], torch.diag(marginal.var[c])[None],
        marginal.log_prob[SPACE.categorical][None],
    )  # fmt: skip
    rates = torch.tensor([math.inf, 0.7, 1.3, math.inf, math.inf], dtype=torch.float64)
    shares = torch.tensor([1.0, lasting, 1.0, 1.0, 1.0], dtype=torch.float64)
    prior = LongitudinalPrior(mixture, marginal, rates, time, lasting=shares)
    batches = Batches(replace(t, conditional_prior=prior.condition(t)))
    rows, batch = next(batches.in_order())
    p = batch.conditional_prior.distribution
    linked = p.paths.linked
    assert not linked[:, [0, 3, 4]].any()
    assert not linked[batch.x_mask].any()
    eps = torch.eye(batch.x.numel(), dtype=torch.float64).view(-1, *batch.x.shape)
    root = (correlated(eps, p, batch) * p.var.sqrt())[..., 1].T
    clock = clock_of(t, time)[rows]
    for patient in range(len(visits)):
        gap = (~batch.x_mask[:, 1] & (batch.patient == patient) & ~clock.isnan()).nonzero()[:, 0]
        seen = (batch.x_mask[:, 1] & (batch.patient == patient) & ~clock.isnan()).nonzero()[:, 0]
        at = clock[torch.cat([gap, seen])]
        if len(at.unique()) < len(at):
            at = at + 1e-7 * torch.arange(len(at))  # visits at the same time: nearly so
        k = lasting * torch.exp(-0.7 * (at[:, None] - at).abs()) + (1.0 - lasting) * torch.eye(len(at)).double()
        k, n = marginal.var[1] * k, len(gap)
        expected = k[:n, :n] - k[:n, n:] @ torch.linalg.solve(k[n:, n:], k[n:, :n]) if len(seen) else k
        # Where visits are at the same time, their order is arbitrary and the least distance is 1e-6.
        tied = len(clock[gap].unique()) < n or bool(torch.isin(clock[gap], clock[seen]).any())
        if not tied:
            drawn, order = root[gap] @ root[gap].T, clock[gap].argsort()
            if lasting < 1.0:  # of the process, what a chain keeps
                near = torch.eye(n) + torch.eye(n).roll(1, 0).tril(-1) + torch.eye(n).roll(-1, 0).triu(1)
                linked_here = [(p.paths.before[gap[order], 1] != 0).tolist()]
                for a, b in zip(range(n - 1), range(1, n), strict=True):
                    if not linked_here[0][b]:
                        near[a, b] = near[b, a] = 0.0
                drawn, expected = (part[order][:, order] * near for part in (drawn, expected))
            assert_close(drawn, expected, rtol=1e-5, atol=1e-8)
            pairs += int((p.paths.before[gap, 1] != 0).sum())
    assert pairs > 3


def test_visits_at_the_same_time_have_nearly_the_same_value():
    t = ragged(seed=1, visits=(9, 9, 9), missing=0.0)
    t.x_mask[:, 1] = False
    prior = prior_with_rates(SPACE, [math.inf, 0.7, 1.3, math.inf, math.inf])
    batch = next(Batches(replace(t, conditional_prior=prior.condition(t))).in_order())[1]
    p = batch.conditional_prior.distribution
    assert all(torch.isfinite(part).all() for part in (p.mean, p.var, p.paths.coupling))
    same = p.paths.coupling[:, 1] > 1e3
    assert same.any()
    assert (memory(p).loss[:, 1][same] < 1e-2).all()
    x = prior.draw(batch, 100, generator())
    assert torch.isfinite(x).all()
    assert prior.log_density(x, batch).isfinite().all()


def test_without_paths_the_gaps_of_a_patient_are_independent():
    t = ragged()
    with_paths = prior_with_rates(SPACE, [math.inf, 0.7, 1.3, math.inf, math.inf])
    without = LongitudinalPrior(
        with_paths.across.mixture, with_paths.marginal, with_paths.rates, 0, with_paths.generators, paths=False
    )
    p, q = (prior.condition(t).distribution for prior in (with_paths, without))
    assert q.paths is None
    assert torch.equal(p.mean, q.mean)
    assert torch.equal(p.var, q.var)


def test_levels_of_a_run_stay_as_probably_as_the_process():
    """With independent columns, for every pair of neighbouring gaps, given the visits around the run."""
    t = ragged(seed=4, visits=(20, 1, 30, 12), missing=0.6)
    marginal = prior_with_rates(SPACE, [math.inf] * 5).marginal
    c = SPACE.continuous
    mixture = Mixture(
        SPACE, torch.zeros(1).double(), marginal.mean[c][None], torch.diag(marginal.var[c])[None],
        marginal.log_prob[SPACE.categorical][None],
    )  # fmt: skip
    rates = torch.tensor([math.inf, 0.7, 1.3, math.inf, math.inf], dtype=torch.float64)
    prior = LongitudinalPrior(mixture, marginal, rates, None)  # visits are one apart
    rows, batch = next(Batches(replace(t, conditional_prior=prior.condition(t))).in_order())
    p = batch.conditional_prior.distribution
    assert not p.paths.linked[:, [0, 3, 4]].any()
    pi, clock = marginal.log_prob[2].exp(), clock_of(t, None)
    (first, to), (second, on) = (tuple(part[rows] for part in side) for side in neighbours_of(t, clock, 2))
    time, pairs = clock[rows], 0
    stays = log_steps(p)[:, 2].exp().diagonal(dim1=1, dim2=2)
    for i in (p.paths.before[:, 2] != 0).nonzero()[:, 0].tolist():
        j = i + int(p.paths.before[i, 2])
        start = pi if to[j].isinf() else transition(pi, 1.3, to[j])[int(first[j])]
        end = torch.ones(3).double() if on[i].isinf() else transition(pi, 1.3, on[i])[:, int(second[i])]
        joint = start[:, None] * transition(pi, 1.3, time[i] - time[j]) * end
        joint = joint / joint.sum()
        assert_close(p.log_prob[j, 2].exp(), joint.sum(1), rtol=1e-6, atol=1e-9)
        assert_close(p.log_prob[i, 2].exp(), joint.sum(0), rtol=1e-6, atol=1e-9)
        assert_close((joint.sum(1) * stays[i]).sum(), joint.diagonal().sum(), rtol=1e-6, atol=1e-9)
        pairs += 1
    assert pairs > 10
