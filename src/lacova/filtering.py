"""A patient's record visit by visit: which visits come before which, and predictions beside what was observed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.columns import numbers
from lacova.longform import long_form
from lacova.schema import DataError, Schema


def visit_numbers(frame: pd.DataFrame, schema: Schema) -> npt.NDArray[np.int64]:
    """The number of each row's visit among those of its patient, from 0, by time, or by row if there is no time.

    Rows of a patient at the same time are one visit: none of them comes before the other.
    """
    if schema.instance is None:
        raise DataError(
            "filtering follows instances, but the schema has no instance column: give Schema(instance=...)."
        )
    groups = frame[schema.instance]
    if schema.time is None:
        return np.asarray(groups.groupby(groups.to_numpy(), sort=False).cumcount(), dtype=np.int64)
    time = pd.Series(numbers(frame, schema.time))
    gaps = int(time.isna().sum())
    if gaps:
        raise DataError(
            f"time column {schema.time!r} is missing in {gaps} row(s), so that it is unknown which visits came before; "
            "fill it in, or drop those rows."
        )
    return np.asarray(time.groupby(groups.to_numpy()).rank(method="dense").to_numpy() - 1, dtype=np.int64)


def followed(frame: pd.DataFrame, schema: Schema, predicted: pd.DataFrame) -> pd.DataFrame:
    """Predictions with `_lower` and `_upper`, row by row, in long form beside what was observed."""
    observed = np.stack([numbers(frame, name) for name in schema.measurements], axis=1)
    ends = {
        side: predicted[[f"{name}{end}" for name in schema.measurements]].to_numpy(float)
        for side, end in {"mean": "", "lower": "_lower", "upper": "_upper"}.items()
    }
    inside = (observed >= ends["lower"]) & (observed <= ends["upper"])
    values: dict[str, Any] = {"observed": observed, **ends}
    beside = () if schema.time is None else (schema.time,)
    found = long_form(frame, schema, {"measurement": schema.measurements}, values, beside)
    known = pd.array(inside.reshape(-1), dtype="boolean")
    known[np.isnan(observed).reshape(-1)] = pd.NA
    return found.assign(inside=known)
