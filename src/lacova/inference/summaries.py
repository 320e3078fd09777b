"""Draws into DataFrames: means, intervals, and tables one below the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lacova.data.errors import DataError
from lacova.data.io.dataframes import INSTANCE
from lacova.data.kinds import values_of
from lacova.data.scaling import Floats
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder
from lacova.inference.draws import Draws
from lacova.inference.metrics import ascending, quantile, weighted_quantile

SIDES = ("lower", "upper")


@dataclass(frozen=True)
class Summary:
    """Summary of the draws of N rows.

    Attributes:
        mean: mean of y in its own units; of a category, the code of its most probable level (N×D).
        ends: per side of a central interval, the quantiles of y in its own units and of encoded x.
        level_probabilities: probability of each level of y (N×D×K), if there are categorical measurements.
        x: encoded covariates with means and most probable levels (N×Q); of imputations.
        x_level_probabilities: probability of each level of x (N×Q×K); of imputations.
    """

    mean: Floats
    ends: dict[str, tuple[Floats, Tensor]]
    level_probabilities: Tensor | None = None
    x: Tensor | None = None
    x_level_probabilities: Tensor | None = None


def summarise(parts: Iterable[Draws], rows: int, encoder: TableEncoder, interval: float | None) -> Summary:
    """Reduce draws chunk by chunk, without holding all of them at once."""
    measurements, covariates = len(encoder.schema.measurements), len(encoder.schema.covariates)
    mean, levels = torch.empty(rows, measurements), encoder.measurements.max_levels
    nonlinear = np.flatnonzero(~encoder.scales.linear)
    averages = np.empty((rows, len(nonlinear)))
    probs = torch.empty(rows, measurements, levels) if levels else None
    x, x_probs = torch.empty(rows, covariates), torch.empty(rows, covariates, encoder.space.max_levels)
    shares = {} if interval is None else dict(zip(SIDES, ((1.0 - interval) / 2.0, (1.0 + interval) / 2.0), strict=True))
    ends = {side: (torch.empty(rows, measurements), torch.empty(rows, covariates)) for side in shares}
    for part in parts:
        mean[part.rows] = part.average(part.location).cpu()
        if len(nonlinear):
            weight = np.full((len(part.y), 1), 1.0 / len(part.y)) if part.weight is None else part.weight.cpu().numpy()
            averages[part.rows] = (weight[..., None] * encoder.in_own_units(part.y)[..., nonlinear]).sum(0)
        if probs is not None and part.level_probabilities is not None:
            probs[part.rows] = part.level_probabilities.cpu()
        if part.most_probable_x is not None and part.x_level_probabilities is not None:
            x[part.rows], x_probs[part.rows] = part.most_probable_x.cpu(), part.x_level_probabilities.cpu()
        for k, draws in enumerate((part.y, part.x) if shares else ()):
            ordered = ascending(draws) if part.weight is None else draws
            for side, share in shares.items():
                end = (
                    quantile(ordered, share) if part.weight is None
                    else weighted_quantile(draws, part.weight[..., None].expand_as(draws), share)
                )  # fmt: skip
                ends[side][k][part.rows] = end.cpu()
    values = encoder.in_own_units(mean)
    values[:, nonlinear] = averages
    if probs is not None:
        coded = [d for d, name in enumerate(encoder.schema.measurements) if name in encoder.levels]
        values[:, coded] = probs[:, coded].argmax(-1).numpy()
    decoded = {side: (encoder.decode_measurements(y), xs) for side, (y, xs) in ends.items()}
    return Summary(encoder.within_bounds(values), decoded, probs, x, x_probs)


def completed(
    frame: pd.DataFrame, encoder: TableEncoder, summary: Summary, probabilities: bool = False, *, every: bool = False
) -> pd.DataFrame:
    """Return the frame with its gaps filled.

    Interval columns are added if there are any. With `probabilities`, so is the probability of each level: of
    categorical columns with gaps, or of every one.
    """
    assert summary.x is not None
    filled = encoder.fill(frame, summary.mean, summary.x)
    sides = {side: encoder.fill(frame, y, x) for side, (y, x) in summary.ends.items()}
    numeric = [c for c in encoder.schema.columns if c not in encoder.levels and c != encoder.schema.instance]
    added: list[tuple[str, object]] = [(f"{c}_{side}", sides[side][c]) for c in numeric for side in sides]
    if probabilities:
        added += _covariate_probabilities(encoder, summary, frame, every)
        added += _measurement_probabilities(encoder, summary, frame, every)
    return _with_columns(filled, added)


def completed_draws(
    frame: pd.DataFrame, encoder: TableEncoder, parts: Iterable[Draws], table: Table, draws: int
) -> pd.DataFrame:
    """Return one completed table per draw."""
    y, x = torch.empty(draws, *table.y.shape), torch.empty(draws, *table.x.shape)
    for part in parts:
        y[:, part.rows], x[:, part.rows] = part.y.cpu(), part.x.cpu()
    _refuse_column(frame, "draw")
    many = pd.concat([frame] * draws, ignore_index=True)  # filled at once, which takes a small part of the time
    filled = encoder.fill(many, encoder.decode_measurements(y.flatten(0, 1)), x.flatten(0, 1))
    filled.index = frame.index.append([frame.index] * (draws - 1))
    tables = _numbered(filled, draws)
    if encoder.schema.instance is not None:
        tables.attrs[INSTANCE] = encoder.schema.instance
    return tables


def predicted(
    index: pd.Index[str], encoder: TableEncoder, summary: Summary, probabilities: bool = False
) -> pd.DataFrame:
    """Return mean or most probable level of every measurement, with intervals and probabilities if there are any."""
    kinds = encoder.schema.kinds
    added: list[tuple[str, object]] = []
    for d, name in enumerate(encoder.schema.measurements):
        if name not in encoder.levels:
            count = values_of(kinds.get(name, "gaussian")) == "count"
            for side, (y, _) in summary.ends.items():
                added.append((f"{name}_{side}", np.rint(y[:, d]) if count else y[:, d]))
    if probabilities:
        added += _measurement_probabilities(encoder, summary)
    return _with_columns(_table(index, encoder, summary.mean), added)


def predicted_draws(index: pd.Index[str], encoder: TableEncoder, parts: Iterable[Draws], draws: int) -> pd.DataFrame:
    """Return one table of measurements per draw, noise included."""
    y = torch.empty(draws, len(index), len(encoder.schema.measurements))
    for part in parts:
        y[:, part.rows] = part.y.cpu()
    return _stack([_table(index, encoder, encoder.decode_measurements(one)) for one in y])


def _table(index: pd.Index[str], encoder: TableEncoder, values: Floats) -> pd.DataFrame:
    """Return measurements in their own units, or levels, as a table."""
    table = pd.DataFrame(values, index=index, columns=list(encoder.schema.measurements))
    for d, name in enumerate(encoder.schema.measurements):
        if name in encoder.levels:
            table[name] = pd.Series(encoder.labels(name, values[:, d]).tolist(), index=index).infer_objects()
    return table


def _measurement_probabilities(
    encoder: TableEncoder, summary: Summary, frame: pd.DataFrame | None = None, every: bool = False
) -> list[tuple[str, object]]:
    """Return the probability of each level of categorical measurements, by column; where observed, 1 or 0.

    Without a frame, of all; with one, of those with gaps or unseen levels, or of every one.
    """
    columns: list[tuple[str, object]] = []
    for d, name in enumerate(encoder.schema.measurements):
        if name not in encoder.levels or summary.level_probabilities is None:
            continue
        codes = np.empty((0, 1)) if frame is None else encoder.codes(frame, name)[:, None]
        if not (frame is None or every or np.isnan(codes).any()):
            continue
        probs = summary.level_probabilities[:, d, : len(encoder.levels[name])].double().numpy()
        if frame is not None:
            probs = np.where(np.isnan(codes), probs, codes == np.arange(probs.shape[1]))
        columns += [(f"{name}_p_{level}", probs[:, k]) for k, level in enumerate(encoder.levels[name])]
    return columns


def _covariate_probabilities(
    encoder: TableEncoder, summary: Summary, frame: pd.DataFrame, every: bool
) -> list[tuple[str, object]]:
    """Return the probability of each level of categorical covariates with gaps or unseen levels, or of every one."""
    assert summary.x_level_probabilities is not None
    probs = summary.x_level_probabilities.double().numpy()
    categories = [(q, c) for q, c in enumerate(encoder.schema.covariates) if c in encoder.levels]
    shown = [(q, c) for q, c in categories if every or np.isnan(encoder.codes(frame, c)).any()]
    return [(f"{c}_p_{level}", probs[:, q, k]) for q, c in shown for k, level in enumerate(encoder.levels[c])]


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
    """Put tables one below the other, numbered in a first column `draw`."""
    _refuse_column(tables[0], "draw")
    return _numbered(pd.concat(tables), len(tables))


def _refuse_column(frame: pd.DataFrame, name: str) -> None:
    if name in frame.columns:
        raise DataError(f"the table already has a column {name!r}, which would number the draws; rename it first.")


def _numbered(stacked: pd.DataFrame, draws: int) -> pd.DataFrame:
    numbers = pd.Series(np.repeat(np.arange(draws), len(stacked) // draws), stacked.index, name="draw")
    return pd.concat([numbers, stacked], axis=1)  # to insert into a table of many pieces would draw a warning
