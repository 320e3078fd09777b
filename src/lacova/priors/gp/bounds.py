"""KL[N(μ, W) ‖ N(0, Σ)] per latent dimension: exact, and the two upper bounds that mini-batches estimate.

Shapes: L latent dimensions first, then rows. K completed rows stand for the batch's rows under their scenarios.
Everything is whitened: a_i = C⁻¹ k(S, x_i) with C Cᵀ = K_SS, so that k(x_i, S) K_SS⁻¹ u = a_iᵀ v.
The bounds are computed in the precision of their inputs. The statistics of v are summed in float64: on a large table
they exceed the precision of p(v) by more than float32 can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Blocks
from lacova.nn.linalg import add_jitter, cholesky, identity, inverse_lower, log_det, whiten, whitener
from lacova.priors.base import NaturalStatistics
from lacova.priors.gp.inducing import Whitened
from lacova.priors.gp.kernels import AdditiveKernel
from lacova.priors.gp.patient_terms import PatientTerms, patient_terms

# Added to the diagonal of K_SS, which is zero if the only kernel is linear in a constant column. Otherwise it is less
# than a rounding error.
_ABSOLUTE_JITTER = 1e-20


class Bound(NamedTuple):
    """An upper bound without KL[q(v) ‖ p(v)]: its value for the batch, and the statistics that move q(v)."""

    value: Tensor
    statistics: NaturalStatistics


def exact_kl(mean: Tensor, var: Tensor, covariance: Tensor) -> Tensor:
    """Return KL[N(μ, diag σ²) ‖ N(0, Σ)] (L,) with dense Σ (L×N×N), for tests and small N.

    ½ [ tr(Σ⁻¹W) + μᵀΣ⁻¹μ − N + log|Σ| − Σ log σ_i² ]
    """
    factor = cholesky(covariance, jitter=0.0)
    size = mean.shape[-1]
    inverse_factor = inverse_lower(factor)
    trace = (inverse_factor.square() * var[:, None, :]).sum((-2, -1))
    quadratic = (inverse_factor @ mean[..., None]).square().sum((-2, -1))
    return 0.5 * (trace + quadratic - size + log_det(factor) - var.log().sum(-1))


def project(
    kernel: AdditiveKernel, inducing: Tensor, x: Tensor, jitter: float | None = None, *,
    part: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Return the projections a (L×M×K) of the rows x (K×Q) under the shared components, or under those in `part`."""
    count = len(inducing)
    if part is None:  # both at once
        gram, cross = kernel(inducing, torch.cat([inducing, x]), kernel.shared).split([count, len(x)], dim=-1)
    else:
        gram, cross = kernel(inducing, inducing, kernel.shared), kernel(inducing, x, part)
    eye = identity(count, gram.dtype, gram.device)
    return whiten(add_jitter(gram, jitter) + _ABSOLUTE_JITTER * eye, cross)


def row_bound(
    a: Tensor, prior_var: Tensor, q: Whitened, noise: Tensor, mean: Tensor, var: Tensor, weight: Tensor,
    scale: float | Tensor,
) -> Bound:  # fmt: skip
    """Compute D̂³, eq. 11 of the paper, in expectation over scenarios, without KL[q(v) ‖ p(v)].

    ½ N/N̂ Σ_i E{ σ_z⁻² [(a_iᵀm − μ_i)² + K̃_ii + a_iᵀHa_i + σ_i²] − log σ_i² + log σ_z² − 1 }

    Args:
        a: projections of the K completed rows (L×M×K).
        prior_var: k(x, x) of the shared components at the completed rows (L×K).
        q: q(v).
        noise: σ_z² (L,).
        mean, var: μ and σ² of q(z) at the completed rows (L×K).
        weight: probability of each completed row within its batch row (K,); 0 for padding.
        scale: N/N̂.
    """
    noise_of_row = noise[:, None]
    misfit = (row_misfit(a, prior_var, q, mean) + var) / noise_of_row
    value = ((misfit - var.log() + noise_of_row.log() - 1.0) * weight).sum()
    return Bound(0.5 * scale * value, row_statistics(a, noise, mean, scale * weight))


def row_misfit(a: Tensor, prior_var: Tensor, q: Whitened, target: Tensor) -> Tensor:
    """Return E (f_i − z_i)² (L×K) under q(v) and p(f | v), for z = `target` (L×K).

    (a_iᵀm − z_i)² + K̃_ii + a_iᵀHa_i, K̃_ii = k(x_i, x_i) − a_iᵀa_i
    """
    misfit = (torch.einsum("lmk,lm->lk", a, q.mean) - target).square()
    residual = prior_var - a.square().sum(1)
    return misfit + residual + q.spread(a)


def row_statistics(a: Tensor, noise: Tensor, target: Tensor, weight: Tensor) -> NaturalStatistics:
    """Return the statistics of v from rows with latent values `target` (L×K), each counted `weight` (K,) times.

    A = Σ_i w_i σ_z⁻² a_i a_iᵀ, b = Σ_i w_i σ_z⁻² a_i z_i
    """
    wide = a.detach().double()
    weighted = wide * (weight / noise[:, None]).detach()[:, None, :]
    return NaturalStatistics(weighted @ wide.mT, (weighted @ target.detach().double()[..., None])[..., 0])


def patient_bound(
    kernel: AdditiveKernel, a: Tensor, x: Tensor, pad: Blocks, q: Whitened, noise: Tensor, mean: Tensor, var: Tensor,
    weight: Tensor, scale: float | Tensor, shared: Tensor | None = None,
) -> Bound:  # fmt: skip
    """Compute D̂⁴, the paper's bound for longitudinal data, in expectation over scenarios, without KL[q(v) ‖ p(v)].

    ½ P/P̂ Σ_p E{ r_pᵀΣ̂_p⁻¹r_p + tr(Σ̂_p⁻¹W_p) + log|Σ̂_p| + tr(Σ̂_p⁻¹K̃_p) + tr(H a_pΣ̂_p⁻¹a_pᵀ) − Σ log σ_i² − n_p },
    r_p = a_pᵀm − μ_p, Σ̂_p = K_p^(R) + σ_z²I, K̃_p = K_p^(A) − a_pᵀa_p.

    The arguments are those of `row_bound`, except:

    Args:
        kernel: the additive kernel.
        x: the completed rows (K×Q).
        pad: their places by scenario, that is, by completed patient (V×n).
        weight: probability of each scenario (V,); 0 for padding.
        shared: replaces K^(A) within patients (L×V×n×n), where rows are uncertain.
    """
    parts, statistics = patient_parts(kernel, a, x, pad, q, noise, mean, var, shared)
    entropy = pad.gather(-var.log() - 1.0).sum(-1)  # L×V
    return Bound(0.5 * scale * ((parts + entropy) * weight).sum(), statistics(scale * weight))


def patient_parts(
    kernel: AdditiveKernel, a: Tensor, x: Tensor, pad: Blocks, q: Whitened, noise: Tensor, target: Tensor,
    var: Tensor | None, shared: Tensor | None = None,
) -> PatientTerms:  # fmt: skip
    """Return the terms in the braces of D̂⁴ for each scenario, without − Σ log σ_i² − n_p.

    The arguments are those of `patient_bound`, except:

    Args:
        target: latent values at the completed rows (L×K): the mean of q(Z), or draws.
        var: the variance of q(Z) at the completed rows (L×K); None for draws.
    """
    both = pad.filled[:, :, None] & pad.filled[:, None, :]
    xb = pad.take(x, 0)
    shared = (kernel(xb, xb, kernel.shared) if shared is None else shared) * both  # L×V×n×n
    return patient_terms(a, own_covariance(kernel, xb, pad, noise), shared, target, var, q, pad)


def own_whitener(kernel: AdditiveKernel, x: Tensor, pad: Blocks, noise: Tensor) -> Tensor:
    """Return the inverse Cholesky factor of `own_covariance` (L×V×n×n)."""
    return whitener(own_covariance(kernel, x, pad, noise))


def own_covariance(kernel: AdditiveKernel, x: Tensor, pad: Blocks, noise: Tensor) -> Tensor:
    """Return Σ̂ = K^(R) + σ_z²I per block (L×V×n×n), for x (V×n×Q); the identity where padded."""
    both = pad.filled[:, :, None] & pad.filled[:, None, :]
    own: Tensor = kernel(x, x, kernel.own) * both
    return own + torch.diag_embed(torch.where(pad.filled, noise[:, None, None], 1.0))
