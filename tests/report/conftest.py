"""A fitted model and its report."""

import numpy as np
import pandas as pd
import pytest

import lacova
from lacova import report
from tests.report.cases import LAB, visits


@pytest.fixture(scope="session")
def table():
    return visits()


@pytest.fixture(scope="session")
def model(table):
    covariates = {"arm": "categorical", "age": "continuous"}
    schema = lacova.Schema([LAB, "ast"], covariates, instance="id", time="day", static=["age"], units={LAB: "<b>U</b>"})
    return lacova.GPPriorVAE(schema, prior="gp(day) + cat(arm) + cat(id)", latent_dim=3, inducing=6).fit(
        table, max_epochs=6
    )


@pytest.fixture(scope="session")
def path(model, table, tmp_path_factory):
    return report.write(model, table, tmp_path_factory.mktemp("report") / "r.html", draws=20)


@pytest.fixture(scope="session")
def page(path):
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def arms():
    """A table with twelve arms, of which the last by name is the most frequent, and a model of it."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"arm": [f"arm {k % 12:02d}" for k in range(192)], "dose": rng.random(192)})
    table.loc[144:, "arm"] = "arm 11"
    table["alt"] = 30 + rng.normal(0, 3, 192)
    table.loc[:4, "arm"] = None
    schema = lacova.Schema(["alt"], {"arm": "categorical", "dose": "continuous"})
    prior = "gp(dose):cat(arm) + cat(arm)"
    return table, lacova.GPPriorVAE(schema, prior=prior, latent_dim=1, inducing=4).fit(table, max_epochs=1)
