"""Laws of the covariates of some rows, as plain tensors: what priors hand to tables, posteriors and expectations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FactorisedDistribution:
    """q(x) or p(x) for N rows, factorised over columns. Only entries at gaps are ever used.

    Attributes:
        mean, var: normal of each continuous entry (N×Q).
        log_prob: log probabilities of each categorical entry (N×Q×levels), −inf beyond a column's own levels.
    """

    mean: Tensor
    var: Tensor
    log_prob: Tensor

    def where(self, entries: Tensor, other: FactorisedDistribution) -> FactorisedDistribution:
        """This distribution in the entries chosen by the mask (N×Q), `other` elsewhere."""
        return FactorisedDistribution(
            torch.where(entries, self.mean, other.mean),
            torch.where(entries, self.var, other.var),
            torch.where(entries[..., None], self.log_prob, other.log_prob),
        )

    def take(self, rows: Tensor) -> FactorisedDistribution:
        return FactorisedDistribution(self.mean[rows], self.var[rows], self.log_prob[rows])

    def to(self, where: torch.device | torch.dtype) -> FactorisedDistribution:
        return FactorisedDistribution(self.mean.to(where), self.var.to(where), self.log_prob.to(where))

    def detach(self) -> FactorisedDistribution:
        return FactorisedDistribution(self.mean.detach(), self.var.detach(), self.log_prob.detach())


@dataclass(frozen=True)
class ConditionalPrior:
    """What a covariate prior says of each row of a table, computed once: p(x_u | x_o).

    Attributes:
        distribution: the law of each single missing entry.
        log_marginal: log p(x_o) of each row (N,); 0 where the prior is factorised and does not need it.
    """

    distribution: FactorisedDistribution
    log_marginal: Tensor

    def take(self, rows: Tensor) -> ConditionalPrior:
        return ConditionalPrior(self.distribution.take(rows), self.log_marginal[rows])

    def to(self, where: torch.device | torch.dtype) -> ConditionalPrior:
        return ConditionalPrior(self.distribution.to(where), self.log_marginal.to(where))
