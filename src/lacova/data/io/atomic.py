"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder that becomes `path` if all goes well, and vanishes otherwise.

    Until then what was at `path` stays as it is. Raises OSError where the folder or the disk will not have it.
    """
    handle, name = tempfile.mkstemp(prefix=_prefix(path), dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    with suppress(OSError):  # not every system can flush a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def sweep(path: Path) -> None:
    """Remove the temporary files that processes which were killed while they wrote `path` have left beside it."""
    left = re.compile(re.escape(_prefix(path)) + r"\w{8}")
    for file in path.parent.iterdir():
        if left.fullmatch(file.name):
            with suppress(OSError):
                file.unlink()


def _prefix(path: Path) -> str:
    return f".lacova-{path.name[:40]}-"  # file names have at most 255 bytes


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
