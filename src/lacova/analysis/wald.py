"""Test of several parameters at once from several completed tables: D1, the pooled Wald test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from lacova.analysis.pooling import Floats, jackknife_error


def pool_wald(estimates: Any, covariances: Any, *, dof: float | None = None) -> pd.Series[float]:
    """Test whether k parameters are all 0, by the pooled Wald test D1 of Li, Raghunathan and Rubin (1991).

    It takes the fraction of missing information for equal in all k parameters.

    Args:
        estimates: one row per completed table and one column per parameter (m×k).
        covariances: covariance matrix of the estimates of each table (m×k×k).
        dof: degrees of freedom of the analysis on a complete table. With it, those of the test are Reiter's (2007);
            without it, the sample counts as large.

    Returns:
        `F`, its degrees of freedom `df1` = k and `df2`, `p_value`, the average `riv` (relative increase in variance due
        to the gaps), and `mc_p_value`, the Monte Carlo error of the p-value (jackknife over the tables).

    Examples:
        >>> pool_wald([[1.0, 2.0], [1.2, 1.9], [1.1, 2.2]], [np.eye(2)] * 3, dof=50).round(3).to_dict()["p_value"]
        0.084
    """
    q, u = np.asarray(estimates, dtype=float), np.asarray(covariances, dtype=float)
    if q.ndim != 2 or len(q) < 2 or not q.shape[1]:
        raise ValueError(f"estimates have shape {q.shape}; expected a row per completed table, 2 or more of them.")
    if u.shape != (*q.shape, q.shape[1]):
        raise ValueError(
            f"covariances have shape {u.shape}; expected a {q.shape[1]}×{q.shape[1]} matrix per table: "
            f"{(*q.shape, q.shape[1])}."
        )
    if not (np.isfinite(q).all() and np.isfinite(u).all()):
        raise ValueError("estimates or covariances have gaps; see why the analysis failed on those tables.")
    if dof is not None and not dof > 0:
        raise ValueError(f"dof must be positive, or None for a large sample; got {dof!r}.")
    complete = math.inf if dof is None else float(dof)
    statistic, df2, p_value, increase = d1(q, u, complete)
    error = math.nan
    if len(q) > 2:
        left = ~np.eye(len(q), dtype=bool)  # each row without one table
        error = float(jackknife_error(np.array([d1(q[rows], u[rows], complete)[2] for rows in left])))
    return pd.Series({
        "F": statistic, "df1": float(q.shape[1]), "df2": df2, "p_value": p_value, "riv": increase, "mc_p_value": error
    })  # fmt: skip


def d1(q: Floats, u: Floats, complete: float) -> tuple[float, float, float, float]:
    """Return the statistic D1, its degrees of freedom, the p-value, and the average relative increase in variance."""
    m, k = q.shape
    mean, deviations = q.mean(axis=0), q - q.mean(axis=0)
    # With Ū = S C S and S diagonal, all is done on the scale of correlations.
    within = u.mean(axis=0)  # Ū
    scale = np.sqrt(np.diag(within))
    if not (scale > 0).all() or np.linalg.eigvalsh(within / np.outer(scale, scale))[0] < 1e-12:
        raise ValueError(
            f"the mean covariance matrix of the {k} parameters is singular, so they cannot be tested together; "
            "test fewer."
        )
    root = np.linalg.cholesky(within / np.outer(scale, scale))
    whitened = np.linalg.solve(root, (deviations / scale).T)
    increase = (1.0 + 1.0 / m) * float(np.square(whitened).sum()) / (m - 1) / k  # r = (1 + 1/m) tr(B Ū⁻¹)/k
    distance = float(np.square(np.linalg.solve(root, mean / scale)).sum())  # Q̄ᵀ Ū⁻¹ Q̄
    statistic = distance / (k * (1.0 + increase))
    df2 = denominator_dof(increase, k, m, complete)
    return statistic, df2, float(fdtrc(k, min(df2, 1e12), statistic)), increase


def denominator_dof(r: float, k: int, m: int, complete: float = math.inf) -> float:
    """Return the denominator's degrees of freedom of D1.

    Args:
        r: average relative increase in variance due to the gaps.
        k: number of parameters.
        m: number of completed tables.
        complete: degrees of freedom of the analysis on a complete table.
    """
    t = k * (m - 1)
    observed = (complete + 1.0) / (complete + 3.0) * complete if math.isfinite(complete) else math.inf  # ν*
    a = r * t / (t - 2) if t > 2 else math.inf
    c1, c2 = observed - 2.0 * (1.0 + a), observed - 4.0 * (1.0 + a)
    if k > 1 and t > 4 and math.isfinite(observed) and c2 > 0:  # Reiter (2007)
        z = 1.0 / c2 + (
            a**2 * c1 / ((1.0 + a) ** 2 * c2) + 8.0 * a**2 * c1 / ((1.0 + a) * c2**2) + 4.0 * a**2 / ((1.0 + a) * c2)
            + 4.0 * a**2 / (c2 * c1) + 16.0 * a**2 * c1 / c2**3 + 8.0 * a**2 / c2**2
        ) / (t - 4)  # fmt: skip
        return 4.0 + 1.0 / z
    # Li, Raghunathan and Rubin (1991); of a single parameter it is Rubin's, and so is the limit by ν*/(1 + r)
    if r == 0.0:
        return observed
    large = (
        4.0 + (t - 4) * (1.0 + (1.0 - 2.0 / t) / r) ** 2 if t > 4 else t * (1.0 + 1.0 / k) * (1.0 + 1.0 / r) ** 2 / 2.0
    )
    if k == 1:
        large = t * (1.0 + 1.0 / r) ** 2
    return 1.0 / (1.0 / large + (1.0 + r) / observed)
