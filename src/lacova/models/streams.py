"""Answers to tables that do not fit memory: part by part of whole patients, into a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from lacova.data.io.parquet import Source, is_stream, open_source
from lacova.data.io.parquet_writer import writing

ROWS_AT_A_TIME = 10_000


def opened(data: Any, instance: str | None, columns: Sequence[str]) -> Any:
    """Return what is behind a path or a dataset: a source to read in parts, or a table; a table is itself."""
    return open_source(data, instance, columns) if is_stream(data) else data


def parts(data: Any, seed: int, columns: Sequence[str] | None = None) -> Iterator[tuple[Any, int]]:
    """Yield the parts of a source, or a table as it is, with a seed for each; the first has the seed itself."""
    if not isinstance(data, Source):
        yield data, seed
        return
    for k, part in enumerate(data.walk(columns, ROWS_AT_A_TIME)):
        yield part.table, seed + 1_000_003 * k


def write_answers(
    data: Any, out: str | os.PathLike[str] | None, seed: int, answer: Callable[..., pa.Table], *,
    same_seed: bool = False, beside: bool = True,
) -> Path:  # fmt: skip
    """Answer part by part, each with a seed of its own unless `same_seed`, into a Parquet file.

    Answers stand beside the columns of the data, unless they contain these.
    """
    if out is None:
        raise ValueError("the answer to a path or a dataset goes to a file: give its name, out='answer.parquet'.")
    if isinstance(data, pd.DataFrame):  # of a CSV file
        data = pa.Table.from_pandas(data, preserve_index=False)
    with writing(out) as sink:
        for part, own_seed in parts(data, seed):
            table = answer(part, seed=seed if same_seed else own_seed)
            sink.write(_beside(table, part) if beside else table)
    return Path(out)


def _beside(answer: pa.Table, x: pa.Table) -> pa.Table:
    """Put answers behind the columns of x that they do not replace, draw by draw; the draw's number comes first."""
    numbered = answer.column_names[:1] == ["draw"]
    kept = [name for name in x.column_names if name not in answer.column_names]
    both = pa.concat_tables([x.select(kept)] * (len(answer) // len(x)))
    for name in answer.column_names[numbered:]:
        both = both.append_column(name, answer[name])
    return both.add_column(0, "draw", answer["draw"]) if numbered else both
