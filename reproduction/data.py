"""The data of the study, complete and with gaps: a function of data set, share missing and seed, not of the method."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova import Schema, datasets
from reproduction.clinical.tables import cdisc

PARTS = ("train", "validation", "test")
DIGITS = (1, 2, 3, "3-discrete")
IMAGES = (*DIGITS, "health")


@dataclass(frozen=True)
class Sources:
    """Where data come from: MNIST images (None for those installed), and the folder of the clinical tables."""

    images: Path | None = None
    data: Path | None = None


@dataclass(frozen=True)
class Study:
    """Training, validation and test rows: `complete` is the truth, `masked` is what the models see."""

    schema: Schema
    complete: dict[str, pd.DataFrame]
    masked: dict[str, pd.DataFrame]

    @property
    def x(self) -> list[str]:
        return list(self.schema.covariates)

    def with_all_covariates(self, part: str) -> pd.DataFrame:
        """Return masked measurements with complete covariates, which is what the oracle sees."""
        return self.masked[part].assign(**self.complete[part][self.x])

    def with_all_measurements(self, covariates: pd.DataFrame) -> pd.DataFrame:
        """Return the test rows with the given covariates and all their measurements, to score predictions against."""
        return self.complete["test"].assign(**covariates[self.x])


def study(dataset: int | str, rows: Mapping[str, int], missing: float, seed: int, sources: Sources) -> Study:
    """Return the data of a cell: digits lose a share of X and Y; longitudinal tables of X, except the time of a visit.

    A visit-constant covariate is lost for all of a patient's visits or for none. Gaps that measurements have by
    themselves (the trials, and a quarter of the pixels of Health MNIST) are the same for every share.
    """
    complete: dict[str, pd.DataFrame] = {}
    masked: dict[str, pd.DataFrame] = {}
    if dataset in DIGITS:
        images = _digits(sources.images)
        for k, part in enumerate(PARTS):
            complete[part], schema = datasets.rotated_digits(dataset, rows[part], 1000 * seed + k, images)
            masked[part] = datasets.mask_at_random(complete[part], list(schema.columns), missing, 1000 * seed + 100 + k)
        return Study(schema, complete, masked)
    table, schema = _longitudinal(dataset, sum(rows.values()), seed, sources)
    complete = split(table, schema, rows, seed)
    losing = [name for name in schema.covariates if name != schema.time]
    for k, part in enumerate(PARTS):
        masked[part] = datasets.mask_at_random(
            complete[part], losing, missing, 1000 * seed + 100 + k, instance=schema.instance, static=schema.static
        )
    return Study(schema, complete, masked)


def _longitudinal(dataset: int | str, patients: int, seed: int, sources: Sources) -> tuple[pd.DataFrame, Schema]:
    if dataset == "trial":
        table, schema = datasets.simulated_trial(patients, seed=seed)
    elif dataset == "health":
        table, schema = datasets.health_mnist(patients, seed=seed, source=sources.images)
    elif dataset == "cdisc":
        table, schema = _cdisc(sources.data)
    else:
        raise ValueError(f"there is no data set {dataset!r}.")
    kinds = {name: float if kind == "continuous" else object for name, kind in schema.covariates.items()}
    return table.astype(kinds), schema  # types that can hold gaps


@lru_cache(maxsize=1)
def _digits(source: Path | None) -> dict[int, npt.NDArray[np.float64]]:
    return datasets.digit_images(source)


@lru_cache(maxsize=1)
def _cdisc(folder: Path | None) -> tuple[pd.DataFrame, Schema]:
    if folder is None:
        raise ValueError("the CDISC pilot is not part of lacova: name its folder by --data, or LACOVA_DATA.")
    return cdisc(folder)


def split(table: pd.DataFrame, schema: Schema, patients: Mapping[str, int], seed: int) -> dict[str, pd.DataFrame]:
    """Split a table by patient into training, validation and test, with the given numbers of patients."""
    labels = np.random.default_rng(seed).permutation(table[schema.instance].unique())
    if len(labels) < sum(patients.values()):
        raise ValueError(f"there are {len(labels)} patients; {dict(patients)} were requested.")
    ends = np.cumsum([patients[part] for part in PARTS])
    return {
        part: table[table[schema.instance].isin(labels[end - patients[part] : end])].reset_index(drop=True)
        for part, end in zip(PARTS, ends, strict=True)
    }


@lru_cache(maxsize=8)
def fingerprint(dataset: int | str, sources: Sources) -> str:
    """Return a hash of the images behind a data set: results from other images are other results."""
    if dataset not in IMAGES:
        return ""
    images = _digits(sources.images)
    parts = [np.ascontiguousarray(images[k], dtype=np.float32).tobytes() for k in sorted(images)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:8]
