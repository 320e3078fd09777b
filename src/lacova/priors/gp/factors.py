"""Kernels other than `gp` and `cat`: linear, periodic, Matérn, GPyTorch's; each latent dimension has parameters."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lacova.data.covariate_space import CovariateSpace
from lacova.data.schema import Schema
from lacova.priors.gp.formula import MATERN_NU, Component, Factor, FormulaError


class FactorKernel(nn.Module, ABC):
    """One factor of a component: a kernel over some columns of X."""

    def __init__(self, columns: Sequence[int]) -> None:
        super().__init__()
        self.columns = list(columns)

    @abstractmethod
    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Return k(x1, x2), which broadcasts to L×…×n₁×n₂, for x1 (…×n₁×Q) and x2 (…×n₂×Q)."""

    @abstractmethod
    def diagonal(self, x: Tensor) -> Tensor:
        """Return k(x, x), which broadcasts to L×…×n, at each row of x (…×n×Q)."""

    def gaps(self, x1: Tensor, x2: Tensor) -> list[Tensor]:
        """Return x_c − x'_c (…×n₁×n₂) for each column."""
        return [x1[..., :, None, c] - x2[..., None, :, c] for c in self.columns]


class Linear(FactorKernel):
    """Σ_c x_c x'_c; the component's variance scales it."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return x1[..., self.columns] @ x2[..., self.columns].mT

    def diagonal(self, x: Tensor) -> Tensor:
        return x[..., self.columns].square().sum(-1)


class Periodic(FactorKernel):
    """exp(−2 Σ_c sin²(π(x_c − x'_c)/p_c)/ℓ_c²); periods are learnt, or fixed at `period` in standardised units."""

    log_period: Tensor

    def __init__(
        self, columns: Sequence[int], latent_dim: int, dtype: torch.dtype, period: float | None = None
    ) -> None:
        super().__init__(columns)
        self.log_lengthscale = nn.Parameter(torch.zeros(len(columns), latent_dim, dtype=dtype))
        if period is None:
            self.log_period = nn.Parameter(torch.zeros(len(columns), latent_dim, dtype=dtype))
        else:
            self.register_buffer("log_period", torch.full((len(columns), 1), math.log(period), dtype=dtype))

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        exponent = x1.new_zeros(())
        for gap, log_lengthscale, log_period in zip(
            self.gaps(x1, x2), self.log_lengthscale, self.log_period, strict=True
        ):
            wave = torch.sin(math.pi * gap * _per_latent(torch.exp(-log_period), gap))
            exponent = exponent - 2.0 * wave.square() * _per_latent(torch.exp(-2.0 * log_lengthscale), gap)
        return exponent.exp()

    def diagonal(self, x: Tensor) -> Tensor:
        return x.new_ones(())


class Matern(FactorKernel):
    """Matérn kernel of the distance r = √Σ_c (x_c − x'_c)²/ℓ_c². With d = √(2ν) r:

    ν = ½: exp(−d); ν = 3/2: (1 + d) exp(−d); ν = 5/2: (1 + d + d²/3) exp(−d).
    """

    def __init__(self, columns: Sequence[int], latent_dim: int, dtype: torch.dtype, nu: float | None = None) -> None:
        super().__init__(columns)
        self.nu = MATERN_NU[-1] if nu is None else nu
        self.log_lengthscale = nn.Parameter(torch.zeros(len(columns), latent_dim, dtype=dtype))

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        square = x1.new_zeros(())
        for gap, log_lengthscale in zip(self.gaps(x1, x2), self.log_lengthscale, strict=True):
            square = square + gap.square() * _per_latent(torch.exp(-2.0 * log_lengthscale), gap)
        d = (2.0 * self.nu * square).clamp_min(1e-30).sqrt()  # a root has an infinite derivative at 0
        decay = torch.exp(-d)
        if self.nu == 0.5:
            return decay
        return (1.0 + d if self.nu == 1.5 else 1.0 + d + d.square() / 3.0) * decay

    def diagonal(self, x: Tensor) -> Tensor:
        return x.new_ones(())


class Passed(FactorKernel):
    """A kernel with GPyTorch's interface, applied to its columns only; each latent dimension has a copy."""

    def __init__(self, columns: Sequence[int], latent_dim: int, dtype: torch.dtype, kernel: nn.Module) -> None:
        super().__init__(columns)
        self.copies = nn.ModuleList([copy.deepcopy(kernel) for _ in range(latent_dim)]).to(dtype)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        one, two = x1[..., self.columns], x2[..., self.columns]
        return torch.stack([kernel(one, two).to_dense() for kernel in self.copies])

    def diagonal(self, x: Tensor) -> Tensor:
        one = x[..., self.columns]
        return torch.stack([kernel(one).diagonal(dim1=-1, dim2=-2) for kernel in self.copies])


def build_factor(
    factor: Factor, space: CovariateSpace, latent_dim: int, dtype: torch.dtype,
    scale: Mapping[str, float], passed: Mapping[str, nn.Module],
) -> FactorKernel:  # fmt: skip
    """Build the kernel of a factor.

    Args:
        factor: kernel, columns and option, as the formula states them.
        space: layout of X.
        latent_dim: L.
        dtype: precision of the parameters.
        scale: size of one standardised unit of each column in its own units.
        passed: kernels with GPyTorch's interface, by their names in the formula.
    """
    columns = [space.names.index(c) for c in factor.columns]
    if factor.kernel == "lin":
        return Linear(columns)
    if factor.kernel == "periodic":
        period = None if factor.option is None else factor.option / scale.get(factor.columns[0], 1.0)
        return Periodic(columns, latent_dim, dtype, period)
    if factor.kernel == "matern":
        return Matern(columns, latent_dim, dtype, factor.option)
    return Passed(columns, latent_dim, dtype, passed[factor.kernel])


def check_passed(components: Sequence[Component], passed: Mapping[str, object], schema: Schema) -> None:
    """Raise a `FormulaError` for a passed kernel that cannot be evaluated on its columns in the formula."""
    for name, kernel in passed.items():
        if not isinstance(kernel, nn.Module):
            raise FormulaError(
                f"kernel {name!r} is {kernel!r}; expected an instance such as gpytorch.kernels.RQKernel()."
            )
    for component in components:
        for factor in component.factors:
            kernel = passed.get(factor.kernel)
            reason = None if kernel is None else _reason_unusable(kernel, len(factor.columns))
            if reason:
                where = f"{factor} in term {component.formula(schema)!r}"
                raise FormulaError(f"{where}: {type(kernel).__name__} {reason}")


@torch.no_grad()
def _reason_unusable(kernel: object, columns: int) -> str | None:
    """Return why a kernel cannot be used on so many columns; None if it can."""
    x = torch.linspace(-1.0, 1.0, 3, dtype=torch.float64)[:, None].expand(-1, columns)
    try:
        value = copy.deepcopy(kernel).double()(x, x).to_dense()  # type: ignore[attr-defined]
    except Exception as error:
        return f"cannot be evaluated on {columns} column(s): {error}"
    if value.shape != (3, 3):
        return f"gives values of shape {tuple(value.shape)} for 3 rows; expected (3, 3), so leave out its batch_shape."
    return None


def _per_latent(parameter: Tensor, gap: Tensor) -> Tensor:
    """Reshape a parameter (L,) to broadcast with gaps (…×n₁×n₂)."""
    return parameter.view(-1, *(1 for _ in gap.shape))
