"""A proposed role for each column of a table, with the reason. `Schema.infer` states the rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from lacova.data.errors import DataError, SchemaError, hint
from lacova.data.kinds import Kind, Measure, values_of
from lacova.data.schema.column import Column


class Note(NamedTuple):
    """The contents of a column of the table in short, and the reason for its role."""

    column: str
    missing: float
    examples: str
    reason: str


@dataclass(frozen=True)
class RequestedRoles:
    """The roles that the caller has fixed."""

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


def propose(frame: pd.DataFrame, requested: RequestedRoles) -> Proposal:
    """Propose roles for the columns of a table."""
    requested = _checked(frame, requested)
    proposal = Proposal()
    instance = None if requested.instance is None else frame[requested.instance].reset_index(drop=True)
    for name in frame.columns:
        column = Column(frame[name].reset_index(drop=True), instance if name != requested.instance else None)
        reason = _place(proposal, name, column, requested)
        proposal.notes.append(Note(name, column.missing, column.examples(), reason))
        number = name in proposal.measurements and values_of(proposal.kinds.get(name)) == "number"
        if column.integer and (number or proposal.covariates.get(name) == "continuous"):
            proposal.integers.append(name)
    # Columns that the caller names keep the caller's order.
    proposal.measurements.sort(key=lambda name: _position(name, requested.measurements))
    proposal.covariates = dict(
        sorted(proposal.covariates.items(), key=lambda item: _position(item[0], requested.covariates))
    )
    if not proposal.measurements:
        raise SchemaError(
            "found no column to model: no numbers that change from row to row are left. "
            "Name them: Schema.infer(table, measurements=[...])."
        )
    return proposal


def _position(name: str, named: Iterable[str] | None) -> int:
    order = list(named or ())
    return order.index(name) if name in order else len(order)


def _place(proposal: Proposal, name: str, column: Column, requested: RequestedRoles) -> str:
    """Give the column its role, or none, and return the reason."""
    if name == requested.instance:
        return "named as the instance"
    if name in requested.exclude:
        return "excluded"
    if requested.measurements is not None and name in requested.measurements:
        return _measurement(proposal, name, column, requested, "named as a measurement")
    if name == requested.time:
        kinds = requested.covariates if isinstance(requested.covariates, Mapping) else {}
        proposal.covariates[_number(name, column, "time")] = kinds.get(name, "continuous")
        return "named as the time"
    named = requested.covariates is not None and name in requested.covariates
    unusable = column.unusable(name)
    if unusable and named and column.nested:
        raise DataError(f"covariate {name!r} {unusable}.")
    if unusable and not named:
        return unusable
    kind, reason = column.kind()
    if named and isinstance(requested.covariates, Mapping):
        kind, reason = requested.covariates[name], "kind as requested"
    if requested.measurements is None and not named and kind == "continuous" and not column.static:
        return _measurement(proposal, name, column, requested, reason)
    if requested.covariates is not None and not named:
        return "not among the covariates named"
    proposal.covariates[name] = kind
    if column.static:
        proposal.static.append(name)
        return f"{reason}; constant within each {requested.instance!r}"
    return reason


def _measurement(proposal: Proposal, name: str, column: Column, requested: RequestedRoles, reason: str) -> str:
    """Add the column as a measurement, of the kind requested or else of the kind that suits it; return the reason."""
    unusable = column.unusable(name) if column.type not in ("number", "truth") else None
    if unusable and len(column.seen):
        raise DataError(f"column {name!r} is named as a measurement, but cannot be one: {unusable}.")
    kind, why = column.measure() if len(column.seen) else ("gaussian", "")
    if isinstance(requested.measurements, Mapping):
        kind, why = requested.measurements[name], "kind as requested"
    proposal.measurements.append(name if values_of(kind) == "level" else _number(name, column, "measurement"))
    if kind != "gaussian":
        proposal.kinds[name] = kind
    return f"{reason}; {why}" if why else reason


def _number(name: str, column: Column, role: str) -> str:
    if column.type not in ("number", "truth") and len(column.seen):
        raise DataError(
            f"column {name!r} is named as a {role}, which must be numeric, but holds {column.examples()}. "
            "Turn text into numbers or gaps, and dates into days since the start of the study."
        )
    return name


def _checked(frame: pd.DataFrame, requested: RequestedRoles) -> RequestedRoles:
    lists: dict[str, Any] = {}
    for word in ("measurements", "covariates", "exclude"):
        value = getattr(requested, word)
        if isinstance(value, str):
            raise SchemaError(f"{word} must be a list of column names, got the string {value!r}.")
        lists[word] = value if value is None or isinstance(value, Mapping) else list(value)
    singles = [name for name in (requested.instance, requested.time) if name is not None]
    roles = [*singles, *(lists["measurements"] or ()), *(lists["covariates"] or ())]
    absent = [name for name in dict.fromkeys([*roles, *lists["exclude"]]) if name not in frame.columns]
    if absent:
        raise DataError(
            f"the table has no column(s) {', '.join(map(repr, absent))}; "
            f"its columns are {', '.join(map(repr, frame.columns))}." + hint(absent, frame.columns)
        )
    twice = frame.columns[frame.columns.duplicated()].unique()
    if len(twice):
        raise DataError(
            f"column name(s) {', '.join(map(repr, twice))} appear more than once in the table; "
            "rename or drop one of each."
        )
    once = [*roles, *lists["exclude"]]
    if requested.time is not None and requested.time in (lists["covariates"] or ()):
        once.remove(requested.time)
    both = [name for name in dict.fromkeys(once) if once.count(name) > 1]
    if both:
        raise SchemaError(f"each column has one role or is excluded, but {', '.join(map(repr, both))} named twice.")
    return RequestedRoles(requested.instance, requested.time, **lists)
