"""A batch on its way to the optimiser: as tensors on the device, or by reference to the rows of a table there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from lacova.covariates.scenarios import Plan, RowPlan, StandardDraws
from lacova.data.batches import Batch
from lacova.data.table import Table
from lacova.inference.vae import ConditionalVAE

if TYPE_CHECKING:
    from lacova.training.loader import TableLoader


class BatchPart(NamedTuple):
    """Which part of a batch this process has, where several processes share it.

    Attributes:
        start, rows: how many rows of the batch lie before this part, and how many the batch has.
        once: 1 in one of the processes and 0 in the others: the weight of terms that are not sums over rows.
    """

    start: int
    rows: int
    once: float


class TrainingBatch(NamedTuple):
    """A batch on its way to the optimiser.

    Attributes:
        batch: the rows.
        plan: the scenarios of missing covariates to sum over.
        masked: the same rows with more covariates masked; None without the masked loss.
        part: this process's part of the batch; None if it has all of it.
    """

    batch: Batch
    plan: Plan
    masked: Batch | None
    part: BatchPart | None = None

    def gather(self) -> TrainingBatch:
        return self

    def draw_eps(
        self, vae: ConditionalVAE, samples: int, generator: torch.Generator, dropout: float = 0.0
    ) -> StandardDraws:
        """Draw the random numbers of a step; those of a row are the same however many processes there are."""
        if self.part is None:
            return vae.draw_eps(self.batch, samples, generator, dropout)
        x, rows = self.batch.x, slice(self.part.start, self.part.start + len(self.batch))
        whole = x.new_empty(()).expand(self.part.rows, x.shape[1])
        return vae.draw_eps(replace(self.batch, x=whole), samples, generator, dropout).rows(rows)


@dataclass(frozen=True)
class IndexedBatch:
    """A batch by reference to the rows of a table on the device, gathered there, within a captured graph if there is
    one.

    Its tensors are small, and on the host until a graph takes them.

    Attributes:
        rows: which rows (N̂,).
        real: False for rows that only fill up a shape (N̂,).
        patient: as in `Batch` (N̂,).
        scale: N/N̂ or P/P̂, or 1.
        plan: the scenarios of missing covariates to sum over.
        masked: whether the same rows with more covariates masked belong to it.
        count, longest: as in `Batch`.
        loader: where the rows are.
    """

    rows: Tensor
    real: Tensor
    patient: Tensor
    scale: Tensor
    plan: Plan | RowPlan
    masked: bool
    count: int
    longest: int | None
    loader: TableLoader

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self) -> TrainingBatch:
        """Gather the rows."""
        table, masked, device = self.loader.batches.table, self.loader.masked_table, self.loader.device
        here: IndexedBatch = map_tensors(self, lambda value: value.to(device, non_blocking=True))
        rows, real, filling = here.rows, here.real[:, None], ~here.real[:, None]
        weight, prior = here.real.to(table.x.dtype), table.conditional_prior
        prior = None if prior is None else prior.take(rows).without_paths(~here.real)
        batch = Batch(
            table.y[rows], table.y_mask[rows] & real, table.x[rows], table.x_mask[rows] | filling, here.patient,
            here.scale, prior, here.count, weight, here.longest,
        )  # fmt: skip
        plan = here.plan.expand(weight, batch.x.shape[1]) if isinstance(here.plan, RowPlan) else here.plan
        if not self.masked:
            return TrainingBatch(batch, plan, None)
        assert masked is not None
        more = with_mask_of(batch, masked, rows)
        prior = None if more.conditional_prior is None else more.conditional_prior.without_paths(~here.real)
        return TrainingBatch(batch, plan, replace(more, x_mask=more.x_mask | filling, conditional_prior=prior))


AnyBatch = TrainingBatch | IndexedBatch


def with_mask_of(batch: Batch, masked: Table, rows: Tensor) -> Batch:
    """Return a batch with the mask and the conditional prior of x that its rows have in the masked table."""
    rows = rows.to(masked.x_mask.device, non_blocking=True)
    prior = None if masked.conditional_prior is None else masked.conditional_prior.take(rows)
    return replace(batch, x_mask=masked.x_mask[rows], conditional_prior=prior)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield all tensors within dataclasses and tuples, in a fixed order."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors(part)


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a new object with every tensor changed, in the order of `tensors`."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: map_tensors(getattr(value, f.name), change) for f in fields(value)})
    if isinstance(value, tuple):
        parts = [map_tensors(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
