"""The temporal Gaussian process of each series: the latent prior of GPVAE."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lacova.covariates.scenarios import Scenarios
from lacova.data.batches import Batch, blocks
from lacova.data.distributions import FactorisedDistribution
from lacova.nn.latents import Chain, Latents
from lacova.nn.linalg import identity, whitener
from lacova.priors.base import Density, History, PriorTerms
from lacova.priors.joint_rows import JointRowsPrior

# Share of the variance of z that is independent from visit to visit: visits may lie close together, or coincide.
NUGGET = 1e-3


class SeriesPrior(JointRowsPrior):
    """z_l of a patient is a Gaussian process of time alone, of unit variance, independent of all other patients.

    k(t, t') = (1 − ν) c((t − t')/ℓ) + ν 1[same visit] with ν = `NUGGET`, and c(d) = 1/(1 + d²) ("cauchy") or
    exp(−d²/2) ("se"). Series are short: everything is exact and dense, n×n per patient, in float64.

    Args:
        latent_dim: L.
        time: the column of X that holds the time.
        kernel: "cauchy" or "se".
        length_scale: ℓ in standardised units of time.
        learn: whether to train ℓ, one for each latent dimension.
    """

    couples_rows = True

    def __init__(self, latent_dim: int, time: int, kernel: str, length_scale: float, learn: bool) -> None:
        super().__init__()
        self.time, self.kernel, self.scenario_columns = time, kernel, [time]
        self.width = 32 * latent_dim
        scale = torch.full((latent_dim,), math.log(length_scale), dtype=torch.float64)
        self.log_length_scale: Tensor
        if learn:
            self.log_length_scale = nn.Parameter(scale)
        else:
            self.register_buffer("log_length_scale", scale)

    def _correlation(self, one: Tensor, two: Tensor) -> Tensor:
        """Return c (L×…×n₁×n₂) between times (…×n₁) and (…×n₂)."""
        gap = one.double()[..., :, None] - two.double()[..., None, :]
        square = (gap * (-self.log_length_scale).exp().view(-1, *(1 for _ in gap.shape))).square()
        return 1.0 / (1.0 + square) if self.kernel == "cauchy" else (-0.5 * square).exp()

    def _covariance(self, time: Tensor, filled: Tensor) -> Tensor:
        """Return K (L×V×n×n) at padded times (V×n); padded places have the rows and columns of the identity."""
        both = filled[:, :, None] & filled[:, None, :]
        eye = identity(time.shape[-1], torch.float64, time.device)
        diagonal = 1.0 - (1.0 - NUGGET) * filled.double()[:, :, None]  # ν, or 1 where padded
        return (1.0 - NUGGET) * self._correlation(time, time) * both + diagonal * eye

    def kl(self, scenarios: Scenarios, batch: Batch, q: Latents, q_x: FactorisedDistribution) -> PriorTerms:
        """Compute Σ_p ½ [ tr(K⁻¹RRᵀ) + mᵀK⁻¹m − n + log|K| − log|RRᵀ| ] over the rows with a measurement.

        Given these rows, q of the others is the prior.
        """
        assert q.chain is not None
        first_line = scenarios.blocks.places[:, 0]  # of the first visit of each scenario
        first_row = scenarios.row[first_line]
        patient = batch.patient[first_row]
        places, filled = q.chain.places[patient], q.chain.filled[patient]
        lines = torch.where(filled, first_line[:, None] + places - first_row[:, None], 0)
        white = whitener(self._covariance(scenarios.x[lines, self.time], filled))
        root, mean = q.chain.root.double(), q.chain.gather(q.mean).double()
        trace = (white @ root[:, patient]).square().sum((-2, -1))
        quadratic = (white @ mean[:, patient][..., None]).square().sum((-2, -1))
        half_log_det_q = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)[:, patient]
        half_log_det = -white.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        kl = 0.5 * (trace + quadratic - filled.shape[1]) + half_log_det - half_log_det_q  # L×V
        total = (kl * scenarios.weight).sum()
        return PriorTerms(batch.scale * total.to(q.mean.dtype), q.mean.new_zeros(()))

    def density(self, z: Tensor, x: Tensor, batch: Batch, chain: Chain | None = None) -> Density:
        """Return log p(Z | X) of each series over the rows of its chain: given these, q of the others is the prior."""
        assert chain is not None
        draws, series = len(x), len(chain.filled)
        filled = chain.filled.repeat(draws, 1)
        white = whitener(self._covariance(x[:, chain.places, self.time].flatten(0, 1), filled))  # L×KP×n×n
        values = chain.gather(z).double().transpose(0, 1).flatten(1, 2)  # L×KP×n
        square = (white @ values[..., None]).square().sum((-2, -1)) + math.log(2.0 * math.pi) * filled.sum(1)
        log_density = -0.5 * square + white.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # L×KP
        return Density(batch.in_first_row(log_density.sum(0).unflatten(0, (draws, series)).to(z.dtype)))

    def _blocks(self, x: Tensor, group: Tensor, history: History | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean (L×V×n) and covariance (L×V×n×n) of z by group, and which places hold a row (V×n).

        With G = K_{*h} K_hh⁻¹ and q(z_h) = N(m, RRᵀ): mean G m, covariance K_** − G K_{h*} + G RRᵀ Gᵀ.
        """
        pad = blocks(group)
        time = x[pad.places, self.time]
        covariance = self._covariance(time, pad.filled)
        mean = torch.zeros(covariance.shape[:-1], dtype=torch.float64, device=x.device)
        if history is None or history.chain is None:
            return mean, covariance, pad.filled
        past = history.chain
        past_time = history.x[past.places, self.time]
        white = whitener(self._covariance(past_time, past.filled))
        both = pad.filled[:, :, None] & past.filled[:, None, :]
        cross = (1.0 - NUGGET) * self._correlation(time, past_time) * both @ white.mT  # K_{*h} C⁻ᵀ
        gain = cross @ white
        gain_root = gain @ past.root.double()  # G R
        mean = (gain @ past.gather(history.mean).double()[..., None])[..., 0]
        return mean, covariance - cross @ cross.mT + gain_root @ gain_root.mT, pad.filled
