"""The prior and the posterior distribution of a missing covariate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import gaussian_kde

from lacova.data.errors import DataError
from lacova.models.base import Model
from lacova.plot.style import BLUE, GREY, known_column, new_axes, table, tidy, without_gaps

PRIOR, POSTERIOR = "prior, given other covariates", "posterior, given measurements too"


def covariate(
    model: Model, data: Any, name: str, row: int | None = None, *, truth: Any = None, draws: int = 500, seed: int = 0,
    ax: Axes | None = None,
) -> Axes:  # fmt: skip
    """Plot the posterior q(x_u | y_o, x_o) of one missing covariate and its prior p(x_u | x_o).

    Args:
        model: a fitted model that integrates over gaps in covariates.
        data: rows with measurements and covariates.
        name: the covariate.
        row: the number of the row in `data`, from 0; None for the first in which the covariate is missing.
        truth: its true value, if known, or the same rows without gaps.
        draws: the number of draws from each distribution.
        seed: the seed of the draws.
        ax: the axes to draw on; None for a new figure.
    """
    schema = model.schema
    known_column(name, schema.covariates, "covariate")
    frame = table(data, schema)
    gaps = np.flatnonzero(frame[name].isna())
    if len(gaps) == 0:
        raise DataError(f"covariate {name!r} has no gap in this table; there is nothing to infer.")
    row = int(gaps[0]) if row is None else row
    if row not in gaps:
        raise DataError(f"covariate {name!r} is not missing in row {row}; it is in rows {_first(gaps)}.")
    if not pd.api.types.is_scalar(truth):
        truth = without_gaps(truth, frame, schema)[name].iloc[row]
    rows = frame.iloc[[row]]
    if schema.instance is not None:
        rows = frame[frame[schema.instance] == frame.loc[row, schema.instance]]
    place = int(np.flatnonzero(rows.index == row)[0])
    prior, posterior = (
        completed[name].to_numpy().reshape(draws, len(rows))[:, place]
        for completed in (
            model.prior_covariates(rows, draws=draws, seed=seed),
            model.impute(rows, draws=draws, seed=seed),
        )
    )
    ax = new_axes(ax, (5.6, 3.6))
    if schema.covariates[name] == "categorical":
        _bars(ax, prior, posterior, truth)
    else:
        _densities(ax, np.asarray(prior, float), np.asarray(posterior, float), truth)
    owner = f"row {row}"
    if schema.instance is not None:
        owner = f"{schema.instance} {frame[schema.instance].iloc[row]}, {owner}"
    ax.set(xlabel=schema.label(name), title=f"{name} of {owner}")
    ax.legend(frameon=False, fontsize=8)
    tidy(ax)
    return ax


def _densities(ax: Axes, prior: Any, posterior: Any, truth: Any) -> None:
    low, high = np.quantile(np.r_[prior, posterior], [0.002, 0.998])
    room = 0.1 * (high - low) or 1.0
    grid = np.linspace(low - room, high + room, 200)
    for drawn, colour, dash, label in ((prior, GREY, "--", PRIOR), (posterior, BLUE, "-", POSTERIOR)):
        if drawn.std() == 0.0:
            ax.axvline(drawn[0], color=colour, linestyle=dash, label=label)
            continue
        height = gaussian_kde(drawn)(grid)
        ax.plot(grid, height, color=colour, linestyle=dash, label=label)
        ax.fill_between(grid, height, color=colour, alpha=0.15, linewidth=0)
    if truth is not None and not pd.isna(truth):
        ax.axvline(float(truth), color="black", linestyle=":", label="truth")
    ax.set_ylim(0, 1.35 * ax.get_ylim()[1])  # room for the legend
    ax.set_ylabel("density")


def _bars(ax: Axes, prior: Any, posterior: Any, truth: Any) -> None:
    levels = sorted(
        {*prior.tolist(), *posterior.tolist(), *([] if truth is None or pd.isna(truth) else [truth])}, key=str
    )
    at = np.arange(len(levels))
    distributions = (prior, -0.2, "#c4c4c4", "///", PRIOR), (posterior, 0.2, BLUE, "", POSTERIOR)
    for drawn, shift, colour, hatch, label in distributions:
        shares = [float(np.mean([value == level for value in drawn])) for level in levels]
        ax.bar(at + shift, shares, 0.4, color=colour, hatch=hatch, edgecolor="black", linewidth=0.6, label=label)
    names = [f"{level}\n(truth)" if truth is not None and level == truth else str(level) for level in levels]
    ax.set_xticks(at, names)
    ax.set(ylim=(0, 1.3), yticks=[0, 0.25, 0.5, 0.75, 1], ylabel="probability")


def _first(rows: Any) -> str:
    return ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
