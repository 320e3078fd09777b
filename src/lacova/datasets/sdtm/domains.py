"""Files of SDTM domains: located in a folder by name, in any format, and read with the columns that are needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, cast

import pandas as pd

from lacova.data.errors import DataError, hint
from lacova.data.io import files

SAS = (".xpt", ".sas7bdat")
SUFFIXES = (*files.SUFFIXES, *SAS)
ZERO = 1e-70  # pandas reads a zero of an XPT file as 5.4e-79; smaller numbers than this one are 0

Remark = Callable[[str], object]  # receives remarks on the data, a sentence each


def ignore(remark: str) -> None:
    """Drop a remark."""


def read_domain(
    folder: Path, domain: str, text: Iterable[str], numbers: Iterable[str] = (), optional: Iterable[str] = ()
) -> pd.DataFrame:
    """Read columns of a domain, in capitals; blank text is missing, and so are all entries of absent optional columns.

    Args:
        folder: holds the file: DOMAIN with one of SUFFIXES, in small or capital letters.
        domain: two letters, such as "LB".
        text: columns to read as text; numbers in them keep their leading zeros.
        numbers: columns to read as numbers.
        optional: columns among both that the file may lack.
    """
    text, numbers, optional = list(text), list(numbers), list(optional)
    columns = [*text, *numbers]
    path = find(folder, domain)
    frame = _read(path, columns, text)
    frame.columns = frame.columns.str.upper()
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"{path} has more than one column named {twice[0]!r}; rename or drop all but one.")
    absent = [name for name in columns if name not in frame and name not in optional]
    if absent:
        raise DataError(
            f"{path} has no column {', '.join(absent)}, which the domain {domain} needs.{hint(absent, _names(path))}"
        )
    if len(frame) == 0:
        raise DataError(f"{path} has a header but no rows.")
    frame = frame.reindex(columns=columns)
    return frame.assign(
        **{name: _text(frame[name]) for name in text}, **{name: _numbers(frame[name], path) for name in numbers}
    )


def find(folder: Path, domain: str) -> Path:
    """Return the file of a domain; refuse none or several."""
    if not folder.is_dir():
        what = "a file" if folder.exists() else "not there"
        raise DataError(f"{folder} is {what}; expected a folder with the SDTM domains DM, LB, VS, AE and CM.")
    names = {f"{domain.lower()}{suffix}" for suffix in SUFFIXES}
    matches = sorted(file for file in folder.iterdir() if file.name.lower() in names)
    if not matches:
        raise DataError(
            f"there is no domain {domain} in {folder}; expected {domain.lower()} with one of {', '.join(SUFFIXES)}."
        )
    if len(matches) > 1:
        both = " and ".join(file.name for file in matches)
        raise DataError(f"{folder} has the domain {domain} more than once, as {both}; keep one of them.")
    return matches[0]


def _read(path: Path, columns: Collection[str], text: Iterable[str]) -> pd.DataFrame:
    kind = files.kind(path, SUFFIXES)
    with files.reading(path, kind):
        if kind == ".parquet":
            return pd.read_parquet(path, columns=[name for name in _names(path) if name.upper() in columns])
        if kind in SAS:
            frame = _read_sas(path)
            return frame[[name for name in frame if str(name).upper() in columns]]
        names = [name for name in _names(path) if name.upper() in columns]
        types = {name: str for name in names if name.upper() in text}
        return pd.read_csv(path, usecols=names, dtype=types, low_memory=False)


def _names(path: Path) -> list[str]:
    kind = files.kind(path, SUFFIXES)
    with files.reading(path, kind):
        if kind == ".parquet":
            import pyarrow.parquet

            return [str(name) for name in pyarrow.parquet.read_schema(path).names]
        return [str(name) for name in (_read_sas(path) if kind in SAS else pd.read_csv(path, nrows=0)).columns]


def _read_sas(path: Path) -> pd.DataFrame:
    if path.suffix.lower() == ".sas7bdat":
        return pd.read_sas(path, format="sas7bdat", encoding="infer")
    try:
        frame = _read_xpt(path, "utf-8")
    except UnicodeDecodeError:  # an XPT file does not state its encoding
        frame = _read_xpt(path, "latin-1")
    numbers = frame.select_dtypes("number")
    frame[numbers.columns] = numbers.mask(numbers.abs() < ZERO, 0.0)
    return frame


def _read_xpt(path: Path, encoding: str) -> pd.DataFrame:
    """Read an XPT file; rows are counted here, as pandas drops short records of blank text at the end as padding."""
    reader: Any = pd.read_sas(path, format="xport", encoding=encoding, iterator=True)
    with reader:
        data, length = path.read_bytes()[reader.record_start :], reader.record_length
        rows = len(data) // length
        while rows and not data[(rows - 1) * length : rows * length].strip():
            rows -= 1
        if rows == 0:
            raise DataError(f"{path} has a header but no rows.")
        reader.nobs = rows
        return cast(pd.DataFrame, reader.read())


def _text(column: pd.Series) -> pd.Series:
    text = column.astype(str).str.strip()
    return text.mask(column.isna() | (text == ""))


def _numbers(column: pd.Series, path: Path) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce")
    wrong = numbers.isna() & _text(column).notna()
    if wrong.any():
        raise DataError(
            f"{path} has {column[wrong].iloc[0]!r} in the column {column.name}; expected numbers there, or nothing."
        )
    return numbers.astype(float)
