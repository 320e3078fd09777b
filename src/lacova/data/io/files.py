"""Tables as files: CSV and Parquet by suffix, read with checks and written whole or not at all."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from lacova.data.errors import DataError
from lacova.data.io.atomic import replacing_together

SUFFIXES = (".csv", ".csv.gz", ".parquet")


def read_table(path: Path) -> pd.DataFrame:
    """Read a table; a DataError says what is wrong with the file."""
    suffix = kind(path)
    if not path.exists():
        raise DataError(f"there is no file {path}.")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file.")
    if not path.is_file():
        raise DataError(f"{path} is a device or a pipe, and tables are read more than once; write it to a file first.")
    with reading(path, suffix):
        frame = pd.read_parquet(path) if suffix == ".parquet" else _read_csv(path)
    if len(frame) == 0:
        raise DataError(f"{path} has a header but no rows.")
    return frame


@contextmanager
def reading(path: Path, suffix: str) -> Iterator[None]:
    """Turn the errors of a reader into DataErrors that say what is wrong with the file."""
    try:
        yield
    except DataError:
        raise
    except pd.errors.EmptyDataError:
        raise DataError(f"{path} is empty; expected a header and rows.") from None
    except pd.errors.ParserError as error:
        reason = str(error).removeprefix("Error tokenizing data. C error: ").strip().rstrip(".")
        raise DataError(f"{path} cannot be read as CSV: {reason}. Expected values separated by commas.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8; save it as a CSV file in UTF-8, or as Parquet.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {first_line(error)}.") from None
    except (EOFError, zlib.error):
        reason = "its compressed content ends too early, or was altered"
        raise DataError(f"{path} is damaged: {reason}; take another copy of it.") from None
    except Exception as error:
        if suffix in (".csv", ".csv.gz"):
            raise
        name = "Parquet" if suffix == ".parquet" else "SAS"
        raise DataError(f"{path} is no {name} file: {first_line(error)}.") from None


def _read_csv(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path, low_memory=False)
    names = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0]  # pandas renames duplicates
    twice = names[names.duplicated()].dropna().unique().tolist()
    if twice:
        raise DataError(f"{path} has more than one column named {twice[0]!r}; rename or drop all but one.")
    if frame.shape[1] == 1:
        header = str(frame.columns[0])
        for mark, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if mark in header:
                raise DataError(
                    f"{path} has one column, {header[:60]!r}: its values seem to be separated by {name}. "
                    "Save it with commas, or as Parquet."
                )
    return frame


def check_output(path: Path, suffixes: Iterable[str] | None = SUFFIXES) -> None:
    """Refuse an output that could not be written, before any work is done; with None, its suffix may be any."""
    if suffixes is not None:
        kind(path, suffixes)
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise DataError(f"{path} is a folder; name a file to write.")
    if target.exists() and not target.is_file():
        raise DataError(f"{path} is a device or a pipe; name a file to write.")
    if target.exists() and not os.access(target, os.W_OK):
        raise DataError(f"{path} is not writable; name another file, or change its permissions.")
    check_folder(target.parent if path.is_symlink() else path.parent)


def require_apart(outputs: Mapping[str, Path], inputs: Mapping[str, Path]) -> None:
    """Refuse outputs that would replace an input, or one another, or that lie in a folder that is read.

    Args:
        outputs: the files to write, by the name of the argument that gives them.
        inputs: the files and folders to read, likewise.
    """
    names = list(outputs)
    for k, name in enumerate(names):
        out = outputs[name]
        for what, path in inputs.items():
            if _same_file(out, path):
                raise DataError(f"{name} is {out}, the same file as {what}, which it would replace; name another file.")
            if path.is_dir() and Path(os.path.realpath(out)).is_relative_to(os.path.realpath(path)):
                raise DataError(f"{name} is {out}, in the folder {what}, all of which is read; name a file elsewhere.")
        for other in names[:k]:
            if _same_file(out, outputs[other]):
                raise DataError(f"{other} and {name} are both {out}; name a file for each.")


def _same_file(one: Path, other: Path) -> bool:
    """Return whether two paths lead to one file, by whatever spelling or link."""
    try:
        return os.path.samefile(one, other)
    except OSError:  # at least one is not there yet
        return os.path.realpath(one) == os.path.realpath(other)


def check_folder(folder: Path) -> None:
    """Refuse a folder into which nothing can be written."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder} to write into; make it first.")
    if not os.access(folder, os.W_OK):
        raise DataError(f"the folder {folder} is not writable; choose another, or change its permissions.")


def write_table(frame: pd.DataFrame, path: Path, index: bool = False) -> None:
    """Write under a temporary name, then rename: `path` holds the whole file, the old one, or none."""
    suffix = kind(path)
    with _replacing([path]) as (temporary,):
        _write(frame, temporary, suffix, index)


def write_together(tables: Mapping[Path, pd.DataFrame], texts: Mapping[Path, str]) -> None:
    """Write files that belong together: none appears under its name before all are written."""
    with _replacing([*tables, *texts]) as temporaries:
        for (path, frame), temporary in zip(tables.items(), temporaries, strict=False):
            _write(frame, temporary, kind(path))
        for text, temporary in zip(texts.values(), temporaries[len(tables) :], strict=True):
            temporary.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def _replacing(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Replace files that belong together, with DataErrors in place of OSErrors."""
    try:
        with replacing_together(paths) as temporaries:
            yield temporaries
    except OSError as error:
        raise DataError(f"{' and '.join(map(str, paths))} cannot be written: {first_line(error)}.") from None


def _write(frame: pd.DataFrame, path: Path, suffix: str, index: bool = False) -> None:
    if suffix == ".parquet":
        frame.to_parquet(path, index=index)
    else:
        frame.to_csv(path, index=index, compression="gzip" if suffix == ".csv.gz" else None)


def kind(path: Path, suffixes: Iterable[str] = SUFFIXES) -> str:
    """Return which of the known suffixes a file name ends in."""
    for suffix in suffixes:
        if path.name.lower().endswith(suffix):
            return suffix
    raise DataError(f"{path} ends in {path.suffix or 'nothing'!r}; expected one of {', '.join(suffixes)}.")


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, without its full stop."""
    text = getattr(error, "strerror", None) or str(error).strip().split("\n")[0]
    return (text or type(error).__name__).rstrip(".")
