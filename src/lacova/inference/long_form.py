"""Tables in long form: one line per row of the caller's table and, within it, per measurement or component."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from lacova.data.errors import DataError
from lacova.data.schema import Schema
from lacova.inference.metrics import ascending, quantile


def long_form(
    frame: pd.DataFrame, schema: Schema, within: Mapping[str, tuple[str, ...]], values: Mapping[str, npt.NDArray[Any]],
    repeated: tuple[str, ...] = (),
) -> pd.DataFrame:  # fmt: skip
    """Return a table with one line per row and combination of the names `within`; the last of them changes fastest.

    Args:
        frame: the caller's rows; their index is in the column `row`.
        schema: names the instance column, which is repeated.
        within: names, by the column that holds them.
        values: arrays over rows × names × names ..., by the column that holds them.
        repeated: other columns of the frame to repeat.
    """
    from_frame = [name for name in (schema.instance, *repeated) if name is not None]
    taken = [name for name in from_frame if name in ("row", *within, *values)]
    if taken:
        raise DataError(f"the answer has a column {taken[0]!r} of its own; rename that of the table, and fit again.")
    combinations = list(product(*within.values()))
    columns: dict[str, Any] = {"row": np.repeat(np.asarray(frame.index), len(combinations))}
    columns |= {name: frame[name].repeat(len(combinations)).array for name in from_frame}
    for k, name in enumerate(within):
        columns[name] = np.tile(np.array([names[k] for names in combinations], dtype=object), len(frame))
    return pd.DataFrame(columns | {name: array.reshape(-1) for name, array in values.items()})


def summary(draws: Tensor, interval: float) -> dict[str, Tensor]:
    """Return the mean over draws (the first dimension), and the ends of a central interval."""
    ordered = ascending(draws)
    lower, upper = (quantile(ordered, (1.0 + side * interval) / 2.0) for side in (-1.0, 1.0))
    return {"mean": draws.mean(0).cpu(), "lower": lower.cpu(), "upper": upper.cpu()}


def gather(parts: list[tuple[Tensor, dict[str, Tensor]]]) -> dict[str, Tensor]:
    """Concatenate arrays of some rows each, by name, in the order of the rows."""
    order = torch.argsort(torch.cat([rows.cpu() for rows, _ in parts]))
    return {name: torch.cat([part[name] for _, part in parts])[order] for name in parts[0][1]}
