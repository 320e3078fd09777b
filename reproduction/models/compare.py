"""All models on the same tables: clinical ones and digits by `lacova.compare`, Health MNIST by its future visits.

    python -m reproduction.models.compare run pbc --data folder --folds 3 --epochs 100
    python -m reproduction.models.compare table

`run` appends one line per model and fold (Health MNIST: seed) to a file for each data set and skips the lines
that exist. `table` prints means and standard errors over the existing lines. The environment variable LACOVA_DATA may
name the folder of the clinical tables, and --images the images of Health MNIST.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import lacova
from lacova.datasets import health_mnist, rotated_digits
from reproduction import results
from reproduction.clinical.tables import cdisc, pbc
from reproduction.markdown import markdown as markdown_table

FOLDER = Path(__file__).parent
MODELS = ("VAE", "HIVAE", "MIWAE", "NotMIWAE", "CVAE", "GPVAE", "GPPVAE", "LVAE", "GPPriorVAE")
SERIES = {"GPVAE", "GPPVAE", "LVAE"}  # models that need patients and times
TRAINING = {"encoder_dropout": 0.6}  # for all models: held-out rows have gaps that training rows lack
DATASETS = ("pbc", "cdisc", "digits", "health")
SHOWN = ("nll", "crps", "rmse", "coverage90", "x_rmse", "x_accuracy", "predict_crps", "predict_rmse")
KNOWN_VISITS = 10  # of 20 visits; the later ones are predicted


def file(name: str, folder: Path) -> Path:
    return folder / f"{name}.jsonl"


def settings(table: str) -> dict[str, Any]:
    """Return the settings of a model: laboratory values are skewed, and images need wide networks."""
    if table not in ("digits", "health"):
        return {"latent_dim": 8, "scaling": "normal"}
    return {"latent_dim": 8, "networks": "dense-digits", "scaling": "none"}


def load(name: str, options: argparse.Namespace) -> tuple[pd.DataFrame, lacova.Schema]:
    if name == "digits":
        table, schema = rotated_digits(3, rows=options.rows)
        rng = np.random.default_rng(1)
        holes = rng.random(table.shape) < 0.2
        holes[:, table.columns.get_indexer(["time"])] = False
        return table.mask(holes), schema
    if options.data is None:
        raise SystemExit("name the folder of the data: --data, or the environment variable LACOVA_DATA.")
    return {"pbc": pbc, "cdisc": cdisc}[name](Path(options.data))


def run(name: str, options: argparse.Namespace) -> None:
    if name == "health":
        health(options)
        return
    table, schema = load(name, options)
    applicable = [model for model in options.models if schema.instance is not None or model not in SERIES]
    lacova.compare(
        table, schema, {model: (model, settings(name)) for model in applicable}, folds=options.folds, seed=0,
        draws=options.draws, device=options.device, checkpoint=file(name, options.folder), progress=True,
        max_epochs=options.epochs, **options.fit,
    )  # fmt: skip


def health(options: argparse.Namespace) -> None:
    """Score predictions of later visits of test patients, given their first ones, against the complete images."""
    store = file("health", options.folder)
    results.mend(store)
    done = {line["key"] for line in results.read(store, ("key",))}
    for seed in options.seeds:
        rows, schema = health_mnist(options.patients, seed, source=options.images)
        truth, _ = health_mnist(options.patients, seed, missing=0.0, source=options.images)
        pixels = list(schema.measurements)
        train = rows["id"] < options.patients * 3 // 4
        validation = train & (rows["id"] >= options.patients * 5 // 8)
        known = ~train & (rows["age"] < KNOWN_VISITS)
        future = ~train & ~known
        for name in options.models:
            key = f"{name} {options.patients} {options.epochs} {seed} {json.dumps(options.fit, sort_keys=True)}"
            if key in done:
                continue
            started = time.perf_counter()
            model = getattr(lacova, name)(schema, **settings("health"))
            model.fit(
                rows[train & ~validation], rows[validation], max_epochs=options.epochs, seed=seed,
                device=options.device, progress=False, **options.fit,
            )  # fmt: skip
            seconds = time.perf_counter() - started
            history = rows[known] if model.schema.instance is not None else None
            predicted = model.predict(rows[future], history, draws=options.draws)[pixels]
            error = float(np.sqrt(((predicted - truth.loc[future, pixels]) ** 2).to_numpy().mean()))
            line = {"key": key, "model": name, "fold": seed, "rmse": round(error, 5), "seconds": round(seconds, 1)}
            results.append(store, [line])
            print(json.dumps(line), flush=True)


def table(name: str, folder: Path) -> pd.DataFrame:
    """Return means over folds ± standard errors, one line per model."""
    lines = pd.DataFrame(results.read(file(name, folder), ("key", "model", "fold")))
    if lines.empty:
        return lines
    shown = [score for score in SHOWN if score in lines and lines[score].notna().any()]
    groups = lines.astype(dict.fromkeys(shown, float)).groupby("model", sort=False)[shown]
    mean = groups.agg(lambda column: column.mean(skipna=False))  # blank where a fold has no figure
    error, count = groups.sem(), groups.size()
    cells = {
        model: {score: _cell(score, mean.at[model, score], error.at[model, score]) for score in shown}
        for model in _ordered(mean.index)
    }
    return pd.DataFrame.from_dict(cells, orient="index").assign(folds=count)


def markdown(scores: pd.DataFrame) -> str:
    """Return a table of scores as Markdown."""
    rows = [[f"`{name}`", *map(str, row)] for name, row in zip(scores.index, scores.to_numpy(), strict=True)]
    return markdown_table(["model", *map(str, scores.columns)], rows)


def _ordered(names: Iterable[str]) -> list[str]:
    there = set(names)
    return [name for name in MODELS if name in there]


def _cell(score: str, mean: float, error: float) -> str:
    if np.isnan(mean):
        return ""
    return f"{mean:.3f}" + ("" if np.isnan(error) else f" ± {error:.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("datasets", nargs="*", metavar="DATASET", help=f"of {', '.join(DATASETS)}; else all")
    parser.add_argument("--data", default=os.environ.get("LACOVA_DATA"), help="folder with the clinical tables")
    parser.add_argument("--images", help="MNIST, for Health MNIST")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--rows", type=int, default=600, help="of the digits")
    parser.add_argument("--patients", type=int, default=80, help="of Health MNIST")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of Health MNIST")
    parser.add_argument("--fit", type=json.loads, default=TRAINING, help="options of fit, as JSON")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the results")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if strange := [name for name in options.datasets if name not in DATASETS]:
        parser.error(f"there is no data set {strange[0]}; expected {', '.join(DATASETS)}.")
    for name in options.datasets or DATASETS:
        if options.action == "run":
            run(name, options)
        else:
            print(f"{name}\n{markdown(table(name, options.folder))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
