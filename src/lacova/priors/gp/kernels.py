"""Additive kernels over covariates, one set of parameters per latent dimension, batched over latent dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lacova.data.covariate_space import CovariateSpace
from lacova.priors.gp.factors import FactorKernel, build_factor
from lacova.priors.gp.formula import Component


class AdditiveKernel(nn.Module):
    """k_l(x, x') = Σ_r s²_{lr} Π_{c in gp} exp(−(x_c − x'_c)²/2ℓ²_{lrc}) Π_{c in cat} 1[x_c = x'_c] Π_f k_{lrf}(x, x').

    The last product is over the factors with other kernels. A factor `cat(instance)` is not evaluated: components that
    have it are only evaluated within one patient, where it is 1.

    Args:
        components: the terms of the formula.
        space: layout of X.
        latent_dim: L.
        dtype: precision of the parameters and of the kernel matrices.
        scale: size of one standardised unit of each column in its own units, in which a formula states periods.
        passed: kernels with GPyTorch's interface, by their names in the formula; each latent dimension has a copy.
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
            nn.ModuleList(
                build_factor(f, space, latent_dim, dtype, scale or {}, passed or {}) for f in component.factors
            )
            for component in components
        )

    def forward(self, x1: Tensor, x2: Tensor, part: Sequence[int]) -> Tensor:
        """Return the sum of the components in `part` (L×…×n₁×n₂) between x1 (…×n₁×Q) and x2 (…×n₂×Q).

        The result has the precision of x1 and x2.
        """
        wide = self.log_variance.dtype
        simple = tuple(r for r in part if not self.factors(r))
        total = self._products(x1, x2, simple)
        for r in part:
            if self.factors(r):
                value = self._products(x1, x2, (r,))
                for factor in self.factors(r):
                    value = value * factor(x1.to(wide), x2.to(wide)).to(value.dtype)
                total = total + value
        return total

    def _products(self, x1: Tensor, x2: Tensor, part: Sequence[int]) -> Tensor:
        """Return the sum of the components in `part`, each without its other factors."""
        if not part:
            return x1.new_zeros(self.log_variance.shape[1], *pair_shape(x1, x2))
        scales = torch.cat([self.log_lengthscale[r] for r in part]).to(x1.dtype)
        layout = tuple((tuple(self._continuous[r]), tuple(self._categorical[r])) for r in part)
        x2 = x2.view_as(x2) if x2 is x1 else x2  # torch.compile needs distinct arguments
        variances = torch.stack([self.log_variance[r] for r in part]).to(x1.dtype)
        total: Tensor = _Products.apply(x1, x2, variances, scales, layout)  # type: ignore[no-untyped-call]
        return total

    def scales(self, r: int) -> list[tuple[int, Tensor]]:
        """Return the columns of component r under `gp`, each with its log length-scales (L,)."""
        return list(zip(self._continuous[r], self.log_lengthscale[r], strict=True))

    def categorical(self, r: int) -> list[int]:
        """Return the columns of component r under `cat`, without the instance."""
        return self._categorical[r]

    def factors(self, r: int) -> Sequence[FactorKernel]:
        """Return the factors of component r other than `gp` and `cat`."""
        return cast(Sequence[FactorKernel], self.others[r])

    def diagonal(self, x: Tensor, part: Sequence[int]) -> Tensor:
        """Return k(x, x) (L×…×n) of the components in `part` at each row of x (…×n×Q)."""
        latent = (-1, *(1 for _ in x.shape[:-1]))
        total = x.new_zeros(self.log_variance.shape[1]).view(latent)
        for r in part:
            value = self.log_variance[r].exp().to(x.dtype).view(latent)
            for factor in self.factors(r):
                value = value * factor.diagonal(x.to(self.log_variance.dtype)).to(x.dtype)
            total = total + value
        return total.expand(-1, *x.shape[:-1])


def pair_shape(x1: Tensor, x2: Tensor) -> torch.Size:
    """Return the shape (…×n₁×n₂) of a matrix between the rows of x1 (…×n₁×Q) and those of x2 (…×n₂×Q)."""
    # torch.broadcast_shapes would import sympy, which costs every command a second.
    both: Sequence[Tensor] = torch.broadcast_tensors(x1[..., :, None, :0], x2[..., None, :, :0])
    return both[0].shape[:-1]


_Layout = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # `gp` and `cat` columns of each component


class _Group(NamedTuple):
    """Components with the same `gp` columns, which are evaluated at once: R of them, with C columns.

    Attributes:
        continuous: the `gp` columns.
        components: their numbers among all.
        scales: places of their length-scales among all (R·C), component by component.
        categorical: the `cat` columns of each.
    """

    continuous: tuple[int, ...]
    components: list[int]
    scales: list[int]
    categorical: list[tuple[int, ...]]


def _groups(layout: _Layout) -> list[_Group]:
    groups: dict[tuple[int, ...], _Group] = {}
    start = 0
    for r, (continuous, categorical) in enumerate(layout):
        group = groups.setdefault(continuous, _Group(continuous, [], [], []))
        group.components.append(r)
        group.scales.extend(range(start, start + len(continuous)))
        group.categorical.append(categorical)
        start += len(continuous)
    return list(groups.values())


class _Products(torch.autograd.Function):
    """Σ_r exp(log s²_r − ½ Σ_c (x_c − x'_c)²/ℓ²_rc) Π_c 1[x_c = x'_c], with its gradient in closed form.

    Components that share their `gp` columns, such as gp(day):cat(sex) + gp(day):cat(arm), are one batch: a formula over
    many covariates is a few operations on R×L×n₁·n₂ numbers, not some for each component. With E_r a component and G
    the gradient, every part of the backward pass contracts G∘E_r: with ones, squared gaps or ℓ⁻².
    """

    @staticmethod
    def forward(
        ctx: Any, x1: Tensor, x2: Tensor, log_variance: Tensor, log_lengthscale: Tensor, layout: _Layout
    ) -> Tensor:
        pairs = pair_shape(x1, x2)
        latent, count = log_variance.shape[1], math.prod(pairs)
        precision = torch.exp(-2.0 * log_lengthscale)
        columns = {c for parts in layout for c in (*parts[0], *parts[1])}
        gap = {c: (x1[..., :, None, c] - x2[..., None, :, c]).expand(pairs).flatten() for c in columns}
        equal = {c: gap[c] == 0 for _, categorical in layout for c in categorical}
        total, values = x1.new_zeros(latent, count), []
        for group in _groups(layout):
            masks = _masks(group, equal, x1, count)
            variance = _rows(log_variance, group.components)  # R×L
            if not group.continuous:
                value = variance.exp()
                total = total.addmm_(value.mT, masks)
            else:
                squares = torch.stack([gap[c] for c in group.continuous]).square_()  # C×pairs
                inverse = _by_component(precision, group)  # R·L×C
                value = (
                    torch.addmm(variance.reshape(-1, 1), inverse, squares, alpha=-0.5).exp_().view(-1, latent, count)
                )
                if any(group.categorical):
                    value.mul_(masks[:, None])
                total = total.add_(value.sum(0))
            values += [value, masks]
        ctx.save_for_backward(x1, x2, precision, *values)
        ctx.layout = layout
        return total.view(-1, *pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x1, x2, precision, *values = ctx.saved_tensors
        moved = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        shape, gradient = gradient.shape[1:], gradient.reshape(len(gradient), -1)
        to_variance: dict[int, Tensor] = {}  # by component, and by length-scale
        to_scale: dict[int, Tensor] = {}
        to_gap: dict[int, Tensor] = {}
        for group, value, masks in zip(_groups(ctx.layout), values[::2], values[1::2], strict=True):
            if not group.continuous:
                to_variance |= dict(zip(group.components, value * (masks @ gradient.mT), strict=True))
                continue
            flat = gradient * value  # R×L×pairs
            to_variance |= dict(zip(group.components, flat.sum(-1), strict=True))
            inverse = _by_component(precision, group)  # R·L×C
            gaps = torch.stack(
                [(x1[..., :, None, c] - x2[..., None, :, c]).expand(shape).flatten() for c in group.continuous]
            )
            scale = inverse * (flat.flatten(0, 1) @ gaps.square().mT)  # R·L×C
            scale = scale.unflatten(0, (-1, len(gradient))).mT.flatten(0, 1)  # R·C×L
            to_scale |= dict(zip(group.scales, scale, strict=True))
            if moved:
                forces = (inverse.mT @ flat.flatten(0, 1)).mul_(gaps)
                for c, force in zip(group.continuous, forces, strict=True):
                    to_gap[c] = to_gap[c] - force if c in to_gap else -force
        grad1 = torch.zeros_like(x1) if ctx.needs_input_grad[0] else None
        grad2 = torch.zeros_like(x2) if ctx.needs_input_grad[1] else None
        for c, flat_force in to_gap.items():
            force = flat_force.view(shape)
            if grad1 is not None:
                grad1[..., c] = force.sum(-1).sum_to_size(x1.shape[:-1])
            if grad2 is not None:
                grad2[..., c] = -force.sum(-2).sum_to_size(x2.shape[:-1])
        variances = torch.stack([to_variance[r] for r in range(len(to_variance))])
        scales = torch.stack([to_scale[k] for k in range(len(to_scale))]) if to_scale else torch.zeros_like(precision)
        return grad1, grad2, variances, scales, None


def _rows(values: Tensor, rows: list[int]) -> Tensor:
    """Return some rows; by views, since a list of indices would be copied to a GPU, which no graph can record."""
    return torch.stack([values[r] for r in rows])


def _by_component(precision: Tensor, group: _Group) -> Tensor:
    """Return the precisions of a group's components (R·L×C)."""
    inverse: Tensor = _rows(precision, group.scales).unflatten(0, (-1, len(group.continuous)))
    return inverse.mT.flatten(0, 1)


def _masks(group: _Group, equal: dict[int, Tensor], like: Tensor, count: int) -> Tensor:
    """Return Π_c 1[x_c = x'_c] of each component (R×pairs), as numbers."""
    rows = []
    for categorical in group.categorical:
        if not categorical:
            rows.append(like.new_ones(count))
            continue
        product = equal[categorical[0]]
        for c in categorical[1:]:
            product = product & equal[c]
        rows.append(product.to(like.dtype))
    return torch.stack(rows)
