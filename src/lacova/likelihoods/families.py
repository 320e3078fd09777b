"""Observation models, one class per family: log p(y | what the decoder gives) per entry, constants included.

Each works on a column's encoded scale: numbers scaled, counts as they are, levels as codes. `TableEncoder.log_jacobian` turns
densities into those of the measurement's own units.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from lacova.data.encoder import Table
from lacova.data.measurement_space import MeasurementSpace

NOISE_FLOOR = 1e-4
LOG_MEAN = 20.0  # log-means of counts stay within this of where they start,
LOG_SPREAD = 8.0  # and log-dispersions and log-gaps between thresholds within this of 0, for float32's sake
MOST_FREEDOM = 100.0  # with which a t-distribution is as good as normal
MOST_COUNT = 1e9  # mean of counts that are drawn


class Family(nn.Module, ABC):
    """The law of some columns of one kind, given the decoder's outputs (…×n, or …×n×K where each level has one)."""

    @abstractmethod
    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log p(y) per entry (…×n)."""

    @abstractmethod
    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """One draw of y per entry (…×n)."""

    @abstractmethod
    def start(self, y: Tensor, mask: Tensor) -> None:
        """Move parameters to where the observed entries of a table (N×n) would have them without a decoder."""


class Numeric(Family):
    """The law of columns that have an expectation."""

    @abstractmethod
    def mean(self, outputs: Tensor) -> Tensor:
        """Expectation of y per entry (…×n)."""


class GaussianLikelihood(Numeric):
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
        self.raw = nn.Parameter(self._raw(start))

    @classmethod
    def learn(cls, table: Table, floor: float = NOISE_FLOOR) -> GaussianLikelihood:
        """Start from the variance of the observed entries: noise explains everything until the network does."""
        return cls(_moments(table.y, table.y_mask)[1], floor)

    @property
    def var(self) -> Tensor:
        return self.floor + self.raw.exp()

    def log_prob(self, location: Tensor, y: Tensor, mask: Tensor, extra: float | Tensor = 0.0) -> Tensor:
        """Per row, Σ_{d observed} log N(y_d | location_d, σ_d² + extra_d)."""
        return torch.where(mask, self.each(location, y, extra), 0.0).sum(-1)

    def each(self, outputs: Tensor, y: Tensor, extra: float | Tensor = 0.0) -> Tensor:
        return _log_normal(y - outputs, self.var + extra)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        return outputs + self.var.sqrt() * _normal(outputs, generator)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs

    @torch.no_grad()
    def start(self, y: Tensor, mask: Tensor) -> None:
        self.start_at(_moments(y, mask)[1])

    @torch.no_grad()
    def start_at(self, var: Tensor) -> None:
        self.raw.copy_(self._raw(var))

    def _raw(self, var: Tensor) -> Tensor:
        return (var - self.floor).clamp_min(self.floor).log()


class Student(GaussianLikelihood):
    """t-distributed noise about a location, for outliers: scale σ_d as that of normal noise, 2 < ν_d < 100 learnt."""

    def __init__(self, start: Tensor, floor: float = NOISE_FLOOR) -> None:
        super().__init__(start, floor)
        self.raw_freedom = nn.Parameter(torch.full_like(start, math.log(6.0 / (MOST_FREEDOM - 8.0))))  # ν = 8

    @property
    def freedom(self) -> Tensor:
        """ν (n,)."""
        return 2.0 + (MOST_FREEDOM - 2.0) * self.raw_freedom.sigmoid()

    def each(self, outputs: Tensor, y: Tensor, extra: float | Tensor = 0.0) -> Tensor:
        """log Γ((ν+1)/2) − log Γ(ν/2) − ½ log(πνσ²) − (ν+1)/2 · log(1 + r²/(νσ²))."""
        freedom, var = self.freedom, self.var + extra
        constant = ((freedom + 1.0) / 2.0).lgamma() - (freedom / 2.0).lgamma() - 0.5 * (math.pi * freedom * var).log()
        square = ((y - outputs) / (freedom * var).sqrt()).square()
        return constant - (freedom + 1.0) / 2.0 * square.log1p()

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        half = (self.freedom / 2.0).expand_as(outputs).contiguous()
        share = torch._standard_gamma(half, generator=generator) / half  # χ²/ν
        return outputs + (self.var / share.clamp_min(torch.finfo(share.dtype).tiny)).sqrt() * _normal(
            outputs, generator
        )

    @torch.no_grad()
    def start_at(self, var: Tensor) -> None:
        super().start_at(var * (self.freedom - 2.0) / self.freedom)


class Censored(GaussianLikelihood):
    """Normal noise, of which values at or beyond a detection limit are known only to lie there.

    Args:
        limits: lower and upper ones on the encoded scale (n×2), infinite where there are none.
        floor: as in `GaussianLikelihood`.
    """

    limits: Tensor

    def __init__(self, limits: Tensor, floor: float = NOISE_FLOOR) -> None:
        super().__init__(torch.ones(len(limits)), floor)
        self.register_buffer("limits", limits, persistent=False)

    def each(self, outputs: Tensor, y: Tensor, extra: float | Tensor = 0.0) -> Tensor:
        """log N(y) within the limits, log Φ((limit − location)/σ) at the lower one, its mirror image at the upper."""
        inside = super().each(outputs, y, extra)
        sd = (self.var + extra).sqrt()
        lower, upper = self.limits.to(y.dtype).unbind(-1)
        below = _log_ndtr((torch.where(lower.isinf(), 0.0, lower) - outputs) / sd)
        above = _log_ndtr((outputs - torch.where(upper.isinf(), 0.0, upper)) / sd)
        return torch.where(y <= lower, below, torch.where(y >= upper, above, inside))


class Poisson(Numeric):
    """Counts with log-mean `base` plus the decoder's output; the base is that of the training rows."""

    base: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("base", torch.zeros(columns))

    def log_mean(self, outputs: Tensor) -> Tensor:
        return self.base + _within(outputs, LOG_MEAN)

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """y log λ − λ − log y!, in float64: the terms are large and nearly cancel."""
        log_mean, count = self.log_mean(outputs).double(), y.double()
        return (count * log_mean - log_mean.exp() - (count + 1.0).lgamma()).to(outputs.dtype)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        return torch.poisson(self.mean(outputs).clamp_max(MOST_COUNT), generator=generator)

    def mean(self, outputs: Tensor) -> Tensor:
        return self.log_mean(outputs).exp()

    @torch.no_grad()
    def start(self, y: Tensor, mask: Tensor) -> None:
        self.base.copy_(_moments(y, mask)[0].clamp_min(1e-3).log())


class NegativeBinomial(Poisson):
    """Counts of mean μ and variance μ + αμ², with a learnt dispersion α_d: Poisson ones whose mean is gamma."""

    def __init__(self, columns: int) -> None:
        super().__init__(columns)
        self.raw = nn.Parameter(torch.zeros(columns))

    @property
    def log_size(self) -> Tensor:
        """log r, r = 1/α (n,)."""
        return -_within(self.raw, LOG_SPREAD)

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log Γ(y+r) − log Γ(r) − log y! − r log(1 + μ/r) − y log(1 + r/μ)."""
        log_size, count = self.log_size.double(), y.double()
        odds, size = self.log_mean(outputs).double() - log_size, log_size.exp()
        ways = (count + size).lgamma() - size.lgamma() - (count + 1.0).lgamma()
        return (ways - size * functional.softplus(odds) - count * functional.softplus(-odds)).to(outputs.dtype)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        size = self.log_size.exp().expand_as(outputs).contiguous()
        mean = self.mean(outputs) * torch._standard_gamma(size, generator=generator) / size
        return torch.poisson(mean.clamp_max(MOST_COUNT), generator=generator)

    @torch.no_grad()
    def start(self, y: Tensor, mask: Tensor) -> None:
        super().start(y, mask)
        mean, var = _moments(y, mask)
        self.raw.copy_(((var - mean) / mean.square().clamp_min(1e-6)).clamp(0.01, 10.0).log())


class Coded(Family):
    """What laws of codes 0, …, K−1 share.

    Args:
        levels: K of each column.
    """

    last: Tensor

    def __init__(self, levels: list[int]) -> None:
        super().__init__()
        self.register_buffer("last", torch.tensor(levels) - 1, persistent=False)
        self.most = max(levels)

    @abstractmethod
    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """log-probability of each level (…×n×K), −∞ for levels that a column does not have."""

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        level_probabilities = self.log_probabilities(outputs)
        return level_probabilities.gather(
            -1, y.long().unsqueeze(-1).expand(*level_probabilities.shape[:-1], 1)
        ).squeeze(-1)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        reached = self.log_probabilities(outputs).exp().cumsum(-1)
        place = torch.rand(reached.shape[:-1], generator=generator, device=outputs.device, dtype=outputs.dtype)
        code = (place.unsqueeze(-1) >= reached).sum(-1)
        return torch.minimum(code, self.last).to(outputs.dtype)

    def _shares(self, y: Tensor, mask: Tensor) -> Tensor:
        """How often each level occurs (n×K), with half an entry more of each."""
        hot = (y[..., None] == torch.arange(self.most)) & mask[..., None]
        counts = (hot.sum(0) + 0.5) * self._there()
        return counts / counts.sum(-1, keepdim=True)

    def _there(self) -> Tensor:
        return torch.arange(self.most, device=self.last.device) <= self.last[:, None]


class Bernoulli(Coded):
    """Two levels; the log-odds of the second are `base` plus the decoder's output."""

    base: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__([2] * columns)
        self.register_buffer("base", torch.zeros(columns))

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        return functional.logsigmoid((2.0 * y - 1.0) * (self.base + outputs))

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        odds = self.base + outputs
        return torch.stack([functional.logsigmoid(-odds), functional.logsigmoid(odds)], dim=-1)

    @torch.no_grad()
    def start(self, y: Tensor, mask: Tensor) -> None:
        self.base.copy_(self._shares(y, mask)[:, 1].logit())


class Categorical(Coded):
    """Levels without an order, with logits `base` plus the decoder's outputs (…×n×K)."""

    base: Tensor

    def __init__(self, levels: list[int]) -> None:
        super().__init__(levels)
        self.register_buffer("base", torch.zeros(len(levels), self.most))
        self.register_buffer("there", self._there(), persistent=False)

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        return (self.base + outputs).masked_fill(~cast(Tensor, self.there), -math.inf).log_softmax(-1)

    @torch.no_grad()
    def start(self, y: Tensor, mask: Tensor) -> None:
        self.base.copy_(torch.where(self._there(), self._shares(y, mask), 1.0).log())


class Ordinal(Coded):
    """Ordered levels: P(y ≤ k) = σ(c_k − location), with learnt thresholds c_0 < c_1 < … per column."""

    def __init__(self, levels: list[int]) -> None:
        super().__init__(levels)
        self.first = nn.Parameter(torch.zeros(len(levels), min(self.most - 1, 1)))
        self.raw = nn.Parameter(torch.zeros(len(levels), max(self.most - 2, 0)))

    @property
    def gaps(self) -> Tensor:
        """Between neighbouring thresholds (n×(K−2))."""
        return _within(self.raw, LOG_SPREAD).exp()

    @property
    def thresholds(self) -> Tensor:
        """c (n×(K−1))."""
        return torch.cat([self.first, self.gaps], dim=-1).cumsum(-1)

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """σ(b) − σ(a) = σ(b) σ(−a) (1 − exp(a − b)) for neighbouring thresholds a < b, less the location."""
        away = self.thresholds - outputs.unsqueeze(-1)
        zero = torch.zeros_like(outputs).unsqueeze(-1)
        level = torch.arange(self.most, device=outputs.device)
        inner = (level > 0) & (level < self.last[:, None])
        below = torch.cat([functional.logsigmoid(away), zero], dim=-1)  # log P(y ≤ k)
        above = torch.cat([zero, functional.logsigmoid(-away)], dim=-1)  # log P(y ≥ k)
        middle = functional.pad((-(-self.gaps).expm1()).log(), (1, 1))[..., : self.most]
        found = torch.where(level < self.last[:, None], below, 0.0) + above + torch.where(inner, middle, 0.0)
        return torch.where(level <= self.last[:, None], found, -math.inf)

    @torch.no_grad()
    def start(self, y: Tensor, mask: Tensor) -> None:
        at = self._shares(y, mask).cumsum(-1)[:, :-1].clamp(0.001, 0.999).logit()
        self.first.copy_(at[:, :1])
        self.raw.copy_(at.diff(dim=-1).clamp_min(0.05).log())


def family(name: str, space: MeasurementSpace, columns: list[int], floor: float) -> Family:
    """The law of the given columns of a space."""
    levels = [space.levels[d] for d in columns]
    match name:
        case "gaussian":
            return GaussianLikelihood(torch.ones(len(columns)), floor)
        case "student":
            return Student(torch.ones(len(columns)), floor)
        case "censored":
            return Censored(torch.tensor([space.limits[d] for d in columns], dtype=torch.float64), floor)
        case "poisson":
            return Poisson(len(columns))
        case "negative_binomial":
            return NegativeBinomial(len(columns))
        case "bernoulli":
            return Bernoulli(len(columns))
        case "categorical":
            return Categorical(levels)
        case _:
            return Ordinal(levels)


def _moments(y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the observed entries of each column."""
    seen = mask.to(y.dtype)
    mean = (y * seen).sum(0) / seen.sum(0)
    return mean, ((y - mean) ** 2 * seen).sum(0) / seen.sum(0)


def _log_normal(residual: Tensor, var: Tensor) -> Tensor:
    return -0.5 * (residual**2 / var + var.log() + math.log(2.0 * math.pi))


def _log_ndtr(x: Tensor) -> Tensor:
    """log Φ(x); far out by its series, as torch's gradient is no number there."""
    far = x.clamp_max(-30.0)
    square = far.square()
    tail = -0.5 * (square + math.log(2.0 * math.pi)) - (-far).log() + ((3.0 / square - 1.0) / square).log1p()
    return torch.where(x < -30.0, tail, torch.special.log_ndtr(x.clamp(-30.0, 30.0)))


def _within(value: Tensor, most: float) -> Tensor:
    """The value itself near 0, and never further from it than `most`."""
    return most * torch.tanh(value / most)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
