"""Inducing inputs, q(v) and its natural-gradient steps."""

import pytest
import torch

from lacova.data.covariate_space import CovariateSpace
from lacova.priors.gp.inducing import InducingPoints, Whitened, spread_rows
from tests.priors.gp import toys
from tests.priors.gp.toys import all_rows, both_kinds, close, d3, d4, random_q, unwhiten


def test_inputs_keep_their_columns_and_q_of_v_starts_from_the_prior():
    space = CovariateSpace(("sex", "t", "arm", "age"), (2, 0, 3, 0), (False,) * 4)
    inputs = torch.tensor([[1.0, 0.3, 2.0, -1.0], [0.0, 0.7, 1.0, 4.0]], dtype=torch.float64)
    points = InducingPoints(inputs, space, toys.L)
    close(points.inputs, inputs, rtol=0, atol=0)
    assert [name for name, _ in points.named_parameters()] == ["locations"]  # levels are not learnt
    close(points.locations, inputs[:, [1, 3]], rtol=0, atol=0)
    q = points.distribution()
    close(q.mean, torch.zeros(toys.L, 2).double())
    close(q.root, torch.eye(2).double().expand(toys.L, -1, -1))
    close(q.kl(), torch.zeros(()).double())


def test_q_of_v_in_another_precision_keeps_its_root():
    q = random_q(toys.toy())
    close(q.root.mT @ q.root, torch.cholesky_inverse(q.precision_factor))
    assert q.to(torch.float64) is q
    single = q.to(torch.float32)
    assert single.mean.dtype == single.precision_factor.dtype == single.root.dtype == torch.float32
    close(single.root, q.root.float(), rtol=0, atol=0)  # inverted before rounding


@pytest.mark.parametrize(("count", "expected"), [(2, 2), (3, 3), (9, 3)])
def test_spread_rows_are_distinct(count, expected):
    features = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [5.0, 5.0], [1.0, 0.0]])
    rows = spread_rows(features, count, seed=0)
    assert len(rows) == len(features[rows].unique(dim=0)) == expected


def test_no_rows_give_no_inducing_points():
    assert spread_rows(torch.zeros(0, 2), 4, seed=0).tolist() == []


def test_kl_of_q_of_v_equals_torch_distributions():
    t = toys.toy()
    q = random_q(t)
    total = sum(
        torch.distributions.kl_divergence(
            torch.distributions.MultivariateNormal(q.mean[l], torch.cholesky_inverse(q.precision_factor[l])),
            torch.distributions.MultivariateNormal(torch.zeros_like(q.mean[l]), torch.eye(len(t.inducing)).double()),
        )
        for l in range(toys.L)
    )
    close(q.kl(), total)


@both_kinds
def test_natural_step_of_size_one_reaches_the_optimum(trends):
    t = toys.toy(own=False, trends=trends)
    points = InducingPoints(t.inducing, toys.SPACE, toys.L)
    statistics = d3(t, all_rows(t), points.distribution()).statistics
    points.natural_step(statistics, 1.0)
    for l in range(toys.L):
        kss = toys.kernel_by_loops(t.kernel, t.inducing, t.inducing, t.kernel.shared, l)
        ksx = toys.kernel_by_loops(t.kernel, t.inducing, t.x, t.kernel.shared, l)
        # Hensman et al.: with Λ = σ⁻²K_SS⁻¹K_SX K_XS K_SS⁻¹ + K_SS⁻¹, H = Λ⁻¹ and m = σ⁻²Λ⁻¹K_SS⁻¹K_SX μ.
        inv = torch.linalg.inv(kss)
        precision = inv @ ksx @ ksx.T @ inv / t.noise[l] + inv
        mean, covariance = unwhiten(t, points.distribution(), l)
        close(covariance, torch.linalg.inv(precision), rtol=1e-7)
        close(mean, torch.linalg.solve(precision, inv @ ksx @ t.mean[l]) / t.noise[l], rtol=1e-7)


def test_natural_step_follows_the_natural_gradient():
    """A step in the natural parameters is minus the gradient with respect to the expectation parameters."""
    t = toys.toy(visits=(3, 2), inducing=3)
    points = InducingPoints(t.inducing, toys.SPACE, toys.L)
    points.natural_step(d4(t, [0, 1], points.distribution()).statistics, 0.3)
    start = points.distribution()
    first = start.mean.clone().requires_grad_()
    second = (torch.cholesky_inverse(start.precision_factor) + start.mean[..., None] * start.mean[:, None]).clone()
    second.requires_grad_()
    covariance = second - first[..., None] * first[:, None]
    q = Whitened(first, torch.linalg.cholesky(torch.linalg.inv(covariance)))
    bound = d4(t, [0, 1], q)
    grad1, grad2 = torch.autograd.grad(bound.value + q.kl(), (first, second))
    before = points.shift.clone(), points.precision.clone()
    points.natural_step(bound.statistics, 0.25)
    close(points.shift, before[0] - 0.25 * grad1, rtol=1e-7)
    close(points.precision, before[1] + 0.25 * 2.0 * grad2, rtol=1e-7)


def test_mini_batch_natural_steps_are_unbiased():
    t = toys.toy(visits=(12,), own=False)
    whole, parts = InducingPoints(t.inducing, toys.SPACE, toys.L), []
    q = whole.distribution()
    whole.natural_step(d3(t, all_rows(t), q).statistics, 0.5)
    for part in torch.arange(12).split(3):
        points = InducingPoints(t.inducing, toys.SPACE, toys.L)
        points.natural_step(d3(t, torch.isin(torch.arange(12), part), q, scale=4.0).statistics, 0.5)
        parts.append(points)
    close(torch.stack([p.precision for p in parts]).mean(0), whole.precision)
    close(torch.stack([p.shift for p in parts]).mean(0), whole.shift)
