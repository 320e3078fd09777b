"""How much of the gap between mean imputation and the limit each treatment of missing covariates closes.

    python -m reproduction.covariates.study run --images mnist.npz --workers 2
    python -m reproduction.covariates.study table

`run` appends one line per cell to results.jsonl and skips cells that are there; `table` prints the table of the docs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import lacova
from lacova.datasets import mask_at_random, rotated_digits
from reproduction.covariates.limit import TruePrior
from reproduction.covariates.options import parser as options_parser

RESULTS = Path(__file__).with_name("results.jsonl")
METHODS = ("mean", "knn", "iterative", "paper", "joint", "oracle")  # "limit" comes with "oracle"
ROWS = {"train": 4000, "validation": 400, "test": 400}
DRAWS = 200
KEY = ("dataset", "model", "covariates", "missing", "seed")


def pictures(file: Path | None) -> dict[int, np.ndarray] | None:
    """The first 3 and the first 6 of a file with images `x` and labels `y`."""
    if file is None:
        return None
    stored = np.load(file)
    return {k: stored["x"][stored["y"] == k][0] / 255.0 for k in (3, 6)}


def data(dataset: int, missing: float, seed: int, images: dict[int, np.ndarray] | None):
    """Complete and masked tables; the same for every method of a cell."""
    complete, masked = {}, {}
    for k, (name, rows) in enumerate(ROWS.items()):
        complete[name], schema = rotated_digits(dataset, rows, 1000 * seed + k, images)
        masked[name] = mask_at_random(complete[name], list(schema.columns), missing, 1000 * seed + 100 + k)
    return complete, masked, schema


def cell(dataset: int, model: str, covariates: str, missing: float, seed: int, options: dict) -> list[dict]:
    """Fit one model and score it; the oracle's fit also gives the limit."""
    images = options["images"]
    complete, masked, schema = data(dataset, missing, seed, images)
    x = list(schema.covariates)
    if covariates == "oracle":
        given = {name: table.assign(**complete[name][x]) for name, table in masked.items()}
    else:
        given = masked
    kind = {"cvae": lacova.CVAE, "gp": lacova.GPPriorVAE}[model]
    started = time.perf_counter()
    fitted = kind(
        schema, latent_dim=8, networks="dense-digits", scaling="none", covariates=covariates, **options["settings"]
    )
    fitted.fit(
        given["train"], given["validation"], max_epochs=options["epochs"], batch_size=100, patience=options["patience"],
        seed=seed, device=options["device"], **options["fit"],
    )  # fmt: skip
    seconds = time.perf_counter() - started
    fitted._vae.to(options["score_device"])  # sorting 200 draws of 400 images is work for a GPU, where there is one
    base = {"dataset": dataset, "model": model, "networks": "dense", "missing": missing, "seed": seed}
    base |= {"epochs": len(fitted.training), "seconds": round(seconds, 1), "device": options["device"]}
    base |= {"version": lacova.__version__}
    truth = complete["test"]
    lines = [base | {"covariates": covariates} | scores(fitted, truth.assign(**given["test"][x]))]
    lines[0] |= covariate_error(fitted, given["test"], masked["test"], truth, complete["train"], x)
    if covariates == "oracle":
        fitted._fill = None
        fitted._vae.covariate_prior = TruePrior(dataset, fitted._codec, seed)
        lines.append(base | {"covariates": "limit"} | scores(fitted, truth.assign(**masked["test"][x])))
    return lines


def scores(fitted, table: pd.DataFrame) -> dict:
    found = fitted.score(table, draws=DRAWS)
    return {name: round(value, 5) for name, value in found.items()}


def covariate_error(fitted, given, masked, truth, train, x) -> dict:
    holes = masked[x].isna().to_numpy()
    if given[x].notna().all().all():
        return {"covariate_mse": 0.0, "covariate_mse_all_rows": 0.0}
    square = (((fitted.impute(given)[x] - truth[x]) / train[x].std()).to_numpy() ** 2) * holes
    return {
        "covariate_mse": round(float(square[holes].mean()), 5),
        "covariate_mse_all_rows": round(float(square.mean()), 5),
    }


def done() -> set[tuple]:
    if not RESULTS.exists():
        return set()
    return {tuple(json.loads(line)[k] for k in KEY) for line in RESULTS.read_text().splitlines()}


def work(job: tuple) -> list[dict]:
    torch.set_num_threads(1)
    return cell(*job)


def run(options: argparse.Namespace) -> None:
    settings = {
        "images": pictures(options.images),
        "epochs": options.epochs, "patience": options.patience, "device": options.device,
        "score_device": "cuda" if torch.cuda.is_available() else "cpu",
        "fit": options.fit, "settings": options.settings,
    }  # fmt: skip
    cells = itertools.product(options.seeds, options.missing, options.datasets, options.models, options.methods)
    jobs = [(d, m, c, p, s, settings) for s, p, d, m, c in cells]
    finished = done()
    jobs = [job for job in jobs if (job[0], job[1], job[2], job[3], job[4]) not in finished]
    print(f"{len(jobs)} cells to do, {len(finished)} done", flush=True)
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(options.workers, maxtasksperchild=8) as pool:
        for k, lines in enumerate(pool.imap_unordered(work, jobs), 1):
            with RESULTS.open("a") as out:
                out.writelines(json.dumps(line) + "\n" for line in lines)
            left = (time.perf_counter() - started) / k * (len(jobs) - k)
            for line in lines:
                name = " ".join(str(line[key]) for key in KEY)
                print(
                    f"{k}/{len(jobs)} {name}: nll {line['nll']:.0f} ({line['seconds']:.0f} s), {left:.0f} s left",
                    flush=True,
                )


COLUMNS = ("mean", "knn", "iterative", "paper", "joint", "limit", "oracle")


def summary() -> pd.DataFrame:
    """One row per data set, model and missing level: NLL by method, and the gap closed with its standard error.

    A method's figures are over the seeds for which mean, limit and the method itself are there.
    """
    found = pd.DataFrame([json.loads(line) for line in RESULTS.read_text().splitlines()])
    rows = []
    for key, cell in found.groupby(["dataset", "model", "missing"]):
        nll = cell.pivot_table(index="seed", columns="covariates", values="nll")
        row = dict(zip(("set", "model", "missing"), key, strict=True)) | {"missing": f"{key[2]:.0%}"}
        row |= {name: f"{nll[name].mean():.0f}" if name in nll else "" for name in COLUMNS}
        closed = {
            m: ((nll["mean"] - nll[m]) / (nll["mean"] - nll["limit"])).dropna() for m in ("paper", "joint") if m in nll
        }
        row |= {f"{method} closes": _share(values) for method, values in closed.items()}
        joint = cell[cell.covariates == "joint"]
        row |= {"seeds": len(closed["joint"]), "coverage of 90%": f"{joint.coverage90.mean():.1%}"}
        rows.append(row | {"error in X": f"{joint.covariate_mse.mean():.2f}"})
    return pd.DataFrame(rows)


def _share(values: pd.Series) -> str:
    if not len(values):
        return ""
    return f"{values.mean():.0%}" + (f" ± {100 * values.sem():.0f}" if len(values) > 1 else "")


def markdown(table: pd.DataFrame) -> str:
    lines = [list(table.columns), ["---"] * len(table.columns), *table.astype(str).to_numpy().tolist()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument(
        "--images", type=Path, help="an .npz with x (images) and y (labels); scikit-learn's digits without"
    )
    parser.add_argument("--datasets", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--models", nargs="+", default=["gp", "cvae"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--patience", type=int, default=30)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--settings", type=json.loads, default={}, help="further settings of the models, as JSON")
    options = parser.parse_args()
    if options.results is not None:
        globals()["RESULTS"] = options.results
    if options.action == "run":
        run(options)
    else:
        print(markdown(summary()))


if __name__ == "__main__":
    main()
