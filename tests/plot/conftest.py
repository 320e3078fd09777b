"""A fitted model, its effects and hidden entries, for all plots."""

import matplotlib
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import lacova
from lacova.analysis.recovery import recover
from tests.plot.cases import UNITS, visits


@pytest.fixture(scope="session")
def table():
    return visits(24)


@pytest.fixture(scope="session")
def model(table):
    covariates = {"sex": "categorical", "age": "continuous", "arm": "categorical"}
    schema = lacova.Schema(["alt", "ast"], covariates, instance="id", time="day", static=["sex", "age"], units=UNITS)
    prior = "gp(day) + cat(arm) + gp(age):cat(sex) + cat(id)"
    return lacova.GPPriorVAE(schema, prior=prior, latent_dim=3, inducing=8).fit(table, max_epochs=6)


@pytest.fixture(scope="session")
def effects(model, table):
    return model.effects(table, draws=10)


@pytest.fixture(scope="session")
def recovery(model, table):
    return recover(model, table, share=0.3, draws=40)


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")
