"""One patient's measurements over time: observed, imputed and forecast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lacova.data.errors import DataError
from lacova.models.base import Model
from lacova.plot.style import BLUE, ORANGE, known_column, new_axes, patient_rows, table, tidy, times, without_gaps


def trajectory(
    model: Model, data: Any, patient: Any, measurement: str, *, interval: float = 0.9, truth: Any = None, seed: int = 0,
    ax: Axes | None = None,
) -> Axes:  # fmt: skip
    """Plot one patient's values of a measurement: observed as dots, imputed as squares with their interval.

    Args:
        model: a fitted model with an instance column.
        data: rows with measurements and covariates; those of other patients are ignored.
        patient: the label of the patient.
        measurement: the measurement, a number.
        interval: the central interval of imputed values.
        truth: the same rows without gaps, if known, to show the true values as crosses.
        seed: the seed of the draws.
        ax: the axes to draw on; None for a new figure.
    """
    schema = model.schema
    _require_number(model, measurement)
    frame = table(data, schema)
    rows = patient_rows(frame, schema, patient)
    known = None if truth is None else without_gaps(truth, frame, schema)
    imputed = model.impute(rows, interval=interval, seed=seed)
    at, label = times(imputed, schema)
    order = np.argsort(at, kind="stable")  # imputed times may be out of order
    at, rows, imputed = np.asarray(at, float)[order], rows.iloc[order], imputed.iloc[order]
    gap = rows[measurement].isna().to_numpy()
    mean, low, high = (imputed[f"{measurement}{end}"].to_numpy(float) for end in ("", "_lower", "_upper"))
    ax = new_axes(ax)
    ax.plot(at, mean, color="#999999", linewidth=1, zorder=1)
    ax.plot(at[~gap], mean[~gap], "o", color=BLUE, markersize=6, label="observed")
    if gap.any():
        ends = np.abs(np.stack([mean - low, high - mean])[:, gap])
        ax.errorbar(at[gap], mean[gap], yerr=ends, fmt="s", color=ORANGE, markerfacecolor="white", markersize=6,
                    capsize=4, label=f"imputed, {interval:.0%} interval")  # fmt: skip
    if known is not None:
        true = known.loc[rows.index[gap], measurement].to_numpy(float)
        ax.plot(at[gap], true, "kx", markersize=7, label="true value of a gap")
    if schema.time is not None and rows[schema.time].isna().any():
        unknown = rows[schema.time].isna().to_numpy()
        ax.plot(at[unknown], mean[unknown], "o", markersize=13, markerfacecolor="none", markeredgecolor="black",
                linestyle="none", label=f"{schema.time} itself is imputed")  # fmt: skip
    ax.set(xlabel=label, ylabel=schema.label(measurement), title=f"{schema.instance} {patient}")
    ax.legend(frameon=False, fontsize=8)
    tidy(ax)
    return ax


def forecast(
    model: Model, history: Any, patient: Any, measurement: str, future: Any, *,
    intervals: Sequence[float] = (0.5, 0.8, 0.95), draws: int = 400, seed: int = 0, ax: Axes | None = None,
) -> Axes:  # fmt: skip
    """Plot a patient's history of a measurement and a fan of central intervals for future visits.

    Args:
        model: a fitted model with an instance and a time column.
        history: visits with measurements; those of other patients are ignored.
        patient: the label of the patient.
        measurement: the measurement, a number.
        future: rows of covariates to predict, with the patient's label; or times, at which all other covariates keep
            their values at the last visit.
        intervals: the central intervals to show.
        draws: the number of draws of each future row.
        seed: the seed of the draws.
        ax: the axes to draw on; None for a new figure.
    """
    schema = model.schema
    _require_number(model, measurement)
    if schema.time is None:
        raise DataError("a forecast needs a time column: give Schema(time=...).")
    if not intervals or not all(0.0 < interval < 1.0 for interval in intervals):
        raise ValueError(f"intervals is {intervals!r}; expected numbers between 0 and 1, such as (0.5, 0.9).")
    past = patient_rows(table(history, schema), schema, patient)
    ahead = (
        later_visits(past, model, future)
        if _are_times(future)
        else patient_rows(table(future, schema), schema, patient)
    )
    at = ahead[schema.time].to_numpy(float)
    if np.isnan(at).any():
        raise DataError(f"the time {schema.time!r} of the rows to predict has gaps; fill it in to draw them.")
    drawn = model.sample(ahead, past, draws=draws, seed=seed)[measurement].to_numpy(float).reshape(draws, len(ahead))
    ax = new_axes(ax)
    for k, interval in enumerate(sorted(intervals, reverse=True)):
        low, high = np.quantile(drawn, [(1 - interval) / 2, (1 + interval) / 2], axis=0, method="weibull")
        label = f"{interval:.0%} interval"
        ax.fill_between(at, low, high, color=ORANGE, alpha=0.18 + 0.14 * k, linewidth=0, label=label)
        ax.plot(at, np.stack([low, high], 1), color=ORANGE, linewidth=0.8, linestyle=("-", "--", ":")[k % 3])
    ax.plot(at, drawn.mean(0), color="black", linestyle="--", marker="s", markersize=4, markerfacecolor="white",
            label="mean of the forecast")  # fmt: skip
    observed = past[past[measurement].notna() & past[schema.time].notna()]
    ax.plot(observed[schema.time], observed[measurement], "o-", color=BLUE, linewidth=1, label="history")
    ax.set(xlabel=schema.label(schema.time), ylabel=schema.label(measurement), title=f"{schema.instance} {patient}")
    ax.legend(frameon=False, fontsize=8)
    tidy(ax)
    return ax


def later_visits(past: pd.DataFrame, model: Model, times: Any) -> pd.DataFrame:
    """Return rows at later times with the covariates of the last visit whose time is known."""
    time = str(model.schema.time)
    last = past.sort_values(time, kind="stable", na_position="first").tail(1)[list(model.schema.columns)]
    ahead = last.loc[last.index.repeat(len(times))].reset_index(drop=True)
    return ahead.assign(**{time: np.asarray(times, float)})


def _are_times(future: Any) -> bool:
    return isinstance(future, Sequence | np.ndarray | range) and not isinstance(future, str)


def _require_number(model: Model, name: str) -> None:
    known_column(name, model.schema.measurements, "measurement")
    if name in model.schema.categories:
        raise DataError(f"measurement {name!r} is a category; this plot is of numbers. Use impute(probabilities=True).")
