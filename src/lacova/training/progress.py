"""A progress bar on stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column


class Bar(Protocol):
    def show(self, epoch: int, record: Mapping[str, float]) -> None: ...

    def say(self, done: int, note: str) -> None: ...


class _RichBar(Progress):
    def start_task_for(self, epochs: int) -> None:
        self._job = self.add_task("training", total=epochs, note="")

    def show(self, epoch: int, record: Mapping[str, float]) -> None:
        shown = {
            "validation": "val",
            "elbo": "elbo",
            "reconstruction": "rec",
            "kl_latent": "kl_z",
            "kl_covariates": "kl_x",
        }
        note = "  ".join(f"{short} {record[name]:.4g}" for name, short in shown.items() if name in record)
        self.say(epoch, note)

    def say(self, done: int, note: str) -> None:
        self.update(self._job, completed=done, note=note)


def progress(epochs: int, wanted: bool | None) -> AbstractContextManager[Bar | None]:
    """A bar over epochs, or over so many other things; None shows it in a terminal only."""
    wanted = sys.stderr.isatty() if wanted is None else wanted
    if not wanted:
        return nullcontext()
    bar = _RichBar(
        MofNCompleteColumn(table_column=Column(min_width=2 * len(str(epochs)) + 1, no_wrap=True)),
        BarColumn(bar_width=12, table_column=Column(min_width=12, no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
        TextColumn("{task.fields[note]}", table_column=Column(overflow="ellipsis", no_wrap=True)),
        console=Console(file=sys.stderr),
    )
    bar.start_task_for(epochs)
    return bar
