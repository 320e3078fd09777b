"""Importance weights: their bound is the evidence lower bound for one draw, and rises to log p with their number."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

import lacova
from lacova.covariates.prior import FactorisedPrior
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.inference.objective import elbo, log_likelihood, weighted
from lacova.likelihoods.random_effects import RandomIntercepts
from lacova.nn.networks import Dense, Encoder
from tests.inference.cases import (
    KINDS,
    MIXED,
    PATIENTS,
    Fixed,
    conditioned,
    gaussian_case,
    generator,
    linear_cvae,
    some_table,
    some_vae,
    weighted_bound,
    whole_batch,
    with_posterior,
)


def many(batch, n):
    """Repeat the one row of a batch n times: the mean over rows is one over random numbers."""
    distribution = batch.conditional_prior.distribution
    parts = (distribution.mean, distribution.var, distribution.log_prob)
    prior = ConditionalPrior(
        FactorisedDistribution(*(part.expand(n, *part.shape[1:]) for part in parts)),
        torch.zeros(n),
    )
    rows = (part.expand(n, -1) for part in (batch.y, batch.y_mask, batch.x, batch.x_mask))
    return Batch(*rows, torch.arange(n), 1.0 / n, prior, n)


def average(vae, batch, draws, n):
    """Return the mean of n estimates of the weighted bound."""
    with torch.no_grad():
        return weighted_bound(vae, many(batch, n), draws, generator()).elbo


def test_the_bound_is_the_elbo_for_one_draw_and_rises_to_the_likelihood():
    """For a linear Gaussian row with gaps in y and x, log p(y_o | x_o) and the KL from q are known in closed form."""
    vae, batch, truth, mean, var = gaussian_case()
    off, wide = torch.tensor([0.4, -0.5]).double(), torch.tensor([1.5, 1.4]).double()
    with_posterior(vae, mean[0] + off[0], var[0] * wide[0], mean[1] + off[1], var[1] * wide[1])
    distance = 0.5 * (wide + off**2 / var - 1 - wide.log()).sum()
    assert distance > 0.5
    values = [average(vae, batch, draws, n) for draws, n in ((1, 200_000), (2, 100_000), (8, 30_000), (500, 2_000))]
    assert_close(values[0], truth - distance, rtol=0, atol=0.02)  # a standard error of 0.004
    assert all(b - a > 0.03 for a, b in pairwise(values))
    assert_close(values[-1], truth, rtol=0, atol=0.01)
    assert_close(log_likelihood(vae, batch, 200_000, generator())[0], truth, rtol=0, atol=0.01)


def test_drawn_categories_have_an_unbiased_gradient():
    """Against the sum over all pairs of draws; q(z) is the true posterior, so that only levels matter."""
    log_prob = torch.tensor([[0.0, 0.0], [0.3, 0.7]], dtype=torch.float64)
    log_prob[1] = log_prob[1].log()
    prior = FactorisedPrior(MIXED, torch.zeros(2).double(), torch.ones(2).double(), log_prob)
    loading = torch.tensor([[0.8], [0.0]], dtype=torch.float64)
    slope = torch.tensor([[0.3, 0.0, 0.0], [-0.2, 0.9, -0.4]], dtype=torch.float64)
    vae = linear_cvae(MIXED, loading, slope, torch.zeros(2).double(), torch.tensor([0.3, 0.2]).double(), prior)
    noise_var, a = vae.likelihood.noise_variance.detach(), 0.4
    batch = conditioned(Batch(
        torch.tensor([[0.7, 0.5]]).double(), torch.ones(1, 2, dtype=torch.bool), torch.tensor([[a, 0.0]]).double(),
        torch.tensor([[True, False]]), torch.tensor([0]),
    ), vae)  # fmt: skip
    precision = 1 + 0.64 / noise_var[0]
    vae.encoder = Fixed(((0.8 * (0.7 - 0.3 * a) / noise_var[0] / precision).view(1, 1), (1 / precision).view(1, 1)))
    of_z = torch.distributions.Normal(torch.tensor(0.3 * a).double(), (0.64 + noise_var[0]).sqrt()).log_prob(
        batch.y[0, 0]
    )
    of_c = torch.distributions.Normal(slope[1, 1:] - 0.2 * a, noise_var[1].sqrt()).log_prob(batch.y[0, 1])
    joint = of_z + of_c + log_prob[1]

    logits = torch.tensor([0.2, -0.4], dtype=torch.float64, requires_grad=True)
    q = logits.log_softmax(0)
    pair = torch.stack([(joint - q)[:, None].expand(2, 2), (joint - q)[None].expand(2, 2)]).logsumexp(0) - np.log(2)
    exact = ((q[:, None] + q).exp() * pair).sum()
    (expected,) = torch.autograd.grad(exact, logits)

    n = 100_000
    big = many(batch, n)
    levels = torch.stack([torch.zeros(2).double(), logits.log_softmax(0)])[None].expand(n, -1, -1)
    distribution = FactorisedDistribution(torch.zeros(n, 2).double(), torch.ones(n, 2).double(), levels)
    bound = weighted(vae, big, vae.draw_eps(big, 2, generator()), distribution).elbo
    (gradient,) = torch.autograd.grad(bound, logits, retain_graph=True)
    assert_close(bound, exact, rtol=0, atol=0.01)
    assert_close(gradient, expected, rtol=0, atol=0.01)
    single = weighted(vae, big, vae.draw_eps(big, 1, generator()), distribution).elbo
    (gradient,) = torch.autograd.grad(single, logits)
    (expected,) = torch.autograd.grad((logits.log_softmax(0).exp() * (joint - logits.log_softmax(0))).sum(), logits)
    assert_close(gradient, expected, rtol=0, atol=0.02)


def test_rows_of_a_patient_share_what_is_constant():
    """If two visits lack the same static covariate, the bound tends to their joint likelihood."""
    space = CovariateSpace(("b",), (0,), (True,))
    prior = FactorisedPrior(space, torch.zeros(1).double(), torch.ones(1).double(), torch.zeros(1, 1).double())
    loading, slope = torch.tensor([[0.5]]).double(), torch.tensor([[1.2]]).double()
    vae = linear_cvae(space, loading, slope, torch.zeros(1).double(), torch.tensor([0.3]).double(), prior)
    y, n = torch.tensor([0.9, 1.6]).double(), 1_000
    own = 0.25 + vae.likelihood.noise_variance.detach()
    covariance = own * torch.eye(2).double() + 1.44
    truth = torch.distributions.MultivariateNormal(torch.zeros(2).double(), covariance).log_prob(y)
    independent = torch.distributions.Normal(torch.zeros(2).double(), covariance.diagonal().sqrt()).log_prob(y).sum()
    assert truth - independent > 0.3
    batch = conditioned(Batch(
        y.repeat(n)[:, None], torch.ones(2 * n, 1, dtype=torch.bool), torch.zeros(2 * n, 1).double(),
        torch.zeros(2 * n, 1, dtype=torch.bool), torch.arange(n).repeat_interleave(2), 1.0 / n, None, n,
    ), vae)  # fmt: skip
    flat = torch.ones(2 * n, 1).double()
    vae.encoder = Fixed((0.2 * flat, flat))
    vae.covariate_posterior = Fixed(FactorisedDistribution(0.8 * flat, 0.5 * flat, torch.zeros(2 * n, 1, 1).double()))
    with torch.no_grad():
        assert_close(weighted_bound(vae, batch, 500, generator()).elbo, truth, rtol=0, atol=0.02)


STATIC = replace(MIXED, static=(True, True))


@pytest.mark.parametrize("kind", [*KINDS, "static", "random effects"])
def test_the_mean_over_draws_has_the_terms_of_the_elbo(kind):
    """Compare term by term, for every prior and rows with gaps anywhere; patients' weights are products over rows."""
    patients = PATIENTS if kind in ("longitudinal", "static", "random effects") else None
    base = {"static": "normal", "random effects": "longitudinal"}.get(kind, kind)
    vae = some_vae(STATIC if kind == "static" else MIXED, base)
    if kind == "random effects":
        vae.random_effects = RandomIntercepts(torch.full((3,), 0.5)).double()
        vae.encoder = Encoder(Dense((8,), (8,)), 3, vae.space.width + 5, 2).double()
    table = some_table(patients=patients)
    if kind == "static":
        first = torch.tensor([patients.index(p) for p in patients])
        table = replace(table, x=table.x[first], x_mask=table.x_mask[first])
    batch = whole_batch(table, vae)
    names = ("reconstruction", "kl_latent", "kl_inducing", "kl_covariates")
    values = {"elbo": [], "weighted": []}
    with torch.no_grad():
        for seed in range(20):
            g = generator(seed)
            for name, terms in (("elbo", elbo(vae, batch, g, 200)), ("weighted", weighted_bound(vae, batch, 200, g))):
                values[name].append([float(getattr(terms, term)) for term in names])
            assert terms.gain > 0
    a, b = (torch.tensor(rows) for rows in values.values())
    error = ((a.var(0) + b.var(0)) / 20).sqrt()
    assert ((a.mean(0) - b.mean(0)).abs() < 4 * error + 1e-9).all()
    assert (error < 0.05 + 0.01 * a.mean(0).abs()).all(), (a.mean(0), error)


@pytest.mark.parametrize("kind", ["regression", "longitudinal"])
def test_the_natural_gradient_is_that_of_the_weighted_bound(kind):
    """With m and H⁻¹ = P: ∂/∂(H⁻¹m) = H(b − Am), ∂/∂P = ½HAH − H(b − Am)mᵀ, made symmetric."""
    vae = some_vae(MIXED, kind)
    batch = whole_batch(some_table(patients=PATIENTS if kind == "longitudinal" else None), vae)
    points, g = vae.prior.inducing, generator(1)
    root = torch.randn(points.precision.shape, generator=g, dtype=torch.float64)
    points.precision = (torch.eye(4).double() + 0.3 * root @ root.mT).requires_grad_()
    points.shift = torch.randn(points.shift.shape, generator=g, dtype=torch.float64).requires_grad_()
    terms = weighted_bound(vae, batch, 5, g)
    by_precision, by_shift = torch.autograd.grad(terms.data, (points.precision, points.shift))
    h = torch.linalg.inv(points.precision.detach())
    m = h @ points.shift.detach()[..., None]
    step = h @ (terms.statistics.shift[..., None] - terms.statistics.precision @ m)
    assert_close(by_shift, step[..., 0], rtol=1e-7, atol=1e-9)
    expected = 0.5 * h @ terms.statistics.precision @ h - step @ m.mT
    assert_close(by_precision + by_precision.mT, expected + expected.mT, rtol=1e-7, atol=1e-9)


def test_gaps_that_depend_on_the_missing_values():
    """p(y_o, mask) of one measurement is a sum over a fine grid of y."""
    fitted = fit_linear(lacova.NotMIWAE, max_epochs=1)
    vae = fitted.vae.double()
    vae.missingness.raw.data = torch.tensor([2.0, 0.0, 0.0, 0.0]).double()
    mask = torch.tensor([[False, False, False, False]])
    batch = Batch(torch.zeros(1, 4).double(), mask, torch.zeros(1, 0).double(), mask[:, :0], torch.tensor([0]))
    grid = torch.linspace(-12, 12, 4001).double()
    loading, bias = (p.detach() for p in vae.decoder.network[0].parameters())
    variance = loading[0] @ loading[0] + vae.likelihood.noise_variance[0].detach()
    marginal = torch.distributions.Normal(bias[0], variance.sqrt())
    log_odds = vae.missingness.bias.detach()
    missing = (marginal.log_prob(grid).exp() * torch.sigmoid(log_odds[0] + 2.0 * grid)).sum() * (grid[1] - grid[0])
    expected = missing.log() + torch.nn.functional.logsigmoid(log_odds[1:]).sum()
    value = log_likelihood(vae, conditioned(batch, vae), 100_000, generator())[0]
    assert_close(value, expected, rtol=0, atol=0.01)


def fit_linear(model, seed=0, n=400, gaps=0.3, encoder=(32,), **options):
    """Fit a model of one latent dimension with a linear decoder to such data with gaps."""
    table = linear_data(seed, n)
    table = table.mask(np.random.default_rng(seed + 1).random(table.shape) < gaps)
    unfitted = model(lacova.Schema(list(table), {}), latent_dim=1, networks=lacova.Dense(encoder, ()))
    return unfitted.fit(table, device="cpu", **options)


def linear_data(seed, n):
    """Return rows of four measurements with one latent dimension, and the same noise in all of them."""
    rng = np.random.default_rng(seed)
    loading = np.array([[1.0], [0.8], [-0.6], [0.9]])
    return pd.DataFrame(rng.normal(size=(n, 1)) @ loading.T + 0.5 * rng.normal(size=(n, 4)) + 1.0, columns=list("abcd"))
