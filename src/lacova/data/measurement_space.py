"""The space that measurements live in: the family of each column, its levels, and what networks see and give of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

NUMBERS = ("gaussian", "student", "censored")  # scaled numbers
COUNTS = ("poisson", "negative_binomial")  # whole numbers as they are
LEVELS = ("bernoulli", "categorical", "ordinal")  # codes of levels
FAMILIES = (*NUMBERS, *COUNTS, *LEVELS)
ONE_HOT = ("categorical", "ordinal")
NO_LIMITS = (-math.inf, math.inf)


class Columns(NamedTuple):
    """The layout as index tensors on a device, made once: building them anew would make the host wait."""

    single: Tensor  # columns of one feature each
    counted: Tensor  # which of those are counts
    hot: Tensor  # columns of a feature per level
    used: Tensor  # which of their features there are, of as many levels for each
    level: Tensor


@dataclass(frozen=True)
class MeasurementSpace:
    """Layout of Y.

    Attributes:
        families: of the observation model of each column, on its encoded scale; a log-normal column is Gaussian there.
        levels: number of levels per column; 0 marks a number.
        limits: of detection per column, on its encoded scale; infinite where there are none.
    """

    families: tuple[str, ...]
    levels: tuple[int, ...]
    limits: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, measurements: int | MeasurementSpace) -> MeasurementSpace:
        """The space itself, or that of so many Gaussian columns."""
        if isinstance(measurements, MeasurementSpace):
            return measurements
        return cls(("gaussian",) * measurements, (0,) * measurements, (NO_LIMITS,) * measurements)

    def __len__(self) -> int:
        return len(self.families)

    @cached_property
    def plain(self) -> bool:
        """Whether all columns are Gaussian, for which there are shorter ways."""
        return all(family == "gaussian" for family in self.families)

    @cached_property
    def max_levels(self) -> int:
        return max(self.levels, default=0)

    def columns(self, *families: str) -> list[int]:
        return [d for d, family in enumerate(self.families) if family in families]

    @cached_property
    def outputs(self) -> tuple[tuple[int, ...], ...]:
        """Per column, which of the decoder's outputs are its own: one, or one per level of a categorical one."""
        found, start = [], 0
        for family, levels in zip(self.families, self.levels, strict=True):
            width = levels if family == "categorical" else 1
            found.append(tuple(range(start, start + width)))
            start += width
        return tuple(found)

    @property
    def output_width(self) -> int:
        return sum(map(len, self.outputs))

    @property
    def width(self) -> int:
        """Of what networks see: values (one per level where one-hot), then the mask."""
        hot = self.columns(*ONE_HOT)
        return 2 * len(self) - len(hot) + sum(self.levels[d] for d in hot)

    @property
    def owners(self) -> list[int]:
        """The column of each value that networks see."""
        hot = self.columns(*ONE_HOT)
        return [d for d in range(len(self)) if d not in hot] + [d for d in hot for _ in range(self.levels[d])]

    def features(self, y: Tensor, mask: Tensor) -> Tensor:
        """Encoded measurements with gaps as network inputs (N×width): 0 where `mask` is False, then the mask.

        Numbers are as they are, counts as log(1 + y), levels one-hot; of a Bernoulli column, its second level.
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
    hot = space.columns(*ONE_HOT)
    single = [d for d in range(len(space)) if d not in hot]
    most = max((space.levels[d] for d in hot), default=0)
    used = [k * most + level for k, d in enumerate(hot) for level in range(space.levels[d])]
    tensors = (torch.tensor(values, dtype=torch.long, device=device) for values in (single, hot, used))
    one, many, flat = tensors
    count = torch.tensor([space.families[d] in COUNTS for d in single], dtype=torch.bool, device=device)
    return Columns(one, count, many, flat, torch.arange(most, device=device))
