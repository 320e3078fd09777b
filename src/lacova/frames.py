"""Draws into DataFrames: means, intervals, and tables one below the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


def completed(frame: pd.DataFrame, codec: Codec, summary: Summary, x: Tensor) -> pd.DataFrame:
    """The frame with its gaps filled from the mean of y and from x, and with interval columns if there are any."""
    done = codec.fill(frame, codec.decode_measurements(summary.mean), x)
    sides = {side: codec.fill(frame, codec.decode_measurements(y), xs) for side, (y, xs) in summary.ends.items()}
    numeric = [c for c in codec.schema.columns if c not in codec.levels and c != codec.schema.instance]
    return _with_ends(done, {f"{c}_{side}": sides[side][c] for c in numeric for side in sides})


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
    return _with_ends(out, {f"{c}_{side}": sides[side][:, d] for d, c in enumerate(names) for side in sides})


def predicted_draws(index: pd.Index[str], codec: Codec, parts: Iterable[Draws], draws: int) -> pd.DataFrame:
    """One table of measurements per draw, noise included."""
    names = list(codec.schema.measurements)
    y = torch.empty(draws, len(index), len(names))
    for part in parts:
        y[:, part.rows] = part.y.cpu()
    return _stack([pd.DataFrame(codec.decode_measurements(one), index=index, columns=names) for one in y])


def _with_ends(frame: pd.DataFrame, ends: dict[str, object]) -> pd.DataFrame:
    taken = [name for name in ends if name in frame.columns]
    if taken:
        raise DataError(f"the table already has column(s) {', '.join(taken)}, which would hold intervals; rename them.")
    return pd.concat([frame, pd.DataFrame(ends, index=frame.index)], axis=1) if ends else frame


def _stack(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Tables one below the other, numbered in a first column `draw`."""
    if "draw" in tables[0].columns:
        raise DataError("the table already has a column 'draw', which would number the draws; rename it first.")
    for k, table in enumerate(tables):
        table.insert(0, "draw", k)
    return pd.concat(tables)
