"""GPPrior against the bounds, the posterior and dense algebra."""

import inspect
from dataclasses import replace

import pytest
import torch
from torch.distributions import MultivariateNormal

from lacova.covariates.scenarios import complete
from lacova.data.batches import Batch
from lacova.data.distributions import FactorisedDistribution
from lacova.nn import linalg
from lacova.nn.latents import Latents
from lacova.priors.base import Encoded, History
from lacova.priors.gp import prior as module
from lacova.priors.gp.inducing import InducingPoints
from lacova.priors.gp.posterior import predict_blocks
from lacova.priors.gp.prior import GPPrior
from tests.priors.gp import toys
from tests.priors.gp.toys import all_rows, close, d3, d4, posterior_of

rows_and_patients = pytest.mark.parametrize("own", [False, True], ids=["rows", "patients"])


@pytest.fixture(autouse=True)
def _almost_no_jitter(monkeypatch):
    monkeypatch.setitem(linalg.JITTER, torch.float64, 1e-14)


def prior_of(own, **options):
    """A small problem and the prior for it, with q(v) after one natural-gradient step."""
    t = toys.toy(own=own)
    prior = GPPrior(t.kernel, InducingPoints(t.inducing, toys.SPACE, toys.L), toys.SPACE, **options)
    t = replace(t, noise=prior.noise.detach())
    q = prior.inducing.distribution()
    prior.inducing.natural_step((d4(t, [0, 1, 2, 3], q) if own else d3(t, all_rows(t), q)).statistics, 0.5)
    return t, prior


def arguments(t, prior, scale=1.0):
    """The arguments of `kl` for all rows, which have no gaps."""
    y = torch.zeros(t.n, 1, dtype=torch.float64)
    batch = Batch(y, y == 0, t.x, torch.ones_like(t.x, dtype=torch.bool), t.group, scale, None, 4)
    q_x = FactorisedDistribution(t.x, torch.ones_like(t.x), torch.zeros(*t.x.shape, 2, dtype=torch.float64))
    scenarios = complete(
        q_x, batch, toys.SPACE, couple=prior.couples_rows, samples=1, generator=torch.Generator().manual_seed(0)
    )
    return scenarios, batch, Latents(t.mean.T, t.var.T), q_x


def dense_log_density(t, z):
    """log p(Z | X) of all rows."""
    covariance = torch.stack([toys.dense_covariance(t, l) for l in range(toys.L)])
    return MultivariateNormal(torch.zeros(toys.L, t.n).double(), covariance).log_prob(z.T).sum()


@rows_and_patients
@pytest.mark.parametrize("exact", [False, True])
def test_kl_is_the_bound_and_the_kl_of_q_of_v(own, exact):
    t, prior = prior_of(own, exact=exact)
    q = prior.inducing.distribution()
    bound = d4(t, [0, 1, 2, 3], q, 2.5, jitter=None) if own else d3(t, all_rows(t), q, 2.5, jitter=None)
    terms = prior.kl(*arguments(t, prior, scale=2.5))
    close(terms.latent, bound.value)
    close(terms.inducing, q.kl())
    for part, expected in zip(terms.statistics, bound.statistics, strict=True):
        close(part, expected)


@rows_and_patients
def test_kl_calls_the_bound_itself(own, monkeypatch):
    name = "patient_bound" if own else "row_bound"
    bound, callers = getattr(module, name), []

    def recorded(*args, **options):
        callers.append(inspect.stack()[1].function)
        return bound(*args, **options)

    monkeypatch.setattr(module, name, recorded)
    t, prior = prior_of(own)
    prior.kl(*arguments(t, prior))
    assert callers == ["kl"]


@rows_and_patients
def test_prediction_and_draws_follow_the_cached_posterior(own):
    t, prior = prior_of(own)
    scenarios, batch, q, _ = arguments(t, prior)
    prior.cache_posterior([Encoded(scenarios, batch, q.mean, q.var)])
    new, patient = toys.toy(visits=(3,), seed=9).x, torch.tensor([0, 0, 1])
    history = History(t.x[:3], q.mean[:3], q.var[:3], torch.zeros(3).long(), torch.tensor([True, False]))
    with torch.no_grad():
        mean, var = prior.predict(new, patient, history)
        draws = prior.sample(new, patient, torch.Generator().manual_seed(0), history, times=20_000)
        group, past = (patient, history) if own else (torch.arange(3), None)
        expected_mean, covariance, pad = predict_blocks(
            t.kernel, t.inducing, posterior_of(t), t.noise, new, group, past
        )
    close(mean, expected_mean[:, pad.filled].T)
    close(var, covariance.diagonal(dim1=-2, dim2=-1)[:, pad.filled].T)
    draws = draws.unflatten(0, (-1, 3))
    assert ((draws.mean(0) - mean).abs() < 5 * (var / len(draws)).sqrt()).all()
    assert ((draws.var(0) / var - 1).abs() < 5 * (2 / len(draws)) ** 0.5).all()


@rows_and_patients
def test_batches_add_up_in_the_cached_posterior(own):
    t, prior = prior_of(own)
    scenarios, batch, q, _ = arguments(t, prior)
    encoded = Encoded(scenarios, batch, q.mean, q.var)
    prior.cache_posterior([encoded])
    once = {name: part.clone() for name, part in prior.named_buffers()}
    prior.cache_posterior([encoded, encoded])
    close(prior.posterior_spread, 2.0 * once["posterior_spread"])
    eye = torch.eye(len(t.inducing)).double()
    precision, twice = (f @ f.mT - eye for f in (once["posterior_factor"], prior.posterior_factor))  # A = H⁻¹ − I
    close(twice, 2.0 * precision)


@rows_and_patients
def test_density_is_a_lower_bound(own):
    t, prior = prior_of(own)
    _, batch, q, _ = arguments(t, prior)
    z = torch.stack([q.mean, q.mean + 1.0])
    density = prior.density(z, t.x.expand(2, -1, -1), batch)
    assert density.value.shape == (2, t.n)
    for k in range(2):
        assert density.value[k].sum() - density.inducing < dense_log_density(t, z[k])


def test_density_is_exact_with_the_rows_as_inducing_inputs_at_the_best_q_of_v():
    t, _ = prior_of(own=False)
    prior = GPPrior(t.kernel, InducingPoints(t.x, toys.SPACE, toys.L), toys.SPACE)
    _, batch, q, _ = arguments(t, prior)
    z = q.mean[None]
    weight = torch.ones(1, t.n, dtype=torch.float64)
    prior.inducing.natural_step(prior.density(z, t.x[None], batch).statistics(weight), 1.0)
    density = prior.density(z, t.x[None], batch)
    close(density.value.sum() - density.inducing, dense_log_density(t, z[0]), rtol=1e-6)


@rows_and_patients
def test_draws_at_two_covariates_differ_only_where_the_covariates_do(own):
    t, prior = prior_of(own)
    scenarios, batch, q, _ = arguments(t, prior)
    prior.cache_posterior([Encoded(scenarios, batch, q.mean, q.var)])
    new, patient, generator = toys.toy(visits=(3,), seed=9).x, torch.tensor([0, 0, 1]), torch.Generator().manual_seed(0)
    other = new.clone()
    other[1, 0] += 1.0
    with torch.no_grad():
        shared = prior.draw_shared(4, generator)
        here, there = prior.sample_both(new, other, patient, generator, shared, times=4)
    same = (here == there).all(1).unflatten(0, (4, 3))
    assert same.tolist() == [[True, False, True]] * 4


def test_exact_integration_completes_the_columns_of_the_own_part():
    _, rows = prior_of(own=False, exact=True)
    _, patients = prior_of(own=True, exact=True)
    _, sampled = prior_of(own=True)
    assert (rows.integrates, rows.couples_rows, rows.scenario_columns) == (True, False, None)
    assert (patients.integrates, patients.couples_rows, patients.scenario_columns) == (True, True, [0])
    assert (sampled.integrates, sampled.couples_rows, sampled.scenario_columns) == (False, True, None)
