"""The evidence lower bound as named terms, and the importance-sampled likelihood it bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lacova.covariates.scenarios import Plan, StandardDraws, complete
from lacova.data.batches import Batch
from lacova.data.distributions import FactorisedDistribution
from lacova.inference.importance import importance_sample, log_mean, pooled, spread, with_scores
from lacova.inference.vae import ConditionalVAE
from lacova.priors.base import Encoded
from lacova.priors.gp.inducing import NaturalStatistics


@dataclass(frozen=True)
class Terms:
    """The bound on log p(Y_o | X_o), eqs. 7 to 11 of the paper, over the whole table (batch sums times N/N̂ or P/P̂).

    Attributes:
        reconstruction: E_q log p(Y_o | Z [, X]).
        kl_latent: E_q KL[q(Z) ‖ p(Z | X)], or its bound D̂³ or D̂⁴ less `kl_inducing`.
        kl_inducing: KL[q(v) ‖ p(v)] of the inducing values, and of the coefficients of patients' levels; 0 without either.
        kl_covariates: KL[q(X_u) ‖ p(X_u)].
        statistics: what a natural-gradient step of the GP prior needs.
        gain: what weighing K draws against each other adds to their mean; 0 for the evidence lower bound.
    """

    reconstruction: Tensor
    kl_latent: Tensor
    kl_inducing: Tensor
    kl_covariates: Tensor
    statistics: NaturalStatistics | None = None
    gain: float | Tensor = 0.0

    @property
    def elbo(self) -> Tensor:
        return self.data - self.kl_inducing

    @property
    def data(self) -> Tensor:
        """The part that sums over rows: the bound for rows of which q(v) has not been learnt."""
        return self.reconstruction - self.kl_latent - self.kl_covariates + self.gain

    def named(self) -> dict[str, float]:
        names = ("reconstruction", "kl_latent", "kl_inducing", "kl_covariates", "elbo")
        return {name: float(getattr(self, name).detach()) for name in names}


def elbo(
    vae: ConditionalVAE, batch: Batch, generator: torch.Generator, samples: int = 1, cap: int | None = None
) -> Terms:
    """One unbiased estimate of the bound and of its gradient.

    Args:
        vae: the model.
        batch: some rows, or whole patients.
        generator: source of all noise.
        samples: draws of continuous x_u, and of z, per row.
        cap: largest joint table of missing categories that is summed exactly; None for the defaults.
    """
    if vae.missingness is not None:
        return replace(weighted(vae, batch, vae.draw_eps(batch, samples, generator)), gain=0.0)
    how = vae.plan(batch.x_mask.cpu(), batch.patient.cpu(), samples, cap).to(batch.x.device)
    return bound(vae, batch, how, vae.draw_eps(batch, samples, generator))


def bound(
    vae: ConditionalVAE, batch: Batch, how: Plan, noise: StandardDraws, q_x: FactorisedDistribution | None = None
) -> Terms:
    """The estimate with given scenarios and noise; nothing in it makes the host wait for the device."""
    q_x = vae.covariate_posterior(batch) if q_x is None else q_x
    q_z = vae.latents(batch, noise.hidden)
    scenarios = how.scenarios(q_x, batch, vae.space, noise)
    kl_covariates = batch.scale * vae.covariate_prior.kl(q_x, scenarios, batch)
    prior = vae.prior.kl(scenarios, batch, q_z, q_x)
    inducing = prior.inducing

    z = q_z.draw(noise.z)
    if vae.decoder_sees_x:
        row = scenarios.row
        location = vae.decode(z[scenarios.sample, row], scenarios.x)
        fit = vae.likelihood.log_prob(location, batch.y[row], batch.y_mask[row])
        reconstruction = (fit * scenarios.row_weight).sum()
    else:
        location = vae.decode(z.flatten(0, 1), batch.x)
        fit = vae.likelihood.log_prob(location.unflatten(0, z.shape[:2]), batch.y, batch.y_mask)
        reconstruction = fit.mean(0).sum()
        if vae.random_effects is not None:
            # Levels are independent of each other given x, as they are not: q would overcount what they say of x_u.
            fixed_part = vae.fixed_part(batch, q_x.detach())
            gain = vae.random_effects.gain(*vae.gaussian_part(location.unflatten(0, z.shape[:2]), batch), fixed_part)
            reconstruction = reconstruction + gain.mean(0).sum()
            inducing = inducing + vae.random_effects.kl()
    return Terms(batch.scale * reconstruction, prior.latent, inducing, kl_covariates, prior.statistics)


def weighted(
    vae: ConditionalVAE, batch: Batch, noise: StandardDraws, q_x: FactorisedDistribution | None = None
) -> Terms:
    """The importance-weighted bound Σ_i E log 1/K Σ_k w_ik, with the K samples of the noise.

    It is the evidence lower bound for K = 1, rises with K, and tends to log p(Y_o | X_o), or to the bound on it that
    q(v) of a GP prior gives. The terms are means over the draws, and `gain` is what is left. Where rows of a patient
    have unknowns in common, i is the patient, whose weights are products over its rows: many visits then need many
    draws.
    """
    q_x = vae.covariate_posterior(batch) if q_x is None else q_x
    drawn = importance_sample(vae, batch, noise, q_x, together=True)
    fit, latent, covariates = (pooled(part, batch, vae) for part in (drawn.fit, drawn.latent, drawn.covariates))
    weight = fit + latent + covariates
    value = log_mean(weight)
    if vae.space.categorical:
        value = with_scores(value, weight, pooled(drawn.levels, batch, vae))
    scale, prior, statistics = batch.scale, drawn.prior, None
    if prior.statistics is not None:
        share = spread(weight.detach().softmax(0), batch, vae)
        statistics = prior.statistics(scale * (share if batch.real is None else share * batch.real))
    inducing = fit.new_zeros(()) if prior.inducing is None else prior.inducing
    return Terms(
        scale * fit.mean(0).sum(), -scale * latent.mean(0).sum(),
        inducing if vae.random_effects is None else inducing + vae.random_effects.kl(), -scale * covariates.mean(0).sum(),
        statistics, scale * (value - weight.mean(0)).sum(),
    )  # fmt: skip


@torch.no_grad()
def encode(vae: ConditionalVAE, batch: Batch, generator: torch.Generator, samples: int, cap: int | None) -> Encoded:
    """What `LatentPrior.cache_posterior` takes in: scenarios and q(Z) of one batch."""
    scenarios = complete(
        vae.covariate_posterior(batch), batch, vae.space,
        couple=vae.prior.couples_rows, samples=samples, generator=generator, cap=cap,
    )  # fmt: skip
    return Encoded(scenarios, batch, *vae.encode(batch))


@torch.no_grad()
def log_likelihood(vae: ConditionalVAE, batch: Batch, draws: int, generator: torch.Generator) -> Tensor:
    """Per row, log p(y_o | x_o) by importance sampling from q(z, x_u); tight as draws grow.

    log 1/K Σ_k p(y_o | z_k, x_k) p(z_k | x_k) p(x_uk) / q(z_k) q(x_uk)

    Where q(z) knows other rows, half of the draws come from p(z | x), and q(z) stands for the mixture of both.
    """
    q_x, noise = vae.covariate_posterior(batch), vae.draw_eps(batch, draws, generator)
    return log_mean(
        importance_sample(vae, batch, noise, q_x, together=False, defensive=not vae.prior.independent).total
    )
