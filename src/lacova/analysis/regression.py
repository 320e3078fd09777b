"""Least squares on several completed tables, pooled: the commonest analysis after `impute(draws=)`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from lacova.analysis.pooling import pool
from lacova.data.errors import DataError, hint, listed
from lacova.data.io.dataframes import to_pandas


def pool_regression(completed: Any, formula: str, *, confidence: float = 0.95) -> pd.DataFrame:
    """Fit a linear regression to each completed table, and combine the coefficients by Rubin's rules.

    Rows count as independent: from a table of visits, give the rows of one visit, with earlier values as columns.

    Args:
        completed: the result of `model.impute(table, draws=20)`: completed tables, numbered in a column `draw`.
        formula: as in R, such as "weight ~ baseline + arm"; text makes indicators against its first level. Functions
            and arithmetic are those of formulaic: "log(alt) ~ C(grade)", "I(weight - baseline) ~ arm".
        confidence: the confidence of the intervals.

    Returns:
        one row per coefficient, with the columns of `pool`; degrees of freedom are Barnard and Rubin's.

    Examples:
        >>> table = pd.DataFrame({"draw": [0] * 4 + [1] * 4, "x": [0.0, 1, 2, 3] * 2, "y": [0.0, 1, 3, 3, 0, 1, 2, 4]})
        >>> pool_regression(table, "y ~ x")["estimate"].round(2).to_dict()
        {'Intercept': -0.05, 'x': 1.2}
    """
    frame, _ = to_pandas(completed)
    if "draw" not in frame.columns:
        raise DataError(
            "the table has no column 'draw' that numbers completed tables; give what impute(draws=20) made."
        )
    frame = frame.reset_index(drop=True)
    y, x = _matrices(frame, formula)
    draw = frame["draw"].to_numpy()
    fits = [_least_squares(y[draw == k], x[draw == k], k) for k in pd.unique(draw)]
    estimates, variances = (pd.DataFrame([fit[i] for fit in fits], columns=x.columns) for i in (0, 1))
    return pool(estimates, variances, dof=min(fit[2] for fit in fits), confidence=confidence)


def _matrices(frame: pd.DataFrame, formula: str) -> tuple[pd.Series[float], pd.DataFrame]:
    """Return outcome and design matrix of all tables together, so that all share indicators and spline bases."""
    from formulaic import Formula, model_matrix
    from formulaic.errors import FormulaicError

    try:
        parsed = Formula(formula)
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
        matrices = model_matrix(parsed, frame, context={})
    except (FormulaicError, SyntaxError) as error:
        reason = re.sub(r"\x1b\[[\d;]*m|[⧛⧚]", "", str(error)).strip().split("\n")[0].rstrip(".")
        raise DataError(f"formula {formula!r} cannot be read: {reason}. Expected one such as 'y ~ x + arm'.") from None
    sides: list[Any] = [getattr(matrices, side, None) for side in ("lhs", "rhs")]
    if not all(isinstance(side, pd.DataFrame) for side in sides) or sides[0].shape[1] != 1 or not sides[1].shape[1]:
        raise DataError(f"formula {formula!r} must have one number on its left and terms on its right: 'y ~ x + arm'.")
    y, x = (pd.DataFrame(side).astype(float) for side in sides)
    if not np.isfinite(y.to_numpy()).all() or not np.isfinite(x.to_numpy()).all():
        raise DataError(f"formula {formula!r} gives values that are not finite, such as the logarithm of 0.")
    return y.iloc[:, 0], x


def _least_squares(y: pd.Series[float], x: pd.DataFrame, draw: Any) -> tuple[Any, Any, int]:
    """Return the coefficients, their squared standard errors and the residual degrees of freedom."""
    rows, columns = x.shape
    if rows <= columns:
        raise DataError(f"table {draw} has {rows} rows for {columns} coefficients; expected more rows.")
    coefficients, _, rank, _ = np.linalg.lstsq(x.to_numpy(), y.to_numpy())
    if rank < columns:
        raise DataError(
            f"in table {draw} the coefficients of {listed(list(x.columns))} cannot be told apart: a term repeats "
            "others, or a level has no row; take a term out, or merge levels."
        )
    variance = float(((y.to_numpy() - x.to_numpy() @ coefficients) ** 2).sum()) / (rows - columns)
    return coefficients, variance * np.diag(np.linalg.inv(x.to_numpy().T @ x.to_numpy())), rows - columns
