"""Which entries of a table are missing."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Patch

from lacova.data.errors import DataError, hint
from lacova.data.schema import Schema
from lacova.plot.style import new_axes, table

NAMED_COLUMNS, NAMED_PATIENTS, MAX_LINES = 60, 30, 400
LIGHT, DARK = "#dfe9f2", "#1f2933"


def gaps(data: Any, schema: Schema, *, ax: Axes | None = None) -> Axes:
    """Plot the pattern of gaps: one line per row, by patient and visit, and one column per column; gaps are dark.

    With more than 400 rows, neighbouring rows share a line, and its shade is the share that is missing.

    Args:
        data: a table of any library.
        schema: the roles of its columns.
        ax: the axes to draw on; None for a new figure.
    """
    frame = table(data, schema)
    absent = [name for name in schema.columns if name not in frame]
    if absent:
        raise DataError(f"the table has no column {absent[0]!r}.{hint(absent[:1], frame.columns)}")
    if frame.empty:
        raise DataError("the table has no rows; there is nothing to show.")
    order = [name for name in (schema.instance, schema.time) if name is not None]
    if order:
        frame = frame.sort_values(order, kind="stable", na_position="last")
    names = [*schema.measurements, *schema.covariates]
    missing = frame[names].isna().to_numpy()
    height = min(8.0, max(2.6, 1.6 + 0.12 * len(frame)))
    ax = new_axes(ax, (min(12.0, max(4.0, 1.8 + 0.42 * min(len(names), NAMED_COLUMNS))), height))
    colours = LinearSegmentedColormap.from_list("gaps", [LIGHT, DARK])
    lines = np.array_split(missing.astype(float), min(len(frame), MAX_LINES))
    ax.imshow(np.stack([part.mean(0) for part in lines]), aspect="auto", cmap=colours, vmin=0, vmax=1,
              interpolation="nearest",
              extent=(0, len(names), len(frame), 0))  # fmt: skip
    cut = len(schema.measurements)
    if len(names) <= NAMED_COLUMNS:
        ax.vlines(np.arange(1, len(names)), 0, len(frame), color="white", linewidth=1)
    if schema.covariates:
        ax.axvline(cut, color="white", linewidth=4)
        ax.axvline(cut, color="black", linewidth=1)
    _label_columns(ax, names, missing.mean(0), cut)
    _label_rows(ax, frame, schema)
    for start, end, word in ((0, cut, "measurements"), (cut, len(names), "covariates")):
        if end > start:
            ax.text((start + end) / 2, -0.01 * len(frame), word, ha="center", va="bottom", fontsize=9)
    legend = [Patch(facecolor=DARK, label="missing"), Patch(facecolor=LIGHT, edgecolor=DARK, label="observed")]
    ax.figure.legend(handles=legend, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    return ax


def _label_columns(ax: Axes, names: list[str], share: Any, cut: int) -> None:
    if len(names) > NAMED_COLUMNS:
        ax.set_xticks([])
        parts = [f"{cut} measurements, {share[:cut].mean():.0%} missing"]
        parts += [f"{len(names) - cut} covariates, {share[cut:].mean():.0%} missing"] if cut < len(names) else []
        ax.set_xlabel("; ".join(parts))
        return
    ax.set_xticks(np.arange(len(names)) + 0.5, [f"{n} {s:.0%}" for n, s in zip(names, share, strict=True)])
    ax.tick_params(axis="x", rotation=90, length=0)
    ax.set_xlabel("column, and share of it that is missing")


def _label_rows(ax: Axes, frame: Any, schema: Schema) -> None:
    if schema.instance is None:
        ax.set_ylabel("row")
        return
    patient = frame[schema.instance].to_numpy()
    starts = np.flatnonzero(np.r_[True, patient[1:] != patient[:-1]])
    if len(starts) <= NAMED_PATIENTS:
        ends = np.r_[starts[1:], len(frame)]
        ax.set_yticks((starts + ends) / 2, [str(patient[k]) for k in starts])
        for k in starts[1:]:
            ax.axhline(k, color="white", linewidth=1.5)
        ax.set_ylabel(f"{schema.instance}, visits from top to bottom")
    else:
        ticks = np.linspace(0, len(starts) - 1, 6).astype(int)
        ax.set_yticks(starts[ticks], [str(k + 1) for k in ticks])
        ax.set_ylabel(f"number of the patient, of {len(starts)} by {schema.instance}")
