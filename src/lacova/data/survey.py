"""One pass over training rows that do not fit memory: their layout, their scales and levels, and a sample of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from lacova.data.columns import ColumnStatistics, numbers, patients, spread_static
from lacova.data.errors import DataError
from lacova.data.io.dataframes import to_pandas
from lacova.data.io.parquet import Layout, Part, Source, Surveyor, joined
from lacova.data.labels import lots
from lacova.data.scaling import Floats
from lacova.data.schema import Schema

SAMPLE_ROWS = 50_000
CHUNK_ROWS = 50_000
MOST_LEVELS = 10_000


@dataclass(frozen=True)
class Survey:
    """What a first pass finds.

    Attributes:
        layout: where units lie.
        statistics: scales and levels, of all rows.
        sample: about SAMPLE_ROWS rows of whole patients, in order; all rows where there are no more.
    """

    layout: Layout
    statistics: ColumnStatistics
    sample: pd.DataFrame


def survey(source: Source, schema: Schema, seed: int) -> Survey:
    """Read everything once, check it against the schema, and keep what the model starts from."""
    surveyor, statistics = Surveyor(source), ColumnStatistics(schema)
    sample = Sample(schema, SAMPLE_ROWS, seed)
    for part in source.walk(schema.columns, CHUNK_ROWS, surveyor):
        frame, _ = to_pandas(part.table)
        statistics.add(frame)
        _check_static(frame, schema)
        sample.add(part, frame)
    return Survey(surveyor.finish(), statistics, sample.frame())


def lay_out(source: Source, columns: Sequence[str], check: Callable[[pa.Table], object]) -> Layout:
    """The layout of rows that a model is to be validated on, each of them checked."""
    surveyor = Surveyor(source)
    for part in source.walk(columns, CHUNK_ROWS, surveyor):
        check(part.table)
    return surveyor.finish()


def _check_static(frame: pd.DataFrame, schema: Schema) -> None:
    if schema.static:
        patient, labels = patients(frame, schema.instance)
        assert patient is not None
        for name in schema.static:
            spread_static(_values(frame, name, schema), patient, labels, name)


def _values(frame: pd.DataFrame, name: str, schema: Schema) -> Floats:
    """A column as numbers, of which equal ones stand for equal entries, and NaN for gaps."""
    if schema.covariates[name] == "continuous":
        return numbers(frame, name)
    codes = pd.factorize(frame[name])[0].astype(float)
    return np.asarray(np.where(codes < 0, np.nan, codes))


class Sample:
    """A random sample of whole units, about so many rows, by a random number of each unit; in the order of the rows.

    It also holds, for every level of a category and for every column, the first unit that shows it: what occurs in the
    rows at all occurs in the sample.
    """

    def __init__(self, schema: Schema, rows: int, seed: int) -> None:
        self.schema, self.rows, self.seed = schema, rows, seed
        self._parts: list[Part] = []
        self._held, self._highest = 0, np.uint64(2**64 - 1)
        self._first: dict[tuple[str, Hashable], Part] = {}

    def add(self, part: Part, frame: pd.DataFrame) -> None:
        """Take in some rows, given as Parquet and as pandas have them."""
        self._note(part, frame)
        chosen = part.take(lots(part.prints, self.seed) <= self._highest)
        self._parts.append(chosen)
        self._held += len(chosen.prints)
        if self._held > 2 * self.rows:
            self._shrink()

    def frame(self) -> pd.DataFrame:
        """The sample, with what it would lack otherwise at its end."""
        self._shrink()
        found, _ = to_pandas(self._parts[0].table)
        shown = {key for key, _ in self._shown(found)}
        lacking = {int(part.prints[0]): part for key, part in self._first.items() if key not in shown}
        if lacking:
            found, _ = to_pandas(joined([*self._parts, *lacking.values()]).table)
        return found

    def _shrink(self) -> None:
        whole = joined(self._parts)
        lot, size = np.unique(lots(whole.prints, self.seed), return_counts=True)
        if self._held > self.rows:
            last = max(int(np.searchsorted(size.cumsum(), self.rows, side="right")) - 1, 0)
            self._highest = lot[last]
            whole = whole.take(lots(whole.prints, self.seed) <= self._highest)
        self._parts, self._held = [whole], len(whole.prints)

    def _note(self, part: Part, frame: pd.DataFrame) -> None:
        """Keep the unit of the first row that shows something new."""
        for key, row in self._shown(frame):
            if key not in self._first:
                own = np.flatnonzero(part.prints == part.prints[row])
                first = part.slice(int(own[0]), int(own[-1]) + 1)
                self._first[key] = Part(first.table.take(list(range(len(own)))), first.prints.copy())
                if len(self._first) > MOST_LEVELS + len(self.schema.columns):
                    raise DataError(
                        f"there are more than {MOST_LEVELS:,} levels; column {key[0]!r} has some of them. "
                        "A stream takes no more: take it out of the schema, or merge levels."
                    )

    def _shown(self, frame: pd.DataFrame) -> Iterator[tuple[tuple[str, Hashable], int]]:
        """Each level, or None for any number, that a column shows, and the first row that does."""
        for name in (*self.schema.measurements, *self.schema.covariates):
            column = frame[name]
            if name in self.schema.categories:
                codes, levels = pd.factorize(column)
                rows, inverse = np.unique(codes, return_index=True)
                yield from (((name, levels[c]), int(r)) for c, r in zip(rows, inverse, strict=True) if c >= 0)
            elif (seen := column.notna().to_numpy()).any():
                yield (name, None), int(seen.argmax())
