"""Parquet that does not fit memory: row groups read one by one, cut between patients; answers written as they come."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from lacova.data.columns import require_labels, require_names
from lacova.data.errors import DataError
from lacova.data.io.atomic import replacing
from lacova.data.io.dataframes import NULLABLE
from lacova.data.io.files import check_output, first_line, read_table
from lacova.data.labels import WORD, Prints, fingerprints, lots, mixed

Ints = npt.NDArray[np.int64]


class Part(NamedTuple):
    """Some rows, and the fingerprint of each one's unit: its patient, or itself where there are none."""

    table: pa.Table
    prints: Prints

    def take(self, chosen: npt.NDArray[np.bool_]) -> Part:
        return self if chosen.all() else Part(self.table.filter(pa.array(chosen)), self.prints[chosen])

    def slice(self, start: int, stop: int) -> Part:
        return Part(self.table.slice(start, stop - start), self.prints[start:stop])


def joined(parts: Sequence[Part]) -> Part:
    """Part one below the other."""
    if len(parts) == 1:
        return parts[0]
    table = pa.concat_tables([part.table for part in parts]).unify_dictionaries()
    return Part(table, np.concatenate([part.prints for part in parts]))


def beginnings(prints: Prints) -> npt.NDArray[np.bool_]:
    """Part at which another unit begins; the first row is one."""
    return np.concatenate([[True], prints[1:] != prints[:-1]]) if len(prints) else np.zeros(0, dtype=bool)


@dataclass(frozen=True)
class Layout:
    """Where units lie in the row groups of a source, as a first pass finds it.

    Attributes:
        heads: rows at the start of each group that belong to a patient who began in an earlier one.
        units: of the source's share that begin in each group.
        rows: of those units, also where they go on in later groups.
        prints: of those units, in the order of the rows, where they are patients.
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
        instance: the column whose equal neighbours are one unit; None if each row is one.
        name: of the dataset, for errors.
        lower, upper, seed: which share of the units counts: by a random number of each, between 0 and 1.
    """

    dataset: ds.Dataset
    instance: str | None
    name: str
    lower: float = 0.0
    upper: float = 1.0
    seed: int = 0

    def share(self, lower: float, upper: float, seed: int) -> Source:
        """A random share of the units, the same for the same seed; what is left by [0, a) is [a, 1)."""
        return replace(self, lower=lower, upper=upper, seed=seed)

    @property
    def columns(self) -> list[str]:
        return list(self.dataset.schema.names)

    @cached_property
    def groups(self) -> list[ds.ParquetFileFragment]:
        """One fragment per row group that has rows."""
        with self._sentences():
            fragments = list(self.dataset.get_fragments())
            if not all(isinstance(fragment, ds.ParquetFileFragment) for fragment in fragments):
                raise DataError(f"{self.name} is not made of Parquet files alone; write it as Parquet first.")
            groups = [group for fragment in fragments for group in fragment.split_by_row_group()]
            return [group for group in groups if group.row_groups[0].num_rows]

    @cached_property
    def offsets(self) -> Ints:
        """Number of each group's first row."""
        return np.cumsum([0, *(group.row_groups[0].num_rows for group in self.groups)])

    def __len__(self) -> int:
        """Part in the files, whatever the share."""
        return int(self.offsets[-1])

    def group(self, k: int, columns: Sequence[str] | None = None) -> Part:
        """All rows of a row group."""
        with self._sentences():
            table = self.groups[k].to_table(
                schema=self.dataset.schema, columns=None if columns is None else list(columns), use_threads=False
            )
        if self.instance is None:
            return Part(table, mixed(np.arange(self.offsets[k], self.offsets[k] + len(table)).astype(np.uint64)))
        labels = table[self.instance].to_pandas(types_mapper=NULLABLE.get)
        labels.name = self.instance
        require_labels(labels)
        return Part(table, fingerprints(labels))

    def counts(self, prints: Prints) -> npt.NDArray[np.bool_]:
        """Which rows are of the share."""
        if self.lower <= 0.0 and self.upper >= 1.0:
            return np.ones(len(prints), dtype=bool)
        lot = lots(prints, self.seed) / float(WORD)
        return np.asarray((lot >= self.lower) & (lot < self.upper))

    def walk(self, columns: Sequence[str] | None, rows: int, survey: Surveyor | None = None) -> Iterator[Part]:
        """The share's rows in order, about `rows` at a time, whole units only; refuses a unit in two places at the end.

        How they are cut depends on the rows alone, not on row groups and files.
        """
        survey = Surveyor(self) if survey is None else survey
        held: list[Part] = []
        for k in range(len(self.groups)):
            new = self.group(k, columns)
            survey.add(new.prints)
            held.append(new.take(self.counts(new.prints)))
            if sum(len(part.prints) for part in held) < rows:
                continue
            whole = joined(held)
            ends, start = np.flatnonzero(beginnings(whole.prints)), 0
            while (place := int(np.searchsorted(ends, start + rows))) < len(ends):
                yield whole.slice(start, int(ends[place]))
                start = int(ends[place])
            held = [whole.slice(start, len(whole.prints))]
        survey.finish()
        if held and len((last := joined(held)).prints):
            yield last

    def read(self, layout: Layout, pieces: Sequence[int], columns: Sequence[str]) -> Part:
        """The units that begin in some row groups, given in ascending order, wherever they end."""
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
                    break  # nobody begins in the piece; or whoever began there has ended
        found = joined(parts)
        expected = int(layout.units[list(pieces)].sum()), int(layout.rows[list(pieces)].sum())
        if (int(beginnings(found.prints).sum()), len(found.prints)) != expected:
            raise DataError(f"{self.name} has changed since it was first read; leave it alone until the end.")
        return found

    def label(self, fingerprint: int) -> Any:
        """The label behind a fingerprint."""
        assert self.instance is not None
        for k in range(len(self.groups)):
            found = self.group(k, [self.instance])
            place = np.flatnonzero(found.prints == fingerprint)
            if len(place):
                return found.table[self.instance][int(place[0])].as_py()
        return None

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self.name} cannot be read: {first_line(error)}.") from None


class Surveyor:
    """Notes, row group by row group, where units begin, and that each has one place only."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._heads: list[int] = []
        self._units: list[int] = []
        self._rows: list[int] = []
        self._prints: list[Prints] = []
        self._last: int | None = None
        self._owner = 0

    def add(self, prints: Prints) -> None:
        begin = beginnings(prints)
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
    """Whether data are named by a path or a dataset, rather than given."""
    return isinstance(data, str | os.PathLike | ds.Dataset | Source)


def open_source(data: Any, instance: str | None, columns: Sequence[str]) -> Source | pd.DataFrame:
    """A source behind a path to a Parquet file or a folder of them, or a dataset; a CSV file is read whole.

    Args:
        data: the path, or the dataset.
        instance: the column that names the patient.
        columns: those that must be there.
    """
    if isinstance(data, Source):
        found = data
    elif isinstance(data, ds.Dataset):
        found = Source(data, instance, "the dataset")
    else:
        path = Path(data)
        if not path.is_dir() and (path.suffix.lower() != ".parquet" or not path.exists()):
            return read_table(path)  # or say what is wrong with it
        found = Source(_dataset(path), instance, str(path))
    require_names(found.columns, columns)
    if len(found) == 0:
        raise DataError(f"{found.name} has no rows.")
    return found


def _dataset(path: Path) -> ds.Dataset:
    try:
        dataset = ds.dataset(path, format="parquet", partitioning="hive")
        empty = next(iter(dataset.get_fragments()), None) is None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is no Parquet file, or no folder of such files: {first_line(error)}.") from None
    if empty:
        raise DataError(f"the folder {path} holds no Parquet files.")
    return dataset


class Sink:
    """A Parquet file that tables are appended to; the first says which columns it has, and of which types."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, table.schema)
        try:
            fitting = table.cast(self._writer.schema)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(f"some rows of the answer do not fit those before: {first_line(error)}.") from None
        self._writer.write_table(fitting)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Sink]:
    """A Parquet file to be written bit by bit, which is there once all went well, and not before."""
    out = Path(path)
    check_output(out)
    if out.suffix.lower() != ".parquet":
        raise DataError(f"{out} is to hold the answer to a stream, which is written as Parquet; end it in .parquet.")
    try:
        with replacing(out) as temporary, closing(Sink(temporary)) as sink:
            yield sink
    except OSError as error:
        raise DataError(f"{out} cannot be written: {first_line(error)}.") from None
