"""What is mostly empty is left out."""

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
    """The paper's filter of a clinical table, in its order, and the measurements that are left.

    First the measurements of which less than a share `columns` is observed go, then the rows with less than a share
    `rows` of what is left, then the patients with less than `visits` rows. Rows keep their index.

    Examples:
        >>> table = pd.DataFrame({"id": [1, 1, 2], "alt": [30.0, 31.0, None], "psa": [None, None, None]})
        >>> drop_sparse(table, ["alt", "psa"], "id", visits=2)
        (   id   alt
        0   1  30.0
        1   1  31.0, ['alt'])
    """
    seen = table[list(measurements)].notna()
    kept = [name for name in measurements if seen[name].mean() >= columns]
    left = table.drop(columns=[name for name in measurements if name not in kept])
    left = left[seen[kept].mean(axis=1) >= rows]
    return left[left.groupby(instance)[instance].transform("size") >= visits], kept
