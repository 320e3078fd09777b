"""Facts about data, training and imputation for a report, as plain numbers and text that JSON can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lacova.analysis.recovery import COVERAGES, Recovery
from lacova.data.schema import Schema
from lacova.models.base import Model
from lacova.plot.fit import TERMS

MAX_MEASUREMENTS, FEWER_MEASUREMENTS = 40, 12  # that can be picked; with more than 40, the 12 that vary most
MIN_PATIENTS = 10  # behind a figure in a report without single patients; rows behind a point of a line
MAP_ROWS, MAP_COLUMNS = 120, 60  # maximum size of the map of gaps
Facts = dict[str, Any]


@dataclass(frozen=True)
class ReportOptions:
    """Draws behind every figure, their seed, whether to show single patients, and the central interval."""

    draws: int
    seed: int
    patients: bool
    interval: float = 0.9

    @property
    def min_patients(self) -> int:
        """The minimum number of patients behind every figure."""
        return 1 if self.patients else MIN_PATIENTS


def rounded(values: Any) -> list[float | None]:
    """Round to four significant digits; NaN, which JSON does not have, becomes None."""
    numbers = np.asarray(values, float).ravel()
    return [None if not np.isfinite(v) else float(f"{v:.4g}") for v in numbers]


def plain(value: float) -> str:
    """Format a number with four significant digits, without powers of ten as far as that is readable."""
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e9 else f"{value:.4g}"


def sample_units(frame: pd.DataFrame, schema: Schema, most: int, seed: int) -> pd.DataFrame:
    """Return the rows of at most so many random patients, or at most so many rows, in their order."""
    generator = np.random.default_rng(seed)
    if schema.instance is None:
        if len(frame) <= most:
            return frame
        return frame.iloc[np.sort(generator.choice(len(frame), most, replace=False))]
    labels = frame[schema.instance].drop_duplicates().to_numpy()
    if len(labels) <= most:
        return frame
    return frame[frame[schema.instance].isin(generator.choice(labels, most, replace=False))]


def shown_measurements(frame: pd.DataFrame, schema: Schema) -> list[str]:
    """Return the numeric measurements to show: all, or those that vary most if there are too many."""
    numbers = [name for name in schema.measurements if name not in schema.categories]
    if len(numbers) <= MAX_MEASUREMENTS:
        return numbers
    spread = frame[numbers].var().sort_values(ascending=False, kind="stable").index[:FEWER_MEASUREMENTS]
    return [name for name in numbers if name in set(spread)]


def columns(frame: pd.DataFrame, schema: Schema, options: ReportOptions) -> list[Facts]:
    """Return one entry per column: role, kind, unit, share missing, and a summary of the values."""
    entries = []
    labels = None if options.patients else unit_labels(frame, schema)
    for name in schema.columns:
        if name == schema.instance:
            continue
        values = frame[name].dropna()
        kind = schema.covariates.get(name) or schema.kinds.get(name, "gaussian")
        role = "time" if name == schema.time else "covariate" if name in schema.covariates else "measurement"
        entries.append({
            "name": name, "role": role, "kind": kind, "unit": schema.units.get(name, ""),
            "missing": float(frame[name].isna().mean()), "n": len(values),
            "summary": _summary(values, name in schema.categories, labels),
        })  # fmt: skip
    return entries


def unit_labels(frame: pd.DataFrame, schema: Schema) -> pd.Series[Any]:
    """Return the patient of each row, or the number of the row if there are no patients."""
    return pd.Series(np.arange(len(frame)), frame.index) if schema.instance is None else frame[schema.instance]


def _summary(values: pd.Series[Any], category: bool, labels: pd.Series[Any] | None) -> str:
    """Summarise values in words.

    With the labels of the patients, only figures that rest on several patients are given, and no extremes, which
    belong to one of them.
    """
    if len(values) == 0:
        return "no value"
    if category:
        counts = values.value_counts()
        patients: Any = None if labels is None else labels[values.index].groupby(values.astype(object)).nunique()
        named = [(level, n) for level, n in counts.items() if patients is None or patients[level] >= MIN_PATIENTS][:4]
        if not named:
            return "rare levels only"
        text = ", ".join(f"{level} {n / len(values):.0%}" for level, n in named)
        return text + (", ..." if len(counts) > len(named) else "")
    numbers = values.astype(float)
    text = f"mean {plain(numbers.mean())}, sd {plain(numbers.std())}"
    if labels is None:
        return f"{text}, from {plain(numbers.min())} to {plain(numbers.max())}"
    return text if labels[values.index].nunique() >= MIN_PATIENTS else "few values"


def gap_map(frame: pd.DataFrame, schema: Schema, options: ReportOptions) -> Facts | None:
    """Return shares missing by column and by group of neighbouring rows, or by visit number without single patients."""
    names = [*schema.measurements, *schema.covariates]
    order = [name for name in (schema.instance, schema.time) if name is not None]
    ordered = frame.sort_values(order, kind="stable") if order else frame
    missing = ordered[names].isna().to_numpy(float)
    groups: Any = np.arange(len(ordered))
    labels, axis = [], "rows"
    if options.patients:
        count = min(MAP_ROWS, len(ordered))
        groups = np.arange(len(ordered)) * count // len(ordered)
        first = [int(np.flatnonzero(groups == k)[0]) for k in range(count)]
        axis = "rows, by patient and visit" if schema.instance else "rows"
        labels = [f"row {k + 1}" if schema.instance is None else f"{schema.instance} {ordered[schema.instance].iloc[k]}"
                  for k in first]  # fmt: skip
    elif schema.instance is not None:
        groups = ordered.groupby(schema.instance, sort=False).cumcount().to_numpy()
        sizes = np.bincount(groups)
        enough = sizes >= MIN_PATIENTS
        missing, groups = missing[enough[groups]], groups[enough[groups]]
        labels, axis = [f"visit {k + 1} ({n} patients)" for k, n in enumerate(sizes[enough])], "number of the visit"
    else:
        return None
    if not labels:
        return None
    shares = np.stack([missing[groups == k].mean(0) for k in range(len(labels))])
    shares, names, roles = _fewer_columns(shares, names, len(schema.measurements))
    return {"rows": labels, "columns": names, "roles": roles, "axis": axis,
            "share": [[round(float(v), 2) for v in line] for line in shares]}  # fmt: skip


def _fewer_columns(shares: Any, names: list[str], cut: int) -> tuple[Any, list[str], list[str]]:
    """Average over neighbouring columns if there are too many to name."""
    roles = ["measurement"] * cut + ["covariate"] * (len(names) - cut)
    if len(names) <= MAP_COLUMNS:
        return shares, names, roles
    groups = [part for part in np.array_split(np.arange(cut), min(cut, MAP_COLUMNS - 10)) if len(part)]
    groups += [np.array([k]) for k in range(cut, len(names))][:10]
    named = [names[g[0]] if len(g) == 1 else f"{names[g[0]]} to {names[g[-1]]}" for g in groups]
    return np.stack([shares[:, g].mean(1) for g in groups], axis=1), named, [roles[g[0]] for g in groups]


def training(model: Model) -> Facts | None:
    """Return the record of training by term, thinned to 400 epochs."""
    record = model.training
    if record is None or len(record) == 0:
        return None
    thinned = record.iloc[np.unique(np.linspace(0, len(record) - 1, 400).astype(int))]
    terms = [
        {"name": name, "label": label, "values": rounded(thinned[name])}
        for name, label in TERMS.items()
        if name in thinned
    ]
    return {"epoch": rounded(thinned["epoch"]), "terms": terms, "epochs": len(record)}


def calibration(recovery: Recovery, shown: list[str], options: ReportOptions) -> Facts:
    """Return coverage, PIT counts, and true and imputed values, of all numbers and by column."""
    entries: list[Facts] = []
    numbers = recovery.numbers
    names = [name for name in numbers["column"].unique() if name in shown or name in recovery.schema.covariates]
    for name in [None, *names]:
        part = numbers if name is None else numbers[numbers["column"] == name]
        if recovery.patients(part) < options.min_patients:
            continue
        counts = np.histogram(part["pit"], bins=np.linspace(0, 1, 11))[0]
        entry: Facts = {
            "name": "all numbers" if name is None else name, "n": len(part),
            "label": "" if name is None else recovery.schema.label(name),
            "coverage": rounded(recovery.coverage(name)["coverage"]), "pit": counts.tolist(),
        }  # fmt: skip
        if name is not None and options.patients:
            thinned = part.iloc[np.unique(np.linspace(0, len(part) - 1, 300).astype(int))]
            entry["scatter"] = [rounded(thinned[key]) for key in ("truth", "mean", "lower", "upper")]
        entries.append(entry)
    return {"nominal": list(COVERAGES), "columns": entries}


def describe_size(frame: pd.DataFrame, schema: Schema) -> str:
    """Describe how many rows and patients there are."""
    if schema.instance is None:
        return f"{len(frame):,} rows"
    sizes = frame.groupby(schema.instance).size()
    return f"{len(frame):,} visits of {len(sizes):,} patients, a median of {sizes.median():g} each"
