"""Filtering: the order of a patient's visits, what is observed before each, and predictions beside observed values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from lacova.data.columns import numbers
from lacova.data.errors import DataError
from lacova.data.schema import Schema
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder
from lacova.inference.long_form import long_form


def visit_numbers(frame: pd.DataFrame, schema: Schema) -> npt.NDArray[np.int64]:
    """Return the number of each row's visit among those of its patient, from 0 (N,).

    Visits are in the order of time, or of the rows if there is no time. Rows of a patient at the same time are one
    visit.
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

    A visit-constant covariate is observed if one of these rows has it in the frame. In the encoded table all rows of a
    patient have it, those before the first visit that shows it included.

    Args:
        table: all rows, encoded.
        frame: the same rows.
        schema: names the visit-constant columns.
        number: number of each row's visit (N,), from `visit_numbers`.
        visit: number of the visit to keep.
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
        in_frame = torch.as_tensor(frame[name].notna().to_numpy(copy=True))[rows]
        observed = torch.zeros(len(patients), dtype=torch.bool)
        observed[code[in_frame]] = True
        x_mask[:, q] &= observed[code]  # a level that is unseen is in the frame, but is not known
    labels = tuple(table.labels[p] for p in patients)
    return Table(table.y[rows] * y_mask, y_mask, table.x[rows] * x_mask, x_mask, code, labels)


def beside_observed(frame: pd.DataFrame, encoder: TableEncoder, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return predictions in long form beside the observed values.

    A category has a line for each level, `<measurement>_p_<level>`: its probability, beside 1 if it was observed, else
    0.

    Args:
        frame: the caller's rows.
        encoder: levels of the measurements.
        predicted: predictions of these rows, with columns `..._lower`, `..._upper` and `..._p_<level>`.
    """
    schema, by_name = encoder.schema, dict[str, tuple[Any, ...]]()
    for name in schema.measurements:
        if name not in encoder.levels:
            by_name[name] = (numbers(frame, name), *(predicted[f"{name}{end}"] for end in ("", "_lower", "_upper")))
            continue
        codes, nan = encoder.codes(frame, name), np.full(len(frame), np.nan)
        for k, level in enumerate(encoder.levels[name]):
            observed = np.where(np.isnan(codes), np.nan, codes == k)
            by_name[f"{name}_p_{level}"] = (observed, predicted[f"{name}_p_{level}"], nan, nan)
    arrays = (np.stack(columns, axis=1).astype(float) for columns in zip(*by_name.values(), strict=True))
    values: dict[str, Any] = dict(zip(("observed", "mean", "lower", "upper"), arrays, strict=True))
    repeated = () if schema.time is None else (schema.time,)
    lines = long_form(frame, schema, {"measurement": tuple(by_name)}, values, repeated)
    comparable = (lines["observed"].notna() & lines["lower"].notna()).to_numpy()
    inside = pd.array(lines["observed"].between(lines["lower"], lines["upper"]).to_numpy(), dtype="boolean")
    inside[~comparable] = pd.NA
    return lines.assign(inside=inside)
