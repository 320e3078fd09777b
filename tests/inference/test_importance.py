"""The importance-weighted bound: the evidence lower bound for one draw, rising with their number, log p in the end."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

import lacova
from lacova.covariates.prior import FactorisedPrior
from lacova.data.batches import Batch, Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.inference.objective import elbo, log_likelihood, weighted
from lacova.likelihoods.missingness import Missingness
from lacova.likelihoods.random_effects import RandomIntercepts
from lacova.nn.networks import Dense, Encoder
from tests.inference.test_objective import (
    KINDS,
    MIXED,
    Fixed,
    gaussian_case,
    linear_cvae,
    noise,
    prepared,
    some_table,
    some_vae,
    with_posterior,
)


def many(batch, n):
    """The one row of a batch n times over: the mean over rows is one over noise."""
    distribution = batch.conditional_prior.distribution
    given = ConditionalPrior(
        FactorisedDistribution(*(part.expand(n, *part.shape[1:]) for part in vars(distribution).values())),
        torch.zeros(n),
    )
    rows = (part.expand(n, -1) for part in (batch.y, batch.y_mask, batch.x, batch.x_mask))
    return Batch(*rows, torch.arange(n), 1.0 / n, given, n)


def average(vae, batch, draws, n):
    with torch.no_grad():
        big = many(batch, n)
        return weighted(vae, big, vae.draw_eps(big, draws, noise())).elbo


def test_the_bound_is_the_elbo_for_one_draw_and_rises_to_the_likelihood():
    """A row with gaps in y and x, linear and Gaussian: log p(y_o | x_o), and the distance of q, in closed form."""
    vae, batch, truth, mean, var = gaussian_case()
    off, wide = torch.tensor([0.4, -0.5]).double(), torch.tensor([1.5, 1.4]).double()
    with_posterior(vae, mean[0] + off[0], var[0] * wide[0], mean[1] + off[1], var[1] * wide[1])
    distance = 0.5 * (wide + off**2 / var - 1 - wide.log()).sum()
    assert distance > 0.5
    values = [average(vae, batch, draws, n) for draws, n in ((1, 200_000), (2, 100_000), (8, 30_000), (500, 2_000))]
    assert_close(values[0], truth - distance, rtol=0, atol=0.02)  # a standard error of 0.004
    assert all(b - a > 0.03 for a, b in pairwise(values))
    assert_close(values[-1], truth, rtol=0, atol=0.01)
    assert_close(log_likelihood(vae, batch, 200_000, noise())[0], truth, rtol=0, atol=0.01)


def test_drawn_categories_have_an_unbiased_gradient():
    """Against the sum over all pairs of draws; q(z) is the true posterior, so that only levels matter."""
    log_prob = torch.tensor([[0.0, 0.0], [0.3, 0.7]], dtype=torch.float64)
    log_prob[1] = log_prob[1].log()
    prior = FactorisedPrior(MIXED, torch.zeros(2).double(), torch.ones(2).double(), log_prob)
    loading = torch.tensor([[0.8], [0.0]], dtype=torch.float64)
    slope = torch.tensor([[0.3, 0.0, 0.0], [-0.2, 0.9, -0.4]], dtype=torch.float64)
    vae = linear_cvae(MIXED, loading, slope, torch.zeros(2).double(), torch.tensor([0.3, 0.2]).double(), prior)
    noise_var, a = vae.likelihood.var.detach(), 0.4
    batch = prepared(Batch(
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
    (want,) = torch.autograd.grad(exact, logits)

    n = 100_000
    big = many(batch, n)
    levels = torch.stack([torch.zeros(2).double(), logits.log_softmax(0)])[None].expand(n, -1, -1)
    distribution = FactorisedDistribution(torch.zeros(n, 2).double(), torch.ones(n, 2).double(), levels)
    found = weighted(vae, big, vae.draw_eps(big, 2, noise()), distribution).elbo
    (got,) = torch.autograd.grad(found, logits, retain_graph=True)
    assert_close(found, exact, rtol=0, atol=0.01)
    assert_close(got, want, rtol=0, atol=0.01)
    one = weighted(vae, big, vae.draw_eps(big, 1, noise()), distribution).elbo
    (got,) = torch.autograd.grad(one, logits)
    (want,) = torch.autograd.grad((logits.log_softmax(0).exp() * (joint - logits.log_softmax(0))).sum(), logits)
    assert_close(got, want, rtol=0, atol=0.02)


def test_rows_of_a_patient_share_what_is_constant():
    """Two visits lack the same covariate: the bound tends to their joint likelihood, not to that of each by itself."""
    space = CovariateSpace(("b",), (0,), (True,))
    prior = FactorisedPrior(space, torch.zeros(1).double(), torch.ones(1).double(), torch.zeros(1, 1).double())
    loading, slope = torch.tensor([[0.5]]).double(), torch.tensor([[1.2]]).double()
    vae = linear_cvae(space, loading, slope, torch.zeros(1).double(), torch.tensor([0.3]).double(), prior)
    y, n = torch.tensor([0.9, 1.6]).double(), 1_000
    own = 0.25 + vae.likelihood.var.detach()
    covariance = own * torch.eye(2).double() + 1.44
    truth = torch.distributions.MultivariateNormal(torch.zeros(2).double(), covariance).log_prob(y)
    apart = torch.distributions.Normal(torch.zeros(2).double(), covariance.diagonal().sqrt()).log_prob(y).sum()
    assert truth - apart > 0.3
    batch = prepared(Batch(
        y.repeat(n)[:, None], torch.ones(2 * n, 1, dtype=torch.bool), torch.zeros(2 * n, 1).double(),
        torch.zeros(2 * n, 1, dtype=torch.bool), torch.arange(n).repeat_interleave(2), 1.0 / n, None, n,
    ), vae)  # fmt: skip
    flat = torch.ones(2 * n, 1).double()
    vae.encoder = Fixed((0.2 * flat, flat))
    vae.covariate_posterior = Fixed(FactorisedDistribution(0.8 * flat, 0.5 * flat, torch.zeros(2 * n, 1, 1).double()))
    with torch.no_grad():
        assert_close(weighted(vae, batch, vae.draw_eps(batch, 500, noise())).elbo, truth, rtol=0, atol=0.02)


STATIC = replace(MIXED, static=(True, True))


@pytest.mark.parametrize("kind", [*KINDS, "static", "levels"])
def test_the_mean_over_draws_has_the_terms_of_the_elbo(kind):
    """Term by term, for every prior and rows with gaps anywhere; patients' weights are products over their rows."""
    patients = [0, 0, 0, 1, 2, 2, 2, 2, 3, 4, 4, 5] if kind in ("longitudinal", "static", "levels") else None
    vae = some_vae(
        STATIC if kind == "static" else MIXED, {"static": "normal", "levels": "longitudinal"}.get(kind, kind)
    )
    if kind == "levels":
        vae.random_effects = RandomIntercepts(torch.full((3,), 0.5)).double()
        vae.encoder = Encoder(Dense((8,), (8,)), 3, vae.space.width + 5, 2).double()
    table = some_table(patients=patients)
    if kind == "static":
        first = torch.tensor([patients.index(p) for p in patients])
        table = replace(table, x=table.x[first], x_mask=table.x_mask[first])
    batch = next(Batches(prepared(table, vae)).in_order())[1]
    names = ("reconstruction", "kl_latent", "kl_inducing", "kl_covariates")
    each = {"elbo": [], "weighted": []}
    with torch.no_grad():
        for seed in range(20):
            g = torch.Generator().manual_seed(seed)
            for name, terms in (
                ("elbo", elbo(vae, batch, g, 200)), ("weighted", weighted(vae, batch, vae.draw_eps(batch, 200, g)))
            ):  # fmt: skip
                each[name].append([float(getattr(terms, term)) for term in names])
            assert terms.gain > 0
    a, b = (torch.tensor(values) for values in each.values())
    error = ((a.var(0) + b.var(0)) / 20).sqrt()
    assert ((a.mean(0) - b.mean(0)).abs() < 4 * error + 1e-9).all()
    assert (error < 0.05 + 0.01 * a.mean(0).abs()).all(), (a.mean(0), error)


@pytest.mark.parametrize("kind", ["regression", "longitudinal"])
def test_the_natural_gradient_is_that_of_the_weighted_bound(kind):
    """With m and H⁻¹ = P: ∂/∂(H⁻¹m) = H(b − Am), ∂/∂P = ½HAH − H(b − Am)mᵀ, made symmetric."""
    vae = some_vae(MIXED, kind)
    patients = [0, 0, 0, 1, 2, 2, 2, 2, 3, 4, 4, 5] if kind == "longitudinal" else None
    batch = next(Batches(prepared(some_table(patients=patients), vae)).in_order())[1]
    points = vae.prior.inducing
    g = torch.Generator().manual_seed(1)
    root = torch.randn(points.precision.shape, generator=g, dtype=torch.float64)
    points.precision = (torch.eye(4).double() + 0.3 * root @ root.mT).requires_grad_()
    points.shift = torch.randn(points.shift.shape, generator=g, dtype=torch.float64).requires_grad_()
    terms = weighted(vae, batch, vae.draw_eps(batch, 5, g))
    by_precision, by_shift = torch.autograd.grad(terms.data, (points.precision, points.shift))
    h = torch.linalg.inv(points.precision.detach())
    m = h @ points.shift.detach()[..., None]
    pull = h @ (terms.statistics.shift[..., None] - terms.statistics.precision @ m)
    assert_close(by_shift, pull[..., 0], rtol=1e-7, atol=1e-9)
    want = 0.5 * h @ terms.statistics.precision @ h - pull @ m.mT
    assert_close(by_precision + by_precision.mT, want + want.mT, rtol=1e-7, atol=1e-9)


def test_gaps_that_look_at_what_they_hide():
    """log p(mask) by hand; p(y_o, mask) of one measurement by a sum over a fine grid of y."""
    y, mask = torch.tensor([[0.5, -2.0]]).double(), torch.tensor([[True, False]])
    model = Missingness("selfmasking", torch.tensor([0.5, 0.2]).double())
    model.raw.data = torch.tensor([3.0, -1.0]).double()
    odds = (3.0 * 0.5, -1.0 * -2.0 + np.log(0.25))
    want = np.log(1 / (1 + np.exp(odds[0]))) + np.log(1 / (1 + np.exp(-odds[1])))
    assert_close(model.log_prob(y, mask).item(), float(want))
    signed = Missingness("selfmasking_low", torch.tensor([0.5]))
    assert signed.slope < 0 < Missingness("selfmasking_high", torch.tensor([0.5])).slope
    linear = Missingness("linear", torch.tensor([0.5, 0.5]).double())
    linear.raw.data = torch.tensor([[0.0, 2.0], [1.0, 0.0]]).double()
    want = np.log(1 / (1 + np.exp(2.0 * -2.0))) + np.log(1 / (1 + np.exp(-0.5)))
    assert_close(linear.log_prob(y, mask).item(), float(want))
    with pytest.raises(ValueError, match="mechanism is 'other'; expected one of selfmasking"):
        Missingness("other", torch.tensor([0.5]))

    fitted = linear_models(lacova.NotMIWAE, max_epochs=1)
    vae = fitted._vae.double()
    vae.missingness.raw.data = torch.tensor([2.0, 0.0, 0.0, 0.0]).double()
    gone = torch.tensor([[False, False, False, False]])
    batch = Batch(torch.zeros(1, 4).double(), gone, torch.zeros(1, 0).double(), gone[:, :0], torch.tensor([0]))
    grid = torch.linspace(-12, 12, 4001).double()
    loading, bias = (p.detach() for p in vae.decoder.network[0].parameters())
    law = torch.distributions.Normal(bias[0], (loading[0] @ loading[0] + vae.likelihood.var[0].detach()).sqrt())
    share = vae.missingness.bias.detach()
    chance = (law.log_prob(grid).exp() * torch.sigmoid(share[0] + 2.0 * grid)).sum() * (grid[1] - grid[0])
    want = chance.log() + torch.nn.functional.logsigmoid(share[1:]).sum()
    got = log_likelihood(vae, prepared(batch, vae), 100_000, noise())[0]
    assert_close(got, want, rtol=0, atol=0.01)


def linear_models(model, seed=0, n=400, gaps=0.3, encoder=(32,), **options):
    """A model of one latent dimension with a linear decoder, fitted to such data with gaps."""
    table = linear_data(seed, n)
    table = table.mask(np.random.default_rng(seed + 1).random(table.shape) < gaps)
    made = model(lacova.Schema(list(table), {}), latent_dim=1, networks=lacova.Dense(encoder, ()))
    return made.fit(table, device="cpu", **options)


def linear_data(seed, n):
    """One latent dimension, and the same noise in all columns."""
    rng = np.random.default_rng(seed)
    loading = np.array([[1.0], [0.8], [-0.6], [0.9]])
    return pd.DataFrame(rng.normal(size=(n, 1)) @ loading.T + 0.5 * rng.normal(size=(n, 4)) + 1.0, columns=list("abcd"))
