"""docs/reproduction.md: one screen of findings, with all figures from the results file."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from reproduction import config
from reproduction.appendix import SETS, means, prose
from reproduction.markdown import bullets, markdown, percent
from reproduction.summary import ORDER, RIVALS, ahead_of_all, better, checks, frame

PAGE = Path(__file__).parents[1] / "docs" / "reproduction.md"
HERE = "<!-- findings -->\n"
APPENDIX = "appendix/reproduction.md"  # as the prose links to it


def findings(lines: Iterable[dict[str, Any]], name: str = PAGE.name) -> str:
    """Return the page of findings, which links to the appendix of the same name."""
    results = frame(lines)
    text = "There are no results yet.\n" if results.empty else _in_short(results)
    return prose("findings").replace(HERE, text).replace(APPENDIX, f"appendix/{name}")


def _in_short(results: pd.DataFrame) -> str:
    cells, seeds = checks(results), results["seed"].nunique()
    has_limit = cells["joint closes"].map(lambda figure: figure.seeds > 0)
    items = [
        f"{len(results):,} runs in {_count(len(cells), 'cell')}, with {_count(seeds, 'seed')}.",
        _with_limit(cells[has_limit]), _order(cells), _without_limit(cells[~has_limit]), _rivals_ahead(cells),
    ]  # fmt: skip
    return bullets(items) + "\n" + _table(cells)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _with_limit(cells: pd.DataFrame) -> str:
    """Describe the data sets whose generator is known."""
    if cells.empty:
        return ""
    joint, paper = (means(cells[f"{method} closes"]) for method in ("joint", "paper"))
    text = "On the rotated digits and the simulated trial, "
    if wins := ahead_of_all(cells):
        text += (
            "`joint` beats mean imputation, KNN imputation and the paper's treatment, each by more than two standard "
            f"errors, in {sum(wins)} of {len(wins)} cells. It "
        )
    else:
        text += "`joint` "
    text += f"closes {joint.mean():.0%} of the gap between mean imputation and the limit on average"
    text += f" ({joint.min():.0%} in the worst cell)"
    return text + (f"; the paper's treatment closes {paper.mean():.0%}.".replace("-", "−") if len(paper) else ".")


def _without_limit(cells: pd.DataFrame) -> str:
    """Describe the data sets that have no limit."""
    wins = ahead_of_all(cells)
    if not wins:
        return ""
    return (
        f"On Health MNIST and the CDISC pilot, `joint` beats all three in {sum(wins) or 'none'} of {len(wins)} cells."
    )


def _order(cells: pd.DataFrame) -> str:
    """Describe how far the paper's order of methods holds."""
    steps = {best: cells[f"{worse} ≥ {best}"] for worse, best in pairwise(ORDER)}
    if any((verdicts == "").any() for verdicts in steps.values()):
        return ""
    yes, no = ({best: int((steps[best] == word).sum()) for best in steps} for word in ("yes", "no"))
    return (
        f"Checked against the published order: the oracle beats the paper's treatment in {yes['oracle']} of "
        f"{len(cells)} cells (the reverse holds in {no['oracle']}), and the paper's treatment beats KNN imputation in "
        f"{yes['paper']} (reverse: {no['paper']}). KNN beats mean imputation in {yes['knn']} (reverse: {no['knn']}), "
        f"and mean imputation beats zeros in {yes['mean']} (reverse: {no['mean']})."
    )


def _rivals_ahead(cells: pd.DataFrame) -> str:
    """List the cells in which a rival beats joint by more than two standard errors."""
    items = []
    for _, row in cells.iterrows():
        for rival in RIVALS:
            gain = row[f"joint − {rival}"]
            if better(-gain) == "yes":
                where = f"{SETS[row['dataset']]}, {row['networks']} networks, {percent(row['missing'])} missing"
                items.append(f"{where} (`{rival}`, by {gain.text(1)})")
    return f"A rival beats `joint` by more than two standard errors here: {'; '.join(items)}." if items else ""


def _table(cells: pd.DataFrame) -> str:
    """Return one line per table of the study."""
    rows = []
    for name in config.NAMES:
        group = cells[cells["table"] == name]
        if group.empty:
            continue
        wins, coverage = ahead_of_all(group), means(group["coverage of 90%"])
        joint, paper = (means(group[f"{method} closes"]) for method in ("joint", "paper"))
        rows.append([
            config.read(name)["title"], str(len(group)), f"{sum(wins)} of {len(wins)}" if wins else "",
            f"{joint.mean():.0%}" if len(joint) else "",
            f"{paper.mean():.0%}".replace("-", "−") if len(paper) else "",
            " to ".join(dict.fromkeys(map(percent, (coverage.min(), coverage.max())))) if len(coverage) else "",
        ])  # fmt: skip
    head = ["table", "cells", "`joint` ahead", "gap closed by `joint`", "by `paper`", "coverage of 90% intervals"]
    return markdown(head, rows)
