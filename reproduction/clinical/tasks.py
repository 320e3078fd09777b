"""The tasks about test patients: impute, predict or forecast measurements; impute covariates; impute age or sex."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova import Schema
from lacova.datasets import mask_at_random
from reproduction.clinical.tables import cdisc, icu, pbc

Floats = npt.NDArray[np.float64]
TABLES = {"cdisc": cdisc, "pbc": pbc, "icu": icu}
TASKS = ("impute", "covariates", "predict", "forecast", "age", "sex")
OF_Y = ("impute", "predict", "forecast")
SHARES = {"train": 0.70, "validation": 0.15, "test": 0.15}  # of the patients


@dataclass(frozen=True)
class Task:
    """One task, the same for every method.

    Attributes:
        kind: one of `TASKS`.
        schema: the roles of the columns.
        train, validation: visits with gaps in X and Y.
        test: visits of other patients, sorted by patient and day, with gaps; NaN at all entries that are wanted.
        names: the wanted columns: measurements, or covariates.
        levels: the levels of the categorical covariates; a category is coded by the place of its level in this list.
        wanted: the entries of these columns (N×D) that are wanted and whose truth is known; for a column that does not
            change with visits, only the patient's first visit.
        truth: these columns at the test visits (N×D).
        scale: the standard deviation of each column in training (D,).
    """

    kind: str
    schema: Schema
    train: pd.DataFrame
    validation: pd.DataFrame
    test: pd.DataFrame
    names: list[str]
    levels: dict[str, list[Any]]
    wanted: npt.NDArray[np.bool_]
    truth: Floats
    scale: Floats

    @property
    def measurements(self) -> list[str]:
        return list(self.schema.measurements)

    def coded(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the wanted columns as numbers."""
        return coded(frame, self.names, self.levels)

    @property
    def future(self) -> npt.NDArray[np.bool_]:
        """The test visits without any measurement (N,)."""
        return np.asarray(self.test[self.measurements].isna().all(axis=1))


def losing(schema: Schema) -> list[str]:
    """Return the covariates that have gaps: all but the day."""
    return [column for column in schema.covariates if column != schema.time]


def coded(frame: pd.DataFrame, names: list[str], levels: dict[str, list[Any]]) -> pd.DataFrame:
    """Return columns as numbers, categories by the places of their levels, with NaN at gaps."""
    places = {name: {level: place for place, level in enumerate(levels[name])} for name in levels}
    return pd.DataFrame({
        name: frame[name].map(places[name]).astype(float) if name in places else frame[name].astype(float)
        for name in names
    })  # fmt: skip


@lru_cache(maxsize=2)
def table(name: str, folder: Path) -> tuple[pd.DataFrame, Schema]:
    return TABLES[name](folder)


def task(kind: str, name: str, missing: float, seed: int, folder: Path) -> Task:
    """Return a task in which a share of X and Y is missing everywhere, except the day.

    Wanted are the missing entries of Y ("impute") or of X ("covariates"); all of Y, given X alone ("predict"); Y in
    the second half of each patient's visits, given Y in the first half and X in both ("forecast"); or one covariate
    that does not change with visits, for every patient, given all other observed entries (named "age" or "sex").
    """
    rows, schema = table(name, folder)
    x, y = losing(schema), list(schema.measurements)
    patients = np.random.default_rng(seed).permutation(rows[schema.instance].unique())
    ends = np.round(np.cumsum(list(SHARES.values())) * len(patients)).astype(int)
    complete = {
        part: rows[rows[schema.instance].isin(group)].reset_index(drop=True)
        for part, group in zip(SHARES, np.split(patients, ends[:-1]), strict=True)
    }
    masked = {
        part: mask_at_random(
            frame, x + y, missing, 1000 * seed + k, instance=schema.instance, static=list(schema.static)
        )
        for k, (part, frame) in enumerate(complete.items())
    }  # fmt: skip
    names = y if kind in OF_Y else x if kind == "covariates" else [kind]
    levels = {q: sorted(rows[q].dropna().unique(), key=str) for q in x if schema.covariates[q] == "categorical"}
    truth, trained = (coded(complete[part], names, levels) for part in ("test", "train"))
    test, known = masked["test"], truth.notna().to_numpy()
    if kind in x:
        test = test.assign(**{kind: test[kind].mask(test[kind].notna())})
    if kind not in ("predict", "forecast"):
        wanted = test[names].isna().to_numpy()
        once = test[schema.instance].duplicated().to_numpy()[:, None] & np.isin(names, list(schema.static))
        wanted = wanted & ~once
    else:
        wanted = np.ones(known.shape, dtype=bool)
        if kind == "forecast":
            visit = test.groupby(schema.instance).cumcount()
            visits = test.groupby(schema.instance)[schema.instance].transform("size")
            wanted &= (visit >= (visits + 1) // 2).to_numpy()[:, None]
        test = test.assign(**test[y].mask(pd.DataFrame(wanted, columns=y)))
    scale = trained.std().to_numpy()
    return Task(
        kind, schema, masked["train"], masked["validation"], test, names, levels, wanted & known,
        truth.to_numpy(), np.where(scale > 0, scale, 1.0),
    )  # fmt: skip


def scores(task: Task, draws: Floats) -> dict[str, Any]:
    """Return means over columns of the scores of each column, numbers in units of their training spread.

    With the 19 draws that a 90% interval needs, or more, the scores do not depend on the number of draws: the sampling
    variance of the draws' mean, or of a level's share, is subtracted from the squared error, and quantiles are those of
    a further draw. (Accuracy depends on it a little where two levels are about as frequent.) For covariates, the
    scores of each column are returned too, and categories that change with visits are averaged separately.

    Args:
        task: the task.
        draws: draws of the wanted columns (draws×N×D). A single draw is a point without an interval, whose CRPS is its
            absolute error.
    """
    columns: dict[str, dict[str, Any]] = {}
    for d, name in enumerate(task.names):
        entries = task.wanted[:, d]
        if not entries.any():
            continue
        truth, drawn = task.truth[entries, d], draws[:, entries, d]
        if name in task.levels:
            columns[name] = _of_levels(truth, drawn, len(task.levels[name]))
        else:
            columns[name] = _of_numbers(truth / task.scale[d], drawn / task.scale[d])
    if task.kind != "covariates":
        return _means(columns.values())
    fixed, categories = task.schema.static, task.levels
    groups = {
        "": [columns[q] for q in columns if q not in categories],
        "varying_": [columns[q] for q in columns if q in categories and q not in fixed],
        "static_": [columns[q] for q in columns if q in categories and q in fixed],
    }
    means = {f"{prefix}{score}": v for prefix, group in groups.items() for score, v in _means(group).items()}
    return means | {"columns": {name: {k: _short(v) for k, v in one.items()} for name, one in columns.items()}}


def _means(columns: Iterable[dict[str, Any]]) -> dict[str, float | None]:
    """Return the means over columns of the scores that they have."""
    table = pd.DataFrame(list(columns), dtype=float).drop(columns=["entries", "rarest"], errors="ignore")
    return {str(name): _short(value) for name, value in table.mean().items()}


def _short(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else round(value, 5)


def _of_numbers(truth: Floats, draws: Floats) -> dict[str, float | None]:
    draws, count = np.sort(draws, axis=0), len(draws)
    rank = np.arange(1, count + 1)[:, None]
    spread = ((2 * rank - count - 1) * draws).sum(0) / (count * (count - 1)) if count > 1 else 0.0
    low, high = np.quantile(draws, (0.05, 0.95), axis=0, method="weibull")
    sampling = draws.var(0, ddof=1) / count if count > 1 else 0.0
    return {
        "rmse": float(np.sqrt(max(0.0, np.mean((draws.mean(0) - truth) ** 2 - sampling)))),
        "crps": float(np.mean(np.abs(draws - truth).mean(0) - spread)),
        "coverage90": float(np.mean((truth >= low) & (truth <= high))) if count > 1 else None,
        "width90": float(np.mean(high - low)) if count > 1 else None,
    }


def _of_levels(truth: Floats, draws: Floats, levels: int) -> dict[str, float | None]:
    """Return the accuracy of the most frequent level, its average over the true levels, and the Brier score."""
    share = np.stack([(draws == level).mean(0) for level in range(levels)], axis=1)
    there = truth[:, None] == np.arange(levels)
    hit = there[np.arange(len(truth)), share.argmax(1)]
    sampling = (share * (1.0 - share)).sum(1) / (len(draws) - 1) if len(draws) > 1 else 0.0
    counts = there.sum(0)
    balanced = np.mean([hit[there[:, level]].mean() for level in np.flatnonzero(counts)])
    return {
        "accuracy": float(hit.mean()),
        "balanced": float(balanced) if (counts > 0).sum() > 1 else None,  # else it is the accuracy
        "brier": float(np.mean(((share - there) ** 2).sum(1) - sampling)),
        "entries": len(truth),
        "rarest": int(counts.min()),
    }
