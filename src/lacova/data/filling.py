"""Gaps of a column filled with values, in the type of the column."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd


def fill_column(column: pd.Series[Any], values: npt.NDArray[Any]) -> pd.Series[Any]:
    """Return the column with its gaps taken from `values`, in the type of the column."""
    gaps = column.isna().to_numpy()
    if not gaps.any():
        return column
    new, dtype = values[gaps], column.dtype
    filled = column.copy()
    if isinstance(dtype, pd.CategoricalDtype):
        known = set(dtype.categories)
        filled = filled.cat.add_categories([level for level in dict.fromkeys(new.tolist()) if level not in known])
    elif dtype.kind in "iu":  # pandas' nullable integers
        limits = np.iinfo(str(dtype).lower().removesuffix("[pyarrow]"))
        new = np.clip(np.rint(new), limits.min, limits.max) if new.dtype.kind == "f" else new
    elif isinstance(dtype, np.dtype) and dtype.kind == "f":
        new = new.astype(dtype)  # pandas refuses digits that a narrow float would lose
    elif dtype.kind == "b":
        new = new.astype(float) > 0.5
    elif pd.api.types.is_string_dtype(dtype) and not pd.api.types.is_object_dtype(dtype):
        new = np.asarray([str(value) for value in new.tolist()], dtype=object)
    if new.dtype == object:  # levels: as the type that the column holds
        items = new.tolist()
        types = set(map(type, items))
        new = np.asarray(items, dtype=object if str in types and len(types) > 1 else None)
    filled[gaps] = new
    return filled


def copy_within(column: pd.Series[Any], instance: pd.Series[Any]) -> pd.Series[Any]:
    """Fill gaps with the value of the same instance at another visit, unchanged."""
    known = column.notna()
    values = dict(zip(instance[known], column[known], strict=True))
    gaps = ~known & instance.isin(list(values))
    if not gaps.any():
        return column
    filled = column.copy()
    filled[gaps] = instance[gaps].map(values)
    return filled
