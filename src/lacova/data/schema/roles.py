"""Which column plays which part. Knows names and roles; `infer` looks at data, `toml` at files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from os import PathLike
from typing import Any, ClassVar, NoReturn, TypeVar, get_args

from lacova.data.errors import SchemaError
from lacova.data.io.dataframes import to_pandas
from lacova.data.schema import toml
from lacova.data.schema.infer import LEVELS, Kind, Measure, Note, Wishes, propose
from lacova.data.schema.show import share, show

Bounds = tuple[float | None, float | None]
K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that cannot change, and so can be hashed."""

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("a schema cannot change; make another with dataclasses.replace(schema, ...).")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


@dataclass(frozen=True, repr=False)
class Schema:
    """Roles of the columns of a table. `print(schema)` shows them.

    Args:
        measurements: the columns Y that are modelled, gaps allowed: names of numeric columns, or a kind for each,
            `{"alt": "lognormal", "event": "bernoulli"}`; see docs/observation.md. Names without kinds are "gaussian".
        covariates: the columns X that Y is conditioned on, each `"continuous"` or `"categorical"`; gaps allowed.
        instance: the column that names the unit with repeated rows (a patient); no gaps allowed.
        time: the time column. It is a continuous covariate, whether or not `covariates` repeats it.
        static: covariates that are constant within an instance (sex, arm, age at entry): one unknown per instance.
        bounds: least and greatest value of measurements or continuous covariates, None for no limit:
            `{"alt": (0, None)}`. Imputed, predicted and drawn values and the ends of intervals are kept within them.
        integers: measurements or continuous covariates that are whole numbers; values as above are rounded.
        kinds: the kinds of measurements that are not Gaussian, where `measurements` does not say them.
        limits: of detection, lower and upper, for every "censored" measurement: `{"crp": (0.5, None)}`. Of values at
            or beyond them it is known only that they lie there.
        units: of measurements or continuous covariates, for plots and reports: `{"bili": "mg/dL", "day": "days"}`.

    Examples:
        >>> schema = Schema(["alt", "ast"], {"age": "continuous", "sex": "categorical"},
        ...                 instance="id", time="day", static=["age", "sex"], bounds={"alt": (0, None)})
        >>> schema.covariates
        {'age': 'continuous', 'sex': 'categorical', 'day': 'continuous'}
        >>> print(schema)
        column  role         kind         static  bounds  integer
        id      instance
        age     covariate    continuous   yes
        sex     covariate    categorical  yes
        day     time         continuous
        alt     measurement  gaussian             ≥ 0
        ast     measurement  gaussian
    """

    measurements: tuple[str, ...]
    covariates: Mapping[str, Kind]
    instance: str | None = None
    time: str | None = None
    static: tuple[str, ...] = ()
    bounds: Mapping[str, Bounds] = FrozenDict()
    integers: tuple[str, ...] = ()
    kinds: Mapping[str, Measure] = FrozenDict()
    limits: Mapping[str, Bounds] = FrozenDict()
    units: Mapping[str, str] = FrozenDict()

    # What `infer` saw in each column. For display only: it says nothing about the roles.
    notes: ClassVar[tuple[Note, ...]] = ()

    def __init__(
        self,
        measurements: Mapping[str, Measure] | Iterable[str],
        covariates: Mapping[str, Kind],
        instance: str | None = None,
        time: str | None = None,
        static: Iterable[str] = (),
        bounds: Mapping[str, Bounds] | None = None,
        integers: Iterable[str] = (),
        kinds: Mapping[str, Measure] | None = None,
        limits: Mapping[str, Bounds] | None = None,
        units: Mapping[str, str] | None = None,
    ) -> None:
        for word, value in (("measurements", measurements), ("static", static), ("integers", integers)):
            if isinstance(value, str):
                raise SchemaError(f"{word} must be a list of column names, got the string {value!r}.")
        if not isinstance(covariates, Mapping):
            raise SchemaError(
                f"covariates must map each column to 'continuous' or 'categorical', got {covariates!r}; "
                "write {'age': 'continuous', ...}."
            )
        for word, pairs in (("bounds", bounds), ("limits", limits)):
            if pairs is not None and not isinstance(pairs, Mapping):
                raise SchemaError(
                    f"{word} must map columns to (lower, upper), got {pairs!r}; write {{'age': (0, 120)}}."
                )
        if kinds is not None and not isinstance(kinds, Mapping):
            raise SchemaError(f"kinds must map measurements to kinds, got {kinds!r}; write {{'alt': 'lognormal'}}.")
        if units is not None and not isinstance(units, Mapping):
            raise SchemaError(f"units must map columns to text, got {units!r}; write {{'bili': 'mg/dL'}}.")
        roles = dict(covariates)
        if time is not None and roles.setdefault(time, "continuous") != "continuous":
            raise SchemaError(f"the time column {time!r} must be a continuous covariate, got {roles[time]!r}.")
        told = {**(kinds or {}), **(measurements if isinstance(measurements, Mapping) else {})}
        set_field = object.__setattr__
        set_field(self, "measurements", tuple(measurements))
        set_field(self, "covariates", FrozenDict(roles))
        set_field(self, "instance", instance)
        set_field(self, "time", time)
        set_field(self, "static", self._ordered(static))
        set_field(self, "integers", self._ordered(integers))
        set_field(self, "bounds", _pairs("bounds", bounds))
        set_field(self, "limits", _pairs("limits", limits))
        set_field(self, "units", FrozenDict({name: (units or {})[name] for name in self._ordered(units or {})}))
        ordered = self._ordered(told)
        set_field(self, "kinds", FrozenDict({name: told[name] for name in ordered if told[name] != "gaussian"}))
        self._check()
        self._check_kinds()
        self._check_numbers()

    def _ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Names in the order of the columns, strangers last."""
        given = dict.fromkeys(names)
        return (*(name for name in self.columns if name in given), *(n for n in given if n not in self.columns))

    def _check(self) -> None:
        if not self.measurements:
            raise SchemaError("measurements is empty: name at least one column to model.")
        for name, kind in self.covariates.items():
            if kind not in get_args(Kind):
                raise SchemaError(f"covariate {name!r} has kind {kind!r}; expected one of {', '.join(get_args(Kind))}.")
        roles = [*self.measurements, *self.covariates, *([self.instance] if self.instance is not None else [])]
        repeated = sorted({str(name) for name in roles if roles.count(name) > 1})
        if repeated:
            raise SchemaError(f"each column has one role, but {', '.join(repeated)} appear(s) in more than one place.")
        for name in self.static:
            if name not in self.covariates:
                raise SchemaError(f"static column {name!r} is not a covariate; add it to covariates with its kind.")
            if name == self.time:
                raise SchemaError(f"the time column {name!r} cannot be static: it changes from visit to visit.")
        if self.static and self.instance is None:
            raise SchemaError("static covariates are constant within an instance: name the instance column too.")

    def _check_kinds(self) -> None:
        for name, kind in self.kinds.items():
            if name not in self.measurements:
                raise SchemaError(f"kinds names {name!r}, which is no measurement; take it out, or add it to them.")
            if kind not in get_args(Measure):
                raise SchemaError(
                    f"measurement {name!r} has kind {kind!r}; expected one of {', '.join(get_args(Measure))}."
                )
            if kind == "censored" and name not in self.limits:
                raise SchemaError(
                    f"measurement {name!r} is censored, but has no limits; give limits={{{name!r}: (lower, upper)}}, "
                    "None for no limit."
                )
        for name in self.limits:
            if self.kinds.get(name) != "censored":
                raise SchemaError(
                    f"limits names {name!r}, which is no censored measurement; take it out, or make its kind censored."
                )

    def _check_numbers(self) -> None:
        for name, unit in self.units.items():
            if not isinstance(unit, str) or not unit.strip():
                raise SchemaError(f"the unit of {name!r} is {unit!r}; expected text such as 'mg/dL'.")
        for word, names in (("bounds", self.bounds), ("integers", self.integers), ("units", self.units)):
            for name in names:
                if name not in self.measurements and self.covariates.get(name) != "continuous":
                    raise SchemaError(
                        f"{word} names {name!r}, which is neither a measurement nor a continuous covariate; "
                        "take it out, or give it such a role."
                    )
                if name in self.categories:
                    raise SchemaError(
                        f"{word} names {name!r}, but the {self.kinds[name]} measurement has levels, not numbers; "
                        "take it out, or give it another kind."
                    )
        for word, name, (lower, upper) in (
            *(("bounds", *item) for item in self.bounds.items()), *(("limits", *item) for item in self.limits.items())
        ):  # fmt: skip
            low, high = -math.inf if lower is None else lower, math.inf if upper is None else upper
            if not low < high:
                raise SchemaError(
                    f"{word} of {name!r} are {lower}, {upper}; the lower one must be below the upper one."
                )
            if word == "limits":
                continue
            if name in self.integers and math.isfinite(low) and math.ceil(low) > high:
                raise SchemaError(f"bounds of {name!r} are {lower}, {upper}, with no whole number between them.")

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that the schema names, instance first."""
        first = () if self.instance is None else (self.instance,)
        return (*first, *self.covariates, *self.measurements)

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """Columns that have levels: categorical covariates, then measurements of such kinds."""
        covariates = (name for name, kind in self.covariates.items() if kind == "categorical")
        return (*covariates, *(name for name in self.measurements if self.kinds.get(name) in LEVELS))

    @classmethod
    def infer(
        cls, table: Any, *, instance: str | None = None, time: str | None = None,
        measurements: Mapping[str, Measure] | Iterable[str] | None = None,
        covariates: Mapping[str, Kind] | Iterable[str] | None = None,
        exclude: Iterable[str] = (),
    ) -> Schema:  # fmt: skip
        """Propose roles from a table. `print` the result and check it: it shows why each column was placed so.

        - Text, true/false and categories are categorical covariates. So are numbers with at most 10 distinct whole
          values (fewer in short tables, 2 always) that lie within 20 of each other, unless five or more of them start
          at 0: that is a count.
        - Other numbers are continuous: measurements, or covariates where `measurements` names others.
        - A covariate is static where no instance shows two values and some instance shows one twice; such numbers
          are covariates, not measurements.
        - Left out are columns that are empty, constant, named like an identifier, numbering the rows, dates, dates or
          numbers as text, text that hardly repeats, and categories with more than 50 levels.
        - Whole numbers are `integers` if the column's type says so, or is float only because of gaps.
        - Measurements are Gaussian, with these exceptions: true/false, two levels, or 0 and 1 alone, each in five rows
          or more, are `bernoulli`; text and categories `categorical`, or `ordinal` if they are ordered. In columns of
          at least 50 values, whole numbers from 0 to at most 50, 5% or more of them 0, are `poisson`, or
          `negative_binomial` where their variance is 1.5 times their mean or more; positive numbers of skewness above 2
          of which the logarithm has less than half are `lognormal`.
        - Bounds and limits are never guessed.

        Args:
            table: a pandas or polars DataFrame or a pyarrow Table.
            instance: the column that names the unit with repeated rows.
            time: the time column.
            measurements: the columns to model, with or without their kinds; None for all numbers that nothing else
                claims.
            covariates: the only columns to condition on besides the time, with or without their kinds; None for all
                that are fit for it.
            exclude: columns to leave out.
        """
        frame, _ = to_pandas(table)
        found = propose(frame, Wishes(instance, time, measurements, covariates, exclude))
        schema = cls(
            found.measurements, found.covariates, instance, time, found.static, integers=found.integers,
            kinds=found.kinds,
        )  # fmt: skip
        object.__setattr__(schema, "notes", tuple(found.notes))
        return schema

    def label(self, name: str) -> str:
        """The column's name with its unit, if it has one, as axes are labelled."""
        return f"{name} ({self.units[name]})" if name in self.units else str(name)

    def describe(self) -> str:
        """The roles as a table: a line per column, with what `infer` saw if the schema comes from there."""
        return show(self._document(), self.notes)

    def to_toml(self, path: str | PathLike[str] | None = None) -> str:
        """The schema as TOML to read and edit; written to `path` as well, if given, whole or not at all."""
        notes = {
            n.column: "; ".join((f"{share(n.missing)} missing", n.examples or "no value", n.reason)) for n in self.notes
        }
        return toml.write(self._document(), notes, path)

    @classmethod
    def from_toml(cls, source: str | PathLike[str]) -> Schema:
        """Read a schema from a TOML file, or from its text."""
        document, where = toml.read(source)
        covariates, measurements = document["covariates"], document["measurements"]
        both = {**measurements, **covariates}
        try:
            return cls(
                list(measurements), {name: column["kind"] for name, column in covariates.items()},
                document.get("instance"), document.get("time"),
                static=[name for name, column in covariates.items() if column.get("static")],
                bounds={name: (column.get("lower"), column.get("upper")) for name, column in both.items()},
                integers=[name for name, column in both.items() if column.get("integer")],
                kinds={name: column["kind"] for name, column in measurements.items() if "kind" in column},
                limits={
                    name: (column.get("lower_limit"), column.get("upper_limit"))
                    for name, column in measurements.items()
                },
                units={name: column["unit"] for name, column in both.items() if "unit" in column},
            )  # fmt: skip
        except SchemaError as error:
            raise SchemaError(f"{where}: {error}") from error

    def _document(self) -> dict[str, Any]:
        """Columns with their properties, as `schema_toml` writes them and `describe` shows them."""

        def numbers(name: str) -> dict[str, Any]:
            lower, upper = self.bounds.get(name, (None, None))
            found: dict[str, Any] = {"integer": True if name in self.integers else None, "lower": lower, "upper": upper}
            found["unit"] = self.units.get(name)
            return {key: value for key, value in found.items() if value is not None}

        def observed(name: str) -> dict[str, Any]:
            lower, upper = self.limits.get(name, (None, None))
            found = {"kind": self.kinds.get(name), **numbers(name), "lower_limit": lower, "upper_limit": upper}
            return {key: value for key, value in found.items() if value is not None}

        return {
            "instance": self.instance,
            "time": self.time,
            "measurements": {name: observed(name) for name in self.measurements},
            "covariates": {
                name: {"kind": kind, **({"static": True} if name in self.static else {}), **numbers(name)}
                for name, kind in self.covariates.items()
            },
        }

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        parts = [_brief(self.measurements), _brief(self.covariates)]
        for word in ("instance", "time", "static", "bounds", "integers", "kinds", "limits", "units"):
            value = getattr(self, word)
            if value:
                parts.append(f"{word}={value!r}" if isinstance(value, str) else f"{word}={_brief(value)}")
        return f"Schema({', '.join(parts)})"


def _brief(items: Iterable[str] | Mapping[str, Any], most: int = 6) -> str:
    names = list(items)
    shown = [f"{n!r}: {items[n]!r}" if isinstance(items, Mapping) else repr(n) for n in names[:most]]
    text = ", ".join(shown + ([f"... {len(names) - most} more"] if len(names) > most else []))
    return f"{{{text}}}" if isinstance(items, Mapping) else f"[{text}]"


def _pairs(word: str, given: Mapping[str, Bounds] | None) -> FrozenDict[str, Bounds]:
    pairs = {name: _pair(word, name, pair) for name, pair in (given or {}).items()}
    return FrozenDict({name: pair for name, pair in pairs.items() if pair != (None, None)})


def _pair(word: str, name: str, pair: object) -> Bounds:
    numbers = isinstance(pair, tuple | list) and len(pair) == 2 and all(_is_limit(end) for end in pair)
    if not numbers:
        raise SchemaError(f"{word} of {name!r} are {pair!r}; expected two numbers (lower, upper), None for no limit.")
    lower, upper = (None if end is None else float(end) for end in pair)  # type: ignore[attr-defined]
    return None if lower == -math.inf else lower, None if upper == math.inf else upper


def _is_limit(end: object) -> bool:
    return end is None or (isinstance(end, Real) and not isinstance(end, bool) and not math.isnan(end))
