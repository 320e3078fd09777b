"""A progress bar on stderr, and remarks beside it."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

log = logging.getLogger("lacova")

# The terms that the bar shows, and what it calls them.
SHORT_NAMES = {
    "validation": "val", "elbo": "elbo", "reconstruction": "rec", "kl_latent": "kl_z", "kl_covariates": "kl_x"
}  # fmt: skip


class Bar(Protocol):
    """A progress bar with a note beside it."""

    def show(self, epoch: int, record: Mapping[str, float]) -> None:
        """Show that so many epochs are done, and the terms of the last one."""

    def advance_to(self, done: int, note: str) -> None:
        """Show that so many things are done, and a note."""


class _RichBar(Progress):
    def start_training(self, total: int) -> None:
        self._training = self.add_task("training", total=total, note="")
        self._last: dict[str, float] = {}  # of each term; not every epoch has all of them

    def show(self, epoch: int, record: Mapping[str, float]) -> None:
        self._last |= {name: value for name, value in record.items() if not math.isnan(value)}
        note = "  ".join(f"{short} {self._last[name]:.4g}" for name, short in SHORT_NAMES.items() if name in self._last)
        self.advance_to(epoch, note)

    def advance_to(self, done: int, note: str) -> None:
        self.update(self._training, completed=done, note=note)


def say(text: str, show: bool | None) -> None:
    """Write a line on stderr where a progress bar would be shown, else to the log."""
    if _shown(show):
        Console(file=sys.stderr).print(text, soft_wrap=True, highlight=False, markup=False)
    else:
        log.info(text)


def _shown(show: bool | None) -> bool:
    return sys.stderr.isatty() if show is None else show


def progress(total: int, show: bool | None) -> AbstractContextManager[Bar | None]:
    """Return a progress bar over `total` epochs or other things.

    Args:
        total: how many there are.
        show: whether to show it; None shows it in a terminal only.
    """
    if not _shown(show):
        return nullcontext()
    bar = _RichBar(
        MofNCompleteColumn(table_column=Column(min_width=2 * len(str(total)) + 1, no_wrap=True)),
        BarColumn(bar_width=12, table_column=Column(min_width=12, no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
        TextColumn("{task.fields[note]}", table_column=Column(overflow="ellipsis", no_wrap=True)),
        console=Console(file=sys.stderr),
    )
    bar.start_training(total)
    return bar
