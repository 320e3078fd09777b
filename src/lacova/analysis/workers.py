"""Processes that work through a list of tasks; if one dies, only its own task is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """The place of a task in the list, with its result or its error."""

    place: int
    result: Any
    error: str | None


def work(
    function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], workers: int, going: Callable[[], bool]
) -> Generator[Outcome, None, None]:
    """Yield the outcomes of `function(*task)` in the order in which they finish, computed in `workers` new processes.

    `going` is called before each task begins; once it returns False, only the tasks under way are finished. Closing the
    iterator ends all processes at once, and so does the end of the calling process, whatever its cause.
    """
    context = multiprocessing.get_context("spawn")
    waiting = iter(enumerate(tasks))
    busy: dict[Connection, tuple[BaseProcess, int]] = {}
    idle: list[tuple[Connection, BaseProcess]] = []

    def hand_out() -> None:
        while len(busy) < workers and going() and (task := next(waiting, None)) is not None:
            if idle:
                here, process = idle.pop()
            else:
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(function, there), daemon=True)
                process.start()
                there.close()  # so that `recv` raises EOFError here when the process dies
            here.send(task[1])
            busy[here] = process, task[0]

    try:
        hand_out()
        while busy:
            ready = wait(list(busy))
            for here in [own for own in busy if own in ready]:
                process, place = busy.pop(here)
                result: Any = None
                error: str | None
                try:
                    result, error = here.recv()
                    idle.append((here, process))
                except EOFError:
                    process.join()
                    error = f"its process ended with exit code {process.exitcode}"
                yield Outcome(place, result, error)
            hand_out()
    finally:
        for process, _ in busy.values():
            process.kill()
        for here, process in idle:
            here.close()
            process.join()


def _serve(function: Callable[..., Any], pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its children
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        outcome: tuple[Any, str | None]
        try:
            outcome = function(*task), None
        except Exception:
            outcome = None, traceback.format_exc()
        pipe.send(outcome)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
