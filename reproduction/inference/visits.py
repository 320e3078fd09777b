"""Worlds of patients with several visits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

from reproduction.inference.answers import (
    by_tables,
    complete_cases,
    complete_data,
    imputed,
    repeated,
)  # fmt: skip
from reproduction.inference.multiple import chained, multilevel
from reproduction.inference.regressions import Floats, design, least_squares, mixed_model, pooled
from reproduction.inference.world import NOMINAL, Aim, Figures, Ours, Study, World, about

PER_VISIT: dict[str, Any] = {"instance": "id", "time": "day"}
TWO_COVARIATES: dict[str, Any] = {
    "measurements": ["y"], "covariates": {"day": "continuous", "x1": "continuous", "x2": "continuous"}, **PER_VISIT,
}  # fmt: skip


def long(**columns: Floats) -> pd.DataFrame:
    """Return columns given as patients × visits, or per patient, as a table with a row per visit."""
    patients, visits = next(iter(columns.values())).shape
    table = pd.DataFrame(
        {"id": np.repeat(np.arange(patients), visits), "day": np.tile(np.arange(float(visits)), patients)}
    )
    each = {name: value if value.ndim == 2 else np.repeat(value[:, None], visits, 1) for name, value in columns.items()}
    return table.assign(**{name: value.ravel() for name, value in each.items()})


def wide(table: pd.DataFrame, *names: str) -> Floats:
    """Return columns as patients × visits × columns."""
    return table[list(names)].to_numpy(dtype=float).reshape(table["id"].nunique(), -1, len(names))


def pairs_in_patients(rng: np.random.Generator, size: int) -> Study:
    """4 visits; x = N(0, 0.5) per patient + N(0, 0.5) per visit (variances), y1 = x + b1 + N(0, 1), y2 = x + b2 +
    N(0, 0.5²), with b1 and b2 ~ N(0, 0.5²) per patient. A random 40% of the visits lack x and y2 and show y1. `slope`
    is that of y2 on x within patients, by least squares on deviations from the patients' means."""
    x = np.sqrt(0.5) * (rng.standard_normal((size, 1)) + rng.standard_normal((size, 4)))
    b1, b2 = 0.5 * rng.standard_normal((2, size, 1))
    y1, y2 = x + b1 + rng.standard_normal(x.shape), x + b2 + 0.5 * rng.standard_normal(x.shape)
    table = long(y1=y1, x=x, y2=y2)
    gappy = table.copy()
    gappy.loc[rng.permutation(len(table)) < 0.4 * len(table), ["x", "y2"]] = np.nan
    kinds = {"day": "continuous", "x": "continuous"}
    return Study(table, gappy, {"measurements": ["y1", "y2"], "covariates": kinds, **PER_VISIT})


def judge_within(tables: Sequence[pd.DataFrame], study: Study) -> Figures:
    def fit(table: pd.DataFrame) -> Any:
        apart = table[["x", "y2"]] - table.groupby("id")[["x", "y2"]].transform("mean")
        return least_squares(apart["y2"], apart[["x"]].to_numpy(), lost=table["id"].nunique())

    return pooled([fit(table) for table in tables], {"slope": 0}, 0.95)


def missing_by_outcome_at_visits(rng: np.random.Generator, size: int) -> Study:
    """4 visits; x1 and x2 have variance 0.5 between patients and 0.5 between visits, and correlation 0.5 in both; y =
    (x1 + x2) / 2 + N(0, 0.5²) per patient + N(0, 1). At each visit, x2 is missing with probability 1 / (1 + exp(-1.5
    y)), so where y is high: at random, given what is observed. The analysis is a mixed model of y on x1 and x2 with an
    intercept per patient."""
    table = two_covariates(rng, size, 1.0)
    gappy = table.assign(x2=table["x2"].mask(rng.random(len(table)) < expit(1.5 * table["y"])))
    return Study(table, gappy, TWO_COVARIATES)


def two_covariates(rng: np.random.Generator, size: int, noise: float) -> pd.DataFrame:
    """Return visits with x1 and x2, and y that depends on both."""
    root = np.linalg.cholesky(np.array([[0.5, 0.25], [0.25, 0.5]])).T
    x = (rng.standard_normal((size, 1, 2)) + rng.standard_normal((size, 4, 2))) @ root
    y = 0.5 * x.sum(2) + 0.5 * rng.standard_normal((size, 1)) + noise * rng.standard_normal((size, 4))
    return long(y=y, x1=x[:, :, 0], x2=x[:, :, 1])


def covariate_pairs_at_visits(rng: np.random.Generator, size: int) -> Study:
    """4 visits; x1 and x2 have variance 0.5 between patients and 0.5 between visits, and correlation 0.5 in both; y =
    (x1 + x2) / 2 + N(0, 0.5²) per patient + N(0, 0.5²). A random 40% of the visits lack x1 and x2. The analysis is a
    mixed model of y on x1 and x2 with an intercept per patient."""
    table = two_covariates(rng, size, 0.5)
    gappy = table.copy()
    gappy.loc[rng.permutation(len(table)) < 0.4 * len(table), ["x1", "x2"]] = np.nan
    return Study(table, gappy, TWO_COVARIATES)


def judge_mixed(tables: Sequence[pd.DataFrame], study: Study) -> Figures:
    def fit(table: pd.DataFrame) -> Any:
        x, ones = design(table["x1"], table["x2"]), np.ones((len(table), 1))
        return mixed_model(table["y"], x, table["id"], ones, dof=table["id"].nunique() - 3)

    return pooled([fit(table) for table in tables], {"slope of x1": 1, "slope of x2": 2}, 0.95)


def lasting_covariate(rng: np.random.Generator, size: int) -> Study:
    """6 visits; x is a stationary Gaussian process with variance 1 and correlation 0.97^lag, and y = 0.3 x + N(0, 0.5²)
    per patient + N(0, 1). A random third of the patients lack x at all visits. `lag-1 correlation` and `sd of means`
    (of the patients' means) are of the imputed values; `slope` is that of y on x in a mixed model with an intercept
    per patient."""
    x = rng.standard_normal((size, 6)) @ np.linalg.cholesky(lasting(6)).T
    y = 0.3 * x + 0.5 * rng.standard_normal((size, 1)) + rng.standard_normal(x.shape)
    table = long(y=y, x=x)
    lost = rng.permutation(size) < size / 3
    gappy = table.assign(x=table["x"].mask(lost[table["id"]]))
    kinds = {"day": "continuous", "x": "continuous"}
    return Study(table, gappy, {"measurements": ["y"], "covariates": kinds, **PER_VISIT})


def lasting(visits: int) -> Floats:
    """Return the covariance of x at the visits."""
    return 0.97 ** np.abs(np.subtract.outer(np.arange(visits), np.arange(visits)))


def judge_course(tables: Sequence[pd.DataFrame], study: Study) -> Figures:
    def fit(table: pd.DataFrame) -> Any:
        ones = np.ones((len(table), 1))
        return mixed_model(table["y"], design(table["x"]), table["id"], ones, dof=table["id"].nunique() - 2)

    figures = pooled([fit(table) for table in tables], {"slope": 1}, 0.95)
    lost = study.gappy["x"].isna()
    if len(tables[0]) == len(lost):
        x = [wide(table[lost], "x")[:, :, 0] for table in tables]
        figures["lag-1 correlation"] = [np.mean([np.corrcoef(v[:, :-1].ravel(), v[:, 1:].ravel())[0, 1] for v in x])]
        figures["sd of means"] = [np.mean([v.mean(1).std(ddof=1) for v in x])]
    return figures


def partners(rng: np.random.Generator, size: int) -> Study:
    """4 visits of two measurements whose patients' means (variance 0.7) and deviations from them (0.3) both have
    correlation 0.87. A random 20% of the entries are hidden. The figure is the correlation of draws with the other
    measurement of the visit, where that was observed, as a mean over both."""
    root = np.linalg.cholesky(np.array([[1.0, 0.87], [0.87, 1.0]])).T
    y = (np.sqrt(0.7) * rng.standard_normal((size, 1, 2)) + np.sqrt(0.3) * rng.standard_normal((size, 4, 2))) @ root
    table = long(y1=y[:, :, 0], y2=y[:, :, 1])
    gappy = table.assign(**table[["y1", "y2"]].mask(rng.random((len(table), 2)) < 0.2))
    return Study(table, gappy, {"measurements": ["y1", "y2"], "covariates": {"day": "continuous"}, **PER_VISIT})


def judge_partners(tables: Sequence[pd.DataFrame], study: Study) -> Figures:
    gaps = study.gappy[["y1", "y2"]].isna().to_numpy()
    drawn = [gaps[:, k] & ~gaps[:, 1 - k] for k in (0, 1)]
    of = [np.corrcoef(table.loc[rows, ["y1", "y2"]].to_numpy().T)[0, 1] for table in tables for rows in drawn]
    return {"correlation": [np.mean(of)]}


def by_multilevel(*names: str) -> Callable[[Study, int, Ours], Iterable[pd.DataFrame]]:
    """Return tables completed under a multivariate random-intercept model of these columns."""

    def tables(study: Study, seed: int, ours: Ours) -> Iterable[pd.DataFrame]:
        for drawn in multilevel(wide(study.gappy, *names), np.random.default_rng(seed)):
            yield study.gappy.assign(**dict(zip(names, drawn.reshape(-1, len(names)).T, strict=True)))

    return tables


def fill_courses(table: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Fill x by sequential regressions: x of each visit on y of all visits and x of the visits before it."""
    filled = chained(np.column_stack([wide(table, "y")[:, :, 0], wide(table, "x")[:, :, 0]]), rng, sweeps=0)
    return table.assign(x=filled[:, 6:].ravel())


GP = {"GPPriorVAE": imputed("GPPriorVAE")}
OF_MEANS = lasting(6).mean() ** 0.5  # the standard deviation of a patient's mean of x

WORLDS = [
    World(
        "pairs-in-patients", "C", "Pairs that are missing together, within patients", pairs_in_patients, "patients",
        (80,), {"slope": Aim(1.0, about(1.0, 0.05), NOMINAL)},
        {name: by_tables(judge_within, source) for name, source in {
            "complete data": complete_data, "complete cases": complete_cases,
            "multilevel imputation": by_multilevel("y1", "x", "y2"), **GP,
        }.items()},
    ),
    World(
        "missing-by-outcome-at-visits", "E", "A covariate missing at visits where the outcome is high",
        missing_by_outcome_at_visits, "patients", (80,),
        {f"slope of {x}": Aim(0.5, about(0.5, 0.02), NOMINAL) for x in ("x1", "x2")},
        {name: by_tables(judge_mixed, source) for name, source in {
            "complete data": complete_data, "complete cases": complete_cases,
            "multilevel imputation": by_multilevel("y", "x1", "x2"), **GP,
        }.items()},
    ),
    World(
        "covariate-pairs-at-visits", "M", "Two covariates that are missing together at visits",
        covariate_pairs_at_visits, "patients", (80,),
        {f"slope of {x}": Aim(0.5, about(0.5, 0.03), NOMINAL) for x in ("x1", "x2")},
        {name: by_tables(judge_mixed, source) for name, source in {
            "complete data": complete_data, "complete cases": complete_cases,
            "multilevel imputation": by_multilevel("y", "x1", "x2"), **GP,
        }.items()},
    ),
    World(
        "lasting-covariate", "D", "A covariate that lasts, missing at all visits", lasting_covariate, "patients",
        (120,),
        {
            "lag-1 correlation": Aim(0.97, (0.93, 1.0)), "sd of means": Aim(OF_MEANS, about(OF_MEANS, 0.1 * OF_MEANS)),
            "slope": Aim(0.3, about(0.3, 0.03), NOMINAL),
        },
        {name: by_tables(judge_course, source) for name, source in {
            "complete data": complete_data, "complete cases": complete_cases,
            "sequential regression": repeated(fill_courses), **GP,
        }.items()},
    ),
    World(
        "partners", "K", "Measurements that go together", partners, "patients", (100,),
        {"correlation": Aim(0.87, about(0.87, 0.05))},
        {name: by_tables(judge_partners, source) for name, source in {
            "complete data": complete_data, "multilevel imputation": by_multilevel("y1", "y2"), **GP,
        }.items()},
    ),
]  # fmt: skip
