"""A Gaussian mixture as prior of z: the latent prior of HIVAE."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lacova.covariates.scenarios import Scenarios
from lacova.data.batches import Batch
from lacova.data.distributions import FactorisedDistribution
from lacova.nn.latents import Latents
from lacova.nn.linalg import gaussian_kl, log_normal
from lacova.priors.base import LatentPrior, PriorTerms
from lacova.priors.gp.posterior import History


class MixtureNormal(LatentPrior):
    """p(z) = 1/C Σ_s N(z; μ_s, I), the means learnt; a shift that they have in common is taken out of them.

    With q(z) normal, q(s) is summed over and at its optimum, q(s) ∝ exp(−KL[q(z) ‖ N(μ_s, I)]): no network for it,
    no sampling of s, and a bound that no other q(s) beats,

        KL[q(z) ‖ p(z)] ≤ E_q(s) KL[q(z) ‖ p(z | s)] + KL[q(s) ‖ p(s)] = −log 1/C Σ_s exp(−KL[q(z) ‖ N(μ_s, I)]).

    With C = 1 it is N(0, I).
    """

    def __init__(self, latent_dim: int, components: int) -> None:
        super().__init__()
        self.raw_means = nn.Parameter(torch.randn(components, latent_dim))

    @property
    def means(self) -> Tensor:
        """μ (C×L)."""
        return self.raw_means - self.raw_means.mean(0)

    def kl(self, scenarios: Scenarios, batch: Batch, q: Latents, distribution: FactorisedDistribution) -> PriorTerms:
        mean, var = q.mean[:, None], q.var[:, None]
        each = gaussian_kl(mean, var, self.means, torch.ones_like(var)).sum(-1)  # N̂×C
        row = math.log(len(self.raw_means)) - torch.logsumexp(-each, dim=1)
        total = row.sum() if batch.real is None else (row * batch.real).sum()
        return PriorTerms(batch.scale * total, q.mean.new_zeros(()))

    def predict(self, x: Tensor, group: Tensor, history: History | None = None) -> tuple[Tensor, Tensor]:
        means = self.means
        var = 1.0 + means.var(0, correction=0)
        return means.mean(0).expand(len(x), -1).to(x.dtype), var.expand(len(x), -1).to(x.dtype)

    def sample(
        self, x: Tensor, group: Tensor, generator: torch.Generator, history: History | None = None, times: int = 1
    ) -> Tensor:
        means = self.means
        drawn = torch.randint(len(means), (times * len(x),), generator=generator, device=x.device)
        noise = torch.randn(len(drawn), means.shape[1], generator=generator, device=x.device, dtype=x.dtype)
        return means[drawn].to(x.dtype) + noise

    def log_density(self, z: Tensor, x: Tensor) -> Tensor:
        each = log_normal(z[:, None], self.means, z.new_ones(()))
        return torch.logsumexp(each, dim=1) - math.log(len(self.raw_means))
