"""How well measurements are predicted from covariates with gaps, without holding all draws at once."""

from __future__ import annotations

import math

import torch

from lacova.metrics import coverage, crps, gaussian_nll
from lacova.predict import predictive_draws
from lacova.table import Codec, Table
from lacova.vae import ConditionalVAE

LEVELS = (0.5, 0.9, 0.95)


@torch.no_grad()
def score(vae: ConditionalVAE, codec: Codec, table: Table, draws: int, generator: torch.Generator) -> dict[str, float]:
    """Predict every row of the table from its covariates alone and compare with its observed measurements.

    Returns, in the measurements' own units: `nll`, the mean over rows of the moment-matched predictive negative
    log-likelihood; and over observed entries `rmse`, `crps` (both divided by the training scale of the column) and
    `coverage50`, `coverage90`, `coverage95` of central intervals.
    """
    rows = entries = 0
    sums = dict.fromkeys(("nll", "se", "crps", *LEVELS), 0.0)
    everything = torch.ones(len(table), dtype=torch.bool)
    for part in predictive_draws(vae, table, everything, draws, generator):
        y, mask = table.y[part.rows], table.y_mask[part.rows]
        count = int(mask.sum())
        nll = gaussian_nll(part.location, vae.likelihood.var, y, mask).double() - codec.log_jacobian(mask)
        sums["nll"] += float(nll.sum())
        sums["se"] += float((part.location.mean(0) - y)[mask].square().sum())
        ordered = part.y.sort(0).values
        sums["crps"] += float(crps(ordered, y)[mask].sum())
        for level in LEVELS:
            sums[level] += float(coverage(ordered, y, mask, level)) * count if count else 0.0
        rows, entries = rows + len(y), entries + count
    shares = {f"coverage{round(100 * level)}": sums[level] / entries for level in LEVELS}
    return {
        "nll": sums["nll"] / rows,
        "rmse": math.sqrt(sums["se"] / entries),
        "crps": sums["crps"] / entries,
        **shares,
    }
