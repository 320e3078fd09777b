"""docs/clinical-study.md: what the methods say of two real studies, from the results file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from reproduction.clinical.tasks import OF_Y, TASKS
from reproduction.report import markdown, percent

PAGE = Path(__file__).parents[2] / "docs" / "clinical-study.md"
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
INTERVALS = ("coverage90", "width90")  # of which neither more nor less is better
BETTER_HIGH = ("varying_accuracy", "varying_balanced", "accuracy", "balanced")
FEW = 10  # entries of the rarest level, over all seeds, below which a column says nothing


def page(lines: Iterable[dict[str, Any]], peers: Sequence[str], methods: Sequence[str]) -> str:
    """The whole page: the prose, and tables in its middle."""
    found = pd.DataFrame(lines)
    place = {name: k for names in (NAMES, TASKS) for k, name in enumerate(names)}
    found = found.sort_values(["dataset", "task", "missing"], key=lambda c: c.map(place).fillna(c), kind="stable")
    before, after = PROSE.read_text(encoding="utf-8").split(HERE)
    parts = [(found[found["task"].isin(tasks)], scores) for tasks, scores in QUESTIONS.items()]
    tables = ["\n".join(in_short(part, peers, scores) for part, scores in parts if len(part))]
    tables += sections(found, methods)
    of_x = found[found["task"] == "covariates"]
    if len(of_x):
        tables += ["\n### Missing categories one by one, balanced accuracy\n\n", by_column(of_x, peers)]
    return before + "".join(tables) + after


def in_short(found: pd.DataFrame, peers: Sequence[str], scores: Mapping[str, str]) -> str:
    """What lacova has less or more than the best peer, seed by seed, question by question."""
    rows, compared = [], {score: name for score, name in scores.items() if score not in INTERVALS}
    for (data, task, missing), here in found.groupby(["dataset", "task", "missing"], sort=False):
        ours = here[here["method"] == "lacova"]
        row = [NAMES[data], task, percent(missing), str(len(ours))]
        for score in compared:
            row += beside(here.pivot_table(index="seed", columns="method", values=score), peers, score)
        if "coverage90" in scores:
            row.append(percent(ours["coverage90"].mean()) if len(ours) else "")
        rows.append(row)
    told = [word for name in compared.values() for word in (name, "less the best peer's")]
    return markdown(["data", "task", "missing", "seeds", *told, *["coverage of 90%"] * ("coverage90" in scores)], rows)


def beside(by: pd.DataFrame, peers: Sequence[str], score: str) -> list[str]:
    """lacova's score, and its difference to that of the best peer, from seeds by methods."""
    if "lacova" not in by:
        return ["", ""]
    by = by.dropna(subset=["lacova"])
    there = [name for name in peers if name in by and by[name].notna().all()]  # the others had other questions
    if not there:
        return [mean(by["lacova"]), ""]
    means = by[there].mean()
    best = means.idxmax() if score in BETTER_HIGH else means.idxmin()
    return [mean(by["lacova"]), f"{signed(by['lacova'] - by[best])} ({best})"]


def by_column(found: pd.DataFrame, peers: Sequence[str]) -> str:
    """Balanced accuracy of each category of which there is enough to tell."""
    each = pd.DataFrame([
        {**{name: line[name] for name in ("dataset", "missing", "seed", "method")}, "column": column, **told}
        for line in found.to_dict("records")
        for column, told in line["columns"].items()
        if "accuracy" in told
    ])  # fmt: skip
    rows = []
    for (data, missing, column), here in each.groupby(["dataset", "missing", "column"], sort=False):
        one = here[here["method"] == here["method"].iloc[0]]
        if one["rarest"].sum() >= FEW:
            by = here.pivot_table(index="seed", columns="method", values="balanced")
            counts = [str(int(one[name].sum())) for name in ("entries", "rarest")]
            prior = mean(by["prior alone"]) if "prior alone" in by else ""
            rows.append(
                [NAMES[data], percent(missing), f"`{column}`", *counts, prior, *beside(by, peers, "balanced")]
            )  # fmt: skip
    head = ["data", "missing", "covariate", "entries", "of the rarest level", "prior alone", "lacova"]
    return markdown([*head, "less the best peer's"], rows)


def sections(found: pd.DataFrame, methods: Sequence[str]) -> Iterable[str]:
    for (data, task), here in found.groupby(["dataset", "task"], sort=False):
        levels = sorted(here["missing"].unique())
        scores = next(scores for tasks, scores in QUESTIONS.items() if task in tasks)
        rows = []
        for method in methods:
            mine = here[here["method"] == method]
            cells = [mean(mine[mine["missing"] == level][score]) for level in levels for score in scores]
            if any(cells):
                rows.append([method, *cells])
        head = ["", *(f"{name}, {percent(level)}" for level in levels for name in scores.values())]
        yield f"\n### {NAMES[data]}: {task}\n\n" + markdown(head, rows)


def mean(values: pd.Series, plus: str = "") -> str:
    values = values.dropna()
    if not len(values):
        return ""
    error = f" ± {values.sem():.3f}" if len(values) > 1 else ""
    return f"{values.mean():{plus}.3f}{error}".replace("-", "−")


def signed(values: pd.Series) -> str:
    return mean(values, "+")
