"""The Gaussian process after training: the posterior of v, and z at new covariates given a patient's history.

q(Z) is integrated out. With Σ = QQ + Σ̂ (low rank plus blocks), the mean is K*Σ⁻¹μ and the covariance
K** − K*Σ⁻¹K*ᵀ + K*Σ⁻¹WΣ⁻¹K*ᵀ. No N×N matrix is ever formed: O(N M²) once, O(M²) per new row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Blocks, blocks
from lacova.nn.linalg import cholesky, solve_lower
from lacova.priors.base import History, NaturalStatistics
from lacova.priors.gp.bounds import own_whitener, project
from lacova.priors.gp.inducing import Whitened
from lacova.priors.gp.kernels import AdditiveKernel


class LatentPosterior(NamedTuple):
    """The posterior of v given all training rows: v | Z ~ N(H b(Z), H), and Z ~ q(Z).

    Attributes:
        q: N(E[H b], H).
        encoder_spread: G (L×M×M) with Cov[b] = G under q(Z); the marginal covariance of v is H + HGH.
    """

    q: Whitened
    encoder_spread: Tensor

    def spread(self, c: Tensor) -> Tensor:
        """Return cᵀ(H + HGH)c (L×V×n×n) for c (L×V×n×M)."""
        factor, right = self.q.precision_factor, _columns(c)
        white = solve_lower(factor, right)  # cᵀHc = whiteᵀ white
        hc = torch.cholesky_solve(right, factor)
        white, hc, ghc = (_rows(part, c) for part in (white, hc, self.encoder_spread @ hc))
        return white @ white.mT + hc @ ghc.mT


def _columns(c: Tensor) -> Tensor:
    """Lay c (L×V×n×M) out as L×M×Vn: right-hand sides of one system, which is then not copied V times."""
    return c.flatten(1, 2).mT


def _rows(flat: Tensor, c: Tensor) -> Tensor:
    """Lay L×M×Vn out as c (L×V×n×M) is."""
    return flat.mT.reshape(c.shape)


def latent_posterior(statistics: NaturalStatistics, encoder_spread: Tensor) -> LatentPosterior:
    """Return the posterior of v from A, b and G summed over the training rows: H = (I + A)⁻¹."""
    eye = torch.eye(statistics.precision.shape[-1], dtype=encoder_spread.dtype, device=encoder_spread.device)
    factor = cholesky(eye + statistics.precision, jitter=0.0)
    mean = torch.cholesky_solve(statistics.shift[..., None], factor)[..., 0]
    return LatentPosterior(Whitened(mean, factor), encoder_spread)


def row_encoder_spread(a: Tensor, noise: Tensor, var: Tensor, weight: Tensor) -> Tensor:
    """Return G = Σ_i E[a_i σ_z⁻² σ_i² σ_z⁻² a_iᵀ] (L×M×M); `var` (L×K) is σ_i² of the K completed rows."""
    return (a * (var * weight / noise[:, None] ** 2)[:, None, :]) @ a.mT


def patient_encoder_spread(
    kernel: AdditiveKernel, a: Tensor, x: Tensor, pad: Blocks, noise: Tensor, var: Tensor, weight: Tensor
) -> Tensor:
    """Return G = Σ_p E[a_p Σ̂_p⁻¹ W_p Σ̂_p⁻¹ a_pᵀ] (L×M×M); `var` (L×K) is σ_i² of the K completed rows."""
    inverse_factor = own_whitener(kernel, x[pad.places], pad, noise)
    gain = inverse_factor.mT @ (inverse_factor @ pad.gather(a).permute(0, 2, 3, 1))  # Σ̂⁻¹aᵀ, L×V×n×M
    return torch.einsum("lvnm,lvnk->lmk", gain * (pad.gather(var) * weight[:, None])[..., None], gain)


def predict_blocks(
    kernel: AdditiveKernel, inducing: Tensor, posterior: LatentPosterior, noise: Tensor,
    x: Tensor, group: Tensor, history: History | None = None,
) -> tuple[Tensor, Tensor, Blocks]:  # fmt: skip
    """Return mean (L×V×n) and covariance (L×V×n×n) of z at the rows x (K×Q), jointly within each of V groups.

    Args:
        kernel, inducing: the kernel and the inducing inputs S (M×Q).
        posterior: the posterior of v.
        noise: σ_z² (L,).
        x, group: the new rows, and the patient of each (K,).
        history: earlier visits of these patients.
    """
    pad = blocks(group)
    xb = x[pad.places]
    both = pad.filled[:, :, None] & pad.filled[:, None, :]
    c = pad.gather(project(kernel, inducing, x)).permute(0, 2, 3, 1)  # L×V×n×M
    every = (*kernel.shared, *kernel.own)
    covariance = torch.where(both, kernel(xb, xb, every), 0.0) - c @ c.mT
    mean: Tensor | float = 0.0
    if history is not None:
        past = blocks(history.group, len(pad.places))
        xh = history.x[past.places]
        inverse_factor = own_whitener(kernel, xh, past, noise)
        both = pad.filled[:, :, None] & past.filled[:, None, :]
        cross = torch.where(both, kernel(xb, xh, kernel.own), 0.0)  # K^(R)_{*h}
        gain = cross @ inverse_factor.mT @ inverse_factor  # B = K^(R)_{*h} Σ̂⁻¹
        ah = past.gather(project(kernel, inducing, history.x)).permute(0, 2, 3, 1)
        mu, w = past.gather(history.mean.mT), past.gather(history.var.mT)
        c = c - gain @ ah
        mean = (gain @ mu[..., None])[..., 0]
        weighted_gain = gain * w[..., None, :]  # B W_h
        covariance = covariance - gain @ cross.mT + weighted_gain @ gain.mT
        # Cov[v, z_h] = H a_h Σ̂⁻¹ W_h, for patients whose visits the posterior of v includes.
        weighted_a = inverse_factor.mT @ (inverse_factor @ ah)  # Σ̂⁻¹a_hᵀ
        hv = _rows(torch.cholesky_solve(_columns(weighted_a), posterior.q.precision_factor), weighted_a)
        shared_error = (c @ hv.mT) @ weighted_gain.mT * history.trained[:, None, None]
        covariance = covariance + shared_error + shared_error.mT
    covariance = covariance + posterior.spread(c)
    mean = mean + torch.einsum("lvnm,lm->lvn", c, posterior.q.mean)
    diagonal = torch.where(pad.filled, noise[:, None, None], 1.0)
    return mean, covariance + torch.diag_embed(diagonal), pad
