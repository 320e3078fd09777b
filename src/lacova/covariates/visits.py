"""Visits in the order of time: the nearest observed ones around each row, and runs of gaps between them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.table import Table


def clock_of(table: Table, time: int | None) -> Tensor:
    """Return the time of each row (N,), NaN where missing; without a time column, the number of the visit."""
    assert table.patient is not None
    if time is not None:
        return torch.where(table.x_mask[:, time].cpu(), table.x[:, time].cpu().double(), math.nan)
    order = torch.argsort(table.patient, stable=True)
    counts = torch.bincount(table.patient)
    visit = torch.empty(len(table), dtype=torch.float64)
    visit[order] = (torch.arange(len(table)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)).double()
    return visit


class Neighbours(NamedTuple):
    """The nearest visits, before and after each row, of the same patient at which a column is observed.

    Attributes:
        value: value of the column there (2×N×Q); 0 where there is no such visit.
        distance: distance in time (2×N×Q); inf where there is no such visit or the row's own time is missing.
    """

    value: Tensor
    distance: Tensor


class Runs(NamedTuple):
    """The runs of gaps of columns: visits of a patient that follow each other in time, all without a value.

    Attributes:
        before, after: as in `Paths` (N×Q).
        distance: distance in time to the gap before (N×Q); 0 where there is none.
        row: row of the gap before (N×Q); the row itself where there is none.
    """

    before: Tensor
    after: Tensor
    distance: Tensor
    row: Tensor

    def of(self, columns: Tensor) -> Runs:
        """Return the runs of some columns."""
        return Runs(*(part[:, columns] for part in self))


class Visits(NamedTuple):
    """Some columns of a table, on the host, with its visits in the order of time.

    Attributes:
        order: the rows of known time, by patient, then time (n,).
        patient: patient of each row (N,).
        clock: time of each row (N,).
        x, x_mask: the columns (N×Q).
    """

    order: Tensor
    patient: Tensor
    clock: Tensor
    x: Tensor
    x_mask: Tensor

    @classmethod
    def of(cls, table: Table, clock: Tensor, columns: Tensor) -> Visits:
        assert table.patient is not None
        x, mask = table.x.cpu()[:, columns].double(), table.x_mask.cpu()[:, columns]
        return cls(_in_time(table, clock), table.patient.cpu(), clock, x, mask)

    def neighbours(self) -> Neighbours:
        """Find each row's neighbours before and after in every column."""
        value = torch.zeros(2, *self.x.shape, dtype=torch.float64)
        distance = torch.full_like(value, torch.inf)
        for side, rows in enumerate((self.order, self.order.flip(0))):  # the last observed visit so far, both ways
            patient, time = self.patient[rows], self.clock[rows]
            place = torch.where(self.x_mask[rows], torch.arange(len(rows))[:, None], -1)
            last = torch.cat([torch.full_like(place[:1], -1), place.cummax(0).values[:-1]]) if len(rows) else place
            at = last.clamp_min(0)
            exists = (last >= 0) & (patient[at] == patient[:, None])
            value[side, rows] = torch.where(exists, self.x[rows].gather(0, at), 0.0)
            distance[side, rows] = torch.where(exists, (time[:, None] - time[at]).abs(), torch.inf)
        return Neighbours(value, distance)

    def runs(self) -> Runs:
        """Find the runs of gaps of every column. Rows of unknown time are in none."""
        place = torch.empty_like(self.patient)
        place[torch.argsort(self.patient, stable=True)] = torch.arange(len(place))
        first, second, gap = self.order[:-1], self.order[1:], ~self.x_mask[self.order]
        pair = gap[1:] & gap[:-1] & (self.patient[second] == self.patient[first])[:, None]
        before, after, distance = (torch.zeros_like(self.x, dtype=d) for d in (torch.long, torch.long, torch.double))
        step = (place[first] - place[second])[:, None]
        before[second], after[first] = torch.where(pair, step, 0), torch.where(pair, -step, 0)
        distance[second] = torch.where(pair, (self.clock[second] - self.clock[first])[:, None], 0.0)
        row = torch.arange(len(place))[:, None].repeat(1, self.x.shape[1])
        row[second] = torch.where(pair, first[:, None], second[:, None])
        return Runs(before, after, distance, row)


def _in_time(table: Table, clock: Tensor) -> Tensor:
    """Return the rows of known time, by patient, then time."""
    assert table.patient is not None
    rows = (~clock.isnan()).nonzero()[:, 0]
    by_time = rows[torch.argsort(clock[rows], stable=True)]
    return by_time[torch.argsort(table.patient[by_time], stable=True)]
