"""The one place where a failure of a command becomes a sentence and an exit code."""

from __future__ import annotations

import functools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

import typer

from lacova.cli.paths import check_paths

P = ParamSpec("P")
NO_MEMORY = re.compile(r"allocate memory|out of memory|not enough memory|Storage size calculation overflowed", re.I)
ASKED = re.compile(r"allocate ([\d.]+) ?([A-Za-z]+)")  # numpy and torch, on the host and on a GPU
MAX_NAME = 80  # characters of a file name that a message repeats


def report_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command so that bad input ends it with one sentence on stderr and exit code 1.

    Before the command runs, files that it would both read and write are refused.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            check_paths(command, kwargs)
            with _short_warnings():
                command(*args, **kwargs)
        except BrokenPipeError:  # the reader of stdout has gone
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("lacova: interrupted; nothing was written.", err=True)
            raise typer.Exit(130) from None
        except typer.Exit:
            raise
        except Exception as error:
            sentence = sentence_of(error)
            if sentence is None:
                raise
            typer.echo(f"lacova: {sentence}", err=True)
            raise typer.Exit(1) from None

    return run


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Print warnings of unseen levels as one sentence, without the line of Python that asked."""
    from lacova.data.errors import UnseenLevelWarning

    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=UnseenLevelWarning)
        show = warnings.showwarning

        def show_short(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, UnseenLevelWarning):
                typer.echo(f"lacova: {message}", err=True)
            else:
                show(message, category, *where, **more)

        warnings.showwarning = show_short
        yield


def sentence_of(error: Exception) -> str | None:
    """Return what to print about a failure of the data, of a file or of memory; None for an error of lacova itself."""
    from lacova.training.options import TrainingError

    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_MEMORY.search(str(error))):
        return f"{_amount(str(error))}; ask for fewer draws or smaller sizes, or give fewer rows at a time."
    if isinstance(error, OSError) and error.strerror:
        name = "a file" if error.filename is None else str(error.filename)
        shown = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"
        return f"{shown} cannot be used: {error.strerror}."
    return str(error) if isinstance(error, ValueError | TrainingError | OSError) else None


def _amount(text: str) -> str:
    """Return how much memory could not be had, by the message of an allocator."""
    asked = ASKED.search(text)
    if asked is None:
        return "there is not enough memory"
    number, unit = float(asked[1]), asked[2]
    amount = f"{number / 1e9:,.1f} GB" if unit == "bytes" else f"{number:g} {unit}"
    return f"there is not enough memory: a single array would take {amount}"
