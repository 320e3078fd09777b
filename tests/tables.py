"""Small tables and helpers that many tests share."""

import numpy as np
import pandas as pd
import torch

from lacova import Schema
from lacova.data.table import Table

VISITS = Schema(
    ["alt", "ast"], {"age": "continuous", "sex": "categorical"}, instance="id", time="day", static=["age", "sex"]
)
ROWS = Schema(["alt", "ast"], {"age": "continuous", "sex": "categorical"})


def visits(patients=8, times=4, gaps=0.2, seed=0):
    """Return interleaved visits for `VISITS`: static age and sex, two measurements, gaps anywhere but in the instance.

    alt rises with age and day, ast depends on sex.
    """
    rng = np.random.default_rng(seed)
    patient = np.tile(np.arange(patients), times)
    n = len(patient)
    table = pd.DataFrame({"day": np.repeat(np.arange(float(times)), patients) + rng.uniform(0, 0.5, n)})
    table["age"] = rng.normal(50, 10, patients)[patient]
    table["sex"] = np.array(["f", "m"], dtype=object)[patient % 2]
    table["alt"] = 30 + 0.4 * (table["age"] - 50) + 2 * table["day"] + rng.normal(0, 1, n)
    table["ast"] = 20 - 3.0 * (table["sex"] == "m") + rng.normal(0, 1, n)
    table = table.mask(rng.random(table.shape) < gaps)
    table.insert(0, "id", np.array([f"p{k}" for k in range(patients)], dtype=object)[patient])
    return table


def five_visits():
    """Return five visits of patients "b" and "a" for `VISITS`, with gaps in every column but the instance."""
    nan = float("nan")
    return pd.DataFrame({
        "id": ["b", "b", "a", "a", "a"], "day": [0.0, 1.0, 0.0, nan, 4.0], "age": [50.0, nan, nan, 31.0, nan],
        "sex": [None, "m", "f", None, None], "alt": [30.0, nan, 20.0, 25.0, 40.0], "ast": [5.0, 7.0, nan, 3.0, 9.0],
    })  # fmt: skip


RAGGED = Schema(["a"], {"sex": "categorical", "dose": "continuous"}, instance="id", time="day", static=["sex"])
RAGGED_ROWS = Schema(["a"], {"sex": "categorical", "dose": "continuous", "day": "continuous"})


def ragged_visits(patients=30, most=6, seed=0):
    """Return adjacent visits for `RAGGED` and `RAGGED_ROWS`: 1 to `most` per patient, a fifth of entries missing."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), rng.integers(1, most + 1, patients))
    n = len(patient)
    table = pd.DataFrame({
        "id": [f"p{k}" for k in 7 * patient % patients], "row": np.arange(n), "day": rng.uniform(0, 9, n),
        "sex": np.where(patient % 2, "f", "m"), "dose": rng.normal(size=n), "a": rng.normal(5, 2, n),
    })  # fmt: skip
    for name in ("day", "sex", "dose", "a"):
        table.loc[rng.random(n) < 0.2, name] = None
    return table


def mixed_rows(rows=60, gaps=0.2, seed=0):
    """Return independent rows of numbers, counts, truth values, categories and stages, with gaps anywhere."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=rows)
    table = pd.DataFrame({
        "age": rng.normal(50, 10, rows), "sex": np.where(rng.random(rows) < 0.5, "f", "m"), "alt": 3 * z + 30,
        "falls": rng.poisson(np.exp(z)), "ill": z > 0, "grade": np.array(["a", "b", "c"])[rng.integers(0, 3, rows)],
        "stage": np.digitize(z, [-0.5, 0.5]),
    }).astype(object)  # fmt: skip
    return table.mask(rng.random(table.shape) < gaps)


def covariate_table(x, mask, patient=None):
    """Return a `Table` of covariates x (N×Q), observed where `mask` is True, with one measurement that never is."""
    y = torch.zeros(len(x), 1, dtype=x.dtype)
    return Table(y, y.bool(), torch.where(mask, x, 0.0), mask, patient, ())


def assert_close(actual, expected, rtol=1e-8, atol=1e-12):
    """Assert that tensors, or numbers, agree up to rounding in float64."""
    torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(expected), rtol=rtol, atol=atol)
