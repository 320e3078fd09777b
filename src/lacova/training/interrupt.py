"""Ctrl-C that waits until it does no harm."""

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

    asked: bool = False


@contextmanager
def noted_interrupt() -> Iterator[Interrupt]:
    """Within, the first Ctrl-C is only noted, for the caller to look at between two steps; the second raises at once.

    Python delivers signals to the main thread alone. There, a handler other than Python's own belongs to someone else
    and is left alone, and so is a signal that is ignored.
    """
    interrupt = Interrupt()
    usual = signal.default_int_handler
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is usual

    def note(*_: object) -> None:
        interrupt.asked = True
        signal.signal(signal.SIGINT, usual)

    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        if ours:
            signal.signal(signal.SIGINT, usual)
