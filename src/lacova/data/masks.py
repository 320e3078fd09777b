"""Gaps made on purpose, to compare imputed values with known ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lacova.data.errors import DataError, hint


def mask_at_random(
    table: pd.DataFrame,
    columns: Sequence[str],
    fraction: float,
    seed: int,
    *,
    instance: str | None = None,
    static: Sequence[str] = (),
) -> pd.DataFrame:
    """Return a copy in which each entry of `columns` is missing with probability `fraction`, completely at random.

    Args:
        table: any table.
        columns: the columns that lose entries.
        fraction: the probability, from 0 to 1.
        seed: seed of the gaps.
        instance: the column that names the patient.
        static: columns that are constant within a patient. Those among `columns` lose the entries of all visits of a
            patient, or none. The gaps of the other columns do not depend on it.

    Examples:
        >>> visits = pd.DataFrame({"id": [1, 1, 2, 2, 3, 3], "sex": list("ffmmff"), "dose": range(6)})
        >>> mask_at_random(visits, ["sex", "dose"], 0.4, seed=1, instance="id", static=["sex"])
           id  sex  dose
        0   1    f   0.0
        1   1    f   1.0
        2   2  NaN   2.0
        3   2  NaN   3.0
        4   3    f   NaN
        5   3    f   5.0
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction is {fraction}; expected a number from 0 to 1.")
    if len(static) and instance is None:
        raise ValueError(f"static columns {list(static)} are constant within a patient: name the instance column too.")
    absent = [name for name in [*columns, *static, *([] if instance is None else [instance])] if name not in table]
    if absent:
        raise DataError(f"the table has no column {', '.join(map(repr, absent))}.{hint(absent, table.columns)}")
    holes = np.random.default_rng(seed).random((len(table), len(columns))) < fraction
    if instance is not None:
        _, first, patient = np.unique(pd.factorize(table[instance])[0], return_index=True, return_inverse=True)
        constant = [name in static for name in columns]
        holes[:, constant] = holes[first[patient]][:, constant]
    masked = table.copy()
    masked[list(columns)] = masked[list(columns)].mask(holes)
    return masked
