"""Batches as training takes them: rows, and the same rows with more covariates masked."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lacova.covariates.masked_loss import mask_more
from lacova.covariates.prior import CovariatePrior
from lacova.covariates.scenarios import Plan, RowPlan
from lacova.data.batches import Batches
from lacova.data.io.archive import digest
from lacova.data.table import Table
from lacova.inference.vae import ConditionalVAE
from lacova.training.distributed import SINGLE, Team
from lacova.training.options import FitOptions
from lacova.training.training_batch import (
    AnyBatch,
    BatchPart,
    IndexedBatch,
    TrainingBatch,
    tensors,
    with_mask_of,
)

PASS_BATCHES = 4  # training batches that a pass without gradients takes at once


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
        has_gaps: whether covariates are missing; of a stream, in the sample of it.
    """

    has_gaps: bool
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
    def epoch(self, vae: ConditionalVAE, epoch: int, first: int = 0) -> Iterator[AnyBatch]:
        """Yield the batches of an epoch, numbered from 0, in random order, from batch `first` on."""

    @abstractmethod
    def in_order(self, vae: ConditionalVAE, *, masked: bool = True, team: Team = SINGLE) -> Iterator[AnyBatch]:
        """Yield every row once, always in the same order and with the same entries masked, if any; `scale` is 1.

        The batches are shared by the team, if one is given.
        """

    @abstractmethod
    def complete(self, vae: ConditionalVAE, generator: torch.Generator) -> Table:
        """Return the rows on the host for an update of the prior: completed by a draw from q, as far as
        `completed_for_prior` says."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a text that differs where rows do, which ties a checkpoint to its rows."""

    def pass_size(self, batch: int) -> int:
        """Return how many units a pass without gradients takes at once: those of a captured graph on a GPU."""
        return batch if self.device.type == "cuda" else PASS_BATCHES * batch

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

    Attributes:
        by_reference: whether batches are sent as numbers of rows, which are gathered on the device: on a GPU.
    """

    def __init__(
        self, table: Table, masking_rate: Tensor, options: FitOptions, device: torch.device, team: Team = SINGLE
    ) -> None:
        self.host, self.masking_rate, self.options, self.device, self.team = table, masking_rate, options, device, team
        self.length, self.by_row = len(table), table.patient is None
        self.has_gaps = not bool(table.x_mask.all())
        self.batches = Batches(table, options.batch)
        self.units, self.steps = self.batches.units, len(self.batches)
        self.masked_table: Table | None = None
        self._masked_epoch = -1
        self.by_reference = device.type == "cuda" and team.size == 1
        self._plain = False
        self._host_prior: CovariatePrior | None = None
        self._ahead: tuple[int, Table] | None = None

    def condition(self, vae: ConditionalVAE) -> None:
        table = vae.condition(self.host.to(self.device))
        if self.batches.table.conditional_prior is None:
            self.batches = Batches(table, self.options.batch)
        else:
            _copy_into(self.batches.table, table)
        self._masked_epoch, self._ahead = -1, None
        self._plain = self.by_row and not vae.space.categorical and self.options.samples == 1
        self._gaps = (~self.host.x_mask).any(1) & vae.prior.integrates
        if self.by_reference and vae.covariate_prior.on_host:
            self._host_prior = copy.deepcopy(vae.covariate_prior).cpu()

    def mask(self, vae: ConditionalVAE, epoch: int) -> None:
        """Mask other entries in every epoch, and condition on the rest; in place from the second epoch on."""
        if not self.options.masked_loss or self._masked_epoch == epoch:
            return
        table = self._ahead[1] if self._ahead is not None and self._ahead[0] == epoch else self._masked(vae, epoch)
        if self.masked_table is None:
            assert table.conditional_prior is not None
            prior = table.conditional_prior.to(self.device)
            self.masked_table = replace(
                self.batches.table, x_mask=table.x_mask.to(self.device), conditional_prior=prior
            )
        else:
            _copy_into(self.masked_table, table)
        self._masked_epoch, self._ahead = epoch, None

    def _masked(self, vae: ConditionalVAE, epoch: int) -> Table:
        """Return the table with the masks of an epoch; with a prior on the host, without waiting for the device."""
        generator = torch.Generator().manual_seed(1_000_003 * self.options.seed + epoch)
        table = mask_more(self.host, vae.space, self.masking_rate, generator)
        if self._host_prior is not None:
            return replace(table, conditional_prior=self._host_prior.condition(table))
        return vae.condition(replace(self.batches.table, x_mask=table.x_mask.to(self.device), conditional_prior=None))

    def epoch(self, vae: ConditionalVAE, epoch: int, first: int = 0) -> Iterator[AnyBatch]:
        self.mask(vae, epoch)
        generator = torch.Generator().manual_seed(1_000_003 * self.options.seed + epoch)
        units = list(self.batches.shuffled(generator))[first:]
        yield from self._yield_batches(vae, units, None, bool(self.options.masked_loss), self.team)
        if self.options.masked_loss and self._host_prior is not None and self._ahead is None:
            self._ahead = epoch + 1, self._masked(vae, epoch + 1)  # while the device takes the last steps

    def in_order(self, vae: ConditionalVAE, *, masked: bool = True, team: Team = SINGLE) -> Iterator[AnyBatch]:
        if masked:
            self.mask(vae, 0)
        units = torch.arange(self.units).split(self.pass_size(self.batches.size))
        yield from self._yield_batches(vae, units, 1.0, masked and bool(self.options.masked_loss), team)

    def _yield_batches(
        self, vae: ConditionalVAE, parts: Sequence[Tensor], scale: float | None, masked: bool, team: Team
    ) -> Iterator[AnyBatch]:
        table = self.masked_table if masked else None
        for units in parts:
            if self.by_reference:
                yield self._indexed_batch(vae, units, scale, masked)
            else:
                yield self._training_batch(vae, self.batches, table, self.host.x_mask, units, scale, team)

    def _indexed_batch(self, vae: ConditionalVAE, units: Tensor, scale: float | None, masked: bool) -> IndexedBatch:
        """Return the batch of some units by reference, on the host."""
        rows, unit = self.batches.rows(units)
        plan: Plan | RowPlan
        if self._plain:
            plan = RowPlan.of(self._gaps[rows].nonzero()[:, 0])
        else:
            plan = vae.plan(self.host.x_mask[rows], unit, self.options.samples, self.options.cap)
        factor = torch.tensor(self.units / len(units) if scale is None else scale, dtype=self.host.x.dtype)
        real = torch.ones(len(rows), dtype=torch.bool)
        return IndexedBatch(rows, real, unit, factor, plan, masked, len(units), self.batches.longest(units), self)

    def complete(self, vae: ConditionalVAE, generator: torch.Generator) -> Table:
        x = torch.empty_like(self.host.x)
        for rows, batch in self.batches.in_order(self.pass_size(self.batches.size)):
            x[rows] = vae.draw_posterior(batch, generator).cpu()
        complete = self.host.x_mask | vae.completed_for_prior.cpu()
        return replace(self.host, x=x * complete, x_mask=complete)

    def fingerprint(self) -> str:
        return digest({name: getattr(self.host, name) for name in ("y", "y_mask", "x", "x_mask", "patient")})


def _copy_into(old: Table, new: Table) -> None:
    """Copy mask and conditional prior in place: captured graphs read from where the first ones lie."""
    old.x_mask.copy_(new.x_mask)
    for target, source in zip(tensors(old.conditional_prior), tensors(new.conditional_prior), strict=True):
        target.copy_(source)
