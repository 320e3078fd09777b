"""What the plots share: colours, markers and line styles that differ without colour too, axes, and checks."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lacova.data.errors import DataError, hint
from lacova.data.io.dataframes import to_pandas
from lacova.data.schema import Schema

# The palette of Okabe and Ito, with a dark red instead of its yellow, which is too light for lines; each colour has
# its own marker and dash.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 3)), (0, (6, 2, 2, 2)))
HATCHES = ("", "///", "...", "xx", "\\\\\\", "++", "oo")
BLUE, ORANGE, GREEN = COLOURS[:3]
GREY = "#767676"


def new_axes(ax: Axes | None, size: tuple[float, float] = (6.4, 4.0)) -> Axes:
    """Return the given axes, or those of a new pyplot figure."""
    if ax is None:
        import matplotlib.pyplot as plt

        return plt.subplots(figsize=size, layout="constrained")[1]
    if not isinstance(ax, Axes):
        raise TypeError(f"ax is a {type(ax).__name__}; expected matplotlib axes, such as those of plt.subplots().")
    return ax


def tidy(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)


def table(data: Any, schema: Schema) -> pd.DataFrame:
    """Return a table of any library as pandas, its rows numbered from 0."""
    frame, _ = to_pandas(data, schema.columns)
    return frame.reset_index(drop=True)


def known_column(name: object, choices: Any, what: str) -> None:
    """Refuse a name that is not among the choices."""
    choices = list(choices)
    if name not in choices:
        shown = ", ".join(map(repr, choices[:8])) + (", ..." if len(choices) > 8 else "")
        raise DataError(f"there is no {what} {name!r}; expected one of {shown}.{hint([name], choices)}")


def frequent(values: pd.Series[Any], most: int) -> list[Any]:
    """Return the most frequent levels of a column, sorted by name."""
    return sorted(values.dropna().value_counts().index[:most], key=str)


def without_gaps(truth: Any, frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Return the table with the true values; refuse it if its rows are not those of `frame`."""
    complete = table(truth, schema)
    if len(complete) != len(frame):
        raise DataError(f"truth has {len(complete)} row(s), data {len(frame)}; expected the same rows, without gaps.")
    labels = [rows[schema.instance].tolist() for rows in (complete, frame) if schema.instance in rows]
    if len(labels) == 2 and labels[0] != labels[1]:
        raise DataError(f"truth has other labels in {schema.instance!r} than data; expected the same rows in order.")
    return complete


def patient_rows(frame: pd.DataFrame, schema: Schema, patient: Any) -> pd.DataFrame:
    """Return the rows of one patient in the order of time, those with a missing time last."""
    if schema.instance is None:
        raise DataError(
            "this plot follows a patient, but the schema has no instance column: give Schema(instance=...)."
        )
    known_column(schema.instance, frame.columns, "column")
    rows = frame[frame[schema.instance] == patient]
    if rows.empty:
        labels = ", ".join(map(repr, frame[schema.instance].unique()[:4].tolist()))
        raise DataError(f"no row has {schema.instance!r} = {patient!r}; there are {labels}, ...")
    ordered: pd.DataFrame = rows if schema.time is None else rows.sort_values(schema.time, kind="stable")
    return ordered


def times(rows: pd.DataFrame, schema: Schema) -> tuple[Any, str]:
    """Return the positions of rows along the x axis, and its label: the time, or the number of the visit."""
    if schema.time is None:
        return range(1, len(rows) + 1), "visit"
    return rows[schema.time].to_numpy(float), schema.label(schema.time)
