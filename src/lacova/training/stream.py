"""Training rows that do not fit memory: pools of row groups, shuffled and prepared in parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from lacova.covariates.masked_loss import hide as hidden_more
from lacova.data.batches import Batches
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.data.encoder import Table
from lacova.data.io.archive import digest
from lacova.data.io.parquet import Layout, Part, Source, beginnings
from lacova.inference.vae import ConditionalVAE
from lacova.training.distributed import SINGLE, Team
from lacova.training.loader import Loader, TableLoader, TrainingBatch
from lacova.training.options import FitOptions

T = TypeVar("T")


class Buffer(NamedTuple):
    """Prepared rows, the same with more hidden, the mask of X on the host, and the units in the order they come in."""

    shown: Table
    hidden: Table | None
    mask: Tensor
    order: Tensor

    def to(self, device: torch.device) -> Buffer:
        shown, hidden = self.shown.to(device), self.hidden
        if hidden is not None and hidden.conditional_prior is not None:
            hidden = replace(
                shown, x_mask=hidden.x_mask.to(device), conditional_prior=hidden.conditional_prior.to(device)
            )
        return self._replace(shown=shown, hidden=hidden)


class StreamLoader(Loader):
    """The rows of a source, whose memory does not depend on their number.

    In an epoch, row groups come in random order. Those that make up `options.buffer_rows` rows, or one that is larger,
    are a pool, whose units are shuffled. A pool is prepared in parts of about that many rows; where a GPU trains, the
    next one meanwhile. If one pool holds all, batches are those of `TableLoader`.

    Args:
        source: where the rows are.
        layout: what a first pass found of it.
        columns: those to read.
        encode: from rows to a table on the host.
        sample: some rows as a table, for updates of the covariate prior.
        share: of each covariate's entries that recall hides (Q,).
        options: how to train.
        device: where batches live.
        team: the processes that share batches; each reads all rows.
    """

    def __init__(
        self, source: Source, layout: Layout, columns: Sequence[str], encode: Callable[[pa.Table], Table],
        sample: Table, share: Tensor, options: FitOptions, device: torch.device, team: Team = SINGLE,
    ) -> None:  # fmt: skip
        self.source, self.layout, self.columns, self.encode = source, layout, columns, encode
        self.share, self.options, self.device, self.team = share, options, device, team
        self.sample = TableLoader(sample, share, options, device)
        self.length, self.units = int(layout.rows.sum()), int(layout.units.sum())
        self.size = min(options.batch_size, self.units)
        self.steps = -(-self.units // self.size)
        self.ahead = device.type != "cpu"  # two threads of one Python are no faster than one on processors

    def condition(self, vae: ConditionalVAE) -> None:
        """Keep the prior on the host: rows are prepared there as they are read, in a thread that leaves a GPU alone."""
        self.prior = copy.deepcopy(vae.covariate_prior).cpu()

    def epoch(self, vae: ConditionalVAE, epoch: int, first: int = 0) -> Iterator[TrainingBatch]:
        order = torch.randperm(len(self.layout.units), generator=self._generator(epoch, 0))
        return self._training_batches(vae, order.tolist(), epoch, first * self.size, None, self.team, hide=True)

    def in_order(self, vae: ConditionalVAE, *, hide: bool = True, team: Team = SINGLE) -> Iterator[TrainingBatch]:
        return self._training_batches(vae, list(range(len(self.layout.units))), 0, 0, 1.0, team, hide=hide)

    def complete(self, vae: ConditionalVAE, noise: torch.Generator) -> Table:
        """Of the sample."""
        self.sample.condition(vae)
        return self.sample.complete(vae, noise)

    def fingerprint(self) -> str:
        """Of who is where, and of the sample, whose scales are those of all training rows."""
        where = {name: torch.as_tensor(value.view(np.int64)) for name, value in vars(self.layout).items()}
        return digest({**where, **{name: getattr(self.sample.host, name) for name in ("y", "y_mask", "x", "x_mask")}})

    def _generator(self, epoch: int, part: int) -> torch.Generator:
        """Of the part's order and of what is hidden in it; that of part 0 is that of a table in memory."""
        return torch.Generator().manual_seed((1_000_003 * self.options.seed + epoch + 7_368_787_003 * part) % 2**63)

    def _training_batches(
        self, vae: ConditionalVAE, pieces: list[int], epoch: int, skip: int, scale: float | None, team: Team, *,
        hide: bool,
    ) -> Iterator[TrainingBatch]:  # fmt: skip
        """Shuffled, if the batches are to be scaled."""
        rest: Buffer | None = None
        left = self.units - skip
        made = self._buffers(pieces, epoch, skip, scale is None, hide)
        with closing(ahead(made) if self.ahead else made) as buffers:
            for prepared in buffers:
                new = prepared.to(self.device)
                buffer = new if rest is None else _join(rest, new)
                shown, order = Batches(buffer.shown), buffer.order
                hidden = buffer.hidden
                ready = len(order) if len(order) >= left else len(order) // self.size * self.size
                for units in order[:ready].split(self.size) if ready else ():
                    yield self._training_batch(vae, shown, hidden, buffer.mask, units, scale, team)
                left -= ready
                rest = None if ready == len(order) else _keep(buffer, order[ready:])

    def _buffers(
        self, pieces: list[int], epoch: int, skip: int, shuffled: bool, hide: bool
    ) -> Generator[Buffer, None, None]:
        """The parts of all pools, on the host, less the first `skip` units; what these fill is not read."""
        number = 0
        for pool in self._pools(pieces):
            units, rows = int(self.layout.units[pool].sum()), int(self.layout.rows[pool].sum())
            count = min(-(-rows // self.options.buffer_rows), units)
            order = torch.randperm(units, generator=self._generator(epoch, number)) if shuffled else torch.arange(units)
            found: Part | None = None
            for part in order.split(-(-units // count)):
                if skip < len(part):
                    found = self.source.read(self.layout, pool, self.columns) if found is None else found
                    buffer = self._prepared(found, part, self._generator(epoch, number) if hide else None)
                    yield buffer._replace(order=buffer.order[skip:])
                skip = max(0, skip - len(part))
                number += 1

    def _pools(self, pieces: list[int]) -> Iterator[list[int]]:
        """Pieces in ascending order, of which each pool but the last has as many rows as a buffer, or more."""
        pool: list[int] = []
        rows = 0
        for piece in (piece for piece in pieces if self.layout.units[piece]):
            pool.append(piece)
            rows += int(self.layout.rows[piece])
            if rows >= self.options.buffer_rows:
                yield sorted(pool)
                pool, rows = [], 0
        if pool:
            yield sorted(pool)

    def _prepared(self, found: Part, units: Tensor, lot: torch.Generator | None) -> Buffer:
        """Some units of a pool as tensors, in the order of the rows, and which place each unit has there."""
        own, order = torch.unique(units, return_inverse=True)
        unit = beginnings(found.prints).cumsum() - 1
        chosen = np.isin(unit, own.numpy()) if len(own) <= unit[-1] else np.ones(len(unit), dtype=bool)
        table = self.encode(found.take(chosen).table)
        shown, hidden = replace(table, conditional_prior=self.prior.condition(table)), None
        if lot is not None and self.options.masked_loss:
            hidden = hidden_more(table, self.prior.space, self.share, lot)
            hidden = replace(hidden, conditional_prior=self.prior.condition(hidden))
        return Buffer(shown, hidden, table.x_mask, order)


def _keep(buffer: Buffer, units: Tensor) -> Buffer:
    """Units that do not fill a batch, until more come."""
    rows, unit = Batches(buffer.shown).rows(units)
    hidden = None if buffer.hidden is None else _take(buffer.hidden, rows, unit)
    return Buffer(_take(buffer.shown, rows, unit), hidden, buffer.mask[rows], torch.arange(len(units)))


def _take(table: Table, rows: Tensor, unit: Tensor) -> Table:
    patient, rows = None if table.patient is None else unit, rows.to(table.y.device)
    given = None if table.conditional_prior is None else table.conditional_prior.take(rows)
    return Table(table.y[rows], table.y_mask[rows], table.x[rows], table.x_mask[rows], patient, (), given)


def _join(rest: Buffer, new: Buffer) -> Buffer:
    hidden = None if rest.hidden is None or new.hidden is None else _concatenate(rest.hidden, new.hidden)
    order = torch.cat([rest.order, len(rest.order) + new.order])
    return Buffer(_concatenate(rest.shown, new.shown), hidden, torch.cat([rest.mask, new.mask]), order)


def _concatenate(a: Table, b: Table) -> Table:
    """One table below the other; they share no patient."""
    patient = None
    if a.patient is not None and b.patient is not None:
        patient = torch.cat([a.patient, int(a.patient.max()) + 1 + b.patient])
    given = None
    if a.conditional_prior is not None and b.conditional_prior is not None:
        one, two = a.conditional_prior.distribution, b.conditional_prior.distribution
        law = (torch.cat([getattr(one, name), getattr(two, name)]) for name in ("mean", "var", "log_prob"))
        given = ConditionalPrior(
            FactorisedDistribution(*law),
            torch.cat([a.conditional_prior.log_marginal, b.conditional_prior.log_marginal]),
        )
    y, y_mask, x, x_mask = (torch.cat([getattr(a, name), getattr(b, name)]) for name in ("y", "y_mask", "x", "x_mask"))
    return Table(y, y_mask, x, x_mask, patient, (), given)


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The items, each made in another thread while the one before is used."""
    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = worker.submit(next, items, None)
            yield item
