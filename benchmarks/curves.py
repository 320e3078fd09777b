"""Learning curves: how well hidden entries are imputed, against the processor seconds of the fit, on one thread.

    python benchmarks/curves.py [--data folder] [--seed 10] [--out docs/images/training-curves.png]

Compares the defaults with those of version 0.1 (constant rates, random weights to start from, a length-scale for each
component), both with normal scores, on the two clinical tables of `reproduction/clinical`. 20% of all entries are
hidden, and the CRPS is that of the hidden measurements of unseen patients. Every point is a fit of its
own, with its own number of epochs, since a cycle is stretched to fit them; a ring marks the default number. Draws a
picture.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import lacova
from lacova.plot.style import BLUE, ORANGE

TABLES = {"cdisc": "CDISC pilot", "pbc": "PBC"}
DRAWS = 100


class Curve(NamedTuple):
    """Settings of the model, options of the fit, and numbers of epochs; None for the default."""

    settings: dict[str, Any]
    options: dict[str, Any]
    epochs: tuple[int | None, ...]
    colour: str


CURVES = {
    "version 0.1": Curve(
        {"lengthscales": "own"}, {"schedule": "constant", "start": "random"}, (4, 10, 25, 60, None), ORANGE
    ),
    "now": Curve({}, {}, (5, 10, 20, 40, None), BLUE),
}


class Point(NamedTuple):
    seconds: float
    crps: float


def curve(task: Any, which: Curve, seed: int) -> list[Point]:
    from reproduction.clinical.tasks import scores

    points = []
    for epochs in which.epochs:
        model, started = lacova.GPPriorVAE(task.schema, scaling="normal", **which.settings), time.process_time()
        model.fit(
            task.train, task.validation, seed=seed, device="cpu", progress=False, max_epochs=epochs, **which.options
        )
        seconds = time.process_time() - started
        drawn = model.impute(task.test, draws=DRAWS, seed=seed)[task.names].to_numpy(float)
        points.append(Point(seconds, scores(task, drawn.reshape(DRAWS, -1, len(task.names)))["crps"]))
        print(f"    {epochs or 'default':>7} epochs {seconds:7.1f} s   CRPS {points[-1].crps:.4f}", flush=True)
    return points


def draw(found: dict[str, dict[str, list[Point]]], path: Path) -> None:
    figure = Figure(figsize=(8.0, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    for ax, (table, curves) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        for (name, points), marker, dash in zip(curves.items(), "so", ("--", "-"), strict=True):
            colour, (seconds, crps) = CURVES[name].colour, zip(*points, strict=True)
            ax.plot(seconds, crps, color=colour, marker=marker, markersize=4, linestyle=dash, label=name)
            ax.plot(seconds[-1], crps[-1], "o", color=colour, markersize=11, fillstyle="none")
        ax.set_xscale("log")
        ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500) if ax.get_xlim()[0] <= t <= ax.get_xlim()[1]]
        ax.set_xticks(ticks, [str(t) for t in ticks])
        ax.minorticks_off()
        ax.set_title(TABLES[table], fontsize=10)
        ax.set_xlabel("processor seconds of the fit")
        ax.set_ylabel("CRPS of hidden entries")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("LACOVA_DATA"), help="folder of the study data")
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("docs/images/training-curves.png"))
    options = parser.parse_args()
    if options.data is None:
        parser.error("name the folder of the study data: --data or LACOVA_DATA.")
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from reproduction.clinical.tasks import task

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, list[Point]]] = {}
    for table in TABLES:
        one = task("impute", table, 0.2, options.seed, Path(options.data))
        lacova.GPPriorVAE(one.schema).fit(one.train, device="cpu", progress=False, max_epochs=1)  # imports
        found[table] = {}
        for name, which in CURVES.items():
            print(f"{table}, {name}", flush=True)
            found[table][name] = curve(one, which, options.seed)
        draw(found, options.out)


if __name__ == "__main__":
    main()
