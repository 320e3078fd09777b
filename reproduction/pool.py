"""Processes that work through a list of tasks; one that dies costs its task, not the others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """A task's place in the list, and its result, or what went wrong."""

    place: int
    result: Any
    error: str | None


def work(
    function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], workers: int, going: Callable[[], bool]
) -> Iterator[Outcome]:
    """The outcomes of `function(*task)` as they come, each in one of `workers` new processes.

    `going` is asked before a task is begun; once it says no, those under way are waited for. Closing the iterator ends
    all processes at once, and so does the end of this one, however it comes about.
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
                there.close()  # so that its end is heard of here
            here.send(task[1])
            busy[here] = process, task[0]

    try:
        hand_out()
        while busy:
            for here in wait(list(busy)):
                process, place = busy.pop(here)
                try:
                    result, error = here.recv()
                    idle.append((here, process))
                except EOFError:
                    process.join()
                    result, error = None, f"its process ended with exit code {process.exitcode}"
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
        try:
            answer = function(*task), None
        except Exception:
            answer = None, traceback.format_exc()
        pipe.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
