"""Which column plays which part. Knows names and roles, not data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["continuous", "categorical"]


class SchemaError(ValueError):
    """The roles contradict each other."""


class DataError(ValueError):
    """A table does not fit its schema, or a value in it cannot be used."""


@dataclass(frozen=True)
class Schema:
    """Roles of the columns of a table.

    Args:
        measurements: the columns Y that are modelled; numeric, gaps allowed.
        covariates: the columns X that Y is conditioned on, each `"continuous"` or `"categorical"`; gaps allowed.
        instance: the column that names the unit with repeated rows (a patient); no gaps allowed.
        time: the time column. It is a continuous covariate, whether or not `covariates` repeats it.
        static: covariates that are constant within an instance (sex, arm, age at entry): one unknown per instance.

    Example:
        >>> schema = Schema(["alt", "ast"], {"age": "continuous", "sex": "categorical"},
        ...                 instance="id", time="day", static=["age", "sex"])
        >>> schema.covariates
        {'age': 'continuous', 'sex': 'categorical', 'day': 'continuous'}
    """

    measurements: tuple[str, ...]
    covariates: Mapping[str, Kind]
    instance: str | None = None
    time: str | None = None
    static: tuple[str, ...] = ()

    def __init__(
        self,
        measurements: Iterable[str],
        covariates: Mapping[str, Kind],
        instance: str | None = None,
        time: str | None = None,
        static: Iterable[str] = (),
    ) -> None:
        for word, value in (("measurements", measurements), ("static", static)):
            if isinstance(value, str):
                raise SchemaError(f"{word} must be a list of column names, got the string {value!r}.")
        if not isinstance(covariates, Mapping):
            raise SchemaError(
                f"covariates must map each column to 'continuous' or 'categorical', got {covariates!r}; "
                "write {'age': 'continuous', ...}."
            )
        kinds = dict(covariates)
        if time is not None and kinds.setdefault(time, "continuous") != "continuous":
            raise SchemaError(f"the time column {time!r} must be a continuous covariate, got {kinds[time]!r}.")
        object.__setattr__(self, "measurements", tuple(measurements))
        object.__setattr__(self, "covariates", kinds)
        object.__setattr__(self, "instance", instance)
        object.__setattr__(self, "time", time)
        object.__setattr__(self, "static", tuple(static))
        self._check()

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

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that the schema names, instance first."""
        first = () if self.instance is None else (self.instance,)
        return (*first, *self.covariates, *self.measurements)
