"""A filter for tables that are mostly empty."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd


def drop_sparse(
    table: pd.DataFrame,
    measurements: Sequence[str],
    instance: str,
    *,
    columns: float = 0.1,
    rows: float = 0.5,
    visits: int = 5,
) -> tuple[pd.DataFrame, list[str]]:
    """Filter a clinical table as in the paper; return it and the names of the remaining measurements.

    First drop measurements with less than a share `columns` observed, then rows with less than a share `rows` of the
    remaining measurements, then patients with fewer than `visits` rows. Rows keep their index.

    Examples:
        >>> table = pd.DataFrame({"id": [1, 1, 2], "alt": [30.0, 31.0, None], "psa": [None, None, None]})
        >>> drop_sparse(table, ["alt", "psa"], "id", visits=2)
        (   id   alt
        0   1  30.0
        1   1  31.0, ['alt'])
    """
    seen = table[list(measurements)].notna()
    frequent = [name for name in measurements if seen[name].mean() >= columns]
    dense = table.drop(columns=[name for name in measurements if name not in frequent])
    dense = dense[seen[frequent].mean(axis=1) >= rows]
    return dense[dense.groupby(instance)[instance].transform("size") >= visits], frequent
