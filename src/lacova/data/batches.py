"""Mini-batches of rows or of whole patients, each with the factor that makes its sums unbiased."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.distributions import ConditionalPrior
from lacova.data.encoder import Table


@dataclass(frozen=True)
class Batch:
    """Some rows of a table.

    `patient` numbers the batch's patients 0..P̂−1 and rows of one patient are adjacent. `scale` is N/N̂ or P/P̂:
    a sum over the batch times `scale` estimates the sum over the table without bias. `given` is the covariate prior of
    each row. `real` (N̂,) is 0 for rows that only fill up a shape and have neither measurements nor gaps in x; None if
    all rows are real.
    """

    y: Tensor
    y_mask: Tensor
    x: Tensor
    x_mask: Tensor
    patient: Tensor
    scale: float | Tensor = 1.0
    conditional_prior: ConditionalPrior | None = None
    count: int | None = None  # of patients, where it is known without looking
    real: Tensor | None = None
    longest: int | None = None  # rows of a patient, at most, where it is known without looking

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def patients(self) -> int:
        """P̂."""
        return int(self.patient[-1]) + 1 if self.count is None else self.count

    @cached_property
    def first(self) -> Tensor:
        """The first row of each patient (P̂,), which stands for what the patient's visits share.

        A patient without rows, where patients only fill up a shape, has any.
        """
        last = torch.full((self.patients,), len(self) - 1, device=self.patient.device)
        return last.scatter_reduce(0, self.patient, torch.arange(len(self), device=self.patient.device), "amin")

    @cached_property
    def owner(self) -> Tensor:
        """For each row, the first row of its patient."""
        return self.first[self.patient]

    @cached_property
    def blocks(self) -> Blocks:
        """The rows by patient."""
        return blocks(self.patient, self.patients, self.longest)

    def in_first_row(self, values: Tensor) -> Tensor:
        """What patients have (…×P̂) as numbers of rows (…×N̂): in the first row of each, 0 in the others."""
        first = self.owner == torch.arange(len(self), device=self.owner.device)
        return torch.where(first, values[..., self.patient], 0.0)

    def take(self, rows: Tensor) -> Batch:
        """The rows chosen by a mask (N̂,), their patients numbered anew."""
        patient = torch.unique_consecutive(self.patient[rows], return_inverse=True)[1]
        given = None if self.conditional_prior is None else self.conditional_prior.take(rows)
        return Batch(self.y[rows], self.y_mask[rows], self.x[rows], self.x_mask[rows], patient, self.scale, given)


class Blocks(NamedTuple):
    """Rows gathered by patient and padded: place of each row (V×n) and which places hold one (V×n)."""

    places: Tensor
    filled: Tensor

    def gather(self, values: Tensor) -> Tensor:
        """(…×rows) to (…×V×n), zero where padded."""
        return values[..., self.places] * self.filled


def blocks(group: Tensor, groups: int = 0, longest: int | None = None) -> Blocks:
    """Pad adjacent rows of equal `group` (0, 0, 1, 1, 1, …) to a rectangle of at least `groups` lines.

    Where `longest` says how long lines are, nothing waits for the device; there are then `groups` lines, and what is
    longer is cut off.
    """
    if longest is None:
        counts = torch.bincount(group, minlength=groups)
        longest = max(int(counts.max()), 1)
    else:
        counts = group.new_zeros(groups).index_add(0, group, torch.ones_like(group))
    place = torch.arange(longest, device=group.device)
    filled = place < counts[:, None]
    start = counts.cumsum(0) - counts
    return Blocks(torch.where(filled, start[:, None] + place, 0), filled)


class Batches:
    """Splits a table into batches; of whole patients where it has an instance column.

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
        """Row indices of the given units, and the position of each row's unit in `units`."""
        counts = self._counts[units]
        unit = torch.repeat_interleave(torch.arange(len(units)), counts)
        within = torch.arange(len(unit)) - (counts.cumsum(0) - counts)[unit]
        return self._order[self._starts[units][unit] + within], unit

    def batch(self, units: Tensor) -> Batch:
        rows, unit = self.rows(units)
        t, device = self.table, self.table.y.device
        rows, unit = rows.to(device), unit.to(device)
        given = None if t.conditional_prior is None else t.conditional_prior.take(rows)
        return Batch(
            t.y[rows], t.y_mask[rows], t.x[rows], t.x_mask[rows], unit, self.units / len(units), given, len(units),
            longest=None if t.patient is None else int(self._counts[units].max()),
        )  # fmt: skip

    def shuffled(self, generator: torch.Generator) -> Iterator[Tensor]:
        """The units of each batch, every unit once, in random order."""
        yield from torch.randperm(self.units, generator=generator).split(self.size)

    def in_order(self) -> Iterator[tuple[Tensor, Batch]]:
        """Row indices and batch, every unit once, in order; `scale` is 1, so that sums over batches add up."""
        for units in torch.arange(self.units).split(self.size):
            yield self.rows(units)[0], replace(self.batch(units), scale=1.0)


def variance_parts(values: Tensor, seen: Tensor, patient: Tensor | None) -> tuple[Tensor, Tensor]:
    """Variance between and within patients (D,) each, of what is seen of the values (N×D); none is negative."""
    if patient is None:
        raise ValueError("a table without an instance column has no patients to have levels of their own.")
    weight = seen.to(values.dtype)
    zero = weight.new_zeros(int(patient.max()) + 1, weight.shape[1])
    count = zero.index_add(0, patient, weight)
    mean = zero.index_add(0, patient, values * weight) / count.clamp_min(1.0)
    square = ((values - mean[patient]) ** 2 * weight).sum(0)
    freedom = (count.sum(0) - (count > 0).sum(0)).clamp_min(1.0)
    within = square / freedom
    overall = (values * weight).sum(0) / weight.sum(0)
    total = ((values - overall) ** 2 * weight).sum(0) / weight.sum(0)
    return (total - within).clamp_min(0.0), torch.minimum(within, total)
