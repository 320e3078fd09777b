"""Tables of other DataFrame libraries to pandas, and results back. No other module handles other libraries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import narwhals as nw
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from lacova.data.errors import DataError

# pandas types that hold these Arrow types with their gaps; all others convert by pandas' defaults.
NULLABLE = {pa.bool_(): pd.BooleanDtype()} | {
    getattr(pa, name.lower())(): getattr(pd, f"{name}Dtype")()
    for name in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
}
INSTANCE = "lacova instance"  # in the attrs of completed tables: the column of instances, for analyses of them


Frame = TypeVar("Frame")


@dataclass(frozen=True)
class Origin(Generic[Frame]):
    """The table of the caller, so that results can return to its library.

    Attributes:
        native: the caller's table; None for pandas, where results need no conversion.
        frame: the table as pandas. Its index numbers the rows of `native`.
        used: the columns that were converted. The others are placeholders in `frame`, and stay in their library.
    """

    native: nw.DataFrame[Any] | None
    frame: pd.DataFrame
    used: frozenset[str]

    def complete(self, result: pd.DataFrame) -> Frame:
        """Return the caller's rows, in the order of the index of `result`, with gaps filled and columns added."""
        if self.native is None:
            return cast(Frame, result)
        rows = self.native if result.index.equals(self.frame.index) else self.native[result.index.tolist()]
        own, gaps = set(self.native.columns), self.frame.isna().loc[result.index]
        filled = [name for name in result.columns if name in self.used and gaps[name].any()]
        added = [name for name in result.columns if name not in own]
        new = self._convert(result[[*filled, *added]])
        columns = [_fill(rows[name], new[name], gaps[name].to_numpy()) for name in filled]
        completed = rows.with_columns(*columns, *new.select(added).iter_columns()).select(*result.columns)
        return cast(Frame, completed.to_native())

    def table(self, frame: pd.DataFrame) -> Frame:
        """Return a table of results in the caller's library."""
        return cast(Frame, frame if self.native is None else self._convert(frame).to_native())

    def replace(self, columns: pd.DataFrame) -> Frame:
        """Return the caller's table with `columns` in place of its own."""
        if self.native is None:
            return cast(Frame, self.frame.assign(**{str(name): columns[name] for name in columns}))
        return cast(Frame, self.native.with_columns(*self._convert(columns).iter_columns()).to_native())

    def series(self, values: pd.Series[Any]) -> Any:
        """Return a column of results in the caller's library."""
        return values if self.native is None else self._convert(values.to_frame())[str(values.name)].to_native()

    def _convert(self, frame: pd.DataFrame) -> nw.DataFrame[Any]:
        assert self.native is not None
        table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        return nw.from_arrow(table, backend=self.native.implementation)


def to_pandas(data: Frame, columns: Iterable[str] | None = None) -> tuple[pd.DataFrame, Origin[Frame]]:
    """Return a table of any library as pandas, and its origin.

    Args:
        data: a pandas or polars DataFrame, a pyarrow Table, or any other eager table that narwhals supports.
        columns: the columns that are needed, if they exist; None for all.
    """
    if isinstance(data, pd.DataFrame):
        return data, Origin(None, data, frozenset(data.columns))
    native = _eager(data)
    used = set(native.columns if columns is None else columns)
    types = {name: dtype for name, dtype in native.schema.items() if name in used}
    # polars numbers the levels of a Categorical in the order in which the process met them, so they become sorted text.
    texts = [n for n, t in types.items() if t == nw.Categorical and native.implementation.is_polars()]
    casts = {n: nw.Float64 for n, t in types.items() if t == nw.Decimal} | dict.fromkeys(texts, nw.String)
    plain = native.select(*types).with_columns(*(nw.col(name).cast(dtype) for name, dtype in casts.items()))
    frame = plain.to_arrow().to_pandas(types_mapper=NULLABLE.get, ignore_metadata=True)
    frame = frame.astype(dict.fromkeys(texts, "category"))
    frame = frame.reindex(index=pd.RangeIndex(len(native)), columns=native.columns)
    return frame, Origin(native, frame, frozenset(types))


def _eager(data: Any) -> nw.DataFrame[Any]:
    try:
        table = nw.from_native(data, pass_through=True)
        if isinstance(table, nw.DataFrame):
            _ = table.columns
            return table
    except nw.exceptions.DuplicateError as error:
        raise DataError(f"each column needs a name of its own; rename or drop one of each. {error}") from error
    if isinstance(table, nw.LazyFrame):
        raise DataError(f"expected a table, got a lazy {type(data).__name__}; call its collect() first.")
    raise DataError(f"expected a pandas or polars DataFrame or a pyarrow Table, got {type(data).__name__}.")


def _fill(old: nw.Series[Any], new: nw.Series[Any], gaps: npt.NDArray[np.bool_]) -> nw.Series[Any]:
    """Return `old` with its gaps taken from `new`, in the type of `old` if that can hold them."""
    native, filler = old.to_native(), new.to_native()
    arrow = isinstance(native, pa.ChunkedArray)
    if arrow and pa.types.is_dictionary(native.type):
        return _series(_dictionary(filler, native.type), old.name)
    try:
        fitting = _series(filler.cast(native.type if arrow else native.dtype), old.name)
    except Exception:  # libraries share no error class: an Enum without the level, a Decimal with too few digits
        return new
    return old.zip_with(nw.new_series("seen", ~gaps, backend=old.implementation), fitting)


def _series(native: Any, name: str) -> nw.Series[Any]:
    series: nw.Series[Any] = nw.from_native(native, series_only=True)
    return series.alias(name)


def _dictionary(column: pa.ChunkedArray, kind: pa.DictionaryType) -> pa.ChunkedArray:
    """Return categories as the caller's dictionary type: its levels in their order, then the new ones."""
    array = column.combine_chunks()
    codes, levels = array.indices.cast(kind.index_type), array.dictionary.cast(kind.value_type)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(codes, levels, ordered=kind.ordered)])
