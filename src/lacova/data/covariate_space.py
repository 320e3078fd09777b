"""The layout of covariates: which columns are continuous, categorical, or constant within an instance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Columns(NamedTuple):
    """The layout as index tensors on a device, built once: building them again would make the host wait."""

    continuous: Tensor
    categorical: Tensor
    static: Tensor
    level: Tensor


@dataclass(frozen=True)
class CovariateSpace:
    """Layout of X.

    Attributes:
        names: the columns, in order.
        levels: number of levels per column; 0 marks a continuous one.
        static: whether the column is constant within an instance.
    """

    names: tuple[str, ...]
    levels: tuple[int, ...]
    static: tuple[bool, ...]

    @cached_property
    def continuous(self) -> list[int]:
        """Indices of the continuous columns."""
        return [q for q, n in enumerate(self.levels) if n == 0]

    @cached_property
    def categorical(self) -> list[int]:
        """Indices of the categorical columns."""
        return [q for q, n in enumerate(self.levels) if n > 0]

    @cached_property
    def max_levels(self) -> int:
        """The largest number of levels; 1 without categorical columns."""
        return max((n for n in self.levels if n), default=1)

    def on(self, device: torch.device) -> Columns:
        """Return the layout on `device`: indices by kind, which columns are static (Q,), and the level codes."""
        return _columns(self, device)

    @property
    def width(self) -> int:
        """Number of value features: one per continuous column, one per level of a categorical one."""
        return len(self.owners)

    @cached_property
    def owners(self) -> list[int]:
        """The column of each value feature."""
        return self.continuous + [q for q in self.categorical for _ in range(self.levels[q])]

    def values(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return covariates as network inputs (N×width): numbers, then one-hot levels; zero where `mask` is False."""
        at = self.on(x.device)
        number = x[:, at.continuous]
        parts = [number if mask is None else number * mask[:, at.continuous]]
        for q in self.categorical:
            hot = (x[:, q, None] == at.level[: self.levels[q]]).to(x.dtype)
            parts.append(hot if mask is None else hot * mask[:, q, None])
        return torch.cat(parts, dim=1)

    def features(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return covariates with gaps as network inputs (N×(width+Q)): values, then the mask."""
        return torch.cat([self.values(x, mask), mask.to(x.dtype)], dim=1)


@lru_cache(maxsize=64)
def _columns(space: CovariateSpace, device: torch.device) -> Columns:
    def tensor(values: list[int] | tuple[bool, ...], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return Columns(
        tensor(space.continuous, torch.long), tensor(space.categorical, torch.long), tensor(space.static, torch.bool),
        torch.arange(space.max_levels, device=device),
    )  # fmt: skip
