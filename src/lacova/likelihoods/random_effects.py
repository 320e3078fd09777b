"""Patients' random effects on each measurement, integrated out exactly.

y_pid = location_pid + b_pd(t_pi) + ε. The random effects of a patient are

    b_pd(t) = h(t)ᵀ (B_d c_p + F_d u_p) + a_pd(t),    h(t) = (1) or (1, t)ᵀ

B_d c_p is the fixed part, which depends on the patient's covariates: without it, random effects would absorb what the
covariates explain. u_p ~ N(0, I) are a few factors that all measurements share, so that a patient's cholesterol says
something about the lipids that were not measured; where there is a time, they are random slopes as well as intercepts.
a_pd belongs to the measurement alone: a random intercept of variance τ_d², and with a time an Ornstein–Uhlenbeck drift
of covariance ω_d² exp(−λ_d|t − t'|).

Given u, measurements are independent: C_pd = σ_d²I + Cov a is a small matrix per patient and measurement, or, for
constant intercepts, a rank-one one. The factors enter by Woodbury's identity with M_p = I + Σ_d F_dᵀ HᵀC⁻¹H F_d.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lacova.data.batches import Batch, Blocks
from lacova.likelihoods.base import standard_normal
from lacova.likelihoods.fixed_effects import FixedEffects, FixedPart, visit_time
from lacova.nn.linalg import cholesky, identity, log_det, whitener

MIN_VARIANCE = 1e-3  # least τ_d² and ω_d² to start from, in units of the scaled measurement
START_LOADING = 0.05  # standard deviation of the loadings to start from; at 0 they would have no gradient


class EffectDraws(NamedTuple):
    """Posterior of b at each row: its mean, its variance, and draws, which are joint within patients."""

    mean: Tensor
    var: Tensor
    drawn: Tensor


class Factorisation(NamedTuple):
    """What the terms of one batch share.

    Attributes:
        gram: HᵀC⁻¹H of each patient and measurement (P×D×J×J).
        log_det: log |Σ/σ²| of each patient, Σ the covariance of all its residuals (P,).
        shared: R with RᵀR = M⁻¹ (P×k×k); None without factors.
        own: what the own effects need beside it.
    """

    gram: Tensor
    log_det: Tensor
    shared: Tensor | None
    own: tuple[Tensor, ...]


class RandomIntercepts(nn.Module):
    """Random effects whose own part is a constant intercept a_pd ~ N(0, τ_d²).

    Args:
        start: τ_d² to start from (D,).
        fixed_effects: the fixed part; None for 0.
        factors: k, the number of factors that measurements share.
        time: the column of x that holds the time; None for intercepts alone.
        slopes: let the factors have random slopes in time, too.
    """

    def __init__(
        self, start: Tensor, fixed_effects: FixedEffects | None = None, factors: int = 0, time: int | None = None,
        slopes: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.raw = nn.Parameter(start.clamp_min(MIN_VARIANCE).log())
        self.fixed_effects = fixed_effects
        self.time = time
        changing = fixed_effects is not None and fixed_effects.orders > 1
        self.orders = 2 if time is not None and ((factors and slopes) or changing) else 1
        self.loadings = None
        if factors:  # F
            self.loadings = nn.Parameter(START_LOADING * torch.randn(len(start), self.orders, factors).to(start))

    @property
    def var(self) -> Tensor:
        """Variance of a_pd at a row (D,)."""
        return self.raw.exp()

    def kl(self) -> Tensor | float:
        """Return the KL divergence of the fixed effects' coefficients, once for the whole table."""
        return 0.0 if self.fixed_effects is None else self.fixed_effects.kl()

    def variance(self, batch: Batch, fixed_part: FixedPart | None = None) -> Tensor:
        """Return the variance of b at each row by itself (…×N̂×D), with that of the fixed part."""
        h, var = self._design(batch, batch.y.dtype), self.var.expand(len(batch), -1)
        if self.loadings is not None:
            var = var + torch.einsum("nj,djk->ndk", h, self.loadings).square().sum(-1)
        if fixed_part is None or fixed_part.covariance is None:
            return var
        covariance = fixed_part.covariance[..., batch.patient, :, :, :]
        return var + torch.einsum("nj,...ndjl,nl->...nd", h, covariance, h)

    def factorise(self, batch: Batch, noise: Tensor) -> Factorisation:
        """Return what `gain`, `expect` and `information` share."""
        gram, own_log_det, own = self._factorise_own(batch, noise)
        if self.loadings is None:
            return Factorisation(gram, own_log_det, None, own)
        size = self.loadings.shape[-1]
        m = torch.einsum("djk,pdjl,dlm->pkm", self.loadings, gram, self.loadings)
        shared = whitener(m + identity(size, m.dtype, m.device))
        return Factorisation(gram, own_log_det - log_det(shared), shared, own)

    def gain(
        self, location: Tensor, batch: Batch, noise: Tensor, fixed_part: FixedPart | None = None,
        factorisation: Factorisation | None = None,
    ) -> Tensor:  # fmt: skip
        """Return E log p(y_o | location, B c) of each patient (…×P), less log p(y_o | location) without random effects.

        ½ [ Σ (y − location)²/σ² − rᵀΣ⁻¹r − Σ_d tr(G̃_d Cov B_d c) − log |Σ/σ²| ] over the observed r = y − location −
        E h(t)ᵀB c, with G̃_d = G_d − G_d F_d M⁻¹ F_dᵀ G_d and G = HᵀC⁻¹H.

        Args:
            location: the decoder's location of y (…×N̂×D).
            batch: the rows, with their patients.
            noise: σ² (D,).
            fixed_part: h(t)ᵀB c at each row; None for 0.
            factorisation: that of `factorise` for this batch, if it has been computed.
        """
        parts = self.factorise(batch, noise) if factorisation is None else factorisation
        mean = 0.0 if fixed_part is None else fixed_part.mean
        independent = _by_patient(((batch.y - location).square() * batch.y_mask / noise).sum(-1), batch)
        square, score = self._project((batch.y - location - mean) * batch.y_mask, batch, noise, parts.own)
        value = independent - square - parts.log_det
        if self.loadings is not None and parts.shared is not None:
            shared = torch.einsum("djk,...pdj->...pk", self.loadings, score)
            value = value + torch.einsum("pkl,...pl->...pk", parts.shared, shared).square().sum(-1)
        if fixed_part is not None and fixed_part.covariance is not None:
            value = value - (self._gram(parts) * fixed_part.covariance).sum((-3, -2, -1))
        return 0.5 * value

    def information(self, batch: Batch, second: Tensor, factorisation: Factorisation) -> Tensor:
        """Return what a batch adds to the precision of the fixed effects' coefficients (V×D×K'×K'): of a measurement
        given the others' coefficients and, where they share factors, of a measurement by itself. `second` is E c cᵀ of
        each patient (P̂×K×K)."""
        assert self.fixed_effects is not None
        grams = [self._gram(factorisation)]
        if self.loadings is not None:
            grams.append(self._own_gram(factorisation.gram))
        return torch.stack([batch.scale * self.fixed_effects.information(second, gram) for gram in grams])

    def expect(
        self, location: Tensor, batch: Batch, noise: Tensor, fixed_mean: Tensor | None = None,
        factorisation: Factorisation | None = None,
    ) -> Tensor:  # fmt: skip
        """Return E b at each row (…×N̂×D) given all observed measurements: the fixed part and shrunk residuals.

        The arguments are those of `gain`; `fixed_mean` is the mean of the fixed part (…×N̂×D).
        """
        parts = self.factorise(batch, noise) if factorisation is None else factorisation
        mean = torch.zeros_like(location) if fixed_mean is None else fixed_mean
        residual = batch.y - location - mean
        if self.loadings is not None and parts.shared is not None:
            _, score = self._project(residual * batch.y_mask, batch, noise, parts.own)
            white = torch.einsum("pkl,djl,...pdj->...pk", parts.shared, self.loadings, score)
            shared = self._shared_at(torch.einsum("pkl,...pk->...pl", parts.shared, white), batch)
            mean, residual = mean + shared, residual - shared
        return mean + self._expect_own(residual * batch.y_mask, batch, noise, parts.own)

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
        mean = torch.zeros_like(location) if fixed_part is None else fixed_part.mean
        residual, parts = batch.y - location - mean, self.factorise(batch, noise)
        if self.loadings is None or parts.shared is None:
            own = self._draw_own(residual * batch.y_mask, batch, noise, generator)
            return EffectDraws(mean + own.mean, own.var, mean + own.drawn)
        _, score = self._project(residual * batch.y_mask, batch, noise, parts.own)
        white = torch.einsum("pkl,djl,...pdj->...pk", parts.shared, self.loadings, score)
        eps = standard_normal(white, generator)
        expected, drawn = (
            self._shared_at(torch.einsum("pkl,...pk->...pl", parts.shared, u), batch) for u in (white, white + eps)
        )
        own = self._draw_own((residual - drawn) * batch.y_mask, batch, noise, generator)
        # Mean and variance over u: those given u are linear in it, with the residual that its own effect leaves.
        own_mean = self._expect_own((residual - expected) * batch.y_mask, batch, noise, parts.own)
        left = self._left_by_factors(batch, noise, parts)
        var = own.var + left.square().sum(-1)
        return EffectDraws(mean + expected + own_mean, var, mean + drawn + own.drawn)

    def _left_by_factors(self, batch: Batch, noise: Tensor, parts: Factorisation) -> Tensor:
        """Return (h F − Cov(a) C⁻¹ H F) Rᵀ at each row (N̂×D×k): how b moves with u, own effects included."""
        assert self.loadings is not None
        assert parts.shared is not None
        h, root = self._design(batch, self.loadings.dtype), parts.shared[batch.patient]
        patterns = torch.einsum("nj,djm,nkm->knd", h, self.loadings, root)
        return (patterns - self._expect_own(patterns * batch.y_mask, batch, noise, parts.own)).permute(1, 2, 0)

    def _gram(self, parts: Factorisation) -> Tensor:
        """Return G̃ (P×D×J×J): HᵀΣ⁻¹H of each measurement, the factors integrated out."""
        if self.loadings is None or parts.shared is None:
            return parts.gram
        white = torch.einsum("pkl,djl,pdji->pdki", parts.shared, self.loadings, parts.gram)
        return parts.gram - white.mT @ white

    def _own_gram(self, gram: Tensor) -> Tensor:
        """Return HᵀΣ_d⁻¹H (P×D×J×J), where Σ_d is the covariance of measurement d alone, from HᵀC⁻¹H."""
        assert self.loadings is not None
        seen = self.loadings.mT @ gram  # P×D×k×J
        size = self.loadings.shape[-1]
        root = whitener(seen @ self.loadings + identity(size, gram.dtype, gram.device))
        white = root @ seen
        return gram - white.mT @ white

    def _shared_at(self, u: Tensor, batch: Batch) -> Tensor:
        """Return hᵀF u at each row (…×N̂×D) for factors u (…×P×k)."""
        assert self.loadings is not None
        coefficients = torch.einsum("djk,...pk->...pjd", self.loadings, u).index_select(-3, batch.patient)
        return (self._design(batch, u.dtype)[..., None] * coefficients).sum(-2)

    def _design(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        """Return h(t) at each row (N̂×J)."""
        ones = torch.ones(len(batch), 1, dtype=dtype, device=batch.y.device)
        if self.orders == 1:
            return ones
        assert self.time is not None
        return torch.cat([ones, visit_time(batch, self.time, dtype)[:, None]], dim=1)

    # The own effects of each measurement

    def _factorise_own(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Return G, log |C/σ²| of each patient, and what the methods below need: here n of each patient (P×D).

        By the Sherman–Morrison formula, sums are sufficient: C⁻¹ = (I − τ²11ᵀ/(σ² + nτ²))/σ².
        """
        h, observed = self._design(batch, noise.dtype), batch.y_mask.to(noise.dtype)
        count = _by_patient(observed.mT, batch).mT
        scale = noise + count * self.var
        outer = torch.einsum("ni,nj,nd->ijdn", h, h, observed)
        outer = _by_patient(outer, batch).permute(3, 2, 0, 1)  # P×D×J×J
        sums = outer[..., 0]
        gram = outer - (self.var / scale)[..., None, None] * sums[..., :, None] * sums[..., None, :]
        return gram / noise[:, None, None], (scale / noise).log().sum(-1), (count,)

    def _project(self, residual: Tensor, batch: Batch, noise: Tensor, own: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return Σ_d rᵀC⁻¹r (…×P) and HᵀC⁻¹r (…×P×D×J) of observed residuals (…×N̂×D), 0 elsewhere."""
        (count,) = own
        h = self._design(batch, residual.dtype)
        sums = _by_patient((residual[..., None] * h[:, None]).movedim(-3, -1), batch).movedim(-1, -3)  # …×P×D×J
        total, shrunk = sums[..., 0], self.var / (noise + count * self.var)
        squares = _by_patient((residual.square() / noise).sum(-1), batch)
        design_sums = _by_patient(torch.einsum("nd,nj->djn", batch.y_mask.to(h.dtype), h), batch).permute(2, 0, 1)
        score = (sums - (shrunk * total)[..., None] * design_sums) / noise[:, None]
        return squares - (shrunk * total.square() / noise).sum(-1), score

    def _expect_own(self, residual: Tensor, batch: Batch, noise: Tensor, own: tuple[Tensor, ...]) -> Tensor:
        """Return E a at each row (…×N̂×D) given residuals (…×N̂×D), 0 where not observed."""
        total = _by_patient(residual.mT, batch).mT
        return (self.var * total / (noise + own[0] * self.var))[..., batch.patient, :]

    def _draw_own(self, residual: Tensor, batch: Batch, noise: Tensor, generator: torch.Generator) -> EffectDraws:
        """Draw a at each row given residuals (draws×N̂×D), 0 where not observed."""
        count, total = (_by_patient(part.mT, batch).mT for part in (batch.y_mask.to(residual.dtype), residual))
        scale, patient = noise + count * self.var, batch.patient
        mean, var = self.var * total / scale, (self.var * noise / scale).expand_as(total)
        drawn = mean + var.sqrt() * standard_normal(mean, generator)
        return EffectDraws(mean[..., patient, :], var[..., patient, :], drawn[..., patient, :])


class DriftingIntercepts(RandomIntercepts):
    """Random effects whose own part drifts: a random intercept and an Ornstein–Uhlenbeck process.

    The process has variance ω_d² and rate λ_d. The drift at a visit whose time is missing is independent of the drift
    at other visits.

    Args:
        start: τ_d² to start from (D,).
        drift: ω_d² to start from (D,).
        time: the column of x that holds the time.
        fixed_effects: the fixed part; None for 0.
        factors: k, the number of factors that measurements share.
        slopes: let the factors have random slopes in time, too.
    """

    def __init__(
        self, start: Tensor, drift: Tensor, time: int, fixed_effects: FixedEffects | None = None, factors: int = 0,
        slopes: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(start, fixed_effects, factors, time, slopes)
        self.raw_drift = nn.Parameter(drift.clamp_min(MIN_VARIANCE).log())
        self.raw_rate = nn.Parameter(torch.zeros_like(start))  # per standard deviation of the time

    @property
    def var(self) -> Tensor:
        return self.raw.exp() + self.raw_drift.exp()

    @torch.no_grad()
    def start_drift(self, variance: Tensor) -> None:
        """Start ω_d² from these variances (D,)."""
        self.raw_drift.copy_(variance.clamp_min(MIN_VARIANCE).log())

    def _factorise_own(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Return G, log |C/σ²| of each patient, and Cov a (D×P×n×n), its observed places, C⁻¹'s root, and that of H."""
        k = self._covariance(batch, batch.blocks, batch.y.dtype)
        observed, root = self._whitener(k, batch, batch.blocks, noise.to(k.dtype))
        h = batch.blocks.take(self._design(batch, k.dtype), 0)  # P×n×J
        white = root @ (h * observed[..., None])  # D×P×n×J
        own_log_det = -log_det(root) - observed.sum(-1) * noise.log()[:, None]
        return (white.mT @ white).transpose(0, 1), own_log_det.sum(0), (k, observed, root, white)

    def _project(self, residual: Tensor, batch: Batch, noise: Tensor, own: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        _, observed, root, design = own
        white = torch.einsum("dpij,...dpj->...dpi", root, _by_place(residual, batch.blocks, observed))
        return white.square().sum((-3, -1)), torch.einsum("dpij,...dpi->...pdj", design, white)

    def _expect_own(self, residual: Tensor, batch: Batch, noise: Tensor, own: tuple[Tensor, ...]) -> Tensor:
        k, observed, root, _ = own
        white = torch.einsum("dpij,...dpj->...dpi", root, _by_place(residual, batch.blocks, observed))
        weight = torch.einsum("dpji,...dpj->...dpi", root, white) * observed
        return _at_rows(torch.einsum("dpij,...dpj->...dpi", k, weight), batch, batch.blocks)

    def _draw_own(self, residual: Tensor, batch: Batch, noise: Tensor, generator: torch.Generator) -> EffectDraws:
        blocks = batch.blocks
        k = self._covariance(batch, blocks, torch.float64)
        observed, root = self._whitener(k, batch, blocks, noise.double())
        white_k = torch.einsum("dpki,dpij->dpkj", root, k * observed[..., :, None])
        weight = torch.einsum("dpki,dpkj->dpij", white_k, root) * observed[..., None, :]
        r = _by_place(residual, blocks, observed).double()
        mean = torch.einsum("dpij,...dpj->...dpi", weight, r).to(residual.dtype)
        covariance = k - white_k.transpose(-1, -2) @ white_k
        var = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).to(residual.dtype)
        factor = cholesky(covariance + torch.diag_embed((~blocks.filled).to(covariance.dtype))).to(residual.dtype)
        drawn = mean + torch.einsum("dpij,...dpj->...dpi", factor, standard_normal(mean, generator))
        mean, var, drawn = (_at_rows(part, batch, blocks) for part in (mean, var.expand_as(mean), drawn))
        return EffectDraws(mean, var, drawn)

    def _covariance(self, batch: Batch, blocks: Blocks, dtype: torch.dtype) -> Tensor:
        """Return Cov a of each patient's visits (D×P×n×n), zero where padded."""
        assert self.time is not None
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


def _by_patient(values: Tensor, batch: Batch) -> Tensor:
    """Sum values of rows (…×N̂) over patients (…×P)."""
    return values.new_zeros(*values.shape[:-1], batch.patients).index_add(-1, batch.patient, values)


def _by_place(residual: Tensor, blocks: Blocks, observed: Tensor) -> Tensor:
    """Return residuals of rows (…×N̂×D) by measurement and patient (…×D×P×n), zero where not observed."""
    return blocks.take(residual, -2).movedim(-1, -3) * observed


def _at_rows(values: Tensor, batch: Batch, blocks: Blocks) -> Tensor:
    """Return values by measurement and patient (…×D×P×n) at the rows (…×N̂×D)."""
    within = torch.arange(len(batch), device=values.device) - blocks.places[batch.patient, 0]
    # The rows that pad a batch belong to one patient, and may be more than a patient has places.
    return values[..., batch.patient, within.clamp_max(blocks.places.shape[1] - 1)].movedim(-2, -1)
