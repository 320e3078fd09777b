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
    """x = A c + N(0, Σ), y = C c + B (x − A c) + W z + ε with z ~ N(0, I) and ε_d ~ N(0, ψ_d), given features c.

    Attributes:
        covariance: Σ (k×k).
        loadings: (B, W) (D×(k+r)).
        noise: ψ (D,).
        of_x: Aᵀ (C×k).
        of_y: Cᵀ (C×D).
    """

    covariance: Tensor
    loadings: Tensor
    noise: Tensor
    of_x: Tensor
    of_y: Tensor


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
    x: Tensor, y: Tensor, factors: int, generator: torch.Generator | None = None, weight: Tensor | None = None,
    features: Tensor | None = None,
) -> LinearModel:  # fmt: skip
    """Fit the model to values with gaps (NaN) by EM; it is right where gaps in x depend on y, as long as y is observed.

    Measurements that few rows show have no loadings.

    Args:
        x: numbers (n×k, float64).
        y: measurements (n×D).
        factors: r.
        generator: of the first loadings of the factors.
        weight: of each row (n,); None for 1.
        features: c of each row (n×C); None for an intercept.
    """
    weight = torch.ones(len(x), dtype=x.dtype) if weight is None else weight
    features = torch.ones(len(x), 1, dtype=x.dtype) if features is None else features
    total, counts = weight.sum(), features.shape[1]
    x_mask, y_mask = x.isfinite(), y.isfinite()
    y_mask = y_mask & (y_mask.sum(0) >= MIN_SHOWN)
    x, y = (torch.where(mask, values, torch.nan) for mask, values in ((x_mask, x), (y_mask, y)))
    of_x, of_y = regress(x, features, weight), regress(y, features, weight)
    variance = variance_of(x - features @ of_x, weight)
    variance_of_y = variance_of(y - features @ of_y, weight)
    x, y, shown = torch.nan_to_num(x), torch.nan_to_num(y), y_mask.to(y.dtype)
    counted = shown * weight[:, None]
    k, d, eye = x.shape[1], y.shape[1], torch.eye(x.shape[1] + factors, dtype=x.dtype)
    covariance, noise = torch.diag(variance), 0.7 * variance_of_y
    loadings = torch.zeros(d, k + factors, dtype=x.dtype)
    if factors:
        start = torch.randn(d, factors, generator=generator, dtype=x.dtype)
        loadings[:, k:] = 0.3 * variance_of_y.sqrt()[:, None] * start
    known = torch.nn.functional.pad(x_mask, (0, factors))
    ridge = RIDGE * torch.diag(torch.cat([x.new_full((counts,), TINY), variance, x.new_ones(factors)]))
    for _ in range(ITERATIONS):
        # E-step: mean and covariance of f = (x − A c, z) in each row, given what is observed.
        prior = eye.clone()
        prior[:k, :k] = torch.linalg.inv(covariance)
        value = torch.nn.functional.pad((x - features @ of_x) * x_mask, (0, factors))
        precision = prior + torch.tensordot(shown / noise, loadings[:, :, None] * loadings[:, None], dims=1)
        right = (shown / noise * (y - features @ of_y)) @ loadings - (precision @ value[..., None])[..., 0]
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(of_gaps(precision, ~known)))
        mean = torch.where(known, value, (inverse @ torch.where(known, 0.0, right)[..., None])[..., 0])
        spread = torch.where(known[:, :, None] | known[:, None], 0.0, inverse)
        # M-step: the regression of x on c and its covariance, and the regression of y on (c, f).
        shift = regress(mean[:, :k], features, weight)
        left = mean[:, :k] - features @ shift
        second = torch.tensordot(weight, spread[:, :k, :k], dims=1) + (left * weight[:, None]).mT @ left
        before, covariance = covariance, (second + RIDGE * torch.diag(variance)) / (total + RIDGE)
        if d:
            regressors = torch.cat([features, mean], 1)
            moments = regressors[:, :, None] * regressors[:, None]
            moments[:, counts:, counts:] += spread
            gram = (counted.mT @ moments.flatten(1)).unflatten(1, ridge.shape) + ridge
            cross = (y * counted).mT @ regressors
            fitted = torch.linalg.solve(gram, cross)
            rest = (y.square() * counted).sum(0) - (fitted * cross).sum(1)
            noise = torch.maximum(rest / counted.sum(0).clamp_min(1.0), LEAST_NOISE * variance_of_y)
            loadings = fitted[:, counts:]
            of_y = fitted[:, :counts].mT + shift @ loadings[:, :k].mT  # about the new mean of x
        of_x = of_x + shift
        if not d and ((covariance - before).abs() / (variance[:, None] * variance).sqrt()).max() < CONVERGED:
            break
    return LinearModel(covariance, loadings, noise, of_x, of_y)


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


def variance_of(left: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted variances of residuals with gaps (n×m, NaN)."""
    known = left.isfinite() * weight[:, None]
    mean_square = (torch.nan_to_num(left).square() * known).sum(0) / known.sum(0).clamp_min(1.0)
    return mean_square.clamp_min(LEAST_VARIANCE)
