"""Draws into DataFrames: means, intervals, and tables one below the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lacova.metrics import quantile
from lacova.predict import Draws
from lacova.schema import DataError
from lacova.table import Codec, Table

SIDES = ("lower", "upper")


@dataclass(frozen=True)
class Summary:
    """Mean of y (N×D), and per side of a central interval the quantiles of y and x, all encoded."""

    mean: Tensor
    ends: dict[str, tuple[Tensor, Tensor]]


def summarise(parts: Iterable[Draws], rows: int, codec: Codec, interval: float | None) -> Summary:
    """Reduce draws chunk by chunk, without holding all of them at once."""
    sizes = len(codec.schema.measurements), len(codec.schema.covariates)
    mean = torch.empty(rows, sizes[0])
    shares = {} if interval is None else dict(zip(SIDES, ((1.0 - interval) / 2.0, (1.0 + interval) / 2.0), strict=True))
    ends = {side: (torch.empty(rows, sizes[0]), torch.empty(rows, sizes[1])) for side in shares}
    for part in parts:
        mean[part.rows] = part.location.mean(0).cpu()
        for k, draws in enumerate((part.y, part.x) if shares else ()):
            ordered = draws.sort(0).values
            for side, share in shares.items():
                ends[side][k][part.rows] = quantile(ordered, share).cpu()
    return Summary(mean, ends)


def completed(
    frame: pd.DataFrame,
    codec: Codec,
    summary: Summary,
    x: Tensor,
    chances: Tensor | None = None,
    *,
    every: bool = False,
) -> pd.DataFrame:
    """The frame with its gaps filled from the mean of y and from x.

    Interval columns are added if there are any, and the `chances` (N×Q×levels) of each level where they are given: of
    categorical covariates with gaps, or of every one.
    """
    done = codec.fill(frame, codec.decode_measurements(summary.mean), x)
    sides = {side: codec.fill(frame, codec.decode_measurements(y), xs) for side, (y, xs) in summary.ends.items()}
    numeric = [c for c in codec.schema.columns if c not in codec.levels and c != codec.schema.instance]
    ends: list[tuple[str, object]] = [(f"{c}_{side}", sides[side][c]) for c in numeric for side in sides]
    return _with_columns(done, ends + ([] if chances is None else _chances(frame, codec, chances, every)))


def completed_draws(
    frame: pd.DataFrame, codec: Codec, parts: Iterable[Draws], table: Table, draws: int
) -> pd.DataFrame:
    """One completed table per draw."""
    y, x = torch.empty(draws, *table.y.shape), torch.empty(draws, *table.x.shape)
    for part in parts:
        y[:, part.rows], x[:, part.rows] = part.y.cpu(), part.x.cpu()
    return _stack([codec.fill(frame, codec.decode_measurements(y[k]), x[k]) for k in range(draws)])


def predicted(index: pd.Index[str], codec: Codec, summary: Summary) -> pd.DataFrame:
    """The mean of every measurement, and its interval if there is one."""
    names = list(codec.schema.measurements)
    out = pd.DataFrame(codec.decode_measurements(summary.mean), index=index, columns=names)
    sides = {side: codec.decode_measurements(y) for side, (y, _) in summary.ends.items()}
    return _with_columns(out, [(f"{c}_{side}", sides[side][:, d]) for d, c in enumerate(names) for side in sides])


def predicted_draws(index: pd.Index[str], codec: Codec, parts: Iterable[Draws], draws: int) -> pd.DataFrame:
    """One table of measurements per draw, noise included."""
    names = list(codec.schema.measurements)
    y = torch.empty(draws, len(index), len(names))
    for part in parts:
        y[:, part.rows] = part.y.cpu()
    return _stack([pd.DataFrame(codec.decode_measurements(one), index=index, columns=names) for one in y])


def _chances(frame: pd.DataFrame, codec: Codec, chances: Tensor, every: bool) -> list[tuple[str, object]]:
    """The probability of each level, for categorical covariates that have gaps in the frame, or for every one."""
    categories = [(q, c) for q, c in enumerate(codec.schema.covariates) if c in codec.levels]
    shown = [(q, c) for q, c in categories if every or frame[c].isna().any()]
    return [
        (f"{c}_p_{level}", chances[:, q, k].double().numpy())
        for q, c in shown
        for k, level in enumerate(codec.levels[c])
    ]


def _with_columns(frame: pd.DataFrame, added: list[tuple[str, object]]) -> pd.DataFrame:
    names = Counter([*frame.columns, *(name for name, _ in added)])
    taken = [name for name in dict(added) if names[name] > 1]
    if taken:
        raise DataError(
            f"there are column(s) {', '.join(taken[:4])}{' and more' if taken[4:] else ''} already, "
            "which would hold intervals or probabilities; rename them, or levels that read alike."
        )
    return pd.concat([frame, pd.DataFrame(dict(added), index=frame.index)], axis=1) if added else frame


def _stack(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Tables one below the other, numbered in a first column `draw`."""
    if "draw" in tables[0].columns:
        raise DataError("the table already has a column 'draw', which would number the draws; rename it first.")
    stacked = pd.concat(tables)
    numbers = pd.Series(np.repeat(np.arange(len(tables)), len(tables[0])), stacked.index, name="draw")
    return pd.concat([numbers, stacked], axis=1)  # to insert into a table of many pieces would draw a warning
