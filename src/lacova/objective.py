"""The evidence lower bound as named terms, and the importance-sampled likelihood it bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lacova.batches import Batch
from lacova.covariates import belief as beliefs
from lacova.covariates.expectation import Noise, Plan, complete
from lacova.covariates.law import Belief
from lacova.gp.inducing import NaturalStatistics
from lacova.linalg import log_normal
from lacova.priors import Encoded
from lacova.vae import ConditionalVAE


@dataclass(frozen=True)
class Terms:
    """The bound on log p(Y_o | X_o), eqs. 7 to 11 of the paper, over the whole table (batch sums times N/N̂ or P/P̂).

    Attributes:
        reconstruction: E_q log p(Y_o | Z [, X]).
        kl_latent: E_q KL[q(Z) ‖ p(Z | X)], or its bound D̂³ or D̂⁴ less `kl_inducing`.
        kl_inducing: KL[q(v) ‖ p(v)] of the inducing values; 0 without a GP prior.
        kl_covariates: KL[q(X_u) ‖ p(X_u)].
        statistics: what a natural-gradient step of the GP prior needs.
    """

    reconstruction: Tensor
    kl_latent: Tensor
    kl_inducing: Tensor
    kl_covariates: Tensor
    statistics: NaturalStatistics | None = None

    @property
    def elbo(self) -> Tensor:
        return self.data - self.kl_inducing

    @property
    def data(self) -> Tensor:
        """The part that sums over rows: the bound for rows of which q(v) has not been learnt."""
        return self.reconstruction - self.kl_latent - self.kl_covariates

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
    how = vae.plan(batch.x_mask.cpu(), batch.patient.cpu(), samples, cap).to(batch.x.device)
    return bound(vae, batch, how, vae.noise(batch, samples, generator))


def bound(vae: ConditionalVAE, batch: Batch, how: Plan, noise: Noise, q_x: Belief | None = None) -> Terms:
    """The estimate with given scenarios and noise; nothing in it makes the host wait for the device."""
    q_x = vae.covariate_posterior(batch) if q_x is None else q_x
    q_z = vae.latents(batch, None if how.pad is None else how.pad.places.shape[1])
    scenarios = how.scenarios(q_x, batch, vae.space, noise)
    kl_covariates = batch.scale * vae.covariate_prior.kl(q_x, scenarios, batch)
    prior = vae.prior.kl(scenarios, batch, q_z, q_x)

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
        if vae.intercepts is not None:
            gain = vae.intercepts.gain(*vae.levelled(location.unflatten(0, z.shape[:2]), batch))
            reconstruction = reconstruction + gain.mean(0).sum()
    return Terms(batch.scale * reconstruction, prior.latent, prior.inducing, kl_covariates, prior.statistics)


@torch.no_grad()
def encode(vae: ConditionalVAE, batch: Batch, generator: torch.Generator, samples: int, cap: int | None) -> Encoded:
    """What `LatentPrior.absorb` takes in: scenarios and q(Z) of one batch."""
    scenarios = complete(
        vae.covariate_posterior(batch), batch, vae.space,
        couple=vae.prior.couples_rows, samples=samples, generator=generator, cap=cap,
    )  # fmt: skip
    return Encoded(scenarios, batch, *vae.encode(batch))


@torch.no_grad()
def log_likelihood(vae: ConditionalVAE, batch: Batch, draws: int, generator: torch.Generator) -> Tensor:
    """Per row, log p(y_o | x_o) by importance sampling from q(z, x_u); tight as draws grow.

    log 1/K Σ_k p(y_o | z_k, x_k) p(z_k | x_k) p(x_uk) / q(z_k) q(x_uk)
    """
    q_x = vae.covariate_posterior(batch)
    mean, var = vae.encode(batch)
    n = len(batch)
    x = beliefs.draw(q_x, batch, vae.space, draws, generator)
    z = mean + var.sqrt() * torch.randn(draws, *mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    flat_x, flat_z = x.flatten(0, 1), z.flatten(0, 1)
    extra = 0.0 if vae.intercepts is None else vae.intercepts.var  # of a row by itself
    fit = vae.likelihood.log_prob(
        vae.decode(flat_z, flat_x), batch.y.repeat(draws, 1), batch.y_mask.repeat(draws, 1), extra
    )
    weight = fit + vae.prior.log_density(flat_z, flat_x) - log_normal(z, mean, var).flatten()
    weight = weight.unflatten(0, (draws, n))
    weight = weight + vae.covariate_prior.log_density(x, batch)
    weight = weight - beliefs.log_density(q_x, x, ~batch.x_mask, vae.space)
    total: Tensor = weight.logsumexp(0)
    return total - math.log(draws)
