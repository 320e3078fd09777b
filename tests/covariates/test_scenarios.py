"""Expectations over scenarios: against enumeration, quadrature and exact gradients."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lacova.covariates.scenarios import complete
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from tests.covariates import cases
from tests.covariates.cases import generator

CATEGORIES = CovariateSpace(("c3", "c2", "s2"), (3, 2, 2), (False, False, True))


def row_function(x):
    """A function of one completed row."""
    return torch.sin(x[..., 0] * 1.3 + 0.2) + x[..., 1] * x[..., 2] - 0.5 * x[..., 2]


def patient_function(xs):
    """A function of all completed rows of a patient that is not a sum over rows."""
    return math.prod(float(row_function(x)) + 1.5 for x in xs)


def states(b, rows, space):
    """All combinations of missing levels of some rows; a static column is one unknown."""
    unknowns = []
    for i in rows:
        for c in range(len(space.names)):
            if not b.x_mask[i, c] and not (space.static[c] and len(rows) > 1 and i != rows[0]):
                unknowns.append((i, c))
    for codes in itertools.product(*(range(space.levels[c]) for _, c in unknowns)):
        yield unknowns, codes


def by_enumeration(b, q, rows, space, function):
    """E_q[function(x)] over the rows, by brute force."""
    total = 0.0
    for unknowns, codes in states(b, rows, space):
        x, probability = b.x.clone(), 1.0
        for (i, c), code in zip(unknowns, codes, strict=True):
            probability *= float(q.log_prob[i, c, code].exp())
            x[rows if space.static[c] and len(rows) > 1 else [i], c] = code
        total += probability * float(function(x[rows]))
    return total


@pytest.mark.parametrize("seed", range(4))
def test_sum_over_categories_equals_enumeration_per_row(seed):
    b = cases.batch(missing=0.6, seed=seed, space=CATEGORIES)
    q = cases.distribution(b, CATEGORIES)
    s = complete(q, b, CATEGORIES, couple=False, samples=1, generator=generator())
    result = torch.zeros(len(b)).double().index_add(0, s.row, s.row_weight * row_function(s.x))
    expected = [by_enumeration(b, q, [i], CATEGORIES, lambda x: row_function(x[0])) for i in range(len(b))]
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_sum_over_categories_equals_enumeration_per_patient(seed):
    b = cases.batch(missing=0.4, seed=seed, space=CATEGORIES)
    q = cases.distribution(b, CATEGORIES)
    s = complete(q, b, CATEGORIES, couple=True, samples=1, generator=generator(), cap=10_000)
    for p in range(b.patients):
        rows = (b.patient == p).nonzero()[:, 0].tolist()
        result = sum(
            float(s.weight[v]) * patient_function(s.x[s.scenario == v])
            for v in range(len(s.weight))
            if int(b.patient[s.row[s.scenario == v][0]]) == p
        )
        assert result == pytest.approx(by_enumeration(b, q, rows, CATEGORIES, patient_function), rel=1e-10)


def test_monte_carlo_converges_to_quadrature():
    space = CovariateSpace(("a", "b"), (0, 0), (False, False))
    b = cases.batch(visits=(1, 1), space=space, gaps=[[True, False], [True, True]])
    q = cases.distribution(b, space)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    nodes, weights = torch.tensor(nodes), torch.tensor(weights / weights.sum())

    def function(x):
        return torch.sin(x[..., 0]) * torch.cos(0.5 * x[..., 1]) + x[..., 1]

    expected0 = (
        weights * function(torch.stack([q.mean[0, 0] + q.var[0, 0].sqrt() * nodes, b.x[0, 1].expand(60)], -1))
    ).sum()
    u, v = torch.meshgrid(nodes, nodes, indexing="ij")
    grid = torch.stack([q.mean[1, 0] + q.var[1, 0].sqrt() * u, q.mean[1, 1] + q.var[1, 1].sqrt() * v], -1)
    expected1 = (weights[:, None] * weights * function(grid)).sum()
    error = {}
    for samples in (100, 10_000, 1_000_000):
        s = complete(q, b, space, couple=False, samples=samples, generator=generator())
        result = torch.zeros(2).double().index_add(0, s.row, s.row_weight * function(s.x))
        error[samples] = (result - torch.stack([expected0, expected1])).abs().max()
    assert error[1_000_000] < 5e-3
    assert error[1_000_000] < error[100]


def test_beyond_the_cap_sampling_is_unbiased_in_value_and_gradient():
    b = cases.batch(visits=(1,), space=CATEGORIES, gaps=[[True, True, True]])
    logits = cases.distribution(b, CATEGORIES).log_prob.clone().requires_grad_()

    def expectation(cap, samples):
        log_prob = torch.log_softmax(logits, -1)
        q = FactorisedDistribution(torch.zeros_like(b.x), torch.ones_like(b.x), log_prob)
        s = complete(q, b, CATEGORIES, couple=False, samples=samples, generator=generator(), cap=cap)
        value = (s.row_weight * row_function(s.x)).sum()
        return len(s.weight), value, torch.autograd.grad(value, logits)[0]

    size, exact, gradient = expectation(12, 1)
    assert size == 12
    for cap, states_per_sample in ((4, 3), (1, 1)):  # c3 is enumerated; nothing is
        size, value, estimate = expectation(cap, 100_000)
        assert size == states_per_sample * 100_000
        torch.testing.assert_close(value, exact, rtol=0, atol=0.01)
        torch.testing.assert_close(estimate.nan_to_num(), gradient.nan_to_num(), rtol=0, atol=0.02)


def test_sampled_levels_have_a_baseline():
    """A large constant adds nothing to the gradient; without the mean of the other samples as baseline it would."""
    b = cases.batch(visits=(2, 1), space=CATEGORIES, gaps=[[True, True, True]] * 3)
    for samples in (1, 3):
        logits = cases.distribution(b, CATEGORIES).log_prob.clone().requires_grad_()
        q = FactorisedDistribution(torch.zeros_like(b.x), torch.ones_like(b.x), torch.log_softmax(logits, -1))
        s = complete(q, b, CATEGORIES, couple=True, samples=samples, generator=generator(), cap=1)
        assert len(s.weight) == 2 * max(2, samples)
        assert int(s.sample.max()) == samples - 1
        (gradient,) = torch.autograd.grad((s.row_weight * 1e6).sum(), logits)
        assert gradient.nan_to_num().abs().max() < 1e-8


@given(
    visits=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    missing=st.floats(0, 1),
    seed=st.integers(0, 1000),
    couple=st.booleans(),
    samples=st.integers(1, 3),
    cap=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_scenarios_are_completions_with_weights_that_sum_to_one(visits, missing, seed, couple, samples, cap):
    b = cases.batch(tuple(visits), missing, seed)
    s = complete(cases.distribution(b), b, cases.SPACE, couple=couple, samples=samples, generator=generator(), cap=cap)
    observed = b.x_mask[s.row]
    assert torch.equal(s.x[observed], b.x[s.row][observed])
    for c in cases.SPACE.categorical:
        assert ((s.x[:, c] >= 0) & (s.x[:, c] < cases.SPACE.levels[c]) & (s.x[:, c] == s.x[:, c].round())).all()
    unit = b.patient if couple else torch.arange(len(b))
    first = torch.cat([torch.tensor([True]), s.scenario[1:] != s.scenario[:-1]])
    total = torch.zeros(int(unit[-1]) + 1).double().index_add(0, unit[s.row[first]], s.weight)
    torch.testing.assert_close(total, torch.ones_like(total))
    if couple:
        counts = torch.bincount(b.patient)
        assert torch.equal(torch.bincount(s.scenario), counts[b.patient[s.row[first]]])
        for c in (3, 4):
            owner = first.nonzero()[:, 0][s.scenario]
            assert torch.equal(s.x[:, c], s.x[owner, c])
