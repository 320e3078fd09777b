"""Draws into DataFrames: means, intervals, and tables one below the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lacova.data.encoder import Table, TableEncoder
from lacova.data.errors import DataError
from lacova.data.measurement_space import COUNTS, LEVELS
from lacova.data.scaling import Floats
from lacova.inference.metrics import quantile, weighted_quantile
from lacova.inference.predict import Draws

SIDES = ("lower", "upper")


@dataclass(frozen=True)
class Summary:
    """Mean of y (N×D), per side of a central interval the quantiles of y and x, and the level_probabilities of levels of y.

    y is in its own units, a category as the code of its most probable level; x is encoded.
    """

    mean: Floats
    ends: dict[str, tuple[Floats, Tensor]]
    level_probabilities: Tensor | None = None


def summarise(parts: Iterable[Draws], rows: int, encoder: TableEncoder, interval: float | None) -> Summary:
    """Reduce draws chunk by chunk, without holding all of them at once."""
    sizes = len(encoder.schema.measurements), len(encoder.schema.covariates)
    mean, levels = torch.empty(rows, sizes[0]), encoder.measurements.max_levels
    bent = np.flatnonzero(~encoder.scales.linear)
    averages = np.empty((rows, len(bent)))
    level_probabilities = torch.empty(rows, sizes[0], levels) if levels else None
    shares = {} if interval is None else dict(zip(SIDES, ((1.0 - interval) / 2.0, (1.0 + interval) / 2.0), strict=True))
    ends = {side: (torch.empty(rows, sizes[0]), torch.empty(rows, sizes[1])) for side in shares}
    for part in parts:
        mean[part.rows] = part.average(part.location).cpu()
        if len(bent):
            weight = np.full((len(part.y), 1), 1.0 / len(part.y)) if part.weight is None else part.weight.cpu().numpy()
            averages[part.rows] = (weight[..., None] * encoder.own(part.y)[..., bent]).sum(0)
        if level_probabilities is not None and part.level_probabilities is not None:
            level_probabilities[part.rows] = part.level_probabilities.cpu()
        for k, draws in enumerate((part.y, part.x) if shares else ()):
            ordered = draws.sort(0).values if part.weight is None else draws
            for side, share in shares.items():
                end = (
                    quantile(ordered, share) if part.weight is None
                    else weighted_quantile(draws, part.weight[..., None].expand_as(draws), share)
                )  # fmt: skip
                ends[side][k][part.rows] = end.cpu()
    values = encoder.own(mean)
    values[:, bent] = averages
    if level_probabilities is not None:
        coded = encoder.measurements.columns(*LEVELS)
        values[:, coded] = level_probabilities[:, coded].argmax(-1).numpy()
    decoded = {side: (encoder.decode_measurements(y), x) for side, (y, x) in ends.items()}
    return Summary(encoder.kept(values), decoded, level_probabilities)


def completed(
    frame: pd.DataFrame,
    encoder: TableEncoder,
    summary: Summary,
    x: Tensor,
    level_probabilities: Tensor | None = None,
    *,
    every: bool = False,
) -> pd.DataFrame:
    """The frame with its gaps filled from the mean of y and from x.

    Interval columns are added if there are any, and the level_probabilities of each level where those of covariates (N×Q×levels)
    are given: of categorical columns with gaps, or of every one.
    """
    done = encoder.fill(frame, summary.mean, x)
    sides = {side: encoder.fill(frame, y, xs) for side, (y, xs) in summary.ends.items()}
    numeric = [c for c in encoder.schema.columns if c not in encoder.levels and c != encoder.schema.instance]
    ends: list[tuple[str, object]] = [(f"{c}_{side}", sides[side][c]) for c in numeric for side in sides]
    if level_probabilities is not None:
        ends += _chances(frame, encoder, level_probabilities, every) + _measurement_probabilities(
            encoder, summary, frame, every
        )
    return _with_columns(done, ends)


def completed_draws(
    frame: pd.DataFrame, encoder: TableEncoder, parts: Iterable[Draws], table: Table, draws: int
) -> pd.DataFrame:
    """One completed table per draw."""
    y, x = torch.empty(draws, *table.y.shape), torch.empty(draws, *table.x.shape)
    for part in parts:
        y[:, part.rows], x[:, part.rows] = part.y.cpu(), part.x.cpu()
    _free(frame, "draw")
    many = pd.concat([frame] * draws, ignore_index=True)  # filled at once, which takes a small part of the time
    done = encoder.fill(many, encoder.decode_measurements(y.flatten(0, 1)), x.flatten(0, 1))
    done.index = frame.index.append([frame.index] * (draws - 1))
    return _numbered(done, draws)


def predicted(
    index: pd.Index[str], encoder: TableEncoder, summary: Summary, probabilities: bool = False
) -> pd.DataFrame:
    """The mean or most probable level of every measurement, its interval if there is one, and level_probabilities if asked for."""
    kinds = encoder.schema.kinds
    numeric = [(d, name) for d, name in enumerate(encoder.schema.measurements) if name not in encoder.levels]
    ends: list[tuple[str, object]] = []
    for d, name in numeric:
        for side, (y, _) in summary.ends.items():
            ends.append((f"{name}_{side}", np.rint(y[:, d]) if kinds.get(name) in COUNTS else y[:, d]))
    return _with_columns(
        _table(index, encoder, summary.mean),
        ends + (_measurement_probabilities(encoder, summary) if probabilities else []),
    )


def predicted_draws(index: pd.Index[str], encoder: TableEncoder, parts: Iterable[Draws], draws: int) -> pd.DataFrame:
    """One table of measurements per draw, noise included."""
    y = torch.empty(draws, len(index), len(encoder.schema.measurements))
    for part in parts:
        y[:, part.rows] = part.y.cpu()
    return _stack([_table(index, encoder, encoder.decode_measurements(one)) for one in y])


def _table(index: pd.Index[str], encoder: TableEncoder, values: Floats) -> pd.DataFrame:
    """Measurements in their own units, or levels, as a table."""
    out = pd.DataFrame(values, index=index, columns=list(encoder.schema.measurements))
    for d, name in enumerate(encoder.schema.measurements):
        if name in encoder.levels:
            out[name] = pd.Series(encoder.labels(name, values[:, d]).tolist(), index=index).infer_objects()
    return out


def _measurement_probabilities(
    encoder: TableEncoder, summary: Summary, frame: pd.DataFrame | None = None, every: bool = False
) -> list[tuple[str, object]]:
    """The probability of each level of categorical measurements; of a frame, 1 for what is observed there.

    Without a frame, of all; with one, of those with gaps, or of every one.
    """
    found: list[tuple[str, object]] = []
    for d, name in enumerate(encoder.schema.measurements):
        if name not in encoder.levels or summary.level_probabilities is None:
            continue
        if not (frame is None or every or frame[name].isna().any()):
            continue
        level_probabilities = summary.level_probabilities[:, d, : len(encoder.levels[name])].double().numpy()
        if frame is not None:
            codes = encoder.codes(frame, name)[:, None]
            level_probabilities = np.where(
                np.isnan(codes), level_probabilities, codes == np.arange(level_probabilities.shape[1])
            )
        found += [(f"{name}_p_{level}", level_probabilities[:, k]) for k, level in enumerate(encoder.levels[name])]
    return found


def _chances(
    frame: pd.DataFrame, encoder: TableEncoder, level_probabilities: Tensor, every: bool
) -> list[tuple[str, object]]:
    """The probability of each level, for categorical covariates that have gaps in the frame, or for every one."""
    categories = [(q, c) for q, c in enumerate(encoder.schema.covariates) if c in encoder.levels]
    shown = [(q, c) for q, c in categories if every or frame[c].isna().any()]
    return [
        (f"{c}_p_{level}", level_probabilities[:, q, k].double().numpy())
        for q, c in shown
        for k, level in enumerate(encoder.levels[c])
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
    _free(tables[0], "draw")
    return _numbered(pd.concat(tables), len(tables))


def _free(frame: pd.DataFrame, name: str) -> None:
    if name in frame.columns:
        raise DataError(f"the table already has a column {name!r}, which would number the draws; rename it first.")


def _numbered(stacked: pd.DataFrame, draws: int) -> pd.DataFrame:
    numbers = pd.Series(np.repeat(np.arange(draws), len(stacked) // draws), stacked.index, name="draw")
    return pd.concat([numbers, stacked], axis=1)  # to insert into a table of many pieces would draw a warning
