"""What-if comparisons: predictions with some covariates set to given values, beside predictions as things are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple

import numpy as np
import pandas as pd
import torch

from lacova.data.columns import level_from_text
from lacova.data.errors import DataError, hint, listed
from lacova.data.io.dataframes import Frame
from lacova.data.table_encoder import TableEncoder
from lacova.inference.draws import Draws
from lacova.inference.ensemble import MemberDoubt
from lacova.inference.long_form import gather, long_form, summary
from lacova.likelihoods.moments import Moments

VERSIONS = ("as_is", "what_if")


class WhatIf(NamedTuple, Generic[Frame]):
    """Two predictions and their difference, row by row and on average.

    Attributes:
        rows: one line per row and measurement: the means `as_is` and `what_if` and their `difference`, each with the
            ends of a central interval, `..._lower` and `..._upper`. Intervals of a prediction are for y, noise
            included; those of a difference are for its mean, as both predictions share their noise.
        average: the same averaged over all rows, one line per measurement, with an interval for the difference alone.
        draws: with `keep_draws`, the draws behind both: one line per draw, row and measurement, numbered in `draw`,
            with the means `as_is` and `what_if` in that draw and their `difference`, and `as_is_drawn` and
            `what_if_drawn`, the values themselves, noise included (for a level, its probability). Within a draw, all
            rows share what is unknown of the model: average over rows within draws, then summarise over draws. None
            without `keep_draws`.

    A categorical measurement has a line for each level, `<measurement>_p_<level>`: its probability. The interval of a
    probability shows its uncertainty. Of a model with members, `as_is`, `what_if` and `difference` are means over
    these. The draws, and with them the intervals, have the doubt completed: on the log scale for positive means, in
    log-odds for probabilities. The mean of such draws may then differ a little from the estimate.
    """

    rows: Frame
    average: Frame
    draws: Frame | None = None


def encode_setting(encoder: TableEncoder, frame: pd.DataFrame, changes: Mapping[str, Any]) -> dict[int, float]:
    """Return the encoded value of each covariate that is set, by column of x; refuse values it cannot take.

    Args:
        encoder: levels and scales of the covariates.
        frame: the caller's rows.
        changes: value of each covariate to set, in its own units.
    """
    if not isinstance(changes, Mapping) or not changes:
        raise DataError(f'say which covariates to set to what, such as {{"arm": "b"}}; got {changes!r}.')
    names = list(encoder.schema.covariates)
    unknown = [name for name in changes if name not in names]
    if unknown:
        raise DataError(
            f"{listed(unknown)} cannot be set: the covariates are {listed(names)}.{hint(unknown, names)} "
            "Only covariates can be set."
        )
    for name, value in changes.items():
        if not pd.api.types.is_scalar(value) or pd.isna(value):
            raise DataError(f"covariate {name!r} is set to {value!r}; expected one value, the same for all rows.")
    changed = frame.head(1).assign(**{name: pd.Series([value], frame.index[:1]) for name, value in changes.items()})
    return {names.index(name): float(encoder.encode_covariate(changed, name)[0]) for name in changes}


def from_text(encoder: TableEncoder, name: str, text: str) -> Any:
    """Return a covariate's value from text: the level that reads like that, or a number; else the text itself."""
    if name in encoder.levels:
        return level_from_text(encoder.levels[name], text)
    try:
        return float(text)
    except ValueError:
        return text


def compare(
    encoder: TableEncoder, moments: Moments, frame: pd.DataFrame, pairs: Iterable[tuple[Draws, Draws]], interval: float,
    doubt: MemberDoubt, keep_draws: bool = False,
) -> WhatIf[pd.DataFrame]:  # fmt: skip
    """Summarise paired draws.

    Args:
        encoder: units, levels and scales of the measurements.
        moments: means and variances in these units.
        frame: the caller's rows.
        pairs: draws of some rows as things are, and with covariates set.
        interval: the central interval, such as 0.9.
        doubt: completes the means' doubt about the parameters.
        keep_draws: return the draws, too.
    """
    summaries, draws, total = [], [], torch.zeros(())
    for pair in pairs:
        own = [moments(part.location if part.outputs is None else part.outputs, part.var)[0] for part in pair]
        means = [doubt(mean, moments) for mean in own]
        difference = means[1] - means[0]
        summaries_here = _ends("difference", difference, interval)
        summaries_here["difference"] = doubt.estimate(own[1] - own[0]).cpu()
        draws_here = {"as_is": means[0], "what_if": means[1], "difference": difference}
        for version, part, mean, own_mean in zip(VERSIONS, pair, means, own, strict=True):
            drawn = moments.in_own_units(part.y, mean)
            summaries_here |= _ends(version, drawn, interval) | {version: doubt.estimate(own_mean).cpu()}
            draws_here[f"{version}_drawn"] = drawn
        summaries.append((pair[0].rows, summaries_here))
        if keep_draws:
            draws.append((pair[0].rows, {name: values.transpose(0, 1).cpu() for name, values in draws_here.items()}))
        total = total + difference.sum(1).cpu()
    by_row = gather(summaries)
    columns = [f"{name}{end}" for name in (*VERSIONS, "difference") for end in ("", "_lower", "_upper")]
    values = {
        name: by_row[name].numpy() if name.startswith("difference") else moments.within_bounds(by_row[name])
        for name in columns
    }
    rows = long_form(frame, encoder.schema, {"measurement": moments.names}, values)
    averages = {version: moments.within_bounds(by_row[version].mean(0)) for version in VERSIONS}
    averages |= {"difference": by_row["difference"].mean(0).numpy()}
    ends = {name: value.numpy() for name, value in _ends("difference", total / len(frame), interval).items()}
    average = pd.DataFrame({"measurement": list(moments.names)} | averages | ends)
    return WhatIf(rows, average, _draws_in_long_form(encoder, moments, frame, gather(draws)) if keep_draws else None)


def _draws_in_long_form(
    encoder: TableEncoder, moments: Moments, frame: pd.DataFrame, draws: Mapping[str, torch.Tensor]
) -> pd.DataFrame:
    """Return draws (n×draws×names each) in long form, draw by draw."""
    by_draw = {name: values.transpose(0, 1) for name, values in draws.items()}
    values = {name: v.numpy() if name == "difference" else moments.within_bounds(v) for name, v in by_draw.items()}
    shape = by_draw["difference"].shape
    number = {"draw": np.broadcast_to(np.arange(shape[0])[:, None, None], shape)}
    lines = long_form(pd.concat([frame] * shape[0]), encoder.schema, {"measurement": moments.names}, number | values)
    return lines[["draw", *lines.columns.drop("draw")]]


def _ends(name: str, draws: torch.Tensor, interval: float) -> dict[str, torch.Tensor]:
    """Return the ends of the central interval over draws, by the name of their columns."""
    ends = summary(draws, interval)
    return {f"{name}_{end}": ends[end] for end in ("lower", "upper")}
