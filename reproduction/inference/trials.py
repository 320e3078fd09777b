"""Worlds of trials: the effect of an arm that does not change with visits, with and without dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

from reproduction.inference.answers import (
    HELD,
    by_tables,
    complete_data,
    effect_by_means,
    effect_by_mixed_model,
    imputed,
    repeated,
    what_if,
)
from reproduction.inference.multiple import chained
from reproduction.inference.regressions import design, least_squares, mixed_model, pooled
from reproduction.inference.visits import PER_VISIT, long, wide
from reproduction.inference.world import HELD_RANGE, NOMINAL, Aim, Figures, Ours, Study, World, about

COLUMNS: dict[str, Any] = {
    "measurements": ["y"], "covariates": {"day": "continuous", "arm": "categorical"}, "static": ["arm"], **PER_VISIT,
}  # fmt: skip


def two_arms(rng: np.random.Generator, size: int) -> Any:
    """Return the arms of patients, half of them in each, at random."""
    return np.array(["a", "b"])[rng.permutation(size) % 2]


def arm(effect: float) -> Callable[[np.random.Generator, int], Study]:
    """Return a randomised trial of 4 visits with this effect of the arm."""

    def draw(rng: np.random.Generator, size: int) -> Study:
        arms, day = two_arms(rng, size), np.arange(4.0)
        y = (
            effect * (arms == "b")[:, None]
            + 0.2 * day
            + rng.standard_normal((size, 1))
            + rng.standard_normal((size, 4))
        )
        table = long(y=y, arm=arms)
        return Study(table, table, COLUMNS)

    draw.__doc__ = (
        f"4 visits without gaps; y = {effect:g} in arm b + 0.2 day + N(0, 1) per patient + N(0, 1). Half of the "
        "patients, at random, are in arm b. The effect is the average of `what_if`, all rows set from arm a to arm b, "
        "with its 90% interval."
    )
    return draw


def permuted(rng: np.random.Generator, size: int) -> Study:
    """Growth like that of chicks: 12 visits at days 0, 2, ..., 22, y = 40 + N(0, 2²) + (5 + N(0, 2.5²)) day + 0.12 day²
    + N(0, 6²), with an intercept and a slope per patient, and arms at random. There is no effect: as many 90% intervals
    should exclude 0 as a level of 10% says."""
    day = 2.0 * np.arange(12)
    slope = 5.0 + 2.5 * rng.standard_normal((size, 1))
    y = (
        40.0
        + 2.0 * rng.standard_normal((size, 1))
        + slope * day
        + 0.12 * day**2
        + 6.0 * rng.standard_normal((size, 12))
    )
    table = long(y=y, arm=two_arms(rng, size)).assign(day=np.tile(day, size))
    return Study(table, table, COLUMNS)


def dropout(effect: float) -> Callable[[np.random.Generator, int], Study]:
    """Return a randomised trial with dropout and this effect of the arm at the last visit."""

    def draw(rng: np.random.Generator, size: int) -> Study:
        arms, day = two_arms(rng, size), np.arange(5.0)
        slope = 0.2 + 0.15 * rng.standard_normal((size, 1)) + effect / 4 * (arms == "b")[:, None]
        y = rng.standard_normal((size, 1)) + slope * day + 0.7 * rng.standard_normal((size, 5))
        left = np.zeros(y.shape, dtype=bool)
        for visit in range(1, 5):
            left[:, visit] = left[:, visit - 1] | (rng.random(size) < expit(2.0 * y[:, visit - 1] - 4.0))
        table = long(y=y, arm=arms)
        return Study(table, table.assign(y=table["y"].mask(left.ravel())), COLUMNS)

    draw.__doc__ = (
        f"Baseline and 4 visits in two arms; y = N(0, 1) + (0.2 + N(0, 0.15²) + {effect / 4:g} in arm b) day + "
        "N(0, 0.7²), with an intercept and a slope per patient. After each visit, a patient drops out for good with "
        "probability 1 / (1 + exp(4 - 2 y)), y the last value measured: at random, given what is observed. The effect "
        "at the last visit is estimated by an analysis of covariance (`ANCOVA`: y there on baseline and arm) and by a "
        "mixed model of all visits with a mean per visit and arm, and an intercept and a slope per patient (`mixed`)."
    )
    return draw


def judge_trial(tables: Sequence[pd.DataFrame], study: Study) -> Figures:
    return pooled([_ancova(table) for table in tables], {"ANCOVA": 1}, 0.95) | by_mixed(tables)


def _ancova(table: pd.DataFrame) -> Any:
    y = table.pivot(index="id", columns="day", values="y").dropna()
    treated = table.groupby("id")["arm"].first().loc[y.index] == "b"
    return least_squares(y[4.0], design(treated, y[0.0]))


def by_mixed(tables: Iterable[pd.DataFrame]) -> Figures:
    """Return the effect at the last visit; both arms have the same mean at baseline, as they were randomised."""

    def fit(table: pd.DataFrame) -> Any:
        visit, treated = [table["day"] == k for k in range(1, 5)], table["arm"] == "b"
        x = design(*visit, *(treated & here for here in visit))
        return mixed_model(table["y"], x, table["id"], design(table["day"]), dof=table["id"].nunique() - 2)

    return pooled([fit(table) for table in tables], {"mixed": 8}, 0.95)


def by_observed(study: Study, seed: int, ours: Ours) -> Figures:
    """Return the effect from the mixed model of the observed values, right where gaps are missing at random."""
    return by_mixed([study.gappy.dropna()])


def completers(study: Study, seed: int, ours: Ours) -> Iterable[pd.DataFrame]:
    """Leave out the patients who dropped out."""
    yield study.gappy.groupby("id").filter(lambda rows: rows["y"].notna().all())


def fill_arms(table: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Fill y arm by arm, by sequential regressions on the visits before it."""
    parts = [
        part.assign(y=chained(wide(part, "y")[:, :, 0], rng, sweeps=0).ravel()) for _, part in table.groupby("arm")
    ]
    return pd.concat(parts).sort_index()


EFFECTS = {
    "least squares of means": effect_by_means, "mixed model": effect_by_mixed_model(slopes=False),
    "GPPriorVAE": what_if("GPPriorVAE"),
}  # fmt: skip
SOURCES = {
    "complete data": complete_data, "completers": completers, "sequential regression": repeated(fill_arms),
    "GPPriorVAE": imputed("GPPriorVAE"),
}  # fmt: skip
TRIAL = {name: by_tables(judge_trial, source) for name, source in SOURCES.items()}
TRIAL["mixed model of observed"] = by_observed

WORLDS = [
    World(
        "arm", "F", "The effect of an arm", arm(1.0), "patients", (60,),
        {"effect": Aim(1.0, about(1.0, 0.05), HELD_RANGE, HELD)}, EFFECTS,
    ),
    World(
        "no-arm", "F", "No effect of an arm", arm(0.0), "patients", (60,),
        {"effect": Aim(0.0, about(0.0, 0.05), HELD_RANGE, HELD)}, EFFECTS,
    ),
    World(
        "permuted-arms", "J", "Arms permuted at random", permuted, "patients", (50,),
        {"effect": Aim(0.0, None, HELD_RANGE, HELD)}, EFFECTS | {"mixed model": effect_by_mixed_model(slopes=True)},
    ),
    World(
        "dropout", "T", "A trial with dropout", dropout(1.0), "patients", (100,),
        {name: Aim(1.0, about(1.0, 0.05), NOMINAL) for name in ("ANCOVA", "mixed")}, TRIAL,
    ),
    World(
        "dropout-no-effect", "T", "A trial with dropout and no effect", dropout(0.0), "patients", (100,),
        {name: Aim(0.0, about(0.0, 0.05), NOMINAL) for name in ("ANCOVA", "mixed")}, TRIAL,
    ),
]  # fmt: skip
