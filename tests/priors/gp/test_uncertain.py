"""Expectations of the kernel at uncertain inputs against quadrature and sampling."""

import numpy as np
import pytest
import torch

from lacova.data.distributions import FactorisedDistribution
from lacova.priors.gp.bounds import project
from lacova.priors.gp.uncertain import (
    excess,
    expected_cross,
    expected_kernel,
    expected_outer,
    inducing_whitener,
    known_inputs,
    uncertain_inputs,
)
from tests.priors.gp import toys
from tests.priors.gp.toys import random_q

SPACE = toys.SPACE


def inputs(n=4, seed=0, gaps=((0, 1), (1, 2), (2, 0), (2, 1), (2, 2))):
    g = torch.Generator().manual_seed(seed)
    t = toys.toy(visits=(n,), seed=seed)
    known = torch.ones(n, 3, dtype=torch.bool)
    for i, c in gaps:
        known[i, c] = False
    q_x = FactorisedDistribution(
        torch.randn(n, 3, generator=g, dtype=torch.float64),
        torch.rand(n, 3, generator=g, dtype=torch.float64) + 0.1,
        torch.log_softmax(torch.randn(n, 3, 2, generator=g, dtype=torch.float64), -1),
    )
    return t, uncertain_inputs(t.x, known, q_x, SPACE)


def quadrature(x, order=40):
    """Completions of one row with their probabilities: Gauss–Hermite nodes of the numbers, and every level."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    nodes, weights = torch.tensor(nodes), torch.tensor(weights / weights.sum())
    t, a, level = torch.meshgrid(nodes, nodes, torch.arange(2.0).double(), indexing="ij")
    full = torch.stack([x.mean[0] + x.var[0].sqrt() * t, x.mean[1] + x.var[1].sqrt() * a, level], -1)
    weight = weights[:, None, None] * weights[:, None] * x.prob[2]
    return full.reshape(-1, 3), weight.reshape(-1)


def test_known_inputs_give_the_kernel_itself():
    t, _ = inputs()
    value = expected_kernel(t.kernel, known_inputs(t.inducing, SPACE), known_inputs(t.x, SPACE), t.kernel.shared)
    torch.testing.assert_close(value, t.kernel(t.inducing, t.x, t.kernel.shared), rtol=1e-12, atol=0)


def test_first_and_second_moments_equal_quadrature():
    t, x = inputs()
    one = torch.ones(toys.L, 1, dtype=torch.float64)
    first = expected_kernel(t.kernel, known_inputs(t.inducing, SPACE), x, t.kernel.shared)
    for i in range(4):
        full, weight = quadrature(x.take(torch.tensor(i)))
        k = t.kernel(t.inducing, full, t.kernel.shared)
        torch.testing.assert_close(first[..., i], (k * weight).sum(-1), rtol=1e-8, atol=1e-12)
        outer = expected_outer(t.kernel, t.inducing, x.take(torch.tensor([i])), one, SPACE)
        torch.testing.assert_close(outer, torch.einsum("lmn,lkn,n->lmk", k, k, weight), rtol=1e-8, atol=1e-12)


def test_kernel_between_two_uncertain_inputs_equals_quadrature():
    t, x = inputs()
    value = expected_kernel(t.kernel, x, x, t.kernel.shared)
    (full1, w1), (full2, w2) = (quadrature(x.take(torch.tensor(i)), 24) for i in (1, 2))
    k = t.kernel(full1, full2, t.kernel.shared)
    torch.testing.assert_close(value[:, 1, 2], torch.einsum("lmn,m,n->l", k, w1, w2), rtol=1e-8, atol=1e-12)


def test_moments_agree_with_a_million_samples():
    t, x = inputs()
    g = torch.Generator().manual_seed(1)
    row = x.take(torch.tensor(2))
    count = 1_000_000
    draws = row.mean + row.var.sqrt() * torch.randn(count, 3, generator=g, dtype=torch.float64)
    draws[:, 2] = torch.multinomial(row.prob[2], count, replacement=True, generator=g).double()
    k = t.kernel(t.inducing, draws, t.kernel.shared)
    one = torch.ones(toys.L, 1, dtype=torch.float64)
    outer = expected_outer(t.kernel, t.inducing, x.take(torch.tensor([2])), one, SPACE)
    torch.testing.assert_close(outer, torch.einsum("lmn,lkn->lmk", k, k) / count, rtol=0, atol=2e-3)


def test_cross_expectations_are_those_of_a_known_and_an_uncertain_input():
    t, x = inputs()
    expected = expected_kernel(t.kernel, known_inputs(t.inducing, SPACE), x, t.kernel.shared)
    torch.testing.assert_close(expected_cross(t.kernel, t.inducing, x, t.kernel.shared, SPACE), expected)


def excess_at(kernel, s, x, weight, q, jitter=None):
    """The excess, and the expected projections."""
    whitener, cross = inducing_whitener(kernel, s, jitter), expected_cross(kernel, s, x, kernel.shared, SPACE)
    return excess(kernel, s, x, cross, weight, q, whitener, SPACE)[0], whitener @ cross


def test_excess_is_the_expected_bound_less_the_bound_at_mean_projections():
    t, x = inputs()
    q = random_q(t)
    weight = torch.rand(toys.L, 4, dtype=torch.float64) + 0.5
    value, mean_a = excess_at(t.kernel, t.inducing, x, weight, q, jitter=1e-12)

    def part(a):  # the part of the bounds that is not linear in a: (aᵀm)² − aᵀa + aᵀHa
        return torch.einsum("lmn,lm->ln", a, q.mean).square() - a.square().sum(1) + q.spread(a)

    expected = 0.0
    for i in range(4):
        full, probability = quadrature(x.take(torch.tensor(i)))
        a = project(t.kernel, t.inducing, full, 1e-12)
        expected = expected + 0.5 * (((part(a) * probability).sum(-1) - part(mean_a)[:, i]) * weight[:, i]).sum()
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-10)


def test_gradients():
    t, x = inputs(n=3)
    q = random_q(t)
    weight = torch.ones(toys.L, 3, dtype=torch.float64)

    def value(mean, var, prob, s):
        here = x._replace(mean=mean, var=var, prob=prob)
        added, projection = excess_at(t.kernel, s, here, weight, q)
        return added + projection.sum()

    s = t.inducing.clone()
    # Levels of the inducing inputs are not moved: perturb the numbers only.
    arguments = [part.clone().requires_grad_() for part in (x.mean, x.var + 0.05, x.prob)]

    def fixed_levels(mean, var, prob, numbers):
        return value(mean, var, prob, torch.cat([numbers, s[:, 2:]], 1))

    numbers = s[:, :2].clone().requires_grad_()
    assert torch.autograd.gradcheck(fixed_levels, (*arguments, numbers), atol=1e-6)


@pytest.mark.parametrize("lengthscale", [0.7, 2.0, 5.0])
def test_float32_stays_close_on_ill_conditioned_inducing_inputs(lengthscale):
    t, x = inputs(n=4)
    for scale in t.kernel.log_lengthscale:
        scale.data.fill_(float(np.log(lengthscale)))
    t.inducing = torch.cat([t.x, t.x + 1e-4, t.x * 0.5])
    weight = torch.full((toys.L, 4), 3.0, dtype=torch.float64)
    exact, _ = excess_at(t.kernel, t.inducing, x, weight, random_q(t))
    single = toys.cast(t, torch.float32)
    value, _ = excess_at(single.kernel, single.inducing, x, weight, random_q(t))
    torch.testing.assert_close(value, exact, rtol=1e-3, atol=1e-3)
