"""What each component of a GP prior does to a measurement."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lacova.data.errors import DataError
from lacova.models.base import Model
from lacova.models.conditional import GPPriorVAE
from lacova.plot.style import BLUE, COLOURS, DASHES, MARKERS, frequent, known_column, new_axes, table, tidy

BINS, LEAST_ROWS, LINES = 20, 5, 6


def effects(
    model: Model, data: Any, component: str, measurement: str, *, by: str | None = None, draws: int = 100,
    interval: float = 0.9, seed: int = 0, found: Any = None, ax: Axes | None = None,
) -> Axes:  # fmt: skip
    """The effect of a component on a measurement, in its units, with a band: against a covariate, or by patient.

    A component of shared covariates is averaged over rows with like values of its first continuous covariate, with a
    line per level of a category in it, or of the six most frequent. A component that belongs to patients is drawn
    patient by patient, by size.

    Args:
        model: a fitted GPPriorVAE, or a model derived from it.
        data: rows with covariates and measurements.
        component: a term of `model.formula`, or "patient effect".
        measurement: which one, or `<measurement>_p_<level>` of a category.
        by: the covariate along the x axis; None for the component's own.
        draws: as in `GPPriorVAE.effects`.
        interval: of the band.
        seed: of the draws.
        found: what `model.effects(data, ...)` returned, so that it is not computed again.
        ax: where to draw; None for a new figure.
    """
    if not isinstance(model, GPPriorVAE):
        raise ValueError(f"effects are those of a GP prior, but this is a {type(model).__name__}.")
    schema = model.schema
    frame = table(data, schema)
    rows = (model.effects(frame, draws=draws, interval=interval, seed=seed) if found is None else found).rows
    known_column(component, rows["component"].unique(), "component")
    known_column(measurement, rows["measurement"].unique(), "measurement")
    own = rows[(rows["component"] == component) & (rows["measurement"] == measurement)]
    if len(own) != len(frame):
        raise DataError(
            f"found has {len(own)} rows of effects, data {len(frame)} rows; expected those of the same data."
        )
    ends = own[["mean", "lower", "upper"]].reset_index(drop=True)
    ax = new_axes(ax)
    title = None
    of_patients, axis, group = parts(model, component)
    if by is not None:
        known_column(by, schema.covariates, "covariate")
        of_patients, axis = False, by
    if of_patients:
        _by_patient(ax, ends, frame[schema.instance], str(schema.instance))
    elif axis is not None and schema.covariates[axis] == "continuous":
        _along(ax, ends, frame[axis], None if group is None else frame[group], group)
        if group is not None and (count := frame[group].nunique()) > LINES:
            title = f"{LINES} of {count} levels, the most frequent"
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


def parts(model: GPPriorVAE, component: str) -> tuple[bool, str | None, str | None]:
    """Whether a component belongs to patients, and its first continuous and first categorical covariate."""
    schema = model.schema
    one = next((each for each in model.components if each.formula(schema) == component), None)
    if one is None:
        return True, None, None  # the level of a patient
    names = [*one.continuous, *(name for factor in one.factors for name in factor.columns), *one.categorical]
    continuous = [name for name in names if schema.covariates.get(name) == "continuous"]
    categories = [name for name in names if schema.covariates.get(name) == "categorical"]
    return one.instance, next(iter(continuous), None), next(iter(categories), None)


def binned(
    ends: pd.DataFrame, along: Any, bins: int = BINS, least: int = LEAST_ROWS, owners: Any = None
) -> pd.DataFrame:
    """Means over rows with like values, equal ones together: at most so many groups, each of so many rows at least, or
    of so many owners where these are given."""
    order = np.argsort(along, kind="stable")
    owners = np.arange(len(order)) if owners is None else owners
    wanted = len(order) / bins
    groups: list[list[int]] = [[]]
    for before, row in zip([None, *order[:-1]], order, strict=True):
        full = len(groups[-1]) >= wanted and along[before] != along[row]
        if full and len(set(owners[groups[-1]])) >= least:
            groups.append([])
        groups[-1].append(int(row))
    if len(groups) > 1 and len(set(owners[groups[-1]])) < least:
        few = groups.pop()
        groups[-1] += few
    return pd.DataFrame(
        [{"at": float(along[part].mean()), **ends.iloc[part].mean().to_dict(), "n": len(part)} for part in groups]
    )


def _along(
    ax: Axes, ends: pd.DataFrame, along: pd.Series[Any], groups: pd.Series[Any] | None, name: str | None
) -> None:
    at = along.to_numpy(float)
    levels = [None] if groups is None else frequent(groups, LINES)
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
