"""The protocol of an observation family: log p(y | decoder outputs) of the columns of one kind, per entry.

Families work on the encoded scale of a column: numbers scaled, counts as they are, levels as codes. The encoder's
`log_jacobian` turns densities into those of the measurement's own units.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_args

import torch
from torch import Tensor, nn

from lacova.data.kinds import Values

NOISE_FLOOR = 1e-4


@dataclass(frozen=True)
class FamilyColumns:
    """What a family is built for: n columns of a table.

    Attributes:
        levels: number of levels of each column; 0 for numbers.
        limits: of censored columns, the lower and upper limit of detection on the encoded scale; else infinite.
        noise_floor: least noise variance of a scaled number.
    """

    levels: tuple[int, ...]
    limits: tuple[tuple[float, float], ...]
    noise_floor: float = NOISE_FLOOR

    def __len__(self) -> int:
        return len(self.levels)


class Family(nn.Module, ABC):
    """Distribution of n columns of one kind given the decoder's outputs (…×n, or …×n×K with K outputs per column).

    To bring a family of your own, derive from this class, set `values` and `outputs`, write the methods below, and
    register it; its name is then a kind of measurement in schemas. `lacova.testing.check_family` runs the contract.

    Attributes:
        values: "number" for real numbers, which are standardised; "positive" for positive numbers, which are divided by
            their standard deviation; "count" for whole numbers from 0 on and "level" for codes 0, …, K−1, as they are.
        outputs: K, how many outputs of the decoder each column has; None for one per level.
    """

    part_kind: ClassVar[str] = "family"
    values: ClassVar[Values] = "number"
    outputs: ClassVar[int | None] = 1

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if cls.values not in get_args(Values):
            raise TypeError(
                f"values of {cls.__name__} is {cls.values!r}; expected one of {', '.join(get_args(Values))}."
            )
        if cls.outputs is None and cls.values != "level":
            raise TypeError(f"outputs of {cls.__name__} is None, one per level, but its values are no levels.")

    @classmethod
    def build(cls, columns: FamilyColumns) -> Self:
        """Build the family for some columns; by default, `cls(n)`."""
        return cls(len(columns))

    @abstractmethod
    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return log p(y) per entry (…×n), constants included."""

    @abstractmethod
    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Draw y once per entry (…×n)."""

    @abstractmethod
    def initialise(self, y: Tensor, mask: Tensor) -> None:
        """Set the parameters from the observed entries of a table (N×n), as if the decoder gave 0."""

    def mean(self, outputs: Tensor) -> Tensor:
        """Return E y per entry (…×n); families of levels have none."""
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    def variance(self, outputs: Tensor) -> Tensor:
        """Return Var y per entry, in what broadcasts to …×n; families of levels have none."""
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return the log probability of each level (…×n×K), −∞ beyond a column's own; for families of levels."""
        raise NotImplementedError(f"{type(self).__name__} has no levels")


def observed_moments(y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the observed entries of each column."""
    weight = mask.to(y.dtype)
    mean = (y * weight).sum(0) / weight.sum(0)
    return mean, ((y - mean) ** 2 * weight).sum(0) / weight.sum(0)


def log_normal_density(residual: Tensor, var: Tensor) -> Tensor:
    return -0.5 * (residual**2 / var + var.log() + math.log(2.0 * math.pi))


def soft_clamp(value: Tensor, bound: float) -> Tensor:
    """Return the value itself near 0, and never further from 0 than `bound`."""
    return bound * torch.tanh(value / bound)


def standard_normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
