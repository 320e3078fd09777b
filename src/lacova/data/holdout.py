"""Which rows a fit holds out to choose the best weights, and how these rows are found again in a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.data.columns import patient_codes, require_columns
from lacova.data.io.dataframes import to_pandas
from lacova.data.io.parquet import Source
from lacova.data.labels import Prints, fingerprints, splitmix64
from lacova.data.schema import Schema
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder

SHARE = 0.1  # of the rows or patients
# Smaller tables need all their rows; docs/training.md has the figures. The patients of a stream are not known before
# it is read.
MIN_ROWS, MIN_PATIENTS, MIN_STREAM_ROWS = 500, 200, 2000
KEPT = 5  # rows or patients with a level, or with a value in a column, that stay in training at least
GAP = np.uint64(0x9E3779B97F4A7C15)  # stands for a gap in the fingerprint of a row


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The rows, or the patients, that were not in training.

    Attributes:
        prints: fingerprints of the patients' labels, or of the rows' contents, sorted; rows that are equal in all
            columns have one each. Empty for rows of a stream.
        count: how many rows or patients.
        given: whether the caller gave them; else `fit` chose them.
        asked: the share that `fit` was to choose, or False for none; None where that was left to it.
    """

    prints: Prints = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    count: int = 0
    given: bool = False
    asked: float | None = None

    @classmethod
    def of(cls, frame: pd.DataFrame, encoder: TableEncoder, given: bool, asked: float | None = None) -> HeldOut:
        """Remember the rows of a table, or its patients."""
        prints = _prints(frame, encoder)
        prints = np.sort(prints) if encoder.schema.instance is None else np.unique(prints)
        return cls(prints, len(prints), given, asked)

    def among(self, frame: pd.DataFrame, encoder: TableEncoder) -> npt.NDArray[np.bool_]:
        """Return which rows of a table were held out (N,).

        Of rows that are equal in all columns, as many as were held out: to a model they are the same.
        """
        if len(self.prints) == 0:
            return np.zeros(len(frame), dtype=bool)
        prints = _prints(frame, encoder)
        if encoder.schema.instance is not None:
            return np.isin(prints, self.prints)
        held_out = np.searchsorted(self.prints, prints, "right") - np.searchsorted(self.prints, prints, "left")
        return pd.Series(prints).groupby(prints).cumcount().to_numpy() < held_out


class Split(NamedTuple):
    """Training rows, and validation rows or None; `given` says whether the caller gave these, else what was `asked`."""

    train: Any
    validation: Any
    given: bool = False
    asked: float | None = None


def hold_out(data: Any, schema: Schema, validation: Any, seed: int) -> Split:
    """Split rows into those to train on and those to choose the best weights by, unless these are given.

    Args:
        data: the rows given for training: a table, or the source of a stream.
        schema: the roles of the columns.
        validation: validation rows, which are returned as they are; False for none; a share of the rows or patients to
            hold out; None for a tenth, where the table is large enough.
        seed: of the choice.
    """
    if validation is None or isinstance(validation, bool | int | float | np.number):
        share = _share(validation)
    else:
        return Split(data, validation, given=True)
    asked = None if validation is None else share or False
    if share == 0.0:
        return Split(data, None, asked=asked)
    if isinstance(data, Source):
        if validation is None and len(data) < MIN_STREAM_ROWS:
            return Split(data, None)
        return Split(data.share(share, 1.0, seed), data.share(0.0, share, seed), asked=asked)
    frame, _ = to_pandas(data, schema.columns)
    require_columns(frame, schema.columns)
    patient, labels = patient_codes(frame, schema.instance)
    unit, count = (np.arange(len(frame)), len(frame)) if patient is None else (patient, len(labels))
    if validation is None and count < (MIN_ROWS if patient is None else MIN_PATIENTS):
        return Split(data, None)
    chosen = np.zeros(count, dtype=bool)
    chosen[np.random.default_rng(seed).permutation(count)[: round(share * count)]] = True
    held_out = (chosen & ~_needed(frame, schema, unit, chosen))[unit]
    if not held_out.any():
        if validation is None:
            return Split(data, None)
        raise ValueError(
            f"validation={validation!r} of {count} row(s) or patient(s) holds none out, as {KEPT} with each level and "
            "with a value in each column stay in training; give more rows, a larger share, or False."
        )
    return Split(frame[~held_out], frame[held_out], asked=asked)


def _share(validation: Any) -> float:
    if validation is None:
        return SHARE
    if validation is False:
        return 0.0
    if validation is True or not 0.0 < validation < 1.0:
        raise ValueError(
            f"validation is {validation!r}; expected validation rows, a share of the rows or patients between 0 and 1, "
            "or False for none."
        )
    return float(validation)


def _needed(
    frame: pd.DataFrame, schema: Schema, unit: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which units show a level, or a value in a column, that too few of the units not chosen show."""
    needed = np.zeros(len(chosen), dtype=bool)
    columns = [name for name in (*schema.measurements, *schema.covariates) if name not in schema.categories]
    if columns:
        seen = pd.DataFrame(frame[columns].notna().to_numpy()).groupby(unit).any().to_numpy()
        needed |= seen[:, seen[~chosen].sum(0) < KEPT].any(1)
    for name in schema.categories:
        codes, levels = pd.factorize(frame[name])
        shown = np.unique(np.stack([unit, codes])[:, codes >= 0], axis=1)
        kept = np.bincount(shown[1, ~chosen[shown[0]]], minlength=len(levels))
        needed[shown[0, kept[shown[1]] < KEPT]] = True
    return needed


def _prints(frame: pd.DataFrame, encoder: TableEncoder) -> Prints:
    """Return the fingerprint of each row's patient, or, without patients, of its content as a model sees it (N,).

    Encoded as 32-bit numbers, so that a file, another type of a column or another order of rows changes nothing.
    """
    instance = encoder.schema.instance
    return row_prints(encoder.encode(frame, unseen="missing")) if instance is None else fingerprints(frame[instance])


def row_prints(table: Table) -> Prints:
    """Return a fingerprint of the content of each row (N,)."""
    prints = np.zeros(len(table), dtype=np.uint64)
    for values, mask in ((table.y, table.y_mask), (table.x, table.x_mask)):
        words = (values.float().numpy() + np.float32(0.0)).view(np.uint32).astype(np.uint64)  # -0 becomes 0
        for column in np.where(mask.numpy(), words, GAP).T:
            prints = splitmix64(prints ^ column)
    return prints
