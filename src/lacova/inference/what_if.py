"""The same patients with some covariates set to other values, beside the prediction as things are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple

import numpy as np
import pandas as pd
import torch

from lacova.data.columns import level_from_text
from lacova.data.encoder import TableEncoder
from lacova.data.errors import DataError, hint, listed
from lacova.data.io.dataframes import Frame
from lacova.inference.draws import Draws
from lacova.inference.long_form import gather, long_form, summary
from lacova.likelihoods.moments import Moments

VERSIONS = ("as_is", "what_if")


class WhatIf(NamedTuple, Generic[Frame]):
    """Two predictions and their difference, row by row and on average.

    Attributes:
        rows: one line per row and measurement: the means `as_is` and `what_if` and their `difference`, each with the
            ends of a central interval, `..._lower` and `..._upper`. Intervals of a prediction are about y, noise
            included; those of a difference are about its mean, noise being the same in both.
        average: the same over all rows, one line per measurement; of the difference, with its interval.
        draws: with `keep_draws`, what is behind both: one line per draw, row and measurement, numbered in `draw`, with
            the means `as_is` and `what_if` in that draw and their `difference`, and `as_is_drawn` and `what_if_drawn`,
            the values themselves, noise included (of a level, its probability). In a draw, what all rows share is the
            same: average over rows within draws, then summarise over draws. None unless asked for.

    A categorical measurement has a line for each level, `<measurement>_p_<level>`: its probability. The interval of a
    probability is about how well it is known.
    """

    rows: Frame
    average: Frame
    draws: Frame | None = None


def encode_setting(encoder: TableEncoder, frame: pd.DataFrame, changes: Mapping[str, Any]) -> dict[int, float]:
    """The encoded value of each covariate that is set, by its column of x; refuses what is no value of it."""
    if not isinstance(changes, Mapping) or not changes:
        raise DataError(f'say which covariates to set to what, such as {{"arm": "b"}}; got {changes!r}.')
    names = list(encoder.schema.covariates)
    absent = [name for name in changes if name not in names]
    if absent:
        raise DataError(
            f"{listed(absent)} cannot be set: the covariates are {listed(names)}.{hint(absent, names)} "
            "Only covariates can be set."
        )
    for name, value in changes.items():
        if not pd.api.types.is_scalar(value) or pd.isna(value):
            raise DataError(f"covariate {name!r} is set to {value!r}; expected one value, the same for all rows.")
    one = frame.head(1).assign(**{name: pd.Series([value], frame.index[:1]) for name, value in changes.items()})
    x = encoder.encode(one, measurements=False).x[0]
    return {names.index(name): float(x[names.index(name)]) for name in changes}


def from_text(encoder: TableEncoder, name: str, text: str) -> Any:
    """A value as somebody typed it: the level that reads like that, or a number; else the text itself."""
    if name in encoder.levels:
        return level_from_text(encoder.levels[name], text)
    try:
        return float(text)
    except ValueError:
        return text


def compare(
    encoder: TableEncoder, moments: Moments, frame: pd.DataFrame, pairs: Iterable[tuple[Draws, Draws]], interval: float,
    keep_draws: bool = False,
) -> WhatIf[pd.DataFrame]:  # fmt: skip
    """Summaries of paired draws, and the draws if they are to be kept."""
    found, kept, total = [], [], torch.zeros(())
    for pair in pairs:
        means = [moments(one.location if one.outputs is None else one.outputs, one.var)[0] for one in pair]
        change = means[1] - means[0]
        part = {f"difference{end}": value for end, value in _ends(change, interval).items()}
        each = {"as_is": means[0], "what_if": means[1], "difference": change}
        for version, draws, mean in zip(VERSIONS, pair, means, strict=True):
            drawn = moments.in_own_units(draws.y, mean)
            part |= {f"{version}{end}": value for end, value in _ends(drawn, interval).items()}
            part |= {version: mean.mean(0).cpu()}
            each[f"{version}_drawn"] = drawn
        found.append((pair[0].rows, part))
        if keep_draws:
            kept.append((pair[0].rows, {name: values.transpose(0, 1).cpu() for name, values in each.items()}))
        total = total + change.sum(1).cpu()
    whole = gather(found)
    ends = [f"{name}{end}" for name in (*VERSIONS, "difference") for end in ("", "_lower", "_upper")]
    values = {
        name: whole[name].numpy() if name.startswith("difference") else moments.within_bounds(whole[name])
        for name in ends
    }
    rows = long_form(frame, encoder.schema, {"measurement": moments.names}, values)
    averages = {version: moments.within_bounds(whole[version].mean(0)) for version in VERSIONS}
    of_means = {f"difference{end}": value.numpy() for end, value in _ends(total / len(frame), interval).items()}
    average = pd.DataFrame({"measurement": list(moments.names)} | averages | of_means)
    return WhatIf(rows, average, _one_below_the_other(encoder, moments, frame, gather(kept)) if keep_draws else None)


def _one_below_the_other(
    encoder: TableEncoder, moments: Moments, frame: pd.DataFrame, each: Mapping[str, torch.Tensor]
) -> pd.DataFrame:
    """Draws (n×draws×names each) in long form, draw by draw."""
    by_draw = {name: values.transpose(0, 1) for name, values in each.items()}
    values = {name: v.numpy() if name == "difference" else moments.within_bounds(v) for name, v in by_draw.items()}
    shape = by_draw["difference"].shape
    number = {"draw": np.broadcast_to(np.arange(shape[0])[:, None, None], shape)}
    lines = long_form(pd.concat([frame] * shape[0]), encoder.schema, {"measurement": moments.names}, number | values)
    return lines[["draw", *lines.columns.drop("draw")]]


def _ends(draws: torch.Tensor, interval: float) -> dict[str, torch.Tensor]:
    found = summary(draws, interval)
    return {"": found["mean"], "_lower": found["lower"], "_upper": found["upper"]}
