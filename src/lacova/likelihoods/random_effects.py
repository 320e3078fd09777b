"""Each patient's own level of each measurement, constant or drifting with time, integrated out exactly.

y_pid = location_pid + b_pd(t_pi) + ε. A constant level b_pd ~ N(wᵀc, τ_d²) gives a patient's residuals on measurement d
the covariance σ_d²I + τ_d²11ᵀ: by Sherman and Morrison, all that is needed of them is their number, their sum and their
sum of squares. A level that drifts adds ω_d² exp(−λ_d|t − t'|), and takes a small matrix per patient and measurement.
Without the mean wᵀc, which depends on a patient's covariates, levels would take up what these explain.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lacova.data.batches import Batch, Blocks
from lacova.likelihoods.fixed_effects import FixedEffects, FixedPart
from lacova.nn.linalg import cholesky, whitener

MIN_VARIANCE = 1e-3  # least τ_d² and ω_d² to start from, in units of the scaled measurement


class EffectDraws(NamedTuple):
    """What is known of b at each row: mean and variance, which broadcasts, and a draw, joint within patients."""

    mean: Tensor
    var: Tensor
    drawn: Tensor


class RandomIntercepts(nn.Module):
    """Patients' own levels: how far they spread, one variance per measurement, and what they depend on.

    Args:
        start: τ_d² to start from (D,).
        slopes: what levels are on average, if that depends on anything.
    """

    def __init__(self, start: Tensor, fixed_effects: FixedEffects | None = None) -> None:
        super().__init__()
        self.raw = nn.Parameter(start.clamp_min(MIN_VARIANCE).log())
        self.fixed_effects = fixed_effects

    @property
    def var(self) -> Tensor:
        """Variance of b at a row (D,)."""
        return self.raw.exp()

    def kl(self) -> Tensor | float:
        """What the bound pays for the slopes, once for the whole table."""
        return 0.0 if self.fixed_effects is None else self.fixed_effects.kl()

    def gain(self, location: Tensor, batch: Batch, noise: Tensor, fixed_part: FixedPart | None = None) -> Tensor:
        """What E log p(y_o | location, wᵀc) has, per patient (…×P), over log p(y_o | location) without any level.

        Σ_d ½ [ Σ_i (y_i − location_i)²/σ² − rᵀC⁻¹r − Var(wᵀc) 1ᵀC⁻¹1 − log |C/σ²| ] with C = σ²I + τ²11ᵀ, over the
        observed r = y − location − E wᵀc.

        Args:
            location: of y (…×N̂×D).
            batch: the rows, and whose they are.
            noise: σ² (D,).
            fixed_part: wᵀc at each row; None for 0.
        """
        mean = 0.0 if fixed_part is None else fixed_part.mean
        count, total = _sums(location + mean, batch)
        var, spread = self.var, noise + count * self.var
        value = (var * total.square() / (noise * spread) - (spread / noise).log()).sum(-1)
        if fixed_part is None:
            return 0.5 * value
        value = value - (fixed_part.var[..., batch.first, :] * count / spread).sum(-1)
        less = ((fixed_part.mean * (fixed_part.mean - 2.0 * (batch.y - location))) * batch.y_mask / noise).sum(-1)
        return 0.5 * (value - torch.zeros_like(value).index_add(-1, batch.patient, less))

    def expect(self, location: Tensor, batch: Batch, noise: Tensor, fixed_part: FixedPart | None = None) -> Tensor:
        """E b at each row (…×N̂×D) given all observed measurements, at this location of y: shrunk residuals."""
        mean = 0.0 if fixed_part is None else fixed_part.mean
        count, total = _sums(location + mean, batch)
        return mean + (self.var * total / (noise + count * self.var))[..., batch.patient, :]

    def draw(
        self,
        location: Tensor,
        batch: Batch,
        noise: Tensor,
        generator: torch.Generator,
        fixed_part: FixedPart | None = None,
    ) -> EffectDraws:
        """b at each row given all observed measurements, for each location (draws×N̂×D) with a mean that is known."""
        before = 0.0 if fixed_part is None else fixed_part.mean
        count, total = _sums(location + before, batch)
        spread, at = noise + count * self.var, batch.patient
        mean, var = self.var * total / spread, (self.var * noise / spread).expand_as(total)
        drawn = mean + var.sqrt() * _normal(mean, generator)
        return EffectDraws(before + mean[..., at, :], var[..., at, :], before + drawn[..., at, :])


class DriftingIntercepts(RandomIntercepts):
    """EffectDraws that also drift: b_pd(t) = b_pd + an Ornstein-Uhlenbeck process of variance ω_d² and rate λ_d.

    A visit whose time is missing has a drift of its own, which says nothing of other visits.

    Args:
        start: τ_d² to start from (D,).
        drift: ω_d² to start from (D,).
        time: the column of x that holds the time.
        slopes: what levels are on average, if that depends on anything.
    """

    def __init__(self, start: Tensor, drift: Tensor, time: int, fixed_effects: FixedEffects | None = None) -> None:
        super().__init__(start, fixed_effects)
        self.raw_drift = nn.Parameter(drift.clamp_min(MIN_VARIANCE).log())
        self.raw_rate = nn.Parameter(torch.zeros_like(start))  # per standard deviation of the time
        self.time = time

    @property
    def var(self) -> Tensor:
        return self.raw.exp() + self.raw_drift.exp()

    def gain(self, location: Tensor, batch: Batch, noise: Tensor, fixed_part: FixedPart | None = None) -> Tensor:
        """The same with C = σ²I + K."""
        pad, noise = batch.blocks, noise.double()
        seen, root = self._whitener(self._covariance(batch, pad), batch, pad, noise)
        apart = (_residuals(location, batch, pad, seen).square() / noise[:, None, None]).sum(-1)
        r = _residuals(location + (0.0 if fixed_part is None else fixed_part.mean), batch, pad, seen)
        together = torch.einsum("dpij,...dpj->...dpi", root, r).square().sum(-1)
        if fixed_part is not None:
            ones = (root @ seen[..., None].to(root.dtype)).square().sum((-2, -1))  # 1ᵀC⁻¹1, D×P
            together = together + ones * fixed_part.var[..., batch.first, :].mT
        log_det = -2.0 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1) - (seen * noise.log()[:, None, None]).sum(-1)
        return 0.5 * (apart - together - log_det).sum(-2).to(location.dtype)

    def expect(self, location: Tensor, batch: Batch, noise: Tensor, fixed_part: FixedPart | None = None) -> Tensor:
        pad, mean = batch.blocks, 0.0 if fixed_part is None else fixed_part.mean
        k = self._covariance(batch, pad)
        seen, root = self._whitener(k, batch, pad, noise.double())
        white = torch.einsum("dpij,...dpj->...dpi", root, _residuals(location + mean, batch, pad, seen))
        weight = torch.einsum("dpji,...dpj->...dpi", root, white) * seen
        return mean + _at_rows(torch.einsum("dpij,...dpj->...dpi", k, weight), batch, pad).to(location.dtype)

    def draw(
        self,
        location: Tensor,
        batch: Batch,
        noise: Tensor,
        generator: torch.Generator,
        fixed_part: FixedPart | None = None,
    ) -> EffectDraws:
        pad, before = batch.blocks, 0.0 if fixed_part is None else fixed_part.mean
        k = self._covariance(batch, pad)
        seen, root = self._whitener(k, batch, pad, noise.double())
        half = torch.einsum("dpki,dpij->dpkj", root, k * seen[..., :, None])
        gain = torch.einsum("dpki,dpkj->dpij", half, root) * seen[..., None, :]
        r = _residuals(location + before, batch, pad, seen)
        mean = torch.einsum("dpij,...dpj->...dpi", gain, r).to(location.dtype)
        left = k - half.transpose(-1, -2) @ half
        var = left.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).to(location.dtype)
        factor = cholesky(left + torch.diag_embed((~pad.filled).to(left.dtype))).to(location.dtype)
        drawn = mean + torch.einsum("dpij,...dpj->...dpi", factor, _normal(mean, generator))
        mean, var, drawn = (_at_rows(part, batch, pad) for part in (mean, var.expand_as(mean), drawn))
        return EffectDraws(before + mean, var, before + drawn)

    def _covariance(self, batch: Batch, pad: Blocks) -> Tensor:
        """K of each patient's visits (D×P×n×n), zero where padded. Such small matrices are all of float64."""
        time, known = batch.x[:, self.time].double()[pad.places], batch.x_mask[:, self.time][pad.places]
        apart = (time[:, :, None] - time[:, None, :]).abs()
        itself = torch.eye(time.shape[1], dtype=torch.bool, device=time.device)
        related = (known[:, :, None] & known[:, None, :]) | itself
        level, drift, rate = (
            raw.double().exp()[:, None, None, None] for raw in (self.raw, self.raw_drift, self.raw_rate)
        )
        return (level + drift * related * (-rate * apart).exp()) * (pad.filled[:, :, None] & pad.filled[:, None, :])

    def _whitener(self, k: Tensor, batch: Batch, pad: Blocks, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Which places are observed (D×P×n), and C⁻¹ of their covariance C Cᵀ; others are unit and apart."""
        seen = (batch.y_mask[pad.places] & pad.filled[..., None]).permute(2, 0, 1)
        both = seen[..., :, None] & seen[..., None, :]
        return seen, whitener(k * both + torch.diag_embed(torch.where(seen, noise[:, None, None], 1.0)))


def _sums(location: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Per patient, the number of observed entries (P×D) and the sum of their residuals (…×P×D)."""
    seen = batch.y_mask.to(location.dtype)
    zero = seen.new_zeros(batch.patients, seen.shape[1])
    count = zero.index_add(0, batch.patient, seen)
    residual = (batch.y - location) * seen
    shape = (*residual.shape[:-2], *zero.shape)
    return count, residual.new_zeros(shape).index_add(-2, batch.patient, residual)


def _residuals(location: Tensor, batch: Batch, pad: Blocks, seen: Tensor) -> Tensor:
    """y − location by measurement and patient (…×D×P×n), zero where not observed."""
    return (batch.y - location).double()[..., pad.places, :].movedim(-1, -3) * seen


def _at_rows(values: Tensor, batch: Batch, pad: Blocks) -> Tensor:
    """…×D×P×n to …×N̂×D. Rows that only fill up a shape may be more than a patient has places."""
    within = torch.arange(len(batch), device=values.device) - pad.places[batch.patient, 0]
    return values[..., batch.patient, within.clamp_max(pad.places.shape[1] - 1)].movedim(-2, -1)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
