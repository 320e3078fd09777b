"""Which files a command reads and which it writes: none is both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from lacova.cli.run_folder import FILES, MODEL, TRAINING, checkpoint_of, is_run, named

# Marks in the annotation of an argument. Every other path is read.
WRITTEN = "names a file that the command writes"
RUN_WRITTEN = "names the folder RUN that the command writes"


def check_paths(command: Callable[..., None], arguments: Mapping[str, Any]) -> None:
    """Refuse a command that would replace a file that it reads, or write two results into one file."""
    given = {name: value for name, value in arguments.items() if isinstance(value, Path)}
    hints = get_type_hints(command, include_extras=True) if len(given) > 1 else {}
    read: dict[str, Path] = {}
    written: dict[str, Path] = {}
    for name, path in given.items():
        marks = getattr(hints.get(name), "__metadata__", ())
        if RUN_WRITTEN in marks:
            run = named(path)  # its schema.toml may be read: it is then left as it is
            written |= {f"RUN/{file}": run / file for file in (MODEL, TRAINING)}
            written["RUN.checkpoint"] = checkpoint_of(run)
        elif WRITTEN in marks:
            written[_label(name, marks)] = path
        elif is_run(path):
            read |= {f"RUN/{file}": path / file for file in FILES}
        else:
            read[_label(name, marks)] = path
    if written and len(given) > 1:
        from lacova.data.io.files import require_apart

        require_apart(written, read)


def _label(name: str, marks: tuple[Any, ...]) -> str:
    """Return what --help calls an argument: the name of an option, or the word that stands for an argument."""
    word = next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), None)
    return word or f"--{name.replace('_', '-')}"
