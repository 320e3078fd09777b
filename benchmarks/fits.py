"""Default fits beside what people use instead, and beside the defaults of version 0.1, all in one run on one thread.

    python benchmarks/fits.py [--data folder] [--before] [--small] [--seed 10]

Clinical tables need the folder of the study data (`--data`, or LACOVA_DATA): a fit and its imputations of unseen
patients, against boosted trees with history features, one model per measurement (`reproduction/clinical/peers.py`).
`--before` adds the same fit with constant rates, random weights to start from and a length-scale for each component.
`--small` prints small studies alone: seconds of a whole process, from the start of Python to the completed table.
Seconds are processor time.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import lacova

TARGETS = {"cdisc": 2.0, "pbc": 2.0, "icu": 2.5}
BEFORE = {"schedule": "constant", "start": "random"}

SMALL = """
import sys
import numpy as np, pandas as pd, lacova
patients, visits, category, measured, gaps_in_x = eval(sys.argv[1])
rng = np.random.default_rng(0)
patient = np.repeat(np.arange(patients), visits)
table = pd.DataFrame({"id": patient, "day": rng.uniform(0, 100, len(patient))})
if category:
    table["group"] = np.where(patient % 2, "a", "b")
for k in range(measured):
    table[f"y{k}"] = 30 + 0.1 * table.day + rng.normal(0, 3, patients)[patient] + rng.normal(0, 1, len(patient))
complete = 1 if gaps_in_x else table.shape[1] - measured  # columns without gaps
table = table.mask((rng.random(table.shape) < 0.1) & (np.arange(table.shape[1]) >= complete))
schema = lacova.Schema.infer(table, instance="id", time="day")
lacova.GPPriorVAE(schema).fit(table, progress=False).impute(table, interval=0.9)
"""
# Patients, visits, whether there is a category, measurements, and whether covariates have gaps: the shapes of README's
# example and of textbook studies.
STUDIES = {
    "README, 200 rows": (40, 5, True, 1, True), "sleepstudy, 180 rows": (18, 10, False, 1, False),
    "Orthodont, 108 rows": (27, 4, True, 1, False), "ChickWeight, 600 rows": (50, 12, True, 1, False),
    "a trial of 60 patients, two measurements": (60, 4, True, 2, False),
}  # fmt: skip


def fit_and_impute(task: Any, seed: int, settings: dict[str, Any], options: dict[str, Any]) -> tuple[float, float]:
    """Return the seconds of the fit and of 100 completed tables of the test patients."""
    model, started = lacova.GPPriorVAE(task.schema, **settings), time.process_time()
    model.fit(task.train, task.validation, seed=seed, device="cpu", progress=False, **options)
    fitted = time.process_time()
    model.impute(task.test, draws=100, seed=seed)
    return fitted - started, time.process_time() - fitted


def clinical(folder: Path, seed: int, before: bool) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from reproduction.clinical.peers import PEERS
    from reproduction.clinical.tasks import task

    for name, target in TARGETS.items():
        one = task("impute", name, 0.2, seed, folder)
        fit_and_impute(one, seed, {}, {"max_epochs": 1})  # imports
        started = time.process_time()
        PEERS["boosted trees"](one, seed)
        trees = time.process_time() - started
        print(f"{name:6s} boosted trees {trees:.1f} s", flush=True)
        runs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {"default": ({}, {})}
        runs["normal scores"] = ({"scaling": "normal"}, {})
        runs["one model"] = ({}, {"members": 1})
        if before:
            runs["before"] = ({"lengthscales": "own"}, BEFORE)
            runs["before, normal scores"] = ({"lengthscales": "own", "scaling": "normal"}, BEFORE)
        for kind, (settings, options) in runs.items():
            fit, impute = fit_and_impute(one, seed, settings, options)
            print(
                f"{name:6s} {kind:22s} fit {fit:6.1f} s, 100 imputations {impute:5.1f} s   "
                f"fit against trees {fit / trees:5.1f}  (target {target})",
                flush=True,
            )


def small() -> None:
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once
    for name, shape in STUDIES.items():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-W", "ignore", "-c", SMALL, repr(shape)], check=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{name:42s} {spent:5.1f} s  (target 5)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("LACOVA_DATA"))
    parser.add_argument("--before", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seed", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    small()
    if options.data is None:
        print("clinical tables are left out: name the folder of the data, --data or LACOVA_DATA.")
    elif not options.small:
        clinical(Path(options.data), options.seed, options.before)


if __name__ == "__main__":
    main()
