"""Scores of predicted or imputed measurements, without holding all draws at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lacova.data.kinds import values_of
from lacova.data.scaling import Floats
from lacova.data.table_encoder import TableEncoder
from lacova.inference.draws import Draws
from lacova.inference.joint_scores import JointScores
from lacova.inference.metrics import ascending, covered, crps, gaussian_nll
from lacova.inference.vae import ConditionalVAE

COVERAGES = {"coverage50": 0.5, "coverage90": 0.9, "coverage95": 0.95}
CATEGORY_SCORES = ("accuracy", "brier")


class DrawsAndTruth(NamedTuple):
    """Draws for some rows.

    Attributes:
        draws: the draws.
        y, mask: the true measurements of these rows (n×D), and which of their entries count.
        patient: codes of their patients (n,), for the scores of courses; None without.
    """

    draws: Draws
    y: Tensor
    mask: Tensor
    patient: Tensor | None = None


@torch.no_grad()
def by_column(
    vae: ConditionalVAE, encoder: TableEncoder, parts: Iterable[DrawsAndTruth], joint: JointScores | None = None
) -> tuple[pd.DataFrame, int]:  # fmt: skip
    """Compare draws with the truth, entry by entry; `joint`, if given, scores them jointly on the way.

    The nll of a Gaussian column is that of its predictive mean and variance; of others, −log of the mean over draws of
    p(y | draw). Values beyond a limit of detection are compared as recorded: draws are moved to the limit, too.

    Returns:
        one row per measurement, each a mean over the column's `entries` that count and in its own units: `nll`, the
        predictive negative log-likelihood; for numbers `rmse`, `crps` and `coverage50`, `coverage90` and `coverage95`
        of central intervals; for categories `accuracy` of the most probable level and `brier`, the squared distance of
        the levels' probabilities from the observed level. NaN where nothing is observed, or a score does not apply.
        Then the number of rows.
    """
    space, rows = encoder.measurements, 0
    in_own_units = not (space.plain and encoder.scales.linear.all())
    categories = [d for d, family in enumerate(space.families) if values_of(family) == "level"]
    names = ("entries", "nll", "square", "crps", *COVERAGES, *(CATEGORY_SCORES if categories else ()))
    sums = {name: np.zeros(len(space)) for name in names}
    unit = np.ones(len(space)) if in_own_units else encoder.y_scale
    for part, y, mask, patient in parts:
        rows += len(y)
        drawn, truth = _own_values(encoder, part.y, y) if in_own_units else (part.y, y)
        scores = _own_scores(vae, encoder, part, y, drawn, truth) if in_own_units else _encoded_scores(part, y)
        if joint is not None:
            joint.add(drawn, truth, mask, part.rows, patient, in_own_units)
        for name, values in {"entries": mask, **scores}.items():
            sums[name] += torch.where(mask.to(values.device), values.double(), 0.0).sum(0).cpu().numpy()
    entries = np.where(sums["entries"] > 0, sums["entries"], np.nan)
    columns = {
        "entries": sums["entries"].astype(int),
        "nll": sums["nll"] / entries + np.log(unit),
        "rmse": np.sqrt(sums["square"] / entries) * unit,
        "crps": sums["crps"] / entries * unit,
        **{name: sums[name] / entries for name in names[4:]},
    }
    for name, column in columns.items():
        if categories and name not in ("entries", "nll"):
            column[[d for d in range(len(space)) if (d in categories) != (name in CATEGORY_SCORES)]] = np.nan
    return pd.DataFrame(columns, index=pd.Index(encoder.schema.measurements, name="measurement")), rows


def _encoded_scores(part: Draws, y: Tensor) -> dict[str, Tensor]:
    """Return scores per entry (n×D) on the encoded scale, of Gaussian columns with a linear scale."""
    ordered = ascending(part.y)
    return {
        "nll": gaussian_nll(part.location, part.var, y),
        "square": (part.location.mean(0) - y).square(),
        "crps": crps(ordered, y),
        **{name: covered(ordered, y, coverage) for name, coverage in COVERAGES.items()},
    }


def _own_values(encoder: TableEncoder, draws: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return draws (draws×n×D) and true values (n×D) in own units; beyond a limit of detection, the limit."""
    drawn, truth = encoder.in_own_units(draws), encoder.in_own_units(y)
    for name, (lower, upper) in encoder.schema.limits.items():
        d = encoder.schema.measurements.index(name)
        drawn[..., d] = np.clip(drawn[..., d], lower, upper)
        for end, beyond in zip((lower, upper), encoder.beyond(y)[:, :, d], strict=True):
            truth[beyond, d] = math.nan if end is None else end  # decoded, it would be the limit but for the last digit
    return torch.as_tensor(drawn), torch.as_tensor(truth)


def _own_scores(
    vae: ConditionalVAE, encoder: TableEncoder, part: Draws, y: Tensor, drawn: Tensor, truth: Tensor
) -> dict[str, Tensor]:
    """Return scores per entry (n×D) in the measurements' own units, in which `drawn` and `truth` are."""
    nonlinear = ~encoder.scales.linear
    nonlinear[[encoder.schema.measurements.index(name) for name in encoder.schema.limits]] = True
    mean = torch.as_tensor(encoder.in_own_units(part.location.mean(0)))
    mean[:, nonlinear] = drawn[..., nonlinear].mean(0)
    ordered = ascending(drawn)
    scores = {
        "nll": _nll(vae, encoder, part, y),
        "square": (mean - truth).square(),
        "crps": crps(ordered, truth),
        **{name: covered(ordered, truth, coverage) for name, coverage in COVERAGES.items()},
    }
    probs = part.level_probabilities
    if probs is not None:
        one_hot = torch.nn.functional.one_hot(y.long().clamp(0, probs.shape[-1] - 1), probs.shape[-1])
        scores["accuracy"] = probs.argmax(-1) == y
        scores["brier"] = (probs - one_hot).square().sum(-1)
    return scores


def _nll(vae: ConditionalVAE, encoder: TableEncoder, part: Draws, y: Tensor) -> Tensor:
    """Return the nll per entry (n×D) in own units.

    For Gaussian columns with a linear scale it is that of the predictive mean and variance, else that of the mixture
    over draws.
    """
    gaussian = torch.zeros(y.shape[1], dtype=torch.bool, device=y.device)
    gaussian[encoder.measurements.columns("gaussian")] = True
    linear = torch.as_tensor(encoder.scales.linear, device=y.device)
    var = part.var.expand_as(part.location)
    log_prob = -gaussian_nll(part.location[None], torch.where(gaussian, var, 1.0)[None], y)
    if part.outputs is not None:
        log_prob = torch.where(gaussian, log_prob, vae.likelihood.entry_log_prob(part.outputs, y))
    mixture = math.log(len(log_prob)) - log_prob.double().logsumexp(0)
    matched = gaussian_nll(part.location, torch.where(gaussian, var, 1.0), y)
    return torch.where(gaussian & linear, matched.double(), mixture) - encoder.log_slopes(y)


def overall(scores: pd.DataFrame, scale: Floats, rows: int) -> dict[str, float]:
    """Return one number per score: `nll` as a sum per row, others per entry, `rmse` and `crps` divided by the scale.

    Args:
        scores: the table of `by_column`.
        scale: scale of each measurement (D,).
        rows: number of rows that were scored.
    """
    entries = scores["entries"].to_numpy()

    def mean(values: Floats) -> float:
        scored = (entries > 0) & ~np.isnan(values)
        total = int(entries[scored].sum())
        return float((values * entries)[scored].sum() / total) if total else math.nan

    return {
        "nll": mean(scores["nll"].to_numpy()) * int(entries.sum()) / rows,
        "rmse": math.sqrt(mean((scores["rmse"].to_numpy() / scale) ** 2)),
        "crps": mean(scores["crps"].to_numpy() / scale),
        **{name: mean(scores[name].to_numpy()) for name in (*COVERAGES, *CATEGORY_SCORES) if name in scores},
    }
