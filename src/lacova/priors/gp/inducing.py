"""Inducing inputs S, and q(v) = N(m, H) of the whitened inducing values: u = C v with C Cᵀ = K_SS."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from lacova.data.covariate_space import CovariateSpace
from lacova.nn.clusters import k_means_plus_plus
from lacova.nn.linalg import cholesky, identity, inverse_lower, log_det
from lacova.priors.base import NaturalStatistics


@dataclass(frozen=True)
class Whitened:
    """q(v) = N(m, H) of the whitened inducing values v: m (L×M) and the Cholesky factor of H⁻¹ (L×M×M)."""

    mean: Tensor
    precision_factor: Tensor

    @cached_property
    def root(self) -> Tensor:
        """R (L×M×M) with RᵀR = H: the inverse of the factor, computed once."""
        return inverse_lower(self.precision_factor)

    def to(self, dtype: torch.dtype) -> Whitened:
        """Return the same distribution in another precision; its root is computed before rounding."""
        if dtype == self.mean.dtype:
            return self
        other = Whitened(self.mean.to(dtype), self.precision_factor.to(dtype))
        other.__dict__["root"] = self.root.to(dtype)
        return other

    def spread(self, a: Tensor) -> Tensor:
        """Return aᵀ H a (L×n) for each column of a (L×M×n)."""
        return (self.root @ a).square().sum(-2)

    def kl(self) -> Tensor:
        """Return KL[q(v) ‖ p(v)] = KL[N(m, H) ‖ N(0, I)], summed over latent dimensions."""
        size = self.mean.shape[-1]
        trace: Tensor = torch.linalg.vector_norm(self.root, dim=(-2, -1)) ** 2
        return 0.5 * (trace + self.mean.square().sum(-1) - size + log_det(self.precision_factor)).sum()


class InducingPoints(nn.Module):
    """Inducing inputs S, and q(v) of the whitened inducing values in natural parameters.

    The continuous columns of S are learnt by gradients; its categorical columns are fixed. Natural-gradient steps move
    q(v), which starts from m = 0 and H = I, that is, from the prior p(v).

    Args:
        inputs: S to start from (M×Q).
        space: layout of X.
        latent_dim: L.
        dtype: precision of S and q(v).
    """

    precision: Tensor
    shift: Tensor
    levels: Tensor
    order: Tensor

    def __init__(
        self, inputs: Tensor, space: CovariateSpace, latent_dim: int, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        count = len(inputs)
        inputs = inputs.to(dtype)
        order = torch.tensor([*space.continuous, *space.categorical], dtype=torch.long).argsort()
        self.register_buffer("order", order, persistent=False)
        self.locations = nn.Parameter(inputs[:, space.continuous].clone())
        self.register_buffer("levels", inputs[:, space.categorical].clone())
        self.register_buffer("precision", torch.eye(count, dtype=dtype).repeat(latent_dim, 1, 1))
        self.register_buffer("shift", torch.zeros(latent_dim, count, dtype=dtype))

    @property
    def inputs(self) -> Tensor:
        """S (M×Q)."""
        return torch.cat([self.locations, self.levels], dim=1).index_select(1, self.order)

    def distribution(self) -> Whitened:
        """Return q(v), the variational distribution of the whitened inducing values (not of covariates)."""
        factor = cholesky(self.precision, jitter=0.0)
        root = inverse_lower(factor)
        q = Whitened((root.mT @ (root @ self.shift[..., None]))[..., 0], factor)
        q.__dict__["root"] = root  # fills the cached property
        return q

    @torch.no_grad()
    def natural_step(self, statistics: NaturalStatistics, rate: float | Tensor) -> None:
        """Take a natural-gradient step of size ρ = `rate`: H⁻¹ ← (1−ρ) H⁻¹ + ρ (I + A), H⁻¹m ← (1−ρ) H⁻¹m + ρ b.

        The bounds are quadratic in v, so that ρ = 1 on the whole table reaches their optimum.
        """
        eye = identity(self.precision.shape[-1], self.precision.dtype, self.precision.device)
        self.precision.lerp_(eye + statistics.precision, rate)
        self.shift.lerp_(statistics.shift, rate)


def spread_rows(features: Tensor, count: int, seed: int) -> Tensor:
    """Return indices of at most `count` distinct rows, spread out by k-means++."""
    values = features.double().numpy()
    count = min(count, len(np.unique(values, axis=0)))
    if count == 0:
        return torch.zeros(0, dtype=torch.long)
    return torch.as_tensor(k_means_plus_plus(values, count, seed))
