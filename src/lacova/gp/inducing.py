"""Inducing inputs S and the whitened belief q(v) = N(m, H) about the inducing values u = C v, C Cᵀ = K_SS."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from sklearn.cluster import kmeans_plusplus
from torch import Tensor, nn

from lacova.covariates.space import CovariateSpace
from lacova.linalg import cholesky, log_det, solve_lower


class Whitened(NamedTuple):
    """q(v): the mean m (L×M) and the Cholesky factor of the precision H⁻¹ (L×M×M)."""

    mean: Tensor
    precision_factor: Tensor

    def spread(self, a: Tensor) -> Tensor:
        """aᵀ H a for each column of a (L×M×n): L×n."""
        return solve_lower(self.precision_factor, a).square().sum(-2)

    def kl(self) -> Tensor:
        """KL[N(m, H) ‖ N(0, I)], summed over latent dimensions."""
        size = self.mean.shape[-1]
        eye = torch.eye(size, dtype=self.mean.dtype, device=self.mean.device).expand_as(self.precision_factor)
        trace = solve_lower(self.precision_factor, eye).square().sum((-2, -1))
        return 0.5 * (trace + self.mean.square().sum(-1) - size + log_det(self.precision_factor)).sum()


class NaturalStatistics(NamedTuple):
    """What the data say of v: precision A (L×M×M) and its product with the mean, b (L×M), scaled to the table."""

    precision: Tensor
    shift: Tensor


class InducingPoints(nn.Module):
    """S, learnt by gradient in its continuous columns, and q(v) in natural parameters, moved by natural gradients.

    Starts from m = 0, H = I, where the KL of q(v) is zero.
    """

    precision: Tensor
    shift: Tensor
    levels: Tensor

    def __init__(
        self, inputs: Tensor, space: CovariateSpace, latent_dim: int, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        count = len(inputs)
        inputs = inputs.to(dtype)
        self._continuous, self._categorical = space.continuous, space.categorical
        self.locations = nn.Parameter(inputs[:, space.continuous].clone())
        self.register_buffer("levels", inputs[:, space.categorical].clone())
        self.register_buffer("precision", torch.eye(count, dtype=dtype).repeat(latent_dim, 1, 1))
        self.register_buffer("shift", torch.zeros(latent_dim, count, dtype=dtype))

    @property
    def inputs(self) -> Tensor:
        """S (M×Q)."""
        s = self.locations.new_zeros(len(self.locations), len(self._continuous) + len(self._categorical))
        s[:, self._continuous] = self.locations
        s[:, self._categorical] = self.levels
        return s

    def belief(self) -> Whitened:
        """q(v)."""
        factor = cholesky(self.precision, jitter=0.0)
        return Whitened(torch.cholesky_solve(self.shift[..., None], factor)[..., 0], factor)

    @torch.no_grad()
    def natural_step(self, statistics: NaturalStatistics, rate: float) -> None:
        """One natural-gradient step: H⁻¹ ← (1−ρ) H⁻¹ + ρ (I + A), H⁻¹m ← (1−ρ) H⁻¹m + ρ b.

        The bounds are quadratic in v, so that ρ = 1 on the whole table lands on their optimum.
        """
        eye = torch.eye(self.precision.shape[-1], dtype=self.precision.dtype, device=self.precision.device)
        self.precision.lerp_(eye + statistics.precision, rate)
        self.shift.lerp_(statistics.shift, rate)


def spread_rows(features: Tensor, count: int, seed: int) -> Tensor:
    """Indices of at most `count` different rows, spread out by k-means++."""
    values = features.double().numpy()
    count = min(count, len(np.unique(values, axis=0)))
    if count == 0:
        return torch.zeros(0, dtype=torch.long)
    return torch.as_tensor(kmeans_plusplus(values, count, random_state=seed)[1])
