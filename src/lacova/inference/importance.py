"""Importance sampling: draws of z and x_u from q, and their weights under the model.

w_k = p(y_o | z_k, x_k) p(z_k | x_k) p(x_uk | x_o) / q(z_k) q(x_uk) is an unbiased estimate of p(y_o | x_o). It serves
three purposes: training by log 1/K Σ_k w_k, the likelihood of a row, and imputation by self-normalised weights.

Missing categories are drawn like the rest. Their gradient is that of the score function, about the bound without the
draw (Mnih and Rezende, 2016), so that it is unbiased; continuous draws are reparameterised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lacova.covariates import factorised
from lacova.covariates.scenarios import StandardDraws, fill
from lacova.data.batches import Batch
from lacova.data.distributions import FactorisedDistribution
from lacova.inference.vae import ConditionalVAE, Lines
from lacova.nn.latents import Latents
from lacova.priors.base import Density, LatentPrior


@dataclass(frozen=True)
class ImportanceSample:
    """K draws of each row of a batch, and their log-weights in three parts (K×N̂ each).

    What belongs to a patient as a whole stands in its first row.

    Attributes:
        x, z: completed covariates (K×N̂×Q) and latent values (K×N̂×L).
        outputs: the decoder's outputs at these (K×N̂×outputs).
        y: completed measurements (K×N̂×D), where a model of missingness needs them.
        prior: p(z | x), with what a GP prior needs beside it.
        log_likelihood: log p(y_o | z, x), and log p(mask | y) where there is such a model.
        latent_ratio: log p(z | x) − log q(z).
        covariate_ratio: log p(x_u | x_o) − log q(x_u).
        log_q_levels: log q of the categories that were drawn; its gradient is the score function.
    """

    x: Tensor
    z: Tensor
    outputs: Tensor
    y: Tensor | None
    prior: Density
    log_likelihood: Tensor
    latent_ratio: Tensor
    covariate_ratio: Tensor
    log_q_levels: Tensor

    @property
    def log_weight(self) -> Tensor:
        return self.log_likelihood + self.latent_ratio + self.covariate_ratio


def importance_sample(
    vae: ConditionalVAE, batch: Batch, eps: StandardDraws, q_x: FactorisedDistribution, *, by_patient: bool,
    prior_proposal: bool = False, defensive: bool = False,
) -> ImportanceSample:  # fmt: skip
    """Draw and weight; nothing in it makes the host wait for the device.

    Args:
        vae: the model.
        batch: the rows.
        eps: K samples of all random numbers.
        q_x: what x_u is drawn from.
        by_patient: weight rows of a patient together, with the visit-constant gaps, random effects and GP components
            that they share, and z of a GP prior given q(v), as training does. Else weight each row by itself.
        prior_proposal: draw z of rows without any measurement from p(z | x) instead of q.
        defensive: draw every other z from p(z | x), and weight against the mixture of both. This is for a q that
            depends on other rows, and is narrower than a row by itself justifies. No weight then exceeds twice
            p(y_o | z, x).
    """
    draws, n = eps.z.shape[:2]
    if not by_patient:
        q_x, batch = q_x.by_row(), batch.by_row()
    x = fill(q_x, batch, vae.space, eps)
    flat = x.flatten(0, 1)
    entries = factorised.free_entries(batch, vae.space) if by_patient else ~batch.x_mask
    lines = Lines(flat, torch.arange(n, device=x.device).repeat(draws)) if vae.joint else None
    q_z = vae.latents(batch, eps.dropped_y, lines=lines)
    if lines is not None:
        q_z = Latents(*(part.unflatten(0, (draws, n)) for part in q_z[:2]))
    if not by_patient:
        q_z = q_z._replace(chain=None)
    if prior_proposal or defensive:
        group = torch.arange(draws * n, device=x.device)
        prior_z = Latents(*(part.unflatten(0, (draws, n)) for part in vae.prior.predict(flat, group)))
    if prior_proposal:
        measured = batch.y_mask.any(1)[:, None]
        q_z = Latents(torch.where(measured, q_z.mean, prior_z.mean), torch.where(measured, q_z.var, prior_z.var))
    z = q_z.draw(eps.z)
    if defensive:
        from_prior = torch.arange(draws, device=x.device) % 2 == 1
        z = torch.where(from_prior[:, None, None], prior_z.draw(eps.z), z)
        both = torch.stack([q_z.log_density(z, eps.z, batch), prior_z.log_density(z, eps.z, batch)])
        share = torch.stack([~from_prior, from_prior]).double().mean(1).log().to(z)
        log_q = torch.logsumexp(both + share[:, None, None], 0)
    else:
        log_q = q_z.log_density(z, eps.z, batch)
    outputs = vae.decode(z.flatten(0, 1), flat).unflatten(0, (draws, n))
    prior = vae.prior.density(z, x, batch, q_z.chain) if by_patient else LatentPrior.density(vae.prior, z, x, batch)
    log_likelihood, y = _log_likelihood(vae, batch, x, outputs, by_patient), None
    if vae.missingness is not None and eps.y is not None:
        noise = vae.likelihood.gaussian_variance(outputs).sqrt() * eps.y
        y = torch.where(batch.y_mask, batch.y, vae.likelihood.mean(outputs) + noise)
        log_likelihood = log_likelihood + vae.missingness.log_prob(y, batch.y_mask)
    log_q_levels = x.new_zeros(draws, n)
    if vae.space.categorical:
        categorical = vae.space.on(x.device).categorical
        levels = torch.zeros_like(entries).index_copy(1, categorical, entries[:, categorical])
        log_q_levels = factorised.log_density(q_x, x, levels, vae.space)
    log_p_x = vae.covariate_prior.log_density(x, batch, entries)
    return ImportanceSample(
        x, z, outputs, y, prior, log_likelihood, prior.value - log_q,
        log_p_x - factorised.log_density(q_x, x, entries, vae.space), log_q_levels,
    )  # fmt: skip


def _log_likelihood(vae: ConditionalVAE, batch: Batch, x: Tensor, outputs: Tensor, by_patient: bool) -> Tensor:
    """Return log p(y_o | z, x) (K×N̂); random effects are integrated out, by patient or of each row by itself."""
    likelihood, effects = vae.likelihood, vae.random_effects
    if effects is None:
        return likelihood.log_prob(outputs, batch.y, batch.y_mask)
    if by_patient:
        gain = effects.gain(*likelihood.gaussian_part(outputs, batch), vae.fixed_part_at(x, batch))
        return likelihood.log_prob(outputs, batch.y, batch.y_mask) + batch.in_first_row(gain)
    n = len(batch)
    rows = replace(batch, patient=torch.arange(n, device=x.device), count=n, longest=1)
    fixed_part = vae.fixed_part_at(x, rows)
    if fixed_part is not None:
        outputs = likelihood.add_to_gaussian(outputs, fixed_part.mean)
    return likelihood.log_prob(outputs, batch.y, batch.y_mask, effects.variance(rows, fixed_part))


def sum_within_units(values: Tensor, batch: Batch, vae: ConditionalVAE) -> Tensor:
    """Return values of rows (K×N̂), or their sums over patients (K×P̂) where rows of a patient share unknowns."""
    if batch.real is not None:
        values = values * batch.real
    if not vae.couples_rows:
        return values
    return values.new_zeros(len(values), batch.patients).index_add(1, batch.patient, values)


def units_to_rows(values: Tensor, batch: Batch, vae: ConditionalVAE) -> Tensor:
    """Repeat values of the units of `sum_within_units` (…×units) for each of their rows (…×N̂)."""
    return values[..., batch.patient] if vae.couples_rows else values


def log_mean_exp(log_weight: Tensor) -> Tensor:
    """Return log 1/K Σ_k w_k from log-weights (K×units)."""
    total: Tensor = log_weight.logsumexp(0)
    return total - math.log(len(log_weight))


def add_score_gradient(value: Tensor, log_weight: Tensor, log_q_levels: Tensor) -> Tensor:
    """Add the gradient of drawn categories to `log_mean_exp`: (value − value without draw k) ∇ log q(levels of k).

    For the value without draw k, the geometric mean of the other weights stands in its place. A single draw has no such
    baseline.
    """
    if not log_q_levels.requires_grad:
        return value
    count = len(log_weight)
    fixed = log_weight.detach()
    signal = value.detach().expand_as(fixed)
    if count > 1:
        others = (fixed.sum(0) - fixed) / (count - 1)
        diagonal = torch.eye(count, dtype=torch.bool, device=fixed.device)[..., None]
        signal = signal - log_mean_exp(torch.where(diagonal, others, fixed[:, None]))
    return value + (signal * (log_q_levels - log_q_levels.detach())).sum(0)
