"""Formulas for additive kernels, in R's convention: `gp(day) + lin(day):cat(sex) + gp(day):cat(id)`.

docs/formulas.md is the page for users.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

from lacova.data.schema import Schema

KERNELS = ("gp", "cat", "lin", "periodic", "matern")
KERNEL_OPTIONS = {"matern": "nu", "periodic": "period"}
MATERN_NU = (0.5, 1.5, 2.5)
VARIANTS = ("regression", "temporal", "longitudinal")


class FormulaError(ValueError):
    """A formula that cannot be parsed, or that names something the schema does not have."""


@dataclass(frozen=True)
class Factor:
    """A kernel other than `gp` and `cat`, over continuous columns.

    Attributes:
        kernel: one of `KERNELS`, or the name of a kernel that was passed in.
        columns: the columns it takes.
        option: ν of `matern` (None for 2.5), or the period of `periodic` in the column's own units (None to learn it).
    """

    kernel: str
    columns: tuple[str, ...]
    option: float | None = None

    def __str__(self) -> str:
        arguments = [_quoted(column) for column in self.columns]
        if self.option is not None:
            arguments.append(f"{KERNEL_OPTIONS[self.kernel]}={repr(self.option).removesuffix('.0')}")
        return f"{self.kernel}({', '.join(arguments)})"


@dataclass(frozen=True)
class Component:
    """One additive component: a product of kernels.

    Attributes:
        continuous: columns under `gp`, each with a length-scale.
        categorical: columns under `cat`, without the instance column.
        instance: whether `cat(instance)` is a factor, so that the component belongs to K^(R).
        factors: kernels other than `gp` and `cat`.
    """

    continuous: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    instance: bool = False
    factors: tuple[Factor, ...] = ()

    @property
    def columns(self) -> set[str]:
        """All columns of the component, without the instance."""
        return {*self.continuous, *self.categorical, *(c for factor in self.factors for c in factor.columns)}

    def in_fixed_effects(self, name: str) -> bool:
        """Return whether the component lets column `name` into the fixed effects, which explain patients' intercepts.

        It does if it contains the column and all patients share its effect. With `cat(instance)` as a factor, the
        effect belongs to one patient, so it cannot explain differences between patients.
        """
        return name in self.columns and not self.instance

    def formula(self, schema: Schema) -> str:
        """Return the component as a term of a formula."""
        categories = [*self.categorical, *([schema.instance] if self.instance and schema.instance else [])]
        smooth = (f"gp({_quoted(c)})" for c in self.continuous)
        return ":".join([*smooth, *map(str, self.factors), *(f"cat({_quoted(c)})" for c in categories)])


def components(
    prior: str | None, schema: Schema, passed: Collection[str] = (), known: Collection[str] = ()
) -> list[Component]:
    """Return the components of a formula, of a variant by its name, or, for None, of the variant that suits the schema.

    `passed` names further kernels, each of which the formula must use; `known` those that it may use.
    """
    for name in passed:
        if name in KERNELS or not re.fullmatch(r"[^\W\d]\w*", name):
            raise FormulaError(
                f"a kernel cannot be passed as {name!r}; expected a plain name other than {', '.join(KERNELS)}."
            )
    if prior is None:
        prior = "longitudinal" if schema.instance else "temporal" if schema.time else "regression"
    terms = _variant(prior, schema) if prior in VARIANTS else _parse(prior, schema, {*passed, *known})
    unused = sorted(set(passed) - {factor.kernel for component in terms for factor in component.factors})
    if unused:
        raise FormulaError(
            f"kernel(s) {', '.join(unused)} were passed but not used; name them in the formula, which is {prior!r}."
        )
    return terms


def _variant(name: str, schema: Schema) -> list[Component]:
    """Return the components of one of the paper's three models.

    They are one product kernel over all of X, or additive components, some of them with the instance.
    """
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


def _parse(formula: str, schema: Schema, passed: Collection[str]) -> list[Component]:
    """Parse a formula into components, without repetitions."""
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
    return list(dict.fromkeys(_component(factors, schema, passed) for factors in products))


def _component(texts: list[str], schema: Schema, passed: Collection[str]) -> Component:
    """Build the component of a term from the texts of its factors."""
    term = ":".join(texts)
    continuous: list[str] = []
    categorical: list[str] = []
    factors: list[Factor] = []
    for text in texts:
        where = f"{text} in term {term!r}"
        kernel, columns, options = _parse_factor(text, term)
        if kernel not in KERNELS and kernel not in passed:
            known = ", ".join([*KERNELS, *passed])
            raise FormulaError(f"unknown kernel {kernel!r} in term {term!r}; the kernels are {known}.")
        _check_columns(columns, kernel, schema, term, where)
        option = _option(kernel, columns, options, where)
        if kernel == "gp":
            continuous += columns
        elif kernel == "cat":
            categorical += columns
        else:
            factors.append(Factor(kernel, tuple(columns), option))
    # As in R, repeated factors count once: a product of two `gp` of one column is a `gp` with another length-scale.
    return Component(
        tuple(dict.fromkeys(continuous)),
        tuple(dict.fromkeys(c for c in categorical if c != schema.instance)),
        schema.instance in categorical,
        tuple(dict.fromkeys(factors)),
    )


def _parse_factor(text: str, term: str) -> tuple[str, list[str], dict[str, str]]:
    """Return kernel, columns and options of a factor; backticks quote an unusual column name: gp(`body mass`)."""
    call = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", text, re.DOTALL)
    columns: list[str] = []
    options: dict[str, str] = {}
    for argument in re.findall(r"(?:`[^`]*`|[^,`])+", call[2]) if call else ():
        column = re.fullmatch(r"\s*(?:`([^`]+)`|(\w+))\s*", argument)
        option = re.fullmatch(r"\s*(\w+)\s*=\s*(\S+)\s*", argument)
        if column:
            columns.append(column[1] or column[2])
        elif option:
            options[option[1]] = option[2]
        else:
            call = None
    if call is None or not columns:
        raise FormulaError(
            f"cannot read {text!r} in term {term!r}; a factor is a kernel with its columns, such as gp(age) or "
            "lin(age, weight)."
        )
    return call[1], columns, options


def _check_columns(columns: list[str], kernel: str, schema: Schema, term: str, where: str) -> None:
    """Raise a `FormulaError` for a column that is unknown, repeated, or of the wrong kind for the kernel."""
    for column in columns:
        kind = "categorical" if column == schema.instance else schema.covariates.get(column)
        if kind is None:
            known = [*schema.covariates, *([schema.instance] if schema.instance else [])]
            raise FormulaError(f"unknown column {column!r} in term {term!r}; the covariates are {', '.join(known)}.")
        if (kind == "categorical") != (kernel == "cat"):
            other = "cat" if kind == "categorical" else "gp"
            raise FormulaError(f"{where}: {column!r} is {kind}; write {other}({_quoted(column)}).")
        if columns.count(column) > 1:
            raise FormulaError(f"{where}: {column!r} is named {columns.count(column)} times; name it once.")


def _option(kernel: str, columns: list[str], options: dict[str, str], where: str) -> float | None:
    """Return the value of the kernel's option, None if it is not given; raise a `FormulaError` for a bad one."""
    option = KERNEL_OPTIONS.get(kernel)
    unknown = next((name for name in options if name != option), None)
    if unknown is not None:
        known = ", ".join(f"{name} of {k}" for k, name in KERNEL_OPTIONS.items())
        raise FormulaError(f"{where}: {kernel} has no option {unknown!r}; the options are {known}.")
    if option not in options:
        return None
    text = options[option]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if option == "nu" and value not in MATERN_NU:
        raise FormulaError(f"{where}: nu is {text}; expected one of {', '.join(map(str, MATERN_NU))}.")
    if option == "period" and len(columns) > 1:
        raise FormulaError(f"{where}: a period belongs to one column; write one periodic(...) for each, with ':'.")
    if option == "period" and not 0 < value < math.inf:
        raise FormulaError(f"{where}: period is {text}; expected a positive number, in the units of {columns[0]!r}.")
    return value


def _quoted(column: str) -> str:
    """Return the column as a formula writes it."""
    return column if re.fullmatch(r"\w+", column) else f"`{column}`"
