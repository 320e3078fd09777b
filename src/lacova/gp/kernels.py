"""Additive kernels over covariates, one set of parameters per latent dimension, batched over latent dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lacova.covariates.space import CovariateSpace
from lacova.gp.formula import Component


class AdditiveKernel(nn.Module):
    """k_l(x, x') = Σ_r s²_{lr} Π_{c in gp} exp(−(x_c − x'_c)²/2ℓ²_{lrc}) Π_{c in cat} 1[x_c = x'_c].

    A factor `cat(instance)` is not evaluated: components that have it are only asked for within one patient,
    where it is 1.

    Args:
        components: the terms of the formula.
        space: layout of X.
        latent_dim: L.
        dtype: precision of the parameters and of the kernel matrices.
    """

    def __init__(
        self,
        components: Sequence[Component],
        space: CovariateSpace,
        latent_dim: int,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.components = tuple(components)
        self.shared = tuple(r for r, c in enumerate(components) if not c.instance)
        self.own = tuple(r for r, c in enumerate(components) if c.instance)
        self._continuous = [[space.names.index(c) for c in component.continuous] for component in components]
        self._categorical = [[space.names.index(c) for c in component.categorical] for component in components]
        count = len(components)
        self.log_variance = nn.Parameter(torch.full((count, latent_dim), -math.log(max(count, 1)), dtype=dtype))
        self.log_lengthscale = nn.ParameterList(
            [nn.Parameter(torch.zeros(len(c), latent_dim, dtype=dtype)) for c in self._continuous]
        )

    def forward(self, x1: Tensor, x2: Tensor, part: Sequence[int]) -> Tensor:
        """Sum of the components in `part` between x1 (…×n₁×Q) and x2 (…×n₂×Q): L×…×n₁×n₂."""
        used = {c for r in part for c in self._continuous[r] + self._categorical[r]}
        gap = {c: x1[..., :, None, c] - x2[..., None, :, c] for c in used}
        pairs = (*torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2]), x1.shape[-2], x2.shape[-2])
        latent = (-1, *(1 for _ in pairs))
        total = self.log_variance.new_zeros(self.log_variance.shape[1], *pairs)
        for r in part:
            exponent = self.log_variance[r].view(latent)
            for c, log_lengthscale in self.scales(r):
                exponent = exponent - 0.5 * gap[c] ** 2 * torch.exp(-2.0 * log_lengthscale).view(latent)
            value = exponent.exp()
            for c in self._categorical[r]:
                value = value * (gap[c] == 0)
            total = total + value
        return total

    def scales(self, r: int) -> list[tuple[int, Tensor]]:
        """Continuous columns of component r, each with its log length-scales (L,)."""
        return list(zip(self._continuous[r], self.log_lengthscale[r], strict=True))

    def levels(self, r: int) -> list[int]:
        """Categorical columns of component r, the instance aside."""
        return self._categorical[r]

    def diagonal(self, part: Sequence[int]) -> Tensor:
        """k(x, x) of the components in `part`, which does not depend on x: (L,)."""
        return self.log_variance[list(part)].exp().sum(0)
