"""KL[N(μ, W) ‖ N(0, Σ)] per latent dimension: exact, and the two upper bounds that mini-batches estimate.

Shapes: L latent dimensions first, then rows. K completed rows stand for the batch's rows under their scenarios.
Whitened throughout: a_i = C⁻¹ k(S, x_i) with C Cᵀ = K_SS, so that k(x_i, S) K_SS⁻¹ u = a_iᵀ v.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lacova.gp.inducing import NaturalStatistics, Whitened
from lacova.gp.kernels import AdditiveKernel
from lacova.linalg import cholesky, log_det, solve_lower

# K_SS is zero where a linear kernel of a constant column is all there is; less than a rounding error otherwise.
VANISHING = 1e-20


class Bound(NamedTuple):
    """An upper bound without KL[q(v) ‖ p(v)]: its value for the batch, and the statistics that move q(v)."""

    value: Tensor
    statistics: NaturalStatistics


class Blocks(NamedTuple):
    """Rows gathered by patient and padded: place of each row (V×n) and which places hold one (V×n)."""

    places: Tensor
    filled: Tensor

    def gather(self, values: Tensor) -> Tensor:
        """(…×rows) to (…×V×n), zero where padded."""
        return values[..., self.places] * self.filled


def blocks(group: Tensor, groups: int = 0) -> Blocks:
    """Pad adjacent rows of equal `group` (0, 0, 1, 1, 1, …) to a rectangle of at least `groups` lines."""
    counts = torch.bincount(group, minlength=groups)
    place = torch.arange(max(int(counts.max()), 1), device=group.device)
    filled = place < counts[:, None]
    start = counts.cumsum(0) - counts
    return Blocks(torch.where(filled, start[:, None] + place, 0), filled)


def exact_kl(mean: Tensor, var: Tensor, covariance: Tensor) -> Tensor:
    """KL[N(μ, diag σ²) ‖ N(0, Σ)] (L,) with dense Σ (L×N×N): for tests and small N.

    ½ [ tr(Σ⁻¹W) + μᵀΣ⁻¹μ − N + log|Σ| − Σ log σ_i² ]
    """
    factor = cholesky(covariance, jitter=0.0)
    size = mean.shape[-1]
    inverse_factor = solve_lower(factor, torch.eye(size, dtype=factor.dtype, device=factor.device).expand_as(factor))
    trace = (inverse_factor.square() * var[:, None, :]).sum((-2, -1))
    quadratic = (inverse_factor @ mean[..., None]).square().sum((-2, -1))
    return 0.5 * (trace + quadratic - size + log_det(factor) - var.log().sum(-1))


def project(kernel: AdditiveKernel, inducing: Tensor, x: Tensor, jitter: float | None = None) -> Tensor:
    """a (L×M×K): the rows x seen from the inducing inputs, under the shared components."""
    eye = torch.eye(len(inducing), dtype=inducing.dtype, device=inducing.device)
    factor = cholesky(kernel(inducing, inducing, kernel.shared) + VANISHING * eye, jitter)
    return solve_lower(factor, kernel(inducing, x, kernel.shared))


def row_bound(
    a: Tensor, prior_var: Tensor, q: Whitened, noise: Tensor, mean: Tensor, var: Tensor,
    row: Tensor, weight: Tensor, scale: float,
) -> Bound:  # fmt: skip
    """D̂³, eq. 11 of the paper, in expectation over scenarios; less KL[q(v) ‖ p(v)], which the caller adds once.

    ½ N/N̂ Σ_i { σ_z⁻² E[(a_iᵀm − μ_i)² + K̃_ii + a_iᵀHa_i] + σ_z⁻²σ_i² − log σ_i² + log σ_z² − 1 }

    Args:
        a: projections of the K completed rows (L×M×K).
        prior_var: k(x, x) of the shared components at the completed rows (L×K).
        q: belief about v.
        noise: σ_z² (L,).
        mean, var: encoder output of the batch's rows (L×N̂).
        row: batch row behind each completed row (K,).
        weight: probability of each completed row within its batch row (K,).
        scale: N/N̂.
    """
    target = mean[:, row]
    misfit = (torch.einsum("lmk,lm->lk", a, q.mean) - target).square()
    residual = prior_var - a.square().sum(1)
    uncertain = ((misfit + residual + q.spread(a)) * weight).sum(-1) / noise
    certain = (var / noise[:, None] - var.log() + noise.log()[:, None] - 1.0).sum(-1)
    weighted = a.detach() * (weight / noise[:, None]).detach()[:, None, :]
    statistics = NaturalStatistics(
        scale * weighted @ a.detach().mT, scale * torch.einsum("lmk,lk->lm", weighted, target.detach())
    )
    return Bound(0.5 * scale * (uncertain + certain).sum(), statistics)


def patient_bound(
    kernel: AdditiveKernel, a: Tensor, x: Tensor, group: Tensor, q: Whitened, noise: Tensor,
    mean: Tensor, var: Tensor, row: Tensor, weight: Tensor, scale: float, shared: Tensor | None = None,
) -> Bound:  # fmt: skip
    """D̂⁴, the paper's bound for longitudinal data, in expectation over scenarios; less KL[q(v) ‖ p(v)].

    ½ P/P̂ Σ_p E{ r_pᵀΣ̂_p⁻¹r_p + tr(Σ̂_p⁻¹W_p) + log|Σ̂_p| + tr(Σ̂_p⁻¹K̃_p) + tr(H a_pΣ̂_p⁻¹a_pᵀ) − Σ log σ_i² − n_p },
    r_p = a_pᵀm − μ_p, Σ̂_p = K_p^(R) + σ_z²I, K̃_p = K_p^(A) − a_pᵀa_p.

    Args are those of `row_bound`, and x (K×Q) the completed rows, `group` (K,) the scenario of each: a
    completed patient; `weight` (V,) is the probability of each scenario. `shared` (L×V×n×n) replaces K^(A) within
    patients where rows are uncertain.
    """
    pad = blocks(group)
    both = pad.filled[:, :, None] & pad.filled[:, None, :]
    xb = x[pad.places]
    inverse_factor, factor = own_factor(kernel, xb, pad, noise)
    shared = torch.where(both, kernel(xb, xb, kernel.shared) if shared is None else shared, 0.0)  # L×V×n×n
    ab = pad.gather(a).permute(0, 2, 3, 1)  # L×V×n×M
    target = pad.gather(mean[:, row])  # L×V×n

    misfit = torch.einsum("lvnm,lm->lvn", ab, q.mean) - target
    white_a = inverse_factor @ ab
    white_misfit = (inverse_factor @ misfit[..., None])[..., 0]
    residual = ((inverse_factor @ shared) * inverse_factor).sum((-2, -1)) - white_a.square().sum((-2, -1))
    spread = q.spread(white_a.flatten(1, 2).mT).unflatten(-1, white_a.shape[1:3]).sum(-1)
    trace = (inverse_factor.square().sum(-2) * pad.gather(var[:, row])).sum(-1)
    each = white_misfit.square().sum(-1) + trace + log_det(factor) + residual + spread  # L×V
    certain = (-var.log() - 1.0).sum(-1)

    light = (white_a * weight[:, None, None]).detach()
    white_target = (inverse_factor @ target[..., None])[..., 0]
    statistics = NaturalStatistics(
        scale * torch.einsum("lvnm,lvnk->lmk", light, white_a.detach()),
        scale * torch.einsum("lvnm,lvn->lm", light, white_target.detach()),
    )
    return Bound(0.5 * scale * ((each * weight).sum(-1) + certain).sum(), statistics)


def own_factor(kernel: AdditiveKernel, x: Tensor, pad: Blocks, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse Cholesky factor, and factor, of Σ̂ = K^(R) + σ_z²I per block; padded places are unit and apart."""
    both = pad.filled[:, :, None] & pad.filled[:, None, :]
    size = x.shape[-2]
    eye = torch.eye(size, dtype=x.dtype, device=x.device)
    own = torch.where(both, kernel(x, x, kernel.own), 0.0)
    diagonal = torch.where(pad.filled, noise[:, None, None], 1.0)
    factor = cholesky(own + diagonal[..., None] * eye, jitter=0.0)
    return solve_lower(factor, eye.expand_as(factor)), factor
