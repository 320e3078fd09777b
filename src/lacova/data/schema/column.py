"""One column of a table as the rules of `Schema.infer` see it: its type, its kind, and whether it can be used."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from datetime import date
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from lacova.data.kinds import Kind, Measure

MAX_CODES = 10  # distinct whole numbers that can be codes of a category
MAX_CODE_RANGE = 20  # codes lie closer together than this: 0, 28, 56 are days
MIN_COUNT_VALUES = 5  # distinct whole numbers from 0 on that make a count
MAX_LEVELS = 50  # levels of a category
MIN_VALUES = 50  # observed values that show the distribution of a measurement
MAX_COUNT = 50  # the greatest value of a measurement that is clearly a count
MIN_ZERO_SHARE = 0.05  # the share of zeros in such a count
MIN_LEVEL_ROWS = 5  # rows of the rarer of 0 and 1 that make two levels: a part of the rows may lack a rarer one
MIN_SKEWNESS = 2.0  # skewness of what is clearly log-normal, if its logarithm has less than half of it

DATE = re.compile(
    r"\s*(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{2,4}|\d{1,2}[- ]?[A-Za-z]{3}[- ]?\d{2,4})([T ]\d.*)?"
)
IDENTIFIER = re.compile(r"(?i:(.*[\W_])?(id|uid|uuid|guid|identifier))|.*[a-z0-9]I[dD]|.*(SUBJ|SITE|STUDY)ID")


class Column:
    """A column as the rules see it.

    Attributes:
        seen: its observed values, of the type they share.
        units: the same, but only one per instance where the column is static.
        missing: the share of gaps.
        nested: whether it holds lists or other values that cannot be compared.
        static: whether no instance has two different values, and some instance shows its value twice.
    """

    def __init__(self, values: pd.Series[Any], instance: pd.Series[Any] | None) -> None:
        self.seen = values.dropna().infer_objects()
        self.missing = float(values.isna().mean()) if len(values) else 0.0
        self.nested = self.seen.dtype == object and not all(isinstance(value, Hashable) for value in self.seen)
        self.units, self.static = self.seen, False
        if instance is not None and not self.nested:
            groups = self.seen.groupby(instance.loc[self.seen.index], observed=True)
            self.static = bool((groups.nunique() <= 1).all() and (groups.size() > 1).any())
            self.units = groups.first() if self.static else self.seen

    @cached_property
    def type(self) -> Literal["number", "truth", "category", "text", "other"]:
        dtype = self.seen.dtype
        if isinstance(dtype, pd.CategoricalDtype):
            return "category"
        if dtype.kind in "iuf":
            return "number"
        if dtype.kind == "b":
            return "truth"
        return "text" if any(isinstance(value, str) for value in self.seen) else "other"

    @cached_property
    def whole(self) -> bool:
        return self.type == "number" and bool((self.seen.astype(float) % 1 == 0).all())

    @cached_property
    def integer(self) -> bool:
        """Whether its type is that of whole numbers, or float only because of gaps."""
        return self.whole and (self.seen.dtype.kind in "iu" or self.missing > 0)

    def examples(self, most: int = 3) -> str:
        """Return the first distinct values as text."""
        if self.nested:
            return ""
        values = self.seen.drop_duplicates().head(most).tolist()
        shown = (f"{value:g}" if isinstance(value, float) else " ".join(repr(value).split()) for value in values)
        return ", ".join(text if len(text) <= 24 else f"{text[:23]}…" for text in shown)

    def kind(self) -> tuple[Kind, str]:
        """Return the kind of covariate that the column would be, and the reason."""
        levels = self.seen.nunique()
        if self.type == "truth":
            return "categorical", "true or false"
        if self.type == "category":
            return "categorical", f"categories, {levels} in use"
        if self.type != "number":
            return "categorical", f"{'text' if self.type == 'text' else 'values'} with {levels} levels"
        few = levels <= max(2, min(MAX_CODES, len(self.units) // 3))
        if self.whole and few:
            low, high = float(self.seen.min()), float(self.seen.max())
            if high - low < MAX_CODE_RANGE and not (low == 0 and levels >= MIN_COUNT_VALUES):
                return "categorical", f"{levels} distinct whole numbers"
        if few and not self.whole:
            return "continuous", f"{levels} distinct numbers; if they are codes, make it categorical"
        return "continuous", "whole numbers" if self.integer else "numbers"

    def measure(self) -> tuple[Measure, str]:
        """Return the kind of measurement that the column would be, and the reason if it is not Gaussian."""
        levels, dtype = self.seen.nunique(), self.seen.dtype
        if self.type == "truth":
            return "bernoulli", "true or false"
        if self.type != "number":
            if levels > 2 and isinstance(dtype, pd.CategoricalDtype) and dtype.ordered:
                return "ordinal", f"ordered categories, {levels} in use"
            return ("categorical", f"{levels} levels") if levels > 2 else ("bernoulli", "two levels")
        values = self.seen.astype(float)
        if len(values) < MIN_VALUES:
            return "gaussian", ""
        low, mean, var = float(values.min()), float(values.mean()), float(values.var())
        if self.whole and low == 0.0 and float(values.max()) == 1.0:
            rarer = min(int(values.sum()), int((values == 0).sum()))
            if rarer < MIN_LEVEL_ROWS:
                return "gaussian", f"only 0 and 1, one of them in {rarer} row(s), too few for a level"
            return "bernoulli", "only 0 and 1"
        countlike = (
            levels >= MIN_COUNT_VALUES
            and float(values.max()) <= MAX_COUNT
            and float((values == 0).mean()) >= MIN_ZERO_SHARE
        )
        if self.whole and low == 0.0 and countlike:
            kind: Measure = "poisson" if var < 1.5 * mean else "negative_binomial"
            return kind, f"counts from 0; their variance is {var / mean:.2g} times their mean"
        if low > 0.0 and levels > MAX_CODES:
            plain, log = _skewness(values), _skewness(values.map(math.log))
            if plain > MIN_SKEWNESS and abs(log) < plain / 2:
                return "lognormal", f"positive and skewed ({plain:.1f}; {log:.1f} of its logarithm)"
        return "gaussian", ""

    def unusable(self, name: str) -> str | None:
        """Return why the column should be left out; None if it can be used."""
        if not len(self.seen):
            return "empty"
        if self.nested or self.type == "other":
            first = self.seen.iloc[0]
            example = ", such as days since the start of the study" if isinstance(first, date) else ""
            return f"holds {type(first).__name__} values; turn them into numbers{example}"
        levels = self.seen.nunique()
        if levels == 1:
            return "always the same"
        if levels > MAX_CODES and (self.type == "text" or self.whole) and IDENTIFIER.fullmatch(str(name)):
            return "named like an identifier; if it names the patient, make it the instance"
        if self.whole and len(self.seen) == levels == float(self.seen.max()) - float(self.seen.min()) + 1 > MAX_CODES:
            return "numbers the rows one by one; if it is the time, make it the time column"
        if self.type == "text":
            return self._unusable_text(levels)
        return (
            f"{levels} categories are more than {MAX_LEVELS}"
            if self.type == "category" and levels > MAX_LEVELS
            else None
        )

    def _unusable_text(self, levels: int) -> str | None:
        if self.seen.map(lambda text: DATE.fullmatch(str(text)) is not None).mean() > 0.9:
            return "dates as text; turn them into numbers, such as days since the start of the study"
        if levels > MAX_CODES and pd.to_numeric(self.seen, errors="coerce").notna().mean() > 0.9:
            return "numbers as text; turn them into numbers, and the rest into gaps"
        if levels > MAX_LEVELS:
            return f"text with {levels} levels, more than {MAX_LEVELS}"
        distinct = self.units.nunique()
        return "text that is hardly ever repeated" if distinct > 2 and 2 * distinct > len(self.units) else None


def _skewness(values: pd.Series[float]) -> float:
    centred = values - values.mean()
    return float((centred**3).mean() / (centred**2).mean() ** 1.5)
