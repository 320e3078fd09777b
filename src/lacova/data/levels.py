"""Levels of categorical columns: those that training rows show or declare, and entries of other tables beyond them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.data.errors import DataError, UnseenLevelWarning, listed

Unseen = Literal["warn", "missing", "error"]  # entries of unseen levels: missing with a warning, without, or refused
Codes = npt.NDArray[np.float64]


def check_unseen(unseen: object) -> None:
    """Refuse an unknown treatment of unseen levels."""
    if unseen not in get_args(Unseen):
        raise ValueError(f"unseen is {unseen!r}; expected one of {', '.join(get_args(Unseen))}.")


class ColumnLevels:
    """The levels of a categorical column, gathered part by part.

    Args:
        declared: the levels that the schema declares, if it does.
    """

    def __init__(self, declared: tuple[Any, ...] | None = None) -> None:
        self.declared = declared
        self.seen: dict[Any, None] = {}
        self._held_out: dict[Any, None] = {}
        self._categories: dict[Any, None] | None = {}  # of pandas, if all parts have them

    def add(self, column: pd.Series[Any], held_out: bool = False) -> None:
        """Add the levels of further rows; of rows that are held out from training, they are known but not seen."""
        levels = self._held_out if held_out else self.seen
        levels |= dict.fromkeys(column.dropna().unique().tolist())
        if self._categories is not None and isinstance(column.dtype, pd.CategoricalDtype):
            self._categories |= dict.fromkeys(column.cat.categories.tolist())
        else:
            self._categories = None

    @property
    def known(self) -> tuple[Any, ...]:
        """Whatever is declared, else what occurs, in any order."""
        return self.declared or tuple(self._categories or self.seen | self._held_out)

    def ordered(self, name: str, kind: str | None = None) -> tuple[Any, ...]:
        """Return the levels: those of the schema, else of a pandas Categorical, both in order; else those seen, sorted.

        Args:
            name: the column, for error messages.
            kind: the kind of a measurement; None for a covariate.
        """
        if not self.seen:
            role = "covariate" if kind is None else "measurement"
            raise DataError(
                f"{role} column(s) {name!r} have no observed value in training; take them out of the schema."
            )
        known = self.seen | self._held_out
        if self.declared is not None:
            _require_declared(name, known, self.declared)
            return self.declared
        if kind == "bernoulli" and len(known) > 2:
            raise DataError(
                f"bernoulli measurement {name!r} holds {listed(list(known))}; expected two levels. "
                "Make its kind categorical, or correct the values."
            )
        if kind == "ordinal" and self._categories is None and any(isinstance(level, str) for level in known):
            raise DataError(
                f"ordinal measurement {name!r} holds text ({listed(list(known))}), which has no order of its own; "
                "give its levels in order, levels= in the schema, make the column a pandas Categorical with its "
                "categories in order, or numbers."
            )
        if self._categories is not None:
            if kind == "bernoulli" and len(self._categories) > 2:
                return tuple(level for level in self._categories if level in known)
            return tuple(self._categories)
        try:
            return tuple(sorted(known))
        except TypeError:
            return tuple(sorted(known, key=str))


def _require_declared(name: str, known: Mapping[Any, None], declared: tuple[Any, ...]) -> None:
    strange = [level for level in known if level not in declared]
    if not strange:
        return
    texts = {str(level) for level in declared}
    same = ", which differ in type," if any(str(level) in texts for level in strange) else ""
    raise DataError(
        f"column {name!r} holds {listed(strange)}, but the schema declares the levels {listed(declared, 10)}{same}; "
        "add to its levels, correct the values, or mark them as missing."
    )


def level_codes(column: pd.Series[Any], levels: Sequence[Any]) -> Codes:
    """Return the code of each entry's level, NaN at gaps; levels that are not listed have codes from their number on.

    So two entries have the same code if and only if they hold the same level.
    """
    gaps = column.isna().to_numpy()
    codes = pd.Index(list(levels), dtype=object).get_indexer(pd.Index(column.astype(object))).astype(float)
    unseen = (codes < 0) & ~gaps
    if unseen.any():
        codes[unseen] = len(levels) + pd.factorize(column[unseen])[0]
    codes[gaps] = np.nan
    return np.asarray(codes)


class UnseenLevels:
    """Entries of a table, or of several, whose levels training does not know: a count per column and level."""

    def __init__(self) -> None:
        self.counts: dict[Any, dict[Any, int]] = {}
        self.known: dict[Any, Sequence[Any]] = {}

    def add(self, column: pd.Series[Any], codes: Codes, levels: Sequence[Any]) -> None:
        """Count the entries of a column with codes, from `level_codes`, beyond those of the levels."""
        unseen = codes >= len(levels)  # not where it is NaN
        if unseen.any():
            self._count(column.name, column[unseen].astype(object).value_counts(sort=False).to_dict(), levels)

    def _count(self, name: Any, counts: Mapping[Any, int], levels: Sequence[Any]) -> None:
        own = self.counts.setdefault(name, {})
        for level, count in counts.items():
            own[level] = own.get(level, 0) + int(count)
        self.known[name] = levels

    def handle(self, unseen: Unseen) -> None:
        """Refuse the entries, or warn of them, as `unseen` says."""
        if not self.counts or unseen == "missing":
            return
        if unseen == "error":
            name, counts = next(iter(self.counts.items()))
            raise DataError(
                f"column {name!r} holds {listed(list(counts))}, never seen in training; known levels are "
                f'{listed(self.known[name])}. Mark such entries as missing, let unseen="missing" treat them so, or '
                "fit again with rows that contain them."
            )
        total = _total.get()
        if total is None:
            _warn(self)
            return
        for name, counts in self.counts.items():
            total._count(name, counts, self.known[name])

    def sentence(self) -> str:
        """Return how many entries there are, of which columns, with some of their levels."""
        each = {name: sum(counts.values()) for name, counts in self.counts.items()}
        parts = [f"{each[name]} of {name!r} ({listed(list(counts), 3)})" for name, counts in self.counts.items()]
        shown = ", ".join(parts[:5]) + (f" and more of {len(parts) - 5} other columns" if len(parts) > 5 else "")
        entries = "1 entry holds a level" if sum(each.values()) == 1 else f"{sum(each.values())} entries hold levels"
        return (
            f"{entries} never seen in training, treated as missing: {shown}. In an imputed table they stay as they "
            'are. unseen="error", or --unseen error, refuses such a table; "missing" gives no warning.'
        )


def without_unseen(frame: pd.DataFrame, known: Mapping[str, Sequence[Any]], unseen: Unseen) -> pd.DataFrame:
    """Return the rows with gaps in the place of levels that are not known, or refuse them, as `unseen` says."""
    beyond, replaced = UnseenLevels(), {}
    for name in (name for name in known if name in frame):
        codes = level_codes(frame[name], known[name])
        beyond.add(frame[name], codes, known[name])
        if (codes >= len(known[name])).any():
            replaced[name] = frame[name].where(codes < len(known[name]))
    beyond.handle(unseen)
    return frame.assign(**replaced) if replaced else frame


_total: ContextVar[UnseenLevels | None] = ContextVar("total", default=None)


@contextmanager
def one_warning() -> Iterator[None]:
    """Warn once, at the end, of the unseen levels of all tables within, such as the parts of a stream."""
    total = UnseenLevels()
    token = _total.set(total)
    try:
        yield
    finally:
        _total.reset(token)
    total.handle("warn")


def _warn(unseen: UnseenLevels) -> None:
    """Warn at the line outside this package that asked; methods of a model are wrapped by contextlib and by torch."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_inside(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(unseen.sentence(), UnseenLevelWarning, stacklevel=level)


def _is_inside(module: str) -> bool:
    return module.split(".")[0] in ("lacova", "contextlib", "torch")
