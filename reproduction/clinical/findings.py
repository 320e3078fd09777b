"""docs/clinical-study.md: one screen of findings, with all figures from the results file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from reproduction.clinical.appendix import (
    BETTER_HIGH,
    INTERVALS,
    NAMES,
    QUESTIONS,
    Comparison,
    by_method,
    compare,
    mean,
    ordered,
    signed,
)  # fmt: skip
from reproduction.clinical.tasks import OF_Y
from reproduction.markdown import bullets, markdown, percent

PAGE = Path(__file__).parents[2] / "docs" / "clinical-study.md"
PROSE = Path(__file__).with_name("findings.md")
HERE = "<!-- findings -->\n"
APPENDIX = "appendix/clinical-study.md"  # as the prose links to it
PROPER = {"impute": "crps", "predict": "crps", "forecast": "crps", "covariates": "varying_brier", "age": "crps",
          "sex": "brier"}  # fmt: skip
TITLES = {"crps": "CRPS", "varying_brier": "Brier score", "brier": "Brier score"}
DESCRIPTIONS = {
    "impute": "impute measurements", "predict": "predict measurements from covariates",
    "forecast": "forecast measurements", "covariates": "impute categories that change with visits",
    "age": "impute age", "sex": "impute sex",
}  # fmt: skip


class Cell(NamedTuple):
    """One data set, task, share of missing entries and score, with the comparison there."""

    data: str
    task: str
    missing: float
    score: str
    comparison: Comparison

    @property
    def gain(self) -> float:
        """How much better lacova is than the best peer, in the score's own units."""
        return float(self.comparison.difference.mean()) * (1.0 if self.score in BETTER_HIGH else -1.0)

    @property
    def error(self) -> float:
        return float(self.comparison.difference.sem())

    def ahead(self, errors: float = 0.0) -> bool:
        """Return whether lacova is ahead by more than so many standard errors."""
        return self.gain > (errors * self.error if errors else 0.0)

    def behind(self, errors: float = 0.0) -> bool:
        """Return whether the best peer is ahead by more than so many standard errors."""
        return -self.gain > (errors * self.error if errors else 0.0)


def findings(lines: Iterable[dict[str, Any]], peers: Sequence[str], name: str = PAGE.name) -> str:
    """Return the page of findings, which links to the appendix of the same name."""
    results = ordered(lines)
    cells = list(_cells(results, peers))
    items = [_proper(cells), _rmse(cells), _intervals(results, peers), _peers_ahead(cells)]
    text = bullets(items) + "\n" + _table(cells)
    return PROSE.read_text(encoding="utf-8").replace(HERE, text).replace(APPENDIX, f"appendix/{name}")


def _cells(results: pd.DataFrame, peers: Sequence[str]) -> Iterator[Cell]:
    """Yield all comparisons of lacova with a peer."""
    for (data, task, missing), part in results.groupby(["dataset", "task", "missing"], sort=False):
        scores = next(scores for tasks, scores in QUESTIONS.items() if task in tasks)
        for score in scores:
            if score not in INTERVALS:
                comparison = compare(by_method(part, score), peers, score)
                if comparison.peer is not None:
                    yield Cell(data, task, missing, score, comparison)


def _proper(cells: Sequence[Cell]) -> str:
    """Count who is ahead in the scores of the table."""
    shown = [cell for cell in cells if cell.score == PROPER[cell.task]]
    ahead, behind = (sum(getattr(cell, side)() for cell in shown) for side in ("ahead", "behind"))
    clearly_ahead, clearly_behind = (sum(getattr(cell, side)(2.0) for cell in shown) for side in ("ahead", "behind"))
    return (
        f"In the scores of the table, lacova is ahead of the best peer in {ahead} of {len(shown)} comparisons, by more "
        f"than two standard errors in {clearly_ahead}. The best peer is ahead in {behind}, by more than two standard "
        f"errors in {clearly_behind or 'none'}."
    )


def _rmse(cells: Sequence[Cell]) -> str:
    """Count who has the lower RMSE of measurements and of age."""
    shown = [cell for cell in cells if cell.score == "rmse"]
    close = sum(cell.behind() and not cell.behind(1.0) for cell in shown)
    ahead = sum(cell.ahead() for cell in shown)
    if not shown:
        return ""
    return (
        f"The RMSE of measurements and of age is lower than the best peer's in {ahead} of {len(shown)} comparisons, "
        f"and within one standard error of it in {close} more."
    )


def _intervals(results: pd.DataFrame, peers: Sequence[str]) -> str:
    """Return the range of the coverage of 90% intervals of measurements, for lacova and for the peers."""
    of_y = results[results["task"].isin(OF_Y)]
    coverage = of_y.groupby(["method", "dataset", "task", "missing"])["coverage90"].mean().dropna()
    ranges = {method: (part.min(), part.max()) for method, part in coverage.groupby("method")}
    others = {method: ranges[method] for method in peers if method in ranges}
    if "lacova" not in ranges or not others:
        return ""
    low, high = ranges["lacova"]
    listed = ", ".join(f"{method} {percent(a)} to {percent(b)}" for method, (a, b) in others.items())
    return (
        f"lacova's 90% intervals of measurements cover {percent(low)} to {percent(high)}. Those of the peers that give "
        f"intervals cover: {listed}."
    )


def _peers_ahead(cells: Sequence[Cell]) -> str:
    """List where the best peer is ahead by more than one standard error, in any score."""
    names = {score: title for scores in QUESTIONS.values() for score, title in scores.items()}
    items = [
        f"{NAMES[cell.data]}, {cell.task} at {percent(cell.missing)}, {names[cell.score]} "
        f"({signed(cell.comparison.difference)}, {cell.comparison.peer})"
        for cell in cells
        if not math.isnan(cell.error) and cell.behind(1.0)
    ]
    if not items:
        return f"In none of {len(cells)} comparisons, over all scores, is a peer ahead by more than one standard error."
    return (
        f"Where a peer is ahead by more than one standard error, in {len(items)} of {len(cells)} comparisons over all "
        f"scores: {'; '.join(items)}."
    )


def _table(cells: Sequence[Cell]) -> str:
    """Return one line per data set and task: lacova's score, and its difference to the best peer's."""
    shares = sorted({cell.missing for cell in cells})
    shown = {(cell.data, cell.task, cell.missing): cell for cell in cells if cell.score == PROPER[cell.task]}
    rows = []
    for data, task in product(dict.fromkeys(cell.data for cell in cells), DESCRIPTIONS):
        if not any((data, task, share) in shown for share in shares):
            continue
        row = [NAMES[data], DESCRIPTIONS[task], TITLES[PROPER[task]]]
        for share in shares:
            cell = shown.get((data, task, share))
            row.append("" if cell is None else mean(cell.comparison.score))
            row.append("" if cell is None else f"{signed(cell.comparison.difference)} ({cell.comparison.peer})")
        rows.append(row)
    head = [word for share in shares for word in (f"lacova, {percent(share)}", "less the best peer's")]
    return markdown(["data", "task", "score", *head], rows)
