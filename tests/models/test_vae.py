"""VAE: linear models reach the best likelihood, and covariates are left alone."""

import math

import numpy as np
import pytest

import lacova
from lacova import Schema, SchemaError
from tests.models.linear_gaussian import (
    TRAINED,
    best_likelihood,
    data_with_gaps,
    fit_linear,
    linear_data,
    moments,
    observed_likelihood,
)


def test_a_linear_vae_reaches_probabilistic_pca():
    """PCA has the same noise in all columns, as the data have; the VAE may reach a little more."""
    table = linear_data(0, 400)
    eigenvalues = np.linalg.eigvalsh(np.cov(table.T, bias=True))[::-1]
    noise = eigenvalues[1:].mean()
    pca = -0.5 * (4 * math.log(2 * math.pi) + math.log(eigenvalues[0]) + 3 * math.log(noise) + 4)
    model = fit_linear(lacova.VAE, gaps=0.0, encoder=(), **TRAINED)
    exact = observed_likelihood(*moments(model), table)
    assert pca - 0.002 < exact.mean() < best_likelihood(table) + 1e-9
    np.testing.assert_allclose(model.log_likelihood(table, draws=500), exact, atol=0.05)
    bound = model.elbo(table, samples=20)["elbo"] / len(table)
    assert exact.mean() - 0.02 < bound < exact.mean() + 0.001


def test_covariates_are_left_alone():
    table = data_with_gaps(n=60) + 10
    table["id"], table["day"] = np.arange(60) // 3, np.arange(60.0)
    table.loc[3, "day"] = np.nan
    schema = Schema(list("abcd"), {"sex": "categorical"}, "id", "day", bounds={"a": (0, None), "day": (0, None)})
    model = lacova.VAE(schema, latent_dim=1).fit(table, max_epochs=2, device="cpu")
    assert model.schema == Schema(list("abcd"), {}, bounds={"a": (0, None)})
    done = model.impute(table)
    assert done[list("abcd")].notna().all().all()
    assert np.isnan(done["day"][3])
    assert len(model.predict(table[["id"]])) == 60
    assert "covariates" not in model.describe()


def test_with_gaps_it_reaches_the_best_marginal_likelihood():
    table = data_with_gaps()
    best, model = best_likelihood(table), fit_linear(lacova.VAE, **TRAINED)
    assert best - 0.006 < observed_likelihood(*moments(model), table).mean() < best + 1e-9


def test_settings_of_covariates_are_refused():
    with pytest.raises(ValueError, match="covariate_prior is for models of covariates"):
        lacova.VAE(Schema(["a"], {}), covariate_prior={"age": (0, 1)})


def test_what_is_no_schema_is_refused():
    with pytest.raises(SchemaError, match=r"expected a lacova.Schema, got \['a'\]"):
        lacova.VAE(["a"])
