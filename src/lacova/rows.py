"""Where training takes its batches from: rows, and the same rows with more covariates hidden from q, for recall."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.batches import Batch, Batches
from lacova.covariates.expectation import Plan
from lacova.covariates.recall import hide
from lacova.options import FitOptions
from lacova.table import Table
from lacova.vae import ConditionalVAE


class Lesson(NamedTuple):
    """A batch, the scenarios to take for it, and the same rows with more covariates hidden; None without recall."""

    shown: Batch
    how: Plan
    hidden: Batch | None


class Rows(ABC):
    """Training or validation rows. What is drawn in an epoch depends on the seed and the epoch alone.

    Attributes:
        length: N.
        units: N, or P where there are patients.
        steps: batches per epoch.
        device: where batches live.
    """

    length: int
    units: int
    steps: int
    device: torch.device

    @abstractmethod
    def prepare(self, vae: ConditionalVAE) -> None:
        """Ask the covariate prior about every row: before anything else, and again when the prior has changed."""

    @abstractmethod
    def epoch(self, vae: ConditionalVAE, epoch: int, first: int = 0) -> Iterator[Lesson]:
        """The batches of an epoch, numbered from 0, in random order; from the batch `first` on."""

    @abstractmethod
    def in_order(self, vae: ConditionalVAE, *, hide: bool = True) -> Iterator[Lesson]:
        """Every row once, always in the same order and with the same entries hidden, if any; `scale` is 1."""

    @abstractmethod
    def complete(self, vae: ConditionalVAE, noise: torch.Generator) -> Table:
        """The rows on the host with covariates completed by a draw from q: what the prior is updated on."""


class TableRows(Rows):
    """The rows of a table in memory; they live on the model's device."""

    def __init__(self, table: Table, share: Tensor, options: FitOptions, device: torch.device) -> None:
        self.host, self.share, self.options, self.device = table, share, options, device
        self.length = len(table)
        self.shown = Batches(table, options.batch_size)
        self.units, self.steps = self.shown.units, len(self.shown)
        self._hidden: tuple[int, Batches | None] = -1, None

    def prepare(self, vae: ConditionalVAE) -> None:
        self.shown = Batches(vae.prepare(self.host).to(self.device), self.options.batch_size)
        self._hidden = -1, None

    def hidden(self, vae: ConditionalVAE, lesson: int) -> Batches | None:
        """The rows with other entries hidden in every lesson; the prior is asked about them again."""
        if not self.options.recall:
            return None
        if self._hidden[0] != lesson:
            generator = torch.Generator().manual_seed(1_000_003 * self.options.seed + lesson)
            table = vae.prepare(hide(self.host, vae.space, self.share, generator))
            given = None if table.given is None else table.given.to(self.device)
            table = replace(self.shown.table, x_mask=table.x_mask.to(self.device), given=given)
            self._hidden = lesson, Batches(table, self.options.batch_size)
        return self._hidden[1]

    def epoch(self, vae: ConditionalVAE, epoch: int, first: int = 0) -> Iterator[Lesson]:
        hidden = self.hidden(vae, epoch)
        order = torch.Generator().manual_seed(1_000_003 * self.options.seed + epoch)
        for step, units in enumerate(self.shown.shuffled(order)):
            if step >= first:
                yield self._lesson(vae, units, hidden)

    def in_order(self, vae: ConditionalVAE, *, hide: bool = True) -> Iterator[Lesson]:
        hidden = self.hidden(vae, 0) if hide else None
        for units in torch.arange(self.units).split(self.shown.size):
            lesson = self._lesson(vae, units, hidden)
            yield lesson._replace(shown=replace(lesson.shown, scale=1.0))

    def _lesson(self, vae: ConditionalVAE, units: Tensor, hidden: Batches | None) -> Lesson:
        rows, unit = self.shown.rows(units)
        how = vae.plan(self.host.x_mask[rows], unit, self.options.samples, self.options.cap).to(self.device)
        return Lesson(self.shown.batch(units), how, None if hidden is None else hidden.batch(units))

    def complete(self, vae: ConditionalVAE, noise: torch.Generator) -> Table:
        x = torch.empty_like(self.host.x)
        for rows, batch in self.shown.in_order():
            x[rows] = vae.draw_posterior(batch, noise).cpu()
        return replace(self.host, x=x, x_mask=torch.ones_like(self.host.x_mask))
