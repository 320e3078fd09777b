"""How well measurements are predicted from covariates with gaps, without holding all draws at once."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lacova.columns import Floats
from lacova.metrics import covered, crps, gaussian_nll
from lacova.predict import predictive_draws
from lacova.table import Codec, Table
from lacova.vae import ConditionalVAE

LEVELS = {"coverage50": 0.5, "coverage90": 0.9, "coverage95": 0.95}


@torch.no_grad()
def by_column(
    vae: ConditionalVAE, codec: Codec, parts: Iterable[tuple[Table, torch.Generator]], draws: int
) -> tuple[pd.DataFrame, int]:
    """Predict every row of some tables from its covariates alone and compare with its observed measurements.

    Args:
        vae: the trained model.
        codec: its scales.
        parts: tables, each with its source of noise.
        draws: of each row.

    Returns one row per measurement, each a mean over the column's observed `entries` and in its own units: `nll`, the
    moment-matched predictive negative log-likelihood; `rmse`; `crps`; `coverage50`, `coverage90` and `coverage95` of
    central intervals. NaN where nothing is observed. Beside that, how many rows there were.
    """
    names, rows = ("entries", "nll", "square", "crps", *LEVELS), 0
    sums = {name: np.zeros(len(codec.schema.measurements)) for name in names}
    for table, generator in parts:
        rows += len(table)
        _add(sums, vae, table, draws, generator)
    entries = np.where(sums["entries"] > 0, sums["entries"], np.nan)
    columns = {
        "entries": sums["entries"].astype(int),
        "nll": sums["nll"] / entries + np.log(codec.y_scale),
        "rmse": np.sqrt(sums["square"] / entries) * codec.y_scale,
        "crps": sums["crps"] / entries * codec.y_scale,
        **{name: sums[name] / entries for name in LEVELS},
    }
    return pd.DataFrame(columns, index=pd.Index(codec.schema.measurements, name="measurement")), rows


def _add(sums: dict[str, Floats], vae: ConditionalVAE, table: Table, draws: int, generator: torch.Generator) -> None:
    everything = torch.ones(len(table), dtype=torch.bool)
    for part in predictive_draws(vae, table, everything, draws, generator):
        y, mask = table.y[part.rows], table.y_mask[part.rows]
        ordered = part.y.sort(0).values
        found: dict[str, Tensor] = {
            "entries": mask,
            "nll": gaussian_nll(part.location, part.var, y),
            "square": (part.location.mean(0) - y).square(),
            "crps": crps(ordered, y),
            **{name: covered(ordered, y, level) for name, level in LEVELS.items()},
        }
        for name, values in found.items():
            sums[name] += torch.where(mask, values.double(), 0.0).sum(0).cpu().numpy()


def overall(scores: pd.DataFrame, scale: Floats, rows: int) -> dict[str, float]:
    """One figure per score: `nll` as a sum per row, the others per entry, `rmse` and `crps` divided by the scale."""
    entries = scores["entries"].to_numpy()
    total = int(entries.sum())
    seen = entries > 0

    def mean(values: Floats) -> float:
        return float((values * entries)[seen].sum() / total) if total else math.nan

    return {
        "nll": mean(scores["nll"].to_numpy()) * total / rows,
        "rmse": math.sqrt(mean((scores["rmse"].to_numpy() / scale) ** 2)),
        "crps": mean(scores["crps"].to_numpy() / scale),
        **{name: mean(scores[name].to_numpy()) for name in LEVELS},
    }
