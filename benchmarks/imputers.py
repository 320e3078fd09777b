"""Compare LacovaImputer with scikit-learn's imputers on scikit-learn's own tables.

    python benchmarks/imputers.py [--seeds 3] [--missing 0.2]

Prints the root mean squared error of masked entries in units of the column's standard deviation (mean over seeds), and
the CPU seconds of one fit and transform on one thread. 'stopped early' is LacovaImputer with a tenth of the rows for
validation; 'all covariates' names every column as a covariate, so that only their joint distribution fills the gaps.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401  # scikit-learn's switch for the next import
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.preprocessing import scale

from lacova.sklearn import LacovaImputer

TABLES = {"iris": load_iris, "diabetes": load_diabetes, "wine": load_wine, "breast cancer": load_breast_cancer}
IMPUTERS: dict[str, Callable[[int, int], Any]] = {
    "mean": lambda columns, seed: SimpleImputer(),
    "KNN": lambda columns, seed: KNNImputer(),
    "iterative": lambda columns, seed: IterativeImputer(random_state=seed),
    "LacovaImputer": lambda columns, seed: LacovaImputer(device="cpu", random_state=seed),
    "stopped early": lambda columns, seed: LacovaImputer(validation_fraction=0.1, device="cpu", random_state=seed),
    "all covariates": lambda columns, seed: LacovaImputer(
        covariate_columns=range(columns), device="cpu", random_state=seed
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--missing", type=float, default=0.2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    print("| table | " + " | ".join(IMPUTERS) + " |")
    print("| --- |" + " --- |" * len(IMPUTERS))
    for name, load in TABLES.items():
        truth = scale(load().data)
        cells = []
        for make in IMPUTERS.values():
            errors, start = [], time.process_time()
            for seed in range(options.seeds):
                gaps = np.random.default_rng(seed).random(truth.shape) < options.missing
                imputed = make(truth.shape[1], seed).fit_transform(np.where(gaps, np.nan, truth))
                errors.append(np.sqrt(np.mean((imputed - truth)[gaps] ** 2)))
            seconds = (time.process_time() - start) / options.seeds
            cells.append(f"{np.mean(errors):.3f} ({seconds:.1f} s)")
        print(f"| {name}, {truth.shape[0]}×{truth.shape[1]} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
