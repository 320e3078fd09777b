"""Columns of a DataFrame as numbers, levels and patients, with errors that say what is wrong and how to mend it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.data.errors import DataError, hint, listed
from lacova.data.kinds import values_of
from lacova.data.scaling import Floats
from lacova.data.schema import Schema


def require_names(present: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse a table that lacks one of the columns, or has it twice."""
    absent = [c for c in columns if c not in present]
    if absent:
        raise DataError(
            f"column(s) {listed(absent)} are in the schema but not in the table, whose columns are {listed(present)}."
            f"{hint(absent, [c for c in present if c not in columns])} "
            "Add them (empty where unknown), or take them out of the schema."
        )
    twice = [c for c in columns if present.count(c) > 1]
    if twice:
        raise DataError(
            f"column name(s) {listed(twice)} appear more than once in the table; rename or drop one of each."
        )


def require_columns(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Refuse anything but a DataFrame with rows that has each of the columns once."""
    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"expected a pandas DataFrame, got {type(frame).__name__}.")
    require_names(list(frame.columns), columns)
    if len(frame) == 0:
        raise DataError("the table has no rows.")
    for name in columns:
        values = frame[name]
        if values.dtype == object and not all(isinstance(value, Hashable) for value in values):
            raise DataError(f"column {name!r} holds nested values; expected numbers, text or categories.")


def numbers(frame: pd.DataFrame, name: str) -> Floats:
    """Return a column as floats, NaN at gaps; refuse dates, text and infinite values."""
    column = frame[name]
    if column.dtype.kind in "Mmc":
        raise DataError(
            f"column {name!r} must be numeric, but holds {column.dtype} values. "
            "Turn dates into numbers first, such as days since the start of the study."
        )
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "f":  # the common case, without the parser
        values = column.to_numpy(dtype=float, copy=True)
    else:
        numeric = pd.to_numeric(column, errors="coerce")
        bad = numeric.isna() & column.notna()
        if bad.any():
            raise DataError(
                f"column {name!r} must be numeric, but holds {listed(list(dict.fromkeys(column[bad].tolist())))}. "
                "Turn text into numbers or gaps first, or declare the column categorical."
            )
        values = numeric.to_numpy(dtype=float, na_value=np.nan)
    if np.isinf(values).any():
        raise DataError(
            f"column {name!r} holds {int(np.isinf(values).sum())} infinite value(s); "
            "replace them by gaps (NaN) or finite values."
        )
    return np.asarray(values)


def measurement_values(frame: pd.DataFrame, name: str, schema: Schema) -> Floats:
    """Return a measurement as floats that its kind allows; values beyond a limit of detection become the limit."""
    values, kind = numbers(frame, name), schema.kinds.get(name, "gaussian")
    if kind == "lognormal" or values_of(kind) == "positive":
        invalid, expected = values <= 0.0, "positive numbers"
    elif values_of(kind) == "count":
        invalid, expected = (values < 0.0) | (values % 1.0 > 0.0), "whole numbers from 0 on"
    else:
        lower, upper = schema.limits.get(name, (None, None))
        return values if lower is upper is None else np.clip(values, lower, upper)
    if invalid.any():
        raise DataError(
            f"column {name!r} holds {listed(list(dict.fromkeys(values[invalid].tolist())))}, but its kind is {kind}, "
            f"for {expected}; correct the values, mark them as missing, or give the column another kind."
        )
    return values


def checked_numbers(frame: pd.DataFrame, name: str, schema: Schema) -> Floats:
    """Return a column of training rows as floats; refuse values that contradict the schema."""
    values = measurement_values(frame, name, schema)
    invalid = values[~np.isnan(values) & (values != within_bounds(values, name, schema))]
    if len(invalid):
        lower, upper = schema.bounds.get(name, (None, None))
        whole = " and whole numbers" if name in schema.integers else ""
        raise DataError(
            f"column {name!r} holds {listed(list(dict.fromkeys(invalid.tolist())))}, but the schema says bounds "
            f"({lower}, {upper}){whole}; correct the values, or the schema."
        )
    return values


def patient_codes(frame: pd.DataFrame, instance: str | None) -> tuple[npt.NDArray[np.int64] | None, tuple[Any, ...]]:
    """Return the code of each row's instance, numbered by first appearance, and the labels of the codes."""
    if instance is None:
        return None, ()
    require_labels(frame[instance])
    codes, labels = pd.factorize(frame[instance], sort=False)
    return codes.astype(np.int64), tuple(labels.tolist())


def require_labels(instance: pd.Series[Any]) -> None:
    """Refuse rows without an instance."""
    gaps = int(instance.isna().sum())
    if gaps:
        raise DataError(
            f"instance column {instance.name!r} is missing in {gaps} row(s); every row must name its instance. "
            "Drop those rows, or give each a new label."
        )


def spread_static(column: Floats, patient: npt.NDArray[np.int64], labels: tuple[Any, ...], name: str) -> Floats:
    """Return the column with the value that an instance shows at one visit at all of its visits; refuse two values."""
    groups = pd.Series(column).groupby(patient)
    conflict = np.flatnonzero(groups.nunique().to_numpy() > 1)
    if len(conflict):
        raise DataError(
            f"static column {name!r} takes more than one value within instance(s) "
            f"{listed([labels[i] for i in conflict])}; "
            "correct the values, or take the column out of `static`."
        )
    return np.asarray(groups.transform("first").to_numpy(dtype=float))


def within_bounds(values: Floats, name: str, schema: Schema) -> Floats:
    """Return the values, rounded if the column holds whole numbers, and clipped to its bounds."""
    lower, upper = schema.bounds.get(name, (None, None))
    if name in schema.integers:
        values = np.rint(values)
        lower, upper = None if lower is None else math.ceil(lower), None if upper is None else math.floor(upper)
    if lower is not None:
        values = np.maximum(values, lower)
    return values if upper is None else np.minimum(values, upper)


def level_from_text(levels: Iterable[Any], text: str) -> Any:
    """Return the level that is written as `text` or equals it as a number; the text itself if there is none."""
    try:
        number: Any = float(text)
    except ValueError:
        number = text
    return next((level for level in levels if str(level) == text or level == number), text)
