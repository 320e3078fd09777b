"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PUBLIC, PRIVATE = 0o666, 0o600  # modes of new files, before the umask
RANDOM = r"\w{8}"  # what the name of a temporary file ends in


@contextmanager
def replacing(path: Path, mode: int = PUBLIC) -> Iterator[Path]:
    """Yield a temporary path, renamed to `path` if the block succeeds and removed otherwise.

    At every instant `path` is the whole old file or the whole new one. The new one keeps the mode of the old one, and
    its owner and group where the system allows that. If `path` is a link, the file that it leads to is replaced. Raises
    OSError if the folder or the disk refuses the file.
    """
    with replacing_together([path], mode) as (temporary,):
        yield temporary


@contextmanager
def replacing_together(paths: Iterable[Path], mode: int = PUBLIC) -> Iterator[list[Path]]:
    """Do the same for several files: none is renamed before all are on the disk; then each is, in this order."""
    targets = [Path(os.path.realpath(path)) for path in paths]
    with ExitStack() as stack:
        temporaries = []
        for target in targets:
            temporary = _beside(target)
            stack.callback(temporary.unlink, missing_ok=True)
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE if target.exists() else mode))
            temporaries.append(temporary)
        yield temporaries
        for temporary, target in zip(temporaries, targets, strict=True):
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            if target.exists():
                _make_alike(temporary, target.stat())
        for temporary, target in zip(temporaries, targets, strict=True):
            os.replace(temporary, target)
    for folder in {target.parent for target in targets}:
        _flush(folder)


def sweep(path: Path) -> None:
    """Remove temporary files left by processes that were killed while writing `path`."""
    target = Path(os.path.realpath(path))
    for file in target.parent.iterdir() if target.parent.is_dir() else ():
        if is_temporary(file, target):
            with suppress(OSError):
                file.unlink()


def is_temporary(file: Path, path: Path) -> bool:
    """Return whether `file` is named like a temporary file of `path`, or of such a file."""
    name = re.escape(_prefix(path)) + RANDOM
    return re.fullmatch(rf"{name}|\.lacova-{name}-{RANDOM}", file.name) is not None


def _beside(path: Path) -> Path:
    """Return a temporary path in the same folder."""
    return path.with_name(_prefix(path) + secrets.token_hex(4))


def _prefix(path: Path) -> str:
    return f".lacova-{path.name[:40]}-"  # file names have at most 255 bytes


def _make_alike(file: Path, old: os.stat_result) -> None:
    """Give a file the mode of an old one, and its owner and group where the system allows that."""
    for owner in ((old.st_uid, -1), (-1, old.st_gid)) if hasattr(os, "chown") else ():
        with suppress(OSError):
            os.chown(file, *owner)
    file.chmod(stat.S_IMODE(old.st_mode))


def _flush(folder: Path) -> None:
    """Write to the disk which files a folder has."""
    with suppress(OSError):  # not every system can
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
