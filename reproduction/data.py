"""The data of the study, complete and with gaps: the same for every method, a function of (dataset, missing, seed)."""

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
    """Files that data come from: MNIST images (None for those at hand), and the folder of the clinical tables."""

    images: Path | None = None
    data: Path | None = None


@dataclass(frozen=True)
class Study:
    """Training, validation and test rows: `complete` is the truth, `masked` what models get."""

    schema: Schema
    complete: dict[str, pd.DataFrame]
    masked: dict[str, pd.DataFrame]

    @property
    def x(self) -> list[str]:
        return list(self.schema.covariates)

    def seen(self, part: str) -> pd.DataFrame:
        """Masked measurements beside complete covariates: what the oracle gets."""
        return self.masked[part].assign(**self.complete[part][self.x])

    def asked(self, covariates: pd.DataFrame) -> pd.DataFrame:
        """The test rows with all their measurements, to compare with, beside the given covariates."""
        return self.complete["test"].assign(**covariates[self.x])


def study(dataset: int | str, rows: Mapping[str, int], missing: float, seed: int, sources: Sources) -> Study:
    """Digits lose `missing` of all entries of X and Y; longitudinal tables lose it of X, but for the time of a visit.

    A visit-constant covariate is lost for all of a patient's visits or for none. Gaps that measurements have by
    themselves (the trials, and a quarter of the pixels of Health MNIST) are the same at every level.
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
    return table.astype(kinds), schema  # such columns can lose entries


@lru_cache(maxsize=1)
def _digits(source: Path | None) -> dict[int, npt.NDArray[np.float64]]:
    return datasets.digit_images(source)


@lru_cache(maxsize=1)
def _cdisc(folder: Path | None) -> tuple[pd.DataFrame, Schema]:
    if folder is None:
        raise ValueError("the CDISC pilot is not part of lacova: name its folder by --data, or LACOVA_DATA.")
    return cdisc(folder)


def split(table: pd.DataFrame, schema: Schema, patients: Mapping[str, int], seed: int) -> dict[str, pd.DataFrame]:
    """So many whole patients to training, validation and test."""
    labels = np.random.default_rng(seed).permutation(table[schema.instance].unique())
    if len(labels) < sum(patients.values()):
        raise ValueError(f"there are {len(labels)} patients; {dict(patients)} were asked for.")
    ends = np.cumsum([patients[part] for part in PARTS])
    return {
        part: table[table[schema.instance].isin(labels[end - patients[part] : end])].reset_index(drop=True)
        for part, end in zip(PARTS, ends, strict=True)
    }


@lru_cache(maxsize=8)
def fingerprint(dataset: int | str, sources: Sources) -> str:
    """Of the files behind a data set: results with other images are other results."""
    if dataset not in IMAGES:
        return ""
    found = _digits(sources.images)
    parts = [np.ascontiguousarray(found[k], dtype=np.float32).tobytes() for k in sorted(found)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:8]
