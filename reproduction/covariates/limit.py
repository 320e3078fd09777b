"""The limit: a model trained with all X seen, whose missing test covariates are drawn from the generator's own law."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lacova.batches import Batch
from lacova.covariates.law import Belief, RowPrior
from lacova.covariates.prior import CovariatePrior
from lacova.datasets.digits import covariate_law
from lacova.table import Codec, Table

GRID = 4001


@dataclass
class Truth:
    """p(x_u | x_o) of the rotated digits 1, 2 and 3, exact up to a grid over what drives the covariates."""

    dataset: int

    def draw(self, x: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Completions (draws×N×Q) of rows with NaN at gaps, in their own units."""
        timed = self.dataset == 3
        values = x[:, 1:] if timed else x
        grid = (np.arange(GRID) + 0.5) / GRID
        mean, sd = covariate_law(self.dataset, grid)
        out = np.repeat(x[None], draws, axis=0)
        for i, row in enumerate(values):
            seen = ~np.isnan(row)
            log_weight = -0.5 * (((row[seen, None] - mean[seen]) / sd[seen]) ** 2).sum(0)
            weight = np.exp(log_weight - log_weight.max())
            driver = rng.choice(grid, size=draws, p=weight / weight.sum())
            if timed:
                driver = np.full(draws, x[i, 0]) if not np.isnan(x[i, 0]) else driver
                out[:, i, 0] = driver
            centre, _ = covariate_law(self.dataset, driver)
            drawn = (centre + sd * rng.standard_normal((3, draws))).T
            out[:, i, -3:] = np.where(seen, row, drawn)
        return out


class TruePrior(CovariatePrior):
    """The generator's conditional in the place of a learnt one."""

    def __init__(self, dataset: int, codec: Codec, seed: int) -> None:
        super().__init__()
        self.space, self.codec, self.truth = codec.space, codec, Truth(dataset)
        self.rng = np.random.default_rng(seed)

    def prepare(self, table: Table) -> RowPrior:
        n, q = table.x.shape
        law = Belief(torch.zeros(n, q), torch.ones(n, q), torch.zeros(n, q, self.space.max_levels))
        return RowPrior(law, torch.zeros(n))

    def update(self, completed: Table) -> None:
        raise NotImplementedError("the generator's own law is known, not learnt.")

    def draw(self, batch: Batch, draws: int, generator: torch.Generator) -> Tensor:
        scale, shift = self.codec.x_scale, self.codec.x_shift
        x = torch.where(batch.x_mask, batch.x, torch.nan).cpu().double().numpy() * scale + shift
        return torch.as_tensor((self.truth.draw(x, draws, self.rng) - shift) / scale).to(batch.x)
