"""Fit the cells that have no line in the results file yet."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from lacova.analysis.workers import work
from reproduction import results
from reproduction.config import Job
from reproduction.data import Sources, fingerprint


def run(
    jobs: Sequence[Job], file: Path, sources: Sources, device: str = "cpu", workers: int = 1,
    minutes: float | None = None,
) -> int:  # fmt: skip
    """Fit what is missing and append it to the results. Return the number of fits that failed.

    Args:
        jobs: the fits, in order.
        file: the results file.
        sources: where the data come from.
        device: "cpu" or "cuda".
        workers: number of processes, each with one thread; they share a GPU.
        minutes: begin no fit after this time.
    """
    results.mend(file)
    lines = results.read(file)
    warn_of_others(jobs, lines, sources)
    done = {results.key(line) for line in lines}
    todo = results.left(jobs, lines)
    print(f"{len(todo)} fits to do, {len(jobs) - len(todo)} done", file=sys.stderr, flush=True)
    started, failed = time.monotonic(), 0
    tasks = [(job, results.missing(job, done), sources, device) for job in todo]

    def going() -> bool:
        return minutes is None or time.monotonic() - started < 60.0 * minutes

    with Log(len(todo)) as log, closing(work(_compute, tasks, workers, going)) as outcomes:
        try:
            for place, lines_of_fit, error in outcomes:
                if error is None:
                    results.append(file, lines_of_fit)
                    log.step(todo[place], lines_of_fit)
                else:
                    failed += 1
                    log.fail(todo[place], error)
        except KeyboardInterrupt:
            log.note("stopped; what is finished is kept, and the same command goes on from here")
            raise
    return failed


def warn_of_others(jobs: Sequence[Job], lines: Sequence[dict[str, Any]], sources: Sources) -> None:
    """Print how many lines come from other settings or images; they are kept as they are."""
    settings = {
        results.key(job.base(method)): (job, job.digest(fingerprint(job.dataset, sources)))
        for job in jobs
        for method in job.scored_as
    }
    known = [line for line in lines if results.key(line) in settings]
    others = sum(line.get("settings") != settings[results.key(line)][1] for line in known)
    if others:
        print(
            f"{others} of {len(known)} lines come from other settings or images than those at hand; they stay as they "
            "are. Remove them from the file to have them computed again.",
            file=sys.stderr,
        )


def _compute(job: Job, wanted: Sequence[str], sources: Sources, device: str) -> list[dict[str, Any]]:
    import torch

    from reproduction.cell import compute

    torch.set_num_threads(1)
    return compute(job, wanted, sources, device)


class Log:
    """Progress: in a terminal a bar with the time left and the NLL of the last fit; elsewhere, a line per fit."""

    def __init__(self, total: int) -> None:
        self.console = Console(stderr=True)
        self.total, self.count, self.started = total, 0, time.monotonic()
        self.bar = Progress(
            BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), console=self.console,
            disable=not self.console.is_terminal,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> Log:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def step(self, job: Job, lines: Sequence[dict[str, Any]]) -> None:
        nll = ", ".join(f"{line['covariates']} NLL {line['nll']:.1f}" for line in lines)
        self._advance(f"{job.name}: {nll} ({lines[0]['seconds']:.0f} s)")

    def fail(self, job: Job, error: str) -> None:
        self.note(f"failed: {job.name}\n{error}")
        self._advance(f"{job.name}: failed")

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _advance(self, text: str) -> None:
        self.count += 1
        left = (time.monotonic() - self.started) / self.count * (self.total - self.count)
        text = f"{text}; {duration(left)} left"
        self.bar.update(self.task, completed=self.count, description=text)
        if not self.console.is_terminal:
            self.note(f"{self.count}/{self.total} {text}")


def duration(seconds: float) -> str:
    minutes = round(seconds / 60.0)
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{minutes // 60} h {minutes % 60} min"
        if minutes > 90
        else f"{minutes} min"
    )
