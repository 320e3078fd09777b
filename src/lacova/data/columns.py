"""Columns of a DataFrame as numbers, levels and patients: what they must be, and what training rows teach of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.data.errors import DataError, meant
from lacova.data.scaling import Floats, Knots, Scales
from lacova.data.schema import Schema
from lacova.data.schema.infer import COUNTS

Scaling = Literal["standard", "minmax", "none", "normal"]
NORMAL = ("gaussian", "student")  # kinds that scaling="normal" gives normal scores


def check_scaling(scaling: object) -> None:
    if scaling not in get_args(Scaling):
        raise ValueError(f"scaling is {scaling!r}; expected one of {', '.join(get_args(Scaling))}.")


class Moments:
    """Count, mean, variance and ends of the observed entries of some columns, gathered part by part.

    Parts are merged by their own means and variances: sums of squares would lose the digits of columns far from 0.
    """

    def __init__(self, columns: int) -> None:
        self.count, self.mean, self.var = (np.zeros(columns) for _ in range(3))
        self.low, self.high = np.full(columns, np.inf), np.full(columns, -np.inf)

    def add(self, values: Floats) -> None:
        """Take in some rows (n×columns), NaN at gaps."""
        count = (~np.isnan(values)).sum(0)
        seen = count > 0
        if not seen.all():
            values = values[:, seen]
        share = count[seen] / (self.count[seen] + count[seen])
        step = np.nanmean(values, axis=0) - self.mean[seen]
        between = step**2 * share * (1.0 - share)
        self.var[seen] = self.var[seen] * (1.0 - share) + np.nanvar(values, axis=0) * share + between
        self.mean[seen] += step * share
        self.low[seen] = np.minimum(self.low[seen], np.nanmin(values, axis=0))
        self.high[seen] = np.maximum(self.high[seen], np.nanmax(values, axis=0))
        self.count += count

    def scales(self, names: Sequence[str], role: str, scaling: Scaling) -> tuple[Floats, Floats]:
        """Location and scale of each column; refuses empty ones, and warns of constant ones."""
        if (self.count == 0).any():
            empty = [names[i] for i in np.flatnonzero(self.count == 0).tolist()]
            raise _empty(role, some(empty))
        low, high = self.low, self.high
        if (low == high).any():
            constant = [names[i] for i in np.flatnonzero(low == high).tolist()]
            warnings.warn(
                f"{role} column(s) {some(constant)} are constant in training; "
                "kept with scale 1, but they carry no information.",
                UserWarning,
                stacklevel=7,  # whoever called fit
            )
        if scaling == "none":
            return np.zeros(len(names)), np.ones(len(names))
        if scaling == "minmax":
            return low, np.where(low == high, 1.0, high - low)
        spread = np.sqrt(self.var)
        return self.mean, np.where((low == high) | (spread == 0.0), 1.0, spread)


class Levels:
    """The levels of a categorical column, gathered part by part."""

    def __init__(self) -> None:
        self.seen: dict[Any, None] = {}
        self.declared: dict[Any, None] | None = {}

    def add(self, column: pd.Series[Any]) -> None:
        self.seen |= dict.fromkeys(column.dropna().unique().tolist())
        if self.declared is not None and isinstance(column.dtype, pd.CategoricalDtype):
            self.declared |= dict.fromkeys(column.cat.categories.tolist())
        else:
            self.declared = None

    def ordered(self, name: str, kind: str | None = None) -> tuple[Any, ...]:
        """In the order of a categorical column's own, else sorted; `kind` is that of a measurement."""
        if not self.seen:
            raise _empty("covariate" if kind is None else "measurement", repr(name))
        if kind == "bernoulli" and len(self.seen) > 2:
            raise DataError(
                f"bernoulli measurement {name!r} holds {some(list(self.seen))}; expected two levels. "
                "Make its kind categorical, or correct the values."
            )
        if kind == "ordinal" and self.declared is None and any(isinstance(level, str) for level in self.seen):
            raise DataError(
                f"ordinal measurement {name!r} holds text ({some(list(self.seen))}), which has no order of its own; "
                "make the column a pandas Categorical with its categories in order, or numbers."
            )
        if self.declared is not None:
            return tuple(level for level in self.declared if level in self.seen)
        try:
            return tuple(sorted(self.seen))
        except TypeError:
            return tuple(sorted(self.seen, key=str))


class ColumnStatistics:
    """What training rows teach of each column, gathered part by part: moments of numbers, levels of categories."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._numbers = [name for name in schema.measurements if name not in schema.categories]
        self._logs = [name for name in self._numbers if schema.kinds.get(name) == "lognormal"]
        self._y = Moments(len(self._numbers))  # on the scale that is modelled, up to location and scale
        self._own = Moments(len(self._logs))  # of those, in their own units
        self._x = {name: Moments(1) for name, kind in schema.covariates.items() if kind == "continuous"}
        self._levels = {name: Levels() for name in schema.categories}

    def add(self, frame: pd.DataFrame) -> None:
        """Take in some rows, which must keep to the schema."""
        schema = self.schema
        require(frame, schema.columns)
        found = {name: checked_numbers(frame, name, schema) for name in self._numbers}
        if self._logs:
            self._own.add(np.stack([found[name] for name in self._logs], axis=1))
            found |= {name: np.log(found[name]) for name in self._logs}
        if found:
            self._y.add(np.stack(list(found.values()), axis=1))
        for name, moments in self._x.items():
            moments.add(checked_numbers(frame, name, schema)[:, None])
        for name, levels in self._levels.items():
            levels.add(frame[name])

    def measurement_scales(self, scaling: Scaling, sample: pd.DataFrame | None = None) -> Scales:
        """How measurements are scaled; normal scores are learnt from a sample of the rows, or all of them."""
        plain = "standard" if scaling == "normal" else scaling
        shift, scale = self._y.scales(self._numbers, "measurement", plain)
        names, kinds = self.schema.measurements, self.schema.kinds
        numbers, deviation = [names.index(name) for name in self._numbers], np.sqrt(self._y.var)
        log = np.array([name in self._logs for name in names], dtype=bool)
        found = Scales(np.zeros(len(names)), np.ones(len(names)), log, np.ones(len(names)))
        for d, *own in zip(numbers, shift, scale, deviation, strict=True):
            if kinds.get(names[d]) in COUNTS:
                found.spread[d] = own[2] or 1.0
            else:
                found.shift[d], found.scale[d], found.spread[d] = own[0], own[1], own[1]
        for name, deviation in zip(self._logs, np.sqrt(self._own.var), strict=True):
            found.spread[names.index(name)] = deviation or 1.0
        if scaling != "normal":
            return found
        if sample is None:
            raise ValueError('scaling="normal" needs rows to learn quantiles from.')
        asked = [d for d, name in enumerate(names) if kinds.get(name, "gaussian") in NORMAL]
        knots = {d: Knots.learn(measured(sample, names[d], self.schema)) for d in asked}
        return replace(found, knots={d: each for d, each in knots.items() if each is not None})

    def constant(self) -> npt.NDArray[np.bool_]:
        """Which measurements take one value only (D,)."""
        same = dict(zip(self._numbers, self._y.low == self._y.high, strict=True))
        same |= {name: len(levels.seen) < 2 for name, levels in self._levels.items()}
        return np.array([same[name] for name in self.schema.measurements], dtype=bool)

    def covariate_scales(self) -> tuple[Floats, Floats]:
        """0 and 1 for categories."""
        shift, scale = np.zeros(len(self.schema.covariates)), np.ones(len(self.schema.covariates))
        for q, name in enumerate(self.schema.covariates):
            if name in self._x:
                shift[q : q + 1], scale[q : q + 1] = self._x[name].scales([name], "covariate", "standard")
        return shift, scale

    def levels(self) -> dict[str, tuple[Any, ...]]:
        return {name: levels.ordered(name, self.schema.kinds.get(name)) for name, levels in self._levels.items()}


def _empty(role: str, columns: str) -> DataError:
    return DataError(f"{role} column(s) {columns} have no observed value in training; take them out of the schema.")


def require_names(present: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse a table that lacks one of the columns, or has it twice."""
    absent = [c for c in columns if c not in present]
    if absent:
        raise DataError(
            f"column(s) {some(absent)} are in the schema but not in the table, whose columns are {some(present)}."
            f"{meant(absent, [c for c in present if c not in columns])} "
            "Add them (empty where unknown), or take them out of the schema."
        )
    twice = [c for c in columns if present.count(c) > 1]
    if twice:
        raise DataError(f"column name(s) {some(twice)} appear more than once in the table; rename or drop one of each.")


def require(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Refuse what is no table, lacks a column or has it twice, or has no rows."""
    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"expected a pandas DataFrame, got {type(frame).__name__}.")
    require_names(list(frame.columns), columns)
    if len(frame) == 0:
        raise DataError("the table has no rows.")
    for name in columns:
        values = frame[name]
        if values.dtype == object and not all(isinstance(value, Hashable) for value in values):
            raise DataError(f"column {name!r} holds nested values; expected numbers, text or categories.")


def numbers(frame: pd.DataFrame, name: str) -> Floats:
    column = frame[name]
    if column.dtype.kind in "Mmc":
        raise DataError(
            f"column {name!r} must be numeric, but holds {column.dtype} values. "
            "Turn dates into numbers first, such as days since the start of the study."
        )
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "f":  # there may be a thousand of them
        values = column.to_numpy(dtype=float, copy=True)
    else:
        numeric = pd.to_numeric(column, errors="coerce")
        bad = numeric.isna() & column.notna()
        if bad.any():
            raise DataError(
                f"column {name!r} must be numeric, but holds {some(list(dict.fromkeys(column[bad].tolist())))}. "
                "Turn text into numbers or gaps first, or declare the column categorical."
            )
        values = numeric.to_numpy(dtype=float, na_value=np.nan)
    if np.isinf(values).any():
        raise DataError(
            f"column {name!r} holds {int(np.isinf(values).sum())} infinite value(s); "
            "replace them by gaps (NaN) or finite values."
        )
    return np.asarray(values)


def measured(frame: pd.DataFrame, name: str, schema: Schema) -> Floats:
    """A measurement as numbers that its kind allows; beyond a limit of detection, the limit."""
    values, kind = numbers(frame, name), schema.kinds.get(name, "gaussian")
    if kind == "lognormal":
        strange, wanted = values <= 0.0, "positive numbers"
    elif kind in COUNTS:
        strange, wanted = (values < 0.0) | (values % 1.0 > 0.0), "whole numbers from 0 on"
    else:
        lower, upper = schema.limits.get(name, (None, None))
        return values if lower is upper is None else np.clip(values, lower, upper)
    if strange.any():
        raise DataError(
            f"column {name!r} holds {some(list(dict.fromkeys(values[strange].tolist())))}, but its kind is {kind}, for "
            f"{wanted}; correct the values, mark them as missing, or give the column another kind."
        )
    return values


def checked_numbers(frame: pd.DataFrame, name: str, schema: Schema) -> Floats:
    """Training values, which must keep to what the schema says of them."""
    values = measured(frame, name, schema)
    strange = values[~np.isnan(values) & (values != keep(values, name, schema))]
    if len(strange):
        lower, upper = schema.bounds.get(name, (None, None))
        whole = " and whole numbers" if name in schema.integers else ""
        raise DataError(
            f"column {name!r} holds {some(list(dict.fromkeys(strange.tolist())))}, but the schema says bounds "
            f"({lower}, {upper}){whole}; correct the values, or the schema."
        )
    return values


def patients(frame: pd.DataFrame, instance: str | None) -> tuple[npt.NDArray[np.int64] | None, tuple[Any, ...]]:
    """Code of each row's instance, numbered by first appearance, and the labels behind the codes."""
    if instance is None:
        return None, ()
    require_labels(frame[instance])
    codes, labels = pd.factorize(frame[instance], sort=False)
    return codes.astype(np.int64), tuple(labels.tolist())


def require_labels(instance: pd.Series[Any]) -> None:
    """Refuse rows that do not say whose they are."""
    gaps = int(instance.isna().sum())
    if gaps:
        raise DataError(
            f"instance column {instance.name!r} is missing in {gaps} row(s); every row must name its instance. "
            "Drop those rows, or give each a new label."
        )


def spread_static(column: Floats, patient: npt.NDArray[np.int64], labels: tuple[Any, ...], name: str) -> Floats:
    """A visit-constant value seen at one visit is known at all of them; two different ones contradict."""
    groups = pd.Series(column).groupby(patient)
    conflict = np.flatnonzero(groups.nunique().to_numpy() > 1)
    if len(conflict):
        raise DataError(
            f"static column {name!r} takes more than one value within instance(s) "
            f"{some([labels[i] for i in conflict])}; "
            "correct the values, or take the column out of `static`."
        )
    return np.asarray(groups.transform("first").to_numpy(dtype=float))


def keep(values: Floats, name: str, schema: Schema) -> Floats:
    """Values rounded if the column holds whole numbers, and moved to the nearest bound if beyond it."""
    lower, upper = schema.bounds.get(name, (None, None))
    if name in schema.integers:
        values = np.rint(values)
        lower, upper = None if lower is None else math.ceil(lower), None if upper is None else math.floor(upper)
    if lower is not None:
        values = np.maximum(values, lower)
    return values if upper is None else np.minimum(values, upper)


def reads_like(levels: Iterable[Any], text: str) -> Any:
    """The level that somebody typed, as it reads or as a number; the text itself if there is none."""
    try:
        number: Any = float(text)
    except ValueError:
        number = text
    return next((level for level in levels if str(level) == text or level == number), text)


def some(items: Sequence[Any], most: int = 5) -> str:
    shown = [repr(item) for item in list(items)[:most]]
    rest = len(items) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")
