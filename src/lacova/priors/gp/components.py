"""The Gaussian process after training, given v: each component at a row, or their sum at several rows.

A *line* is a row together with the components that are added up there. Given v and a patient's visits z_h,

    f_i = a_iᵀv + B_i (z_h − a_hᵀv) + rest_i,   B_i = K^(R)_ih Σ̂_h⁻¹,
    Cov[rest_i, rest_j] = K_ij − a_iᵀa_j − B_i K^(R)_hj,

where a_i, K^(R)_ih and K_ij are those of the line's own components, so that the lines of components add up to the line
of their sum. Integrated over v and q(Z), that sum is what `gp.predict.predict_blocks` gives. Here v is kept apart,
because all patients share it: an average over patients is only as certain as v is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Blocks, blocks
from lacova.nn.linalg import JITTER, cholesky, identity, solve_lower
from lacova.priors.gp.bounds import own_whitener, project
from lacova.priors.gp.kernels import AdditiveKernel
from lacova.priors.gp.posterior import History, LatentPosterior


class Lines(NamedTuple):
    """The law of lines, in B sets of m per patient (V of them): normal given v, with E[v] = m.

    Attributes:
        mean: at v = m, and so on average (L×V×B×m).
        slope: what a unit of v adds (L×V×B×m×M).
        covariance: given v, jointly within a set (L×V×B×m×m).
    """

    mean: Tensor
    slope: Tensor
    covariance: Tensor

    def sample(self, shift: Tensor, versions: int, level: Tensor, generator: torch.Generator) -> Tensor:
        """Draws (draws×L×P×B×m), each with its own v.

        Args:
            shift: draws of v − m (draws×L×M).
            versions: how often each of the P patients stands in the lines: once per draw, or once for all draws.
            level: the prior's variance (L,), by which rounding errors are measured.
            generator: source of noise.
        """
        nugget = JITTER[level.dtype] * level[:, None, None, None, None]
        eye = identity(self.mean.shape[-1], level.dtype, level.device)
        root = cholesky(self.covariance + nugget * eye, jitter=0.0)
        mean, slope, root = (
            part.unflatten(1, (versions, -1)).transpose(0, 1) for part in (self.mean, self.slope, root)
        )
        noise = torch.randn(len(shift), *mean.shape[1:], generator=generator, device=level.device, dtype=level.dtype)
        told = torch.einsum("slpbim,slm->slpbi", slope, shift)
        rest = torch.einsum("slpbij,slpbj->slpbi", root, noise)
        drawn: Tensor = mean + told + rest
        return drawn


class _Past(NamedTuple):
    """A patient's visits so far: their places, covariates (V×h×Q), Σ̂^(−1/2), a_h (L×V×h×M), q(z_h) (L×V×h each)."""

    pad: Blocks
    x: Tensor
    whitener: Tensor
    a: Tensor
    mean: Tensor
    var: Tensor
    trained: Tensor


def inducing_shift(posterior: LatentPosterior, draws: int, generator: torch.Generator) -> Tensor:
    """Draws of v − m (draws×L×M): v ~ N(m, H + HGH), where H + HGH = H (H⁻¹ + G) H."""
    factor = posterior.q.precision_factor
    noise = torch.randn(draws, *posterior.q.mean.shape, generator=generator, device=factor.device, dtype=factor.dtype)
    return torch.cholesky_solve(_total_factor(posterior) @ noise.permute(1, 2, 0), factor).permute(2, 0, 1)


def component_lines(
    kernel: AdditiveKernel, inducing: Tensor, posterior: LatentPosterior, noise: Tensor,
    x: Tensor, group: Tensor, history: History | None = None,
) -> tuple[Lines, Blocks]:  # fmt: skip
    """Every component at the rows x (K×Q), jointly within a row: sets are a patient's rows, lines are components."""
    pad = blocks(group)
    xb = x[pad.places]
    count = range(len(kernel.components))
    nothing = x.new_zeros(kernel.log_variance.shape[1], len(inducing), len(x))
    rows = [project(kernel, inducing, x, part=(r,)) if r in kernel.shared else nothing for r in count]
    a = torch.stack([pad.gather(each).permute(0, 2, 3, 1) for each in rows], dim=3)  # L×V×n×R×M
    prior = torch.diag_embed(torch.stack([kernel.diagonal(xb, (r,)) for r in count], dim=3))
    past, cross = _past(kernel, inducing, noise, history, len(pad.places)), None
    if past is not None:
        reach = pad.filled[:, :, None] & past.pad.filled[:, None, :]
        parts = [kernel(xb, past.x, (r,) if r in kernel.own else ()) for r in count]
        cross = torch.stack([torch.where(reach, each, 0.0) for each in parts], dim=3)  # L×V×n×R×h
    return _lines(posterior, prior, a, past, cross), pad


def joint_lines(
    kernel: AdditiveKernel, inducing: Tensor, posterior: LatentPosterior, noise: Tensor,
    x: tuple[Tensor, ...], group: Tensor, history: History | None = None,
) -> tuple[Lines, Blocks]:  # fmt: skip
    """The sum of the components at several versions of the rows (each K×Q), jointly within a patient.

    There is one set per patient, whose lines are its rows in the first version, in the second, and so on.
    """
    pad = blocks(group)
    xb = torch.cat([each[pad.places] for each in x], dim=1)
    filled = pad.filled.repeat(1, len(x))
    both = filled[:, :, None] & filled[:, None, :]
    every = (*kernel.shared, *kernel.own)
    prior = torch.where(both, kernel(xb, xb, every), torch.diag_embed((~filled).to(xb.dtype)))
    a = torch.cat([pad.gather(project(kernel, inducing, each)).permute(0, 2, 3, 1) for each in x], dim=2)
    past, cross = _past(kernel, inducing, noise, history, len(pad.places)), None
    if past is not None:
        reach = filled[:, :, None] & past.pad.filled[:, None, :]
        cross = torch.where(reach, kernel(xb, past.x, kernel.own), 0.0)[:, :, None]
    return _lines(posterior, prior[:, :, None], a[:, :, None], past, cross), pad


def _past(
    kernel: AdditiveKernel, inducing: Tensor, noise: Tensor, history: History | None, groups: int
) -> _Past | None:
    if history is None:
        return None
    pad = blocks(history.group, groups)
    x = history.x[pad.places]
    a = pad.gather(project(kernel, inducing, history.x)).permute(0, 2, 3, 1)
    whitener = own_whitener(kernel, x, pad, noise)
    mean, var = pad.gather(history.mean.mT), pad.gather(history.var.mT)
    return _Past(pad, x, whitener, a, mean, var, history.trained)


def _lines(posterior: LatentPosterior, prior: Tensor, a: Tensor, past: _Past | None, cross: Tensor | None) -> Lines:
    """From K_ij (L×V×B×m×m), a (L×V×B×m×M) and K^(R)_ih (L×V×B×m×h) of the lines.

    A patient of the training rows is in the posterior of v already: Cov[v, z_h] = H t W with t = a_h Σ̂_h⁻¹. With
    T Tᵀ = H⁻¹ + G and u = T⁻¹ t √W,

        E[z_h | v] = μ + √W uᵀ T⁻¹ H⁻¹ (v − m),   Cov[z_h | v] = √W (I − uᵀu) √W.

    In training, gaps of these visits were integrated over; at one completion of them uᵀu may exceed I. It is scaled
    down then, so that there is such a law.
    """
    covariance, slope, mean = prior - a @ a.mT, a, a.new_zeros(())
    extra: Tensor | float = 0.0
    if past is not None and cross is not None:
        whitener, ah = past.whitener[:, :, None], past.a[:, :, None]
        gain = cross @ whitener.mT @ whitener  # B
        noisy = gain * past.var.sqrt()[:, :, None, None, :]  # B √W
        slope = slope - gain @ ah
        mean = (gain @ past.mean[:, :, None, :, None])[..., 0]
        factor, total = posterior.q.precision_factor, _total_factor(posterior)
        t = past.whitener.mT @ (past.whitener @ past.a)  # L×V×h×M
        u = solve_lower(total, t.flatten(1, 2).mT).mT.reshape(t.shape) * past.var.sqrt()[..., None]
        size = torch.linalg.matrix_norm(u @ u.mT).clamp_min(1.0)
        u = u * (past.trained / size.sqrt())[..., None, None]
        told = noisy @ u[:, :, None]
        covariance = covariance - gain @ cross.mT + noisy @ noisy.mT - told @ told.mT
        extra = told @ solve_lower(total, factor @ factor.mT)[:, None, None]
    mean = mean + torch.einsum("lvbim,lm->lvbi", slope, posterior.q.mean)
    return Lines(mean, slope + extra, covariance)


def _total_factor(posterior: LatentPosterior) -> Tensor:
    """Cholesky factor of H⁻¹ + G."""
    factor = posterior.q.precision_factor
    return cholesky(factor @ factor.mT + posterior.encoder_spread, jitter=0.0)
