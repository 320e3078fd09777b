"""Whether imputed values go together: joint scores, and correlations beside those of observed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lacova.analysis.correlations import MIN_PAIRS, MIN_UNITS
from lacova.analysis.recovery import Recovery
from lacova.report.facts import Facts, ReportOptions, plain

MAX_LINES = 20  # correlations that are listed
SCORES = (
    "Scores of several hidden values at once: those of a row, and those of one measurement over the visits of a "
    "patient (course). They are in standard deviations; lower is better. Shuffled: the same draws, mixed so that each "
    "value keeps its distribution, but no longer depends on the others. If the values are correlated, right draws "
    "score lower than shuffled ones."
)
SCORE_HEAD = ["hidden together", "number", "energy score", "shuffled", "variogram score", "shuffled"]
CORRELATIONS = (
    "Correlations of observed values (of their normal scores), beside those of pairs in which a value was hidden and "
    f"imputed: for columns, and for neighbouring visits, with {MIN_PAIRS} pairs or more from {MIN_UNITS} patients, or "
    "rows, or more."
)
CORRELATION_HEAD = [
    "pair", "pairs observed, imputed", "observed", "imputed", "difference (Fisher's z)", "standard error", "lost",
]  # fmt: skip


def joint_facts(recovery: Recovery, options: ReportOptions) -> list[Facts]:
    """Return text and table on joint scores, then on correlations; each line rests on `min_patients` patients."""
    scores = recovery.joint_summary()
    scores = scores[scores["patients"] >= options.min_patients]
    pairs = recovery.correlations[recovery.correlations["units"] >= options.min_patients]
    strength = pairs.assign(strength=pairs["observed"].astype(float).abs())
    listed = strength.sort_values(["lost", "strength"], ascending=False, kind="stable").head(MAX_LINES)
    about = f"{CORRELATIONS} {len(pairs)} were compared. Lost, of 0.2 at least, weaker by 0.1 at least, and beyond "
    about += f"chance: {int(pairs['lost'].sum())}."
    if len(listed) < len(pairs):
        about += f" Listed are the {len(listed)} strongest, lost ones first."
    tables: list[Facts] = [
        {"about": SCORES, "head": SCORE_HEAD, "caption": "Joint scores of hidden values",
         "lines": [_score_line(line) for line in scores.to_dict("records")]},
        {"about": about, "head": CORRELATION_HEAD, "caption": "Correlations of observed and of imputed values",
         "lines": [_correlation_line(line) for line in listed.to_dict("records")]},
    ]  # fmt: skip
    return [table for table in tables if table["lines"]]


def _score_line(line: Mapping[Any, Any]) -> list[str]:
    name = "rows" if line["kind"] == "row" else f"courses of {line['column']}"
    figures = ("energy", "energy_shuffled", "variogram", "variogram_shuffled")
    return [name, str(line["n"]), *(plain(line[figure]) for figure in figures)]


def _correlation_line(line: Mapping[Any, Any]) -> list[str]:
    counts = f"{line['observed_pairs']}, {line['completed_pairs']}"
    values = (f"{line[name]:.2f}" for name in ("observed", "completed", "difference", "se"))
    return [pair_name(line), counts, *values, "yes" if line["lost"] else ""]


def pair_name(line: Mapping[Any, Any]) -> str:
    """Name a pair of columns, or the visits of one."""
    return (
        f"{line['first']} from visit to visit" if line["kind"] == "course" else f"{line['first']} and {line['second']}"
    )
