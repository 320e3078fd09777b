"""Additive kernels over covariates, one set of parameters per latent dimension, batched over latent dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from lacova.covariates.space import CovariateSpace
from lacova.gp.factors import FactorKernel, build
from lacova.gp.formula import Component


class AdditiveKernel(nn.Module):
    """k_l(x, x') = Σ_r s²_{lr} Π_{c in gp} exp(−(x_c − x'_c)²/2ℓ²_{lrc}) Π_{c in cat} 1[x_c = x'_c] Π_f k_{lrf}(x, x').

    The last product is over the factors of other kernels. A factor `cat(instance)` is not evaluated: components that
    have it are only asked for within one patient, where it is 1.

    Args:
        components: the terms of the formula.
        space: layout of X.
        latent_dim: L.
        dtype: precision of the parameters and of the kernel matrices.
        scale: the size of one standardised unit of a column in its own units, in which a formula states periods.
        passed: kernels with GPyTorch's interface, by their names in the formula; each latent dimension has copies.
    """

    def __init__(
        self, components: Sequence[Component], space: CovariateSpace, latent_dim: int,
        dtype: torch.dtype = torch.float64, *, scale: Mapping[str, float] | None = None,
        passed: Mapping[str, nn.Module] | None = None,
    ) -> None:  # fmt: skip
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
        self.others = nn.ModuleList(
            nn.ModuleList(build(f, space, latent_dim, dtype, scale or {}, passed or {}) for f in component.factors)
            for component in components
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
            for factor in self.factors(r):
                value = value * factor(x1, x2)
            total = total + value
        return total

    def scales(self, r: int) -> list[tuple[int, Tensor]]:
        """Columns of component r under `gp`, each with its log length-scales (L,)."""
        return list(zip(self._continuous[r], self.log_lengthscale[r], strict=True))

    def levels(self, r: int) -> list[int]:
        """Categorical columns of component r, the instance aside."""
        return self._categorical[r]

    def factors(self, r: int) -> Sequence[FactorKernel]:
        """The other kernels of component r."""
        return cast(Sequence[FactorKernel], self.others[r])

    def diagonal(self, x: Tensor, part: Sequence[int]) -> Tensor:
        """k(x, x) of the components in `part` at each row of x (…×n×Q): L×…×n."""
        latent = (-1, *(1 for _ in x.shape[:-1]))
        total = self.log_variance[[r for r in part if not self.factors(r)]].exp().sum(0).view(latent)
        for r in part:
            if self.factors(r):
                value = self.log_variance[r].exp().view(latent)
                for factor in self.factors(r):
                    value = value * factor.diagonal(x)
                total = total + value
        return total.expand(-1, *x.shape[:-1])
