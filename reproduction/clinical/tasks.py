"""What is asked of the methods: measurements of unseen patients, imputed, predicted from covariates, or forecast."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova import Schema
from lacova.datasets import mask_at_random
from reproduction.covariates.tables import cdisc, pbc

Floats = npt.NDArray[np.float64]
TABLES = {"cdisc": cdisc, "pbc": pbc}
TASKS = ("impute", "predict", "forecast")
SHARES = {"train": 0.70, "validation": 0.15, "test": 0.15}  # of the patients


@dataclass(frozen=True)
class Task:
    """One question, the same for every method.

    Attributes:
        kind: of `TASKS`.
        schema: roles of the columns.
        train, validation: visits with gaps in X and Y.
        test: visits of other patients, sorted by patient and day, with gaps; NaN where an answer is wanted.
        wanted: the entries of Y (N×D) that are asked for and known.
        truth: Y of the test visits (N×D).
        scale: standard deviation of each measurement in training (D,).
    """

    kind: str
    schema: Schema
    train: pd.DataFrame
    validation: pd.DataFrame
    test: pd.DataFrame
    wanted: npt.NDArray[np.bool_]
    truth: Floats
    scale: Floats

    @property
    def measurements(self) -> list[str]:
        return list(self.schema.measurements)

    @property
    def future(self) -> npt.NDArray[np.bool_]:
        """Test visits of which no measurement is given (N,)."""
        return np.asarray(self.test[self.measurements].isna().all(axis=1))


@lru_cache(maxsize=2)
def table(name: str, folder: Path) -> tuple[pd.DataFrame, Schema]:
    return TABLES[name](folder)


def task(kind: str, name: str, missing: float, seed: int, folder: Path) -> Task:
    """A share of X and Y is missing everywhere, but for the day.

    Asked for are: what is missing of Y ("impute"); all of Y, given X alone ("predict"); Y of the second half of each
    patient's visits, given the first half, and X of both ("forecast").
    """
    rows, schema = table(name, folder)
    y = list(schema.measurements)
    patients = np.random.default_rng(seed).permutation(rows[schema.instance].unique())
    ends = np.round(np.cumsum(list(SHARES.values())) * len(patients)).astype(int)
    complete = {
        part: rows[rows[schema.instance].isin(group)].reset_index(drop=True)
        for part, group in zip(SHARES, np.split(patients, ends[:-1]), strict=True)
    }
    losing = [column for column in schema.covariates if column != schema.time] + y
    masked = {
        part: mask_at_random(
            frame, losing, missing, 1000 * seed + k, instance=schema.instance, static=list(schema.static)
        )
        for k, (part, frame) in enumerate(complete.items())
    }  # fmt: skip
    test, known = masked["test"], complete["test"][y].notna().to_numpy()
    if kind == "impute":
        wanted = test[y].isna().to_numpy()
    else:
        wanted = np.ones(known.shape, dtype=bool)
        if kind == "forecast":
            visit = test.groupby(schema.instance).cumcount()
            visits = test.groupby(schema.instance)[schema.instance].transform("size")
            wanted &= (visit >= (visits + 1) // 2).to_numpy()[:, None]
        test = test.assign(**test[y].mask(pd.DataFrame(wanted, columns=y)))
    scale = complete["train"][y].std().to_numpy()
    return Task(
        kind, schema, masked["train"], masked["validation"], test, wanted & known,
        complete["test"][y].to_numpy(dtype=float), np.where(scale > 0, scale, 1.0),
    )  # fmt: skip


def scores(asked: Task, draws: Floats) -> dict[str, float | None]:
    """Means over measurements of what is said of each, in units of its training spread.

    None of them depends on the number of draws, so long as they are the 19 that an interval of 90% takes: the chance
    error of the draws' mean is taken off its squared error, and quantiles are those of a further draw.

    Args:
        asked: the question.
        draws: of Y (draws×N×D); a single one is a point, without an interval, whose CRPS is its absolute error.
    """
    found = []
    for d in range(len(asked.measurements)):
        entries = asked.wanted[:, d]
        if not entries.any():
            continue
        truth, said = asked.truth[entries, d] / asked.scale[d], np.sort(draws[:, entries, d] / asked.scale[d], axis=0)
        count = len(said)
        rank = np.arange(1, count + 1)[:, None]
        spread = ((2 * rank - count - 1) * said).sum(0) / (count * (count - 1)) if count > 1 else 0.0
        low, high = np.quantile(said, (0.05, 0.95), axis=0, method="weibull")
        chance = said.var(0, ddof=1) / count if count > 1 else 0.0
        found.append({
            "rmse": float(np.sqrt(max(0.0, np.mean((said.mean(0) - truth) ** 2 - chance)))),
            "crps": float(np.mean(np.abs(said - truth).mean(0) - spread)),
            "coverage90": float(np.mean((truth >= low) & (truth <= high))),
            "width90": float(np.mean(high - low)),
        })  # fmt: skip
    means = pd.DataFrame(found).mean().to_dict()
    if len(draws) == 1:
        means |= {"coverage90": None, "width90": None}
    return {name: None if value is None else round(value, 5) for name, value in means.items()}
