"""Test patients of two real longitudinal tables: imputed, predicted and forecast by lacova and its peers.

    python -m reproduction.clinical.study run --data folder --workers 2
    python -m reproduction.clinical.study report

`run` appends one line per data set, task, share of missing entries, seed and method to results.jsonl and skips the
lines that exist. `report` writes docs/clinical-study.md and docs/appendix/clinical-study.md from it. The environment
variable LACOVA_DATA may name the folder of the data. Peers need the extra `lacova[peers]`.
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

from lacova.analysis.workers import work
from reproduction import results
from reproduction.clinical.appendix import appendix
from reproduction.clinical.findings import PAGE, findings
from reproduction.clinical.peers import DRAWS, PEERS
from reproduction.clinical.tasks import OF_Y, TABLES, TASKS, Floats, Task, scores, task
from reproduction.markdown import write

RESULTS = Path(__file__).with_name("results.jsonl")
KEY = ("dataset", "task", "missing", "seed", "method")
OURS: dict[str, dict[str, Any]] = {  # the defaults, and the same with one part left out
    "lacova": {},
    "standard scaling": {"scaling": "standard"},
    "constant levels": {"patient_effects": "intercept"},
    "without slopes": {"fixed_effects": False},
    "without levels": {"patient_effects": False},
}
PRIOR = "prior alone"  # draws of missing covariates that do not use the measurements
METHODS = (*PEERS, *OURS, PRIOR)


def applies(method: str, kind: str) -> bool:
    """Return whether the method applies to this kind of task."""
    of_x = kind not in OF_Y
    return not (method == "mixed model" and of_x) and not (method == PRIOR and not of_x)


def by_lacova(
    tasks: Sequence[Task], seed: int, device: str, settings: dict[str, Any], fit: dict[str, Any]
) -> Iterator[Floats]:
    """Yield draws for several tasks about the same patients, from one model: the training data are the same."""
    import lacova

    model = lacova.GPPriorVAE(tasks[0].schema, **settings)
    model.fit(tasks[0].train, tasks[0].validation, seed=seed, device=device, progress=False, **fit)
    for one in tasks:
        names, future = one.measurements, one.future
        if one.kind not in ("predict", "forecast"):
            table = one.coded(model.impute(one.test, draws=DRAWS, seed=seed))
            yield table.to_numpy().reshape(DRAWS, len(one.test), -1)
        else:
            history = None if one.kind == "predict" else one.test[~future]
            table = model.sample(one.test[future], history, draws=DRAWS, seed=seed)
            draws = np.full((DRAWS, *one.truth.shape), np.nan)
            draws[:, future] = table[names].to_numpy(dtype=float).reshape(DRAWS, int(future.sum()), -1)
            yield draws


def by_prior(tasks: Sequence[Task], seed: int) -> Iterator[Floats]:
    """Yield draws from lacova's covariate prior, which is learnt before the rest of the model is trained."""
    import lacova

    model = lacova.GPPriorVAE(tasks[0].schema).fit(tasks[0].train, max_epochs=1, seed=seed, progress=False)
    for one in tasks:
        table = one.coded(model.prior_covariates(one.test, draws=DRAWS, seed=seed))
        yield table.to_numpy().reshape(DRAWS, len(one.test), -1)


def compute(
    dataset: str, missing: float, seed: int, method: str, kinds: Sequence[str], folder: Path, device: str,
    fit: dict[str, Any],
) -> list[dict[str, Any]]:  # fmt: skip
    """Return one line of results per kind of task."""
    import torch

    torch.set_num_threads(1)
    tasks = [task(kind, dataset, missing, seed, folder) for kind in kinds]
    started, lines = time.perf_counter(), []
    if method in PEERS:
        draws_of_tasks: Iterator[Floats] = (PEERS[method](one, seed) for one in tasks)
    elif method == PRIOR:
        draws_of_tasks = by_prior(tasks, seed)
    else:
        draws_of_tasks = by_lacova(tasks, seed, device, OURS[method], fit)
    for one, draws in zip(tasks, draws_of_tasks, strict=True):
        seconds = round(time.perf_counter() - started, 1)
        key = dict(zip(KEY, (dataset, one.kind, missing, seed, method), strict=True))
        lines.append(key | scores(one, draws) | {"seconds": seconds})
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
        kinds = [kind for kind in open_kinds if applies(method, kind)]
        if kinds:
            jobs.append((dataset, missing, seed, method, kinds, options.data, options.device, options.fit))
    print(f"{sum(len(job[4]) for job in jobs)} cells to do, in {len(jobs)} jobs", file=sys.stderr, flush=True)
    failed = 0
    for place, lines, error in work(compute, jobs, options.workers, lambda: True):
        name = " ".join(map(str, jobs[place][:4]))
        if error is not None:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        results.append(options.results, lines)
        for line in lines:
            shown = ", ".join(
                f"{score} {line[score]}" for score in ("rmse", "crps", "varying_accuracy", "accuracy") if score in line
            )
            print(f"{name}, {line['task']}: {shown} ({line['seconds']} s)", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "report"))
    parser.add_argument("--data", type=Path, default=os.environ.get("LACOVA_DATA"), help="folder with the data sets")
    parser.add_argument("--datasets", nargs="+", choices=list(TABLES), default=["cdisc", "pbc"])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--missing", type=float, nargs="+", default=[0.2, 0.4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--fit", type=json.loads, default={}, help="further options of fit, as JSON; with --results")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=PAGE, help="another page; its appendix goes to appendix/ there")
    options = parser.parse_args()
    options.data = None if options.data is None else Path(options.data)
    if options.action == "run":
        return 1 if run(options) else 0
    lines = results.read(options.results, KEY)
    write(options.out, findings(lines, list(PEERS), options.out.name), appendix(lines, list(PEERS), METHODS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
