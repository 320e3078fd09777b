"""Kernels at uncertain inputs: exact expectations over normal and categorical covariates.

For independent inputs x ~ q, x' ~ q' (normal × categorical), each component's expectation is a product over columns.
With a = ℓ_r², b = ℓ_r'², x ~ N(μ, v) in one column:

    E[k_r(x, x')]          √(a/(a+v+v')) exp(−(μ−μ')²/2(a+v+v'))              Σ_l π_l π'_l     (cat)
    E[k_r(x,s) k_r'(x,s')] exp(−(s−s')²/2(a+b)) √(g/(g+v)) exp(−(μ−c)²/2(g+v))  π_s 1[s = s']    (cat)
                           g = ab/(a+b), c = (bs + as')/(a+b)

A component without the column contributes 1 to the first, and the first formula to the second. Products are sums of
logarithms in float64, whatever the precision of the kernel: second moments of near-collinear inputs cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.nn import linalg
from lacova.priors.gp.inducing import Whitened
from lacova.priors.gp.kernels import AdditiveKernel, pair_shape

# Numbers (L × M² × rows) that second moments hold at a time, to bound memory.
_MAX_MOMENT_NUMBERS = 4_000_000


class Inputs(NamedTuple):
    """Independent uncertain covariates: normals (…×n×Q) and level probabilities (…×n×Q×levels)."""

    mean: Tensor
    var: Tensor
    prob: Tensor

    def take(self, index: Tensor) -> Inputs:
        """Return the inputs at `index`."""
        return Inputs(self.mean[index], self.var[index], self.prob[index])


def uncertain_inputs(x: Tensor, known: Tensor, q_x: FactorisedDistribution, space: CovariateSpace) -> Inputs:
    """Return the rows x (n×Q) where `known` (n×Q), and q(x_u) elsewhere."""
    one_hot = (x[..., None] == torch.arange(space.max_levels, device=x.device)).double()
    return Inputs(
        torch.where(known, x, q_x.mean).double(),
        torch.where(known, 0.0, q_x.var).double(),
        torch.where(known[..., None], one_hot, q_x.log_prob.double().exp()),
    )


def known_inputs(x: Tensor, space: CovariateSpace) -> Inputs:
    """Return the rows x (n×Q) as inputs without uncertainty."""
    one_hot = (x[..., None] == torch.arange(space.max_levels, device=x.device)).double()
    return Inputs(x.double(), torch.zeros_like(x).double(), one_hot)


def expected_kernel(kernel: AdditiveKernel, one: Inputs, two: Inputs, part: Sequence[int]) -> Tensor:
    """Return E[k(x, x')] (L×…×n₁×n₂) of the components in `part`, between independent uncertain inputs."""
    pairs = pair_shape(one.mean, two.mean)
    latent = (-1, *(1 for _ in pairs))
    total = one.mean.new_zeros(kernel.log_variance.shape[1], *pairs)
    for r in part:
        exponent = kernel.log_variance[r].double().view(latent)
        for c, log_lengthscale in kernel.scales(r):
            square = torch.exp(2.0 * log_lengthscale.double()).view(latent)
            spread = square + one.var[..., :, None, c] + two.var[..., None, :, c]
            gap = one.mean[..., :, None, c] - two.mean[..., None, :, c]
            exponent = exponent - 0.5 * (gap**2 / spread + (spread / square).log())
        value = exponent.exp().expand(-1, *pairs)
        for c in kernel.categorical(r):
            value = value * (one.prob[..., c, :] @ two.prob[..., c, :].mT)
        total = total + value
    return total


def expected_cross(kernel: AdditiveKernel, s: Tensor, x: Inputs, part: Sequence[int], space: CovariateSpace) -> Tensor:
    """Return E[k(s, x)] (L×M×n) of the components in `part`, between known inputs s (M×Q) and uncertain ones.

    The exponent is −½ Σ_c p_ci (μ_ci − s_cj)² plus a term of i. Multiplied out, it is one product of matrices.
    """
    anchor = known_inputs(s, space)
    total = x.mean.new_zeros(kernel.log_variance.shape[1], len(s), len(x.mean))
    for r in part:
        exponent = kernel.log_variance[r].double()[:, None, None]
        row_features, point_features = [], []
        for c, log_lengthscale in kernel.scales(r):
            square = torch.exp(2.0 * log_lengthscale.double())[:, None]
            mu, spread, place = x.mean[:, c], square + x.var[:, c], anchor.mean[:, c]
            exponent = exponent - 0.5 * (spread / square).log()[:, None]
            row_features += [1.0 / spread, mu / spread, mu**2 / spread]
            point_features += [place**2, -2.0 * place, torch.ones_like(place)]
        if row_features:
            exponent = exponent - 0.5 * torch.stack(point_features, -1) @ torch.stack(row_features, -2)
        value = exponent.exp().expand_as(total)
        for c in kernel.categorical(r):
            value = value * (anchor.prob[:, c] @ x.prob[:, c].mT)
        total = total + value
    return total


def expected_outer(kernel: AdditiveKernel, s: Tensor, x: Inputs, weight: Tensor, space: CovariateSpace) -> Tensor:
    """Return Σ_i w_i E[k(S, x_i) k(x_i, S)] (L×M×M) of the shared components, for weights w (L×n)."""
    size, latent = len(s), weight.shape[0]
    total = weight.new_zeros(latent, size, size)
    if size == 0:
        return total
    anchor = known_inputs(s, space)
    upper = torch.triu_indices(size, size, device=s.device)
    every_pair = torch.cartesian_prod(*(torch.arange(size, device=s.device),) * 2).T
    step = max(1, _MAX_MOMENT_NUMBERS // (latent * size * size))
    for rows in torch.arange(weight.shape[1], device=s.device).split(step):
        part = x.take(rows)
        for k, r in enumerate(kernel.shared):
            for r2 in kernel.shared[k:]:
                one, two = upper if r == r2 else every_pair
                moment = torch.zeros_like(total)
                moment[:, one, two] = _pair_moment(
                    kernel, anchor.take(one), anchor.take(two), part, r, r2, weight[:, rows]
                )
                mirrored = moment + moment.mT
                total = total + (
                    mirrored - torch.diag_embed(moment.diagonal(dim1=-2, dim2=-1)) if r == r2 else mirrored
                )
    return total


def _pair_moment(
    kernel: AdditiveKernel, one: Inputs, two: Inputs, x: Inputs, r: int, r2: int, weight: Tensor
) -> Tensor:
    """Return Σ_i w_i E[k_r(x_i, s) k_r2(x_i, s')] (L×J) for J pairs of known inputs.

    The exponent is −½ Σ_c p_ci (μ_ci − P_cj)² plus terms of i or j alone. Multiplied out, the square is one product of
    matrices: of rows (p, pμ, pμ²) and pairs (P², −2P, 1).
    """
    first, second = dict(kernel.scales(r)), dict(kernel.scales(r2))
    of_pair = (kernel.log_variance[r] + kernel.log_variance[r2]).double()[:, None].expand(-1, len(one.mean))
    of_row = weight.new_zeros(weight.shape)
    row_features, pair_features = [], []
    for c in sorted({*first, *second}):
        mu, v, left, right = x.mean[:, c], x.var[:, c], one.mean[:, c], two.mean[:, c]
        if c in first and c in second:
            a, b = (torch.exp(2.0 * part[c].double())[:, None] for part in (first, second))
            width, place = a * b / (a + b), (b * left + a * right) / (a + b)
            of_pair = of_pair - 0.5 * (left - right) ** 2 / (a + b)
        else:
            width = torch.exp(2.0 * (first[c] if c in first else second[c]).double())[:, None]
            place = (left if c in first else right).expand(len(width), -1)
        precision = 1.0 / (width + v)  # L×n
        of_row = of_row - 0.5 * ((width + v) / width).log()
        row_features += [precision, precision * mu, precision * mu**2]
        pair_features += [place**2, -2.0 * place, torch.ones_like(place)]
    exponent = of_pair[:, :, None] + of_row[:, None, :]
    if row_features:
        exponent = exponent - 0.5 * torch.stack(pair_features, -1) @ torch.stack(row_features, -2)
    value = exponent.exp()  # L×J×n
    categorical, categorical2 = set(kernel.categorical(r)), set(kernel.categorical(r2))
    for c in sorted(categorical | categorical2):
        prob = (one if c in categorical else two).prob[:, c] @ x.prob[:, c].mT  # π_i[s] (J×n)
        if c in categorical and c in categorical2:
            prob = prob * (one.prob[:, c] * two.prob[:, c]).sum(-1)[:, None]
        value = value * prob
    moment: Tensor = (value @ weight[..., None])[..., 0]
    return moment


def excess(
    kernel: AdditiveKernel, s: Tensor, x: Inputs, cross: Tensor, weight: Tensor, q: Whitened, whitener: Tensor,
    space: CovariateSpace,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return what uncertain inputs add to a bound at their expected projections, and what they add to its A (L×M×M).

    ½ [mᵀTm − tr T + tr HT] with T = Σ_i w_i Cov[a_i]. Rows are independent, so only the terms quadratic in a_i change.

    Args:
        kernel, s: the kernel and the inducing inputs (M×Q).
        x: the uncertain inputs.
        cross: E[k(S, x)] (L×M×n).
        weight: w (L×n).
        q: q(v).
        whitener: C⁻¹ (L×M×M), C Cᵀ = K_SS.
        space: layout of X.
    """
    outer = expected_outer(kernel, s, x, weight, space) - (cross * weight[:, None]) @ cross.mT
    spread = whitener @ outer @ whitener.mT
    trace = spread.diagonal(dim1=-2, dim2=-1).sum(-1)
    mean, root = q.mean.double(), q.root.double()
    trace_h = ((root @ spread) * root).sum((-2, -1))
    value = ((spread @ mean[..., None])[..., 0] * mean).sum(-1) - trace + trace_h
    return 0.5 * value.sum(), spread.detach()


def inducing_whitener(kernel: AdditiveKernel, s: Tensor, jitter: float | None = None) -> Tensor:
    """Return C⁻¹ (L×M×M) in float64, C Cᵀ = K_SS of the shared components."""
    return linalg.whitener(linalg.add_jitter(kernel(s.double(), s.double(), kernel.shared), jitter))
