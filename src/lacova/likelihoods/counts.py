"""Families of counts: Poisson, and negative binomial for counts that vary more."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lacova.data.registry import register
from lacova.likelihoods.base import Family, observed_moments, soft_clamp

LOG_MEAN_RANGE = 20.0  # log-means stay within this of where they start,
LOG_DISPERSION_RANGE = 8.0  # and log-dispersions within this of 0, for the sake of float32
MAX_DRAWN_MEAN = 1e9  # greatest mean of counts that are drawn


@register("poisson")
class Poisson(Family):
    """Counts whose log-mean is `base`, that of the training rows, plus the decoder's output."""

    values = "count"
    base: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("base", torch.zeros(columns))

    def log_mean(self, outputs: Tensor) -> Tensor:
        return self.base + soft_clamp(outputs, LOG_MEAN_RANGE)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """y log λ − λ − log y!, in float64: the terms are large and nearly cancel."""
        log_mean, count = self.log_mean(outputs).double(), y.double()
        return (count * log_mean - log_mean.exp() - (count + 1.0).lgamma()).to(outputs.dtype)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        return torch.poisson(self.mean(outputs).clamp_max(MAX_DRAWN_MEAN), generator=generator)

    def mean(self, outputs: Tensor) -> Tensor:
        return self.log_mean(outputs).exp()

    def variance(self, outputs: Tensor) -> Tensor:
        return self.mean(outputs).double()

    @torch.no_grad()
    def initialise(self, y: Tensor, mask: Tensor) -> None:
        self.base.copy_(observed_moments(y, mask)[0].clamp_min(1e-3).log())


@register("negative_binomial")
class NegativeBinomial(Poisson):
    """Counts of mean μ and variance μ + αμ² with a learnt dispersion α_d: Poisson counts whose mean is gamma."""

    def __init__(self, columns: int) -> None:
        super().__init__(columns)
        self.raw = nn.Parameter(torch.zeros(columns))

    @property
    def log_size(self) -> Tensor:
        """log r, r = 1/α (n,)."""
        return -soft_clamp(self.raw, LOG_DISPERSION_RANGE)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log Γ(y+r) − log Γ(r) − log y! − r log(1 + μ/r) − y log(1 + r/μ)."""
        log_size, count = self.log_size.double(), y.double()
        odds, size = self.log_mean(outputs).double() - log_size, log_size.exp()
        ways = (count + size).lgamma() - size.lgamma() - (count + 1.0).lgamma()
        return (ways - size * functional.softplus(odds) - count * functional.softplus(-odds)).to(outputs.dtype)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        size = self.log_size.exp().expand_as(outputs).contiguous()
        mean = self.mean(outputs) * torch._standard_gamma(size, generator=generator) / size
        return torch.poisson(mean.clamp_max(MAX_DRAWN_MEAN), generator=generator)

    def variance(self, outputs: Tensor) -> Tensor:
        mean = super().variance(outputs)
        return mean + (-self.log_size).exp().double() * mean.square()

    @torch.no_grad()
    def initialise(self, y: Tensor, mask: Tensor) -> None:
        super().initialise(y, mask)
        mean, var = observed_moments(y, mask)
        self.raw.copy_(((var - mean) / mean.square().clamp_min(1e-6)).clamp(0.01, 10.0).log())
