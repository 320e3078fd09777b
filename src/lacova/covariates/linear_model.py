"""A linear model of measurements given numbers and factors, fitted to rows with gaps in both."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ITERATIONS = 40
MOST_FACTORS = 5
RIDGE = 1.0  # pseudo-rows in which loadings are 0, and in which the numbers are independent
LEAST_NOISE = 0.02  # ψ_d as a share of the variance of its column
LEAST_VARIANCE = 1e-6  # of a column
TINY = 1e-3  # pseudo-rows in which features say nothing
CONVERGED = 1e-4  # change of the covariance, in standard deviations, at which EM stops
MIN_SHOWN = 20  # rows that show a measurement, for it to have loadings


class LinearModel(NamedTuple):
    """y = B x + W z + ε with x ~ N(0, Σ), z ~ N(0, I) and ε_d ~ N(0, ψ_d).

    Attributes:
        covariance: Σ (k×k).
        loadings: (B, W) (D×(k+r)).
        noise: ψ (D,).
        centre: mean of x (k,).
        intercept: mean of y (D,), where x is at its mean.
    """

    covariance: Tensor
    loadings: Tensor
    noise: Tensor
    centre: Tensor
    intercept: Tensor


def of_gaps(precision: Tensor, gaps: Tensor) -> Tensor:
    """Return Λ_u (N×K×K) from Λ (K×K, or N×K×K) and which numbers are missing (N×K), the identity elsewhere."""
    both = gaps[:, :, None] & gaps[:, None, :]
    return torch.where(both, precision, torch.eye(gaps.shape[1], dtype=precision.dtype, device=precision.device))


def identifiable_factors(columns: int) -> int:
    """Return the largest K for which D columns determine loadings and noise: (D − K)² ≥ D + K (Ledermann, 1937).

    Two columns have one factor: they do not determine its loadings, but their product, the covariance.
    """
    return max((k for k in range(columns) if (columns - k) ** 2 >= columns + k or (columns, k) == (2, 1)), default=0)


def most_factors(columns: int) -> int:
    """Return r, the number of factors of D columns in a model of them."""
    return min(identifiable_factors(columns), MOST_FACTORS)


def fit_linear_model(
    x: Tensor, y: Tensor, factors: int, generator: torch.Generator | None = None, weight: Tensor | None = None
) -> LinearModel:
    """Fit the model to values with gaps (NaN) by EM; it is right where gaps in x depend on y, as long as y is observed.

    Measurements that few rows show have no loadings.

    Args:
        x: numbers (n×k, float64).
        y: measurements (n×D).
        factors: r.
        generator: of the first loadings of the factors.
        weight: of each row (n,); None for 1.
    """
    weight = torch.ones(len(x), dtype=x.dtype) if weight is None else weight
    total = weight.sum()
    x_mask, y_mask = x.isfinite(), y.isfinite()
    y_mask = y_mask & (y_mask.sum(0) >= MIN_SHOWN)
    x, y, shown = torch.where(x_mask, x, 0.0), torch.where(y_mask, y, 0.0), y_mask.to(y.dtype)
    known_x, counted = x_mask * weight[:, None], shown * weight[:, None]
    k, d, eye = x.shape[1], y.shape[1], torch.eye(x.shape[1] + factors, dtype=x.dtype)
    centre, intercept = _mean(x, known_x), _mean(y, counted)
    variance = _mean((x - centre).square(), known_x).clamp_min(LEAST_VARIANCE)
    of_y = _mean((y - intercept).square(), counted).clamp_min(LEAST_VARIANCE)
    covariance, noise = torch.diag(variance), 0.7 * of_y
    loadings = torch.zeros(d, k + factors, dtype=x.dtype)
    if factors:
        loadings[:, k:] = 0.3 * of_y.sqrt()[:, None] * torch.randn(d, factors, generator=generator, dtype=x.dtype)
    known = torch.nn.functional.pad(x_mask, (0, factors))
    ridge = RIDGE * torch.diag(torch.cat([x.new_full((1,), TINY), variance, x.new_ones(factors)]))
    for _ in range(ITERATIONS):
        # E-step: mean and covariance of f = (x − μ, z) in each row, given what is observed.
        prior = eye.clone()
        prior[:k, :k] = torch.linalg.inv(covariance)
        value = torch.nn.functional.pad((x - centre) * x_mask, (0, factors))
        precision = prior + torch.tensordot(shown / noise, loadings[:, :, None] * loadings[:, None], dims=1)
        right = (shown / noise * (y - intercept)) @ loadings - (precision @ value[..., None])[..., 0]
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(of_gaps(precision, ~known)))
        mean = torch.where(known, value, (inverse @ torch.where(known, 0.0, right)[..., None])[..., 0])
        spread = torch.where(known[:, :, None] | known[:, None], 0.0, inverse)
        # M-step: the covariance of x, and the regression of y on (1, f).
        shift = weight @ mean[:, :k] / total
        second = spread + mean[:, :, None] * mean[:, None]
        of_x = torch.tensordot(weight, second[:, :k, :k], dims=1) - total * shift[:, None] * shift
        before, covariance = covariance, (of_x + RIDGE * torch.diag(variance)) / (total + RIDGE)
        if d:
            with_one = torch.cat([torch.ones(len(x), 1, dtype=x.dtype), mean], 1)
            moments = with_one[:, :, None] * with_one[:, None]
            moments[:, 1:, 1:] += spread
            gram = (counted.mT @ moments.flatten(1)).unflatten(1, ridge.shape) + ridge
            cross = (y * counted).mT @ with_one
            fitted = torch.linalg.solve(gram, cross)
            left = (y.square() * counted).sum(0) - (fitted * cross).sum(1)
            noise = torch.maximum(left / counted.sum(0).clamp_min(1.0), LEAST_NOISE * of_y)
            loadings = fitted[:, 1:]
            intercept = fitted[:, 0] + loadings[:, :k] @ shift  # about the new mean of x
        centre = centre + shift
        if not d and ((covariance - before).abs() / (variance[:, None] * variance).sqrt()).max() < CONVERGED:
            break
    return LinearModel(covariance, loadings, noise, centre, intercept)


def regress(values: Tensor, features: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the coefficients (F×m) of a regression of values with gaps (n×m, NaN) on features (n×F)."""
    known = values.isfinite().to(values.dtype)
    known = known if weight is None else known * weight[:, None]
    outer = (features[:, :, None] * features[:, None]).flatten(1)
    size = features.shape[1]
    gram = (known.mT @ outer).unflatten(1, (size, size)) + TINY * torch.eye(size, dtype=values.dtype)
    cross = (torch.nan_to_num(values) * known).mT @ features
    coefficients: Tensor = torch.linalg.solve(gram, cross).mT
    return coefficients


def with_intercept(hot: Tensor, known: Tensor, shares: Tensor | None = None) -> Tensor:
    """Return an intercept and the levels of categories (N×C), at their shares where they are missing.

    Args:
        hot, known: the levels, as `CovariateSpace.levels_of` returns them.
        shares: of the levels; None for those of these rows.
    """
    if shares is None:
        shares = (hot * known).sum(0) / known.sum(0).clamp_min(1.0)
    return torch.cat([hot.new_ones(len(hot), 1), torch.where(known > 0.0, hot, shares)], dim=1)


def of_patients(values: Tensor, patient: Tensor) -> Tensor:
    """Return the averages of each row's patient (N×m), of values without gaps."""
    zeros = values.new_zeros(int(patient.max()) + 1, values.shape[1])
    count = torch.bincount(patient).to(values.dtype)[:, None]
    return (zeros.index_add(0, patient, values) / count)[patient]


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted means of each column."""
    return (values * weight).sum(0) / weight.sum(0).clamp_min(1.0)
