"""Summaries of the results: means over seeds, paired differences, the gap closed, the paper's order of methods."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

PUBLISHED = Path(__file__).with_name("published.csv")
CELL = ["table", "dataset", "networks", "missing"]
RIVALS = ("mean", "knn", "paper")
ORDER = ("zero", "mean", "knn", "paper", "oracle")  # the paper's, from the highest NLL to the lowest
SURE = 2.0  # standard errors


@dataclass(frozen=True)
class Figure:
    """A mean over seeds, with its standard error where there are at least two; empty without any."""

    mean: float = math.nan
    error: float = math.nan
    seeds: int = 0

    @classmethod
    def of(cls, values: pd.Series) -> Figure:
        values = values.dropna()
        return cls(float(values.mean()), float(values.sem()), len(values)) if len(values) else cls()

    def __neg__(self) -> Figure:
        return Figure(-self.mean, self.error, self.seeds)

    def text(self, decimals: int = 0, percent: bool = False) -> str:
        if not self.seeds:
            return ""
        factor = 100.0 if percent else 1.0
        error = "" if self.seeds < 2 else f" ± {factor * self.error:.{decimals}f}"
        return f"{factor * self.mean:.{decimals}f}{error}{'%' if percent else ''}".replace("-", "−")


def frame(lines: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Return the results as a table, data sets by name. Where a run is recorded twice, the last line counts."""
    results = pd.DataFrame(list(lines))
    if results.empty:
        return results
    results["dataset"] = results["dataset"].astype(str)
    return results.drop_duplicates([*CELL, "covariates", "seed"], keep="last", ignore_index=True)


def published() -> pd.DataFrame:
    """Return the paper's figures: NLL in nats, accuracies as shares."""
    return pd.read_csv(PUBLISHED, dtype={"dataset": str})


def by_seed(cell: pd.DataFrame, metric: str = "nll") -> pd.DataFrame:
    """Return one score of a cell, with a line per seed and a column per method."""
    return cell.pivot(index="seed", columns="covariates", values=metric).astype(float)


def difference(nll: pd.DataFrame, method: str, other: str) -> Figure:
    """Return method minus other, paired by seed."""
    return Figure.of(nll[method] - nll[other]) if {method, other} <= set(nll) else Figure()


def gap_closed(nll: pd.DataFrame, method: str) -> Figure:
    """Return (mean − method) / (mean − limit), computed seed by seed."""
    if not {"mean", "limit", method} <= set(nll):
        return Figure()
    return Figure.of((nll["mean"] - nll[method]) / (nll["mean"] - nll["limit"]))


def better(gain: Figure) -> str:
    """Return whether a difference of NLLs is below zero by more than two standard errors: "yes", "no", or blank."""
    if gain.seeds < 2:
        return ""
    return "yes" if gain.mean < -SURE * gain.error else "no"


def ahead_of_all(cells: pd.DataFrame) -> list[bool]:
    """Return for each cell whether joint beats all rivals; cells that lack a rival or a second seed are left out."""
    wins = [[better(row[f"joint − {rival}"]) for rival in RIVALS] for _, row in cells.iterrows()]
    return [set(win) == {"yes"} for win in wins if all(win)]


def holds(nll: pd.DataFrame, worse: str, best: str) -> str:
    """Return whether the NLL falls from one method to the next: "yes", "no", or "≈" within two standard errors."""
    step = difference(nll, worse, best)
    if not step.seeds:
        return ""
    if step.seeds > 1 and abs(step.mean) <= SURE * step.error:
        return "≈"
    return "yes" if step.mean > 0 else "no"


def checks(results: pd.DataFrame) -> pd.DataFrame:
    """Return one line per cell with all that the pages claim about joint and about the paper's order."""
    rows = []
    for key, cell in results.groupby(CELL, sort=False):
        nll = by_seed(cell)
        row: dict[str, Any] = dict(zip(CELL, key, strict=True))
        for rival in RIVALS:
            row[f"joint − {rival}"] = difference(nll, "joint", rival)
        row |= {f"{method} closes": gap_closed(nll, method) for method in ("paper", "joint")}
        row |= {f"{a} ≥ {b}": holds(nll, a, b) for a, b in pairwise(ORDER)}
        joint = cell[cell["covariates"] == "joint"]
        row["coverage of 90%"] = Figure.of(joint["coverage90"])
        rows.append(row)
    return pd.DataFrame(rows)
