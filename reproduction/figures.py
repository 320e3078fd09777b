"""The figures of docs/appendix/reproduction.md."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from lacova import GPPriorVAE, datasets
from lacova.inference.impute import imputation_draws
from reproduction import config
from reproduction.appendix import SHOWN, choose, figures
from reproduction.data import DIGITS, Sources, study
from reproduction.summary import frame

FOLDER = Path(__file__).parents[1] / "docs" / "images"
DPI = 80
SIDE = 36
COLOURS = {"zero": "0.6", "mean": "tab:brown", "knn": "tab:olive", "iterative": "tab:orange", "paper": "tab:red",
           "joint": "tab:blue", "limit": "tab:green", "oracle": "black"}  # fmt: skip


def draw_all(lines: Iterable[dict[str, Any]], sources: Sources, device: str = "cpu", folder: Path = FOLDER) -> None:
    """Draw all figures and save them in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    canvases = {
        "covariates": covariates(), "digits": digits(sources), "trial": by_share(lines), "observed": observed(),
        "reconstructions": reconstructions(sources, device),
    }  # fmt: skip
    for name, canvas in canvases.items():
        canvas.savefig(folder / f"reproduction-{name}.png", dpi=DPI)


def covariates(rows: int = 1500) -> Canvas:
    """Plot each set's covariates against each other, or against time in the sets that have it."""
    canvas = Canvas(figsize=(9, 8), layout="constrained")
    for line, dataset in zip(canvas.subfigures(3, 1), (1, 2, 3), strict=True):
        table, schema = datasets.rotated_digits(dataset, rows, seed=0)
        pairs = [pair for pair in combinations(schema.covariates, 2) if schema.time is None or schema.time in pair]
        line.suptitle(f"set {dataset}", fontsize=10)
        for axes, (a, b) in zip(line.subplots(1, 3), pairs, strict=True):
            axes.scatter(table[a], table[b], s=2, alpha=0.5)
            axes.set(xlabel=a, ylabel=b)
    return canvas


def digits(sources: Sources, count: int = 10) -> Canvas:
    """Show some digits of each set, ordered by time in the sets that have it, else by rotation."""
    images = datasets.digit_images(sources.images)
    canvas = Canvas(figsize=(9, 3.9), layout="constrained")
    grid = canvas.subplots(len(DIGITS), count)
    for line, dataset in zip(grid, DIGITS, strict=True):
        table, schema = datasets.rotated_digits(dataset, count, seed=1, images=images)
        table = table.sort_values(schema.time or "rotation")
        line[0].set_ylabel(f"set {dataset}", fontsize=9)
        for axes, pixels in zip(line, table[list(schema.measurements)].to_numpy(), strict=True):
            _picture(axes, pixels)
    return canvas


def reconstructions(sources: Sources, device: str, count: int = 10, epochs: int = 60) -> Canvas:
    """Show the truth, what the model saw of it, its reconstruction, and its prediction from covariates alone."""
    content = config.read("discrete", quick=True)
    data = study("3-discrete", content["rows"], 0.2, 0, sources)
    settings = {**content["fit"], "max_epochs": epochs}
    model = GPPriorVAE(data.schema, networks="dense-digits", **content["settings"])
    model.fit(data.masked["train"], data.masked["validation"], seed=0, device=device, progress=False, **settings)
    x = data.x
    gaps = data.masked["test"][x].isna()
    rows = data.masked["test"][gaps.any(axis=1)].head(count)  # only rows with a gap in X
    pixels = list(data.schema.measurements)
    reconstructed = np.empty((count, len(pixels)))
    for part in imputation_draws(model.fitted()[1], model.encode(rows), 100, model._generator(0)):
        reconstructed[part.rows] = part.location.mean(0).cpu().numpy()
    lines = {
        "truth": data.complete["test"].loc[rows.index, pixels], "seen": rows[pixels],
        "reconstructed": reconstructed, "predicted": model.predict(rows),
    }  # fmt: skip
    canvas = Canvas(figsize=(9, 4.6), layout="constrained")
    grid = canvas.subplots(len(lines), count)
    for line, (name, table) in zip(grid, lines.items(), strict=True):
        line[0].set_ylabel(name, fontsize=8)
        for axes, values in zip(line, np.asarray(table), strict=True):
            _picture(axes, values)
    for axes, missing in zip(grid[0], gaps.loc[rows.index].to_numpy(), strict=True):
        axes.set_title("no " + ",\n".join(np.array(x)[missing]), fontsize=7)
    return canvas


def by_share(lines: Iterable[dict[str, Any]], table: str = "trial", dataset: str = "trial") -> Canvas:
    """Plot predictive NLL by share of missing covariates, with standard errors over seeds."""
    results, shares = frame(lines), config.read(table)["missing"]
    canvas = Canvas(figsize=(6, 4), layout="constrained")
    axes = canvas.subplots()
    nll = {share: figures(choose(results, table, dataset, "dense", share), "nll") for share in shares}
    for shift, method in enumerate(SHOWN):
        points = [(share, nll[share][method]) for share in shares if method in nll[share]]
        if points:
            at, means = zip(*points, strict=True)
            place = 100.0 * np.asarray(at) + 0.25 * (shift - len(SHOWN) / 2)
            error = np.nan_to_num([figure.error for figure in means])
            axes.errorbar(place, [f.mean for f in means], error, marker="o", markersize=3, capsize=2, label=method,
                          color=COLOURS[method])  # fmt: skip
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, ncols=2)
    axes.set(
        xlabel="% of covariates missing", ylabel="predictive NLL per visit", xticks=[100 * share for share in shares]
    )
    return canvas


def observed() -> Canvas:
    """Plot the share of each measurement that is observed at the visits of the simulated trial."""
    canvas = Canvas(figsize=(9, 4), layout="constrained")
    axes = canvas.subplots()
    before, schema = datasets.simulated_trial(filtered=False)
    after, filtered = datasets.simulated_trial()
    share = before[list(schema.measurements)].notna().mean().sort_values(ascending=False)
    left = after[list(filtered.measurements)].notna().mean().reindex(share.index)
    place = np.arange(len(share))
    axes.bar(place - 0.2, share, 0.4, label=f"before the filter ({share.mean():.0%} of all)", color="0.6")
    axes.bar(place + 0.2, left.fillna(0.0), 0.4, label=f"after it ({left.mean():.0%} of all)", color="tab:blue")
    axes.set_xticks(place, share.index, rotation=90, fontsize=7)
    axes.set(ylabel="fraction observed", ylim=(0, 1.15))
    axes.legend(fontsize=8, loc="upper right", ncols=2)
    return canvas


def _picture(axes: Any, pixels: np.ndarray | pd.Series) -> None:
    image = np.asarray(pixels, dtype=float).reshape(SIDE, SIDE)
    axes.imshow(np.ma.masked_invalid(image), cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
    axes.set_facecolor("tab:blue")  # missing pixels
    axes.set(xticks=[], yticks=[])
