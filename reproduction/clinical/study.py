"""Measurements of unseen patients on two real longitudinal tables: imputed, predicted, forecast, beside its peers.

    python -m reproduction.clinical.study run --data folder --workers 2
    python -m reproduction.clinical.study table

`run` appends one line per data set, task, share of missing entries, seed and method to results.jsonl and skips what is
there; `table` prints means over seeds with standard errors, and differences to the best peer, paired by seed. The
folder of the data may also be named by LACOVA_DATA.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reproduction import results
from reproduction.clinical.peers import DRAWS, PEERS
from reproduction.clinical.tasks import TABLES, TASKS, Floats, Task, scores, task
from reproduction.pool import work

RESULTS = Path(__file__).with_name("results.jsonl")
KEY = ("dataset", "task", "missing", "seed", "method")
OURS = {"lacova": {}, "without levels": {"patient_effects": False}}
METHODS = (*PEERS, *OURS)
SCORES = ("rmse", "crps", "coverage90", "width90")


def by_lacova(asked: Task, seed: int, device: str, **settings: Any) -> tuple[Floats, dict[str, Any]]:
    import lacova

    model = lacova.GPPriorVAE(asked.schema, **settings)
    model.fit(asked.train, asked.validation, seed=seed, device=device, progress=False)
    about = {"epochs": len(model.training)}
    if asked.kind == "impute":
        drawn = model.impute(asked.test, draws=DRAWS, seed=seed)
    else:
        future = asked.future
        history = None if asked.kind == "predict" else asked.test[~future]
        drawn = model.sample(asked.test[future], history, draws=DRAWS, seed=seed)
        found = np.full((DRAWS, *asked.truth.shape), np.nan)
        found[:, future] = drawn[asked.measurements].to_numpy().reshape(DRAWS, int(future.sum()), -1)
        return found, about
    return drawn[asked.measurements].to_numpy(dtype=float).reshape(DRAWS, len(asked.test), -1), about


def compute(dataset: str, kind: str, missing: float, seed: int, method: str, folder: Path, device: str) -> list[dict]:
    import torch

    torch.set_num_threads(1)
    asked = task(kind, dataset, missing, seed, folder)
    started = time.perf_counter()
    if method in PEERS:
        draws, about = PEERS[method](asked, seed), {}
    else:
        draws, about = by_lacova(asked, seed, device, **OURS[method])
    seconds = round(time.perf_counter() - started, 1)
    key = dict(zip(KEY, (dataset, kind, missing, seed, method), strict=True))
    return [key | scores(asked, draws) | {"seconds": seconds} | about]


def run(options: argparse.Namespace) -> int:
    if options.data is None:
        raise SystemExit("name the folder of the data: --data, or the environment variable LACOVA_DATA.")
    results.mend(options.results)
    done = {tuple(line[k] for k in KEY) for line in results.read(options.results, KEY)}
    cells = [
        (d, k, m, s, method)
        for s, m, d, k, method in itertools.product(
            options.seeds, options.missing, options.datasets, options.tasks, options.methods
        )
    ]
    left = [cell for cell in cells if cell not in done]
    print(f"{len(left)} cells to do, {len(cells) - len(left)} done", file=sys.stderr, flush=True)
    failed = 0
    tasks = [(*cell, options.data, options.device) for cell in left]
    for place, found, error in work(compute, tasks, options.workers, lambda: True):
        name = " ".join(map(str, left[place]))
        if error is None:
            results.append(options.results, found)
            print(f"{name}: rmse {found[0]['rmse']}, crps {found[0]['crps']} ({found[0]['seconds']} s)", flush=True)
        else:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    return failed


def table(file: Path) -> pd.DataFrame:
    """Means over seeds by method, and what lacova's differ by from the best peer's, seed by seed."""
    found = pd.DataFrame(results.read(file, KEY))
    rows = []
    for key, here in found.groupby(["dataset", "task", "missing"], sort=False):
        both = {score: here.pivot_table(index="seed", columns="method", values=score) for score in SCORES}
        for method in [name for name in METHODS if name in both["rmse"]]:
            row = dict(zip(("data", "task", "missing", "method"), (*key, method), strict=True))
            row |= {score: _mean(values[method]) if method in values else "" for score, values in both.items()}
            for score in ("rmse", "crps"):
                peers = [name for name in PEERS if name in both[score]]
                if method == "lacova" and peers:
                    best = both[score][peers].mean().idxmin()
                    row[f"{score} − best peer"] = f"{_mean(both[score][method] - both[score][best])} ({best})"
            rows.append(row)
    return pd.DataFrame(rows).fillna("")


def _mean(values: pd.Series) -> str:
    values = values.dropna()
    error = f" ± {values.sem():.3f}" if len(values) > 1 else ""
    return f"{values.mean():.3f}{error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("--data", type=Path, default=os.environ.get("LACOVA_DATA"), help="folder with the data sets")
    parser.add_argument("--datasets", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--missing", type=float, nargs="+", default=[0.2, 0.4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.data = None if options.data is None else Path(options.data)
    if options.action == "run":
        return 1 if run(options) else 0
    print(table(options.results).to_string(index=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
