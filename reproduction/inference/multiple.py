"""Multiple imputations that are proper under the simulated distributions: chained equations, and a mixed model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from reproduction.inference.regressions import Floats, Mask

TABLES = 20


def chained(values: Floats, rng: np.random.Generator, sweeps: int = 10) -> Floats:
    """Fill the gaps of a table of numbers (N×K) once, by Bayesian linear regressions with normal noise.

    In a first pass over the columns, each is regressed on those before it, which are filled by then. Each sweep
    regresses each column with gaps on all others. Without sweeps this is sequential regression, which is exact where a
    gap in a column implies gaps in all later ones.
    """
    filled, gaps = values.copy(), np.isnan(values)
    for k in np.flatnonzero(gaps.any(0)):
        _fill(filled, k, np.arange(k), gaps[:, k], rng)
    for _ in range(sweeps):
        for k in np.flatnonzero(gaps.any(0)):
            _fill(filled, k, np.delete(np.arange(values.shape[1]), k), gaps[:, k], rng)
    return filled


def _fill(values: Floats, column: int, others: Floats, gap: Mask, rng: np.random.Generator) -> None:
    """Draw σ² and β from their posterior under the prior 1/σ², then the missing entries."""
    x = np.column_stack([np.ones(len(values)), values[:, others]])
    inverse = np.linalg.inv(x[~gap].T @ x[~gap])
    mean = inverse @ (x[~gap].T @ values[~gap, column])
    residual = values[~gap, column] - x[~gap] @ mean
    variance = residual @ residual / rng.chisquare(len(residual) - len(mean))
    beta = mean + np.linalg.cholesky(variance * inverse) @ rng.standard_normal(len(mean))
    values[gap, column] = x[gap] @ beta + np.sqrt(variance) * rng.standard_normal(gap.sum())


def multilevel(values: Floats, rng: np.random.Generator, burn_in: int = 200, thin: int = 20) -> Iterator[Floats]:
    """Yield completions of visits (P×V×K) drawn by Gibbs sampling from a multivariate random-intercept model.

    y_pv ~ N(b_p, Σ) and b_p ~ N(μ, Ψ), with a flat prior of μ and weak inverse Wishart priors of Σ and Ψ: the model
    known as "pan" (Schafer and Yucel, 2002).
    """
    patients, visits, width = values.shape
    gaps, scale = np.isnan(values), np.nanvar(values, axis=(0, 1))
    y = np.where(gaps, np.nanmean(values, axis=(0, 1)), values)
    mu, within, between = y.mean((0, 1)), np.diag(scale) / 2, np.diag(scale) / 2
    patterns = [pattern for pattern in np.unique(gaps.reshape(-1, width), axis=0) if pattern.any()]
    for sweep in range(burn_in + thin * TABLES):
        inner, outer = np.linalg.inv(within), np.linalg.inv(between)
        cov = np.linalg.inv(outer + visits * inner)
        mean = (mu @ outer + y.sum(1) @ inner) @ cov
        b = mean + rng.standard_normal((patients, width)) @ np.linalg.cholesky(cov).T
        mu = b.mean(0) + np.linalg.cholesky(between / patients) @ rng.standard_normal(width)
        between = _inverse_wishart(b - mu, scale, rng)
        for pattern in patterns:
            _fill_visits(y, b, within, (gaps == pattern).all(2), pattern, rng)
        within = _inverse_wishart((y - b[:, None]).reshape(-1, width), scale, rng)
        if sweep >= burn_in and (sweep - burn_in) % thin == thin - 1:
            yield y.copy()


def _fill_visits(y: Floats, b: Floats, within: Floats, rows: Mask, gap: Mask, rng: np.random.Generator) -> None:
    """Draw the missing entries of the visits with one pattern of gaps, given the patient's intercepts."""
    residual, mean = (y - b[:, None])[rows][:, ~gap], np.broadcast_to(b[:, None], y.shape)[rows][:, gap]
    slope = np.linalg.solve(within[np.ix_(~gap, ~gap)], within[np.ix_(~gap, gap)])
    cov = within[np.ix_(gap, gap)] - within[np.ix_(gap, ~gap)] @ slope
    part = y[rows]
    part[:, gap] = mean + residual @ slope + rng.standard_normal(mean.shape) @ np.linalg.cholesky(cov).T
    y[rows] = part


def _inverse_wishart(residuals: Floats, scale: Floats, rng: np.random.Generator) -> Floats:
    """Draw a covariance from its posterior under a prior with K + 1 degrees of freedom and a tenth of the scale."""
    count, width = residuals.shape
    inverse = np.linalg.inv(residuals.T @ residuals + 0.1 * np.diag(scale))
    normal = rng.standard_normal((count + width + 1, width)) @ np.linalg.cholesky(inverse).T
    return np.linalg.inv(normal.T @ normal)
