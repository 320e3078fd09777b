"""The schema: the role of each column of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any, ClassVar

from lacova.data.errors import SchemaError
from lacova.data.io.dataframes import to_pandas
from lacova.data.kinds import Kind, values_of
from lacova.data.schema import toml
from lacova.data.schema.checks import Bounds, check_schema, checked_levels, checked_pairs
from lacova.data.schema.frozen import FrozenDict
from lacova.data.schema.infer import Note, RequestedRoles, propose
from lacova.data.schema.show import share, show


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
        kinds: the kinds of measurements that are not Gaussian, unless `measurements` states them.
        limits: of detection, lower and upper, for every "censored" measurement: `{"crp": (0.5, None)}`. A value at or
            beyond a limit means only that the true value lies there.
        units: of measurements or continuous covariates, for plots and reports: `{"bili": "mg/dL", "day": "days"}`.
        levels: of categorical columns, in order: `{"stage": ["I", "II", "III", "IV"]}`. They need not all occur in
            training; others are refused there. Columns that are not named have the categories of their pandas
            Categorical, or the levels that occur in training.

    Examples:
        >>> schema = Schema(["alt", "ast"], {"age": "continuous", "sex": "categorical"},
        ...                 instance="id", time="day", static=["age", "sex"], bounds={"alt": (0, None)})
        >>> schema.covariates
        {'age': 'continuous', 'sex': 'categorical', 'day': 'continuous'}
        >>> Schema(["alt"], {"stage": "categorical"}, levels={"stage": ["I", "II", "III", "IV"]}).levels["stage"]
        ('I', 'II', 'III', 'IV')
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
    kinds: Mapping[str, str] = FrozenDict()
    limits: Mapping[str, Bounds] = FrozenDict()
    units: Mapping[str, str] = FrozenDict()
    levels: Mapping[str, tuple[Any, ...]] = FrozenDict()

    # The notes of `infer` on each column, for display only: they do not take part in comparisons.
    notes: ClassVar[tuple[Note, ...]] = ()

    def __init__(
        self,
        measurements: Mapping[str, str] | Iterable[str],
        covariates: Mapping[str, Kind],
        instance: str | None = None,
        time: str | None = None,
        static: Iterable[str] = (),
        bounds: Mapping[str, Bounds] | None = None,
        integers: Iterable[str] = (),
        kinds: Mapping[str, str] | None = None,
        limits: Mapping[str, Bounds] | None = None,
        units: Mapping[str, str] | None = None,
        levels: Mapping[str, Iterable[Any]] | None = None,
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
        declared = checked_levels(levels)
        roles = dict(covariates)
        if time is not None and roles.setdefault(time, "continuous") != "continuous":
            raise SchemaError(f"the time column {time!r} must be a continuous covariate, got {roles[time]!r}.")
        stated = {**(kinds or {}), **(measurements if isinstance(measurements, Mapping) else {})}
        set_field = object.__setattr__
        set_field(self, "measurements", tuple(measurements))
        set_field(self, "covariates", FrozenDict(roles))
        set_field(self, "instance", instance)
        set_field(self, "time", time)
        set_field(self, "static", self._ordered(static))
        set_field(self, "integers", self._ordered(integers))
        set_field(self, "bounds", checked_pairs("bounds", bounds))
        set_field(self, "limits", checked_pairs("limits", limits))
        set_field(self, "units", FrozenDict({name: (units or {})[name] for name in self._ordered(units or {})}))
        set_field(self, "levels", FrozenDict({name: declared[name] for name in self._ordered(declared)}))
        ordered = self._ordered(stated)
        set_field(self, "kinds", FrozenDict({name: stated[name] for name in ordered if stated[name] != "gaussian"}))
        check_schema(self)

    def _ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names in the order of the columns, unknown ones last."""
        unique = dict.fromkeys(names)
        return (*(name for name in self.columns if name in unique), *(n for n in unique if n not in self.columns))

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column of the schema, instance first."""
        first = () if self.instance is None else (self.instance,)
        return (*first, *self.covariates, *self.measurements)

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """Columns that have levels: categorical covariates, then measurements of kinds with levels."""
        covariates = (name for name, kind in self.covariates.items() if kind == "categorical")
        return (*covariates, *(name for name in self.measurements if values_of(self.kinds.get(name)) == "level"))

    @classmethod
    def infer(
        cls, table: Any, *, instance: str | None = None, time: str | None = None,
        measurements: Mapping[str, str] | Iterable[str] | None = None,
        covariates: Mapping[str, Kind] | Iterable[str] | None = None,
        exclude: Iterable[str] = (),
    ) -> Schema:  # fmt: skip
        """Propose roles from a table. `print` the result and check it: it shows the reason for each role.

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
          `negative_binomial` where their variance is 1.5 times their mean or more; positive numbers of skewness above
          2 are `lognormal` if their logarithm has less than half of it.
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
        proposal = propose(frame, RequestedRoles(instance, time, measurements, covariates, exclude))
        schema = cls(
            proposal.measurements, proposal.covariates, instance, time, proposal.static, integers=proposal.integers,
            kinds=proposal.kinds,
        )  # fmt: skip
        object.__setattr__(schema, "notes", tuple(proposal.notes))
        return schema

    def label(self, name: str) -> str:
        """Return the label of the column on axes: its name, with its unit if it has one."""
        return f"{name} ({self.units[name]})" if name in self.units else str(name)

    def describe(self) -> str:
        """Return the roles as a table, a line per column, with the notes of `infer` if the schema comes from there."""
        return show(self._document(), self.notes)

    def to_toml(self, path: str | PathLike[str] | None = None) -> str:
        """Return the schema as TOML to read and edit, and write it to `path` if there is one, in one step."""
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
                levels={name: column["levels"] for name, column in both.items() if "levels" in column},
            )  # fmt: skip
        except SchemaError as error:
            raise SchemaError(f"{where}: {error}") from error

    def _document(self) -> dict[str, Any]:
        """Return the columns with their properties, as `to_toml` writes them and `describe` shows them."""

        def numbers(name: str) -> dict[str, Any]:
            lower, upper = self.bounds.get(name, (None, None))
            integer = True if name in self.integers else None
            properties: dict[str, Any] = {"integer": integer, "lower": lower, "upper": upper}
            properties |= {"unit": self.units.get(name), "levels": self.levels.get(name)}
            return {key: value for key, value in properties.items() if value is not None}

        def observed(name: str) -> dict[str, Any]:
            lower, upper = self.limits.get(name, (None, None))
            properties = {"kind": self.kinds.get(name), **numbers(name), "lower_limit": lower, "upper_limit": upper}
            return {key: value for key, value in properties.items() if value is not None}

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
        for word in ("instance", "time", "static", "bounds", "integers", "kinds", "limits", "units", "levels"):
            value = getattr(self, word)
            if value:
                parts.append(f"{word}={value!r}" if isinstance(value, str) else f"{word}={_brief(value)}")
        return f"Schema({', '.join(parts)})"


def _brief(items: Iterable[str] | Mapping[str, Any], most: int = 6) -> str:
    names = list(items)
    shown = [f"{n!r}: {items[n]!r}" if isinstance(items, Mapping) else repr(n) for n in names[:most]]
    text = ", ".join(shown + ([f"... {len(names) - most} more"] if len(names) > most else []))
    return f"{{{text}}}" if isinstance(items, Mapping) else f"[{text}]"
