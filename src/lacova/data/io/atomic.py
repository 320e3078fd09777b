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
    """Yield a temporary path in the same folder, renamed to `path` if the block succeeds and removed otherwise.

    Until then the old file stays. Raises OSError if the folder or the disk refuses the file.
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
    """Remove temporary files left by processes that were killed while writing `path`."""
    pattern = re.compile(re.escape(_prefix(path)) + r"\w{8}")
    for file in path.parent.iterdir():
        if pattern.fullmatch(file.name):
            with suppress(OSError):
                file.unlink()


def _prefix(path: Path) -> str:
    return f".lacova-{path.name[:40]}-"  # file names have at most 255 bytes


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
