"""The layout of covariates: which columns are continuous, categorical, or constant within an instance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Columns(NamedTuple):
    """The layout as tensors on a device, built once: building them again would make the host wait.

    Attributes:
        continuous, categorical: indices of the columns of each kind.
        static, varying: whether each column is constant within an instance, and whether it is not (Q,).
        owner: the column of each value feature (width,).
        number: whether each value feature is a number (width,).
        code: the level of each value feature (width,); −1 for a number.
        level_owner: the column of each one-hot feature.
        level_place: the place of each one-hot feature among all levels of all columns (Q·max_levels).
    """

    continuous: Tensor
    categorical: Tensor
    static: Tensor
    varying: Tensor
    owner: Tensor
    number: Tensor
    code: Tensor
    level_owner: Tensor
    level_place: Tensor


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
        """Return the layout on `device`."""
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
        column = x.index_select(1, at.owner)
        if self.categorical:
            column = torch.where(at.number, column, (column == at.code).to(x.dtype))
        return column if mask is None else column * mask.index_select(1, at.owner)

    def levels_of(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the levels of the categories as 0 and 1, 0 where missing, and 1 where known (N×levels, float64)."""
        first = len(self.continuous)
        known = mask.index_select(1, self.on(x.device).owner[first:])
        return torch.where(known, self.values(x)[:, first:], 0.0).double(), known.double()

    def of_levels(self, values: Tensor) -> Tensor:
        """Return values of all levels (N×Q×max_levels) at the one-hot features, in the order of `values`."""
        return values.flatten(1).index_select(1, self.on(values.device).level_place)


@lru_cache(maxsize=64)
def _columns(space: CovariateSpace, device: torch.device) -> Columns:
    def tensor(values: list[int] | tuple[bool, ...], dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    levels = [(q, level) for q in space.categorical for level in range(space.levels[q])]
    static, code = tensor(space.static, torch.bool), tensor([-1] * len(space.continuous) + [k for _, k in levels])
    return Columns(
        tensor(space.continuous), tensor(space.categorical), static, ~static, tensor(space.owners), code < 0, code,
        tensor([q for q, _ in levels]), tensor([q * space.max_levels + level for q, level in levels]),
    )  # fmt: skip
