"""Cross-validation by patient: which rows are held out in a fold, and which of their entries are hidden."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.data.columns import patient_codes
from lacova.data.levels import without_unseen
from lacova.data.masks import mask_at_random
from lacova.data.schema import Schema
from lacova.data.statistics import ColumnStatistics
from lacova.models.checks import whole_number

MIN_UNITS = 20  # with fewer training rows or instances, none are held out for early stopping


@dataclass(frozen=True)
class Fold:
    """The rows of one fold.

    Attributes:
        train: the training rows.
        validation: rows for early stopping, or None.
        test: the rows held out, as they are.
        hidden: the same with entries hidden, in measurements and covariates.
        hidden_y: the same with only the measurements of `hidden` hidden.
    """

    train: pd.DataFrame
    validation: pd.DataFrame | None
    test: pd.DataFrame
    hidden: pd.DataFrame
    hidden_y: pd.DataFrame


def assign_folds(frame: pd.DataFrame, schema: Schema, folds: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the fold in which each row is held out (N,), the same for all rows of an instance."""
    unit, count = _units(frame, schema)
    word = "rows" if schema.instance is None else f"different {schema.instance!r}"
    if not 2 <= whole_number(folds, "folds") <= count:
        raise ValueError(f"folds is {folds}; expected from 2 to {count}, the number of {word}.")
    fold = np.empty(count, dtype=np.int64)
    fold[np.random.default_rng(seed).permutation(count)] = np.arange(count) % folds
    return fold[unit]


def make_fold(
    frame: pd.DataFrame, schema: Schema, fold: npt.NDArray[np.int64], k: int, hide: float, validation_share: float,
    seed: int,
) -> Fold:  # fmt: skip
    """Split off the rows of fold k, rows for early stopping, and hide a share of the entries held out.

    Args:
        frame: all rows.
        schema: the roles of the columns.
        fold: the fold of each row, from `assign_folds`.
        k: the fold to hold out.
        hide: the share of the entries of the rows held out to hide.
        validation_share: the share of the other rows, or instances, to use for early stopping.
        seed: of the random numbers.
    """
    rest, test = frame[fold != k].reset_index(drop=True), frame[fold == k].reset_index(drop=True)
    rng = np.random.default_rng([seed, k])
    unit, count = _units(rest, schema)
    chosen = rng.permutation(count)[: round(validation_share * count) if count >= MIN_UNITS else 0]
    held_out = np.isin(unit, chosen)
    train = rest[~held_out]
    levels = ColumnStatistics.known_levels(schema, train)
    validation = without_unseen(rest[held_out], levels, "missing") if held_out.any() else None
    test = without_unseen(test, levels, "missing")
    covariates = [name for name in schema.covariates if name != schema.time]
    columns, mask_seed = [*schema.measurements, *covariates], int(rng.integers(2**32))
    hidden = mask_at_random(test, columns, hide, mask_seed, instance=schema.instance, static=schema.static)
    return Fold(train, validation, test, hidden, hidden.assign(**test[covariates]))


def _units(frame: pd.DataFrame, schema: Schema) -> tuple[npt.NDArray[np.int64], int]:
    """Return the number of each row's instance (N,), or of the row where there are no instances, and how many."""
    patient, labels = patient_codes(frame, schema.instance)
    return (np.arange(len(frame)), len(frame)) if patient is None else (np.asarray(patient), len(labels))
