"""A patient's record visit by visit: which visits come before which, and predictions beside what was observed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from lacova.data.columns import numbers
from lacova.data.encoder import TableEncoder
from lacova.data.errors import DataError
from lacova.data.schema import Schema
from lacova.data.table import Table
from lacova.inference.long_form import long_form


def visit_numbers(frame: pd.DataFrame, schema: Schema) -> npt.NDArray[np.int64]:
    """The number of each row's visit among those of its patient, from 0, by time, or by row if there is no time.

    Rows of a patient at the same time are one visit: none of them comes before the other.
    """
    if schema.instance is None:
        raise DataError(
            "filtering follows instances, but the schema has no instance column: give Schema(instance=...)."
        )
    groups = frame[schema.instance]
    if schema.time is None:
        return np.asarray(groups.groupby(groups.to_numpy(), sort=False).cumcount(), dtype=np.int64)
    time = pd.Series(numbers(frame, schema.time))
    gaps = int(time.isna().sum())
    if gaps:
        raise DataError(
            f"time column {schema.time!r} is missing in {gaps} row(s), so that it is unknown which visits came before; "
            "fill it in, or drop those rows."
        )
    return np.asarray(time.groupby(groups.to_numpy()).rank(method="dense").to_numpy() - 1, dtype=np.int64)


def only_earlier_values(
    table: Table, frame: pd.DataFrame, schema: Schema, number: npt.NDArray[np.int64], visit: int
) -> Table:
    """Return the rows of a visit, without measurements, and behind them all earlier rows of the same patients.

    A visit-constant covariate is known if one of these rows shows it.

    Args:
        table: all rows, encoded.
        frame: the same rows.
        schema: names the visit-constant columns.
        number: of each row's visit.
        visit: the number of the visit.
    """
    assert table.patient is not None
    patient = table.patient.numpy()
    now = np.flatnonzero(number == visit)
    earlier = np.flatnonzero((number < visit) & np.isin(patient, patient[now]))
    rows = torch.as_tensor(np.concatenate([now, earlier]))
    codes, patients = pd.factorize(patient[rows.numpy()])
    code = torch.as_tensor(codes.astype(np.int64))
    x_mask, y_mask = table.x_mask[rows], table.y_mask[rows].clone()
    y_mask[: len(now)] = False
    for name in schema.static:
        q = list(schema.covariates).index(name)
        shown = torch.as_tensor(frame[name].notna().to_numpy())[rows]
        known = torch.zeros(len(patients), dtype=torch.bool)
        known[code[shown]] = True
        x_mask[:, q] = known[code]
    labels = tuple(table.labels[p] for p in patients)
    return Table(table.y[rows] * y_mask, y_mask, table.x[rows] * x_mask, x_mask, code, labels)


def followed(frame: pd.DataFrame, encoder: TableEncoder, predicted: pd.DataFrame) -> pd.DataFrame:
    """Predictions with `_lower`, `_upper` and `_p_<level>`, row by row, in long form beside what was observed.

    Of a category each level has a line, `<measurement>_p_<level>`: its probability, and 1 or 0 for what was observed.
    """
    schema, found = encoder.schema, dict[str, tuple[Any, ...]]()
    for name in schema.measurements:
        if name not in encoder.levels:
            found[name] = (numbers(frame, name), *(predicted[f"{name}{end}"] for end in ("", "_lower", "_upper")))
            continue
        codes, never = encoder.codes(frame, name), np.full(len(frame), np.nan)
        for k, level in enumerate(encoder.levels[name]):
            seen = np.where(np.isnan(codes), np.nan, codes == k)
            found[f"{name}_p_{level}"] = (seen, predicted[f"{name}_p_{level}"], never, never)
    parts = (np.stack(columns, axis=1).astype(float) for columns in zip(*found.values(), strict=True))
    values: dict[str, Any] = dict(zip(("observed", "mean", "lower", "upper"), parts, strict=True))
    beside = () if schema.time is None else (schema.time,)
    lines = long_form(frame, schema, {"measurement": tuple(found)}, values, beside)
    known = (lines["observed"].notna() & lines["lower"].notna()).to_numpy()
    inside = pd.array(lines["observed"].between(lines["lower"], lines["upper"]).to_numpy(), dtype="boolean")
    inside[~known] = pd.NA
    return lines.assign(inside=inside)
