"""Warnings for the reader of a report, in plain language."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lacova.analysis.recovery import COVERAGES, Recovery
from lacova.models.base import Model
from lacova.report.facts import Facts
from lacova.report.joint import pair_name
from lacova.report.tested import FLATTERING, GIVEN, OUT_OF_TRAINING

EMPTY, FEW_VALUES, FEW_UNITS = 0.9, 20, 30  # share missing, values of a column, patients or rows
TOLERANCE = 0.04  # of coverage, beyond what chance explains
RISE_THAT_MATTERS = 0.02  # nats per measurement, over the last fifth of a cycle
NINETY = COVERAGES.index(0.9)


def warnings(
    model: Model, frame: pd.DataFrame | None, columns: list[Facts], recovery: Recovery | None, min_patients: int = 1,
    tested: str = GIVEN,
) -> list[str]:  # fmt: skip
    """Return warnings in sentences; those on imputation concern columns hidden in at least `min_patients` patients.

    `tested` says where the rows come from that imputation was measured on.
    """
    sentences = not_converged(model) + list(model.findings.concerns.values())
    if frame is not None:
        count = frame[model.schema.instance].nunique() if model.schema.instance is not None else len(frame)
        what = "patients" if model.schema.instance is not None else "rows"
        if count < FEW_UNITS:
            sentences.append(f"There are only {count} {what}: all figures here are rough.")
        sentences += nearly_empty(columns)
    if recovery is not None:
        sentences += [] if tested in OUT_OF_TRAINING else [FLATTERING]
        sentences += poor_calibration(recovery, min_patients) + no_better_than_the_mean(recovery, min_patients)
        sentences += loses_correlations(recovery, min_patients)
    return sentences


def nearly_empty(columns: list[Facts]) -> list[str]:
    """Warn of columns with few values."""
    empty = [c for c in columns if c["missing"] >= EMPTY or c["n"] < FEW_VALUES]
    if not empty:
        return []
    shown = ", ".join(f"{c['name']} ({c['n']} values, {c['missing']:.0%} missing)" for c in empty[:6])
    more = f" and {len(empty) - 6} more" if len(empty) > 6 else ""
    return [f"Nearly empty: {shown}{more}. Imputed values there rest on few observed ones; do not rely on them."]


def not_converged(model: Model) -> list[str]:
    """Warn if the bound was still rising when training ended.

    With constant rates, that is judged by the best epoch or the trend. At the end of a cycle the bound always rises a
    little; a rise per measurement that would matter is too much.
    """
    record = model.training
    if record is None or len(record) < 5:
        return ["Training was very short, or there is no record of it: it is unknown whether it had converged."]
    sentences = []
    last = max(2, len(record) // 20)
    bounds = record["validation" if "validation" in record else "elbo"].dropna()
    if model.options.schedule == "cycle":
        before = bounds[bounds.index < len(record) * 4 // 5]
        rise = float(bounds.iloc[-1] - before.iloc[-1]) if len(before) else np.inf
        rising = rise > RISE_THAT_MATTERS * len(model.schema.measurements)
    elif "validation" in record:
        rising = int(bounds.to_numpy(float).argmax()) >= len(record) - last
    else:
        tail = record["elbo"].to_numpy(float)[-max(5, len(record) // 5) :]
        at = np.arange(len(tail), dtype=float)
        slope, start = np.polyfit(at, tail, 1)
        rising = slope * len(tail) > 2.0 * float((tail - start - slope * at).std())
    if rising:
        sentences.append(
            f"The bound was still rising when training ended after {len(record)} epochs: the model had not converged. "
            "Fit again with more epochs before you rely on the figures."
        )
    if model.interrupted:
        sentences.append("Training was interrupted.")
    return sentences


def poor_calibration(recovery: Recovery, min_patients: int = 1) -> list[str]:
    """Warn of columns whose 90% intervals cover clearly fewer or more of the hidden values."""
    narrow, wide = [], []
    overall: Facts = {
        "column": "all together",
        "n": len(recovery.numbers),
        "patients": recovery.patients(recovery.numbers),
        "coverage90": recovery.coverage()["coverage"][NINETY],
    }
    columns: list[Any] = recovery.summary().dropna(subset=["coverage90"]).to_dict("records")
    for line in [overall, *columns]:
        if line["n"] < FEW_VALUES or line["patients"] < min_patients:
            continue
        chance = 2.6 * np.sqrt(0.9 * 0.1 / line["n"])
        text = f"{line['column']} ({line['coverage90']:.0%} of {line['n']})"
        if line["coverage90"] < 0.9 - TOLERANCE - chance:
            narrow.append(text)
        elif line["coverage90"] > 0.9 + TOLERANCE + chance:
            wide.append(text)
    sentences = []
    for names, what in ((narrow, "too narrow: the model is more certain than it should be"), (wide, "too wide")):
        if names:
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            shown = ", ".join(names[:6])
            sentences.append(f"Intervals that should hold 90% of hidden values are {what}: {shown}{more}.")
    return sentences


def no_better_than_the_mean(recovery: Recovery, min_patients: int = 1) -> list[str]:
    """Warn of numbers that are imputed no better than by their mean."""
    summary = recovery.summary()
    summary = summary[summary["patients"] >= min_patients]
    numbers = summary[(summary["n"] >= FEW_VALUES) & (summary["sd"] > 0) & (summary["rmse"] > 0.98 * summary["sd"])]
    names = [str(name) for name in numbers["column"]]
    if not names:
        return []
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return [
        f"Imputing the mean would do as well for {', '.join(names[:6])}{more}: the other columns say little about them."
    ]


def loses_correlations(recovery: Recovery, min_patients: int = 1) -> list[str]:
    """Warn of pairs of columns, and of courses, whose correlation is weaker where a value is imputed."""
    table = recovery.correlations
    lost = table[table["lost"].astype(bool) & (table["units"] >= min_patients)]
    if lost.empty:
        return []
    lost = lost.assign(loss=(lost["observed"] - lost["completed"]).abs()).sort_values("loss", ascending=False)
    shown = ", ".join(
        f"{pair_name(line)} ({line['observed']:.2f} observed, {line['completed']:.2f} imputed)"
        for line in lost.head(6).to_dict("records")
    )
    more = f" and {len(lost) - 6} more" if len(lost) > 6 else ""
    return [
        f"Imputed values lose correlations that observed values have: {shown}{more}. Figures that join several values, "
        "such as changes, sums and regressions, can be wrong there, even where single values are imputed well."
    ]
