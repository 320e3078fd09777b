"""Logistic regression of one completed table, by maximum likelihood."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lacova.analysis.design import Basis, Floats
from lacova.analysis.least_squares import Fit, robust
from lacova.data.errors import DataError, listed

# Newton's method needs about 6 steps. Where the outcome is separated, log-odds grow by 1 in each step, until weights
# fall to rounding: after more than 30.
STEPS = 30
CLOSE = 1e-8  # the last step, in standard errors; convergence is quadratic


class Maximum(NamedTuple):
    """The maximum of the likelihood, as a weighted least-squares fit.

    Attributes:
        coefficients: β̂ (p).
        basis: of √W X, with W = diag μ(1 − μ) (N×p).
        residuals: Pearson's, (y − μ)/√W (N).
    """

    coefficients: Floats
    basis: Basis
    residuals: Floats


def logistic(y: Floats, basis: Basis, names: list[str]) -> Fit:
    """Fit log-odds Xβ of y = 1; rows are independent. The covariance is the inverse information, (Xᵀ W X)⁻¹.

    Degrees of freedom are rows less coefficients.

    Args:
        y: outcome, 0 or 1 (N).
        basis: of the design matrix (N×p).
        names: of the coefficients.
    """
    best = maximum(y, basis, names)
    c = best.basis.c
    return Fit(best.coefficients, c @ c.T, np.full(len(c), float(len(y) - len(c))))


def clustered_logistic(y: Floats, basis: Basis, codes: npt.NDArray[np.intp], names: list[str], cluster: str) -> Fit:
    """Fit log-odds Xβ of y = 1; rows of different clusters are independent, those of a cluster need not be.

    The variance is CR2, with Bell and McCaffrey's degrees of freedom, of the weighted least-squares fit at the maximum;
    for generalised linear models it is that of Kauermann and Carroll (2001).

    Args:
        y: outcome, 0 or 1 (N).
        basis: of the design matrix (N×p).
        codes: cluster of each row, 0..G−1.
        names: of the coefficients.
        cluster: the name of the column of clusters.
    """
    best = maximum(y, basis, names)
    return robust(best.coefficients, best.residuals, best.basis, codes, names, cluster)


def maximum(y: Floats, basis: Basis, names: list[str]) -> Maximum:
    """Return the maximum of the likelihood by Newton's method on the orthonormal basis; refuse a separated outcome."""
    q, c = basis
    if y.min() == y.max():
        raise DataError(
            "all rows have the same level of the outcome; logistic regression expects rows of both levels in each "
            "completed table: use more rows."
        )
    sign = 2.0 * y - 1.0
    gamma = np.zeros(len(c))
    for _ in range(STEPS):
        step, length = _newton_step(sign, q, gamma)
        if step is None:
            break
        gamma = gamma + _shortened(sign, q, gamma, step)
        eta = q @ gamma
        if length <= CLOSE and np.abs(q @ step).max() <= 1e-6 * (1.0 + np.abs(eta).max()):
            weighted, r = np.linalg.qr(_root_weights(eta)[:, None] * q)
            return Maximum(c @ gamma, Basis(weighted, c @ np.linalg.inv(r)), _residuals(sign, eta))
    _refuse_separation(sign, basis, names)
    raise DataError(
        f"logistic regression found no maximum in {STEPS} steps; look for extreme values in the columns of the formula."
    )


def _newton_step(sign: Floats, q: Floats, gamma: Floats) -> tuple[Floats | None, float]:
    """Return Newton's step H⁻¹g and its length √(gᵀH⁻¹g) in standard errors; no step where H is singular.

    It is that of weighted least squares. With H = RᵀR from a triangular factor, the tiny weights of well-fitted rows
    are not lost beside others.
    """
    eta = q @ gamma
    weighted, r = np.linalg.qr(_root_weights(eta)[:, None] * q)
    half = weighted.T @ _residuals(sign, eta)
    try:
        return np.linalg.solve(r, half), float(np.linalg.norm(half))
    except np.linalg.LinAlgError:
        return None, 0.0


def _shortened(sign: Floats, q: Floats, gamma: Floats, step: Floats) -> Floats:
    """Return the step, halved until the likelihood does not fall."""
    before = _log_likelihood(sign, q @ gamma)
    for _ in range(STEPS):
        if _log_likelihood(sign, q @ (gamma + step)) >= before - 1e-9 * (1.0 + abs(before)):
            break
        step = 0.5 * step
    return step


def _log_likelihood(sign: Floats, eta: Floats) -> float:
    return -float(np.logaddexp(0.0, -sign * eta).sum())


def _root_weights(eta: Floats) -> Floats:
    """Return √(μ(1 − μ)) = 1/(exp(η/2) + exp(−η/2))."""
    half = np.exp(-0.5 * np.abs(eta))
    weights: Floats = half / (1.0 + half**2)
    return weights


def _residuals(sign: Floats, eta: Floats) -> Floats:
    """Return Pearson's residuals (y − μ)/√(μ(1 − μ)) = s exp(−sη/2), s = 2y − 1."""
    residuals: Floats = sign * np.exp(np.minimum(-0.5 * sign * eta, 700.0))  # below the largest number
    return residuals


def _refuse_separation(sign: Floats, basis: Basis, names: list[str]) -> None:
    """Refuse an outcome that some direction d of the coefficients separates: s_i x_iᵀd ≥ 0, and > 0 in some rows.

    Along d the likelihood rises without end. Of such directions, the one with the smallest sum of |d_j|, each in
    standard deviations of its column, names few coefficients.
    """
    from scipy.optimize import linprog

    x = np.linalg.solve(basis.c.T, basis.q.T).T
    constant = x.std(axis=0) <= 1e-12 * np.abs(x).max(axis=0)
    if constant.any():
        x = np.where(constant, x, x - x.mean(axis=0))
    signed = sign[:, None] * x / np.where(constant, np.abs(x).max(axis=0), x.std(axis=0))
    both = np.hstack([signed, -signed])  # d = d⁺ − d⁻
    found = linprog(
        np.ones(both.shape[1]), A_ub=-both, b_ub=np.zeros(len(both)), A_eq=both.mean(axis=0)[None], b_eq=[1.0]
    )
    if found.status == 0:
        direction = np.abs(np.subtract(*np.split(found.x, 2)))
        chosen = [names[j] for j in np.flatnonzero((direction > 1e-7 * direction.max()) & ~constant)] or names
        raise DataError(
            f"the outcome is separated by {listed(chosen)}: some rows, or all, have the same level of the outcome "
            "wherever these terms set them apart, so the log-odds have no finite estimate. Merge levels, take a term "
            "out, or give the estimates of a penalised fit, such as Firth's, to lacova.pool."
        )
