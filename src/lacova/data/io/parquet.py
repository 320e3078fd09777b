"""Parquet files that do not fit in memory, read one row group at a time and cut between patients."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from lacova.data.columns import require_labels, require_names
from lacova.data.errors import DataError
from lacova.data.io.dataframes import NULLABLE
from lacova.data.io.files import first_line, read_table
from lacova.data.labels import WORD, Prints, fingerprints, random_words, splitmix64

Ints = npt.NDArray[np.int64]


class Part(NamedTuple):
    """Rows, and the fingerprint of the unit of each row: its patient, or the row itself where there are no patients."""

    table: pa.Table
    prints: Prints

    def take(self, chosen: npt.NDArray[np.bool_]) -> Part:
        """Return the chosen rows."""
        return self if chosen.all() else Part(self.table.filter(pa.array(chosen)), self.prints[chosen])

    def slice(self, start: int, stop: int) -> Part:
        """Return the rows from `start` to before `stop`."""
        return Part(self.table.slice(start, stop - start), self.prints[start:stop])


def concatenate(parts: Sequence[Part]) -> Part:
    """Return the rows of all parts, one below the other."""
    if len(parts) == 1:
        return parts[0]
    table = pa.concat_tables([part.table for part in parts]).unify_dictionaries()
    return Part(table, np.concatenate([part.prints for part in parts]))


def unit_starts(prints: Prints) -> npt.NDArray[np.bool_]:
    """Return at which rows a unit begins; the first row is one of them."""
    return np.concatenate([[True], prints[1:] != prints[:-1]]) if len(prints) else np.zeros(0, dtype=bool)


@dataclass(frozen=True)
class Layout:
    """The position of units in the row groups of a source, recorded by a first pass.

    Attributes:
        heads: number of rows at the start of each group that belong to a patient who began in an earlier group.
        units: number of units, of the source's share, that begin in each group.
        rows: number of rows of those units, including rows in later groups.
        prints: fingerprints of those units, in the order of the rows, where they are patients.
    """

    heads: Ints
    units: Ints
    rows: Ints
    prints: Prints


@dataclass(frozen=True)
class Source:
    """A dataset of Parquet files, read one row group at a time; the order of rows is that of files and groups.

    Attributes:
        dataset: the files.
        instance: the column whose equal neighbours form a unit; None if each row is a unit.
        name: name of the dataset in error messages.
        lower, upper, seed: the share of the units that is used: those whose random number lies in [lower, upper).
    """

    dataset: ds.Dataset
    instance: str | None
    name: str
    lower: float = 0.0
    upper: float = 1.0
    seed: int = 0

    def share(self, lower: float, upper: float, seed: int) -> Source:
        """Return a random share of the units, the same for the same seed; [0, a) and [a, 1) are complements."""
        return replace(self, lower=lower, upper=upper, seed=seed)

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        return list(self.dataset.schema.names)

    @cached_property
    def groups(self) -> list[ds.ParquetFileFragment]:
        """One fragment per row group that has rows."""
        with self._readable():
            fragments = list(self.dataset.get_fragments())
            if not all(isinstance(fragment, ds.ParquetFileFragment) for fragment in fragments):
                raise DataError(f"{self.name} is not made of Parquet files alone; write it as Parquet first.")
            groups = [group for fragment in fragments for group in fragment.split_by_row_group()]
            return [group for group in groups if group.row_groups[0].num_rows]

    @cached_property
    def offsets(self) -> Ints:
        """Index of the first row of each group, and the number of rows at the end."""
        return np.cumsum([0, *(group.row_groups[0].num_rows for group in self.groups)])

    def __len__(self) -> int:
        """Return the number of rows in the files, regardless of the share."""
        return int(self.offsets[-1])

    def group(self, k: int, columns: Sequence[str] | None = None) -> Part:
        """Return all rows of a row group."""
        with self._readable():
            table = self.groups[k].to_table(
                schema=self.dataset.schema, columns=None if columns is None else list(columns), use_threads=False
            )
        if self.instance is None:
            return Part(table, splitmix64(np.arange(self.offsets[k], self.offsets[k] + len(table)).astype(np.uint64)))
        labels = table[self.instance].to_pandas(types_mapper=NULLABLE.get)
        labels.name = self.instance
        require_labels(labels)
        return Part(table, fingerprints(labels))

    def counts(self, prints: Prints) -> npt.NDArray[np.bool_]:
        """Return which rows belong to the share."""
        if self.lower <= 0.0 and self.upper >= 1.0:
            return np.ones(len(prints), dtype=bool)
        uniform = random_words(prints, self.seed) / float(WORD)
        return np.asarray((uniform >= self.lower) & (uniform < self.upper))

    def walk(self, columns: Sequence[str] | None, rows: int, survey: Surveyor | None = None) -> Iterator[Part]:
        """Yield the rows of the share in order, whole units, about `rows` rows at a time.

        The cuts depend on the rows alone, not on row groups and files. At the end, a unit in two places is refused.
        """
        survey = Surveyor(self) if survey is None else survey
        waiting: list[Part] = []
        for k in range(len(self.groups)):
            new = self.group(k, columns)
            survey.add(new.prints)
            waiting.append(new.take(self.counts(new.prints)))
            if sum(len(part.prints) for part in waiting) < rows:
                continue
            merged = concatenate(waiting)
            starts, start = np.flatnonzero(unit_starts(merged.prints)), 0
            while (place := int(np.searchsorted(starts, start + rows))) < len(starts):
                yield merged.slice(start, int(starts[place]))
                start = int(starts[place])
            waiting = [merged.slice(start, len(merged.prints))]
        survey.finish()
        if waiting and len((last := concatenate(waiting)).prints):
            yield last

    def read(self, layout: Layout, pieces: Sequence[int], columns: Sequence[str]) -> Part:
        """Return the units that begin in the row groups `pieces`, in ascending order, with all their rows."""
        parts: list[Part] = []
        at, now = -1, Part(pa.table({}), np.zeros(0, dtype=np.uint64))
        for piece in pieces:
            for k in range(piece, len(self.groups)):
                if k > piece and layout.heads[k] == 0:
                    break
                if at != k:
                    at, now = k, self.group(k, columns)
                head, size = int(layout.heads[k]), len(now.prints)
                part = now.slice(head, size) if k == piece else now.slice(0, head)
                parts.append(part.take(self.counts(part.prints)))
                if head == size if k == piece else head < size:
                    break  # no unit begins in the piece, or the last that began there has ended
        units = concatenate(parts)
        expected = int(layout.units[list(pieces)].sum()), int(layout.rows[list(pieces)].sum())
        if (int(unit_starts(units.prints).sum()), len(units.prints)) != expected:
            raise DataError(f"{self.name} has changed since it was first read; leave it alone until the end.")
        return units

    def label(self, fingerprint: int) -> Any:
        """Return the label of a fingerprint."""
        assert self.instance is not None
        for k in range(len(self.groups)):
            labels = self.group(k, [self.instance])
            place = np.flatnonzero(labels.prints == fingerprint)
            if len(place):
                return labels.table[self.instance][int(place[0])].as_py()
        return None

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn the errors of Arrow into DataErrors that name the source."""
        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self.name} cannot be read: {first_line(error)}.") from None


class Surveyor:
    """Builds the layout of a source row group by row group, and checks that the rows of each unit are adjacent."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._heads: list[int] = []
        self._units: list[int] = []
        self._rows: list[int] = []
        self._prints: list[Prints] = []
        self._last: int | None = None
        self._owner = 0

    def add(self, prints: Prints) -> None:
        """Add the next row group."""
        begin = unit_starts(prints)
        if len(prints) and self._last == int(prints[0]):
            begin[0] = False
        head = int(begin.argmax()) if begin.any() else len(prints)
        counts = self.source.counts(prints)
        self._rows.append(int(counts[head:].sum()))
        self._rows[self._owner] += int(counts[:head].sum())
        self._heads.append(head)
        self._units.append(int((begin & counts).sum()))
        if self.source.instance is not None:
            self._prints.append(prints[begin])
        if begin.any():
            self._owner = len(self._heads) - 1
        if len(prints):
            self._last = int(prints[-1])

    def finish(self) -> Layout:
        """Return the layout; refuse units in two places, and a share without rows."""
        prints = np.concatenate(self._prints) if self._prints else np.zeros(0, dtype=np.uint64)
        ordered = np.sort(prints)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            name, label = self.source.instance, self.source.label(int(twice[0]))
            raise DataError(
                f"the rows of {name} {label!r} are in more than one place of {self.source.name}, but a stream needs "
                f"those of one instance next to one another; sort the rows by {name!r}."
            )
        if not any(self._units):
            share = f"from {self.source.lower} to {self.source.upper}"
            raise DataError(f"no rows of {self.source.name} are in the share {share}; take a larger one.")
        prints = prints[self.source.counts(prints)]
        return Layout(np.array(self._heads), np.array(self._units), np.array(self._rows), prints)


def is_stream(data: object) -> bool:
    """Return whether data are a path or a dataset rather than a table in memory."""
    return isinstance(data, str | os.PathLike | ds.Dataset | Source)


def open_source(data: Any, instance: str | None, columns: Sequence[str]) -> Source | pd.DataFrame:
    """Return the source of a dataset, or of the path of a Parquet file or a folder of them; read a CSV file whole.

    Args:
        data: the path, or the dataset.
        instance: the column that names the patient.
        columns: the columns that must exist.
    """
    if isinstance(data, Source):
        source = data
    elif isinstance(data, ds.Dataset):
        source = Source(data, instance, "the dataset")
    else:
        path = Path(data)
        if not path.is_dir() and (path.suffix.lower() != ".parquet" or not path.exists()):
            return read_table(path)  # or raise what is wrong with it
        source = Source(_dataset(path), instance, str(path))
    require_names(source.columns, columns)
    if len(source) == 0:
        raise DataError(f"{source.name} has no rows.")
    return source


def _dataset(path: Path) -> ds.Dataset:
    try:
        dataset = ds.dataset(path, format="parquet", partitioning="hive")
        empty = next(iter(dataset.get_fragments()), None) is None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is no Parquet file, or no folder of such files: {first_line(error)}.") from None
    if empty:
        raise DataError(f"the folder {path} holds no Parquet files.")
    return dataset
