"""Formulas for additive kernels, in R's convention: `gp(day) + gp(day):cat(sex) + gp(day):cat(id)`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lacova.schema import Schema

KERNELS = {"gp": "continuous", "cat": "categorical"}
VARIANTS = ("regression", "temporal", "longitudinal")


class FormulaError(ValueError):
    """A formula that cannot be read, or that names what the schema does not have."""


@dataclass(frozen=True)
class Component:
    """One additive component: a product of squared-exponential and categorical kernels over single columns.

    Attributes:
        continuous: columns under `gp`.
        categorical: columns under `cat`, the instance column aside.
        instance: whether `cat(instance)` is a factor, so that the component belongs to K^(R).
    """

    continuous: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    instance: bool = False

    def formula(self, schema: Schema) -> str:
        """The component as a term of a formula."""
        categories = [*self.categorical, *([schema.instance] if self.instance and schema.instance else [])]
        return ":".join([*(f"gp({_name(c)})" for c in self.continuous), *(f"cat({_name(c)})" for c in categories)])


def components(prior: str | None, schema: Schema) -> list[Component]:
    """Read a formula, a variant's name, or None for the variant that suits the schema."""
    if prior is None:
        prior = "longitudinal" if schema.instance else "temporal" if schema.time else "regression"
    return _variant(prior, schema) if prior in VARIANTS else _parse(prior, schema)


def _variant(name: str, schema: Schema) -> list[Component]:
    """The paper's three models: one product kernel over all of X, or additive components with the instance in some."""
    continuous = tuple(c for c, kind in schema.covariates.items() if kind == "continuous")
    categorical = tuple(c for c, kind in schema.covariates.items() if kind == "categorical")
    if name == "temporal" and schema.time is None:
        raise FormulaError("the temporal prior needs a time column: give Schema(time=...).")
    if name != "longitudinal":
        return [Component(continuous, categorical)]
    if schema.instance is None:
        raise FormulaError("the longitudinal prior needs an instance column: give Schema(instance=...).")
    time = () if schema.time is None else (schema.time,)
    own = [Component(instance=True), *([Component(time, instance=True)] if time else [])]
    return [Component((c,)) for c in continuous] + [Component(time, (c,)) for c in categorical] + own


def _parse(formula: str, schema: Schema) -> list[Component]:
    from formulaic.errors import FormulaicError
    from formulaic.parser import DefaultFormulaParser

    try:
        terms = DefaultFormulaParser(include_intercept=False).get_terms(formula)
        products = [[factor.expr for factor in term.factors] for term in terms]
    except (FormulaicError, AttributeError, KeyError, TypeError, SyntaxError) as error:
        reason = re.sub(r"\x1b\[[0-9;]*m|[⧛⧚]", "", str(error)).split("\n")[0].rstrip(".")
        raise FormulaError(
            f"cannot read the formula {formula!r}: {reason}. Write something like 'gp(time) + gp(time):cat(group)', "
            f"or one of {', '.join(VARIANTS)}."
        ) from error
    if not products:
        raise FormulaError(f"the formula {formula!r} has no term; write something like 'gp(time) + cat(group)'.")
    return [_component(factors, schema) for factors in products]


def _component(factors: list[str], schema: Schema) -> Component:
    term = ":".join(factors)
    continuous: list[str] = []
    categorical: list[str] = []
    instance = False
    for factor in factors:
        kernel, column = _factor(factor, term)
        if kernel not in KERNELS:
            raise FormulaError(f"unknown kernel {kernel!r} in term {term!r}; the kernels are {', '.join(KERNELS)}.")
        if column == schema.instance and kernel == "cat":
            instance = True
            continue
        kind = "categorical" if column == schema.instance else schema.covariates.get(column)
        if kind is None:
            known = [*schema.covariates, *([schema.instance] if schema.instance else [])]
            raise FormulaError(f"unknown column {column!r} in term {term!r}; the covariates are {', '.join(known)}.")
        if kind != KERNELS[kernel]:
            other = next(k for k, v in KERNELS.items() if v == kind)
            raise FormulaError(f"{factor} in term {term!r}: {column!r} is {kind}; write {other}({_name(column)}).")
        (continuous if kernel == "gp" else categorical).append(column)
    return Component(tuple(continuous), tuple(categorical), instance)


def _factor(factor: str, term: str) -> tuple[str, str]:
    """Kernel and column of one factor; a column that is no plain name stands in backticks: gp(`body mass`)."""
    found = re.fullmatch(r"\s*(\w+)\s*\(\s*(?:`([^`]+)`|(\w+))\s*\)\s*", factor)
    if found is None:
        raise FormulaError(
            f"cannot read {factor!r} in term {term!r}; a factor is a kernel with one column, such as gp(age)."
        )
    return found[1], found[2] or found[3]


def _name(column: str) -> str:
    return column if re.fullmatch(r"\w+", column) else f"`{column}`"
