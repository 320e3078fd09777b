"""Families of numbers about a location: normal noise, t-distributed noise, and normal noise with detection limits."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from lacova.data.registry import register
from lacova.likelihoods.base import (
    NOISE_FLOOR,
    Family,
    FamilyColumns,
    log_normal_density,
    observed_moments,
    soft_clamp,
    standard_normal,
)

MAX_LOG_RATIO = 4.0  # of the standard deviation of a row to that of its column
MAX_FREEDOM = 100.0  # degrees of freedom at which a t-distribution is as good as normal


@register("gaussian")
class Gaussian(Family):
    """Normal noise with a free variance per column, σ_d² = floor + exp(ρ_d).

    Args:
        noise_variance: variances to start from (n,).
        floor: least variance. It is part of σ_d², so that the loss and its gradient include it.
    """

    def __init__(self, noise_variance: Tensor, floor: float = NOISE_FLOOR) -> None:
        super().__init__()
        if not floor > 0:
            raise ValueError(f"noise_floor must be positive, got {floor!r}.")
        self.floor = floor
        self.raw = nn.Parameter(self._raw(noise_variance))

    @classmethod
    def build(cls, columns: FamilyColumns) -> Self:
        return cls(torch.ones(len(columns)), columns.noise_floor)

    @property
    def noise_variance(self) -> Tensor:
        """σ² (n,)."""
        return self.floor + self.raw.exp()

    def log_prob(self, outputs: Tensor, y: Tensor, extra: float | Tensor = 0.0) -> Tensor:
        """Return log N(y | location, σ² + extra)."""
        return log_normal_density(y - outputs, self.noise_variance + extra)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        return outputs + self.noise_variance.sqrt() * standard_normal(outputs, generator)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs

    def variance(self, outputs: Tensor) -> Tensor:
        return self.noise_variance

    @torch.no_grad()
    def initialise(self, y: Tensor, mask: Tensor) -> None:
        """Start from the observed variance: noise explains everything until the decoder does."""
        self.set_variance(observed_moments(y, mask)[1])

    @torch.no_grad()
    def set_variance(self, variance: Tensor) -> None:
        """Set the noise so that y has this variance about its location (n,)."""
        self.raw.copy_(self._raw(variance))

    def _raw(self, var: Tensor) -> Tensor:
        return (var - self.floor).clamp_min(self.floor).log()


class RowGaussian(Gaussian):
    """Normal noise whose variance depends on the row, σ_id² = floor + exp(ρ_d + 2h_id) with |h| < 4.

    A column has two outputs: its location, and h, which is 0 where the noise is the column's own.
    """

    outputs: ClassVar[int | None] = 2

    def log_prob(self, outputs: Tensor, y: Tensor, extra: float | Tensor = 0.0) -> Tensor:
        """Return log N(y | location, σ_id² + extra)."""
        return log_normal_density(y - self.mean(outputs), self.variance(outputs) + extra)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        location = self.mean(outputs)
        return location + self.variance(outputs).sqrt() * standard_normal(location, generator)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0]

    def variance(self, outputs: Tensor) -> Tensor:
        return self.floor + (self.raw + 2.0 * soft_clamp(outputs[..., 1], MAX_LOG_RATIO)).exp()


@register("student")
class Student(Gaussian):
    """t-distributed noise for columns with outliers: scale σ_d, and 2 < ν_d < 100 degrees of freedom, both learnt."""

    def __init__(self, noise_variance: Tensor, floor: float = NOISE_FLOOR) -> None:
        super().__init__(noise_variance, floor)
        start = math.log(6.0 / (MAX_FREEDOM - 8.0))  # ν = 8
        self.raw_freedom = nn.Parameter(torch.full_like(noise_variance, start))

    @property
    def freedom(self) -> Tensor:
        """ν (n,)."""
        return 2.0 + (MAX_FREEDOM - 2.0) * self.raw_freedom.sigmoid()

    def log_prob(self, outputs: Tensor, y: Tensor, extra: float | Tensor = 0.0) -> Tensor:
        """log Γ((ν+1)/2) − log Γ(ν/2) − ½ log(πνσ²) − (ν+1)/2 · log(1 + r²/(νσ²))."""
        freedom, var = self.freedom, self.noise_variance + extra
        constant = ((freedom + 1.0) / 2.0).lgamma() - (freedom / 2.0).lgamma() - 0.5 * (math.pi * freedom * var).log()
        square = ((y - outputs) / (freedom * var).sqrt()).square()
        return constant - (freedom + 1.0) / 2.0 * square.log1p()

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        half = (self.freedom / 2.0).expand_as(outputs).contiguous()
        ratio = torch._standard_gamma(half, generator=generator) / half  # χ²/ν
        scale = (self.noise_variance / ratio.clamp_min(torch.finfo(ratio.dtype).tiny)).sqrt()
        return outputs + scale * standard_normal(outputs, generator)

    def variance(self, outputs: Tensor) -> Tensor:
        return self.noise_variance * (self.freedom / (self.freedom - 2.0))

    @torch.no_grad()
    def set_variance(self, variance: Tensor) -> None:
        super().set_variance(variance * (self.freedom - 2.0) / self.freedom)


@register("censored")
class Censored(Gaussian):
    """Normal noise with detection limits: a value at or beyond a limit is known only to lie there.

    Args:
        limits: lower and upper ones on the encoded scale (n×2), infinite where there are none.
        floor: as in `Gaussian`.
    """

    limits: Tensor

    def __init__(self, limits: Tensor, floor: float = NOISE_FLOOR) -> None:
        super().__init__(torch.ones(len(limits)), floor)
        self.register_buffer("limits", limits, persistent=False)

    @classmethod
    def build(cls, columns: FamilyColumns) -> Self:
        return cls(torch.tensor(columns.limits, dtype=torch.float64), columns.noise_floor)

    def log_prob(self, outputs: Tensor, y: Tensor, extra: float | Tensor = 0.0) -> Tensor:
        """log N(y) within the limits, log Φ((limit − location)/σ) at the lower one, its mirror image at the upper."""
        inside = super().log_prob(outputs, y, extra)
        sd = (self.noise_variance + extra).sqrt()
        lower, upper = self.limits.to(y.dtype).unbind(-1)
        below = _log_ndtr((torch.where(lower.isinf(), 0.0, lower) - outputs) / sd)
        above = _log_ndtr((outputs - torch.where(upper.isinf(), 0.0, upper)) / sd)
        return torch.where(y <= lower, below, torch.where(y >= upper, above, inside))


def _log_ndtr(x: Tensor) -> Tensor:
    """Return log Φ(x); below −30 by its series, where torch's own gradient is not a number."""
    far = x.clamp_max(-30.0)
    square = far.square()
    tail = -0.5 * (square + math.log(2.0 * math.pi)) - (-far).log() + ((3.0 / square - 1.0) / square).log1p()
    return torch.where(x < -30.0, tail, torch.special.log_ndtr(x.clamp(-30.0, 30.0)))
