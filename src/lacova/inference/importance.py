"""Importance weights: draws of z and x_u from q, and how much more likely the model finds them.

w_k = p(y_o | z_k, x_k) p(z_k | x_k) p(x_uk | x_o) / q(z_k) q(x_uk) is an unbiased estimate of p(y_o | x_o). One place
for three uses: training by log 1/K Σ_k w_k, the likelihood of a row, and imputation, which weighs draws by w.

Missing categories are drawn like the rest. Their gradient is the score function's, about what the bound would be
without the draw (Mnih and Rezende, 2016), so that it is unbiased; continuous draws are reparameterised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lacova.covariates import factorised
from lacova.covariates.scenarios import StandardDraws, draw_levels
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.inference.vae import ConditionalVAE
from lacova.nn.latents import Latents
from lacova.priors.base import Density, LatentPrior


@dataclass(frozen=True)
class ImportanceSample:
    """K draws of each row of a batch, and their log-weights in three parts (K×N̂ each).

    What belongs to a patient as a whole stands in its first row.

    Attributes:
        x, z: completed covariates (K×N̂×Q) and latent values (K×N̂×L).
        outputs: what the decoder makes of them (K×N̂×outputs).
        y: completed measurements (K×N̂×D), where there is a missingness model that looks at them.
        prior: p(z | x), and what else a GP prior has to say.
        fit: log p(y_o | z, x), and log p(mask | y) where there is such a model.
        latent: log p(z | x) − log q(z).
        covariates: log p(x_u | x_o) − log q(x_u).
        levels: log q of the categories that were drawn; its gradient is the score function.
    """

    x: Tensor
    z: Tensor
    outputs: Tensor
    y: Tensor | None
    prior: Density
    fit: Tensor
    latent: Tensor
    covariates: Tensor
    levels: Tensor

    @property
    def total(self) -> Tensor:
        return self.fit + self.latent + self.covariates


def importance_sample(
    vae: ConditionalVAE, batch: Batch, noise: StandardDraws, q_x: FactorisedDistribution, *, together: bool, prior_proposal: bool = False,
    defensive: bool = False,
) -> ImportanceSample:  # fmt: skip
    """Draw with given noise, and weigh. Nothing in it makes the host wait for the device.

    Args:
        vae: the model.
        batch: the rows.
        noise: K samples of it.
        q_x: what x_u is drawn from.
        together: weigh rows of a patient as such, who have visit-constant gaps, levels and components of a GP in
            common, and z of a GP prior given q(v), as training does. Else each row counts by itself.
        prior_proposal: draw z of rows without any measurement from p(z | x), and not from q, which has nothing to look at.
        defensive: draw every other z from p(z | x), and weigh against the mixture of both: for q that knows other rows,
            and is narrower than what a row by itself tells. No weight is then above twice p(y_o | z, x).
    """
    draws, n = noise.z.shape[:2]
    x = _draw_covariates(q_x, batch, vae.space, noise)
    flat = x.flatten(0, 1)
    entries = factorised.free_entries(batch, vae.space) if together else ~batch.x_mask
    q_z = vae.latents(batch, noise.hidden)
    if not together:
        q_z = q_z._replace(chain=None)
    if prior_proposal or defensive:
        group = torch.arange(draws * n, device=x.device)
        alone = Latents(*(part.unflatten(0, (draws, n)) for part in vae.prior.predict(flat, group)))
    if prior_proposal:
        seen = batch.y_mask.any(1)[:, None]
        q_z = Latents(torch.where(seen, q_z.mean, alone.mean), torch.where(seen, q_z.var, alone.var))
    z = q_z.draw(noise.z)
    if defensive:
        other = torch.arange(draws, device=x.device) % 2 == 1
        z = torch.where(other[:, None, None], alone.draw(noise.z), z)
        both = torch.stack([q_z.log_density(z, noise.z, batch), alone.log_density(z, noise.z, batch)])
        log_q = torch.logsumexp(both + torch.stack([~other, other]).double().mean(1).log().to(z)[:, None, None], 0)
    else:
        log_q = q_z.log_density(z, noise.z, batch)
    outputs = vae.decode(z.flatten(0, 1), flat).unflatten(0, (draws, n))
    prior = vae.prior.density(z, x, batch, q_z.chain) if together else LatentPrior.density(vae.prior, z, x, batch)
    fit = _fit(vae, batch, x, outputs, together)
    y = None
    if vae.missingness is not None and noise.y is not None:
        y = torch.where(batch.y_mask, batch.y, outputs + vae.likelihood.var.sqrt() * noise.y)
        fit = fit + vae.missingness.log_prob(y, batch.y_mask)
    coded = None
    if vae.space.categorical:
        at = vae.space.on(x.device).categorical
        coded = torch.zeros_like(entries).index_copy(1, at, entries[:, at])
    return ImportanceSample(
        x, z, outputs, y, prior, fit,
        prior.value - log_q,
        vae.covariate_prior.log_density(x, batch, entries) - factorised.log_density(q_x, x, entries, vae.space),
        x.new_zeros(draws, n) if coded is None else factorised.log_density(q_x, x, coded, vae.space),
    )  # fmt: skip


def _fit(vae: ConditionalVAE, batch: Batch, x: Tensor, outputs: Tensor, together: bool) -> Tensor:
    """log p(y_o | z, x) (K×N̂); patients' own levels are integrated out, of each patient or of each row by itself."""
    if vae.random_effects is None:
        return vae.likelihood.log_prob(outputs, batch.y, batch.y_mask)
    if not together:
        n = len(batch)
        alone = replace(batch, patient=torch.arange(n, device=x.device), count=n, longest=1)
        fixed_part = vae.fixed_part_at(x, alone)
        if fixed_part is None:
            return vae.likelihood.log_prob(outputs, batch.y, batch.y_mask, vae.random_effects.var)
        around = vae.add_to_gaussian(outputs, fixed_part.mean)
        return vae.likelihood.log_prob(around, batch.y, batch.y_mask, vae.random_effects.var + fixed_part.var)
    gain = vae.random_effects.gain(*vae.gaussian_part(outputs, batch), vae.fixed_part_at(x, batch))
    return vae.likelihood.log_prob(outputs, batch.y, batch.y_mask) + batch.in_first_row(gain)


def _draw_covariates(q_x: FactorisedDistribution, batch: Batch, space: CovariateSpace, noise: StandardDraws) -> Tensor:
    """Completed covariates (K×N̂×Q): gaps drawn, shared within a patient if visit-constant."""
    x = q_x.mean + q_x.var.sqrt() * noise.x
    if space.categorical:
        at = space.on(x.device).categorical
        x = x.index_copy(-1, at, draw_levels(q_x, space, noise.level[: len(x)])[..., at].to(x.dtype))
    return torch.where(batch.x_mask, batch.x, factorised.share_static(x, batch, space))


def pooled(values: Tensor, batch: Batch, vae: ConditionalVAE) -> Tensor:
    """Log-weights of rows (K×N̂), or of patients (K×P̂) where their rows have unknowns in common: sums over rows."""
    if batch.real is not None:
        values = values * batch.real
    if not vae.couples_rows:
        return values
    return values.new_zeros(len(values), batch.patients).index_add(1, batch.patient, values)


def spread(values: Tensor, batch: Batch, vae: ConditionalVAE) -> Tensor:
    """What belongs to the units of `pooled` (…×units), for each of their rows (…×N̂)."""
    return values[..., batch.patient] if vae.couples_rows else values


def log_mean(weight: Tensor) -> Tensor:
    """log 1/K Σ_k w_k, from log-weights (K×units)."""
    total: Tensor = weight.logsumexp(0)
    return total - math.log(len(weight))


def with_scores(value: Tensor, weight: Tensor, levels: Tensor) -> Tensor:
    """`log_mean(weight)` with the gradient of drawn categories: (value − value without draw k) ∇ log q(levels of k).

    Without draw k there stands the geometric mean of the other weights. A single draw has nothing to stand for it.
    """
    if not levels.requires_grad:
        return value
    count = len(weight)
    log_weight = weight.detach()
    signal = value.detach().expand_as(log_weight)
    if count > 1:
        others = (log_weight.sum(0) - log_weight) / (count - 1)
        diagonal = torch.eye(count, dtype=torch.bool, device=weight.device)[..., None]
        signal = signal - log_mean(torch.where(diagonal, others, log_weight[:, None]))
    return value + (signal * (levels - levels.detach())).sum(0)
