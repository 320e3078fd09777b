"""Additive kernels over covariates, one set of parameters per latent dimension, batched over latent dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
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
        tied: whether components with the same `gp` columns in one order, as gp(day) and gp(day):cat(sex), share their
            length-scales; components of the instance have their own. Exponentials are then computed once for all.
    """

    def __init__(
        self, components: Sequence[Component], space: CovariateSpace, latent_dim: int,
        dtype: torch.dtype = torch.float64, *, scale: Mapping[str, float] | None = None,
        passed: Mapping[str, nn.Module] | None = None, tied: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.components = tuple(components)
        self.shared = tuple(r for r, c in enumerate(components) if not c.instance)
        self.own = tuple(r for r, c in enumerate(components) if c.instance)
        self._continuous = [[space.names.index(c) for c in component.continuous] for component in components]
        self._categorical = [[space.names.index(c) for c in component.categorical] for component in components]
        count = len(components)
        self.log_variance = nn.Parameter(torch.full((count, latent_dim), -math.log(max(count, 1)), dtype=dtype))
        # Components with equal keys share a set of length-scales.
        keys = [(c.instance, *c.continuous) if tied and c.continuous else r for r, c in enumerate(components)]
        first = {key: keys.index(key) for key in keys}
        sets = sorted(first.values())
        self._set = [sets.index(first[key]) for key in keys]
        self.log_lengthscale = nn.ParameterList(
            [nn.Parameter(torch.zeros(len(self._continuous[r]), latent_dim, dtype=dtype)) for r in sets]
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
        sets = list(dict.fromkeys(self._set[r] for r in part))
        scales = torch.cat([self.log_lengthscale[k] for k in sets]).to(x1.dtype)
        layout = tuple(
            (tuple(self._continuous[r]), tuple(self._categorical[r]), sets.index(self._set[r])) for r in part
        )
        x2 = x2.view_as(x2) if x2 is x1 else x2  # torch.compile needs distinct arguments
        depth = max(x1.dim(), x2.dim())  # the columns come first below, so that batches must be as deep
        x1, x2 = (x[(None,) * (depth - x.dim())] if x.dim() < depth else x for x in (x1, x2))
        variances = _rows(self.log_variance, list(part)).to(x1.dtype)
        total: Tensor = _Products.apply(x1, x2, variances, scales, layout)  # type: ignore[no-untyped-call]
        return total

    def scales(self, r: int) -> list[tuple[int, Tensor]]:
        """Return the columns of component r under `gp`, each with its log length-scales (L,)."""
        return list(zip(self._continuous[r], self.log_lengthscale[self._set[r]], strict=True))

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


# `gp` and `cat` columns of each component, and the number of its set of length-scales.
_Layout = tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]


class _Group(NamedTuple):
    """Components with the same `gp` columns, which are evaluated at once: R of them, with C columns.

    Attributes:
        continuous: the `gp` columns.
        components: their numbers among all.
        sets: for each of their S sets of length-scales, the places among `components` of those that use it.
        scales: places of their length-scales among all (S·C), set by set.
        categorical: the `cat` columns of each component.
    """

    continuous: tuple[int, ...]
    components: list[int]
    sets: dict[int, list[int]]
    scales: list[int]
    categorical: list[tuple[int, ...]]

    @property
    def tied(self) -> bool:
        """Whether some components share their length-scales."""
        return len(self.sets) < len(self.components)

    @property
    def masked(self) -> bool:
        """Whether the components are multiplied by masks of equal categories."""
        return self.tied or not self.continuous or any(self.categorical)


@lru_cache(maxsize=64)
def _groups(layout: _Layout) -> list[_Group]:
    groups: dict[tuple[int, ...], _Group] = {}
    start, seen = 0, -1
    for r, (continuous, categorical, number) in enumerate(layout):
        group = groups.setdefault(continuous, _Group(continuous, [], {}, [], []))
        group.sets.setdefault(number, []).append(len(group.components))
        group.components.append(r)
        group.categorical.append(categorical)
        if number > seen:  # sets are numbered in the order in which they occur
            group.scales.extend(range(start, start + len(continuous)))
            start, seen = start + len(continuous), number
    return list(groups.values())


class _Products(torch.autograd.Function):
    """Σ_r exp(log s²_r − ½ Σ_c (x_c − x'_c)²/ℓ²_rc) Π_c 1[x_c = x'_c], with its gradient in closed form.

    Components that share their `gp` columns, such as gp(day):cat(sex) + gp(day):cat(arm), are one batch: a formula over
    many covariates is a few operations on R×L×n₁·n₂ numbers, not some for each component. If they share length-scales
    as well, they are E∘Σ_r s²_r Π_c 1[x_c = x'_c] with one exponential E: a product of matrices. With E_r a component
    and G the gradient, every part of the backward pass contracts G∘E_r: with ones, squared gaps or ℓ⁻².
    """

    @staticmethod
    def forward(
        ctx: Any, x1: Tensor, x2: Tensor, log_variance: Tensor, log_lengthscale: Tensor, layout: _Layout
    ) -> Tensor:
        pairs = pair_shape(x1, x2)
        latent, count = log_variance.shape[1], math.prod(pairs)
        precision = torch.exp(-2.0 * log_lengthscale)
        parts: list[Tensor] = []
        saved: list[Tensor | None] = []
        for group in _groups(layout):
            masks = _masks(group, x1, x2, pairs)
            variance = _rows(log_variance, group.components)  # R×L
            if not group.continuous:
                value = variance.exp()
                parts.append(value.mT @ masks)
                saved += [value, masks, None]
                continue
            gaps = _gaps(group, x1, x2, pairs)  # C×pairs
            inverse = _by_set(precision, group)  # S·L×C
            if group.tied:
                value = (inverse @ gaps.square()).mul_(-0.5).exp_().view(-1, latent, count)  # S×L×pairs
                parts.append(_sum(value * _weights(group, variance.exp(), masks)))
            else:
                exponent = torch.addmm(variance.reshape(-1, 1), inverse, gaps.square(), alpha=-0.5)
                value = exponent.exp_().view(-1, latent, count)
                if any(group.categorical):
                    value.mul_(masks[:, None])
                parts.append(_sum(value))
            saved += [value, masks, gaps]
        ctx.save_for_backward(x1, x2, log_variance, precision, *saved)
        ctx.layout = layout
        return reduce(torch.add, parts).view(-1, *pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x1, x2, log_variance, precision, *saved = ctx.saved_tensors
        moved = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        shape, gradient = gradient.shape[1:], gradient.reshape(len(gradient), -1)
        to_variance, to_scale = torch.empty_like(log_variance), torch.empty_like(precision)
        to_x1 = torch.zeros_like(x1) if ctx.needs_input_grad[0] else None
        to_x2 = torch.zeros_like(x2) if ctx.needs_input_grad[1] else None
        for group, value, masks, gaps in zip(_groups(ctx.layout), saved[::3], saved[1::3], saved[2::3], strict=True):
            components = _index(tuple(group.components), x1.device)
            if not group.continuous:
                to_variance.index_copy_(0, components, value * (masks @ gradient.mT))
                continue
            flat = gradient * value  # S×L×pairs
            if group.tied:
                variance = _rows(log_variance, group.components).exp()
                for own, part in zip(group.sets.values(), flat, strict=True):
                    change = _rows(masks, own) @ part.mT * _rows(variance, own)
                    to_variance.index_copy_(0, _index(tuple(group.components[k] for k in own), x1.device), change)
                flat = flat.mul_(_weights(group, variance, masks))
            else:
                to_variance.index_copy_(0, components, flat.sum(-1))
            inverse = _by_set(precision, group)  # S·L×C
            scale = inverse * (flat.flatten(0, 1) @ gaps.square().mT)  # S·L×C
            scale = scale.unflatten(0, (-1, len(gradient))).mT.flatten(0, 1)  # S·C×L
            to_scale.index_copy_(0, _index(tuple(group.scales), x1.device), scale)
            if moved:
                force = (inverse.mT @ flat.flatten(0, 1)).mul_(gaps).unflatten(1, shape)  # C×pairs
                _add_to_columns(to_x1, group.continuous, -force.sum(-1))
                _add_to_columns(to_x2, group.continuous, force.sum(-2))
        return to_x1, to_x2, to_variance, to_scale, None


def _add_to_columns(target: Tensor | None, columns: tuple[int, ...], values: Tensor) -> None:
    """Add values (C×…×n) to some columns of a tensor (…×n×Q), summed over dimensions in which it has size 1."""
    if target is not None:
        values = values.sum_to_size((len(columns), *target.shape[:-1])).movedim(0, -1)
        target.index_add_(-1, _index(columns, target.device), values)


def _sum(values: Tensor) -> Tensor:
    """Sum over the first dimension, which mostly has size 1."""
    return values[0] if len(values) == 1 else values.sum(0)


@lru_cache(maxsize=256)
def _index(places: tuple[int, ...], device: torch.device) -> Tensor:
    """Return indices as a tensor, cached: to copy them to a GPU would make the host wait, which no graph can record."""
    return torch.tensor(places, device=device)


@lru_cache(maxsize=256)
def _flags(flags: tuple[bool, ...], device: torch.device) -> Tensor:
    """Return a mask as a tensor, cached as indices are."""
    return torch.tensor(flags, device=device)


def _rows(values: Tensor, rows: list[int]) -> Tensor:
    """Return some rows; adjacent ones as a view."""
    if len(rows) == len(values) and rows == list(range(len(rows))):
        return values
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return values[rows[0] : rows[0] + len(rows)]
    return values.index_select(0, _index(tuple(rows), values.device))


def _columns(x: Tensor, columns: tuple[int, ...]) -> Tensor:
    """Return some columns of x (…×Q), each as a matrix or vector of its own (C×…); a single one as a view."""
    if len(columns) == 1:
        return x[..., columns[0]][None]
    return x.index_select(-1, _index(columns, x.device)).movedim(-1, 0)


def _gaps(group: _Group, x1: Tensor, x2: Tensor, pairs: torch.Size) -> Tensor:
    """Return x_c − x'_c of the `gp` columns (C×pairs)."""
    gaps = _columns(x1, group.continuous)[..., :, None] - _columns(x2, group.continuous)[..., None, :]
    return gaps.expand(-1, *pairs).flatten(1)


def _by_set(precision: Tensor, group: _Group) -> Tensor:
    """Return the precisions of a group's sets of length-scales (S·L×C)."""
    inverse: Tensor = _rows(precision, group.scales).unflatten(0, (-1, len(group.continuous)))
    return inverse.mT.flatten(0, 1)


def _weights(group: _Group, variance: Tensor, masks: Tensor) -> Tensor:
    """Return Σ_r s²_r Π_c 1[x_c = x'_c] over the components of each set (S×L×pairs)."""
    weights = [_rows(variance, own).mT @ _rows(masks, own) for own in group.sets.values()]
    return weights[0][None] if len(weights) == 1 else torch.stack(weights)


def _masks(group: _Group, x1: Tensor, x2: Tensor, pairs: torch.Size) -> Tensor:
    """Return Π_c 1[x_c = x'_c] of each component (R×pairs), as numbers; nothing where no component needs it."""
    product = None
    for place in range(max([0, *map(len, group.categorical)])):
        having = [len(categorical) > place for categorical in group.categorical]
        columns = tuple(c[place] if place < len(c) else 0 for c in group.categorical)
        equal = _columns(x1, columns)[..., :, None] == _columns(x2, columns)[..., None, :]
        if not all(having):  # a component with fewer categories has 1
            without = _flags(tuple(not has for has in having), x1.device)
            equal = equal | without.view(-1, *(1,) * (equal.dim() - 1))
        product = equal if product is None else product & equal
    if product is None:
        return x1.new_ones(len(group.components) if group.masked else 0, math.prod(pairs))
    return product.expand(-1, *pairs).flatten(1).to(x1.dtype)
