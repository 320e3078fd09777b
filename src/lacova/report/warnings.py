"""What a reader should know before trusting the figures, in plain language."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lacova.analysis.recovery import LEVELS, Recovery
from lacova.models.base import Model
from lacova.report.facts import Facts

EMPTY, FEW_VALUES, FEW_UNITS = 0.9, 20, 30
TOLERANCE = 0.04  # of coverage, beyond what chance explains
NINETY = LEVELS.index(0.9)


def warnings(
    model: Model, frame: pd.DataFrame | None, columns: list[Facts], recovery: Recovery | None, least: int = 1
) -> list[str]:
    """Sentences; none where nothing was found in columns hidden in so many patients at least."""
    found = not_converged(model)
    if frame is not None:
        unit = frame[model.schema.instance].nunique() if model.schema.instance is not None else len(frame)
        what = "patients" if model.schema.instance is not None else "rows"
        if unit < FEW_UNITS:
            found.append(f"There are only {unit} {what}: all figures here are rough.")
        found += nearly_empty(columns)
    if recovery is not None:
        found += poor_calibration(recovery, least) + no_better_than_the_mean(recovery, least)
    return found


def nearly_empty(columns: list[Facts]) -> list[str]:
    bad = [c for c in columns if c["missing"] >= EMPTY or c["n"] < FEW_VALUES]
    if not bad:
        return []
    shown = ", ".join(f"{c['name']} ({c['n']} values, {c['missing']:.0%} missing)" for c in bad[:6])
    more = f" and {len(bad) - 6} more" if len(bad) > 6 else ""
    return [f"Nearly empty: {shown}{more}. What is imputed there rests on few values; do not lean on it."]


def not_converged(model: Model) -> list[str]:
    """Whether the bound was still rising when training ended: by its best epoch, or by its trend."""
    record = model.training
    if record is None or len(record) < 5:
        return ["Training was very short, or there is no record of it: whether it had converged cannot be said."]
    found = []
    last = max(2, len(record) // 20)
    if "validation" in record:
        rising = int(record["validation"].to_numpy(float).argmax()) >= len(record) - last
    else:
        tail = record["elbo"].to_numpy(float)[-max(5, len(record) // 5) :]
        at = np.arange(len(tail), dtype=float)
        slope, start = np.polyfit(at, tail, 1)
        rising = slope * len(tail) > 2.0 * float((tail - start - slope * at).std())
    if rising:
        found.append(
            f"The bound was still rising when training ended after {len(record)} epochs: the model had not converged. "
            "Fit again with more epochs before you rely on the figures."
        )
    if model.interrupted:
        found.append("Training was interrupted.")
    return found


def poor_calibration(recovery: Recovery, least: int = 1) -> list[str]:
    """Columns whose 90% intervals hold clearly fewer or more of the hidden values."""
    narrow, wide = [], []
    whole: Facts = {
        "column": "all together",
        "n": len(recovery.numbers),
        "patients": recovery.patients(recovery.numbers),
        "coverage90": recovery.coverage()["found"][NINETY],
    }
    each: list[Any] = recovery.summary().dropna(subset=["coverage90"]).to_dict("records")
    for line in [whole, *each]:
        if line["n"] < FEW_VALUES or line["patients"] < least:
            continue
        chance = 2.6 * np.sqrt(0.9 * 0.1 / line["n"])
        text = f"{line['column']} ({line['coverage90']:.0%} of {line['n']})"
        if line["coverage90"] < 0.9 - TOLERANCE - chance:
            narrow.append(text)
        elif line["coverage90"] > 0.9 + TOLERANCE + chance:
            wide.append(text)
    found = []
    for names, what in ((narrow, "too narrow: the model is more certain than it should be"), (wide, "too wide")):
        if names:
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            found.append(f"Intervals that should hold 90% of hidden values are {what}: {', '.join(names[:6])}{more}.")
    return found


def no_better_than_the_mean(recovery: Recovery, least: int = 1) -> list[str]:
    summary = recovery.summary()
    summary = summary[summary["patients"] >= least]
    numbers = summary[(summary["n"] >= FEW_VALUES) & (summary["sd"] > 0) & (summary["rmse"] > 0.98 * summary["sd"])]
    names = [str(name) for name in numbers["column"]]
    if not names:
        return []
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return [
        f"Imputing the mean would do as well for {', '.join(names[:6])}{more}: the other columns say little of them."
    ]
