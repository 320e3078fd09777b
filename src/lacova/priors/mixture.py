"""A mixture of normals as the prior of z: the latent prior of HIVAE."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from lacova.covariates.scenarios import Scenarios
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.registry import register
from lacova.nn.latents import Latents
from lacova.nn.linalg import gaussian_kl, log_normal
from lacova.priors.base import History, LatentPrior, PriorTerms


@register("mixture")
class MixtureNormal(LatentPrior):
    """p(z) = 1/C Σ_s N(z; μ_s, I) with learnt means, which are centred at zero.

    With q(z) normal, q(s) is summed out at its optimum, q(s) ∝ exp(−KL[q(z) ‖ N(μ_s, I)]). This needs no network for
    q(s) and no sampling of s, and no other q(s) gives a lower bound:

        KL[q(z) ‖ p(z)] ≤ E_q(s) KL[q(z) ‖ p(z | s)] + KL[q(s) ‖ p(s)] = −log 1/C Σ_s exp(−KL[q(z) ‖ N(μ_s, I)]).

    With C = 1 the prior is N(0, I).

    Args:
        latent_dim: L.
        components: C.
    """

    by_scenario = True

    def __init__(self, latent_dim: int, components: int) -> None:
        super().__init__()
        self.raw_means = nn.Parameter(torch.randn(components, latent_dim))

    @classmethod
    def build(cls, space: CovariateSpace, latent_dim: int, **configuration: Any) -> Self:
        return cls(latent_dim, **configuration)

    @property
    def means(self) -> Tensor:
        """μ (C×L)."""
        return self.raw_means - self.raw_means.mean(0)

    def kl(self, scenarios: Scenarios, batch: Batch, q: Latents, q_x: FactorisedDistribution) -> PriorTerms:
        mean, var = q.mean[:, None], q.var[:, None]
        component_kl = gaussian_kl(mean, var, self.means, torch.ones_like(var)).sum(-1)  # K×C
        kl = math.log(len(self.raw_means)) - torch.logsumexp(-component_kl, dim=1)  # K
        return PriorTerms(batch.scale * (kl * scenarios.row_weight).sum(), q.mean.new_zeros(()))

    def predict(self, x: Tensor, group: Tensor, history: History | None = None) -> tuple[Tensor, Tensor]:
        means = self.means
        var = 1.0 + means.var(0, correction=0)
        return means.mean(0).expand(len(x), -1).to(x.dtype), var.expand(len(x), -1).to(x.dtype)

    def sample(
        self, x: Tensor, group: Tensor, generator: torch.Generator, history: History | None = None, times: int = 1
    ) -> Tensor:
        means = self.means
        component = torch.randint(len(means), (times * len(x),), generator=generator, device=x.device)
        eps = torch.randn(len(component), means.shape[1], generator=generator, device=x.device, dtype=x.dtype)
        return means[component].to(x.dtype) + eps

    def log_density(self, z: Tensor, x: Tensor) -> Tensor:
        component_density = log_normal(z[:, None], self.means, z.new_ones(()))  # K×C
        return torch.logsumexp(component_density, dim=1) - math.log(len(self.raw_means))
