"""The results file: one line of JSON per run, only ever appended to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reproduction.config import Job

FILE = Path(__file__).with_name("results.jsonl")
KEY = ("table", "dataset", "model", "networks", "covariates", "missing", "seed")


class ResultsError(ValueError):
    """A results file that cannot be read."""


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in KEY)


def read(file: Path, names: Sequence[str] = KEY) -> list[dict[str, Any]]:
    """Return all complete lines, which must have these names; a line that a killed run left unfinished is skipped."""
    if not file.exists():
        return []
    *complete, rest = file.read_bytes().split(b"\n")
    lines = []
    for number, text in enumerate(complete, 1):
        try:
            line = json.loads(text)
            [line[name] for name in names]
        except (ValueError, KeyError, TypeError):
            raise ResultsError(
                f"line {number} of {file} is not a result: {text[:60].decode(errors='replace')!r}. "
                "Remove that line, and it is computed again."
            ) from None
        lines.append(line)
    return lines + ([json.loads(rest)] if _is_json(rest) else [])


def mend(file: Path) -> None:
    """Make the file end with a complete line: drop an unfinished one, or add the line break that is missing."""
    if not file.exists():
        return
    rest = file.read_bytes().rpartition(b"\n")[2]
    if not rest:
        return
    with file.open("r+b") as out:
        if _is_json(rest):
            out.seek(0, os.SEEK_END)
            out.write(b"\n")
        else:
            out.truncate(file.stat().st_size - len(rest))
        out.flush()
        os.fsync(out.fileno())


def append(file: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Append complete lines in one write, and flush them to the disk."""
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as out:
        out.write(text.encode())
        out.flush()
        os.fsync(out.fileno())


def missing(job: Job, done: set[tuple[Any, ...]]) -> list[str]:
    """Return the methods of a fit that have no line yet."""
    return [covariates for covariates in job.scored_as if key(job.base(covariates)) not in done]


def left(jobs: Sequence[Job], lines: Iterable[dict[str, Any]]) -> list[Job]:
    """Return the fits for which at least one line is missing."""
    done = {key(line) for line in lines}
    return [job for job in jobs if missing(job, done)]


def _is_json(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
