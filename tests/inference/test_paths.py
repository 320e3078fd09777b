"""Missing numbers that are paths: the bound in a world whose likelihood is known, and what completed tables keep."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.mixture import Mixture
from lacova.covariates.prior import FactorisedPrior
from lacova.covariates.scenarios import StandardDraws
from lacova.data.batches import Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.table import Table
from lacova.inference.objective import bound, log_likelihood, weighted
from tests.inference.cases import Fixed, conditioned, generator, linear_cvae

SPACE = CovariateSpace(("t", "a"), (0, 0), (False, False))
RATE, SLOPE, NOISE = 0.4, 0.9, 0.3
TIME = [0.0, 0.5, 1.7, 2.0, 3.1, 0.3, 1.0]
PATIENT = [0, 0, 0, 0, 0, 1, 1]
OBSERVED = [False, False, True, False, False, False, False]  # of a


def linear_world(paths=True):
    """Return y = 0.9 a + ε, a an OU process with variance 1, its batch, log p(y | a_o), and the posterior of a_u."""
    y = torch.randn(7, 1, generator=generator(3), dtype=torch.float64)
    x = torch.tensor([TIME, [0.0, 0.0, 0.6, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64).T
    x_mask = torch.tensor([[True] * 7, OBSERVED]).T
    table = Table(y, torch.ones(7, 1, dtype=torch.bool), x, x_mask, torch.tensor(PATIENT), (0, 1))
    marginal = FactorisedPrior(SPACE, torch.zeros(2).double(), torch.ones(2).double(), torch.zeros(2, 1).double())
    mixture = Mixture(
        SPACE, torch.zeros(1).double(), torch.zeros(1, 2).double(), torch.eye(2).double()[None],
        torch.zeros(1, 0, 1).double(),
    )  # fmt: skip
    rates = torch.tensor([math.inf, RATE], dtype=torch.float64)
    prior = LongitudinalPrior(mixture, marginal, rates, 0, paths=paths)
    loading, slope = torch.zeros(1, 1).double(), torch.tensor([[0.0, SLOPE]]).double()
    vae = linear_cvae(SPACE, loading, slope, torch.zeros(1).double(), torch.tensor([NOISE]).double(), marginal)
    vae.covariate_prior = prior
    vae.encoder = Fixed((torch.zeros(7, 1).double(), torch.ones(7, 1).double()))
    batch = next(Batches(conditioned(table, vae)).in_order())[1]
    noise = float(vae.likelihood.noise_variance.detach())
    truth, mean, var = 0.0, torch.zeros(7, 2).double(), torch.ones(7, 2).double()
    for patient in (0, 1):
        own = torch.tensor([k for k in range(7) if PATIENT[k] == patient])
        at, seen = x[own, 0], x_mask[own, 1]
        k = torch.exp(-RATE * (at[:, None] - at).abs())
        gain = k[:, seen] @ torch.linalg.inv(k[seen][:, seen])
        centre, covariance = gain @ x[own][seen, 1], k - gain @ k[seen]
        centre = torch.where(seen, x[own, 1], centre)
        of_y = SLOPE**2 * covariance + noise * torch.eye(len(own)).double()
        truth += torch.distributions.MultivariateNormal(SLOPE * centre, of_y).log_prob(y[own, 0])
        gain = SLOPE * covariance @ torch.linalg.inv(of_y)
        mean[own, 1] = centre + gain @ (y[own, 0] - SLOPE * centre)
        var[own, 1] = (covariance - SLOPE * gain @ covariance).diagonal().clamp_min(1e-9)
    return vae, batch, truth, mean, var


def with_posterior(vae, batch, mean, var, paths=True):
    p = batch.conditional_prior.distribution
    posterior = FactorisedDistribution(mean, var, p.log_prob, p.paths if paths else None)
    vae.covariate_posterior = Fixed(posterior)


def exact_bound(vae, batch):
    """The bound with 28 points of mean 0 and covariance I in place of normals: means of quadratics are exact."""
    axes = math.sqrt(14.0) * torch.eye(14, dtype=torch.float64)
    eps = StandardDraws(
        torch.cat([axes, -axes]).view(28, 7, 2), torch.zeros(28, 7, 1).double(), torch.zeros(0, 7, 2).double()
    )
    return bound(vae, batch, vae.plan(batch.x_mask, batch.patient, 28, None), eps).elbo


def test_the_bound_meets_the_likelihood_at_the_true_posterior():
    """The true posterior has the precisions between neighbours that the prior has: it is in the family of q."""
    vae, batch, truth, mean, var = linear_world()
    with_posterior(vae, batch, mean, var)
    torch.testing.assert_close(exact_bound(vae, batch), truth, rtol=1e-8, atol=0)
    # Importance weights are constant there: one draw gives the likelihood.
    one = weighted(vae, batch, vae.draw_eps(batch, 1, generator()), vae.covariate_posterior(batch))
    torch.testing.assert_close(one.elbo, truth, rtol=1e-8, atol=0)
    with_posterior(vae, batch, mean, var, paths=False)
    assert exact_bound(vae, batch) < truth - 0.1


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_never_exceeds_the_likelihood(seed):
    vae, batch, truth, mean, var = linear_world()
    g = generator(seed)
    shift, factor = torch.rand(2, 7, 2, generator=g, dtype=torch.float64)
    with_posterior(vae, batch, mean + 0.5 * (shift - 0.5), var * (2.0 * (factor - 0.5)).exp())
    assert exact_bound(vae, batch) < truth - 0.01


def test_rows_weighted_by_themselves_have_the_marginal_likelihood():
    vae, batch, _, mean, var = linear_world()
    with_posterior(vae, batch, mean, 2.0 * var)
    noise, p = vae.likelihood.noise_variance.detach(), batch.conditional_prior.distribution
    spread = torch.where(batch.x_mask[:, 1], 0.0, p.var[:, 1])
    centre = torch.where(batch.x_mask[:, 1], batch.x[:, 1], p.mean[:, 1])
    expected = torch.distributions.Normal(SLOPE * centre, (SLOPE**2 * spread + noise).sqrt()).log_prob(batch.y[:, 0])
    value = log_likelihood(vae, batch, 20_000, generator())
    torch.testing.assert_close(value, expected, rtol=0, atol=0.03)  # of 20,000 draws


def lasting(patients=60, visits=6, seed=0):
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(0.97 ** np.abs(np.subtract.outer(np.arange(visits), np.arange(visits))))
    x = rng.standard_normal((patients, visits)) @ root.T
    table = pd.DataFrame({"id": np.repeat(np.arange(patients), visits), "day": np.tile(np.arange(visits), patients)})
    table["x"] = x.ravel()
    table["y"] = 0.3 * table["x"] + rng.standard_normal(len(table))
    return table.assign(x=table["x"].mask(table["id"] < patients // 3))


@pytest.fixture(scope="module")
def fitted():
    table = lasting().sample(frac=1.0, random_state=0)
    schema = lacova.Schema(["y"], {"day": "continuous", "x": "continuous"}, instance="id", time="day")
    return lacova.GPPriorVAE(schema, latent_dim=2, inducing=8).fit(table, max_epochs=4, progress=False), table


def lag_one(completed, lost):
    by_visit = completed[completed["id"].isin(lost)].pivot(index=["draw", "id"], columns="day", values="x").to_numpy()
    return np.corrcoef(by_visit[:, :-1].ravel(), by_visit[:, 1:].ravel())[0, 1]


@pytest.mark.parametrize("measured", ["all", "some", "none"])
def test_draws_of_a_covariate_that_lasts_last(fitted, measured):
    model, table = fitted
    lost = table.loc[table["x"].isna(), "id"].unique()
    if measured == "some":
        table = table.assign(y=table["y"].mask(table["day"] % 2 == 1))
    if measured == "none":
        completed = model.prior_covariates(table, draws=20, seed=0)
    else:
        completed = model.impute(table, draws=20, seed=0).reset_index()
    assert lag_one(completed, lost) > 0.9


def test_without_the_joint_posterior_they_do_not():
    table = lasting()
    schema = lacova.Schema(["y"], {"day": "continuous", "x": "continuous"}, instance="id", time="day")
    model = lacova.GPPriorVAE(schema, latent_dim=2, inducing=8, joint_posterior=False)
    model.fit(table, max_epochs=2, progress=False)
    lost = table.loc[table["x"].isna(), "id"].unique()
    assert abs(lag_one(model.impute(table, draws=20, seed=0).reset_index(), lost)) < 0.3


@pytest.mark.parametrize("noise", ["column", "row"])
def test_paths_of_a_model_whose_q_of_z_does_not_see_them(noise):
    """The bound of scenarios of rows is that of whole patients drawn along paths."""
    table = lasting(30)
    schema = lacova.Schema(["y"], {"day": "continuous", "x": "continuous"}, instance="id", time="day")
    model = lacova.GPVAE(schema, latent_dim=1, noise=noise).fit(table, max_epochs=4, progress=False)
    vae, lost = model.vae, table.loc[table["x"].isna(), "id"].unique()
    assert (vae.joint, vae.covariate_prior.paths) == (False, True)
    assert lag_one(model.impute(table, draws=20, seed=0).reset_index(), lost) > 0.9
    batch, g = next(Batches(model.encode(table)).in_order())[1], generator(0)
    plan, q_x = vae.plan(batch.x_mask, batch.patient, 4, None), vae.covariate_posterior(batch)
    with torch.no_grad():
        values = [
            [bound(vae, batch, plan, vae.draw_eps(batch, 4, g)).elbo.item(),
             weighted(vae, batch, vae.draw_eps(batch, 1, g), q_x).elbo.item()]
            for _ in range(200)
        ]  # fmt: skip
    difference = np.subtract(*np.transpose(values))
    assert abs(difference.mean()) < 4 * difference.std() / len(difference) ** 0.5 < 5.0


def test_the_exact_expectation_has_no_paths():
    schema = lacova.Schema(["y"], {"day": "continuous", "x": "continuous"}, instance="id", time="day")
    model = lacova.GPPriorVAE(schema, latent_dim=2, inducing=8, expectation="exact").fit(lasting(), max_epochs=1)
    assert not model.vae.covariate_prior.paths
