"""Facts about single patients for a report: their trajectories and forecasts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lacova.models.base import Model
from lacova.plot.patients import later_visits
from lacova.report.facts import Facts, ReportOptions, rounded, sample_units

MAX_PATIENTS = 60  # that can be picked
MAX_NUMBERS = 350_000  # of all patients that can be picked, at about 8 bytes each
FORECAST_TIMES, FORECAST_DRAWS = 8, 200


def trajectories(model: Model, frame: pd.DataFrame, shown: list[str], options: ReportOptions) -> Facts | None:
    """Return some patients' values, imputed ones with their intervals, and a forecast after the last visit."""
    schema = model.schema
    if schema.instance is None or not options.patients or not shown:
        return None
    sample = sample_units(frame, schema, MAX_PATIENTS, options.seed)
    rows = _limit_size(sample, schema.instance, len(shown), options.seed)
    if rows.empty:
        return None
    if schema.time is not None:
        rows = rows.sort_values([schema.instance, schema.time], kind="stable")
    imputed = model.impute(rows, interval=options.interval, seed=options.seed)
    visit = rows.groupby(schema.instance, sort=False).cumcount().to_numpy() + 1.0
    at = visit if schema.time is None else imputed[schema.time].to_numpy(float)
    forecasts = _forecasts(model, rows, frame, shown, options)
    people = []
    for label in rows[schema.instance].drop_duplicates():
        own = np.flatnonzero((rows[schema.instance] == label).to_numpy())
        own = own[np.argsort(at[own], kind="stable")]  # imputed times may be out of order
        person: Facts = {"id": str(label), "at": rounded(at[own]), "values": [], "fan": forecasts.get(label)}
        for name in shown:
            lower, upper = (rounded(imputed[f"{name}_{side}"].to_numpy(float)[own]) for side in ("lower", "upper"))
            gap = rows[name].isna().to_numpy()[own]
            person["values"].append({
                "mean": rounded(imputed[name].to_numpy(float)[own]), "gap": np.flatnonzero(gap).tolist(),
                "lower": [lower[k] for k in np.flatnonzero(gap)], "upper": [upper[k] for k in np.flatnonzero(gap)],
            })  # fmt: skip
        people.append(person)
    return {
        "people": people, "of": int(frame[schema.instance].nunique()),
        "measurements": [schema.label(name) for name in shown],
        "axis": "visit" if schema.time is None else schema.label(schema.time), "instance": schema.instance,
    }  # fmt: skip


def _limit_size(rows: pd.DataFrame, instance: str, measurements: int, seed: int) -> pd.DataFrame:
    """Return the rows of as many patients as fit on a page: four numbers per visit and a forecast per measurement."""
    cost = measurements * (4 * rows.groupby(instance, sort=False).size() + 5 * FORECAST_TIMES)
    cost = cost[cost <= MAX_NUMBERS].sample(frac=1.0, random_state=seed)
    return rows[rows[instance].isin(cost[cost.cumsum() <= MAX_NUMBERS].index)]


def _forecasts(
    model: Model, rows: pd.DataFrame, frame: pd.DataFrame, shown: list[str], options: ReportOptions
) -> dict[Any, Facts]:
    """Return by patient the future times and, by measurement, the mean and the ends of 50% and 90% intervals."""
    schema = model.schema
    if schema.time is None or not frame[schema.time].notna().any():
        return {}
    span = float(frame[schema.time].max() - frame[schema.time].min())
    ahead = []
    for _, own in rows[rows[schema.time].notna()].groupby(schema.instance, sort=False):
        last = float(own[schema.time].max())
        ahead.append(later_visits(own, model, last + span * np.linspace(0.02, 0.25, FORECAST_TIMES)))
    if span <= 0.0 or not ahead:
        return {}
    future = pd.concat(ahead, ignore_index=True)
    draws = max(FORECAST_DRAWS, options.draws)
    table = model.sample(future, rows, draws=draws, seed=options.seed)[shown]
    drawn = table.to_numpy(float).reshape(draws, len(future), len(shown))
    ends = np.quantile(drawn, [0.05, 0.25, 0.75, 0.95], axis=0, method="weibull")
    forecasts = {}
    for k in range(0, len(future), FORECAST_TIMES):
        part = slice(k, k + FORECAST_TIMES)
        values = [{"mean": rounded(drawn[:, part, d].mean(0)), "ends": [rounded(end[part, d]) for end in ends]}
                  for d in range(len(shown))]  # fmt: skip
        forecasts[future[schema.instance].iloc[k]] = {"at": rounded(future[schema.time].iloc[part]), "values": values}
    return forecasts
