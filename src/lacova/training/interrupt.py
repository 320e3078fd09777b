"""Ctrl-C, deferred until a step has ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class InterruptedWarning(UserWarning):
    """Ctrl-C ended training early; the model can be used all the same."""


@dataclass
class Interrupt:
    """Whether Ctrl-C was pressed."""

    requested: bool = False


@contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Record the first Ctrl-C instead of raising it; the second raises at once.

    Python delivers signals to the main thread alone. A handler other than Python's own is left in place, and so is a
    signal that is ignored.
    """
    interrupt = Interrupt()
    default = signal.default_int_handler
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is default

    def record(*_: object) -> None:
        interrupt.requested = True
        signal.signal(signal.SIGINT, default)

    if ours:
        signal.signal(signal.SIGINT, record)
    try:
        yield interrupt
    finally:
        if ours:
            signal.signal(signal.SIGINT, default)
