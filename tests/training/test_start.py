"""A linear factor model with gaps as the start of training."""

import numpy as np
import pandas as pd
import pytest
import torch

from lacova import CVAE, VAE, Dense, FitOptions, GPPriorVAE, Schema
from lacova.covariates.linear_model import identifiable_factors
from lacova.models.builder import build
from lacova.models.fitting import read_training_data
from lacova.training import start, start_factors
from lacova.training.distributed import SINGLE
from lacova.training.start import start_from_factors
from lacova.training.start_factors import Factors, fit_factors

GENERATOR = torch.Generator().manual_seed(0)


def factor_data(n=400, columns=6, count=2, missing=0.3, seed=0):
    """Residuals of a factor model (N×D), their mask, and its loadings and noise."""
    rng = np.random.default_rng(seed)
    loadings, noise = rng.normal(size=(columns, count)), rng.uniform(0.2, 0.6, columns)
    values = rng.normal(size=(n, count)) @ loadings.T + rng.normal(size=(n, columns)) * np.sqrt(noise)
    mask = rng.random(values.shape) >= missing
    return torch.tensor(values * mask), torch.tensor(mask, dtype=torch.double), loadings, noise


def log_likelihood(factors, residual, mask):
    """The marginal likelihood of the observed entries, row by row."""
    total, covariance = 0.0, factors.loadings @ factors.loadings.mT + torch.diag(factors.noise)
    for row, seen in zip(residual, mask.bool(), strict=True):
        if seen.any():
            normal = torch.distributions.MultivariateNormal(
                torch.zeros(int(seen.sum()), dtype=torch.double), covariance[seen][:, seen]
            )
            total += float(normal.log_prob(row[seen]))
    return total


def assembled(model, table):
    data = read_training_data(model, table, False, FitOptions(), torch.device("cpu"), SINGLE)
    torch.manual_seed(0)
    return build(model, data.encoder, data.table, 0), data.table


def test_factors_are_as_many_as_columns_determine():
    assert [identifiable_factors(d) for d in (0, 1, 2, 3, 4, 5, 6, 7, 39)] == [0, 0, 1, 1, 1, 2, 3, 3, 30]


def test_em_raises_the_likelihood_and_finds_the_covariance(monkeypatch):
    monkeypatch.setattr(start_factors, "RIDGE", 0.0)  # with shrinkage it raises the penalised likelihood instead
    residual, mask, loadings, noise = factor_data()
    values = []
    for iterations in (1, 2, 4, 8, 16, 200):
        monkeypatch.setattr(start_factors, "ITERATIONS", iterations)
        values.append(log_likelihood(fit_factors(residual, mask, 2, GENERATOR.manual_seed(0)), residual, mask))
    assert (np.diff(values) > -1e-8).all()
    truth = Factors(torch.tensor(loadings), torch.tensor(noise))
    assert values[-1] > log_likelihood(truth, residual, mask)  # the maximum of the likelihood is above the truth
    factors = fit_factors(residual, mask, 2, GENERATOR)
    covariance = (factors.loadings @ factors.loadings.mT + torch.diag(factors.noise)).numpy()
    np.testing.assert_allclose(covariance, loadings @ loadings.T + np.diag(noise), atol=0.45)  # of 400 rows


def test_the_posterior_is_that_of_the_joint_normal():
    residual, mask, loadings, noise = factor_data(n=5)
    factors = Factors(torch.tensor(loadings), torch.tensor(noise))
    mean, covariance = factors.posterior(residual, mask)
    for k in range(5):
        seen = mask[k].bool().numpy()
        own, observed = loadings[seen], np.diag(noise[seen]) + loadings[seen] @ loadings[seen].T
        gain = np.linalg.solve(observed, own).T
        np.testing.assert_allclose(mean[k], gain @ residual[k][seen].numpy(), rtol=1e-8)
        np.testing.assert_allclose(covariance[k], np.eye(2) - gain @ own, rtol=1e-8, atol=1e-12)


def rows_table(n=500):
    rng = np.random.default_rng(1)
    x, z = rng.normal(size=n), rng.normal(size=n)
    sex = rng.integers(0, 2, n)
    columns = {f"y{k}": 2.0 * x + sex + (k + 1) * z + rng.normal(0, 0.5, n) for k in range(4)}
    table = pd.DataFrame({"x": x, "sex": np.where(sex, "m", "f"), **columns})
    return table.mask(rng.random(table.shape) < 0.2)


def test_a_conditional_decoder_starts_from_a_regression_on_x():
    table = rows_table()
    model = CVAE(Schema([f"y{k}" for k in range(4)], {"x": "continuous", "sex": "categorical"}), latent_dim=2)
    vae, encoded = assembled(model, table)
    start_from_factors(vae, encoded, 0)
    of_x = vae.decoder.linear.weight[:, 2:].detach() * torch.tensor([table[f"y{k}"].std() for k in range(4)])[:, None]
    np.testing.assert_allclose(of_x[:, 0], 2.0 * table.x.std(), atol=0.35)  # a fifth of x is missing
    np.testing.assert_allclose(of_x[:, 2] - of_x[:, 1], 1.0, atol=0.7)
    # q(z) is close to the factors' posterior: the encoder tells z, which all measurements share.
    mean = vae.encode(_batch(vae, encoded))[0][:, 0].detach().numpy()
    shared = table[[f"y{k}" for k in range(4)]].sub(2.0 * table.x, axis=0).mean(axis=1)
    assert abs(pd.Series(mean).corr(shared)) > 0.85


def _batch(vae, encoded):
    from lacova.data.batches import Batches

    batches = Batches(vae.condition(encoded))
    return batches.batch(torch.arange(batches.units))


@pytest.mark.parametrize("columns", [4, 5])
def test_of_patients_the_factors_explain_how_visits_differ(columns):
    """Of few measurements, the likelihood of random effects decides what is noise; of more, half of it is drift."""
    rng, names = np.random.default_rng(2), list("abcde")[:columns]
    patient = np.repeat(np.arange(60), 6)
    z, level = rng.normal(size=360), 3.0 * rng.normal(size=(60, columns))[patient]
    values = level + np.outer(z, np.ones(columns)) + rng.normal(0, 0.5, (360, columns))
    table = pd.DataFrame(values, columns=names).assign(id=patient, day=np.tile(np.arange(6.0), 60))
    vae, encoded = assembled(GPPriorVAE(Schema(names, {}, instance="id", time="day"), latent_dim=3), table)
    start_from_factors(vae, encoded, 0)
    scale = torch.tensor(table[names].std().to_numpy()).float()
    loadings = vae.decoder.linear.weight.detach() * scale[:, None]
    noise, drift = (
        part.detach() * scale.square() for part in (vae.likelihood.noise_variance, vae.random_effects.raw_drift.exp())
    )
    loadings = loadings[:, :2]  # the others have no use yet
    between_columns = (loadings @ loadings.mT).numpy()[np.triu_indices(columns, 1)]
    np.testing.assert_allclose(between_columns, 1.0, atol=0.3)
    np.testing.assert_allclose(noise + drift + loadings.square().sum(1), 1.25, atol=0.25)
    if columns == 5:
        np.testing.assert_allclose(noise, drift, rtol=1e-3)


@pytest.mark.parametrize(
    ("model", "starts"),
    [
        (VAE(Schema(list("abc"), {})), True),
        (VAE(Schema(list("ab"), {})), True),  # one factor, by shrinkage
        (VAE(Schema(["a"], {})), False),  # no factor of one column is determined
        (VAE(Schema(list("abc"), {}), networks=Dense()), False),  # no linear path
        (VAE(Schema({name: "student" for name in "abc"}, {})), False),
        (CVAE(Schema(["a"], {"b": "continuous"})), True),
    ],
)
def test_which_models_have_such_a_start(model, starts):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3)), columns=list("abc"))
    vae, encoded = assembled(model, table)
    before = {name: value.clone() for name, value in vae.state_dict().items()}
    start_from_factors(vae, encoded, 0)
    assert all(torch.equal(value, before[name]) for name, value in vae.state_dict().items()) is not starts


def test_a_large_table_is_sampled(monkeypatch):
    monkeypatch.setattr(start, "MAX_ENTRIES", 60)
    rows = []
    fit = start.fit_factors
    monkeypatch.setattr(
        start, "fit_factors", lambda residual, *rest: rows.append(len(residual)) or fit(residual, *rest)
    )
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(100, 3)), columns=list("abc"))
    vae, encoded = assembled(VAE(Schema(list("abc"), {})), table)
    start_from_factors(vae, encoded, 0)
    assert rows == [20]


def test_the_start_is_an_option_and_the_same_for_the_same_seed():
    table = rows_table(60)
    schema = Schema([f"y{k}" for k in range(4)], {"x": "continuous", "sex": "categorical"})
    fits = [CVAE(schema, latent_dim=1).fit(table, max_epochs=1, start=s) for s in ("factors", "factors", "random")]
    first, again, other = (model.training["elbo"][0] for model in fits)
    assert first == again != other
    assert first > other
    with pytest.raises(ValueError, match="start is 'zero'; expected 'factors' or 'random'"):
        FitOptions(start="zero")


def test_deviations_from_patients_averages_have_the_variance_of_single_visits():
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"a": rng.normal(size=7), "id": [0, 0, 1, 1, 1, 2, 2]})
    table.loc[6, "a"] = np.nan  # the last patient has one value, which deviates from nothing
    vae, encoded = assembled(
        GPPriorVAE(Schema(["a"], {"id2": "continuous"}, instance="id")), table.assign(id2=np.arange(7.0))
    )
    batch = _batch(vae, encoded)
    deviation, mask = start._within_patients(batch.y.double() * batch.y_mask, batch.y_mask.double(), batch)
    np.testing.assert_array_equal(mask[:, 0], [1, 1, 1, 1, 1, 0, 0])
    for rows in (slice(0, 2), slice(2, 5)):
        own = batch.y[rows, 0].double()
        np.testing.assert_allclose(deviation[rows, 0].square().mean(), own.var(), rtol=1e-8)
    assert not deviation[5:].any()
