"""Families of levels: Bernoulli, categorical and ordinal columns, as codes 0, …, K−1."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from lacova.data.registry import register
from lacova.likelihoods.base import Family, FamilyColumns, soft_clamp

LOG_GAP_RANGE = 8.0  # log-gaps between thresholds stay within this of 0, for the sake of float32


class LevelFamily(Family):
    """Distribution of codes 0, …, K−1.

    Args:
        levels: K of each column.
    """

    values = "level"
    last: Tensor

    def __init__(self, levels: list[int]) -> None:
        super().__init__()
        self.register_buffer("last", torch.tensor(levels) - 1, persistent=False)
        self.max_levels = max(levels)

    @classmethod
    def build(cls, columns: FamilyColumns) -> Self:
        return cls(list(columns.levels))

    @abstractmethod
    def log_probabilities(self, outputs: Tensor) -> Tensor: ...

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        log_prob = self.log_probabilities(outputs)
        return log_prob.gather(-1, y.long().unsqueeze(-1).expand(*log_prob.shape[:-1], 1)).squeeze(-1)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        cumulative = self.log_probabilities(outputs).exp().cumsum(-1)
        uniform = torch.rand(cumulative.shape[:-1], generator=generator, device=outputs.device, dtype=outputs.dtype)
        code = (uniform.unsqueeze(-1) >= cumulative).sum(-1)
        return torch.minimum(code, self.last).to(outputs.dtype)

    def _frequencies(self, y: Tensor, mask: Tensor) -> Tensor:
        """Return how often each level occurs (n×K), after adding half an entry to each."""
        one_hot = (y[..., None] == torch.arange(self.max_levels)) & mask[..., None]
        counts = (one_hot.sum(0) + 0.5) * self._valid()
        return counts / counts.sum(-1, keepdim=True)

    def _valid(self) -> Tensor:
        """Return which of K levels each column has (n×K)."""
        return torch.arange(self.max_levels, device=self.last.device) <= self.last[:, None]


@register("bernoulli")
class Bernoulli(LevelFamily):
    """Two levels; the log-odds of the second are `base` plus the decoder's output."""

    base: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__([2] * columns)
        self.register_buffer("base", torch.zeros(columns))

    @classmethod
    def build(cls, columns: FamilyColumns) -> Self:
        return cls(len(columns))

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return functional.logsigmoid((2.0 * y - 1.0) * (self.base + outputs))

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        odds = self.base + outputs
        return torch.stack([functional.logsigmoid(-odds), functional.logsigmoid(odds)], dim=-1)

    @torch.no_grad()
    def initialise(self, y: Tensor, mask: Tensor) -> None:
        self.base.copy_(self._frequencies(y, mask)[:, 1].logit())


@register("categorical")
class Categorical(LevelFamily):
    """Levels without an order, with logits `base` plus the decoder's outputs (…×n×K)."""

    outputs = None
    base: Tensor
    beyond: Tensor

    def __init__(self, levels: list[int]) -> None:
        super().__init__(levels)
        self.register_buffer("base", torch.zeros(len(levels), self.max_levels))
        beyond = torch.zeros(len(levels), self.max_levels).masked_fill(~self._valid(), -math.inf)
        self.register_buffer("beyond", beyond, persistent=False)  # −∞ at levels that a column does not have

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        return (outputs + (self.base + self.beyond)).log_softmax(-1)

    @torch.no_grad()
    def initialise(self, y: Tensor, mask: Tensor) -> None:
        self.base.copy_(torch.where(self._valid(), self._frequencies(y, mask), 1.0).log())


@register("ordinal")
class Ordinal(LevelFamily):
    """Ordered levels: P(y ≤ k) = σ(c_k − location), with learnt thresholds c_0 < c_1 < … per column."""

    def __init__(self, levels: list[int]) -> None:
        super().__init__(levels)
        self.first = nn.Parameter(torch.zeros(len(levels), min(self.max_levels - 1, 1)))
        self.raw = nn.Parameter(torch.zeros(len(levels), max(self.max_levels - 2, 0)))

    @property
    def gaps(self) -> Tensor:
        """Distances of neighbouring thresholds (n×(K−2))."""
        return soft_clamp(self.raw, LOG_GAP_RANGE).exp()

    @property
    def thresholds(self) -> Tensor:
        """c (n×(K−1))."""
        return torch.cat([self.first, self.gaps], dim=-1).cumsum(-1)

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """σ(b) − σ(a) = σ(b) σ(−a) (1 − exp(a − b)) for neighbouring thresholds a < b, less the location."""
        distance = self.thresholds - outputs.unsqueeze(-1)
        zero = torch.zeros_like(outputs).unsqueeze(-1)
        level = torch.arange(self.max_levels, device=outputs.device)
        inner = (level > 0) & (level < self.last[:, None])
        below = torch.cat([functional.logsigmoid(distance), zero], dim=-1)  # log P(y ≤ k)
        above = torch.cat([zero, functional.logsigmoid(-distance)], dim=-1)  # log P(y ≥ k)
        middle = functional.pad((-(-self.gaps).expm1()).log(), (1, 1))[..., : self.max_levels]
        log_prob = torch.where(level < self.last[:, None], below, 0.0) + above + torch.where(inner, middle, 0.0)
        return torch.where(level <= self.last[:, None], log_prob, -math.inf)

    @torch.no_grad()
    def initialise(self, y: Tensor, mask: Tensor) -> None:
        thresholds = self._frequencies(y, mask).cumsum(-1)[:, :-1].clamp(0.001, 0.999).logit()
        self.first.copy_(thresholds[:, :1])
        self.raw.copy_(thresholds.diff(dim=-1).clamp_min(0.05).log())
