"""The normal priors against torch.distributions, and the defaults of the protocol, which they use."""

from dataclasses import replace

import torch
from torch.distributions import Normal, kl_divergence

from lacova.covariates.scenarios import Scenarios
from lacova.data.covariate_space import CovariateSpace
from lacova.priors.normal import ConditionalNormal, StandardNormal
from tests.priors.cases import batch_of, each_row, kl_without_x, some_latents

SPACE = CovariateSpace(("age", "sex"), (0, 2), (False, False))
X = torch.tensor([[0.3, 0.0], [-1.0, 1.0], [0.3, 1.0], [2.0, 0.0]], dtype=torch.float64)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def conditional():
    torch.manual_seed(0)
    return ConditionalNormal(SPACE, 2, hidden=(5,)).double().requires_grad_(False)


def test_kl_of_the_standard_normal_is_summed_over_real_rows_and_scaled():
    q = some_latents()
    kl = kl_divergence(Normal(q.mean, q.var.sqrt()), Normal(0.0, 1.0)).sum(1)
    close(kl_without_x(StandardNormal(2), q), kl.sum())
    real = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0]).double()
    terms = StandardNormal(2).kl(each_row(6, real), replace(batch_of(6, real), scale=2.5), q, None)
    close(terms.latent, 2.5 * kl[[0, 2, 3]].sum())
    assert terms.inducing == 0
    assert terms.statistics is None


def test_kl_of_the_conditional_normal_is_averaged_over_scenarios():
    """Row 0 is complete; row 1 has two completions, with a q(z) each."""
    prior, q = conditional(), some_latents(3)
    row, weight = torch.tensor([0, 1, 1]), torch.tensor([1.0, 0.3, 0.7], dtype=torch.float64)
    number = torch.arange(3)
    slot = torch.tensor([0, 0, 1])
    scenarios = Scenarios(X[:3], row, number, torch.zeros_like(number), weight, row, slot, 2, 2)
    mean, var = prior.predict(X[:3], number)
    kl = kl_divergence(Normal(q.mean, q.var.sqrt()), Normal(mean, var.sqrt())).sum(1)
    terms = prior.kl(scenarios, replace(batch_of(2), scale=2.5), q, None)
    close(terms.latent, 2.5 * (kl * weight).sum())


def test_moments_of_the_conditional_normal_depend_on_x_alone():
    mean, var = conditional().predict(X, torch.arange(4))
    assert mean.shape == var.shape == (4, 2)
    assert (var > 0).all()
    order = torch.tensor([2, 0, 3, 1])
    for part, moved in zip((mean, var), conditional().predict(X[order], torch.zeros(4).long()), strict=True):
        close(moved, part[order])
    assert (mean[0] != mean[2]).all()  # of another sex


def test_default_density_is_the_normal_one_row_by_row():
    prior = conditional()
    z = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, var = prior.predict(X, torch.arange(4))
    expected = Normal(mean, var.sqrt()).log_prob(z).sum(-1)
    close(prior.log_density(z[0], X), expected[0])
    density = prior.density(z, X.expand(3, -1, -1), batch_of(4))
    close(density.value, expected)
    assert density.inducing is None
    assert density.statistics is None


def test_default_draws_have_the_moments_of_the_prediction():
    prior, times = conditional(), 20_000
    mean, var = prior.predict(X, torch.arange(4))
    draws = prior.sample(X, torch.arange(4), torch.Generator().manual_seed(0), times=times).unflatten(0, (times, 4))
    assert ((draws.mean(0) - mean).abs() < 5 * (var / times).sqrt()).all()
    assert ((draws.var(0) / var - 1).abs() < 5 * (2 / times) ** 0.5).all()


def test_default_draws_at_two_covariates_share_their_random_numbers():
    prior, group = conditional(), torch.arange(4)
    other = X + torch.tensor([1.0, 0.0])
    assert prior.draw_shared(3, torch.Generator()) is None
    here, there = prior.sample_both(X, other, group, torch.Generator().manual_seed(0), None, times=3)
    eps = []
    for z, x in ((here, X), (there, other)):
        mean, var = (part.repeat(3, 1) for part in prior.predict(x, group))
        eps.append((z - mean) / var.sqrt())
    close(*eps)
