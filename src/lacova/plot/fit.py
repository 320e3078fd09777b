"""Training curves and the latent space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lacova.data.errors import DataError
from lacova.models.base import Model
from lacova.plot.style import COLOURS, DASHES, GREY, MARKERS, frequent, known_column, new_axes, table, tidy

TERMS = {
    "elbo": "bound, training rows",
    "validation": "bound, validation rows",
    "reconstruction": "reconstruction",
    "kl_latent": "KL of z",
    "kl_inducing": "KL of inducing values and coefficients",
    "kl_covariates": "KL of missing covariates",
    "masked_log_prob": "log probability of masked covariates",
    "validation_masked_log_prob": "log probability of masked covariates, validation rows",
}
STYLES = 8  # combinations of colour, marker and dash that can be told apart


def training(model: Model | pd.DataFrame, *, terms: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Plot each term of the bound against the epoch, per row.

    The y axis fits the later epochs; curves may leave the picture in the first ones.

    Args:
        model: a fitted model, or its `training` table.
        terms: columns of that table; None for all.
        ax: the axes to draw on; None for a new figure.
    """
    record = model if isinstance(model, pd.DataFrame) else model.training
    if record is None or len(record) == 0:
        raise ValueError("there is no record of training: call fit(train) first, for an epoch at least.")
    names = [name for name in TERMS if name in record] if terms is None else list(terms)
    for name in names:
        known_column(name, [c for c in record if c != "epoch"], "term")
    ax = new_axes(ax)
    epoch = record["epoch"].to_numpy(float)
    every = max(1, len(epoch) // 8)
    for k, name in enumerate(names):
        style: dict[str, Any] = {"color": COLOURS[k % STYLES], "linestyle": DASHES[k % STYLES], "markersize": 4}
        style |= {"marker": MARKERS[k % STYLES], "markevery": (k * every // len(names), every)}
        there = record[name].notna().to_numpy()  # validation rows are not looked at in every epoch
        style["markevery"] = None if not there.all() else style["markevery"]
        ax.plot(epoch[there], record[name][there], label=TERMS.get(name, name), **style)
    settled = record[names].to_numpy(float)[len(epoch) // 10 :]
    low, high = np.nanmin(settled), np.nanmax(settled)
    room = 0.05 * (high - low) or 1.0
    ax.set_ylim(low - room, high + room)
    ax.set(xlabel="epoch", ylabel="nats per row")
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    tidy(ax)
    return ax


def latent(
    model: Model, data: Any, colour: str | None = None, *, dims: tuple[int, int] | None = None, ax: Axes | None = None
) -> Axes:
    """Plot the mean of q(z | y_o, x_o) of each row in two dimensions, coloured by a column.

    Args:
        model: a fitted model.
        data: rows with measurements and covariates.
        colour: a column of `data`; rows in which it is missing are crosses. None for one colour.
        dims: two dimensions of z, counted from 1; None for the two principal directions, or for z itself if it has at
            most two dimensions.
        ax: the axes to draw on; None for a new figure.
    """
    frame = table(data, model.schema)
    if colour is not None:
        known_column(colour, frame.columns, "column")
    points, labels = project(model, frame, dims)
    ax = new_axes(ax, (5.6, 4.4))
    size = float(np.clip(6000 / len(points), 14, 36))  # smaller marks could not be told apart
    if colour is None:
        ax.scatter(points[:, 0], points[:, 1], s=size, c=COLOURS[0], alpha=0.7, linewidths=0)
    else:
        _coloured(ax, points, frame[colour], model, colour, size)
    ax.set(xlabel=labels[0], ylabel=labels[1])
    tidy(ax)
    return ax


def project(model: Model, frame: pd.DataFrame, dims: tuple[int, int] | None = None) -> tuple[Any, tuple[str, str]]:
    """Return the latent means of the rows in two dimensions (N×2), and the names of these."""
    count = model.latent_dim
    z = model.embed(frame)[[f"z{k + 1}" for k in range(count)]].to_numpy(float)
    if dims is not None:
        if len(dims) != 2 or not all(isinstance(d, int) and 1 <= d <= count for d in dims):
            raise ValueError(f"dims is {dims!r}; expected two whole numbers from 1 to {count}.")
        return z[:, [d - 1 for d in dims]], (f"z{dims[0]}", f"z{dims[1]}")
    if count == 1:
        return np.column_stack([z[:, 0], np.zeros(len(z))]), ("z1", "")
    if count == 2:
        return z, ("z1", "z2")
    centred = z - z.mean(0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    directions *= np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(1)])[:, None]
    share = values**2 / max(float((values**2).sum()), 1e-300)
    first, second = (
        f"{word} principal direction of z ({s:.0%})" for word, s in zip(("1st", "2nd"), share, strict=False)
    )
    return centred @ directions[:2].T, (first, second)


def _coloured(ax: Axes, points: Any, values: pd.Series[Any], model: Model, name: str, size: float) -> None:
    known = values.notna().to_numpy()
    schema, (x, y) = model.schema, points.T
    if name in schema.categories or not pd.api.types.is_numeric_dtype(values):
        levels = frequent(values, STYLES)
        if not levels:
            raise DataError(f"column {name!r} has no value to colour by.")
        for k, level in enumerate(levels):
            at = known & (values == level).to_numpy(dtype=bool, na_value=False)
            hollow = k % 2 == 1  # every second level, to differ without colour
            ax.scatter(x[at], y[at], s=size, marker=MARKERS[k], label=str(level), edgecolors=COLOURS[k],
                       facecolors="none" if hollow else COLOURS[k], linewidths=0.7 if hollow else 0.0,
                       alpha=None if hollow else 0.7)  # fmt: skip
        rest = known & ~values.isin(levels).to_numpy()
        if rest.any():
            ax.scatter(x[rest], y[rest], s=1.5 * size, c=GREY, marker="*", linewidths=0, label="others")
    else:
        numbers = values[known].astype(float)
        low, high = numbers.quantile([0.02, 0.98]) if len(numbers) else (0.0, 1.0)
        cloud = ax.scatter(x[known], y[known], s=size, c=numbers, cmap="cividis", alpha=0.85, linewidths=0, vmin=low,
                           vmax=high)  # fmt: skip
        beyond = "both" if len(numbers) and (numbers.min() < low or numbers.max() > high) else "neither"
        ax.figure.colorbar(cloud, ax=ax, label=schema.label(name), extend=beyond)
    if not known.all():
        ax.scatter(x[~known], y[~known], s=size, c=GREY, marker="x", linewidths=0.8, label="missing")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(title=name, frameon=False, fontsize=8, loc="best", markerscale=max(1.0, 4.5 / size**0.5))
