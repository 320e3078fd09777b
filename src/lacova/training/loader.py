"""Batches as training takes them: rows, and the same rows with more covariates masked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lacova.covariates.masked_loss import mask_more
from lacova.covariates.scenarios import Plan, StandardDraws, identity_plan
from lacova.data.batches import Batch, Batches
from lacova.data.io.archive import digest
from lacova.data.table import Table
from lacova.inference.vae import ConditionalVAE
from lacova.training.distributed import SINGLE, Team
from lacova.training.options import FitOptions


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
    """A batch by reference: rows of a table on the device, gathered there, within a captured graph if there is one.

    For tables of rows without categorical covariates, whose scenarios are the rows themselves.

    Attributes:
        rows: which rows (N̂,).
        real: False for rows that only fill up a shape (N̂,).
        scale: N/N̂, or 1.
        open, open_real: as in `Plan`.
        loader: where the rows are.
    """

    rows: Tensor
    real: Tensor
    scale: Tensor
    open: Tensor
    open_real: Tensor
    loader: TableLoader

    def gather(self) -> TrainingBatch:
        """Gather the rows."""
        table, masked, rows = self.loader.batches.table, self.loader.masked_table, self.rows
        real = self.real.to(table.x.dtype)
        number = torch.arange(len(rows), device=rows.device)
        batch = Batch(
            table.y[rows], table.y_mask[rows] & self.real[:, None], table.x[rows],
            table.x_mask[rows] | ~self.real[:, None], number, self.scale,
            None if table.conditional_prior is None else table.conditional_prior.take(rows), len(rows), real,
        )  # fmt: skip
        plan = identity_plan(number, real, batch.x.shape[1], self.open, self.open_real)
        if masked is None:
            return TrainingBatch(batch, plan, None)
        more = with_mask_of(batch, masked, rows)
        return TrainingBatch(batch, plan, replace(more, x_mask=more.x_mask | ~self.real[:, None]))


class Loader(ABC):
    """Training or validation rows as batches. What is drawn in an epoch depends on the seed and the epoch alone.

    Attributes:
        length: N.
        units: N, or P where there are patients.
        by_row: whether a unit is a row.
        steps: batches per epoch.
        device: where batches live.
        options: how to train.
        team: the processes that share batches.
    """

    length: int
    units: int
    by_row: bool
    steps: int
    device: torch.device
    options: FitOptions
    team: Team

    @abstractmethod
    def condition(self, vae: ConditionalVAE) -> None:
        """Compute the conditional prior of every row: before anything else, and whenever the prior has changed."""

    @abstractmethod
    def epoch(self, vae: ConditionalVAE, epoch: int, first: int = 0) -> Iterator[TrainingBatch | IndexedBatch]:
        """Yield the batches of an epoch, numbered from 0, in random order, from batch `first` on."""

    @abstractmethod
    def in_order(
        self, vae: ConditionalVAE, *, masked: bool = True, team: Team = SINGLE
    ) -> Iterator[TrainingBatch | IndexedBatch]:
        """Yield every row once, always in the same order and with the same entries masked, if any; `scale` is 1.

        The batches are shared by the team, if one is given.
        """

    @abstractmethod
    def complete(self, vae: ConditionalVAE, generator: torch.Generator) -> Table:
        """Return the rows on the host with covariates completed by a draw from q, for an update of the prior."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a text that differs where rows do, which ties a checkpoint to its rows."""

    def _training_batch(
        self, vae: ConditionalVAE, batches: Batches, masked: Table | None, x_mask: Tensor, units: Tensor,
        scale: float | None, team: Team,
    ) -> TrainingBatch:  # fmt: skip
        """Return the batch of some units, or this process's part of it: whole units, next to one another.

        A process for which no unit is left takes the first one with weight zero.
        """
        scale, part = self.units / len(units) if scale is None else scale, None
        if team.size > 1:
            shares = units.tensor_split(team.size)
            before = sum(len(share) for share in shares[: team.rank])
            unit = batches.rows(units)[1]
            part = BatchPart(int((unit < before).sum()), len(unit), float(team.main))
            units = shares[team.rank]
            if len(units) == 0:
                units, scale, part = shares[0][:1], 0.0, part._replace(start=0)
        rows, unit = batches.rows(units)
        plan = vae.plan(x_mask[rows], unit, self.options.samples, self.options.cap).to(self.device)
        batch = replace(batches.batch(units), scale=scale)
        return TrainingBatch(batch, plan, None if masked is None else with_mask_of(batch, masked, rows), part)


class TableLoader(Loader):
    """The rows of a table in memory; they live on the model's device.

    Args:
        table: the rows, on the host.
        masking_rate: share of each covariate's entries that the masked loss masks (Q,).
        options: how to train.
        device: where batches live.
        team: the processes that share batches.
    """

    def __init__(
        self, table: Table, masking_rate: Tensor, options: FitOptions, device: torch.device, team: Team = SINGLE
    ) -> None:
        self.host, self.masking_rate, self.options, self.device, self.team = table, masking_rate, options, device, team
        self.length, self.by_row = len(table), table.patient is None
        self.batches = Batches(table, options.batch)
        self.units, self.steps = self.batches.units, len(self.batches)
        self.masked_table: Table | None = None
        self._masked_epoch = -1
        self._by_index = False

    def condition(self, vae: ConditionalVAE) -> None:
        table = vae.condition(self.host.to(self.device))
        if self.batches.table.conditional_prior is None:
            self.batches = Batches(table, self.options.batch)
        else:
            _copy_into(self.batches.table, table)
        self._masked_epoch = -1
        simple = self.host.patient is None and not vae.space.categorical and self.options.samples == 1
        self._by_index = simple and self.device.type == "cuda" and self.team.size == 1
        self._gaps = (~self.host.x_mask).any(1) if vae.prior.integrates else None

    def mask(self, vae: ConditionalVAE, epoch: int) -> None:
        """Mask other entries in every epoch, and condition on the rest; in place from the second epoch on."""
        if not self.options.masked_loss or self._masked_epoch == epoch:
            return
        generator = torch.Generator().manual_seed(1_000_003 * self.options.seed + epoch)
        x_mask = mask_more(self.host, vae.space, self.masking_rate, generator).x_mask.to(self.device)
        table = vae.condition(replace(self.batches.table, x_mask=x_mask, conditional_prior=None))
        if self.masked_table is None:
            self.masked_table = table
        else:
            _copy_into(self.masked_table, table)
        self._masked_epoch = epoch

    def epoch(self, vae: ConditionalVAE, epoch: int, first: int = 0) -> Iterator[TrainingBatch | IndexedBatch]:
        self.mask(vae, epoch)
        generator = torch.Generator().manual_seed(1_000_003 * self.options.seed + epoch)
        units = list(self.batches.shuffled(generator))[first:]
        yield from self._yield_batches(vae, units, None, bool(self.options.masked_loss), self.team)

    def in_order(
        self, vae: ConditionalVAE, *, masked: bool = True, team: Team = SINGLE
    ) -> Iterator[TrainingBatch | IndexedBatch]:
        if masked:
            self.mask(vae, 0)
        units = torch.arange(self.units).split(self.batches.size)
        yield from self._yield_batches(vae, units, 1.0, masked and bool(self.options.masked_loss), team)

    def _yield_batches(
        self, vae: ConditionalVAE, parts: Sequence[Tensor], scale: float | None, masked: bool, team: Team
    ) -> Iterator[TrainingBatch | IndexedBatch]:
        if self._by_index and masked == bool(self.options.masked_loss):
            yield from self._indexed_batches(parts, scale)
            return
        table = self.masked_table if masked else None
        for units in parts:
            yield self._training_batch(vae, self.batches, table, self.host.x_mask, units, scale, team)

    def _indexed_batches(self, parts: Sequence[Tensor], scale: float | None) -> Iterator[IndexedBatch]:
        """Send the indices of all batches to the device at once."""
        rows = torch.cat(list(parts)).to(self.device).split([len(part) for part in parts])
        open_rows = [self._gaps[part].nonzero()[:, 0] if self._gaps is not None else part[:0] for part in parts]
        opened = torch.cat(open_rows).to(self.device).split([len(part) for part in open_rows])
        shared: dict[int, tuple[Tensor, Tensor]] = {}
        for part, own in zip(rows, opened, strict=True):
            if len(part) not in shared:
                factor = torch.full((), self.units / len(part) if scale is None else scale, device=self.device)
                shared[len(part)] = torch.ones(len(part), dtype=torch.bool, device=self.device), factor
            yield IndexedBatch(part, *shared[len(part)], own, torch.ones_like(own, dtype=torch.float64), self)

    def complete(self, vae: ConditionalVAE, generator: torch.Generator) -> Table:
        x = torch.empty_like(self.host.x)
        for rows, batch in self.batches.in_order():
            x[rows] = vae.draw_posterior(batch, generator).cpu()
        return replace(self.host, x=x, x_mask=torch.ones_like(self.host.x_mask))

    def fingerprint(self) -> str:
        return digest({name: getattr(self.host, name) for name in ("y", "y_mask", "x", "x_mask", "patient")})


def with_mask_of(batch: Batch, masked: Table, rows: Tensor) -> Batch:
    """Return a batch with the mask and the conditional prior of x that its rows have in the masked table."""
    rows = rows.to(masked.x_mask.device, non_blocking=True)
    prior = None if masked.conditional_prior is None else masked.conditional_prior.take(rows)
    return replace(batch, x_mask=masked.x_mask[rows], conditional_prior=prior)


def _copy_into(old: Table, new: Table) -> None:
    """Copy mask and conditional prior in place: captured graphs read from where the first ones lie."""
    old.x_mask.copy_(new.x_mask)
    for target, source in zip(tensors(old.conditional_prior), tensors(new.conditional_prior), strict=True):
        target.copy_(source)


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
