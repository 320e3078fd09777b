"""Rubin's rules: one result from the same analysis of several completed tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import stdtr, stdtrit

Floats = npt.NDArray[np.float64]


def pool(estimates: Any, variances: Any, *, dof: float | None = None, confidence: float = 0.95) -> pd.DataFrame:
    """Combine estimates of the same k parameters from m completed tables, m ≥ 2.

    Args:
        estimates: one row per completed table and one column per parameter: an array (m×k), a list of rows, a
            DataFrame whose columns name the parameters, or m numbers (a list, a Series) for a single parameter.
        variances: squared standard errors of the estimates, in the same shape.
        dof: degrees of freedom of the analysis on a complete table, such as rows less coefficients. With it, they are
            adjusted as in Barnard and Rubin (1999); without it, the sample counts as large (Rubin, 1987).
        confidence: the confidence of the intervals.

    Returns:
        one row per parameter: `estimate`, `std_error`, `dof`, the confidence limits `lower` and `upper`, the `t`
        statistic and two-sided `p_value` of no effect, `fmi` (fraction of missing information) and `riv` (relative
        increase in variance due to the gaps).

    Examples:
        >>> pool([1.0, 1.2, 1.1], [0.04, 0.05, 0.03]).round(2).loc[0, ["estimate", "std_error"]].to_dict()
        {'estimate': 1.1, 'std_error': 0.23}
    """
    values, squared_errors = _frame(estimates, "estimates"), _frame(variances, "variances")
    names = _names(values, squared_errors)
    q, u = values.to_numpy(), squared_errors.to_numpy()
    m = len(q)
    if m < 2:
        raise ValueError(f"pooling needs at least 2 completed tables, got {m}; draw some more, such as 20.")
    bad = [repr(name) for name, squares in zip(names, u.T, strict=True) if (squares < 0.0).any() or not squares.any()]
    if bad:
        raise ValueError(f"variances of {', '.join(bad)} are negative, or all zero; expected squared standard errors.")
    if dof is not None and not dof > 0:
        raise ValueError(f"dof must be positive, or None for a large sample; got {dof!r}.")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, such as 0.95; got {confidence!r}.")

    mean, within = q.mean(axis=0), u.mean(axis=0)  # Q̄, Ū
    between = (1.0 + 1.0 / m) * q.var(axis=0, ddof=1)  # (1 + 1/m) B
    total = within + between  # T
    increase = between / within  # r
    degrees = _degrees(m, between / total, dof)
    error = np.sqrt(total)
    half_width = stdtrit(degrees, 0.5 + 0.5 * confidence) * error
    pooled = {
        "estimate": mean, "std_error": error, "dof": degrees, "lower": mean - half_width, "upper": mean + half_width,
        "t": mean / error, "p_value": 2.0 * stdtr(degrees, -np.abs(mean / error)),
        "fmi": (increase + 2.0 / (degrees + 3.0)) / (increase + 1.0), "riv": increase,
    }  # fmt: skip
    return pd.DataFrame(pooled, index=names)


def _degrees(m: int, share: Floats, complete: float | None) -> Floats:
    """Compute the degrees of freedom ν from the share λ of the variance due to the gaps."""
    # 1/ν = 1/ν_m + 1/ν_obs, with ν_m = (m − 1)/λ² and ν_obs = (ν_com + 1)/(ν_com + 3) ν_com (1 − λ)
    inverse = share**2 / (m - 1)
    if complete is not None and math.isfinite(complete):
        inverse = inverse + (complete + 3.0) / ((complete + 1.0) * complete * (1.0 - share))
    return np.divide(1.0, inverse, out=np.full_like(share, np.inf), where=inverse > 0)


def _frame(values: Any, what: str) -> pd.DataFrame:
    """Return numbers as a table with one row per completed table and one column per parameter."""
    try:
        frame = pd.DataFrame(values).astype(float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} must be numbers, one row per completed table: {error}.") from error
    strange = int((~np.isfinite(frame.to_numpy())).sum())
    if strange:
        raise ValueError(
            f"{what} hold {strange} value(s) that are missing or infinite; see why the analysis failed on those tables."
        )
    return frame


def _names(estimates: pd.DataFrame, variances: pd.DataFrame) -> pd.Index[Any]:
    """Return the names of the parameters; estimates and variances must agree on them."""
    if estimates.shape != variances.shape:
        raise ValueError(
            f"estimates have shape {estimates.shape} and variances {variances.shape}; "
            "expected one number each per completed table and parameter."
        )
    named = [frame.columns for frame in (estimates, variances) if frame.columns.dtype.kind not in "iu"]
    if len(named) == 2 and len(named[0]) > 1 and list(named[0]) != list(named[1]):
        raise ValueError(
            f"estimates are of {list(named[0])} but variances of {list(named[1])}; "
            "give both the same columns in the same order."
        )
    return named[0] if named else estimates.columns
