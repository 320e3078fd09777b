"""Proposes a role for each column of a table, and says why. The rules stand in `Schema.infer`."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import Any, Literal, NamedTuple

import pandas as pd

from lacova.data.errors import DataError, SchemaError, meant

Kind = Literal["continuous", "categorical"]
Measure = Literal[
    "gaussian", "lognormal", "student", "censored", "bernoulli", "categorical", "ordinal", "poisson",
    "negative_binomial",
]  # fmt: skip
LEVELS = ("bernoulli", "categorical", "ordinal")  # kinds of measurements that have levels rather than numbers
COUNTS = ("poisson", "negative_binomial")

FEW = 10  # most distinct whole numbers that are taken for codes of a category
WIDE = 20  # codes lie closer together than this: 0, 28, 56 are days
COUNT = 5  # distinct values from 0 on that are taken for a count
MANY = 50  # most levels of a category
FIRM = 50  # fewest observed values from which a measurement's law is read off
MOST = 50  # greatest value of what is clearly a count, of which so many are 0
ZEROS = 0.05
RARE = 5  # fewest rows of the rarer of 0 and 1 that make two levels: a part of the rows may lack a rarer one
SKEWED = 2.0  # skewness of what is clearly log-normal, if its logarithm has less than half of it

DATE = re.compile(
    r"\s*(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{2,4}|\d{1,2}[- ]?[A-Za-z]{3}[- ]?\d{2,4})([T ]\d.*)?"
)
IDENTIFIER = re.compile(r"(?i:(.*[\W_])?(id|uid|uuid|guid|identifier))|.*[a-z0-9]I[dD]|.*(SUBJ|SITE|STUDY)ID")


class Note(NamedTuple):
    """What was seen in a column of the table, and why it was given its role."""

    column: str
    missing: float
    examples: str
    reason: str


@dataclass(frozen=True)
class Wishes:
    """What the caller says of the roles."""

    instance: str | None
    time: str | None
    measurements: Mapping[str, Measure] | Iterable[str] | None
    covariates: Mapping[str, Kind] | Iterable[str] | None
    exclude: Iterable[str]


@dataclass
class Proposal:
    """Arguments for a schema, and a note on every column of the table."""

    measurements: list[str] = field(default_factory=list)
    covariates: dict[str, Kind] = field(default_factory=dict)
    static: list[str] = field(default_factory=list)
    integers: list[str] = field(default_factory=list)
    kinds: dict[str, Measure] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)


class Column:
    """A column as the rules see it.

    Attributes:
        seen: its observed values, of the type they share.
        units: the same, but one per instance where the column is static: what repetition says nothing about.
        static: whether no instance has two values, and some instance has been seen twice.
    """

    def __init__(self, values: pd.Series[Any], instance: pd.Series[Any] | None) -> None:
        self.seen = values.dropna().infer_objects()
        self.missing = float(values.isna().mean()) if len(values) else 0.0
        self.nested = self.seen.dtype == object and not all(isinstance(value, Hashable) for value in self.seen)
        self.units, self.static = self.seen, False
        if instance is not None and not self.nested:
            groups = self.seen.groupby(instance.loc[self.seen.index], observed=True)
            self.static = bool((groups.nunique() <= 1).all() and (groups.size() > 1).any())
            self.units = groups.first() if self.static else self.seen

    @cached_property
    def type(self) -> Literal["number", "truth", "category", "text", "other"]:
        dtype = self.seen.dtype
        if isinstance(dtype, pd.CategoricalDtype):
            return "category"
        if dtype.kind in "iuf":
            return "number"
        if dtype.kind == "b":
            return "truth"
        return "text" if any(isinstance(value, str) for value in self.seen) else "other"

    @cached_property
    def whole(self) -> bool:
        return self.type == "number" and bool((self.seen.astype(float) % 1 == 0).all())

    @cached_property
    def integer(self) -> bool:
        """Whether its type says whole numbers; a gap turns those that were read from a file into floats."""
        return self.whole and (self.seen.dtype.kind in "iu" or self.missing > 0)

    def examples(self, most: int = 3) -> str:
        if self.nested:
            return ""
        some = self.seen.drop_duplicates().head(most).tolist()
        shown = (f"{value:g}" if isinstance(value, float) else " ".join(repr(value).split()) for value in some)
        return ", ".join(text if len(text) <= 24 else f"{text[:23]}…" for text in shown)

    def kind(self) -> tuple[Kind, str]:
        """The kind of covariate it would make, and why."""
        levels = self.seen.nunique()
        if self.type == "truth":
            return "categorical", "true or false"
        if self.type == "category":
            return "categorical", f"categories, {levels} in use"
        if self.type != "number":
            return "categorical", f"{'text' if self.type == 'text' else 'values'} with {levels} levels"
        few = levels <= max(2, min(FEW, len(self.units) // 3))
        if self.whole and few:
            low, high = float(self.seen.min()), float(self.seen.max())
            if high - low < WIDE and not (low == 0 and levels >= COUNT):
                return "categorical", f"{levels} distinct whole numbers"
        if few and not self.whole:
            return "continuous", f"{levels} distinct numbers; if they are codes, make it categorical"
        return "continuous", "whole numbers" if self.integer else "numbers"

    def measure(self) -> tuple[Measure, str]:
        """The kind of measurement it would make, and why where it is not Gaussian."""
        levels, dtype = self.seen.nunique(), self.seen.dtype
        if self.type == "truth":
            return "bernoulli", "true or false"
        if self.type != "number":
            if levels > 2 and isinstance(dtype, pd.CategoricalDtype) and dtype.ordered:
                return "ordinal", f"ordered categories, {levels} in use"
            return ("categorical", f"{levels} levels") if levels > 2 else ("bernoulli", "two levels")
        values = self.seen.astype(float)
        if len(values) < FIRM:
            return "gaussian", ""
        low, mean, var = float(values.min()), float(values.mean()), float(values.var())
        if self.whole and low == 0.0 and float(values.max()) == 1.0:
            rarer = min(int(values.sum()), int((values == 0).sum()))
            if rarer < RARE:
                return "gaussian", f"only 0 and 1, one of them in {rarer} row(s), too few for a level"
            return "bernoulli", "only 0 and 1"
        clearly = levels >= COUNT and float(values.max()) <= MOST and float((values == 0).mean()) >= ZEROS
        if self.whole and low == 0.0 and clearly:
            kind: Measure = "poisson" if var < 1.5 * mean else "negative_binomial"
            return kind, f"counts from 0; their variance is {var / mean:.2g} times their mean"
        if low > 0.0 and levels > FEW:
            plain, log = _skewness(values), _skewness(values.map(math.log))
            if plain > SKEWED and abs(log) < plain / 2:
                return "lognormal", f"positive and skewed ({plain:.1f}; {log:.1f} of its logarithm)"
        return "gaussian", ""

    def unusable(self, name: str) -> str | None:
        """Why the column should be left out, if it should."""
        if not len(self.seen):
            return "empty"
        if self.nested or self.type == "other":
            first = self.seen.iloc[0]
            such = ", such as days since the start of the study" if isinstance(first, date) else ""
            return f"holds {type(first).__name__} values; turn them into numbers{such}"
        levels = self.seen.nunique()
        if levels == 1:
            return "always the same"
        if levels > FEW and (self.type == "text" or self.whole) and IDENTIFIER.fullmatch(str(name)):
            return "named like an identifier; if it names the patient, make it the instance"
        if self.whole and len(self.seen) == levels == float(self.seen.max()) - float(self.seen.min()) + 1 > FEW:
            return "numbers the rows one by one; if it is the time, make it the time column"
        if self.type == "text":
            return self._unusable_text(levels)
        return f"{levels} categories are more than {MANY}" if self.type == "category" and levels > MANY else None

    def _unusable_text(self, levels: int) -> str | None:
        if self.seen.map(lambda text: DATE.fullmatch(str(text)) is not None).mean() > 0.9:
            return "dates as text; turn them into numbers, such as days since the start of the study"
        if levels > FEW and pd.to_numeric(self.seen, errors="coerce").notna().mean() > 0.9:
            return "numbers as text; turn them into numbers, and the rest into gaps"
        if levels > MANY:
            return f"text with {levels} levels, more than {MANY}"
        distinct = self.units.nunique()
        return "text that is hardly ever repeated" if distinct > 2 and 2 * distinct > len(self.units) else None


def _skewness(values: pd.Series[float]) -> float:
    away = values - values.mean()
    return float((away**3).mean() / (away**2).mean() ** 1.5)


def propose(frame: pd.DataFrame, wishes: Wishes) -> Proposal:
    """Roles for the columns of a table."""
    wishes = _checked(frame, wishes)
    out = Proposal()
    instance = None if wishes.instance is None else frame[wishes.instance].reset_index(drop=True)
    for name in frame.columns:
        column = Column(frame[name].reset_index(drop=True), instance if name != wishes.instance else None)
        reason = _place(out, name, column, wishes)
        out.notes.append(Note(name, column.missing, column.examples(), reason))
        number = name in out.measurements and out.kinds.get(name) not in (*LEVELS, *COUNTS)
        if column.integer and (number or out.covariates.get(name) == "continuous"):
            out.integers.append(name)
    # What was named keeps the order in which it was named.
    out.measurements.sort(key=lambda name: _position(name, wishes.measurements))
    out.covariates = dict(sorted(out.covariates.items(), key=lambda item: _position(item[0], wishes.covariates)))
    if not out.measurements:
        raise SchemaError(
            "found no column to model: no numbers that change from row to row are left. "
            "Name them: Schema.infer(table, measurements=[...])."
        )
    return out


def _position(name: str, named: Iterable[str] | None) -> int:
    order = list(named or ())
    return order.index(name) if name in order else len(order)


def _place(out: Proposal, name: str, column: Column, wishes: Wishes) -> str:
    """Give the column its role, or none; returns the reason."""
    if name == wishes.instance:
        return "named as the instance"
    if name in wishes.exclude:
        return "excluded"
    if wishes.measurements is not None and name in wishes.measurements:
        return _measurement(out, name, column, wishes, "named as a measurement")
    if name == wishes.time:
        kinds = wishes.covariates if isinstance(wishes.covariates, Mapping) else {}
        out.covariates[_number(name, column, "time")] = kinds.get(name, "continuous")
        return "named as the time"
    named = wishes.covariates is not None and name in wishes.covariates
    unusable = column.unusable(name)
    if unusable and named and column.nested:
        raise DataError(f"covariate {name!r} {unusable}.")
    if unusable and not named:
        return unusable
    kind, reason = column.kind()
    if named and isinstance(wishes.covariates, Mapping):
        kind, reason = wishes.covariates[name], "kind as told"
    if wishes.measurements is None and not named and kind == "continuous" and not column.static:
        return _measurement(out, name, column, wishes, reason)
    if wishes.covariates is not None and not named:
        return "not among the covariates named"
    out.covariates[name] = kind
    if column.static:
        out.static.append(name)
        return f"{reason}; constant within each {wishes.instance!r}"
    return reason


def _measurement(out: Proposal, name: str, column: Column, wishes: Wishes, reason: str) -> str:
    """Take the column as a measurement of the kind told, or of the one that suits it."""
    unusable = column.unusable(name) if column.type not in ("number", "truth") else None
    if unusable and len(column.seen):
        raise DataError(f"column {name!r} is named as a measurement, but cannot be one: {unusable}.")
    kind, why = column.measure() if len(column.seen) else ("gaussian", "")
    if isinstance(wishes.measurements, Mapping):
        kind, why = wishes.measurements[name], "kind as told"
    out.measurements.append(name if kind in LEVELS else _number(name, column, "measurement"))
    if kind != "gaussian":
        out.kinds[name] = kind
    return f"{reason}; {why}" if why else reason


def _number(name: str, column: Column, role: str) -> str:
    if column.type not in ("number", "truth") and len(column.seen):
        raise DataError(
            f"column {name!r} is named as a {role}, which must be numeric, but holds {column.examples()}. "
            "Turn text into numbers or gaps, and dates into days since the start of the study."
        )
    return name


def _checked(frame: pd.DataFrame, wishes: Wishes) -> Wishes:
    lists: dict[str, Any] = {}
    for word in ("measurements", "covariates", "exclude"):
        value = getattr(wishes, word)
        if isinstance(value, str):
            raise SchemaError(f"{word} must be a list of column names, got the string {value!r}.")
        lists[word] = value if value is None or isinstance(value, Mapping) else list(value)
    singles = [name for name in (wishes.instance, wishes.time) if name is not None]
    roles = [*singles, *(lists["measurements"] or ()), *(lists["covariates"] or ())]
    absent = [name for name in dict.fromkeys([*roles, *lists["exclude"]]) if name not in frame.columns]
    if absent:
        raise DataError(
            f"the table has no column(s) {', '.join(map(repr, absent))}; "
            f"its columns are {', '.join(map(repr, frame.columns))}." + meant(absent, frame.columns)
        )
    twice = frame.columns[frame.columns.duplicated()].unique()
    if len(twice):
        raise DataError(
            f"column name(s) {', '.join(map(repr, twice))} appear more than once in the table; "
            "rename or drop one of each."
        )
    once = [*roles, *lists["exclude"]]
    if wishes.time is not None and wishes.time in (lists["covariates"] or ()):
        once.remove(wishes.time)
    both = [name for name in dict.fromkeys(once) if once.count(name) > 1]
    if both:
        raise SchemaError(f"each column has one role or is excluded, but {', '.join(map(repr, both))} named twice.")
    return Wishes(wishes.instance, wishes.time, **lists)
