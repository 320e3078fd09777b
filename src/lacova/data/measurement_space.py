"""The layout of measurements: the family and levels of each column, and its network inputs and outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.kinds import outputs_of, values_of

# The order in which families are evaluated.
FAMILIES = (
    "gaussian", "student", "censored", "poisson", "negative_binomial", "bernoulli", "categorical", "ordinal"
)  # fmt: skip
NO_LIMITS = (-math.inf, math.inf)


class Columns(NamedTuple):
    """The layout as index tensors on a device, built once: building them again would make the host wait."""

    single: Tensor  # columns with one feature
    counted: Tensor  # which of those are counts
    hot: Tensor  # columns with a feature per level
    used: Tensor  # which of their features exist, if each column is padded to the most levels
    level: Tensor  # codes of levels


@dataclass(frozen=True)
class MeasurementSpace:
    """Layout of Y.

    Attributes:
        families: family of the observation model of each column on the encoded scale, where log-normal is Gaussian.
        levels: number of levels per column; 0 marks a number.
        limits: limits of detection per column, on the encoded scale; infinite where there are none.
    """

    families: tuple[str, ...]
    levels: tuple[int, ...]
    limits: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, measurements: int | MeasurementSpace) -> MeasurementSpace:
        """Return the space itself, or that of so many Gaussian columns."""
        if isinstance(measurements, MeasurementSpace):
            return measurements
        return cls(("gaussian",) * measurements, (0,) * measurements, (NO_LIMITS,) * measurements)

    def __len__(self) -> int:
        return len(self.families)

    @cached_property
    def plain(self) -> bool:
        """Whether all columns are Gaussian, which allows shortcuts."""
        return all(family == "gaussian" for family in self.families)

    @cached_property
    def max_levels(self) -> int:
        """The largest number of levels of a column; 0 if there are only numbers."""
        return max(self.levels, default=0)

    @cached_property
    def family_names(self) -> tuple[str, ...]:
        """The families of the columns, each once: lacova's own in their order, then others as they come."""
        return tuple(name for name in dict.fromkeys([*FAMILIES, *self.families]) if name in self.families)

    def columns(self, *families: str) -> list[int]:
        """Return the indices of the columns of these families."""
        return [d for d, family in enumerate(self.families) if family in families]

    @cached_property
    def one_hot(self) -> list[int]:
        """The columns of levels that networks see one-hot; of a Bernoulli column they see its second level."""
        return [d for d, family in enumerate(self.families) if family != "bernoulli" and values_of(family) == "level"]

    @cached_property
    def outputs(self) -> tuple[tuple[int, ...], ...]:
        """Per column, the indices of its decoder outputs: one, or one per level of a categorical column."""
        outputs, start = [], 0
        for family, levels in zip(self.families, self.levels, strict=True):
            width = outputs_of(family, levels)
            outputs.append(tuple(range(start, start + width)))
            start += width
        return tuple(outputs)

    @property
    def output_width(self) -> int:
        """The number of decoder outputs."""
        return sum(map(len, self.outputs))

    @property
    def width(self) -> int:
        """The number of network inputs: values (one per level where one-hot), then the mask."""
        hot = self.one_hot
        return 2 * len(self) - len(hot) + sum(self.levels[d] for d in hot)

    @property
    def owners(self) -> list[int]:
        """The column of each value among the network inputs."""
        hot = self.one_hot
        return [d for d in range(len(self)) if d not in hot] + [d for d in hot for _ in range(self.levels[d])]

    def features(self, y: Tensor, mask: Tensor) -> Tensor:
        """Return encoded measurements with gaps as network inputs (N×width): 0 where `mask` is False, then the mask.

        Numbers are unchanged, counts are log(1 + y), levels are one-hot; a Bernoulli column is 1 at its second level.
        """
        seen = mask.to(y.dtype)
        if self.plain:
            return torch.cat([y * seen, seen], dim=1)
        at = _columns(self, y.device)
        y = torch.where(mask, y, 0.0)
        single = y[:, at.single]
        single = torch.where(at.counted, single.clamp_min(0.0).log1p(), single)
        hot = (y[:, at.hot, None] == at.level).to(y.dtype) * seen[:, at.hot, None]
        return torch.cat([single, hot.flatten(1)[:, at.used], seen], dim=1)


@lru_cache(maxsize=64)
def _columns(space: MeasurementSpace, device: torch.device) -> Columns:
    hot = space.one_hot
    single = [d for d in range(len(space)) if d not in hot]
    most = max((space.levels[d] for d in hot), default=0)
    used = [k * most + level for k, d in enumerate(hot) for level in range(space.levels[d])]
    indices = [torch.tensor(values, dtype=torch.long, device=device) for values in (single, hot, used)]
    counted = torch.tensor([values_of(space.families[d]) == "count" for d in single], dtype=torch.bool, device=device)
    return Columns(indices[0], counted, indices[1], indices[2], torch.arange(most, device=device))
