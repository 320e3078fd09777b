"""Observation models: log p(y_o | location), observed entries only, constants included."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lacova.table import Table

NOISE_FLOOR = 1e-4


class GaussianLikelihood(nn.Module):
    """Normal noise with a free variance per measurement, σ_d² = floor + exp(ρ_d), on the scaled measurements.

    Args:
        start: variances to start from (D,).
        floor: least variance; part of σ_d² itself, so that the loss and its gradient know it.
    """

    def __init__(self, start: Tensor, floor: float = NOISE_FLOOR) -> None:
        super().__init__()
        if not floor > 0:
            raise ValueError(f"noise_floor must be positive, got {floor!r}.")
        self.floor = floor
        self.raw = nn.Parameter((start - floor).clamp_min(floor).log())

    @classmethod
    def learn(cls, table: Table, floor: float = NOISE_FLOOR) -> GaussianLikelihood:
        """Start from the variance of the observed entries: noise explains everything until the network does."""
        seen = table.y_mask.to(table.y.dtype)
        mean = (table.y * seen).sum(0) / seen.sum(0)
        return cls(((table.y - mean) ** 2 * seen).sum(0) / seen.sum(0), floor)

    @property
    def var(self) -> Tensor:
        return self.floor + self.raw.exp()

    def log_prob(self, location: Tensor, y: Tensor, mask: Tensor, extra: float | Tensor = 0.0) -> Tensor:
        """Per row, Σ_{d observed} log N(y_d | location_d, σ_d² + extra_d)."""
        var = self.var + extra
        each = -0.5 * ((y - location) ** 2 / var + var.log() + math.log(2.0 * math.pi))
        return torch.where(mask, each, 0.0).sum(-1)

    def sample(self, location: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(location.shape, generator=generator, device=location.device, dtype=location.dtype)
        return location + self.var.sqrt() * noise
