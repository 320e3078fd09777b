"""Results of a comparison on disk, one line of JSON per fit, so that an interrupted comparison can be continued."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lacova.data.errors import DataError

FILE = "comparison.jsonl"  # within a folder
LINE_START = b'{"key": '


class ResultFile:
    """Results by key, in memory and, with a path, in a file to which lines are only ever appended."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.lines: dict[str, dict[str, Any]] = {}
        self.path = None if path is None else Path(path)
        if self.path is None:
            return
        if self.path.is_dir():
            self.path = self.path / FILE
        if not self.path.parent.is_dir():
            raise DataError(
                f"there is no folder {self.path.parent} for the checkpoint {self.path.name}; make it first."
            )
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
                f"line {number} of {self.path} is no line of a comparison: {text[:60].decode(errors='replace')!r}; "
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
