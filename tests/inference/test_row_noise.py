"""Noise that depends on the row: the bound against exact integrals, and intervals in a simulated world."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.prior import FactorisedPrior
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.inference.objective import bound, elbo, log_likelihood
from lacova.inference.vae import ConditionalVAE
from lacova.likelihoods.likelihood import Likelihood
from lacova.nn.networks import Dense
from lacova.priors.normal import StandardNormal
from tests.inference.cases import KINDS, MIXED, Fixed, conditioned, generator, some_table, some_vae, whole_batch

X = CovariateSpace(("x",), (0,), (False,))
SLOPES = {"location": (0.9, 0.5), "log_sd": (0.25, -0.35)}  # on z and on x
Q = {"z": (0.3, 0.5), "x": (0.4, 0.8)}  # mean and variance


def rows_that_lack_x(n, sees_x):
    """Return a model and n rows with y = 1.2, whose x is missing; q is not the posterior."""
    prior = FactorisedPrior(X, torch.tensor([0.2]).double(), torch.tensor([1.1]).double(), torch.zeros(1, 1).double())
    vae = ConditionalVAE(
        X, 1, 1, Dense((), ()), decoder_sees_x=sees_x, prior=StandardNormal(1), covariate_prior=prior,
        covariate_posterior=AmortisedPosterior(X, 1, prior),
        likelihood=Likelihood.gaussian(torch.tensor([0.3]), by_row=True), joint=False,
    ).double()  # fmt: skip
    layer = vae.decoder.network[0]
    layer.weight.data.copy_(torch.tensor([SLOPES["location"][: 1 + sees_x]]))
    layer.bias.data.fill_(0.1)
    vae.row_noise.linear.weight.data.copy_(torch.tensor([SLOPES["log_sd"]]))
    means, variances = (torch.tensor(values).double() for values in zip(*Q.values(), strict=True))
    vae.encoder = Fixed((means[:1].expand(n, 1), variances[:1].expand(n, 1)))
    parts = (means[1].expand(n, 1), variances[1].expand(n, 1), torch.zeros(n, 1, 1).double())
    vae.covariate_posterior = Fixed(FactorisedDistribution(*parts))
    y, gap = torch.full((n, 1), 1.2).double(), torch.zeros(n, 1, dtype=torch.bool)
    batch = Batch(y, ~gap, torch.zeros(n, 1).double(), gap, torch.arange(n), 1.0 / n)
    return vae, conditioned(batch, vae)


def by_quadrature(sees_x):
    """Return log p(y), and KL[q(z) q(x) ‖ p(z, x | y)], by sums over a grid of z and x."""
    grid = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    z, x, cell = grid[:, None], grid, (grid[1] - grid[0]).log() * 2
    h = SLOPES["log_sd"][0] * z + SLOPES["log_sd"][1] * x
    variance = 1e-4 + (0.3 - 1e-4) * torch.exp(2.0 * 4.0 * torch.tanh(h / 4.0))
    location = 0.1 + SLOPES["location"][0] * z + (SLOPES["location"][1] * x if sees_x else 0.0)
    normal = torch.distributions.Normal
    joint = normal(location, variance.sqrt()).log_prob(torch.tensor(1.2).double())
    joint = joint + normal(0.0, 1.0).log_prob(z) + normal(0.2, 1.1**0.5).log_prob(x)
    truth = (joint + cell).logsumexp((0, 1))
    log_q = sum(normal(Q[k][0], Q[k][1] ** 0.5).log_prob(values) for k, values in (("z", z), ("x", x)))
    return float(truth), float(((log_q + cell).exp() * (log_q - joint + truth)).sum())


@pytest.mark.parametrize("sees_x", [True, False])
def test_the_bound_is_the_exact_likelihood_less_the_divergence_of_q(sees_x):
    truth, divergence = by_quadrature(sees_x)
    assert divergence > 0.2
    with torch.no_grad():
        vae, rows = rows_that_lack_x(100_000, sees_x)
        assert float(elbo(vae, rows, generator()).elbo) == pytest.approx(truth - divergence, abs=0.02)  # s.e. .005
        vae, rows = rows_that_lack_x(1, sees_x)
        assert float(log_likelihood(vae, rows, 200_000, generator())) == pytest.approx(truth, abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("importance", [False, True])
def test_noise_that_is_0_everywhere_changes_nothing(kind, importance):
    batches, values, draws = [], [], []
    for by_row in (False, True):
        vae = some_vae(MIXED, kind, by_row=by_row)
        batch = whole_batch(some_table(patients=[0, 0, 0, 1, 2, 2, 2, 2, 3, 4, 4, 5]), vae)
        plan, eps = vae.plan(batch.x_mask, batch.patient, 2, None), vae.draw_eps(batch, 2, generator())
        values.append(bound(vae, batch, plan, eps, importance=importance).named())
        outputs = vae.decode(torch.ones(12, 2).double(), torch.zeros(12, 2).double())[None]
        observed = vae.observe(outputs, batch, generator(1))
        draws.append((observed.mean, observed.var.expand(1, 12, 3), observed.y))
        batches.append(batch)
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    for constant, by_row in zip(*draws, strict=True):
        assert torch.equal(constant, by_row)


def test_the_penalty_is_in_the_loss_and_not_in_the_bound():
    vae = some_vae(MIXED, "normal", by_row=True)
    batch = whole_batch(some_table(), vae)
    plan, eps = vae.plan(batch.x_mask, batch.patient, 1, None), vae.draw_eps(batch, 1, generator())
    torch.nn.init.constant_(vae.row_noise.linear.weight, 0.1)
    terms = bound(vae, batch, plan, eps)
    assert terms.penalty == vae.row_noise.penalty() > 0.0
    torch.testing.assert_close(terms.loss(1.0, 0.0), terms.penalty - terms.elbo)
    assert replace(terms, penalty=0.0).elbo == terms.elbo


def test_scenarios_complete_all_covariates_that_the_noise_sees():
    vae = some_vae(MIXED, "normal", by_row=True)
    torch.nn.init.constant_(vae.row_noise.linear.weight, 0.3)
    batch, values = whole_batch(some_table(), vae), []
    for columns in (None, [0]):  # those that a prior such as that of GPVAE needs
        vae.prior.scenario_columns = columns
        plan, eps = vae.plan(batch.x_mask, batch.patient, 1, None), vae.draw_eps(batch, 1, generator())
        values.append(bound(vae, batch, plan, eps).named())
    assert values[0] == values[1]


def uneven(rows, seed):
    """Return y = x + N(0, exp(0.6 x)²), and the logarithm of such a number."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(rows)
    y = x + np.exp(0.6 * x) * rng.standard_normal(rows)
    return pd.DataFrame({"x": x, "y": y, "crp": np.exp(0.5 * y)})


@pytest.mark.parametrize("kind", [lacova.CVAE, lacova.GPPriorVAE])
@pytest.mark.parametrize("measurement", ["y", {"crp": "lognormal"}])
def test_intervals_are_as_wide_as_the_noise_of_the_row(kind, measurement):
    table, new = uneven(600, 0), uneven(3000, 1)
    schema = lacova.Schema([measurement] if measurement == "y" else measurement, {"x": "continuous"})
    name = schema.measurements[0]
    model = kind(schema, latent_dim=2, noise="row").fit(table, device="cpu", members=1)
    answer = model.predict(new, interval=0.9)
    held = new[name].between(answer[f"{name}_lower"], answer[f"{name}_upper"])
    by_fifth = held.groupby(pd.qcut(new["x"], 5, labels=False)).mean()
    assert by_fifth.between(0.84, 0.96).all()
    constant = kind(schema, latent_dim=2).fit(table, device="cpu", members=1)
    assert model.score(new)["nll"] < constant.score(new)["nll"] - 0.01
    assert model.log_likelihood(new, draws=25).mean() > constant.log_likelihood(new, draws=25).mean() + 0.01
    assert "depends on the row" in model.describe()


def test_what_cannot_be_combined_is_refused():
    plain = lacova.Schema(["y"], {"x": "continuous"})
    visits = lacova.Schema(["y"], {"x": "continuous"}, instance="id")
    for make, text in (
        (lambda: lacova.CVAE(plain, noise="rows"), "noise is 'rows'; expected 'column' or 'row'"),
        (lambda: lacova.GPPriorVAE(visits, noise="row"), "patient effects cannot be combined; use patient_effects"),
        (lambda: lacova.GPPriorVAE(plain, noise="row", expectation="exact"), "expectation='sample'"),
        (lambda: lacova.CVAE(lacova.Schema({"y": "poisson"}, {"x": "continuous"}), noise="row"), "schema has none"),
    ):
        with pytest.raises(ValueError, match=text):
            make()
