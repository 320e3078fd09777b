"""Patients' random effects on each measurement, constant or drifting with time, integrated out exactly.

y_pid = location_pid + b_pd(t_pi) + ε. A random intercept b_pd ~ N(wᵀc, τ_d²) gives a patient's residuals on measurement
d the covariance σ_d²I + τ_d²11ᵀ. By the Sherman–Morrison formula, their number, their sum and their sum of squares are
sufficient. A drifting intercept adds ω_d² exp(−λ_d|t − t'|) to the covariance, which takes a small matrix per patient
and measurement. The mean wᵀc is the fixed part, which depends on the patient's covariates: without it, random effects
would absorb what the covariates explain.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lacova.data.batches import Batch, Blocks
from lacova.likelihoods.base import standard_normal
from lacova.likelihoods.fixed_effects import FixedEffects, FixedPart
from lacova.nn.linalg import cholesky, whitener

MIN_VARIANCE = 1e-3  # least τ_d² and ω_d² to start from, in units of the scaled measurement


class EffectDraws(NamedTuple):
    """Posterior of b at each row: its mean, its variance, and draws, which are joint within patients."""

    mean: Tensor
    var: Tensor
    drawn: Tensor


class Factorisation(NamedTuple):
    """The covariance of drifting effects in one batch.

    Attributes:
        k: K of each patient's visits (D×P×n×n), zero where padded.
        observed: which places are observed (D×P×n).
        root: L⁻¹ of the covariance LLᵀ of what is observed (D×P×n×n).
    """

    k: Tensor
    observed: Tensor
    root: Tensor


class RandomIntercepts(nn.Module):
    """Random intercepts b_pd ~ N(wᵀc, τ_d²) of each patient and measurement.

    Args:
        start: τ_d² to start from (D,).
        fixed_effects: the fixed part wᵀc; None for 0.
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
        """Return the KL divergence of the fixed effects' coefficients, once for the whole table."""
        return 0.0 if self.fixed_effects is None else self.fixed_effects.kl()

    def factorise(self, batch: Batch, noise: Tensor) -> Factorisation | None:
        """Return what `gain` and `expect` share, where they need a factorisation."""
        return None

    def gain(
        self, location: Tensor, batch: Batch, noise: Tensor, fixed_part: FixedPart | None = None,
        factorisation: Factorisation | None = None,
    ) -> Tensor:  # fmt: skip
        """Return E log p(y_o | location, wᵀc) of each patient (…×P), less log p(y_o | location) without random effects.

        Σ_d ½ [ Σ_i (y_i − location_i)²/σ² − rᵀC⁻¹r − Var(wᵀc) 1ᵀC⁻¹1 − log |C/σ²| ] with C = σ²I + τ²11ᵀ, over the
        observed r = y − location − E wᵀc.

        Args:
            location: the decoder's location of y (…×N̂×D).
            batch: the rows, with their patients.
            noise: σ² (D,).
            fixed_part: wᵀc at each row; None for 0.
            factorisation: that of `factorise` for this batch, if it has been computed.
        """
        mean = 0.0 if fixed_part is None else fixed_part.mean
        count, total = _sums(location + mean, batch)
        var, scale = self.var, noise + count * self.var
        value = (var * total.square() / (noise * scale) - (scale / noise).log()).sum(-1)
        if fixed_part is None:
            return 0.5 * value
        value = value - (fixed_part.var[..., batch.first, :] * count / scale).sum(-1)
        # excess = Σ r²/σ² − Σ (y − location)²/σ²
        excess = ((fixed_part.mean * (fixed_part.mean - 2.0 * (batch.y - location))) * batch.y_mask / noise).sum(-1)
        return 0.5 * (value - torch.zeros_like(value).index_add(-1, batch.patient, excess))

    def expect(
        self, location: Tensor, batch: Batch, noise: Tensor, fixed_mean: Tensor | None = None,
        factorisation: Factorisation | None = None,
    ) -> Tensor:  # fmt: skip
        """Return E b at each row (…×N̂×D) given all observed measurements: the fixed part and shrunk residuals.

        The arguments are those of `gain`; `fixed_mean` is the mean of the fixed part (…×N̂×D).
        """
        mean = 0.0 if fixed_mean is None else fixed_mean
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
        """Draw b at each row given all observed measurements, for each location (draws×N̂×D).

        The fixed part has one value per draw: its variance does not enter. The other arguments are those of `gain`.
        """
        prior_mean = 0.0 if fixed_part is None else fixed_part.mean
        count, total = _sums(location + prior_mean, batch)
        scale, patient = noise + count * self.var, batch.patient
        mean, var = self.var * total / scale, (self.var * noise / scale).expand_as(total)
        drawn = mean + var.sqrt() * standard_normal(mean, generator)
        return EffectDraws(
            prior_mean + mean[..., patient, :], var[..., patient, :], prior_mean + drawn[..., patient, :]
        )


class DriftingIntercepts(RandomIntercepts):
    """Random intercepts that drift: b_pd(t) = b_pd + an Ornstein–Uhlenbeck process of variance ω_d² and rate λ_d.

    The drift at a visit whose time is missing is independent of the drift at other visits.

    Args:
        start: τ_d² to start from (D,).
        drift: ω_d² to start from (D,).
        time: the column of x that holds the time.
        fixed_effects: the fixed part wᵀc; None for 0.
    """

    def __init__(self, start: Tensor, drift: Tensor, time: int, fixed_effects: FixedEffects | None = None) -> None:
        super().__init__(start, fixed_effects)
        self.raw_drift = nn.Parameter(drift.clamp_min(MIN_VARIANCE).log())
        self.raw_rate = nn.Parameter(torch.zeros_like(start))  # per standard deviation of the time
        self.time = time

    @property
    def var(self) -> Tensor:
        return self.raw.exp() + self.raw_drift.exp()

    @torch.no_grad()
    def start_drift(self, variance: Tensor) -> None:
        """Start ω_d² from these variances (D,)."""
        self.raw_drift.copy_(variance.clamp_min(MIN_VARIANCE).log())

    def factorise(self, batch: Batch, noise: Tensor) -> Factorisation:
        k = self._covariance(batch, batch.blocks, batch.y.dtype)
        return Factorisation(k, *self._whitener(k, batch, batch.blocks, noise.to(k.dtype)))

    def gain(
        self, location: Tensor, batch: Batch, noise: Tensor, fixed_part: FixedPart | None = None,
        factorisation: Factorisation | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the same as `RandomIntercepts.gain`, with C = σ²I + K, in the precision of y."""
        _, observed, root = self.factorise(batch, noise) if factorisation is None else factorisation
        independent = ((batch.y - location).square() * batch.y_mask / noise).sum(-1)  # …×N̂
        r = _residuals(location + (0.0 if fixed_part is None else fixed_part.mean), batch, batch.blocks, observed)
        correlated = torch.einsum("dpij,...dpj->...dpi", root, r).square().sum(-1)
        if fixed_part is not None:
            ones = (root @ observed[..., None].to(root.dtype)).square().sum((-2, -1))  # 1ᵀC⁻¹1, D×P
            correlated = correlated + ones * fixed_part.var.index_select(-2, batch.first).mT
        log_det = -2.0 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1) - observed.sum(-1) * noise.log()[:, None]
        rest = (correlated + log_det).sum(-2)
        return 0.5 * (torch.zeros_like(rest).index_add(-1, batch.patient, independent) - rest)

    def expect(
        self, location: Tensor, batch: Batch, noise: Tensor, fixed_mean: Tensor | None = None,
        factorisation: Factorisation | None = None,
    ) -> Tensor:  # fmt: skip
        blocks, mean = batch.blocks, 0.0 if fixed_mean is None else fixed_mean
        k, observed, root = self.factorise(batch, noise) if factorisation is None else factorisation
        white = torch.einsum("dpij,...dpj->...dpi", root, _residuals(location + mean, batch, blocks, observed))
        weight = torch.einsum("dpji,...dpj->...dpi", root, white) * observed
        return mean + _at_rows(torch.einsum("dpij,...dpj->...dpi", k, weight), batch, blocks)

    def draw(
        self,
        location: Tensor,
        batch: Batch,
        noise: Tensor,
        generator: torch.Generator,
        fixed_part: FixedPart | None = None,
    ) -> EffectDraws:
        blocks, prior_mean = batch.blocks, 0.0 if fixed_part is None else fixed_part.mean
        k = self._covariance(batch, blocks, torch.float64)
        observed, root = self._whitener(k, batch, blocks, noise.double())
        white_k = torch.einsum("dpki,dpij->dpkj", root, k * observed[..., :, None])
        weight = torch.einsum("dpki,dpkj->dpij", white_k, root) * observed[..., None, :]
        r = _residuals(location + prior_mean, batch, blocks, observed).double()
        mean = torch.einsum("dpij,...dpj->...dpi", weight, r).to(location.dtype)
        covariance = k - white_k.transpose(-1, -2) @ white_k
        var = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).to(location.dtype)
        factor = cholesky(covariance + torch.diag_embed((~blocks.filled).to(covariance.dtype))).to(location.dtype)
        drawn = mean + torch.einsum("dpij,...dpj->...dpi", factor, standard_normal(mean, generator))
        mean, var, drawn = (_at_rows(part, batch, blocks) for part in (mean, var.expand_as(mean), drawn))
        return EffectDraws(prior_mean + mean, var, prior_mean + drawn)

    def _covariance(self, batch: Batch, blocks: Blocks, dtype: torch.dtype) -> Tensor:
        """Return K of each patient's visits (D×P×n×n), zero where padded."""
        time, known = batch.x[:, self.time].to(dtype)[blocks.places], batch.x_mask[:, self.time][blocks.places]
        distance = (time[:, :, None] - time[:, None, :]).abs()
        itself = torch.eye(time.shape[1], dtype=torch.bool, device=time.device)
        related = (known[:, :, None] & known[:, None, :]) | itself
        intercept, drift, rate = (
            raw.to(dtype).exp()[:, None, None, None] for raw in (self.raw, self.raw_drift, self.raw_rate)
        )
        both_filled = blocks.filled[:, :, None] & blocks.filled[:, None, :]
        return (intercept + drift * related * (-rate * distance).exp()) * both_filled

    def _whitener(self, k: Tensor, batch: Batch, blocks: Blocks, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return which places are observed (D×P×n), and L⁻¹ of their covariance LLᵀ (D×P×n×n).

        In the covariance, a place that is not observed has variance 1 and is independent of the others.
        """
        observed = (batch.y_mask[blocks.places] & blocks.filled[..., None]).permute(2, 0, 1)
        both = observed[..., :, None] & observed[..., None, :]
        return observed, whitener(k * both + torch.diag_embed(torch.where(observed, noise[:, None, None], 1.0)))


def _sums(location: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the number of observed entries of each patient (P×D) and the sum of their residuals (…×P×D)."""
    observed = batch.y_mask.to(location.dtype)
    zero = observed.new_zeros(batch.patients, observed.shape[1])
    count = zero.index_add(0, batch.patient, observed)
    residual = (batch.y - location) * observed
    shape = (*residual.shape[:-2], *zero.shape)
    return count, residual.new_zeros(shape).index_add(-2, batch.patient, residual)


def _residuals(location: Tensor, batch: Batch, blocks: Blocks, observed: Tensor) -> Tensor:
    """Return y − location by measurement and patient (…×D×P×n), zero where not observed."""
    return blocks.take(batch.y - location, -2).movedim(-1, -3) * observed


def _at_rows(values: Tensor, batch: Batch, blocks: Blocks) -> Tensor:
    """Return values by measurement and patient (…×D×P×n) at the rows (…×N̂×D)."""
    within = torch.arange(len(batch), device=values.device) - blocks.places[batch.patient, 0]
    # The rows that pad a batch belong to one patient, and may be more than a patient has places.
    return values[..., batch.patient, within.clamp_max(blocks.places.shape[1] - 1)].movedim(-2, -1)
