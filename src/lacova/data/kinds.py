"""The kinds of covariates and measurements: which values they take, and how many decoder outputs a column has."""

from __future__ import annotations

from typing import Literal, cast

from lacova.data.registry import lookup, registered

Kind = Literal["continuous", "categorical"]  # of covariates
Values = Literal["number", "positive", "count", "level"]  # of measurements
# lacova's own kinds of measurements, each with its values. A log-normal column is a Gaussian one on the log scale.
Measure = Literal[
    "gaussian", "lognormal", "student", "censored", "bernoulli", "categorical", "ordinal", "poisson",
    "negative_binomial",
]  # fmt: skip
BUILT_IN: dict[str, Values] = {
    "gaussian": "number", "lognormal": "number", "student": "number", "censored": "number", "bernoulli": "level",
    "categorical": "level", "ordinal": "level", "poisson": "count", "negative_binomial": "count",
}  # fmt: skip


def known_kinds() -> tuple[str, ...]:
    """Return the kinds of measurements that a schema may name: lacova's own, then registered families."""
    return tuple(dict.fromkeys([*BUILT_IN, *registered("family")]))


def values_of(kind: str | None) -> Values:
    """Return which values a kind of measurement takes; None is Gaussian."""
    if kind is None:
        return "number"
    if kind in BUILT_IN:
        return BUILT_IN[kind]
    return cast(Values, getattr(lookup("family", kind), "values"))  # noqa: B009  # the class is not known here


def outputs_of(family: str, levels: int) -> int:
    """Return how many decoder outputs a column of a family has, given its number of levels."""
    if family in BUILT_IN:
        return levels if family == "categorical" else 1
    outputs: int | None = getattr(lookup("family", family), "outputs")  # noqa: B009  # the class is not known here
    return levels if outputs is None else outputs
