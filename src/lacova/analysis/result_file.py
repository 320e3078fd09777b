"""Results of many fits on disk, one line of JSON per fit, so that what was interrupted can be continued."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from lacova.data.errors import DataError
from lacova.data.schema import Schema

LINE_START = b'{"key": '


class ResultFile:
    """Results by key, in memory and, with a path, in a file to which lines are only ever appended.

    Args:
        path: the file, or a folder for one; None keeps results in memory only.
        what: what the results are of; the file in a folder is called so.
    """

    def __init__(self, path: str | os.PathLike[str] | None, what: str = "comparison") -> None:
        self.lines: dict[str, dict[str, Any]] = {}
        self.path, self._what = None if path is None else Path(path), what
        if self.path is None:
            return
        if self.path.is_dir():
            self.path = self.path / f"{what}.jsonl"
        if not self.path.parent.is_dir():
            raise DataError(
                f"there is no folder {self.path.parent} for the checkpoint {self.path.name}; make it first."
            )
        if self.path.exists() and not self.path.is_file():
            raise DataError(f"{self.path} is a device or a pipe; name a file for the checkpoint.")
        *complete, last = self.path.read_bytes().split(b"\n") if self.path.exists() else [b""]
        for number, text in enumerate(complete, 1):
            self._parse(text, number)
        torn = last.startswith(LINE_START[: len(last)])  # a killed process did not finish this line
        if last and not (complete or torn):
            self._parse(last, 1)
        if last:
            os.truncate(self.path, self.path.stat().st_size - len(last))

    def _parse(self, text: bytes, number: int) -> None:
        try:
            line = json.loads(text)
            self.lines[line["key"]] = line
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"line {number} of {self.path} is no line of a {self._what}: {text[:60].decode(errors='replace')!r}; "
                "name another checkpoint, or remove that line, and it is computed again."
            ) from None

    def add(self, line: dict[str, Any]) -> None:
        """Store a result; it is on the disk when this returns."""
        self.lines[line["key"]] = line
        if self.path is None:
            return
        with self.path.open("ab") as out:
            out.write((json.dumps(line, allow_nan=False) + "\n").encode())
            out.flush()
            os.fsync(out.fileno())


def key_of(fit: Mapping[str, Any]) -> str:
    """Hash everything that a fit and its results depend on."""
    return hashlib.sha256(json.dumps(fit, sort_keys=True, default=repr).encode()).hexdigest()


def digest_of(frame: pd.DataFrame, columns: Sequence[str]) -> str:
    """Hash some columns of a table, in the order of the rows."""
    digest = hashlib.sha256()
    for name in columns:
        digest.update(f"{name}:{frame[name].dtype};".encode())
        digest.update(pd.util.hash_pandas_object(frame[name], index=False).to_numpy().tobytes())
    return digest.hexdigest()


def roles_of(schema: Schema) -> str:
    """Return the roles of all columns as text."""
    return repr({field.name: getattr(schema, field.name) for field in fields(schema)})
