"""Normal priors with independent rows: standard normal, or conditional on x by a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from lacova.covariates.scenarios import Scenarios
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.registry import register
from lacova.nn.latents import Latents
from lacova.nn.linalg import gaussian_kl
from lacova.nn.networks import LOG_VAR_RANGE, mlp
from lacova.priors.base import History, LatentPrior, PriorTerms


@register("normal")
class StandardNormal(LatentPrior):
    """p(z) = N(0, I), whatever x."""

    by_scenario = True

    def __init__(self, latent_dim: int) -> None:
        super().__init__()
        self.latent_dim = latent_dim

    @classmethod
    def build(cls, space: CovariateSpace, latent_dim: int, **configuration: Any) -> Self:
        return cls(latent_dim, **configuration)

    def kl(self, scenarios: Scenarios, batch: Batch, q: Latents, q_x: FactorisedDistribution) -> PriorTerms:
        kl = gaussian_kl(q.mean, q.var, torch.zeros_like(q.mean), torch.ones_like(q.var)).sum(-1)  # K
        return PriorTerms(batch.scale * (kl * scenarios.row_weight).sum(), q.mean.new_zeros(()))

    def predict(self, x: Tensor, group: Tensor, history: History | None = None) -> tuple[Tensor, Tensor]:
        zero = x.new_zeros(len(x), self.latent_dim)
        return zero, torch.ones_like(zero)


@register("conditional")
class ConditionalNormal(LatentPrior):
    """p_θ(z | x) = N(μ_θ(x), diag σ_θ²(x)) from a network."""

    by_scenario = True

    def __init__(self, space: CovariateSpace, latent_dim: int, hidden: Sequence[int] = (64,)) -> None:
        super().__init__()
        self.space = space
        self.network = mlp([space.width, *hidden, 2 * latent_dim])

    def kl(self, scenarios: Scenarios, batch: Batch, q: Latents, q_x: FactorisedDistribution) -> PriorTerms:
        kl = gaussian_kl(q.mean, q.var, *self._moments(scenarios.x)).sum(-1)  # K
        return PriorTerms(batch.scale * (kl * scenarios.row_weight).sum(), q.mean.new_zeros(()))

    def predict(self, x: Tensor, group: Tensor, history: History | None = None) -> tuple[Tensor, Tensor]:
        return self._moments(x)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ_θ and σ_θ² (K×L each) at x (K×Q)."""
        mean, log_var = self.network(self.space.values(x)).chunk(2, dim=1)
        return mean, log_var.clamp(*LOG_VAR_RANGE).exp()
