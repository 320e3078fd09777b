"""Where training takes its batches from: rows, and the same rows with more covariates hidden from q, for recall."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lacova.covariates.masked_loss import hide
from lacova.covariates.scenarios import Plan, StandardDraws, identity_plan
from lacova.data.batches import Batch, Batches
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.data.encoder import Table
from lacova.data.io.archive import digest
from lacova.inference.vae import ConditionalVAE
from lacova.training.distributed import SINGLE, Team
from lacova.training.options import FitOptions


class Part(NamedTuple):
    """Which part of a batch is here, where several processes share it.

    Attributes:
        start, rows: how many rows of the batch lie before those here, and how many it has.
        once: 1 in one of the processes and 0 in the others: what is no sum over rows counts so often.
    """

    start: int
    rows: int
    once: float


class TrainingBatch(NamedTuple):
    """A batch, the scenarios to take for it, and the same rows with more covariates hidden; None without recall."""

    shown: Batch
    how: Plan
    hidden: Batch | None
    part: Part | None = None

    def training_batch(self) -> TrainingBatch:
        return self

    def draw_eps(
        self, vae: ConditionalVAE, samples: int, generator: torch.Generator, dropout: float = 0.0
    ) -> StandardDraws:
        """Of a row the same, however many processes there are: that of the whole batch is drawn."""
        if self.part is None:
            return vae.draw_eps(self.shown, samples, generator, dropout)
        x, rows = self.shown.x, slice(self.part.start, self.part.start + len(self.shown))
        whole = x.new_empty(()).expand(self.part.rows, x.shape[1])
        return vae.draw_eps(replace(self.shown, x=whole), samples, generator, dropout).rows(rows)


@dataclass(frozen=True)
class IndexedBatch:
    """A batch by reference: rows of a table on the device, to be gathered there, in a captured graph if need be.

    For tables of rows without categorical covariates, whose scenarios are the rows themselves.

    Attributes:
        rows: which (N̂,).
        real: False for those that only fill up a shape (N̂,).
        scale: N/N̂, or 1.
        open, open_real: as in `Plan`.
        source: where the rows are.
    """

    rows: Tensor
    real: Tensor
    scale: Tensor
    open: Tensor
    open_real: Tensor
    source: TableLoader

    def training_batch(self) -> TrainingBatch:
        """The batch itself."""
        shown, hidden, rows = self.source.shown.table, self.source.hidden_table, self.rows
        real = self.real.to(shown.x.dtype)
        number = torch.arange(len(rows), device=rows.device)
        batch = Batch(
            shown.y[rows], shown.y_mask[rows] & self.real[:, None], shown.x[rows],
            shown.x_mask[rows] | ~self.real[:, None], number, self.scale,
            None if shown.conditional_prior is None else shown.conditional_prior.take(rows), len(rows), real,
        )  # fmt: skip
        how = identity_plan(number, real, batch.x.shape[1], self.open, self.open_real)
        if hidden is None:
            return TrainingBatch(batch, how, None)
        more = covered(batch, hidden, rows)
        return TrainingBatch(batch, how, replace(more, x_mask=more.x_mask | ~self.real[:, None]))


class Loader(ABC):
    """Training or validation rows. What is drawn in an epoch depends on the seed and the epoch alone.

    Attributes:
        length: N.
        units: N, or P where there are patients.
        steps: batches per epoch.
        device: where batches live.
        options: how to train.
        team: the processes that share batches.
    """

    length: int
    units: int
    steps: int
    device: torch.device
    options: FitOptions
    team: Team

    @abstractmethod
    def condition(self, vae: ConditionalVAE) -> None:
        """Ask the covariate prior about every row: before anything else, and again when the prior has changed."""

    @abstractmethod
    def epoch(self, vae: ConditionalVAE, epoch: int, first: int = 0) -> Iterator[TrainingBatch | IndexedBatch]:
        """The batches of an epoch, numbered from 0, in random order; from the batch `first` on; each in its parts."""

    @abstractmethod
    def in_order(
        self, vae: ConditionalVAE, *, hide: bool = True, team: Team = SINGLE
    ) -> Iterator[TrainingBatch | IndexedBatch]:
        """Every row once, always in the same order and with the same entries hidden, if any; `scale` is 1.

        Shared by the team, if one is given.
        """

    @abstractmethod
    def complete(self, vae: ConditionalVAE, noise: torch.Generator) -> Table:
        """The rows on the host with covariates completed by a draw from q: what the prior is updated on."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A text that differs where rows do, so that a checkpoint is not taken for one of other rows."""

    def _training_batch(
        self, vae: ConditionalVAE, shown: Batches, hidden: Table | None, mask: Tensor, units: Tensor,
        scale: float | None, team: Team,
    ) -> TrainingBatch:  # fmt: skip
        """The batch of some units, or the part of this process: whole units, next to one another.

        A process for which there is no unit left takes the first one, zero times.
        """
        scale, part = self.units / len(units) if scale is None else scale, None
        if team.size > 1:
            shares = units.tensor_split(team.size)
            before = sum(len(share) for share in shares[: team.rank])
            unit = shown.rows(units)[1]
            part = Part(int((unit < before).sum()), len(unit), float(team.main))
            units = shares[team.rank]
            if len(units) == 0:
                units, scale, part = shares[0][:1], 0.0, part._replace(start=0)
        rows, unit = shown.rows(units)
        how = vae.plan(mask[rows], unit, self.options.samples, self.options.cap).to(self.device)
        batch = replace(shown.batch(units), scale=scale)
        return TrainingBatch(batch, how, None if hidden is None else covered(batch, hidden, rows), part)


class TableLoader(Loader):
    """The rows of a table in memory; they live on the model's device."""

    def __init__(
        self, table: Table, share: Tensor, options: FitOptions, device: torch.device, team: Team = SINGLE
    ) -> None:
        self.host, self.share, self.options, self.device, self.team = table, share, options, device, team
        self.length = len(table)
        self.shown = Batches(table, options.batch_size)
        self.units, self.steps = self.shown.units, len(self.shown)
        self.hidden_table: Table | None = None
        self.masked_in = -1
        self._by_reference = False

    def condition(self, vae: ConditionalVAE) -> None:
        fresh = vae.condition(self.host.to(self.device))
        if self.shown.table.conditional_prior is None:
            self.shown = Batches(fresh, self.options.batch_size)
        else:
            _renew(self.shown.table, fresh)
        self.masked_in = -1
        simple = self.host.patient is None and not vae.space.categorical and self.options.samples == 1
        self._by_reference = simple and self.device.type == "cuda" and self.team.size == 1
        self._gaps = (~self.host.x_mask).any(1) if vae.prior.integrates else None

    def hide(self, vae: ConditionalVAE, training_batch: int) -> None:
        """Hide other entries in every training_batch, and ask the prior about the rows again; in place from the second on."""
        if not self.options.masked_loss or self.masked_in == training_batch:
            return
        generator = torch.Generator().manual_seed(1_000_003 * self.options.seed + training_batch)
        mask = hide(self.host, vae.space, self.share, generator).x_mask.to(self.device)
        fresh = vae.condition(replace(self.shown.table, x_mask=mask, conditional_prior=None))
        if self.hidden_table is None:
            self.hidden_table = fresh
        else:
            _renew(self.hidden_table, fresh)
        self.masked_in = training_batch

    def epoch(self, vae: ConditionalVAE, epoch: int, first: int = 0) -> Iterator[TrainingBatch | IndexedBatch]:
        self.hide(vae, epoch)
        order = torch.Generator().manual_seed(1_000_003 * self.options.seed + epoch)
        batches = list(self.shown.shuffled(order))[first:]
        yield from self._batches(vae, batches, None, bool(self.options.masked_loss), self.team)

    def in_order(
        self, vae: ConditionalVAE, *, hide: bool = True, team: Team = SINGLE
    ) -> Iterator[TrainingBatch | IndexedBatch]:
        if hide:
            self.hide(vae, 0)
        units = torch.arange(self.units).split(self.shown.size)
        yield from self._batches(vae, units, 1.0, hide and bool(self.options.masked_loss), team)

    def _batches(
        self, vae: ConditionalVAE, parts: Sequence[Tensor], scale: float | None, recall: bool, team: Team
    ) -> Iterator[TrainingBatch | IndexedBatch]:
        if self._by_reference and recall == bool(self.options.masked_loss):
            yield from self._indexed_batches(parts, scale)
            return
        hidden = self.hidden_table if recall else None
        for units in parts:
            yield self._training_batch(vae, self.shown, hidden, self.host.x_mask, units, scale, team)

    def _indexed_batches(self, parts: Sequence[Tensor], scale: float | None) -> Iterator[IndexedBatch]:
        """All that the device must know of the batches goes there at once."""
        rows = torch.cat(list(parts)).to(self.device).split([len(part) for part in parts])
        still_open = [self._gaps[part].nonzero()[:, 0] if self._gaps is not None else part[:0] for part in parts]
        opened = torch.cat(still_open).to(self.device).split([len(part) for part in still_open])
        real: dict[int, tuple[Tensor, Tensor]] = {}
        for part, these in zip(rows, opened, strict=True):
            if len(part) not in real:
                factor = torch.full((), self.units / len(part) if scale is None else scale, device=self.device)
                real[len(part)] = torch.ones(len(part), dtype=torch.bool, device=self.device), factor
            yield IndexedBatch(part, *real[len(part)], these, torch.ones_like(these, dtype=torch.float64), self)

    def complete(self, vae: ConditionalVAE, noise: torch.Generator) -> Table:
        x = torch.empty_like(self.host.x)
        for rows, batch in self.shown.in_order():
            x[rows] = vae.draw_posterior(batch, noise).cpu()
        return replace(self.host, x=x, x_mask=torch.ones_like(self.host.x_mask))

    def fingerprint(self) -> str:
        return digest({name: getattr(self.host, name) for name in ("y", "y_mask", "x", "x_mask", "patient")})


def covered(shown: Batch, hidden: Table, rows: Tensor) -> Batch:
    """A batch as the table with more hidden has it: only masks and priors of x differ."""
    rows = rows.to(hidden.x_mask.device)
    given = None if hidden.conditional_prior is None else hidden.conditional_prior.take(rows)
    return replace(shown, x_mask=hidden.x_mask[rows], conditional_prior=given)


def _renew(old: Table, fresh: Table) -> None:
    """What is new of a prepared table, in place: captured graphs read from where the first one lies."""
    old.x_mask.copy_(fresh.x_mask)
    for one, other in zip(tensors(old.conditional_prior), tensors(fresh.conditional_prior), strict=True):
        one.copy_(other)


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors within dataclasses and tuples, in a fixed order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Batch | Plan | FactorisedDistribution | ConditionalPrior | IndexedBatch):
        for part in fields(value):
            yield from tensors(getattr(value, part.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors(part)
