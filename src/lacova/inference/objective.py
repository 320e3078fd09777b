"""The evidence lower bound as named terms, and the importance-sampled likelihood that it bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lacova.covariates.masked_loss import masked_log_prob
from lacova.covariates.scenarios import Plan, Scenarios, StandardDraws, complete, fill
from lacova.data.batches import Batch
from lacova.data.distributions import FactorisedDistribution
from lacova.inference.importance import (
    add_score_gradient,
    importance_sample,
    log_mean_exp,
    sum_within_units,
    units_to_rows,
)
from lacova.inference.vae import ConditionalVAE, Lines
from lacova.likelihoods.random_effects import Factorisation
from lacova.priors.base import Encoded, NaturalStatistics

# The terms that a training record has, per row.
TERMS = ("reconstruction", "kl_latent", "kl_inducing", "kl_covariates", "elbo", "masked_log_prob")


@dataclass(frozen=True)
class Terms:
    """The bound on log p(Y_o | X_o), eqs. 7 to 11 of the paper, over the whole table (batch sums times N/N̂ or P/P̂).

    Attributes:
        reconstruction: E_q log p(Y_o | Z [, X]).
        kl_latent: E_q KL[q(Z) ‖ p(Z | X)], or its bound D̂³ or D̂⁴ less `kl_inducing`.
        kl_inducing: KL[q(v) ‖ p(v)] of the inducing values and of the fixed effects' coefficients; 0 without either.
        kl_covariates: KL[q(X_u) ‖ p(X_u)].
        statistics: the input of a natural-gradient step of the GP prior.
        information: the same of the fixed effects' coefficients.
        gain: what weighting K draws against each other adds to their mean; 0 for the evidence lower bound.
        penalty: −log p of the weights of noise that depends on the row; not part of the bound, 0 without such noise.
        masked_log_prob: log q of observed covariates that were masked; not part of the bound, 0 without masking.
    """

    reconstruction: Tensor
    kl_latent: Tensor
    kl_inducing: Tensor
    kl_covariates: Tensor
    statistics: NaturalStatistics | None = None
    gain: float | Tensor = 0.0
    masked_log_prob: float | Tensor = 0.0
    penalty: float | Tensor = 0.0
    information: Tensor | None = None

    @cached_property
    def elbo(self) -> Tensor:
        return self.data - self.kl_inducing

    @property
    def data(self) -> Tensor:
        """The part that sums over rows: the bound for rows from which q(v) has not been learnt."""
        return self.reconstruction - self.kl_latent - self.kl_covariates + self.gain

    def loss(self, latent_weight: float | Tensor, masked_weight: float) -> Tensor:
        """Return what a training step minimises: −elbo, with the latent KL and the masked covariates weighted."""
        weighted = (latent_weight - 1.0) * self.kl_latent - masked_weight * self.masked_log_prob
        return weighted - self.elbo + self.penalty

    def stacked(self) -> Tensor:
        """Return the TERMS as one tensor, detached."""
        zero = self.kl_latent.new_zeros(())  # no copy from the host, which a CUDA graph could not record
        values = [getattr(self, name) for name in TERMS]
        return torch.stack([value.detach() if isinstance(value, Tensor) else zero + value for value in values])

    def named(self) -> dict[str, float]:
        return {name: float(getattr(self, name).detach()) for name in TERMS[:-1]}


def elbo(
    vae: ConditionalVAE, batch: Batch, generator: torch.Generator, samples: int = 1, cap: int | None = None
) -> Terms:
    """Return one unbiased estimate of the bound and of its gradient.

    Args:
        vae: the model.
        batch: some rows, or whole patients.
        generator: source of all random numbers.
        samples: draws of continuous x_u, and of z, per row.
        cap: largest joint table of missing categories that is summed exactly; None for the defaults.
    """
    plan = vae.plan(batch.x_mask.cpu(), batch.patient.cpu(), samples, cap).to(batch.x.device)
    terms = bound(vae, batch, plan, vae.draw_eps(batch, samples, generator))
    return terms if vae.missingness is None else replace(terms, gain=0.0)


def bound(
    vae: ConditionalVAE, batch: Batch, plan: Plan, eps: StandardDraws, masked: Batch | None = None,
    importance: bool = False,
) -> Terms:  # fmt: skip
    """Return the bound of a batch; nothing in it makes the host wait for the device.

    Args:
        vae: the model.
        batch: some rows, or whole patients.
        plan: the scenarios of missing covariates to sum over.
        eps: all random numbers.
        masked: the same rows with more covariates masked, for `masked_log_prob`.
        importance: weight the samples of `eps` against each other. A model of missingness always does: it depends on
            y as drawn.
    """
    posterior, q_masked = vae.covariate_posterior, None
    if masked is None:
        q_x = posterior(batch)
    else:
        q_x, q_masked = posterior.both(batch, masked)
    if importance or vae.missingness is not None:
        terms = weighted(vae, batch, eps, q_x)
    else:
        scenarios = plan.scenarios(q_x, batch, vae.space, eps)
        kl_covariates = batch.scale * vae.covariate_prior.kl(q_x, scenarios, batch)
        factorisation = vae.factorise_effects(batch)
        if vae.joint:
            q_z = vae.latents(batch, eps.dropped_y, factorisation, lines=Lines(scenarios.x, scenarios.row))
            z = q_z.mean + q_z.var.sqrt() * eps.z[scenarios.sample, scenarios.row]
        else:
            rows = vae.latents(batch, eps.dropped_y, factorisation)
            q_z, z = rows.at(scenarios.row) if vae.prior.by_scenario else rows, rows.draw(eps.z)
            z = z[scenarios.sample, scenarios.row] if vae.outputs_see_x else z
        prior = vae.prior.kl(scenarios, batch, q_z, q_x)
        log_likelihood, information = _log_likelihood(vae, batch, scenarios, z, q_x, eps, factorisation)
        inducing = prior.inducing + (0.0 if vae.random_effects is None else vae.random_effects.kl())
        terms = Terms(
            batch.scale * log_likelihood, prior.latent, inducing, kl_covariates, prior.statistics,
            information=information,
        )  # fmt: skip
    if vae.row_noise is not None:
        terms = replace(terms, penalty=vae.row_noise.penalty())
    if masked is None or q_masked is None:
        return terms
    log_q = batch.scale * masked_log_prob(q_masked, batch, masked, vae.space, vae.covariate_posterior.regressed)
    return replace(terms, masked_log_prob=log_q)


def _log_likelihood(
    vae: ConditionalVAE, batch: Batch, scenarios: Scenarios, z: Tensor, q_x: FactorisedDistribution,
    eps: StandardDraws, factorisation: Factorisation | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return E_q log p(Y_o | Z, X) of a batch, random effects integrated out, and what it says about fixed effects.

    z has a line for each completed row (K×L); or, where neither q(z) nor the decoder depends on x_u, draws of each row
    (S×N̂×L). The covariates that the fixed effects see are those of the scenario, or drawn beside z.
    """
    if z.dim() == 2:
        row = scenarios.row
        outputs = vae.decode(z, scenarios.x)
        log_likelihood = vae.likelihood.log_prob(outputs, batch.y[row], batch.y_mask[row])
        total = (log_likelihood * scenarios.row_weight).sum()
    else:
        outputs = vae.decode(z.flatten(0, 1), batch.x).unflatten(0, z.shape[:2])
        total = vae.likelihood.log_prob(outputs, batch.y, batch.y_mask).mean(0).sum()
    if vae.random_effects is None:
        return total, None
    if z.dim() == 2:
        weight, x = scenarios.slot_weight, scenarios.by_slot(scenarios.x, len(batch))
        outputs = scenarios.by_slot(outputs, len(batch))
    else:
        weight, x = outputs.new_full((len(z), batch.patients), 1.0 / len(z)), fill(q_x, batch, vae.space, eps)
    fixed_part = vae.fixed_part_at(x, batch)
    gain = vae.random_effects.gain(*vae.likelihood.gaussian_part(outputs, batch), fixed_part, factorisation)
    return total + (gain * weight).sum(), vae.information(batch, fixed_part, weight, factorisation)


def weighted(vae: ConditionalVAE, batch: Batch, eps: StandardDraws, q_x: FactorisedDistribution) -> Terms:
    """Return the importance-weighted bound Σ_i E log 1/K Σ_k w_ik, with the K samples of `eps`.

    It is the evidence lower bound for K = 1, rises with K, and tends to log p(Y_o | X_o), or to the bound on it that
    q(v) of a GP prior gives. The terms are means over the draws, and `gain` is the rest. Where rows of a patient share
    unknowns, i is the patient and its weight the product over its rows: many visits then need many draws.
    """
    sample = importance_sample(vae, batch, eps, q_x, by_patient=True)
    parts = (sample.log_likelihood, sample.latent_ratio, sample.covariate_ratio)
    log_likelihood, latent, covariates = (sum_within_units(part, batch, vae) for part in parts)
    log_weight = log_likelihood + latent + covariates
    value = log_mean_exp(log_weight)
    if vae.space.categorical:
        value = add_score_gradient(value, log_weight, sum_within_units(sample.log_q_levels, batch, vae))
    scale, prior, statistics = batch.scale, sample.prior, None
    if prior.statistics is not None:
        share = units_to_rows(log_weight.detach().softmax(0), batch, vae)
        statistics = prior.statistics(scale * (share if batch.real is None else share * batch.real))
    inducing = log_likelihood.new_zeros(()) if prior.inducing is None else prior.inducing
    information = None
    if vae.random_effects is not None:
        inducing = inducing + vae.random_effects.kl()
        weight = log_weight.detach().softmax(0)  # of patients, who share the random effects
        information = vae.information(batch, vae.fixed_part_at(sample.x, batch), weight, vae.factorise_effects(batch))
    return Terms(
        scale * log_likelihood.mean(0).sum(), -scale * latent.mean(0).sum(), inducing,
        -scale * covariates.mean(0).sum(), statistics, scale * (value - log_weight.mean(0)).sum(),
        information=information,
    )  # fmt: skip


@torch.no_grad()
def encode(vae: ConditionalVAE, batch: Batch, generator: torch.Generator, samples: int, cap: int | None) -> Encoded:
    """Return the input of `LatentPrior.cache_posterior`: scenarios and q(Z) of one batch."""
    scenarios = complete(
        vae.covariate_posterior(batch), batch, vae.space,
        couple=vae.couples_scenarios, samples=samples, generator=generator, cap=cap,
    )  # fmt: skip
    lines = Lines(scenarios.x, scenarios.row) if vae.prior.by_scenario else None
    return Encoded(scenarios, batch, *vae.latents(batch, lines=lines)[:2])


@torch.no_grad()
def log_likelihood(vae: ConditionalVAE, batch: Batch, draws: int, generator: torch.Generator) -> Tensor:
    """Return log p(y_o | x_o) per row by importance sampling from q(z, x_u); tight as draws grow.

    log 1/K Σ_k p(y_o | z_k, x_k) p(z_k | x_k) p(x_uk) / q(z_k) q(x_uk)

    Where q(z) depends on other rows, half of the draws come from p(z | x), and q(z) stands for the mixture of both.
    """
    q_x, eps = vae.covariate_posterior(batch), vae.draw_eps(batch, draws, generator)
    defensive = not vae.prior.independent
    return log_mean_exp(importance_sample(vae, batch, eps, q_x, by_patient=False, defensive=defensive).log_weight)
