"""Latent priors that draw the rows of a group jointly, from their mean and covariance."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from lacova.nn.linalg import cholesky
from lacova.priors.base import History, LatentPrior


class JointRowsPrior(LatentPrior):
    """A latent prior whose rows are correlated within a group: `predict` and `sample` from `_blocks`."""

    independent = False

    @abstractmethod
    def _blocks(self, x: Tensor, group: Tensor, history: History | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean (L×V×n) and covariance (L×V×n×n) of z by group, and which places hold a row (V×n)."""

    def predict(self, x: Tensor, group: Tensor, history: History | None = None) -> tuple[Tensor, Tensor]:
        mean, covariance, filled = self._blocks(x, group, history)
        var = covariance.diagonal(dim1=-2, dim2=-1)
        return mean[:, filled].mT.to(x.dtype), var[:, filled].mT.to(x.dtype)

    def sample(
        self, x: Tensor, group: Tensor, generator: torch.Generator, history: History | None = None, times: int = 1
    ) -> Tensor:
        mean, covariance, filled = self._blocks(x, group, history)
        latent, count, size = mean.shape
        eps = torch.randn(latent, times, count, size, generator=generator, device=x.device, dtype=mean.dtype)
        z = mean[..., None] + cholesky(covariance) @ eps.permute(0, 2, 3, 1)  # L×V×n×times
        return z[:, filled].permute(2, 1, 0).flatten(0, 1).to(x.dtype)
