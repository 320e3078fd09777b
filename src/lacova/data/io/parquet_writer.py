"""Parquet files that are written part by part, and appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lacova.data.errors import DataError
from lacova.data.io.atomic import replacing
from lacova.data.io.files import check_output, first_line


class Sink:
    """A Parquet file to which tables are appended; the first table sets the columns and their types."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Append a table; refuse one whose columns do not fit."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, table.schema)
        try:
            fitting = table.cast(self._writer.schema)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(f"some rows of the answer do not fit those before: {first_line(error)}.") from None
        self._writer.write_table(fitting)

    def close(self) -> None:
        """Complete the file."""
        if self._writer is not None:
            self._writer.close()


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Sink]:
    """Open a Parquet file for writing part by part; it appears at `path` when the block ends without an error."""
    out = Path(path)
    check_output(out)
    if out.suffix.lower() != ".parquet":
        raise DataError(f"{out} is to hold the answer to a stream, which is written as Parquet; end it in .parquet.")
    try:
        with replacing(out) as temporary, closing(Sink(temporary)) as sink:
            yield sink
    except OSError as error:
        raise DataError(f"{out} cannot be written: {first_line(error)}.") from None
