"""docs/clinical-study.md: what the methods say of two real studies, from the results file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from reproduction.report import markdown, percent

PAGE = Path(__file__).parents[2] / "docs" / "clinical-study.md"
PROSE = Path(__file__).with_name("prose.md")
HERE = "<!-- tables -->"
NAMES = {"cdisc": "CDISC pilot", "pbc": "PBC"}
SCORES = {"rmse": "RMSE", "crps": "CRPS", "coverage90": "coverage of 90%", "width90": "width"}


def page(lines: Iterable[dict[str, Any]], peers: Sequence[str], methods: Sequence[str]) -> str:
    """The whole page: the prose, and tables in its middle."""
    found = pd.DataFrame(lines)
    before, after = PROSE.read_text(encoding="utf-8").split(HERE)
    return before + in_short(found, peers) + "".join(sections(found, methods)) + after


def in_short(found: pd.DataFrame, peers: Sequence[str]) -> str:
    """What lacova has less or more than the best peer, seed by seed, question by question."""
    rows = []
    for (data, task, missing), here in found.groupby(["dataset", "task", "missing"], sort=False):
        row = [NAMES[data], task, percent(missing)]
        for score in ("rmse", "crps"):
            by = here.pivot_table(index="seed", columns="method", values=score)
            if "lacova" not in by or not by.columns.isin(peers).any():
                row += ["", ""]
                continue
            by = by.dropna(subset=["lacova"])
            best = by[[name for name in peers if name in by]].mean().idxmin()
            row += [mean(by["lacova"]), f"{signed(by['lacova'] - by[best])} ({best})"]
        ours = here[here["method"] == "lacova"]["coverage90"]
        rows.append([*row, percent(ours.mean()) if len(ours) else ""])
    head = [
        "data",
        "task",
        "missing",
        "RMSE",
        "less the best peer's",
        "CRPS",
        "less the best peer's",
        "coverage of 90%",
    ]
    return markdown(head, rows)


def sections(found: pd.DataFrame, methods: Sequence[str]) -> Iterable[str]:
    for (data, task), here in found.groupby(["dataset", "task"], sort=False):
        levels = sorted(here["missing"].unique())
        rows = []
        for method in methods:
            mine = here[here["method"] == method]
            cells = [mean(mine[mine["missing"] == level][score]) for level in levels for score in SCORES]
            if any(cells):
                rows.append([method, *cells])
        head = ["", *(f"{name}, {percent(level)}" for level in levels for name in SCORES.values())]
        yield f"\n### {NAMES[data]}: {task}\n\n" + markdown(head, rows)


def mean(values: pd.Series, plus: str = "") -> str:
    values = values.dropna()
    if not len(values):
        return ""
    error = f" ± {values.sem():.3f}" if len(values) > 1 else ""
    return f"{values.mean():{plus}.3f}{error}".replace("-", "−")


def signed(values: pd.Series) -> str:
    return mean(values, "+")
