"""Observation models: log p(y_o | location), observed entries only, constants included."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

NOISE_FLOOR = 1e-4


class GaussianLikelihood(nn.Module):
    """Normal noise with a free variance per measurement, σ_d² = floor + exp(ρ_d), on the scaled measurements."""

    def __init__(self, measurements: int, floor: float = NOISE_FLOOR, start: float = 0.5) -> None:
        super().__init__()
        if floor <= 0 or start <= floor:
            raise ValueError(f"the noise variance must start above its floor and the floor above 0, got {start} and {floor}.")
        self.floor = floor
        self.raw = nn.Parameter(torch.full((measurements,), math.log(start - floor)))

    @property
    def var(self) -> Tensor:
        return self.floor + self.raw.exp()

    def log_prob(self, location: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Per row, Σ_{d observed} log N(y_d | location_d, σ_d²)."""
        var = self.var
        each = -0.5 * ((y - location) ** 2 / var + var.log() + math.log(2.0 * math.pi))
        return torch.where(mask, each, 0.0).sum(-1)

    def sample(self, location: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(location.shape, generator=generator, device=location.device, dtype=location.dtype)
        return location + self.var.sqrt() * noise
