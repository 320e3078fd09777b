"""The Gaussian process after training, given v: each component at a row, or their sum at several rows.

A *line* is a row together with the components that are summed there. Given v and a patient's visits z_h,

    f_i = a_iᵀv + B_i (z_h − a_hᵀv) + rest_i,   B_i = K^(R)_ih Σ̂_h⁻¹,
    Cov[rest_i, rest_j] = K_ij − a_iᵀa_j − B_i K^(R)_hj,

where a_i, K^(R)_ih and K_ij are those of the line's own components. The lines of the components thus add up to the line
of their sum. Integrated over v and q(Z), that sum is the result of `posterior.predict_blocks`. Here v is drawn
separately, because all patients share it: an average over patients is only as certain as v is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Blocks, blocks
from lacova.nn.linalg import JITTER, cholesky, identity, solve_lower
from lacova.priors.base import History
from lacova.priors.gp.bounds import own_whitener, project
from lacova.priors.gp.kernels import AdditiveKernel
from lacova.priors.gp.posterior import LatentPosterior


class Lines(NamedTuple):
    """The distribution of lines, in B sets of m for each of V patients: normal given v, with E[v] the posterior mean.

    Attributes:
        mean: mean at E[v], which is the marginal mean (L×V×B×m).
        slope: derivative of the mean with respect to v (L×V×B×m×M).
        covariance: covariance given v, jointly within a set (L×V×B×m×m).
    """

    mean: Tensor
    slope: Tensor
    covariance: Tensor

    def sample(self, shift: Tensor, versions: int, prior_variance: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the lines (draws×L×P×B×m), each draw with its own v.

        Args:
            shift: draws of v − E[v] (draws×L×M).
            versions: how often each of the P patients occurs in the lines: once per draw, or once for all draws.
            prior_variance: the variance of the prior (L,), to which the jitter is proportional.
            generator: source of random numbers.
        """
        dtype, device = prior_variance.dtype, prior_variance.device
        jitter = JITTER[dtype] * prior_variance[:, None, None, None, None]
        eye = identity(self.mean.shape[-1], dtype, device)
        root = cholesky(self.covariance + jitter * eye, jitter=0.0)
        mean, slope, root = (
            part.unflatten(1, (versions, -1)).transpose(0, 1) for part in (self.mean, self.slope, root)
        )
        eps = torch.randn(len(shift), *mean.shape[1:], generator=generator, device=device, dtype=dtype)
        from_v = torch.einsum("slpbim,slm->slpbi", slope, shift)
        rest = torch.einsum("slpbij,slpbj->slpbi", root, eps)
        f: Tensor = mean + from_v + rest
        return f


class _PaddedHistory(NamedTuple):
    """Patients' earlier visits: places, covariates (V×h×Q), Σ̂^(−1/2) (L×V×h×h), a_h (L×V×h×M), q(z_h) (L×V×h each)."""

    pad: Blocks
    x: Tensor
    whitener: Tensor
    a: Tensor
    mean: Tensor
    var: Tensor
    trained: Tensor


def inducing_shift(posterior: LatentPosterior, draws: int, generator: torch.Generator) -> Tensor:
    """Draw v − m (draws×L×M): v ~ N(m, H + HGH), where H + HGH = H (H⁻¹ + G) H."""
    factor = posterior.q.precision_factor
    eps = torch.randn(draws, *posterior.q.mean.shape, generator=generator, device=factor.device, dtype=factor.dtype)
    return torch.cholesky_solve(_total_factor(posterior) @ eps.permute(1, 2, 0), factor).permute(2, 0, 1)


def component_lines(
    kernel: AdditiveKernel, inducing: Tensor, posterior: LatentPosterior, noise: Tensor,
    x: Tensor, group: Tensor, history: History | None = None,
) -> tuple[Lines, Blocks]:  # fmt: skip
    """Return every component at the rows x (K×Q), jointly within a row: a set is a row, its lines are the components.

    The arguments are those of `posterior.predict_blocks`.
    """
    pad = blocks(group)
    xb = x[pad.places]
    components = range(len(kernel.components))
    zero = x.new_zeros(kernel.log_variance.shape[1], len(inducing), len(x))
    projections = [project(kernel, inducing, x, part=(r,)) if r in kernel.shared else zero for r in components]
    a = torch.stack([pad.gather(a_r).permute(0, 2, 3, 1) for a_r in projections], dim=3)  # L×V×n×R×M
    prior = torch.diag_embed(torch.stack([kernel.diagonal(xb, (r,)) for r in components], dim=3))
    past, cross = _pad_history(kernel, inducing, noise, history, len(pad.places)), None
    if past is not None:
        both = pad.filled[:, :, None] & past.pad.filled[:, None, :]
        parts = [kernel(xb, past.x, (r,) if r in kernel.own else ()) for r in components]
        cross = torch.stack([torch.where(both, k_r, 0.0) for k_r in parts], dim=3)  # L×V×n×R×h
    return _lines(posterior, prior, a, past, cross), pad


def joint_lines(
    kernel: AdditiveKernel, inducing: Tensor, posterior: LatentPosterior, noise: Tensor,
    x: tuple[Tensor, ...], group: Tensor, history: History | None = None,
) -> tuple[Lines, Blocks]:  # fmt: skip
    """Return the sum of the components at several versions x of the rows (each K×Q), jointly within a patient.

    There is one set per patient; its lines are the patient's rows in the first version, in the second, and so on. The
    other arguments are those of `posterior.predict_blocks`.
    """
    pad = blocks(group)
    xb = torch.cat([version[pad.places] for version in x], dim=1)
    filled = pad.filled.repeat(1, len(x))
    both = filled[:, :, None] & filled[:, None, :]
    every = (*kernel.shared, *kernel.own)
    prior = torch.where(both, kernel(xb, xb, every), torch.diag_embed((~filled).to(xb.dtype)))
    a = torch.cat([pad.gather(project(kernel, inducing, version)).permute(0, 2, 3, 1) for version in x], dim=2)
    past, cross = _pad_history(kernel, inducing, noise, history, len(pad.places)), None
    if past is not None:
        both = filled[:, :, None] & past.pad.filled[:, None, :]
        cross = torch.where(both, kernel(xb, past.x, kernel.own), 0.0)[:, :, None]
    return _lines(posterior, prior[:, :, None], a[:, :, None], past, cross), pad


def _pad_history(
    kernel: AdditiveKernel, inducing: Tensor, noise: Tensor, history: History | None, groups: int
) -> _PaddedHistory | None:
    if history is None:
        return None
    pad = blocks(history.group, groups)
    x = history.x[pad.places]
    a = pad.gather(project(kernel, inducing, history.x)).permute(0, 2, 3, 1)
    whitener = own_whitener(kernel, x, pad, noise)
    mean, var = pad.gather(history.mean.mT), pad.gather(history.var.mT)
    return _PaddedHistory(pad, x, whitener, a, mean, var, history.trained)


def _lines(
    posterior: LatentPosterior, prior: Tensor, a: Tensor, past: _PaddedHistory | None, cross: Tensor | None
) -> Lines:
    """Compute the lines from K_ij (L×V×B×m×m), a (L×V×B×m×M) and K^(R)_ih (L×V×B×m×h).

    The posterior of v includes the visits of a training patient: Cov[v, z_h] = H t W with t = a_h Σ̂_h⁻¹. With
    T Tᵀ = H⁻¹ + G and u = T⁻¹ t √W,

        E[z_h | v] = μ + √W uᵀ T⁻¹ H⁻¹ (v − m),   Cov[z_h | v] = √W (I − uᵀu) √W.

    Training integrated over the gaps of these visits; at one completion of them, uᵀu may exceed I. It is then scaled
    down, so that the covariance stays positive semi-definite.
    """
    covariance, slope, mean = prior - a @ a.mT, a, a.new_zeros(())
    slope_from_history: Tensor | float = 0.0
    if past is not None and cross is not None:
        whitener, ah = past.whitener[:, :, None], past.a[:, :, None]
        gain = cross @ whitener.mT @ whitener  # B
        scaled_gain = gain * past.var.sqrt()[:, :, None, None, :]  # B √W
        slope = slope - gain @ ah
        mean = (gain @ past.mean[:, :, None, :, None])[..., 0]
        factor, total_factor = posterior.q.precision_factor, _total_factor(posterior)
        t = past.whitener.mT @ (past.whitener @ past.a)  # L×V×h×M
        u = solve_lower(total_factor, t.flatten(1, 2).mT).mT.reshape(t.shape) * past.var.sqrt()[..., None]
        size = torch.linalg.matrix_norm(u @ u.mT).clamp_min(1.0)
        u = u * (past.trained / size.sqrt())[..., None, None]
        gain_u = scaled_gain @ u[:, :, None]  # B √W uᵀ
        covariance = covariance - gain @ cross.mT + scaled_gain @ scaled_gain.mT - gain_u @ gain_u.mT
        slope_from_history = gain_u @ solve_lower(total_factor, factor @ factor.mT)[:, None, None]
    mean = mean + torch.einsum("lvbim,lm->lvbi", slope, posterior.q.mean)
    return Lines(mean, slope + slope_from_history, covariance)


def _total_factor(posterior: LatentPosterior) -> Tensor:
    """Return T, the Cholesky factor of H⁻¹ + G."""
    factor = posterior.q.precision_factor
    return cholesky(factor @ factor.mT + posterior.encoder_spread, jitter=0.0)
