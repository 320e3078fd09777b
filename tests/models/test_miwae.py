"""MIWAE and NotMIWAE against linear Gaussian models, and gaps whose mechanism is known."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.data.schema import Schema
from lacova.inference import impute
from tests.models.linear_gaussian import (
    TRAINED,
    best_likelihood,
    data_with_gaps,
    fit_linear,
    linear_data,
    moments,
    observed_likelihood,
)

SCHEMA = Schema(list("abcd"), {})


@pytest.fixture(scope="module")
def miwae():
    return fit_linear(lacova.MIWAE, **TRAINED)


def test_with_gaps_it_reaches_the_best_marginal_likelihood(miwae):
    table = data_with_gaps()
    best = best_likelihood(table)
    assert best - 0.003 < observed_likelihood(*moments(miwae), table).mean() < best + 1e-9
    trained = miwae.training["elbo"].tail(20).mean() - np.log(miwae.encoder.y_scale) @ table.notna().mean()
    assert abs(trained - best) < 0.05  # the bound of twenty draws, on the encoded scale


def test_a_miwae_of_one_draw_is_a_vae():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 3)), columns=list("abc")).mask(rng.random((60, 3)) < 0.2)
    schema = Schema(list("abc"), {})
    vae = lacova.VAE(schema, latent_dim=2).fit(table, max_epochs=3, device="cpu")
    one = lacova.MIWAE(schema, latent_dim=2).fit(table, max_epochs=3, importance=1, device="cpu")
    assert one.training.equals(vae.training)
    assert one.impute(table).equals(vae.impute(table))


def test_imputation_weights_draws_where_q_is_poor(miwae):
    """Means, intervals and draws are those of y_u given y_o, although q is shifted and too wide."""
    table = data_with_gaps(7, 150)
    mean, covariance = moments(miwae)
    exact, spread = table.copy(), table.isna() * 0.0
    for i, y in enumerate(table.to_numpy()):
        seen = ~np.isnan(y)
        gain = covariance[np.ix_(~seen, seen)] @ np.linalg.inv(covariance[np.ix_(seen, seen)])
        exact.iloc[i, ~seen] = mean[~seen] + gain @ (y[seen] - mean[seen])
        left = covariance[np.ix_(~seen, ~seen)] - gain @ covariance[np.ix_(seen, ~seen)]
        spread.iloc[i, ~seen] = np.sqrt(np.diag(left))
    gaps = table.isna().to_numpy()

    def error(table, expected):
        return float(np.sqrt(((table[list("abcd")].to_numpy() - expected.to_numpy())[gaps] ** 2).mean()))

    last_layer = miwae.vae.encoder.head[-1]
    start = last_layer.bias.detach().clone()
    try:
        last_layer.bias.data += torch.tensor([0.7, math.log(2.0)])
        done = miwae.impute(table, interval=0.8)
        assert error(done, exact) < 0.04
        for side, sign in (("lower", -1.0), ("upper", 1.0)):
            ends = done[[f"{c}_{side}" for c in "abcd"]].set_axis(list("abcd"), axis=1)
            assert error(ends, exact + sign * 1.2816 * spread) < 0.08
        draws = miwae.impute(table, draws=200)
        values = draws[list("abcd")].to_numpy().reshape(200, 150, 4)
        assert error(pd.DataFrame(values.mean(0), columns=list("abcd")), exact) < 0.07
        assert error(pd.DataFrame(values.std(0), columns=list("abcd")), spread) < 0.07
        miwae.options = lacova.FitOptions()
        assert error(miwae.impute(table), exact) > 0.2
    finally:
        last_layer.bias.data.copy_(start)
        miwae.options = lacova.FitOptions(importance=20)


def test_completed_tables_differ_where_one_proposal_has_all_the_weight(monkeypatch):
    """They share z; the observation noise of missing values is drawn for each table."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(20, 3)), columns=["a", "b", "c"])
    model = lacova.MIWAE(Schema(list(table), {}), latent_dim=2).fit(table, max_epochs=1, importance=3, device="cpu")

    def favour_first(log_weight, batch, vae):
        return torch.zeros_like(log_weight).index_fill(0, torch.tensor(0), 1000.0)

    monkeypatch.setattr(impute, "sum_within_units", favour_first)
    drawn = model.impute(table.assign(a=np.nan), draws=6)["a"].to_numpy().reshape(6, 20)
    assert all(len(set(row)) == 6 for row in drawn.T)


def test_a_known_mechanism_is_recovered_where_miwae_is_biased():
    """Large values of two columns go missing: log-odds of 3 (y − 1.5)."""
    full = linear_data(3, 1500)
    rng, table = np.random.default_rng(5), full.copy()
    for name in "ab":
        table[name] = full[name].mask(rng.random(1500) < 1 / (1 + np.exp(-3 * (full[name] - 1.5))))
    settings = {"latent_dim": 1, "networks": lacova.Dense((32,), ())}
    options = {"max_epochs": 100, "learning_rate": 5e-3, "batch_size": 300, "device": "cpu"}
    truth = full[["a", "b"]].mean()
    biased = lacova.MIWAE(SCHEMA, **settings).fit(table, **options).impute(table)[["a", "b"]].mean()
    assert (truth - biased > 0.18).all()
    model = lacova.NotMIWAE(SCHEMA, **settings).fit(table, **options)
    assert (abs(model.impute(table)[["a", "b"]].mean() - truth) < 0.08).all()
    assert (abs(model.impute(table, draws=20)[["a", "b"]].mean() - truth) < 0.08).all()
    gaps = model.gaps().loc[["a", "b"]]
    assert gaps["slope"].between(2.0, 4.0).all()
    assert (abs(-gaps["intercept"] / gaps["slope"] - 1.5) < 0.15).all()  # where half are missing


def test_rows_without_measurements_are_imputed_from_their_mask():
    """If large values go missing, a row without measurements has large values."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=300)})
    model = lacova.NotMIWAE(Schema(["a"], {}), latent_dim=1, mechanism="selfmasking_high").fit(
        table.mask(table > 0.5), max_epochs=2, device="cpu"
    )
    model.vae.missingness.raw.data.fill_(3.0)
    high = model.impute(pd.DataFrame({"a": [np.nan]}))["a"][0]
    model.vae.missingness.raw.data.fill_(-20.0)  # gaps at random
    assert high > model.impute(pd.DataFrame({"a": [np.nan]}))["a"][0] + 0.3


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="covariates is for models of covariates, which a MIWAE does not look at"):
        lacova.MIWAE(SCHEMA, covariates="knn")
    with pytest.raises(ValueError, match="mechanism is 'mcar'; expected one of selfmasking"):
        lacova.NotMIWAE(SCHEMA, mechanism="mcar")
    with pytest.raises(ValueError, match="draws missing values from normal distributions, but 'a' is poisson"):
        lacova.NotMIWAE(Schema({"a": "poisson"}, {}))


def test_the_log_odds_of_gaps_are_not_linear_in_normal_scores():
    table = data_with_gaps(n=80)
    model = lacova.NotMIWAE(SCHEMA, latent_dim=1, scaling="normal").fit(table, max_epochs=1, device="cpu")
    with pytest.raises(ValueError, match="log-odds of a gap are not linear"):
        model.gaps()
