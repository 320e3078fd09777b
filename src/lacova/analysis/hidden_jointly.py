"""Joint scores of hidden numbers: those of a row, and those of a measurement over the visits of a patient."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from lacova.data.columns import patient_codes
from lacova.data.scaling import Floats
from lacova.data.table_encoder import TableEncoder
from lacova.inference.joint_scores import middle, score_units, shuffled

SCORES = ("energy", "variogram")
JOINT_COLUMNS = ("kind", "row", "column", "entries", *SCORES, *(f"{name}_shuffled" for name in SCORES))


class HiddenNumbers:
    """Hidden numeric measurements of a table with their draws, gathered column by column.

    Args:
        encoder: locations and scales of the measurements.
        frame: the table, with its patients if it has any.
    """

    def __init__(self, encoder: TableEncoder, frame: pd.DataFrame) -> None:
        self._encoder = encoder
        self._patient, _ = patient_codes(frame, encoder.schema.instance)
        self._rows: list[npt.NDArray[np.int64]] = []
        self._columns: list[int] = []
        self._truth: list[Floats] = []
        self._draws: list[Floats] = []

    def add(self, name: str, rows: npt.NDArray[np.int64], truth: Floats, draws: Floats) -> None:
        """Add the hidden entries of a column (E,) with their draws (draws×E); those of covariates are left out."""
        schema = self._encoder.schema
        if name not in schema.measurements:
            return
        d = schema.measurements.index(name)
        low, high = schema.limits.get(name, (None, None))
        if (low, high) != (None, None):  # values beyond a limit of detection are recorded as the limit
            truth, draws = np.clip(truth, low, high), np.clip(draws, low, high)
        location, scale = middle(self._encoder)[d], self._encoder.scales.spread[d]
        self._rows.append(rows)
        self._columns.append(d)
        self._truth.append((truth - location) / scale)
        self._draws.append((draws - location) / scale)

    def scores(self, seed: int) -> pd.DataFrame:
        """Return one line per row and course, with the columns `JOINT_COLUMNS`."""
        if not self._rows:
            return pd.DataFrame(columns=list(JOINT_COLUMNS))
        row = np.concatenate(self._rows)
        column = np.repeat(self._columns, [len(rows) for rows in self._rows])
        truth, draws = np.concatenate(self._truth), np.concatenate(self._draws, axis=1)
        names, apart = np.array(self._encoder.schema.measurements, dtype=object), shuffled(draws, seed)
        units = {"row": row}
        if self._patient is not None:
            units["course"] = column * (self._patient.max() + 1) + self._patient[row]
        tables = []
        for kind, unit in units.items():
            codes = torch.as_tensor(unit)
            scores, others = (score_units(torch.as_tensor(v), torch.as_tensor(truth), codes) for v in (draws, apart))
            first = pd.Series(np.arange(len(unit))).groupby(unit).min()[scores.unit.numpy()].to_numpy()
            lines = {
                "kind": kind, "row": row[first],
                "column": "" if kind == "row" else names[column[first]],
                "entries": scores.entries.numpy(),
            } | {name: getattr(scores, name).numpy() for name in SCORES}  # fmt: skip
            lines |= {f"{name}_shuffled": getattr(others, name).numpy() for name in SCORES}
            tables.append(pd.DataFrame(lines, columns=list(JOINT_COLUMNS)))
        return pd.concat(tables, ignore_index=True)
