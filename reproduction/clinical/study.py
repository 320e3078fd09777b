"""Unseen patients of two real longitudinal tables: imputed, predicted and forecast, by lacova and by its peers.

    python -m reproduction.clinical.study run --data folder --workers 2
    python -m reproduction.clinical.study report

`run` appends one line per data set, task, share of missing entries, seed and method to results.jsonl and skips what is
there; `report` writes docs/clinical-study.md from it. The folder of the data may also be named by LACOVA_DATA. Peers
need the extra `lacova[peers]`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reproduction import results
from reproduction.clinical.page import PAGE, page
from reproduction.clinical.peers import DRAWS, PEERS
from reproduction.clinical.tasks import OF_Y, TABLES, TASKS, Floats, Task, scores, task
from reproduction.pool import work

RESULTS = Path(__file__).with_name("results.jsonl")
KEY = ("dataset", "task", "missing", "seed", "method")
OURS: dict[str, dict[str, Any]] = {  # one setting for all tasks and tables, and what it is made of left out
    "lacova": {"scaling": "normal"},
    "standard scaling": {},
    "constant levels": {"scaling": "normal", "patient_effects": "level"},
    "without slopes": {"scaling": "normal", "fixed_effects": False},
    "without levels": {"scaling": "normal", "patient_effects": False},
}
PRIOR = "prior alone"  # of missing covariates, without a look at the measurements
METHODS = (*PEERS, *OURS, PRIOR)


def answers(method: str, kind: str) -> bool:
    """Whether the method has an answer to that kind of question."""
    of_x = kind not in OF_Y
    return not (method == "mixed model" and of_x) and not (method == PRIOR and not of_x)


def by_lacova(
    asked: Sequence[Task], seed: int, device: str, settings: dict[str, Any], fit: dict[str, Any]
) -> Iterator[Floats]:
    """Answers to several questions about the same patients, by one model: what it learns from is the same."""
    import lacova

    model = lacova.GPPriorVAE(asked[0].schema, **settings)
    model.fit(asked[0].train, asked[0].validation, seed=seed, device=device, progress=False, **fit)
    for each in asked:
        names, future = each.measurements, each.future
        if each.kind not in ("predict", "forecast"):
            drawn = each.coded(model.impute(each.test, draws=DRAWS, seed=seed))
            yield drawn.to_numpy().reshape(DRAWS, len(each.test), -1)
        else:
            history = None if each.kind == "predict" else each.test[~future]
            drawn = model.sample(each.test[future], history, draws=DRAWS, seed=seed)
            found = np.full((DRAWS, *each.truth.shape), np.nan)
            found[:, future] = drawn[names].to_numpy(dtype=float).reshape(DRAWS, int(future.sum()), -1)
            yield found


def by_prior(asked: Sequence[Task], seed: int) -> Iterator[Floats]:
    """lacova's law of covariates, which is learnt before the rest is trained."""
    import lacova

    model = lacova.GPPriorVAE(asked[0].schema).fit(asked[0].train, max_epochs=1, seed=seed, progress=False)
    for each in asked:
        drawn = each.coded(model.prior_covariates(each.test, draws=DRAWS, seed=seed))
        yield drawn.to_numpy().reshape(DRAWS, len(each.test), -1)


def compute(
    dataset: str, missing: float, seed: int, method: str, kinds: Sequence[str], folder: Path, device: str,
    fit: dict[str, Any],
) -> list[dict[str, Any]]:  # fmt: skip
    """A line per kind of question."""
    import torch

    torch.set_num_threads(1)
    asked = [task(kind, dataset, missing, seed, folder) for kind in kinds]
    started, lines = time.perf_counter(), []
    if method in PEERS:
        said: Iterator[Floats] = (PEERS[method](each, seed) for each in asked)
    elif method == PRIOR:
        said = by_prior(asked, seed)
    else:
        said = by_lacova(asked, seed, device, OURS[method], fit)
    for each, draws in zip(asked, said, strict=True):
        seconds = round(time.perf_counter() - started, 1)
        key = dict(zip(KEY, (dataset, each.kind, missing, seed, method), strict=True))
        lines.append(key | scores(each, draws) | {"seconds": seconds})
        started = time.perf_counter()
    return lines


def run(options: argparse.Namespace) -> int:
    if options.data is None:
        raise SystemExit("name the folder of the data: --data, or the environment variable LACOVA_DATA.")
    if options.fit and options.results == RESULTS:
        raise SystemExit("--fit trains otherwise than the study does: name another file for it, --results.")
    results.mend(options.results)
    done = {tuple(line[k] for k in KEY) for line in results.read(options.results, KEY)}
    jobs = []
    for seed, missing, dataset, method in itertools.product(
        options.seeds, options.missing, options.datasets, options.methods
    ):
        open_kinds = (kind for kind in options.tasks if (dataset, kind, missing, seed, method) not in done)
        kinds = [kind for kind in open_kinds if answers(method, kind)]
        if kinds:
            jobs.append((dataset, missing, seed, method, kinds, options.data, options.device, options.fit))
    print(f"{sum(len(job[4]) for job in jobs)} cells to do, in {len(jobs)} jobs", file=sys.stderr, flush=True)
    failed = 0
    for place, found, error in work(compute, jobs, options.workers, lambda: True):
        name = " ".join(map(str, jobs[place][:4]))
        if error is not None:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        results.append(options.results, found)
        for line in found:
            told = ", ".join(
                f"{score} {line[score]}" for score in ("rmse", "crps", "varying_accuracy", "accuracy") if score in line
            )
            told = f"{told} ({line['seconds']} s)"
            print(f"{name}, {line['task']}: {told}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "report"))
    parser.add_argument("--data", type=Path, default=os.environ.get("LACOVA_DATA"), help="folder with the data sets")
    parser.add_argument("--datasets", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--missing", type=float, nargs="+", default=[0.2, 0.4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--fit", type=json.loads, default={}, help="further options of fit, as JSON; with --results")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.data = None if options.data is None else Path(options.data)
    if options.action == "run":
        return 1 if run(options) else 0
    PAGE.write_text(page(results.read(options.results, KEY), list(PEERS), METHODS), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
