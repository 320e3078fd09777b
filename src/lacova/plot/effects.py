"""The effect of a component of a GP prior on a measurement."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lacova.data.errors import DataError
from lacova.models.base import Model
from lacova.models.gp_prior_vae import GPPriorVAE
from lacova.plot.style import BLUE, COLOURS, DASHES, MARKERS, frequent, known_column, new_axes, table, tidy

BINS, MIN_ROWS, MAX_LINES = 20, 5, 6  # of a line along a covariate; of levels


def effects(
    model: Model, data: Any, component: str, measurement: str, *, by: str | None = None, draws: int = 100,
    interval: float = 0.9, seed: int = 0, computed: Any = None, ax: Axes | None = None,
) -> Axes:  # fmt: skip
    """Plot the effect of a component on a measurement, in its units, with a band: along a covariate, or by patient.

    A component of shared covariates is averaged over rows with similar values of its first continuous covariate, with
    one line for each level of its category, or for the six most frequent. A component of patients is drawn patient by
    patient, by size.

    Args:
        model: a fitted GPPriorVAE, or a model derived from it.
        data: rows with covariates and measurements.
        component: a term of `model.formula`, or "patient effect".
        measurement: the measurement, or `<measurement>_p_<level>` for a level of a category.
        by: the covariate along the x axis; None for the component's own.
        draws: as in `GPPriorVAE.effects`.
        interval: the central interval that the band shows.
        seed: the seed of the draws.
        computed: the result of `model.effects(data, ...)`, to save computing it again.
        ax: the axes to draw on; None for a new figure.
    """
    if not isinstance(model, GPPriorVAE):
        raise ValueError(f"effects are those of a GP prior, but this is a {type(model).__name__}.")
    schema = model.schema
    frame = table(data, schema)
    rows = (model.effects(frame, draws=draws, interval=interval, seed=seed) if computed is None else computed).rows
    known_column(component, rows["component"].unique(), "component")
    known_column(measurement, rows["measurement"].unique(), "measurement")
    effect = rows[(rows["component"] == component) & (rows["measurement"] == measurement)]
    if len(effect) != len(frame):
        raise DataError(
            f"computed has {len(effect)} rows of effects, data {len(frame)} rows; expected those of the same data."
        )
    ends = effect[["mean", "lower", "upper"]].reset_index(drop=True)
    ax = new_axes(ax)
    title = None
    of_patients, axis, group = covariates_of(model, component)
    if by is not None:
        known_column(by, schema.covariates, "covariate")
        of_patients, axis = False, by
    if of_patients:
        _by_patient(ax, ends, frame[schema.instance], str(schema.instance))
    elif axis is not None and schema.covariates[axis] == "continuous":
        _along(ax, ends, frame[axis], None if group is None else frame[group], group)
        if group is not None and (count := frame[group].nunique()) > MAX_LINES:
            title = f"{MAX_LINES} of {count} levels, the most frequent"
        ax.set_xlabel(schema.label(axis))
    else:
        _by_level(ax, ends, frame[axis or group])
        ax.set_xlabel(str(axis or group))
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set(ylabel=f"effect on {schema.label(measurement)}", title=component)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=8, title=title, title_fontsize=8)
    tidy(ax)
    return ax


def covariates_of(model: GPPriorVAE, component: str) -> tuple[bool, str | None, str | None]:
    """Return whether a component belongs to patients, and its first continuous and first categorical covariate."""
    schema = model.schema
    term = next((term for term in model.components if term.formula(schema) == component), None)
    if term is None:
        return True, None, None  # the patient effect
    names = [*term.continuous, *(name for factor in term.factors for name in factor.columns), *term.categorical]
    continuous = [name for name in names if schema.covariates.get(name) == "continuous"]
    categories = [name for name in names if schema.covariates.get(name) == "categorical"]
    return term.instance, next(iter(continuous), None), next(iter(categories), None)


def binned(
    ends: pd.DataFrame, along: Any, max_bins: int = BINS, min_size: int = MIN_ROWS, patients: Any = None
) -> pd.DataFrame:
    """Average over groups of rows with similar values; rows with equal values are never separated.

    Args:
        ends: the columns to average.
        along: the values to group by.
        max_bins: the maximum number of groups.
        min_size: the minimum number of rows in a group, or of patients.
        patients: the patient of each row; None to count rows.
    """
    order = np.argsort(along, kind="stable")
    patients = np.arange(len(order)) if patients is None else patients
    size = len(order) / max_bins
    groups: list[list[int]] = [[]]
    for before, row in zip([None, *order[:-1]], order, strict=True):
        full = len(groups[-1]) >= size and along[before] != along[row]
        if full and len(set(patients[groups[-1]])) >= min_size:
            groups.append([])
        groups[-1].append(int(row))
    if len(groups) > 1 and len(set(patients[groups[-1]])) < min_size:
        last = groups.pop()
        groups[-1] += last
    return pd.DataFrame(
        [{"at": float(along[rows].mean()), **ends.iloc[rows].mean().to_dict(), "n": len(rows)} for rows in groups]
    )


def _along(
    ax: Axes, ends: pd.DataFrame, along: pd.Series[Any], groups: pd.Series[Any] | None, name: str | None
) -> None:
    at = along.to_numpy(float)
    levels = [None] if groups is None else frequent(groups, MAX_LINES)
    for k, level in enumerate(levels):
        chosen = ~np.isnan(at) if groups is None else ~np.isnan(at) & (groups == level).to_numpy(bool, na_value=False)
        if not chosen.any():
            continue
        line = binned(ends[chosen], at[chosen])
        ax.fill_between(line["at"], line["lower"], line["upper"], color=COLOURS[k], alpha=0.15, linewidth=0)
        ax.plot(line["at"], line["mean"], color=COLOURS[k], linestyle=DASHES[k], marker=MARKERS[k], markersize=4,
                label=None if groups is None else f"{name} {level}")  # fmt: skip


def _by_level(ax: Axes, ends: pd.DataFrame, groups: pd.Series[Any]) -> None:
    levels = sorted(groups.dropna().unique(), key=str)
    means = pd.DataFrame([ends[(groups == level).to_numpy(bool, na_value=False)].mean() for level in levels])
    ax.errorbar(range(len(levels)), means["mean"], fmt="o", color=BLUE, capsize=4,
                yerr=np.stack([means["mean"] - means["lower"], means["upper"] - means["mean"]]))  # fmt: skip
    ax.set_xticks(range(len(levels)), [str(level) for level in levels])


def _by_patient(ax: Axes, ends: pd.DataFrame, patients: pd.Series[Any], name: str) -> None:
    means = ends.groupby(patients.to_numpy()).mean().sort_values("mean", kind="stable")
    at = np.arange(len(means))
    if len(means) <= 40:
        ax.errorbar(at, means["mean"], fmt="o", color=BLUE, capsize=2, markersize=4,
                    yerr=np.stack([means["mean"] - means["lower"], means["upper"] - means["mean"]]))  # fmt: skip
        ax.set_xticks(at, [str(label) for label in means.index], rotation=90 if len(means) > 8 else 0, fontsize=8)
        ax.set_xlabel(f"{name}, by size of the effect")
    else:
        ax.fill_between(at + 1, means["lower"], means["upper"], color=BLUE, alpha=0.25, linewidth=0)
        ax.plot(at + 1, means["mean"], color=BLUE)
        ax.set_xlabel(f"{len(means)} patients, by size of the effect")
