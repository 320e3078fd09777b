"""Mini-batches of rows or of whole patients, each with the factor that makes its sums unbiased."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior
from lacova.data.table import Table


@dataclass(frozen=True)
class Batch:
    """Some rows of a table.

    Rows of one patient are adjacent.

    Attributes:
        y, y_mask: measurements (N̂×D) and which are observed.
        x, x_mask: covariates (N̂×Q) and which are observed.
        patient: number of each row's patient (N̂,), from 0 to P̂−1.
        scale: N/N̂ or P/P̂; a sum over the batch times `scale` is an unbiased estimate of the sum over the table.
        conditional_prior: p(x_u | x_o) of each row.
        count: P̂, where it is known without waiting for the device.
        real: 0 for rows that only fill up a shape, without measurements or gaps in x (N̂,); None if all rows are real.
        longest: upper bound of the number of rows of a patient, where it is known without waiting for the device.
    """

    y: Tensor
    y_mask: Tensor
    x: Tensor
    x_mask: Tensor
    patient: Tensor
    scale: float | Tensor = 1.0
    conditional_prior: ConditionalPrior | None = None
    count: int | None = None
    real: Tensor | None = None
    longest: int | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def patients(self) -> int:
        """The number of patients P̂."""
        return int(self.patient[-1]) + 1 if self.count is None else self.count

    @cached_property
    def first(self) -> Tensor:
        """The first row of each patient (P̂,), where values that its visits share are read.

        For a patient without rows, who only fills up a shape, it is an arbitrary row.
        """
        last = torch.full((self.patients,), len(self) - 1, device=self.patient.device)
        return last.scatter_reduce(0, self.patient, torch.arange(len(self), device=self.patient.device), "amin")

    @cached_property
    def owner(self) -> Tensor:
        """For each row, the first row of its patient (N̂,)."""
        return self.first[self.patient]

    @cached_property
    def is_first(self) -> Tensor:
        """Which rows are the first of their patient (N̂,)."""
        return self.owner == torch.arange(len(self), device=self.owner.device)

    @cached_property
    def counts(self) -> Tensor:
        """The number of rows of each patient (P̂,)."""
        zeros = self.patient.new_zeros(self.patients)
        return zeros.index_add(0, self.patient, torch.ones_like(self.patient))

    @cached_property
    def blocks(self) -> Blocks:
        """The rows by patient; those beyond `longest`, where it is known, are cut off."""
        longest = max(int(self.counts.max()), 1) if self.longest is None else self.longest
        return rectangle(self.counts, longest)

    def values(self, space: CovariateSpace) -> Tensor:
        """Return the observed covariates as network inputs (N̂×width), computed once; a batch has one space."""
        if "_values" not in self.__dict__:
            self.__dict__["_values"] = space.values(self.x, self.x_mask)
        values: Tensor = self.__dict__["_values"]
        return values

    def features(self, space: CovariateSpace) -> Tensor:
        """Return the covariates with gaps as network inputs (N̂×(width+Q)): values, then the mask."""
        return torch.cat([self.values(space), self.x_mask.to(self.x.dtype)], dim=1)

    def in_first_row(self, values: Tensor) -> Tensor:
        """Spread values of patients (…×P̂) over rows (…×N̂): each in the first row of its patient, 0 in the others."""
        return torch.where(self.is_first, values[..., self.patient], 0.0)

    def above(self, other: Batch) -> Batch:
        """Return these rows and, below them, those of another batch, whose patients are others."""
        prior, below = self.conditional_prior, other.conditional_prior
        y, y_mask, x, x_mask, patient = (
            torch.cat(parts)
            for parts in (
                (self.y, other.y), (self.y_mask, other.y_mask), (self.x, other.x), (self.x_mask, other.x_mask),
                (self.patient, other.patient + self.patients),
            )
        )  # fmt: skip
        both = None if prior is None or below is None else prior.above(below)
        longest = None if self.longest is None or other.longest is None else max(self.longest, other.longest)
        return Batch(
            y, y_mask, x, x_mask, patient, self.scale, both, self.patients + other.patients, longest=longest
        )  # fmt: skip

    def by_row(self) -> Batch:
        """Return the same rows with the conditional prior of each by itself, without paths."""
        prior = self.conditional_prior
        if prior is None or prior.distribution.paths is None:
            return self
        return replace(self, conditional_prior=replace(prior, distribution=prior.distribution.by_row()))

    def take(self, rows: Tensor) -> Batch:
        """Return the rows chosen by a mask (N̂,), with their patients numbered anew."""
        patient = torch.unique_consecutive(self.patient[rows], return_inverse=True)[1]
        prior = None if self.conditional_prior is None else self.conditional_prior.take(rows)
        return Batch(self.y[rows], self.y_mask[rows], self.x[rows], self.x_mask[rows], patient, self.scale, prior)


class Blocks(NamedTuple):
    """Rows gathered by patient and padded: the index of each row (V×n), and which places hold a row (V×n)."""

    places: Tensor
    filled: Tensor

    def gather(self, values: Tensor) -> Tensor:
        """Gather values of rows (…×rows) by patient (…×V×n), with zeros as padding."""
        return values[..., self.places] * self.filled

    def take(self, values: Tensor, dim: int) -> Tensor:
        """Replace a dimension of rows by those of patients and places (V×n); padding has values of some row."""
        taken: Tensor = values.index_select(dim, self.places.flatten()).unflatten(dim, self.places.shape)
        return taken


def blocks(group: Tensor, groups: int = 0) -> Blocks:
    """Pad adjacent rows of equal `group` (0, 0, 1, 1, 1, …) to a rectangle of at least `groups` lines."""
    counts = torch.bincount(group, minlength=groups)
    return rectangle(counts, max(int(counts.max()), 1))


def rectangle(counts: Tensor, longest: int) -> Blocks:
    """Pad groups of adjacent rows, with these numbers of rows, to `longest` places each; rows beyond are cut off."""
    place = torch.arange(longest, device=counts.device)
    filled = place < counts[:, None]
    start = counts.cumsum(0) - counts
    return Blocks((start[:, None] + place) * filled, filled)


class Batches:
    """The batches of a table, of whole patients where it has an instance column.

    Args:
        table: the rows.
        size: rows per batch, or patients per batch where the table has patients; None for one batch of everything.
    """

    def __init__(self, table: Table, size: int | None = None) -> None:
        self.table = table
        if table.patient is None:
            self._order = torch.arange(len(table))
            self._counts = torch.ones(len(table), dtype=torch.long)
        else:
            self._order = torch.argsort(table.patient, stable=True)
            self._counts = torch.bincount(table.patient)
        self._starts = self._counts.cumsum(0) - self._counts
        self.units = len(self._counts)
        self.size = self.units if size is None else min(size, self.units)

    def __len__(self) -> int:
        return -(-self.units // self.size)

    def rows(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row indices of the units, and the position of each row's unit in `units`."""
        if self.table.patient is None:
            return units, torch.arange(len(units))
        counts = self._counts[units]
        unit = torch.repeat_interleave(torch.arange(len(units)), counts)
        within = torch.arange(len(unit)) - (counts.cumsum(0) - counts)[unit]
        return self._order[self._starts[units][unit] + within], unit

    def longest(self, units: Tensor) -> int | None:
        """Return the number of rows of the longest unit; None where units are rows."""
        return None if self.table.patient is None else int(self._counts[units].max())

    def batch(self, units: Tensor) -> Batch:
        """Return the rows of the units as a batch."""
        rows, unit = self.rows(units)
        t, device = self.table, self.table.y.device
        rows, unit = rows.to(device, non_blocking=True), unit.to(device, non_blocking=True)
        prior = None if t.conditional_prior is None else t.conditional_prior.take(rows)
        return Batch(
            t.y[rows], t.y_mask[rows], t.x[rows], t.x_mask[rows], unit, self.units / len(units), prior, len(units),
            longest=self.longest(units),
        )  # fmt: skip

    def shuffled(self, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the units of each batch: every unit once, in random order."""
        yield from torch.randperm(self.units, generator=generator).split(self.size)

    def in_order(self, size: int | None = None) -> Iterator[tuple[Tensor, Batch]]:
        """Yield row indices and batch, every unit once, in order; `scale` is 1, so that sums over batches add up.

        `size` is another number of rows or patients per batch.
        """
        for units in torch.arange(self.units).split(size or self.size):
            yield self.rows(units)[0], replace(self.batch(units), scale=1.0)


def variance_parts(values: Tensor, mask: Tensor, patient: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the variance between and within patients (D,) of the observed values (N×D); neither is negative."""
    if patient is None:
        raise ValueError("a table without an instance column has no patients to have random effects.")
    weight = mask.to(values.dtype)
    zero = weight.new_zeros(int(patient.max()) + 1, weight.shape[1])
    count = zero.index_add(0, patient, weight)
    mean = zero.index_add(0, patient, values * weight) / count.clamp_min(1.0)
    square = ((values - mean[patient]) ** 2 * weight).sum(0)
    freedom = (count.sum(0) - (count > 0).sum(0)).clamp_min(1.0)
    within = square / freedom
    overall = (values * weight).sum(0) / weight.sum(0)
    total = ((values - overall) ** 2 * weight).sum(0) / weight.sum(0)
    return (total - within).clamp_min(0.0), torch.minimum(within, total)
