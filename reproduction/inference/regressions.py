"""The analyses of complete tables: least squares, a regression of the variance, and mixed models by REML."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.stats import t as student

from lacova import pool
from lacova.analysis.pooling import MonteCarloWarning

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Fit(NamedTuple):
    """Coefficients β (p,), their covariance (p×p), the variance of the noise, and the residual degrees of freedom."""

    coefficients: Floats
    covariance: Floats
    noise: float
    dof: float


def design(*columns: Any) -> Floats:
    """Return a design matrix: an intercept and these columns."""
    return np.column_stack([np.ones(len(columns[0])), *columns]).astype(float)


def least_squares(y: Any, x: Floats, lost: int = 0) -> Fit:
    """Regress y on x; `lost` are degrees of freedom that centring by groups has already taken."""
    y = np.asarray(y, dtype=float)
    inverse = np.linalg.inv(x.T @ x)
    coefficients = inverse @ (x.T @ y)
    dof = len(y) - x.shape[1] - lost
    noise = float(np.square(y - x @ coefficients).sum() / dof)
    return Fit(coefficients, noise * inverse, noise, dof)


def mixed_model(y: Any, x: Floats, group: Any, z: Floats, dof: float) -> Fit:
    """Fit y = xβ + z b_p + ε with b_p ~ N(0, σ² L Lᵀ) and ε ~ N(0, σ²) by restricted maximum likelihood (REML).

    Args:
        y: the outcome (N,).
        x: the design of the fixed effects (N×p).
        group: the patient of each row.
        z: the design of the random effects (N×q).
        dof: degrees of freedom of the coefficients' intervals.
    """
    y, (_, code) = np.asarray(y, dtype=float), np.unique(group, return_inverse=True)
    q, p, sums = z.shape[1], x.shape[1], Sums.of(y, x, code, z)
    lower = np.tril_indices(q)

    def solve(theta: Floats) -> tuple[float, Floats, Floats, float]:
        root = np.zeros((q, q))
        root[lower] = theta
        return _profile(sums, root, len(y) - p)

    start = np.eye(q)[lower] * 0.7
    found = minimize(lambda theta: solve(theta)[0], start, method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-6})
    _, coefficients, information, rss = solve(found.x)
    noise = rss / (len(y) - p)
    return Fit(coefficients, noise * np.linalg.inv(information), noise, dof)


class Sums(NamedTuple):
    """Cross-products per patient, zᵀz (P×q×q) and zᵀ[x, y] (P×q×(p+1)), and in all, [x, y]ᵀ[x, y]."""

    zz: Floats
    zw: Floats
    ww: Floats

    @classmethod
    def of(cls, y: Floats, x: Floats, code: Any, z: Floats) -> Sums:
        w = np.column_stack([x, y])
        zz, zw = np.zeros((code.max() + 1, z.shape[1], z.shape[1])), np.zeros((code.max() + 1, z.shape[1], w.shape[1]))
        np.add.at(zz, code, z[:, :, None] * z[:, None])
        np.add.at(zw, code, z[:, :, None] * w[:, None])
        return cls(zz, zw, w.T @ w)


def _profile(sums: Sums, root: Floats, dof: int) -> tuple[float, Floats, Floats, float]:
    """Return −2 log restricted likelihood at this L (σ² maximised out, without constants), β, xᵀV⁻¹x and yᵀPy.

    V_p = I + z_p L Lᵀ z_pᵀ, so that V_p⁻¹ = I − z_p L M_p⁻¹ Lᵀ z_pᵀ and |V_p| = |M_p| with M_p = I + Lᵀ z_pᵀz_p L.
    """
    middle = np.eye(len(root)) + root.T @ sums.zz @ root
    side = root.T @ sums.zw
    crossed = sums.ww - np.einsum("pqi,pqj->ij", side, np.linalg.solve(middle, side))
    information, right = crossed[:-1, :-1], crossed[:-1, -1]
    coefficients = np.linalg.solve(information, right)
    rss = float(crossed[-1, -1] - coefficients @ right)
    logs = np.linalg.slogdet(middle)[1].sum() + np.linalg.slogdet(information)[1]
    return float(dof * np.log(rss) + logs), coefficients, information, rss


def variance_regression(y: Any, x: Floats, steps: int = 50) -> tuple[Floats, Floats]:
    """Fit y ~ N(xβ, exp(xγ)) by maximum likelihood, by weighted least squares and scoring in turn (Harvey, 1976)."""
    y, gamma = np.asarray(y, dtype=float), np.zeros(x.shape[1])
    gamma[0] = np.log(least_squares(y, x).noise)
    for _ in range(steps):
        weight = np.exp(-x @ gamma)
        beta = np.linalg.solve((x.T * weight) @ x, (x.T * weight) @ y)
        step = np.linalg.solve(x.T @ x, x.T @ (np.square(y - x @ beta) * weight - 1.0))
        gamma = gamma + np.clip(step, -1.0, 1.0)
    return beta, gamma


def interval(fit: Fit, place: int, confidence: float) -> list[float]:
    """Return a coefficient with the ends of its interval."""
    estimate = fit.coefficients[place]
    half = student.ppf(0.5 + 0.5 * confidence, fit.dof) * np.sqrt(fit.covariance[place, place])
    return [estimate, estimate - half, estimate + half]


def pooled(fits: Sequence[Fit], places: dict[str, int], confidence: float) -> dict[str, list[float]]:
    """Return named coefficients with their intervals, pooled by Rubin's rules where there are several tables."""
    if len(fits) == 1:
        return {name: interval(fits[0], place, confidence) for name, place in places.items()}
    at = list(places.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MonteCarloWarning)  # what is judged is the mean of many repetitions
        result = pool(
            [fit.coefficients[at] for fit in fits], [np.diag(fit.covariance)[at] for fit in fits],
            dof=min(fit.dof for fit in fits), confidence=confidence,
        )  # fmt: skip
    return dict(zip(places, result[["estimate", "lower", "upper"]].to_numpy().tolist(), strict=True))
