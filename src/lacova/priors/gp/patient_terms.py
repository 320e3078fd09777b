"""The terms of D̂⁴ that couple a patient's rows, with their gradient by hand.

For each latent dimension and completed patient, with r = aᵀm − target, Σ̂ = K^(R) + σ_z²I and P = Σ̂⁻¹:

    rᵀPr + tr(PW) + log|Σ̂| + tr(PK^(A)) − tr(P aᵀ(I − H)a)  =  tr(PT) + log|Σ̂|,   T = rrᵀ + W + K^(A) − aᵀ(I − H)a

The derivatives are P − PTP in Σ̂, P in K^(A), 2Pr in r, and −2(I − H)aP in a. So one product of all rows with an M×M
matrix serves both passes; autograd would take five, on rows that are padded to the longest patient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lacova.data.batches import Blocks
from lacova.nn.linalg import cholesky, identity, inverse_lower, log_det
from lacova.priors.base import NaturalStatistics
from lacova.priors.gp.inducing import Whitened


class PatientTerms(NamedTuple):
    """The terms of each scenario (L×V), and a function that returns the statistics of v, given the weights (V,)."""

    value: Tensor
    statistics: Callable[[Tensor], NaturalStatistics]


def patient_terms(
    a: Tensor, covariance: Tensor, shared: Tensor, target: Tensor, var: Tensor | None, q: Whitened, pad: Blocks
) -> PatientTerms:
    """Compute the terms above.

    Args:
        a: projections of the K completed rows (L×M×K).
        covariance: Σ̂ by scenario (L×V×n×n), with the rows and columns of the identity where padded.
        shared: K^(A) by scenario (L×V×n×n), zero where padded.
        target: latent values at the completed rows (L×K): the mean of q(Z), or draws.
        var: the variance of q(Z) at the completed rows (L×K); None for draws.
        q: q(v).
        pad: places of the completed rows by scenario (V×n).
    """
    deficit = identity(q.root.shape[-1], a.dtype, a.device) - q.root.mT @ q.root  # I − H
    var = torch.zeros_like(target) if var is None else var
    value, white_a, white_target = _PatientTerms.apply(  # type: ignore[no-untyped-call]
        a.mT, covariance, shared, target, var, q.mean, deficit, *pad
    )

    def statistics(weight: Tensor) -> NaturalStatistics:
        """A = Σ_v w_v a P aᵀ, b = Σ_v w_v a P target; A is a sum of squares, positive in any precision."""
        by_place = weight.detach()[:, None, None].expand(*pad.places.shape, 1)[None]
        own = _to_rows(by_place, _row_of(pad.places, pad.filled, a.shape[-1]), a.shape[-1])
        wide = white_a.double()  # L×K×M
        weighted = wide * own
        return NaturalStatistics(weighted.mT @ wide, (weighted.mT @ white_target.double())[..., 0])

    return PatientTerms(value, statistics)


class _PatientTerms(torch.autograd.Function):
    """The terms (L×V), and Ra and R·target at the rows (L×K×M, L×K×1) with RᵀR = P, without gradients.

    `a` comes as L×K×M. A row is in at most one scenario.
    """

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, covariance: Tensor, shared: Tensor, target: Tensor, var: Tensor, mean: Tensor,
        deficit: Tensor, places: Tensor, filled: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        factor = cholesky(covariance, jitter=0.0)
        root = inverse_lower(factor)
        precision = root.mT @ root  # P
        misfit = ((a @ mean[..., None])[..., 0] - target)[:, places] * filled  # r, L×V×n
        pulled = (precision @ misfit[..., None])[..., 0]  # Pr
        white = root @ (a[:, places] * filled[..., None])  # L×V×n×M
        blocks = root.mT @ white  # aP
        white_target = root @ (target[:, places] * filled)[..., None]
        at = _row_of(places, filled, a.shape[1])
        by_row = _to_rows(torch.cat([blocks, white, white_target], -1), at, a.shape[1])
        projected, white, white_target = by_row.split([a.shape[2], a.shape[2], 1], -1)
        reduced = projected @ deficit  # (I − H)aP at the rows, L×K×M
        own = (a * reduced).sum(-1)[:, places] * filled
        spread = var[:, places] * filled
        value = (
            (misfit * pulled - own + precision.diagonal(dim1=-2, dim2=-1) * spread).sum(-1)
            + (precision * shared).sum((-2, -1))
            + log_det(factor)
        )
        pad = (places, filled, at)
        ctx.save_for_backward(a, precision, shared, spread, pulled, blocks, projected, reduced, mean, *pad)
        ctx.mark_non_differentiable(white, white_target)
        return value, white, white_target

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        a, precision, shared, spread, pulled, blocks, projected, reduced, mean, *pad = ctx.saved_tensors
        places, filled, at = pad
        scale = gradient[..., None, None]  # L×V×1×1
        # PTP = Pr (Pr)ᵀ + P(W + K^(A))P − P aᵀ(I − H)aP
        inner = precision @ (shared + torch.diag_embed(spread)) @ precision
        inner += pulled[..., :, None] * pulled[..., None, :]
        inner -= blocks @ (reduced[:, places] * filled[..., None]).mT
        to_covariance = (precision - inner).mul_(scale)
        of_place = torch.stack([2.0 * pulled, torch.ones_like(pulled), precision.diagonal(dim1=-2, dim2=-1)], -1)
        force, weight, to_var = _to_rows(scale * of_place, at, a.shape[1]).unbind(-1)  # L×K each
        to_a = torch.addcmul(force[..., None] * mean[:, None], weight[..., None], reduced, value=-2.0)
        to_mean = (a.mT @ force[..., None])[..., 0] if ctx.needs_input_grad[5] else None
        to_deficit = -(a * weight[..., None]).mT @ projected if ctx.needs_input_grad[6] else None
        return to_a, to_covariance, scale * precision, -force, to_var, to_mean, to_deficit, None, None


def _row_of(places: Tensor, filled: Tensor, rows: int) -> Tensor:
    """Return the completed row of each place (V·n,), one beyond the last for padding."""
    return torch.where(filled, places, rows).flatten()


def _to_rows(blocks: Tensor, at: Tensor, rows: int) -> Tensor:
    """Return values by scenario (…×V×n×C) at the completed rows (…×K×C), zero at rows that are in no scenario."""
    values = blocks.new_zeros(*blocks.shape[:-3], rows + 1, blocks.shape[-1])
    return values.index_copy(-2, at, blocks.flatten(-3, -2))[..., :rows, :]
