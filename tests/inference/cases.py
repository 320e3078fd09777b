"""Toy models whose bounds and likelihoods are known in closed form, and small ones of every kind."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import nn

import lacova
from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.prior import FactorisedPrior
from lacova.data.batches import Batch, Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.table import Table
from lacova.inference.objective import weighted
from lacova.inference.vae import ConditionalVAE
from lacova.likelihoods.likelihood import Likelihood
from lacova.nn.networks import Dense
from lacova.priors.gp.formula import Component
from lacova.priors.gp.inducing import InducingPoints
from lacova.priors.gp.kernels import AdditiveKernel
from lacova.priors.gp.prior import GPPrior
from lacova.priors.normal import ConditionalNormal, StandardNormal

NUMBERS = CovariateSpace(("a", "b"), (0, 0), (False, False))
MIXED = CovariateSpace(("a", "c"), (0, 2), (False, False))
KINDS = ["normal", "conditional", "regression", "longitudinal"]
PATIENTS = [0, 0, 0, 1, 2, 2, 2, 2, 3, 4, 4, 5]  # of the 12 rows of `some_table`


class Fixed(nn.Module):
    """A network with a given output: an encoder, or the posterior of covariates."""

    sees_y = True

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, *_):
        return self.output

    def embed_y(self, _):
        return None


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def conditioned(rows, vae):
    """Return a batch or table with its conditional prior."""
    return replace(rows, conditional_prior=vae.covariate_prior.condition(rows))


def whole_batch(table, vae):
    """Return a table as one batch, with its conditional prior."""
    return next(Batches(conditioned(table, vae)).in_order())[1]


def weighted_bound(vae, batch, draws, g):
    """Return the importance-weighted bound of a batch, with the model's own q(x_u)."""
    return weighted(vae, batch, vae.draw_eps(batch, draws, g), vae.covariate_posterior(batch))


def linear_cvae(space, loading, slope, intercept, noise_var, covariate_prior, joint=False):
    """Return a model of y = loading z + slope features(x) + intercept + noise, z ~ N(0, I)."""
    d, latent = loading.shape
    vae = ConditionalVAE(
        space, d, latent, Dense((), ()), decoder_sees_x=True, prior=StandardNormal(latent),
        covariate_prior=covariate_prior, covariate_posterior=AmortisedPosterior(space, d, covariate_prior),
        likelihood=Likelihood.gaussian(noise_var, floor=1e-6), joint=joint,
    ).double()  # fmt: skip
    layer = vae.decoder.network[0]
    layer.weight.data = torch.cat([loading, slope], 1)
    layer.bias.data = intercept
    return vae


def gaussian_case():
    """Return a model, a row, log p(y_o | x_o), and mean and variance of the posterior of (z, b).

    The row lacks covariate b and measurement 2. It depends on z and on b through different measurements.
    """
    loading = torch.tensor([[0.8], [0.0], [0.5], [0.0]], dtype=torch.float64)
    slope = torch.tensor([[0.3, 0.0], [-0.2, 0.9], [0.1, 0.4], [0.5, -0.6]], dtype=torch.float64)
    intercept = torch.tensor([0.1, -0.3, 0.2, 0.4], dtype=torch.float64)
    noise_var = torch.tensor([0.3, 0.2, 0.4, 0.5], dtype=torch.float64)
    prior = FactorisedPrior(
        NUMBERS, torch.tensor([0.2, -0.1]).double(), torch.tensor([1.1, 0.8]).double(), torch.zeros(2, 1).double()
    )
    y = torch.tensor([[0.7, -1.1, 0.0, 0.9]], dtype=torch.float64)
    batch = Batch(
        y, torch.tensor([[True, True, False, True]]), torch.tensor([[0.4, 0.0]], dtype=torch.float64),
        torch.tensor([[True, False]]), torch.tensor([0]),
    )  # fmt: skip
    vae = linear_cvae(NUMBERS, loading, slope, intercept, noise_var, prior)
    observed = [0, 1, 3]
    w, v, r = loading[observed], slope[observed], torch.diag(vae.likelihood.noise_variance.detach()[observed])
    mean = intercept[observed] + v[:, 0] * 0.4 + v[:, 1] * prior.mean[1]
    covariance = w @ w.T + prior.var[1] * torch.outer(v[:, 1], v[:, 1]) + r
    truth = torch.distributions.MultivariateNormal(mean, covariance).log_prob(y[0, observed])
    # Posterior of (z, b): precision = prior's + designᵀ R⁻¹ design; diagonal here, because the designs are orthogonal.
    design = torch.cat([w, v[:, 1:]], 1)
    precision = torch.diag(torch.stack([torch.tensor(1.0).double(), 1 / prior.var[1]])) + design.T @ torch.linalg.solve(
        r, design
    )
    assert abs(precision[0, 1]) < 1e-12
    shift = design.T @ torch.linalg.solve(r, y[0, observed] - intercept[observed] - v[:, 0] * 0.4)
    shift = shift + torch.stack([torch.tensor(0.0).double(), prior.mean[1] / prior.var[1]])
    covariance = torch.linalg.inv(precision)
    return vae, conditioned(batch, vae), truth, covariance @ shift, covariance.diagonal()


def with_posterior(vae, z_mean, z_var, x_mean, x_var):
    """Set q(z) and q(b) of the model of `gaussian_case`."""
    vae.encoder = Fixed((z_mean.view(1, 1), z_var.view(1, 1)))
    mean, var = torch.zeros(1, 2).double(), torch.ones(1, 2).double()
    mean[0, 1], var[0, 1] = x_mean, x_var
    vae.covariate_posterior = Fixed(FactorisedDistribution(mean, var, torch.zeros(1, 2, 1).double()))
    return vae


def some_vae(space, kind, latent=2, measurements=3, time="a", joint=True, by_row=False):
    """Return a small random model of one of the KINDS, for MIXED columns first."""
    torch.manual_seed(0)
    prior = FactorisedPrior(
        space, torch.zeros(len(space.names)), torch.ones(len(space.names)),
        torch.tensor([[0.0, 0.0] if not k else [math.log(0.4), math.log(0.6)] for k in space.levels]),
    )  # fmt: skip
    if kind == "normal":
        latent_prior = StandardNormal(latent)
    elif kind == "conditional":
        latent_prior = ConditionalNormal(space, latent)
    else:
        terms = [Component(("a",), ("c",))] + ([Component((time,), instance=True)] if kind == "longitudinal" else [])
        s = torch.zeros(4, len(space.names))
        s[:, 0], s[:, 1] = torch.linspace(-1, 1, 4), torch.tensor([0.0, 1.0, 0.0, 1.0])
        latent_prior = GPPrior(AdditiveKernel(terms, space, latent), InducingPoints(s, space, latent), space)
    return ConditionalVAE(
        space, measurements, latent, Dense((8,), (8,)), decoder_sees_x=kind in ("normal", "conditional"),
        prior=latent_prior, covariate_prior=prior,
        covariate_posterior=AmortisedPosterior(space, measurements, prior, hidden=(8,)),
        likelihood=Likelihood.gaussian(torch.ones(measurements), by_row=by_row), joint=joint,
    ).double()  # fmt: skip


def some_table(n=12, patients=None, seed=0):
    """Return rows with gaps anywhere: two covariates as in MIXED and three measurements."""
    g = generator(seed)
    x = torch.stack([torch.randn(n, generator=g), torch.randint(2, (n,), generator=g).float()], 1).double()
    x_mask, y_mask = torch.rand(n, 2, generator=g) > 0.4, torch.rand(n, 3, generator=g) > 0.3
    y = torch.randn(n, 3, generator=g, dtype=torch.float64)
    patient = None if patients is None else torch.tensor(patients)
    return Table(
        y * y_mask, y_mask, x * x_mask, x_mask, patient, () if patients is None else tuple(range(max(patients) + 1))
    )


TRIAL = lacova.Schema(
    ["trend", "response", "baseline"], {"day": "continuous", "dose": "continuous", "arm": "categorical"}, instance="id",
    time="day", static=["arm"],
)  # fmt: skip


def trial(patients=80, visits=6, seed=0):
    """Return visits of a trial with known effects: sin(day) on trend, arm and dose on response, none on baseline."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), visits)
    n = len(patient)
    own = rng.normal(size=(patients, 3))[patient]
    table = pd.DataFrame({
        "id": [f"p{p}" for p in patient],
        "day": np.tile(np.arange(visits, dtype=float), patients) + rng.uniform(-0.3, 0.3, n),
        "dose": rng.uniform(-1, 1, n),
        "arm": np.where(patient % 2, "a", "b"),
    })  # fmt: skip
    table["trend"] = 2 * np.sin(table["day"]) + 0.3 * own[:, 0] + rng.normal(0, 0.3, n)
    table["response"] = 2.0 * (table["arm"] == "b") + table["dose"] + 0.3 * own[:, 1] + rng.normal(0, 0.3, n)
    table["baseline"] = 2.0 * own[:, 2] + rng.normal(0, 1.0, n)
    return table


def gappy(table, share=0.15, seed=3):
    """Return the trial with gaps in the dose and the measurements."""
    rng = np.random.default_rng(seed)
    columns = ["dose", *TRIAL.measurements]
    holes = pd.DataFrame(rng.random((len(table), len(columns))) < share, table.index, columns)
    return table.assign(**{c: table[c].mask(holes[c]) for c in columns})


def mixed_trial(patients=150, visits=3, seed=0):
    """Return visits of a trial whose arm acts on a log-normal, a count and a binary measurement."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), visits)
    table = pd.DataFrame({"id": who, "day": np.tile(np.arange(float(visits)), patients)})
    treated = who % 2 == 1
    table["arm"] = np.where(treated, "b", "a")
    own = rng.normal(0, np.sqrt(0.3), patients)[who]
    table["crp"] = np.exp(2.0 + 0.5 * treated + own + rng.normal(0, 0.3, len(who)))
    table["falls"] = rng.poisson(2.0 + 4.0 * treated).astype(float)
    table["ill"] = np.where(rng.random(len(who)) < np.where(treated, 0.75, 0.25), "yes", "no")
    return table
