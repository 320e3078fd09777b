"""A linear model of measurements given numbers and factors, fitted to rows with gaps in both."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ITERATIONS = 40
RIDGE = 1.0  # pseudo-rows in which loadings are 0, and in which the numbers are independent
LEAST_NOISE = 0.02  # ψ_d as a share of the variance of its column
LEAST_VARIANCE = 1e-6  # of a column


class LinearModel(NamedTuple):
    """y = B x + W z + ε with x ~ N(0, Σ), z ~ N(0, I) and ε_d ~ N(0, ψ_d).

    Attributes:
        covariance: Σ (k×k).
        loadings: (B, W) (D×(k+r)).
        noise: ψ (D,).
    """

    covariance: Tensor
    loadings: Tensor
    noise: Tensor


def of_gaps(precision: Tensor, gaps: Tensor) -> Tensor:
    """Return Λ_u (N×K×K) from Λ (K×K, or N×K×K) and which numbers are missing (N×K), the identity elsewhere."""
    both = gaps[:, :, None] & gaps[:, None, :]
    return torch.where(both, precision, torch.eye(gaps.shape[1], dtype=precision.dtype, device=precision.device))


def fit_linear_model(x: Tensor, y: Tensor, factors: int, generator: torch.Generator | None = None) -> LinearModel:
    """Fit the model to values with gaps (NaN) by EM; it is right where gaps in x depend on y, as long as y is observed.

    Both have means, which are fitted along and dropped.

    Args:
        x: numbers (n×k, float64).
        y: measurements (n×D).
        factors: r.
        generator: of the first loadings of the factors.
    """
    x_mask, y_mask = x.isfinite(), y.isfinite()
    x, y, shown = torch.where(x_mask, x, 0.0), torch.where(y_mask, y, 0.0), y_mask.to(y.dtype)
    k, d, eye = x.shape[1], y.shape[1], torch.eye(x.shape[1] + factors, dtype=x.dtype)
    centre, intercept = _mean(x, x_mask), _mean(y, y_mask)
    variance = _mean((x - centre).square() * x_mask, x_mask).clamp_min(LEAST_VARIANCE)
    of_y = _mean((y - intercept).square() * y_mask, y_mask).clamp_min(LEAST_VARIANCE)
    covariance, noise = torch.diag(variance), 0.7 * of_y
    loadings = torch.zeros(d, k + factors, dtype=x.dtype)
    if factors:
        loadings[:, k:] = 0.3 * of_y.sqrt()[:, None] * torch.randn(d, factors, generator=generator, dtype=x.dtype)
    known = torch.nn.functional.pad(x_mask, (0, factors))
    ridge = RIDGE * torch.diag(torch.cat([x.new_zeros(1), variance, x.new_ones(factors)]))
    for _ in range(ITERATIONS):
        # E-step: mean and covariance of f = (x − μ, z) in each row, given what is observed.
        prior = eye.clone()
        prior[:k, :k] = torch.linalg.inv(covariance)
        value = torch.nn.functional.pad((x - centre) * x_mask, (0, factors))
        weight = shown / noise
        precision = prior + torch.tensordot(weight, loadings[:, :, None] * loadings[:, None], dims=1)
        right = (weight * (y - intercept)) @ loadings - (precision @ value[..., None])[..., 0]
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(of_gaps(precision, ~known)))
        mean = torch.where(known, value, (inverse @ torch.where(known, 0.0, right)[..., None])[..., 0])
        spread = torch.where(known[:, :, None] | known[:, None], 0.0, inverse)
        # M-step: the covariance of x, and the regression of y on (1, f).
        shift = mean[:, :k].mean(0)
        second = spread + mean[:, :, None] * mean[:, None]
        of_x = second[:, :k, :k].sum(0) - len(x) * shift[:, None] * shift
        covariance = (of_x + RIDGE * torch.diag(variance)) / (len(x) + RIDGE)
        if d:
            with_one = torch.cat([torch.ones(len(x), 1, dtype=x.dtype), mean], 1)
            moments = with_one[:, :, None] * with_one[:, None]
            moments[:, 1:, 1:] += spread
            gram = (shown.mT @ moments.flatten(1)).unflatten(1, ridge.shape) + ridge
            cross = (y * shown).mT @ with_one
            fitted = torch.linalg.solve(gram, cross)
            left = y.square().sum(0) - (fitted * cross).sum(1)
            noise = torch.maximum(left / shown.sum(0).clamp_min(1.0), LEAST_NOISE * of_y)
            loadings = fitted[:, 1:]
            intercept = fitted[:, 0] + loadings[:, :k] @ shift  # about the new mean of x
        centre = centre + shift
    return LinearModel(covariance, loadings, noise)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the means of the observed values of each column."""
    return values.sum(0) / mask.sum(0).clamp_min(1)
