"""Checks of a schema: every contradiction is refused with the way to resolve it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from numbers import Real
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from lacova.data.errors import SchemaError, listed
from lacova.data.kinds import Kind, known_kinds
from lacova.data.schema.frozen import FrozenDict

if TYPE_CHECKING:
    from lacova.data.schema.roles import Schema

Bounds = tuple[float | None, float | None]


def check_schema(schema: Schema) -> None:
    """Refuse a schema whose roles, kinds, bounds or units contradict each other."""
    _check_roles(schema)
    _check_kinds(schema)
    _check_numbers(schema)
    _check_levels(schema)


def _check_roles(schema: Schema) -> None:
    if not schema.measurements:
        raise SchemaError("measurements is empty: name at least one column to model.")
    for name, kind in schema.covariates.items():
        if kind not in get_args(Kind):
            raise SchemaError(f"covariate {name!r} has kind {kind!r}; expected one of {', '.join(get_args(Kind))}.")
    roles = [*schema.measurements, *schema.covariates, *([schema.instance] if schema.instance is not None else [])]
    repeated = sorted({str(name) for name in roles if roles.count(name) > 1})
    if repeated:
        raise SchemaError(f"each column has one role, but {', '.join(repeated)} appear(s) in more than one place.")
    for name in schema.static:
        if name not in schema.covariates:
            raise SchemaError(f"static column {name!r} is not a covariate; add it to covariates with its kind.")
        if name == schema.time:
            raise SchemaError(f"the time column {name!r} cannot be static: it changes from visit to visit.")
    if schema.static and schema.instance is None:
        raise SchemaError("static covariates are constant within an instance: name the instance column too.")


def _check_kinds(schema: Schema) -> None:
    for name, kind in schema.kinds.items():
        if name not in schema.measurements:
            raise SchemaError(f"kinds names {name!r}, which is no measurement; take it out, or add it to them.")
        if kind not in known_kinds():
            raise SchemaError(f"measurement {name!r} has kind {kind!r}; expected one of {', '.join(known_kinds())}.")
        if kind == "censored" and name not in schema.limits:
            raise SchemaError(
                f"measurement {name!r} is censored, but has no limits; give limits={{{name!r}: (lower, upper)}}, "
                "None for no limit."
            )
    for name in schema.limits:
        if schema.kinds.get(name) != "censored":
            raise SchemaError(
                f"limits names {name!r}, which is no censored measurement; take it out, or make its kind censored."
            )


def _check_numbers(schema: Schema) -> None:
    for name, unit in schema.units.items():
        if not isinstance(unit, str) or not unit.strip():
            raise SchemaError(f"the unit of {name!r} is {unit!r}; expected text such as 'mg/dL'.")
    for word, names in (("bounds", schema.bounds), ("integers", schema.integers), ("units", schema.units)):
        for name in names:
            if name not in schema.measurements and schema.covariates.get(name) != "continuous":
                raise SchemaError(
                    f"{word} names {name!r}, which is neither a measurement nor a continuous covariate; "
                    "take it out, or give it such a role."
                )
            if name in schema.categories:
                raise SchemaError(
                    f"{word} names {name!r}, but the {schema.kinds[name]} measurement has levels, not numbers; "
                    "take it out, or give it another kind."
                )
    for word, name, (lower, upper) in (
        *(("bounds", *item) for item in schema.bounds.items()), *(("limits", *item) for item in schema.limits.items())
    ):  # fmt: skip
        low, high = -math.inf if lower is None else lower, math.inf if upper is None else upper
        if not low < high:
            raise SchemaError(f"{word} of {name!r} are {lower}, {upper}; the lower one must be below the upper one.")
        if word == "limits":
            continue
        if name in schema.integers and math.isfinite(low) and math.ceil(low) > high:
            raise SchemaError(f"bounds of {name!r} are {lower}, {upper}, with no whole number between them.")


def _check_levels(schema: Schema) -> None:
    for name, levels in schema.levels.items():
        if name not in schema.categories:
            kind = schema.covariates.get(name) or schema.kinds.get(name, "gaussian")
            what = "is the instance" if name == schema.instance else f"is {kind}"
            what = what if name in schema.columns else "is no column of it"
            raise SchemaError(
                f"levels names {name!r}, which {what}; only categorical covariates and measurements that are "
                "bernoulli, categorical or ordinal have levels. Take it out, or give it another kind."
            )
        if schema.kinds.get(name) == "bernoulli" and len(levels) != 2:
            raise SchemaError(
                f"levels of {name!r} are {listed(levels)}, but a bernoulli measurement has two; give two, or make its "
                "kind categorical."
            )


def checked_levels(levels: Mapping[str, Iterable[Any]] | None) -> dict[str, tuple[Any, ...]]:
    """Return declared levels as tuples of text, numbers, True and False; refuse anything else, and duplicates."""
    if levels is not None and not isinstance(levels, Mapping):
        raise SchemaError(
            f"levels must map columns to their levels, got {levels!r}; write {{'stage': ['I', 'II', 'III']}}."
        )
    declared = {}
    for name, values in (levels or {}).items():
        if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
            raise SchemaError(f"levels of {name!r} are {values!r}; expected a list in order, such as ['I', 'II'].")
        own = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
        strange = [v for v in own if not isinstance(v, str | int | float) or v != v]  # a bool is an int
        if strange or not own:
            raise SchemaError(
                f"levels of {name!r} are {listed(own) or 'empty'}; expected at least one, each of them text, a number, "
                "True or False. Gaps are no level."
            )
        if len(set(own)) < len(own):
            twice = [value for k, value in enumerate(own) if value in own[:k]]
            raise SchemaError(f"levels of {name!r} hold {listed(twice)} more than once; name each level once.")
        declared[name] = own
    return declared


def checked_pairs(word: str, values: Mapping[str, Bounds] | None) -> FrozenDict[str, Bounds]:
    """Return pairs (lower, upper) as floats, None for no limit, without the columns that have neither."""
    pairs = {name: _pair(word, name, pair) for name, pair in (values or {}).items()}
    return FrozenDict({name: pair for name, pair in pairs.items() if pair != (None, None)})


def _pair(word: str, name: str, pair: object) -> Bounds:
    numbers = isinstance(pair, tuple | list) and len(pair) == 2 and all(_is_limit(end) for end in pair)
    if not numbers:
        raise SchemaError(f"{word} of {name!r} are {pair!r}; expected two numbers (lower, upper), None for no limit.")
    lower, upper = (None if end is None else float(end) for end in pair)  # type: ignore[attr-defined]
    return None if lower == -math.inf else lower, None if upper == math.inf else upper


def _is_limit(end: object) -> bool:
    return end is None or (isinstance(end, Real) and not isinstance(end, bool) and not math.isnan(end))
