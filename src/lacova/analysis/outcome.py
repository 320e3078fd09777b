"""The outcome of a logistic regression: which of its two levels is the event."""

from __future__ import annotations

from typing import Any

import pandas as pd

from lacova.data.errors import DataError, listed


def binary_outcome(outcome: Any, frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return a column that is 1 where a row has the event, and words that name the event and the other level.

    The event is the second of two levels: the higher number, True, the last in the order of a categorical column or of
    the alphabet.

    Args:
        outcome: what formulaic makes of the left side of the formula: a column, or an indicator of each level.
        frame: the completed tables.
    """
    terms = [str(term) for term in outcome.model_spec.term_indices]
    if len(terms) != 1:
        raise DataError(f"the left side of the formula has {len(terms)} terms, {listed(terms)}; expected one outcome.")
    name, columns = terms[0].strip("`"), [str(column) for column in outcome.columns]
    if all(column.startswith(f"{name}[") for column in columns):
        present = [k for k in range(len(columns)) if outcome.iloc[:, k].any()]
        levels: list[Any] = [columns[k].removeprefix(f"{name}[").removesuffix("]") for k in present]
        event = outcome.iloc[:, present[-1]] == 1
    else:
        values = frame[name] if name in frame else outcome.iloc[:, 0]
        levels = sorted(values.unique().tolist())
        event = values == levels[-1]
    if len(levels) != 2:
        raise DataError(_not_two(name, levels))
    other, chosen = (f"{level:g}" if type(level) in (int, float) else str(level) for level in levels)
    return event.astype(float).to_frame(), f"{name} = {chosen} (against {other})"


def _not_two(name: str, levels: list[Any]) -> str:
    """Return the error about an outcome that does not have two levels."""
    count = f"{len(levels)} level{'s' * (len(levels) != 1)}"
    text = f"the outcome {name!r} has {count} in the completed tables, {listed(levels)}; logistic regression expects 2"
    if len(levels) < 2:
        return f"{text}: choose another outcome, or more rows."
    if not isinstance(levels[0], int | float):
        return f"{text}: compare one with the others, such as I({name} == {str(levels[-1])!r}) ~ …"
    if {0, 1} <= set(levels) and any(level % 1 for level in levels):
        return f"{text}: where 0 and 1 were imputed as numbers, give the column the kind 'bernoulli' in the schema."
    return f"{text}: cut the number, such as I({name} > {levels[len(levels) // 2]:g}) ~ …"
