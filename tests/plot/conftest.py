"""A fitted model, its effects and hidden entries, for all plots."""

import matplotlib
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from lacova.analysis.recovery import recover
from tests.plot.cases import fitted_model, visits


@pytest.fixture(scope="session")
def table():
    return visits(24)


@pytest.fixture(scope="session")
def model(table):
    return fitted_model(table)


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
