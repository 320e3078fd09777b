"""Answers in long form: one line per row of the caller's table and, within it, per measurement or component."""

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
from lacova.inference.metrics import quantile


def long_form(
    frame: pd.DataFrame, schema: Schema, within: Mapping[str, tuple[str, ...]], values: Mapping[str, npt.NDArray[Any]],
    beside: tuple[str, ...] = (),
) -> pd.DataFrame:  # fmt: skip
    """One line per row and combination of the names `within`, of which the last changes fastest.

    Args:
        frame: the caller's rows; their index is in the column `row`.
        schema: names the instance, which stands behind.
        within: names, by the column that holds them.
        values: arrays over rows × names × names ..., by the column that holds them.
        beside: other columns of the frame to repeat.
    """
    kept = [name for name in (schema.instance, *beside) if name is not None]
    taken = [name for name in kept if name in ("row", *within, *values)]
    if taken:
        raise DataError(f"the answer has a column {taken[0]!r} of its own; rename that of the table, and fit again.")
    pairs = list(product(*within.values()))
    found: dict[str, Any] = {"row": np.repeat(np.asarray(frame.index), len(pairs))}
    found |= {name: frame[name].repeat(len(pairs)).array for name in kept}
    for k, name in enumerate(within):
        found[name] = np.tile(np.array([pair[k] for pair in pairs], dtype=object), len(frame))
    return pd.DataFrame(found | {name: array.reshape(-1) for name, array in values.items()})


def summary(draws: Tensor, interval: float) -> dict[str, Tensor]:
    """Mean over draws (the first dimension), and the ends of a central interval."""
    ordered = draws.sort(0).values
    lower, upper = (quantile(ordered, (1.0 + side * interval) / 2.0) for side in (-1.0, 1.0))
    return {"mean": draws.mean(0).cpu(), "lower": lower.cpu(), "upper": upper.cpu()}


def gather(parts: list[tuple[Tensor, dict[str, Tensor]]]) -> dict[str, Tensor]:
    """Summaries of some rows each, put together in the order of the rows."""
    order = torch.argsort(torch.cat([rows.cpu() for rows, _ in parts]))
    return {name: torch.cat([part[name] for _, part in parts])[order] for name in parts[0][1]}
