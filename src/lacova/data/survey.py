"""One pass over training rows that do not fit in memory: their layout, their statistics, and a sample of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from lacova.data.columns import numbers, patient_codes, spread_static
from lacova.data.errors import DataError
from lacova.data.io.dataframes import to_pandas
from lacova.data.io.parquet import Layout, Part, Source, Surveyor, concatenate
from lacova.data.labels import random_words
from lacova.data.scaling import Floats
from lacova.data.schema import Schema
from lacova.data.statistics import ColumnStatistics

SAMPLE_ROWS = 50_000
CHUNK_ROWS = 50_000
MAX_LEVELS = 10_000


@dataclass(frozen=True)
class Survey:
    """The result of the first pass.

    Attributes:
        layout: the position of the units.
        statistics: moments and levels of all rows.
        sample: about SAMPLE_ROWS rows of whole patients, in order; all rows if there are no more.
    """

    layout: Layout
    statistics: ColumnStatistics
    sample: pd.DataFrame


def survey(source: Source, schema: Schema, seed: int) -> Survey:
    """Read all rows once, check them against the schema, and gather what a model starts from."""
    surveyor, statistics = Surveyor(source), ColumnStatistics(schema)
    sample = Sample(schema, SAMPLE_ROWS, seed)
    for part in source.walk(schema.columns, CHUNK_ROWS, surveyor):
        frame, _ = to_pandas(part.table)
        statistics.add(frame)
        _check_static(frame, schema)
        sample.add(part, frame)
    return Survey(surveyor.finish(), statistics, sample.frame())


def add_levels(source: Source, schema: Schema, statistics: ColumnStatistics) -> None:
    """Add the levels of rows that are held out from training: a model knows every level of the rows it was given."""
    if schema.categories:
        for part in source.walk([c for c in (schema.instance, *schema.categories) if c is not None], CHUNK_ROWS):
            statistics.add_held_out(to_pandas(part.table)[0])


def lay_out(source: Source, columns: Sequence[str], check: Callable[[pa.Table], object]) -> Layout:
    """Return the layout of the rows that a model is validated on, after `check` has passed each part of them."""
    surveyor = Surveyor(source)
    for part in source.walk(columns, CHUNK_ROWS, surveyor):
        check(part.table)
    return surveyor.finish()


def _check_static(frame: pd.DataFrame, schema: Schema) -> None:
    if schema.static:
        patient, labels = patient_codes(frame, schema.instance)
        assert patient is not None
        for name in schema.static:
            spread_static(_values(frame, name, schema), patient, labels, name)


def _values(frame: pd.DataFrame, name: str, schema: Schema) -> Floats:
    """Return a column as numbers that are equal where its entries are, NaN at gaps."""
    if schema.covariates[name] == "continuous":
        return numbers(frame, name)
    codes = pd.factorize(frame[name])[0].astype(float)
    return np.asarray(np.where(codes < 0, np.nan, codes))


class Sample:
    """A random sample of whole units with about `rows` rows, in their order, chosen by a random number of each unit.

    It also holds, for every level of a category and for every column, the first unit that shows it, so that whatever
    occurs in the rows occurs in the sample.
    """

    def __init__(self, schema: Schema, rows: int, seed: int) -> None:
        self.schema, self.rows, self.seed = schema, rows, seed
        self._parts: list[Part] = []
        self._size, self._highest = 0, np.uint64(2**64 - 1)
        self._first: dict[tuple[str, Hashable], Part] = {}

    def add(self, part: Part, frame: pd.DataFrame) -> None:
        """Add rows, as an Arrow table and as the same DataFrame."""
        self._note_first(part, frame)
        chosen = part.take(random_words(part.prints, self.seed) <= self._highest)
        self._parts.append(chosen)
        self._size += len(chosen.prints)
        if self._size > 2 * self.rows:
            self._shrink()

    def frame(self) -> pd.DataFrame:
        """Return the sample, with the units that show what it would otherwise lack at its end."""
        self._shrink()
        frame, _ = to_pandas(self._parts[0].table)
        shown = {key for key, _ in self._shown(frame)}
        lacking = {int(part.prints[0]): part for key, part in self._first.items() if key not in shown}
        if lacking:
            frame, _ = to_pandas(concatenate([*self._parts, *lacking.values()]).table)
        return frame

    def _shrink(self) -> None:
        sample = concatenate(self._parts)
        words, sizes = np.unique(random_words(sample.prints, self.seed), return_counts=True)
        if self._size > self.rows:
            last = max(int(np.searchsorted(sizes.cumsum(), self.rows, side="right")) - 1, 0)
            self._highest = words[last]
            sample = sample.take(random_words(sample.prints, self.seed) <= self._highest)
        self._parts, self._size = [sample], len(sample.prints)

    def _note_first(self, part: Part, frame: pd.DataFrame) -> None:
        """Keep the unit of each row that shows a new level, or the first value of a column."""
        for key, row in self._shown(frame):
            if key not in self._first:
                rows = np.flatnonzero(part.prints == part.prints[row])
                unit = part.slice(int(rows[0]), int(rows[-1]) + 1)
                self._first[key] = Part(unit.table.take(list(range(len(rows)))), unit.prints.copy())
                if len(self._first) > MAX_LEVELS + len(self.schema.columns):
                    raise DataError(
                        f"there are more than {MAX_LEVELS:,} levels; column {key[0]!r} has some of them. "
                        "A stream takes no more: take it out of the schema, or merge levels."
                    )

    def _shown(self, frame: pd.DataFrame) -> Iterator[tuple[tuple[str, Hashable], int]]:
        """Yield each level that a column shows, or None for a number, and the first row that shows it."""
        for name in (*self.schema.measurements, *self.schema.covariates):
            column = frame[name]
            if name in self.schema.categories:
                codes, levels = pd.factorize(column)
                codes, first = np.unique(codes, return_index=True)
                yield from (((name, levels[int(c)]), int(row)) for c, row in zip(codes, first, strict=True) if c >= 0)
            elif (seen := column.notna().to_numpy()).any():
                yield (name, None), int(seen.argmax())
