"""A formula and completed tables into outcome and design matrix, and its orthogonal basis."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.linalg import qr, solve_triangular

from lacova.analysis.outcome import binary_outcome
from lacova.data.errors import DataError, hint, listed

Floats = npt.NDArray[np.float64]
RANDOM = re.compile(r"\(([^()|]*)\|([^()|]*)\)")  # (1 + day | patient)


@dataclass(frozen=True)
class Design:
    """Outcome and design matrix of all completed tables together, which so share indicators and spline bases.

    Attributes:
        y: outcome of each row; of a logistic regression, whether it is the event.
        x: design matrix; its columns are the coefficients.
        names: of the coefficients.
        terms: the columns of x by the term of the formula that they belong to, without the intercept.
        used: the columns of the table that the formula names.
        z: design matrix of the random effects; None without such a term.
        group: the column whose values have random effects of their own; None without such a term.
        event: of a logistic regression, the level whose log-odds are modelled and the other one, in words.
    """

    y: Floats
    x: Floats
    names: list[str]
    terms: dict[str, list[int]]
    used: frozenset[str]
    z: Floats | None = None
    group: str | None = None
    event: str | None = None


class Basis(NamedTuple):
    """Orthonormal basis Q of the columns of X, and C with X C = Q, so that β = C γ where Xβ = Qγ."""

    q: Floats
    c: Floats


def design(frame: pd.DataFrame, formula: str, binary: bool = False) -> Design:
    """Read a formula such as "y ~ x + arm" or "y ~ x + arm + (1 | patient)" and apply it to the rows of a table.

    Args:
        frame: the completed tables.
        formula: the formula.
        binary: whether the outcome is a level, of two, instead of a number.
    """
    from formulaic import Formula

    fixed, effects, group = _split(formula)
    if binary and group is not None:
        raise DataError(
            f"formula {formula!r} has random effects, which are those of a linear regression; in a logistic one, "
            f"cluster the rows: cluster={group!r} (--cluster {group})."
        )
    sides = _matrices(frame, fixed, formula)
    y, x = (getattr(sides, side, None) for side in ("lhs", "rhs"))
    if not isinstance(y, pd.DataFrame) or not isinstance(x, pd.DataFrame) or not x.shape[1]:
        raise DataError(
            f"formula {formula!r} must have one {'outcome' if binary else 'number'} on its left and terms on its "
            "right: 'y ~ x + arm'."
        )
    event = None
    if binary:
        y, event = binary_outcome(y, frame)
    elif y.shape[1] != 1:
        raise DataError(
            f"formula {formula!r} must have one number on its left: 'y ~ x + arm'. For an outcome of two levels, "
            "choose regression='logistic' (--regression logistic)."
        )
    indices: Any = x.model_spec.term_indices
    terms = {str(term): list(columns) for term, columns in indices.items() if str(term) != "1" and columns}
    parts = [y, x]
    if effects is not None:
        parts.append(_matrices(frame, effects, formula))
        if parts[2].shape[1] not in (1, 2):
            raise DataError(
                f"the random effects ({effects} | {group}) have {parts[2].shape[1]} columns; expected an intercept, "
                f"and at most one slope, of a number: (1 | {group}), or (1 + day | {group})."
            )
    numbers = [pd.DataFrame(part).astype(float).to_numpy() for part in parts]
    # formulaic leaves out rows whose values are missing, such as the logarithm of a negative number.
    if not all(len(part) == len(frame) and np.isfinite(part).all() for part in numbers):
        raise DataError(f"formula {formula!r} gives values that are not finite, such as the logarithm of 0.")
    z = numbers[2] if effects is not None else None
    used = frozenset(map(str, Formula(fixed).required_variables))
    return Design(numbers[0][:, 0], numbers[1], list(map(str, x.columns)), terms, used, z, group, event)


def named_terms(text: str, design: Design) -> list[int]:
    """Return the columns of the terms in a text such as "arm + arm:visit"."""
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    def factors(term: str) -> frozenset[str]:
        return frozenset(factor.replace(" ", "") for factor in term.split(":"))

    known = {factors(term): columns for term, columns in design.terms.items()}
    try:
        asked = [str(term) for term in Formula(f"0 + {text}")]
    except (FormulaicError, SyntaxError):
        asked = []
    if not asked or any(factors(term) not in known for term in asked):
        raise DataError(
            f"{text!r} names no terms of the formula, which has {listed(list(design.terms))}; "
            "join several that are to be tested together by +."
        )
    return sorted({column for term in asked for column in known[factors(term)]})


def orthogonal_basis(x: Floats, names: list[str], draw: Any) -> Basis:
    """Return an orthonormal basis of the columns, whatever their scales; refuse columns that depend on each other."""
    rows, columns = x.shape
    if rows <= columns:
        raise DataError(f"table {draw} has {rows} rows for {columns} coefficients; expected more rows.")
    largest = np.abs(x).max(axis=0)
    scale = largest * np.sqrt(np.square(x / np.where(largest > 0, largest, 1.0)).sum(axis=0))
    q, r, order = qr(x / np.where(scale > 0, scale, 1.0), mode="economic", pivoting=True)
    # Of a column of length 1, what the others leave. Rounding leaves about ε; a cubic in the calendar year, 1e-8.
    left = np.abs(np.diag(r))
    rank = int((left > 10.0 * max(x.shape) * np.finfo(float).eps).sum())
    if rank < columns:
        weights = solve_triangular(r[:rank, :rank], r[:rank, rank:])
        involved = (np.abs(weights) > 1e-6).any(axis=1)
        culprits = sorted([*order[:rank][involved], *order[rank:]])
        raise DataError(
            f"in table {draw} the coefficients of {listed([names[j] for j in culprits])} cannot be told apart: "
            f"a term repeats others, or a level has no row; take a term out, or merge levels."
        )
    c = np.zeros((columns, columns))
    c[order] = solve_triangular(r, np.eye(columns))
    return Basis(q, c / scale[:, None])


def _split(formula: str) -> tuple[str, str | None, str | None]:
    """Split a formula into its fixed part, its random effects and their group; the latter two may be missing."""
    found = RANDOM.findall(formula)
    if not found:
        return formula, None, None
    if len(found) > 1:
        raise DataError(
            f"formula {formula!r} has {len(found)} terms of random effects; expected one, such as (1 | patient)."
        )
    effects, group = (text.strip().strip("`") for text in found[0])
    fixed = re.sub(rf"\+\s*{RANDOM.pattern}|{RANDOM.pattern}\s*\+", "", formula)
    return RANDOM.sub("1", fixed), effects or "1", group


def _matrices(frame: pd.DataFrame, part: str, formula: str) -> Any:
    """Return what formulaic makes of a part of the formula."""
    from formulaic import Formula, model_matrix
    from formulaic.errors import FormulaicError

    try:
        parsed = Formula(part)
        absent = [name for name in sorted(parsed.required_variables) if name not in frame.columns]
        if absent:
            columns = list(map(str, frame.columns))
            raise DataError(
                f"there is no column or function {absent[0]!r}; the columns are {listed(columns)}."
                f"{hint(absent, columns)}"
            )
        gaps = [name for name in sorted(parsed.required_variables) if frame[name].isna().any()]
        if gaps:
            raise DataError(
                f"column(s) {listed(gaps)} have gaps; the regression takes completed tables: impute them too."
            )
        return model_matrix(parsed, frame, context={})
    except (FormulaicError, SyntaxError) as error:
        reason = re.sub(r"\x1b\[[\d;]*m|[⧛⧚]", "", str(error)).strip().split("\n")[0].rstrip(".")
        raise DataError(f"formula {formula!r} cannot be read: {reason}. Expected one such as 'y ~ x + arm'.") from None
