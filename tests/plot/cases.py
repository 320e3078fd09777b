"""A small table of visits, and a model of it."""

import numpy as np
import pandas as pd

import lacova

UNITS = {"alt": "U/L", "day": "days", "age": "years"}


def visits(patients, count=5, seed=0):
    rng = np.random.default_rng(seed)
    n, p = patients * count, np.repeat(np.arange(patients), count)
    table = pd.DataFrame({
        "id": p, "day": np.tile(np.arange(count) * 30.0, patients), "sex": np.where(p % 2, "f", "m"),
        "age": rng.normal(50, 9, patients)[p].round(1), "arm": rng.choice(["a", "b", "c"], n),
        "alt": 30 + 4 * (p % 2) + rng.normal(0, 3, patients)[p] + rng.normal(0, 1, n), "ast": rng.normal(25, 4, n),
    })  # fmt: skip
    for name in ("arm", "alt", "ast"):
        table.loc[rng.random(n) < 0.2, name] = None
    for name in ("sex", "age"):
        table.loc[(rng.random(patients) < 0.2)[p], name] = None
    table.loc[1, "alt"] = None
    return table


def legend(ax):
    """Return the texts of a legend."""
    return [text.get_text() for text in ax.get_legend().get_texts()]


def fitted_model(table):
    covariates = {"sex": "categorical", "age": "continuous", "arm": "categorical"}
    schema = lacova.Schema(["alt", "ast"], covariates, instance="id", time="day", static=["sex", "age"], units=UNITS)
    prior = "gp(day) + cat(arm) + gp(age):cat(sex) + cat(id)"
    return lacova.GPPriorVAE(schema, prior=prior, latent_dim=3, inducing=8).fit(table, max_epochs=6)
