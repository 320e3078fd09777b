"""docs/appendix/clinical-study.md: all scores of all methods on two real studies, from the results file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from reproduction.clinical.tasks import OF_Y, TASKS
from reproduction.markdown import markdown, percent

PROSE = Path(__file__).with_name("prose.md")
HERE = "<!-- tables -->"
NAMES = {"cdisc": "CDISC pilot", "pbc": "PBC"}
SCORES = {"rmse": "RMSE", "crps": "CRPS", "coverage90": "coverage of 90%", "width90": "width"}
OF_COVARIATES = {
    "varying_accuracy": "accuracy", "varying_balanced": "balanced accuracy", "varying_brier": "Brier score",
    "rmse": "RMSE of age", "crps": "CRPS of age", "coverage90": "coverage of age's 90%",
}  # fmt: skip
OF_LEVELS = {"accuracy": "accuracy", "balanced": "balanced accuracy", "brier": "Brier score"}
QUESTIONS = {OF_Y: SCORES, ("covariates",): OF_COVARIATES, ("age",): SCORES, ("sex",): OF_LEVELS}
INTERVALS = ("coverage90", "width90")  # scores that methods are not ranked by
BETTER_HIGH = ("varying_accuracy", "varying_balanced", "accuracy", "balanced")
FEWEST_ENTRIES = 10  # of the rarest level, over all seeds; a column with fewer is not shown


def appendix(lines: Iterable[dict[str, Any]], peers: Sequence[str], methods: Sequence[str]) -> str:
    """Return the appendix: the prose, with all tables in its middle."""
    results = ordered(lines)
    before, after = PROSE.read_text(encoding="utf-8").split(HERE)
    parts = [(results[results["task"].isin(tasks)], scores) for tasks, scores in QUESTIONS.items()]
    tables = ["\n".join(in_short(part, peers, scores) for part, scores in parts if len(part))]
    tables += sections(results, methods)
    of_x = results[results["task"] == "covariates"]
    if len(of_x):
        tables += ["\n### Missing categories one by one, balanced accuracy\n\n", by_column(of_x, peers)]
    return before + "".join(tables) + after


def ordered(lines: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Return the results as a table, sorted by data set, task and share of missing entries."""
    place = {name: k for names in (NAMES, TASKS) for k, name in enumerate(names)}
    return pd.DataFrame(lines).sort_values(
        ["dataset", "task", "missing"], key=lambda column: column.map(place).fillna(column), kind="stable"
    )


@dataclass(frozen=True)
class Comparison:
    """lacova's score by seed; the best of the peers that answered for the same seeds; lacova minus that peer."""

    score: pd.Series
    peer: str | None
    difference: pd.Series


def compare(by_seed: pd.DataFrame, peers: Sequence[str], score: str) -> Comparison:
    """Compare lacova with the best peer, from a table of seeds by methods."""
    nothing = pd.Series(dtype=float)
    if "lacova" not in by_seed:
        return Comparison(nothing, None, nothing)
    by_seed = by_seed.dropna(subset=["lacova"])
    complete = [name for name in peers if name in by_seed and by_seed[name].notna().all()]
    if not complete:
        return Comparison(by_seed["lacova"], None, nothing)
    means = by_seed[complete].mean()
    best = means.idxmax() if score in BETTER_HIGH else means.idxmin()
    return Comparison(by_seed["lacova"], str(best), by_seed["lacova"] - by_seed[best])


def by_method(cell: pd.DataFrame, score: str) -> pd.DataFrame:
    """Return one score of a cell as a table of seeds by methods."""
    return cell.pivot_table(index="seed", columns="method", values=score)


def in_short(results: pd.DataFrame, peers: Sequence[str], scores: Mapping[str, str]) -> str:
    """Return lacova's scores and their differences to the best peer's, question by question."""
    rows, compared = [], {score: name for score, name in scores.items() if score not in INTERVALS}
    for (data, task, missing), cell in results.groupby(["dataset", "task", "missing"], sort=False):
        ours = cell[cell["method"] == "lacova"]
        row = [NAMES[data], task, percent(missing), str(len(ours))]
        for score in compared:
            row += beside(by_method(cell, score), peers, score)
        if "coverage90" in scores:
            row.append(percent(ours["coverage90"].mean()) if len(ours) else "")
        rows.append(row)
    names = [word for name in compared.values() for word in (name, "less the best peer's")]
    return markdown(["data", "task", "missing", "seeds", *names, *["coverage of 90%"] * ("coverage90" in scores)], rows)


def beside(by_seed: pd.DataFrame, peers: Sequence[str], score: str) -> list[str]:
    """Return lacova's score and its difference to the best peer's as text."""
    comparison = compare(by_seed, peers, score)
    difference = f"{signed(comparison.difference)} ({comparison.peer})" if comparison.peer else ""
    return [mean(comparison.score), difference]


def by_column(results: pd.DataFrame, peers: Sequence[str]) -> str:
    """Return the balanced accuracy of each category that has enough entries."""
    columns = pd.DataFrame([
        {**{name: line[name] for name in ("dataset", "missing", "seed", "method")}, "column": column, **scores}
        for line in results.to_dict("records")
        for column, scores in line["columns"].items()
        if "accuracy" in scores
    ])  # fmt: skip
    rows = []
    for (data, missing, column), cell in columns.groupby(["dataset", "missing", "column"], sort=False):
        one = cell[cell["method"] == cell["method"].iloc[0]]
        if one["rarest"].sum() >= FEWEST_ENTRIES:
            by_seed = by_method(cell, "balanced")
            counts = [str(int(one[name].sum())) for name in ("entries", "rarest")]
            prior = mean(by_seed["prior alone"]) if "prior alone" in by_seed else ""
            cells = beside(by_seed, peers, "balanced")
            rows.append([NAMES[data], percent(missing), f"`{column}`", *counts, prior, *cells])
    head = ["data", "missing", "covariate", "entries", "of the rarest level", "prior alone", "lacova"]
    return markdown([*head, "less the best peer's"], rows)


def sections(results: pd.DataFrame, methods: Sequence[str]) -> Iterable[str]:
    """Yield one table per data set and task, with the scores of all methods."""
    for (data, task), part in results.groupby(["dataset", "task"], sort=False):
        shares = sorted(part["missing"].unique())
        scores = next(scores for tasks, scores in QUESTIONS.items() if task in tasks)
        rows = []
        for method in methods:
            lines = part[part["method"] == method]
            cells = [mean(lines[lines["missing"] == share][score]) for share in shares for score in scores]
            if any(cells):
                rows.append([method, *cells])
        head = ["", *(f"{name}, {percent(share)}" for share in shares for name in scores.values())]
        yield f"\n### {NAMES[data]}: {task}\n\n" + markdown(head, rows)


def mean(values: pd.Series, plus: str = "") -> str:
    """Return a mean over seeds ± its standard error as text; blank without values."""
    values = values.dropna()
    if not len(values):
        return ""
    error = f" ± {values.sem():.3f}" if len(values) > 1 else ""
    return f"{values.mean():{plus}.3f}{error}".replace("-", "−")


def signed(values: pd.Series) -> str:
    """Return the same with its sign."""
    return mean(values, "+")
