"""Which rows of a completed table belong together: the visits of a patient are no independent evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lacova.analysis.design import Design
from lacova.data.errors import DataError, hint, listed
from lacova.data.io.dataframes import INSTANCE

FEWEST_IDENTIFIERS = 10  # a column with fewer values is a category


def chosen_cluster(frame: pd.DataFrame, design: Design, cluster: str | None) -> str | None:
    """Return the column whose values cluster the rows, or None if rows are independent.

    Args:
        frame: completed tables, numbered in a column `draw`.
        design: of the regression.
        cluster: a column; None if the caller states independence; "auto" for the instance column if it is known, with
            an error where it is not but a column seems to be one.
    """
    if cluster is None:
        return None
    if cluster != "auto":
        return check_column(frame, cluster)
    rows = (frame["draw"] == frame["draw"].iloc[0]).to_numpy()
    first = frame[rows]
    instance = frame.attrs.get(INSTANCE)
    if instance in frame.columns:
        return str(instance) if first[instance].duplicated().any() else None
    likely = likely_instance(first.drop(columns=sorted(design.used)), design.x[rows])
    if likely is not None:
        raise DataError(
            f"several rows share a value of {likely!r} ({first[likely].nunique()} values in {len(first)} rows); visits "
            f"of a patient are no independent evidence. Name the cluster, cluster={likely!r} (--cluster {likely}), or "
            f"give random effects in the formula of a linear regression, (1 | {likely}), or state that rows are "
            "independent: cluster=None (--independent)."
        )
    return None


def check_column(frame: pd.DataFrame, name: str) -> str:
    """Return the name of a column of clusters; refuse one that is absent, or has gaps or a single value."""
    if name not in frame.columns:
        columns = list(map(str, frame.columns))
        raise DataError(
            f"there is no column {name!r} of clusters; the columns are {listed(columns)}.{hint([name], columns)}"
        )
    if frame[name].isna().any():
        raise DataError(f"column {name!r} of clusters has gaps; every row must belong to one.")
    if (frame.groupby("draw")[name].nunique() < 2).any():
        raise DataError(f"column {name!r} of clusters has one value in a table; expected several clusters.")
    return name


def likely_instance(table: pd.DataFrame, x: Any) -> str | None:
    """Return the column that seems to number patients with several rows each, or None.

    Such a column holds text or whole numbers, and most rows share their value with others. Either rows of the same
    value lie together, or a regressor never changes among them; neither happens by chance.

    Args:
        table: one completed table, without the columns of the regression.
        x: its design matrix.
    """
    likely: list[tuple[int, str]] = []
    for name in table.columns:
        column = table[name]
        if name == "draw" or column.isna().any() or not _identifies(column):
            continue
        codes, values = pd.factorize(column)
        shared = (np.bincount(codes) > 1)[codes]
        if len(values) < FEWEST_IDENTIFIERS or shared.mean() < 0.5:
            continue
        together = np.count_nonzero(np.diff(codes)) + 1 == len(values)
        if together or _constant_within(codes[shared], x[shared]):
            likely.append((len(values), str(name)))
    return max(likely)[1] if likely else None


def _identifies(column: pd.Series[Any]) -> bool:
    """Return whether a column can hold identifiers: text, categories, whole numbers."""
    if pd.api.types.is_float_dtype(column.dtype):
        return bool((column == np.rint(column)).all())
    return column.dtype.kind in "iuO" or isinstance(column.dtype, pd.StringDtype | pd.CategoricalDtype)


def _constant_within(codes: Any, x: Any) -> bool:
    """Return whether a column of x that varies is constant among the rows of each code."""
    varies = x.max(axis=0) > x.min(axis=0)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    same = np.maximum.reduceat(x[order], starts) == np.minimum.reduceat(x[order], starts)
    return bool((same.all(axis=0) & varies).any())
