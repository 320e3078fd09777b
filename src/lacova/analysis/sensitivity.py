"""Delta adjustment: shift imputed values by stated amounts, in case missing values differ from observed ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.data.columns import numbers
from lacova.data.errors import DataError, about, hint, listed
from lacova.data.io.dataframes import Frame, to_pandas

Shift = float | Mapping[str, Mapping[Any, float]]


def shift_imputed(completed: Frame, original: Any, shifts: Mapping[str, Shift]) -> Frame:
    """Add stated amounts to the imputed entries, and only those, of some columns: a delta adjustment.

    Args:
        completed: the result of `model.impute(original, draws=20)`, completed tables one below the other; or one table.
        original: the table with its gaps.
        shifts: the amount to add, by column, in its own units: `{"alt": 5.0}`; or by column and level of another one:
            `{"alt": {"arm": {"a": 0.0, "b": 5.0}}}`, which must name every level. Where the level
            itself was imputed, the imputed one counts. Bounds of the schema are ignored.

    Returns:
        a table of the same library as `completed`, observed entries as they were.

    Examples:
        >>> original = pd.DataFrame({"arm": ["a", "b", "b"], "alt": [30.0, None, 40.0]})
        >>> completed = original.fillna({"alt": 35.0})
        >>> shift_imputed(completed, original, {"alt": {"arm": {"a": 0.0, "b": 5.0}}})["alt"].tolist()
        [30.0, 40.0, 40.0]
    """
    if not isinstance(shifts, Mapping) or not shifts:
        raise DataError(f'say by how much to shift which columns, such as {{"alt": 5.0}}; got {shifts!r}.')
    frame, origin = to_pandas(completed)
    gaps, _ = to_pandas(original, shifts)
    times, rest = divmod(len(frame), max(len(gaps), 1))
    if rest or not times:
        raise DataError(
            f"the completed table has {len(frame)} rows and the original {len(gaps)}; expected a whole multiple: "
            "give what impute made of this very table."
        )
    shifted = {}
    for name, shift in shifts.items():
        _require(name, list(gaps.columns), "original table")
        _require(name, list(frame.columns), "completed table")
        values = numbers(frame, name)
        with about("the original table"):
            before = np.tile(numbers(gaps, name), times)
        imputed = np.isnan(before)
        same = np.isclose(values[~imputed], before[~imputed], rtol=1e-9, atol=0.0)  # files may round
        if np.isnan(values).any() or not same.all():
            raise DataError(
                f"column {name!r} of the completed table has gaps, or other values where the original is observed; "
                "give what impute made of this very table."
            )
        amounts = _amounts(frame, name, shift)
        shifted[name] = _like(frame[name], values + np.where(imputed, amounts, 0.0))
    return origin.replace(pd.DataFrame(shifted, index=frame.index))


def _amounts(frame: pd.DataFrame, name: str, shift: Shift) -> npt.NDArray[np.float64]:
    """Return the amount to add in each row, were the entry imputed."""
    if not isinstance(shift, Mapping):
        return np.full(len(frame), _number(shift, repr(name)))
    if len(shift) != 1 or not all(isinstance(levels, Mapping) for levels in shift.values()):
        raise DataError(
            f"column {name!r} is to be shifted by {dict(shift)!r}; expected a number, or numbers by the levels of one "
            'other column, such as {"arm": {"a": 0.0, "b": 5.0}}.'
        )
    ((by, levels),) = shift.items()
    _require(by, list(frame.columns), "completed table")
    present = list(dict.fromkeys(frame[by].dropna().tolist()))
    unknown, absent = [x for x in levels if x not in present], [x for x in present if x not in levels]
    if unknown or absent or frame[by].isna().any():
        raise DataError(
            f"the shifts of {name!r} are for {listed(list(levels))} of {by!r}, which holds {listed(present)}"
            f"{' and gaps' if frame[by].isna().any() else ''}; give each of its levels an amount, 0 for none."
        )
    stated = {level: _number(amount, f"{name!r} where {by!r} is {level!r}") for level, amount in levels.items()}
    return np.array([stated[level] for level in frame[by].tolist()], dtype=float)


def _number(amount: Any, what: str) -> float:
    if isinstance(amount, bool) or not isinstance(amount, int | float | np.number) or not math.isfinite(amount):
        raise DataError(f"the shift of {what} is {amount!r}; expected a finite number.")
    return float(amount)


def _require(name: str, present: list[str], table: str) -> None:
    if name not in present:
        raise DataError(
            f"there is no column {name!r} in the {table}, whose columns are {listed(present)}.{hint([name], present)}"
        )


def _like(column: pd.Series[Any], values: npt.NDArray[np.float64]) -> pd.Series[Any]:
    """Return the values in the type of the column, if it can hold them."""
    shifted = pd.Series(values, column.index)
    integers = column.dtype.kind in "iu" and bool((values == np.rint(values)).all())
    return shifted.astype(column.dtype) if integers or column.dtype.kind == "f" else shifted
