"""Worlds of independent rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from scipy.special import expit

from reproduction.inference.answers import (
    HELD,
    Prediction,
    by_least_squares,
    by_predictions,
    by_tables,
    by_variance_regression,
    complete_cases,
    complete_data,
    effect_by_least_squares,
    imputed,
    numbers,
    predicted,
    repeated,
    what_if,
)  # fmt: skip
from reproduction.inference.multiple import chained
from reproduction.inference.regressions import design, least_squares, pooled
from reproduction.inference.world import HELD_RANGE, NOMINAL, Aim, Figures, Study, World, about

NEW = 1500


def small_tables(rng: np.random.Generator, size: int) -> Study:
    """y = x0 + x1 / 2 + 1 in arm b + N(0, 1), with x0 and x1 standard normal and no gaps. 90% intervals of 1,500 new
    rows are predicted; `held` is the share that holds y, `error` the root mean square error relative to that of least
    squares, and `noise` the learnt standard deviation of the noise, a part of which z may hold instead."""

    def rows(count: int) -> pd.DataFrame:
        x0, x1 = rng.standard_normal((2, count))
        arm = rng.permutation(count) % 2
        y = x0 + 0.5 * x1 + arm + rng.standard_normal(count)
        return pd.DataFrame({"x0": x0, "x1": x1, "arm": np.array(["a", "b"])[arm], "y": y})

    table = rows(size)
    kinds = {"x0": "continuous", "x1": "continuous", "arm": "categorical"}
    return Study(table, table, {"measurements": ["y"], "covariates": kinds}, rows(NEW))


def judge_small(answer: Prediction, study: Study) -> Figures:
    assert study.new is not None
    y = study.new["y"].to_numpy()
    line = numbers(study.new) @ least_squares(study.gappy["y"], numbers(study.gappy)).coefficients
    error = np.sqrt(np.mean((answer.mean - y) ** 2) / np.mean((line - y) ** 2))
    figures = {"held": [np.mean((answer.lower <= y) & (y <= answer.upper))], "error": [error]}
    return figures if answer.noise is None else figures | {"noise": [answer.noise]}


def pairs(rng: np.random.Generator, size: int) -> Study:
    """x ~ N(0, 1), y1 = x + N(0, 1), y2 = x + N(0, 0.5²). A random 40% of the rows lack x and y2 and show y1. `slope`
    is that of y2 on x, by least squares on the completed tables. `across rows` is the correlation of x and y2 in the
    rows that lacked them; `within rows` is that of their deviations from the row's mean over the draws."""
    x = rng.standard_normal(size)
    y1, y2 = x + rng.standard_normal(size), x + 0.5 * rng.standard_normal(size)
    table = pd.DataFrame({"y1": y1, "x": x, "y2": y2})
    gappy = table.copy()
    gappy.loc[rng.permutation(size) < 0.4 * size, ["x", "y2"]] = np.nan
    return Study(table, gappy, {"measurements": ["y1", "y2"], "covariates": {"x": "continuous"}})


def judge_pairs(tables: Sequence[pd.DataFrame], study: Study) -> Figures:
    fits = [least_squares(table["y2"], design(table["x"])) for table in tables]
    lost = study.gappy.index[study.gappy["x"].isna()]
    return pooled(fits, {"slope": 1}, 0.95) | drawn_together(tables, lost, "x", "y2")


def drawn_together(tables: Sequence[pd.DataFrame], lost: pd.Index, *names: str) -> Figures:
    """Return the correlation of two columns in the rows that lacked both, across these rows and within them."""
    if not lost.isin(tables[0].index).all():
        return {}
    drawn = np.stack([table.loc[lost, list(names)].to_numpy() for table in tables])
    across = {"across rows": [np.mean([np.corrcoef(draw.T)[0, 1] for draw in drawn])]}
    if len(drawn) == 1:
        return across
    return across | {"within rows": [np.corrcoef((drawn - drawn.mean(0)).reshape(-1, 2).T)[0, 1]]}


def covariate_pairs(rng: np.random.Generator, size: int) -> Study:
    """x1 and x2 are standard normal with correlation 0.5, and y = (x1 + x2) / 2 + N(0, 0.5²). A random 40% of the rows
    lack x1 and x2. The analysis is the regression of y on both. `across rows` is the correlation of x1 and x2 in the
    rows that lacked them; `within rows` is that of their deviations from the row's mean over the draws: y tells their
    sum, so that they go against each other."""
    x = rng.standard_normal((size, 2)) @ np.linalg.cholesky(np.array([[1.0, 0.5], [0.5, 1.0]])).T
    table = pd.DataFrame({"x1": x[:, 0], "y": 0.5 * x.sum(1) + 0.5 * rng.standard_normal(size), "x2": x[:, 1]})
    gappy = table.copy()
    gappy.loc[rng.permutation(size) < 0.4 * size, ["x1", "x2"]] = np.nan
    return Study(table, gappy, {"measurements": ["y"], "covariates": {"x1": "continuous", "x2": "continuous"}})


def judge_covariate_pairs(tables: Sequence[pd.DataFrame], study: Study) -> Figures:
    lost = study.gappy.index[study.gappy["x1"].isna()]
    return judge_regression(tables, study) | drawn_together(tables, lost, "x1", "x2")


def missing_by_outcome(rng: np.random.Generator, size: int) -> Study:
    """x1 and x2 are standard normal with correlation 0.5, and y = (x1 + x2) / 2 + N(0, 1). x2 is missing with
    probability 1 / (1 + exp(-1.5 y)), so where y is high: at random, given what is observed. The analysis is the
    regression of y on x1 and x2."""
    x1 = rng.standard_normal(size)
    x2 = 0.5 * x1 + np.sqrt(0.75) * rng.standard_normal(size)
    table = pd.DataFrame({"x1": x1, "y": 0.5 * x1 + 0.5 * x2 + rng.standard_normal(size), "x2": x2})
    gappy = table.assign(x2=table["x2"].mask(rng.random(size) < expit(1.5 * table["y"])))
    return Study(table, gappy, {"measurements": ["y"], "covariates": {"x1": "continuous", "x2": "continuous"}})


def judge_regression(tables: Sequence[pd.DataFrame], study: Study) -> Figures:
    fits = [least_squares(table["y"], design(table["x1"], table["x2"])) for table in tables]
    return pooled(fits, {"slope of x1": 1, "slope of x2": 2}, 0.95)


def arm_of_rows(effect: float) -> Callable[[np.random.Generator, int], Study]:
    """Return a small randomised trial with this effect of the arm."""

    def draw(rng: np.random.Generator, size: int) -> Study:
        x0, arm = rng.standard_normal(size), rng.permutation(size) % 2
        y = x0 + effect * arm + rng.standard_normal(size)
        table = pd.DataFrame({"x0": x0, "arm": np.array(["a", "b"])[arm], "y": y})
        return Study(table, table, {"measurements": ["y"], "covariates": {"x0": "continuous", "arm": "categorical"}})

    draw.__doc__ = (
        f"y = x0 + {effect:g} in arm b + N(0, 1), complete; half of the rows, at random, are in arm b. The effect is "
        "the average of `what_if`, all rows set from arm a to arm b, with its 90% interval."
    )
    return draw


def uneven_noise(rng: np.random.Generator, size: int) -> Study:
    """y = x0 + N(0, exp(0.6 x0)²), with x0 standard normal and no gaps: the noise grows with x0. 90% intervals of 1,500
    new rows are predicted; the figures are the shares that hold y, in each fifth of x0 and in all. `noise by row` is
    the option for it, `noise="row"`."""

    def rows(count: int) -> pd.DataFrame:
        x0 = rng.standard_normal(count)
        return pd.DataFrame({"x0": x0, "y": x0 + np.exp(0.6 * x0) * rng.standard_normal(count)})

    table = rows(size)
    return Study(table, table, {"measurements": ["y"], "covariates": {"x0": "continuous"}}, rows(NEW))


def judge_fifths(answer: Prediction, study: Study) -> Figures:
    assert study.new is not None
    y, fifth = study.new["y"].to_numpy(), pd.qcut(study.new["x0"], 5, labels=False).to_numpy()
    held = np.asarray((answer.lower <= y) & (y <= answer.upper))
    return {"all": [held.mean()]} | {f"fifth {k + 1}": [held[fifth == k].mean()] for k in range(5)}


def fill_columns(table: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Fill the gaps by chained equations."""
    return pd.DataFrame(chained(table.to_numpy(), rng), columns=table.columns, index=table.index)


TABLE_SOURCES = {
    "complete data": complete_data, "complete cases": complete_cases, "chained equations": repeated(fill_columns),
    "CVAE": imputed("CVAE"), "GPPriorVAE": imputed("GPPriorVAE"),
}  # fmt: skip
PREDICTORS = {"least squares": by_least_squares, "CVAE": predicted("CVAE"), "GPPriorVAE": predicted("GPPriorVAE")}
UNEVEN = {
    "least squares": by_least_squares, "CVAE": predicted("CVAE"),
    "CVAE, noise by row": predicted("CVAE", noise="row"),
    "GPPriorVAE, noise by row": predicted("GPPriorVAE", noise="row"), "variance regression": by_variance_regression,
}  # fmt: skip
EFFECTS = {"least squares": effect_by_least_squares, "CVAE": what_if("CVAE")}

WORLDS = [
    World(
        "small-tables", "A", "Intervals on small tables", small_tables, "rows", (30, 50, 300, 1000),
        {"held": Aim(HELD, HELD_RANGE), "error": Aim(1.0, (0.0, 1.05)), "noise": Aim(1.0)},
        {name: by_predictions(judge_small, predict) for name, predict in PREDICTORS.items()},
    ),
    World(
        "pairs", "B", "Pairs that are missing together", pairs, "rows", (300,),
        {
            "slope": Aim(1.0, about(1.0, 0.03), NOMINAL),
            "across rows": Aim(1 / np.sqrt(1.25), about(1 / np.sqrt(1.25), 0.05)),
            "within rows": Aim(np.sqrt(2 / 3), about(np.sqrt(2 / 3), 0.05)),  # var(x | y1) = ½: ½ / √(½ · ¾)
        },
        {name: by_tables(judge_pairs, source) for name, source in TABLE_SOURCES.items()},
    ),
    World(
        "covariate-pairs", "M", "Two covariates that are missing together", covariate_pairs, "rows", (300,),
        {
            **{f"slope of {x}": Aim(0.5, about(0.5, 0.03), NOMINAL) for x in ("x1", "x2")},
            "across rows": Aim(0.5, about(0.5, 0.05)),
            "within rows": Aim(-1 / 7, about(-1 / 7, 0.05)),  # precision [4/3 + 1, -2/3 + 1; ...] given y
        },
        {name: by_tables(judge_covariate_pairs, source) for name, source in TABLE_SOURCES.items()},
    ),
    World(
        "missing-by-outcome", "E", "A covariate missing where the outcome is high", missing_by_outcome, "rows", (300,),
        {f"slope of {x}": Aim(0.5, about(0.5, 0.02), NOMINAL) for x in ("x1", "x2")},
        {name: by_tables(judge_regression, source) for name, source in TABLE_SOURCES.items()},
    ),
    World(
        "arm-of-rows", "F", "The effect of an arm, independent rows", arm_of_rows(1.0), "rows", (50,),
        {"effect": Aim(1.0, about(1.0, 0.05), HELD_RANGE, HELD)}, EFFECTS,
    ),
    World(
        "no-arm-of-rows", "F", "No effect of an arm, independent rows", arm_of_rows(0.0), "rows", (50,),
        {"effect": Aim(0.0, about(0.0, 0.05), HELD_RANGE, HELD)}, EFFECTS,
    ),
    World(
        "uneven-noise", "G", "Noise that grows with a covariate", uneven_noise, "rows", (1000,),
        {name: Aim(HELD, (0.85, 0.95)) for name in ("all", *(f"fifth {k}" for k in range(1, 6)))},
        {name: by_predictions(judge_fifths, predict) for name, predict in UNEVEN.items()},
    ),
]  # fmt: skip
