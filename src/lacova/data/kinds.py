"""Kinds of measurements: which values they take, and how many outputs of the decoder each column has."""

from __future__ import annotations

from typing import Literal, cast

from lacova.data.registry import lookup, registered

Values = Literal["number", "positive", "count", "level"]

# What values a kind takes. A log-normal column is a Gaussian one on the scale of its logarithm.
BUILT_IN: dict[str, Values] = {
    "gaussian": "number", "lognormal": "number", "student": "number", "censored": "number", "bernoulli": "level",
    "categorical": "level", "ordinal": "level", "poisson": "count", "negative_binomial": "count",
}  # fmt: skip


def known_kinds() -> tuple[str, ...]:
    """Return the kinds that a schema may name: lacova's own, then registered families."""
    return tuple(dict.fromkeys([*BUILT_IN, *registered("family")]))


def values_of(kind: str) -> Values:
    """Return which values a kind takes."""
    return BUILT_IN[kind] if kind in BUILT_IN else cast(Values, getattr(lookup("family", kind), "values"))  # noqa: B009


def outputs_of(family: str, levels: int) -> int:
    """Return how many outputs of the decoder a column of a family has, given its number of levels."""
    if family in BUILT_IN:
        return levels if family == "categorical" else 1
    return cast(int, getattr(lookup("family", family), "outputs"))  # noqa: B009
