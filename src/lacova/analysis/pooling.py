"""Rubin's rules: one result from the same analysis of several completed tables."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import stdtr, stdtrit

Floats = npt.NDArray[np.float64]
COLUMNS = (
    "estimate", "std_error", "dof", "lower", "upper", "t", "p_value", "fmi", "riv", "mc_estimate", "mc_std_error",
    "mc_p_value",
)  # fmt: skip
TOLERATED = 0.1  # Monte Carlo error of an estimate relative to its standard error


class MonteCarloWarning(UserWarning):
    """There are too few completed tables: other draws would give noticeably other figures."""


def pool(estimates: Any, variances: Any, *, dof: Any = None, confidence: float = 0.95) -> pd.DataFrame:
    """Combine estimates of the same k parameters from m completed tables, m ≥ 2.

    Args:
        estimates: one row per completed table and one column per parameter: an array (m×k), a list of rows, a
            DataFrame whose columns name the parameters, or m numbers (a list, a Series) for a single parameter.
        variances: squared standard errors of the estimates, in the same shape.
        dof: degrees of freedom of the analysis on a complete table, such as rows less coefficients; one number, or one
            per parameter. With them, they are adjusted as in Barnard and Rubin (1999); without them, the sample counts
            as large (Rubin, 1987).
        confidence: the confidence of the intervals.

    Returns:
        one row per parameter: `estimate`, `std_error`, `dof`, the confidence limits `lower` and `upper`, the `t`
        statistic and two-sided `p_value` of no effect, `fmi` (fraction of missing information), `riv` (relative
        increase in variance due to the gaps), and `mc_estimate`, `mc_std_error` and `mc_p_value`: the Monte Carlo
        errors of three of these figures, which shrink with the number of tables (jackknife over the tables; of
        two tables, only that of the estimate is known). Warns if that of an estimate exceeds 10% of its standard error.

    Examples:
        >>> pool([1.08, 1.12, 1.1], [0.04, 0.05, 0.03]).round(3).loc[0, ["estimate", "std_error"]].to_dict()
        {'estimate': 1.1, 'std_error': 0.201}
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
    complete = _complete_dof(dof, len(names))
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, such as 0.95; got {confidence!r}.")

    mean, within = q.mean(axis=0), u.mean(axis=0)  # Q̄, Ū
    pooled = _combine(m, mean, q.var(axis=0, ddof=1), within, complete)
    half_width = stdtrit(pooled["dof"], 0.5 + 0.5 * confidence) * pooled["std_error"]
    pooled["lower"], pooled["upper"] = mean - half_width, mean + half_width
    pooled |= {f"mc_{name}": np.full(len(names), np.nan) for name in ("std_error", "p_value")}
    pooled["mc_estimate"] = q.std(axis=0, ddof=1) / math.sqrt(m)  # what the jackknife of a mean is
    if m > 2:  # each row without one table
        off = q - mean
        spread = np.maximum(np.square(off).sum(axis=0) - np.square(off) * m / (m - 1), 0.0) / (m - 2)
        with np.errstate(divide="ignore", invalid="ignore"):  # the last table with any variance may be left out
            parts = _combine(m - 1, mean - off / (m - 1), spread, within + (within - u) / (m - 1), complete)
            pooled |= {f"mc_{name}": jackknife_error(parts[name]) for name in ("std_error", "p_value")}
    _warn_of_few(pooled["mc_estimate"] / pooled["std_error"], m, names)
    return pd.DataFrame({name: pooled[name] for name in COLUMNS}, index=names)


def _combine(m: int, mean: Floats, spread: Floats, within: Floats, complete: Floats) -> dict[str, Floats]:
    """Apply Rubin's rules to the mean Q̄ and variance B of m estimates, and their mean squared standard error Ū."""
    between = (1.0 + 1.0 / m) * spread
    total = within + between  # T
    increase = between / within  # r
    degrees = _degrees(m, between / total, complete)
    t = mean / np.sqrt(total)
    return {
        "estimate": mean, "std_error": np.sqrt(total), "dof": degrees, "t": t,
        "p_value": 2.0 * stdtr(degrees, -np.abs(t)),
        "fmi": (increase + 2.0 / (degrees + 3.0)) / (increase + 1.0), "riv": increase,
    }  # fmt: skip


def _degrees(m: int, share: Floats, complete: Floats) -> Floats:
    """Compute the degrees of freedom ν from the share λ of the variance due to the gaps."""
    # 1/ν = 1/ν_m + 1/ν_obs, with ν_m = (m − 1)/λ² and ν_obs = (ν_com + 1)/(ν_com + 3) ν_com (1 − λ)
    inverse = share**2 / (m - 1) + (1.0 + 2.0 / (complete + 1.0)) / (complete * (1.0 - share))
    return np.divide(1.0, inverse, out=np.full_like(share, np.inf), where=inverse > 0)


def jackknife_error(parts: Floats) -> Floats:
    """Return the Monte Carlo error of a figure, given its values without one table each (White et al., 2011)."""
    error: Floats = np.sqrt(len(parts) - 1.0) * parts.std(axis=0)  # √((m − 1)/m Σ_k (θ_(k) − θ̄)²)
    return error


def _warn_of_few(ratio: Floats, m: int, names: pd.Index[Any]) -> None:
    """Warn of Monte Carlo errors beyond a tenth of the standard error, and say how many tables would do."""
    worst = int(np.argmax(ratio))
    if ratio[worst] > TOLERATED:
        needed = 10 * math.ceil(m * (ratio[worst] / TOLERATED) ** 2 / 10)
        warnings.warn(
            f"{m} completed tables are few: other draws would move the estimate of {names[worst]!r} by "
            f"{ratio[worst]:.0%} of its standard error (its Monte Carlo error), where 10% is tolerable; "
            f"impute about {needed} tables.",
            MonteCarloWarning,
            stacklevel=3,
        )


def _complete_dof(dof: Any, parameters: int) -> Floats:
    """Return the degrees of freedom of the analysis of a complete table, for each parameter."""
    degrees = np.asarray(math.inf if dof is None else dof, dtype=float)
    if degrees.shape not in ((), (parameters,)) or not (degrees > 0).all():
        raise ValueError(
            f"dof must be positive, one number or one per parameter, or None for a large sample; got {dof!r}."
        )
    return np.broadcast_to(degrees, parameters)


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
