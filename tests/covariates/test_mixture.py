"""Densities, conditionals and draws of the mixture, against loops over rows and components."""

import pytest
import torch
from torch.distributions import Categorical, MultivariateNormal
from torch.testing import assert_close

from lacova.covariates import mixture
from tests.covariates import cases
from tests.covariates.cases import generator, rows_with_extremes

MIXED, NUMBERS, CATEGORIES = cases.MIXED, cases.NUMBERS, cases.CATEGORIES
SPACES = pytest.mark.parametrize("space", [MIXED, NUMBERS, CATEGORIES], ids=["mixed", "numbers", "categories"])


def reference(mixture, x, observed):
    """Condition one row by explicit blocks: log p(x_o), p(c | x_o), and mean and covariance of each component."""
    space = mixture.space
    o = [i for i, q in enumerate(space.continuous) if observed[q]]
    u = [i for i, q in enumerate(space.continuous) if not observed[q]]
    value = x[space.continuous]
    joint, means, covariances = [], [], []
    for c in range(len(mixture)):
        mu, sigma = mixture.mean[c], mixture.covariance[c]
        log_p = mixture.log_weight[c].clone()
        mean, covariance = torch.where(observed[space.continuous], value, mu), torch.zeros_like(sigma)
        if o:
            log_p += MultivariateNormal(mu[o], sigma[o][:, o]).log_prob(value[o])
            gain = sigma[u][:, o] @ torch.linalg.inv(sigma[o][:, o])
            mean[u] = mu[u] + gain @ (value[o] - mu[o])
        else:
            gain = sigma.new_zeros(len(u), 0)
        for i, first in enumerate(u):
            for second in u:
                covariance[first, second] = sigma[first, second] - gain[i] @ sigma[o][:, second]
        for j, q in enumerate(space.categorical):
            if observed[q]:
                log_p += Categorical(logits=mixture.log_level[c, j, : space.levels[q]]).log_prob(x[q])
        joint.append(log_p)
        means.append(mean)
        covariances.append(covariance)
    joint = torch.stack(joint)
    return joint.logsumexp(0), joint.softmax(0), torch.stack(means), torch.stack(covariances)


def total_moments(weight, mean, covariance):
    """Mean and covariance of a mixture of normals."""
    centre = weight @ mean
    gap = mean - centre
    return centre, torch.einsum("c,ckl->kl", weight, covariance + gap[:, :, None] * gap[:, None, :])


@SPACES
def test_log_density_is_a_sum_over_components(space):
    mixture, (x, _) = cases.mixture(space), rows_with_extremes(space)
    for i in range(len(x)):
        terms = []
        for c in range(len(mixture)):
            term = mixture.log_weight[c].clone()
            if space.continuous:
                term += MultivariateNormal(mixture.mean[c], mixture.covariance[c]).log_prob(x[i, space.continuous])
            for j, q in enumerate(space.categorical):
                term += Categorical(logits=mixture.log_level[c, j, : space.levels[q]]).log_prob(x[i, q])
            terms.append(term)
        assert_close(mixture.log_density(x)[i], torch.stack(terms).logsumexp(0), rtol=1e-8, atol=0)
    assert_close(mixture.log_density(x.expand(2, 3, -1, -1)), mixture.log_density(x).expand(2, 3, -1))


@SPACES
@pytest.mark.parametrize("missing", [0.2, 0.5, 0.8])
def test_conditionals_equal_explicit_blocks(space, missing):
    mixture, (x, mask) = cases.mixture(space), rows_with_extremes(space, missing=missing, n=25)
    conditional = mixture.condition(x, mask)
    for i in range(len(x)):
        log_marginal, weight, mean, covariance = reference(mixture, x[i], mask[i])
        assert_close(conditional.log_marginal[i], log_marginal, rtol=1e-8, atol=1e-12)
        assert_close(conditional.log_weight[i].exp(), weight, rtol=1e-8, atol=1e-14)
        assert_close(conditional.mean[i], mean, rtol=1e-8, atol=1e-12)
        assert_close(conditional.covariance[conditional.pattern[i]], covariance, rtol=1e-8, atol=1e-12)


def test_values_at_gaps_do_not_matter():
    mixture, (x, mask) = cases.mixture(MIXED), rows_with_extremes(MIXED)
    one, other = mixture.condition(x, mask), mixture.condition(torch.where(mask, x, 1.0), mask)
    for name in ("log_weight", "mean", "covariance", "log_marginal"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def test_conditionals_equal_integration_on_a_grid():
    mixture = cases.mixture(MIXED)
    x = torch.tensor([[0.0, 0.0, 0.7, 1.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[False, False, True, True, False]])
    axis, step = torch.arange(-27.0, 27.0, 0.15, dtype=torch.float64), 0.15
    level, a, d = torch.meshgrid(torch.arange(3.0, dtype=torch.float64), axis, axis, indexing="ij")
    grid = x[0].expand(*a.shape, -1).clone()
    grid[..., 0], grid[..., 1], grid[..., 4] = a, level, d
    density = mixture.log_density(grid).exp() * step**2
    total = density.sum()
    conditional = mixture.condition(x, mask)
    distribution = mixture.distribution(conditional)
    assert_close(conditional.log_marginal[0], total.log(), rtol=1e-8, atol=1e-10)
    assert_close(distribution.log_prob[0, 1].exp(), density.sum((1, 2)) / total, rtol=1e-8, atol=0)
    for q, value in ((0, a), (4, d)):
        mean = (density * value).sum() / total
        assert_close(distribution.mean[0, q], mean, rtol=1e-8, atol=1e-10)
        assert_close(distribution.var[0, q], (density * (value - mean) ** 2).sum() / total, rtol=1e-8, atol=0)
    _, covariance = total_moments(conditional.log_weight[0].exp(), conditional.mean[0], conditional.covariance[0])
    expected = (density * a * d).sum() / total - distribution.mean[0, 0] * distribution.mean[0, 4]
    assert_close(covariance[0, 2], expected, rtol=1e-8, atol=1e-10)


@SPACES
def test_marginal_times_conditional_is_the_joint(space):
    """log p(x_o) + log p(x_u | x_o) = log p(x), with the conditional as the mixture that `condition` returns."""
    mixture, (x, mask) = cases.mixture(space), rows_with_extremes(space)
    conditional = mixture.condition(x, mask)
    full = mixture.draw(conditional, x, mask, 1, generator())[0]
    for i in range(len(x)):
        u = [k for k, q in enumerate(space.continuous) if not mask[i, q]]
        terms = conditional.log_weight[i].clone()
        for c in range(len(mixture)):
            if u:
                covariance = conditional.covariance[conditional.pattern[i], c][u][:, u]
                terms[c] += MultivariateNormal(conditional.mean[i, c, u], covariance).log_prob(
                    full[i, space.continuous][u]
                )
            for j, q in enumerate(space.categorical):
                terms[c] += 0.0 if mask[i, q] else mixture.log_level[c, j, int(full[i, q])]
        expected = mixture.log_density(full[i])
        assert_close(conditional.log_marginal[i] + terms.logsumexp(0), expected, rtol=1e-8, atol=1e-10)


@SPACES
def test_empty_rows_have_the_prior_and_complete_rows_keep_their_values(space):
    mixture, (x, mask) = cases.mixture(space), rows_with_extremes(space)
    conditional = mixture.condition(x, mask)
    distribution = mixture.distribution(conditional)
    assert_close(conditional.log_marginal[0], mixture.log_density(x[0]), rtol=1e-8, atol=0)
    assert conditional.log_marginal[1].abs() < 1e-12
    assert_close(conditional.log_weight[1], mixture.log_weight)
    assert_close(conditional.mean[1], mixture.mean)
    assert_close(conditional.covariance[conditional.pattern[1]], mixture.covariance, rtol=1e-8, atol=1e-12)
    assert (conditional.covariance[conditional.pattern[0]] == 0).all()
    assert_close(distribution.mean[0, space.continuous], x[0, space.continuous], rtol=1e-8, atol=0)
    assert torch.equal(mixture.draw(conditional, x, mask, 3, generator())[:, 0], x[0].expand(3, -1))
    for j, q in enumerate(space.categorical):
        prior = (mixture.log_weight.exp()[:, None] * mixture.log_level[:, j].exp()).sum(0)
        assert_close(distribution.log_prob[1, q].exp(), prior, rtol=1e-8, atol=0)


def test_no_level_beyond_a_columns_own():
    mixture, (x, mask) = cases.mixture(MIXED), rows_with_extremes(MIXED)
    conditional = mixture.condition(x, mask)
    assert (mixture.distribution(conditional).log_prob[:, 3, 2:] == -torch.inf).all()
    assert mixture.draw(conditional, x, mask, 2_000, generator())[..., 3].max() == 1


@SPACES
def test_marginals_and_conditionals_have_the_moments_of_draws(space):
    mixture, (x, mask) = cases.mixture(space), rows_with_extremes(space, n=4)
    conditional = mixture.condition(x, mask)
    distribution, draws = mixture.distribution(conditional), 200_000
    full = mixture.draw(conditional, x, mask, draws, generator())
    assert torch.equal(full[:, mask], x[mask].expand(draws, -1))
    for i in range(len(x)):
        _, weight, mean, covariance = reference(mixture, x[i], mask[i])
        for q in (~mask[i]).nonzero()[:, 0].tolist():
            value = full[:, i, q]
            if space.levels[q]:
                frequency = (value[:, None] == torch.arange(space.max_levels)).double().mean(0)
                assert_close(frequency, distribution.log_prob[i, q].exp(), rtol=0, atol=0.006)
            else:
                assert (value.mean() - distribution.mean[i, q]).abs() < 5 * (distribution.var[i, q] / draws).sqrt()
                assert_close(value.var(), distribution.var[i, q], rtol=0.03, atol=0)
        # Covariances between the columns of one row.
        centre, between = total_moments(weight, mean, covariance)
        if space.continuous:
            numbers = full[:, i, space.continuous]
            assert_close(numbers.T.cov(), between, rtol=0.03, atol=0.04)
        for j, q in enumerate(space.categorical):
            if not mask[i, q] and space.continuous:
                hot = (full[:, i, q, None] == torch.arange(space.levels[q])).double()
                probs = mixture.log_level[:, j, : space.levels[q]].exp()
                expected = torch.einsum("c,cv,ck->vk", weight, probs, mean - centre)
                assert_close(hot.T @ (numbers - centre) / draws, expected, rtol=0, atol=0.03)
    if space is MIXED:
        hot3, hot2 = full[:, 1, 1, None] == torch.arange(3), full[:, 1, 3, None] == torch.arange(2)
        joint = torch.einsum("c,cv,cw->vw", mixture.log_weight.exp(), *mixture.log_level.exp().unbind(1))[:, :2]
        assert_close(hot3.double().T @ hot2.double() / draws, joint, rtol=0, atol=0.006)


@pytest.mark.parametrize("space", [MIXED, NUMBERS], ids=["mixed", "numbers"])
def test_gradient_of_the_log_density(space):
    mixture, (x, _) = cases.mixture(space), rows_with_extremes(space, n=5)

    def density(numbers):
        full = x.clone()
        full[:, space.continuous] = numbers
        return mixture.log_density(full)

    assert torch.autograd.gradcheck(density, (x[:, space.continuous].clone().requires_grad_(),))


@pytest.mark.parametrize("width", [1, 3, 40, 62, 63, 70])
def test_distinct_rows_of_a_mask_are_those_of_torch_in_the_same_order(width):
    mask = torch.rand(50, width, generator=generator()) < 0.5
    mask[30:] = mask[:20]
    expected = torch.unique(mask, dim=0, return_inverse=True)
    for own, other in zip(mixture._unique_rows(mask), expected, strict=True):
        assert torch.equal(own, other)
    nothing, index = mixture._unique_rows(mask[:, :0])
    assert (nothing.shape, index.tolist()) == ((1, 0), [0] * 50)
