"""Calibration: whether intervals cover as many true values as they should."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from lacova.analysis.recovery import Recovery
from lacova.data.errors import DataError
from lacova.plot.style import BLUE, COLOURS, DASHES, MARKERS, known_column, new_axes, tidy

MAX_LINES = 6  # columns with a line each


def calibration(recovery: Recovery, columns: list[str] | None = None, *, ax: Axes | None = None) -> Axes:
    """Plot the coverage of central intervals against their nominal coverage, for all hidden numbers and by column.

    Below the diagonal, intervals are too narrow; above it, too wide. If the model is calibrated, 95% of the points of
    all numbers together lie in the grey band; a single column has fewer numbers and may lie further off.

    Args:
        recovery: the result of `lacova.analysis.recovery.recover`.
        columns: the columns to show besides all together; None for all columns if there are at most six.
        ax: the axes to draw on; None for a new figure.
    """
    names = _columns(recovery, columns)
    ax = new_axes(ax, (4.8, 4.4))
    overall = recovery.coverage()
    nominal = np.linspace(0, 1, 101)
    count = overall["n"].iloc[0]
    chance = 1.96 * np.sqrt(nominal * (1 - nominal) / count)
    ax.fill_between(nominal, nominal - chance, nominal + chance, color="#cccccc", linewidth=0,
                    label=f"by chance, of all {count}")  # fmt: skip
    ax.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    for k, name in enumerate(names):
        column = recovery.coverage(name)
        ax.plot(column["nominal"], column["coverage"], color=COLOURS[1 + k % 6], linestyle=DASHES[1 + k % 6],
                linewidth=1, marker=MARKERS[1 + k % 6], markersize=4,
                label=f"{name} ({column['n'].iloc[0]})")  # fmt: skip
    ax.plot(overall["nominal"], overall["coverage"], "o-", color=BLUE, linewidth=2, label=f"all ({count})")
    ax.set(xlabel="nominal coverage of the interval", ylabel="share of hidden values inside", xlim=(0, 1), ylim=(0, 1))
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    tidy(ax)
    return ax


def pit(recovery: Recovery, column: str | None = None, *, bins: int = 10, ax: Axes | None = None) -> Axes:
    """Plot a histogram of the rank of true values among their imputation draws; it is flat if the model is calibrated.

    A U shape means that intervals are too narrow, a hump that they are too wide, a slope that imputed values are too
    low or too high.

    Args:
        recovery: the result of `lacova.analysis.recovery.recover`.
        column: the column to show; None for all numbers together.
        bins: the number of bins.
        ax: the axes to draw on; None for a new figure.
    """
    if bins < 2:
        raise ValueError(f"bins is {bins}; expected a whole number of at least 2.")
    _columns(recovery, None if column is None else [column])
    numbers = recovery.numbers if column is None else recovery.numbers[recovery.numbers["column"] == column]
    ax = new_axes(ax, (4.8, 3.4))
    ax.hist(numbers["pit"], bins=np.linspace(0, 1, bins + 1).tolist(), color=BLUE, edgecolor="white", hatch="//")
    expected = len(numbers) / bins
    spread = 1.96 * np.sqrt(expected * (1 - 1 / bins))
    ax.axhspan(
        max(0.0, expected - spread), expected + spread, color="black", alpha=0.15, linewidth=0, label="by chance"
    )
    ax.axhline(expected, color="black", linestyle="--", linewidth=1, label="expected")
    what = "all hidden numbers" if column is None else f"hidden values of {column}"
    ax.set(xlabel="share of draws below the true value", ylabel=f"number of {what}", xlim=(0, 1))
    ax.legend(frameon=False, fontsize=8)
    tidy(ax)
    return ax


def _columns(recovery: Recovery, columns: list[str] | None) -> list[str]:
    """Check the columns, or choose them if None."""
    present = recovery.numbers["column"].unique().tolist()
    if not present:
        raise DataError("no number was hidden; calibration is that of numbers. Raise share, or give more rows.")
    if columns is None:
        return present if len(present) <= MAX_LINES else []
    for name in columns:
        known_column(name, present, "hidden column")
    return list(columns)
