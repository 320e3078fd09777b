"""Which column plays which part. Knows names and roles; `schema_infer` looks at data, `schema_toml` at files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from typing import Any, ClassVar, NoReturn, TypeVar, get_args

from lacova import schema_toml
from lacova.dataframes import to_pandas
from lacova.errors import DataError as DataError
from lacova.errors import SchemaError as SchemaError
from lacova.schema_infer import Kind as Kind
from lacova.schema_infer import Note, Wishes, propose
from lacova.schema_show import share, show

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
        measurements: the columns Y that are modelled; numeric, gaps allowed.
        covariates: the columns X that Y is conditioned on, each `"continuous"` or `"categorical"`; gaps allowed.
        instance: the column that names the unit with repeated rows (a patient); no gaps allowed.
        time: the time column. It is a continuous covariate, whether or not `covariates` repeats it.
        static: covariates that are constant within an instance (sex, arm, age at entry): one unknown per instance.
        bounds: least and greatest value of measurements or continuous covariates, None for no limit:
            `{"alt": (0, None)}`. Imputed, predicted and drawn values and the ends of intervals are kept within them.
        integers: measurements or continuous covariates that are whole numbers; values as above are rounded.

    Example:
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
        alt     measurement  continuous           ≥ 0
        ast     measurement  continuous
    """

    measurements: tuple[str, ...]
    covariates: Mapping[str, Kind]
    instance: str | None = None
    time: str | None = None
    static: tuple[str, ...] = ()
    bounds: Mapping[str, Bounds] = FrozenDict()
    integers: tuple[str, ...] = ()

    # What `infer` saw in each column. For display only: it says nothing about the roles.
    notes: ClassVar[tuple[Note, ...]] = ()

    def __init__(
        self,
        measurements: Iterable[str],
        covariates: Mapping[str, Kind],
        instance: str | None = None,
        time: str | None = None,
        static: Iterable[str] = (),
        bounds: Mapping[str, Bounds] | None = None,
        integers: Iterable[str] = (),
    ) -> None:
        for word, value in (("measurements", measurements), ("static", static), ("integers", integers)):
            if isinstance(value, str):
                raise SchemaError(f"{word} must be a list of column names, got the string {value!r}.")
        if not isinstance(covariates, Mapping):
            raise SchemaError(
                f"covariates must map each column to 'continuous' or 'categorical', got {covariates!r}; "
                "write {'age': 'continuous', ...}."
            )
        if bounds is not None and not isinstance(bounds, Mapping):
            raise SchemaError(f"bounds must map columns to (lower, upper), got {bounds!r}; write {{'age': (0, 120)}}.")
        kinds = dict(covariates)
        if time is not None and kinds.setdefault(time, "continuous") != "continuous":
            raise SchemaError(f"the time column {time!r} must be a continuous covariate, got {kinds[time]!r}.")
        set_field = object.__setattr__
        set_field(self, "measurements", tuple(measurements))
        set_field(self, "covariates", FrozenDict(kinds))
        set_field(self, "instance", instance)
        set_field(self, "time", time)
        set_field(self, "static", self._ordered(static))
        set_field(self, "integers", self._ordered(integers))
        pairs = {name: _pair(name, pair) for name, pair in (bounds or {}).items()}
        set_field(self, "bounds", FrozenDict({name: pair for name, pair in pairs.items() if pair != (None, None)}))
        self._check()
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

    def _check_numbers(self) -> None:
        for word, names in (("bounds", self.bounds), ("integers", self.integers)):
            for name in names:
                if name not in self.measurements and self.covariates.get(name) != "continuous":
                    raise SchemaError(
                        f"{word} names {name!r}, which is neither a measurement nor a continuous covariate; "
                        "take it out, or give it such a role."
                    )
        for name, (lower, upper) in self.bounds.items():
            low, high = -math.inf if lower is None else lower, math.inf if upper is None else upper
            if not low < high:
                raise SchemaError(
                    f"bounds of {name!r} are {lower}, {upper}; the lower one must be below the upper one."
                )
            if name in self.integers and math.isfinite(low) and math.ceil(low) > high:
                raise SchemaError(f"bounds of {name!r} are {lower}, {upper}, with no whole number between them.")

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that the schema names, instance first."""
        first = () if self.instance is None else (self.instance,)
        return (*first, *self.covariates, *self.measurements)

    @classmethod
    def infer(
        cls, table: Any, *, instance: str | None = None, time: str | None = None,
        measurements: Iterable[str] | None = None, covariates: Mapping[str, Kind] | Iterable[str] | None = None,
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
        - Bounds are never guessed.

        Args:
            table: a pandas or polars DataFrame or a pyarrow Table.
            instance: the column that names the unit with repeated rows.
            time: the time column.
            measurements: the columns to model; None for all numbers that nothing else claims.
            covariates: the only columns to condition on besides the time, with or without their kinds; None for all
                that are fit for it.
            exclude: columns to leave out.
        """
        frame, _ = to_pandas(table)
        found = propose(frame, Wishes(instance, time, measurements, covariates, exclude))
        schema = cls(found.measurements, found.covariates, instance, time, found.static, integers=found.integers)
        object.__setattr__(schema, "notes", tuple(found.notes))
        return schema

    def describe(self) -> str:
        """The roles as a table: a line per column, with what `infer` saw if the schema comes from there."""
        return show(self._document(), self.notes)

    def to_toml(self, path: str | PathLike[str] | None = None) -> str:
        """The schema as TOML to read and edit; written to `path` as well, if given, whole or not at all."""
        notes = {
            n.column: "; ".join((f"{share(n.missing)} missing", n.examples or "no value", n.reason)) for n in self.notes
        }
        return schema_toml.write(self._document(), notes, path)

    @classmethod
    def from_toml(cls, source: str | PathLike[str]) -> Schema:
        """Read a schema from a TOML file, or from its text."""
        document, where = schema_toml.read(source)
        covariates, measurements = document["covariates"], document["measurements"]
        both = {**measurements, **covariates}
        try:
            return cls(
                measurements, {name: column["kind"] for name, column in covariates.items()},
                document.get("instance"), document.get("time"),
                static=[name for name, column in covariates.items() if column.get("static")],
                bounds={name: (column.get("lower"), column.get("upper")) for name, column in both.items()},
                integers=[name for name, column in both.items() if column.get("integer")],
            )  # fmt: skip
        except SchemaError as error:
            raise SchemaError(f"{where}: {error}") from error

    def _document(self) -> dict[str, Any]:
        """Columns with their properties, as `schema_toml` writes them and `describe` shows them."""

        def numbers(name: str) -> dict[str, Any]:
            lower, upper = self.bounds.get(name, (None, None))
            found = {"integer": True if name in self.integers else None, "lower": lower, "upper": upper}
            return {key: value for key, value in found.items() if value is not None}

        return {
            "instance": self.instance,
            "time": self.time,
            "measurements": {name: numbers(name) for name in self.measurements},
            "covariates": {
                name: {"kind": kind, **({"static": True} if name in self.static else {}), **numbers(name)}
                for name, kind in self.covariates.items()
            },
        }

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        parts = [_brief(self.measurements), _brief(self.covariates)]
        for word in ("instance", "time", "static", "bounds", "integers"):
            value = getattr(self, word)
            if value:
                parts.append(f"{word}={value!r}" if isinstance(value, str) else f"{word}={_brief(value)}")
        return f"Schema({', '.join(parts)})"


def _brief(items: Iterable[str] | Mapping[str, Any], most: int = 6) -> str:
    names = list(items)
    shown = [f"{n!r}: {items[n]!r}" if isinstance(items, Mapping) else repr(n) for n in names[:most]]
    text = ", ".join(shown + ([f"... {len(names) - most} more"] if len(names) > most else []))
    return f"{{{text}}}" if isinstance(items, Mapping) else f"[{text}]"


def _pair(name: str, pair: object) -> Bounds:
    numbers = isinstance(pair, tuple | list) and len(pair) == 2 and all(_is_limit(end) for end in pair)
    if not numbers:
        raise SchemaError(f"bounds of {name!r} are {pair!r}; expected two numbers (lower, upper), None for no limit.")
    lower, upper = (None if end is None else float(end) for end in pair)  # type: ignore[attr-defined]
    return None if lower == -math.inf else lower, None if upper == math.inf else upper


def _is_limit(end: object) -> bool:
    return end is None or (isinstance(end, Real) and not isinstance(end, bool) and not math.isnan(end))
