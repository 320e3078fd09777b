"""Fitted models of small trials whose effects are known."""

import pytest

import lacova
from tests.inference.cases import TRIAL, gappy, mixed_trial, trial


@pytest.fixture(scope="session")
def model():
    prior = "gp(day) + gp(dose) + cat(arm) + cat(id)"
    unfitted = lacova.GPPriorVAE(TRIAL, prior=prior, latent_dim=3, inducing=20, patient_effects="intercept")
    return unfitted.fit(gappy(trial()), max_epochs=100, learning_rate=0.02, device="cpu")


@pytest.fixture(scope="session")
def mixed_model():
    kinds = {"crp": "lognormal", "falls": "poisson", "ill": "bernoulli"}
    covariates = {"day": "continuous", "arm": "categorical"}
    schema = lacova.Schema(kinds, covariates, instance="id", time="day", static=["arm"])
    parts = {"prior": "gp(day) + cat(arm)", "networks": lacova.Dense((16,), ()), "patient_effects": "intercept"}
    unfitted = lacova.GPPriorVAE(schema, latent_dim=2, inducing=8, **parts)
    return unfitted.fit(mixed_trial(), max_epochs=50, batch_size=20, learning_rate=0.03, device="cpu")


@pytest.fixture(scope="session")
def forecast():
    """Rows of new patients to predict, and their history."""
    table = trial(30, seed=7)
    return table[table["day"] > 3.5], gappy(table[table["day"] <= 3.5])
