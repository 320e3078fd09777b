"""Training rows that do not fit memory: pools of row groups, shuffled and conditioned in parts."""

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

from lacova.covariates.masked_loss import mask_more
from lacova.data.batches import Batches
from lacova.data.io.archive import digest
from lacova.data.io.parquet import Layout, Part, Source, unit_starts
from lacova.data.table import Table
from lacova.inference.vae import ConditionalVAE
from lacova.training.distributed import SINGLE, Team
from lacova.training.loader import Loader, TableLoader
from lacova.training.options import FitOptions
from lacova.training.training_batch import TrainingBatch

T = TypeVar("T")


class Buffer(NamedTuple):
    """Conditioned rows, the same with more masked, the mask of X on the host, and the units in the order to take."""

    table: Table
    masked: Table | None
    x_mask: Tensor
    order: Tensor

    def to(self, device: torch.device) -> Buffer:
        table, masked = self.table.to(device), self.masked
        if masked is not None and masked.conditional_prior is not None:
            prior = masked.conditional_prior.to(device)
            masked = replace(table, x_mask=masked.x_mask.to(device), conditional_prior=prior)
        return self._replace(table=table, masked=masked)


class StreamLoader(Loader):
    """The rows of a source, in memory that does not grow with their number.

    In an epoch, row groups come in random order. Those that make up `options.buffer_rows` rows, or one that is larger,
    are a pool, whose units are shuffled. A pool is conditioned in parts of about that many rows; where a GPU trains,
    the next part is made meanwhile. If one pool holds all rows, batches are those of `TableLoader`.

    Args:
        source: where the rows are.
        layout: the result of a first pass over it.
        columns: those to read.
        encode: from rows to a table on the host.
        sample: some rows as a table, for updates of the covariate prior.
        masking_rate: share of each covariate's entries that the masked loss masks (Q,).
        options: how to train.
        device: where batches live.
        team: the processes that share batches; each reads all rows.
    """

    def __init__(
        self, source: Source, layout: Layout, columns: Sequence[str], encode: Callable[[pa.Table], Table],
        sample: Table, masking_rate: Tensor, options: FitOptions, device: torch.device, team: Team = SINGLE,
    ) -> None:  # fmt: skip
        self.source, self.layout, self.columns, self.encode = source, layout, columns, encode
        self.masking_rate, self.options, self.device, self.team = masking_rate, options, device, team
        self.sample = TableLoader(sample, masking_rate, options, device)
        self.length, self.units = int(layout.rows.sum()), int(layout.units.sum())
        self.by_row, self.has_gaps = self.sample.by_row, self.sample.has_gaps
        self.size = min(options.batch, self.units)
        self.steps = -(-self.units // self.size)
        self.ahead = device.type != "cpu"  # on processors, two threads of one Python are no faster than one

    def condition(self, vae: ConditionalVAE) -> None:
        """Keep a copy of the prior on the host: rows are conditioned as they are read, in a thread without a GPU."""
        self.prior = copy.deepcopy(vae.covariate_prior).cpu()

    def epoch(self, vae: ConditionalVAE, epoch: int, first: int = 0) -> Iterator[TrainingBatch]:
        order = torch.randperm(len(self.layout.units), generator=self._generator(epoch, 0))
        return self._training_batches(vae, order.tolist(), epoch, first * self.size, None, self.team, masked=True)

    def in_order(self, vae: ConditionalVAE, *, masked: bool = True, team: Team = SINGLE) -> Iterator[TrainingBatch]:
        return self._training_batches(vae, list(range(len(self.layout.units))), 0, 0, 1.0, team, masked=masked)

    def complete(self, vae: ConditionalVAE, generator: torch.Generator) -> Table:
        """Complete the sample."""
        self.sample.condition(vae)
        return self.sample.complete(vae, generator)

    def fingerprint(self) -> str:
        """Digest the layout, and the sample, whose scales are those of all training rows."""
        layout = {name: torch.as_tensor(value.view(np.int64)) for name, value in vars(self.layout).items()}
        return digest({**layout, **{name: getattr(self.sample.host, name) for name in ("y", "y_mask", "x", "x_mask")}})

    def _generator(self, epoch: int, part: int) -> torch.Generator:
        """Return the generator of a part's order and masks; that of part 0 is the one of a table in memory."""
        return torch.Generator().manual_seed((1_000_003 * self.options.seed + epoch + 7_368_787_003 * part) % 2**63)

    def _training_batches(
        self, vae: ConditionalVAE, pieces: list[int], epoch: int, skip: int, scale: float | None, team: Team, *,
        masked: bool,
    ) -> Iterator[TrainingBatch]:  # fmt: skip
        """Yield batches; shuffled, if they are to be scaled."""
        rest: Buffer | None = None
        left = self.units - skip
        size = self.size if scale is None else self.pass_size(self.size)
        parts = self._buffers(pieces, epoch, skip, scale is None, masked)
        with closing(ahead(parts) if self.ahead else parts) as buffers:
            for host in buffers:
                new = host.to(self.device)
                buffer = new if rest is None else _join(rest, new)
                batches, order = Batches(buffer.table), buffer.order
                ready = len(order) if len(order) >= left else len(order) // size * size
                for units in order[:ready].split(size) if ready else ():
                    yield self._training_batch(vae, batches, buffer.masked, buffer.x_mask, units, scale, team)
                left -= ready
                rest = None if ready == len(order) else _remainder(buffer, order[ready:])

    def _buffers(
        self, pieces: list[int], epoch: int, skip: int, shuffled: bool, masked: bool
    ) -> Generator[Buffer, None, None]:
        """Yield the parts of all pools on the host, less the first `skip` units, whose rows are not read."""
        number = 0
        for pool in self._pools(pieces):
            units, rows = int(self.layout.units[pool].sum()), int(self.layout.rows[pool].sum())
            count = min(-(-rows // self.options.buffer_rows), units)
            order = torch.randperm(units, generator=self._generator(epoch, number)) if shuffled else torch.arange(units)
            pool_rows: Part | None = None
            for part in order.split(-(-units // count)):
                if skip < len(part):
                    if pool_rows is None:
                        pool_rows = self.source.read(self.layout, pool, self.columns)
                    buffer = self._conditioned(pool_rows, part, self._generator(epoch, number) if masked else None)
                    yield buffer._replace(order=buffer.order[skip:])
                skip = max(0, skip - len(part))
                number += 1

    def _pools(self, pieces: list[int]) -> Iterator[list[int]]:
        """Yield pieces in ascending order; each pool but the last has at least the rows of a buffer."""
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

    def _conditioned(self, pool: Part, units: Tensor, generator: torch.Generator | None) -> Buffer:
        """Return some units of a pool as tensors in the order of the rows, and the place of each unit among them."""
        own, order = torch.unique(units, return_inverse=True)
        unit = unit_starts(pool.prints).cumsum() - 1
        chosen = np.isin(unit, own.numpy()) if len(own) <= unit[-1] else np.ones(len(unit), dtype=bool)
        table, masked = self.encode(pool.take(chosen).table), None
        if generator is not None and self.options.masked_loss:
            masked = mask_more(table, self.prior.space, self.masking_rate, generator)
            masked = replace(masked, conditional_prior=self.prior.condition(masked))
        return Buffer(replace(table, conditional_prior=self.prior.condition(table)), masked, table.x_mask, order)


def _remainder(buffer: Buffer, units: Tensor) -> Buffer:
    """Return units that do not fill a batch, to be joined with the next part."""
    rows, unit = Batches(buffer.table).rows(units)
    masked = None if buffer.masked is None else _take(buffer.masked, rows, unit)
    return Buffer(_take(buffer.table, rows, unit), masked, buffer.x_mask[rows], torch.arange(len(units)))


def _take(table: Table, rows: Tensor, unit: Tensor) -> Table:
    patient, rows = None if table.patient is None else unit, rows.to(table.y.device)
    prior = None if table.conditional_prior is None else table.conditional_prior.take(rows)
    return Table(table.y[rows], table.y_mask[rows], table.x[rows], table.x_mask[rows], patient, (), prior)


def _join(rest: Buffer, new: Buffer) -> Buffer:
    masked = None if rest.masked is None or new.masked is None else _concatenate(rest.masked, new.masked)
    order = torch.cat([rest.order, len(rest.order) + new.order])
    return Buffer(_concatenate(rest.table, new.table), masked, torch.cat([rest.x_mask, new.x_mask]), order)


def _concatenate(a: Table, b: Table) -> Table:
    """Put one table below the other; they share no patient."""
    patient = None
    if a.patient is not None and b.patient is not None:
        patient = torch.cat([a.patient, int(a.patient.max()) + 1 + b.patient])
    prior = None
    if a.conditional_prior is not None and b.conditional_prior is not None:
        prior = a.conditional_prior.above(b.conditional_prior)
    y, y_mask, x, x_mask = (torch.cat([getattr(a, name), getattr(b, name)]) for name in ("y", "y_mask", "x", "x_mask"))
    return Table(y, y_mask, x, x_mask, patient, (), prior)


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield the items, each made in another thread while the one before is used."""
    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = worker.submit(next, items, None)
            yield item
