"""A factor model of residuals with gaps, fitted by EM: y_d = W_dᵀz + ε_d with z ~ N(0, I) and ε_d ~ N(0, ψ_d)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ITERATIONS = 30
LEAST_NOISE = 0.05  # ψ_d as a share of the variance of its column
RIDGE = 1.0  # pseudo-rows in which coefficients are 0


class Factors(NamedTuple):
    """A factor model with K factors.

    Attributes:
        loadings: W (D×K).
        noise: ψ (D,).
    """

    loadings: Tensor
    noise: Tensor

    def posterior(self, residual: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (N×K) and covariance (N×K×K) of z given the observed residuals (N×D)."""
        weight = mask / self.noise
        outer = self.loadings[:, :, None] * self.loadings[:, None, :]  # D×K×K
        precision = torch.tensordot(weight, outer, dims=1) + torch.eye(outer.shape[-1], dtype=weight.dtype)
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        return (covariance @ ((weight * residual) @ self.loadings)[..., None])[..., 0], covariance


def fit_factors(residual: Tensor, mask: Tensor, count: int, generator: torch.Generator) -> Factors:
    """Fit a factor model to residuals of mean 0 (N×D, float64), 0 where the mask (as numbers) is 0, by EM."""
    entries = mask.sum(0).clamp_min(1.0)
    variance = (residual.square().sum(0) / entries).clamp_min(1e-6)
    draws = torch.randn(residual.shape[1], count, generator=generator, dtype=residual.dtype)
    factors = Factors(0.3 * variance.sqrt()[:, None] * draws, 0.7 * variance if count else variance)
    if not count:
        return factors
    ridge = RIDGE * torch.eye(count, dtype=residual.dtype)
    for _ in range(ITERATIONS):
        mean, covariance = factors.posterior(residual, mask)
        second = (covariance + mean[:, :, None] * mean[:, None, :]).flatten(1)  # E zzᵀ
        gram = (mask.mT @ second).unflatten(1, (count, count)) + ridge
        cross = residual.mT @ mean  # D×K
        loadings = torch.linalg.solve(gram, cross)
        noise = (residual.square().sum(0) - (loadings * cross).sum(1)) / entries
        factors = Factors(loadings, torch.maximum(noise, LEAST_NOISE * variance))
    return factors
