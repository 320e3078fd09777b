"""Measure how the cost of a training step grows: what the GP prior and the covariate model add to a plain VAE step.

    python benchmarks/slopes.py [--steps 12] [--only M,L]

One size at a time is doubled twice; the others stay. The slope is that of log time over log size.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pandas as pd
import torch

import lacova
from lacova.datasets import mask_at_random
from steps import Pair

BASE: dict[str, int] = {"M": 60, "L": 16, "n_p": 20, "P_batch": 10, "R": 2, "Q": 6}
EXPECTED = {"M": "1 to 3", "L": "1", "n_p": "1 to 3", "P_batch": "0 to 1", "R": "0 to 1", "Q": "0 to 2"}
TERMS = [
    "gp(age)",
    "gp(x1)",
    "gp(age):cat(sex)",
    "gp(x2)",
    "gp(x1):cat(sex)",
    "gp(age):gp(x1)",
    "gp(age):gp(x2)",
    "gp(x1):gp(x2)",
]


def simulated(n_p: int, columns: int, patients: int = 80) -> tuple[pd.DataFrame, lacova.Schema]:
    """Return random numbers in the shape of a study with Q covariates: the cost of a step does not depend on them."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(patients), n_p)
    n = len(patient)
    table = pd.DataFrame({"id": patient, "age": np.tile(np.arange(float(n_p)), patients)})
    table["sex"] = rng.choice(["f", "m"], patients)[patient]
    more = [f"x{k}" for k in range(1, columns - 1)]
    table[more] = rng.normal(size=(n, len(more)))
    measured = [f"y{k}" for k in range(40)]
    table = pd.concat([table, pd.DataFrame(rng.normal(size=(n, 40)), columns=measured)], axis=1)
    kinds = {"age": "continuous", "sex": "categorical", **dict.fromkeys(more, "continuous")}
    schema = lacova.Schema(measured, kinds, instance="id", time="age", static=("sex",))
    return mask_at_random(table, [*more, *measured], 0.2, 1), schema


def added_cost(size: dict[str, int], steps: int) -> float:
    """Return the milliseconds of processor time that a step takes beyond the plain one."""
    data, schema = simulated(size["n_p"], size["Q"])
    settings: dict[str, Any] = {"latent_dim": size["L"], "inducing": size["M"], "scaling": "none"}
    model = lacova.GPPriorVAE(schema, prior=" + ".join([*TERMS[: size["R"]], "gp(age):cat(id)"]), **settings)
    pair = Pair(data, schema, model, size["P_batch"], torch.device("cpu"), False)
    spent: dict[str, list[float]] = {"plain": [], "gp": []}
    for step in range(steps + 2):
        training_batch = next(pair.training_batches)
        for kind, times in spent.items():
            start = time.process_time()
            pair.run(kind, training_batch)
            if step > 1:  # the first two are warm-up
                times.append(time.process_time() - start)
    return 1000 * (float(np.median(spent["gp"])) - float(np.median(spent["plain"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", default="", help="sizes, separated by commas")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else BASE
    torch.set_num_threads(1)
    print("| size | values | added, ms | slope | expected |\n|---|---|---|---|---|")
    for name, start in BASE.items():
        if name not in wanted:
            continue
        sizes = [start, 2 * start, 4 * start]
        times = [added_cost({**BASE, name: size}, options.steps) for size in sizes]
        slope = np.polyfit(np.log(sizes), np.log(times), 1)[0]
        shown = ", ".join(f"{value:.1f}" for value in times)
        print(f"| {name} | {', '.join(map(str, sizes))} | {shown} | {slope:.2f} | {EXPECTED[name]} |", flush=True)


if __name__ == "__main__":
    main()
