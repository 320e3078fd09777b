"""Distributions of the covariates of some rows, as plain tensors.

Covariate priors compute them, tables and batches carry them, and posteriors and expectations use them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FactorisedDistribution:
    """q(x) or p(x) of N rows, factorised over entries: normal where continuous, categorical where categorical.

    Every tensor has a place for every entry. The normal of a categorical entry and the probabilities of a continuous
    one are placeholders, and the values at observed entries are ignored.

    Attributes:
        mean: mean of each continuous entry (N×Q).
        var: variance of each continuous entry (N×Q).
        log_prob: log probabilities of each categorical entry (N×Q×levels), −inf beyond the column's own levels.
    """

    mean: Tensor
    var: Tensor
    log_prob: Tensor

    def where(self, entries: Tensor, other: FactorisedDistribution) -> FactorisedDistribution:
        """Return this distribution where the mask `entries` (N×Q) is True, and `other` elsewhere."""
        return FactorisedDistribution(
            torch.where(entries, self.mean, other.mean),
            torch.where(entries, self.var, other.var),
            torch.where(entries[..., None], self.log_prob, other.log_prob),
        )

    def take(self, rows: Tensor) -> FactorisedDistribution:
        """Return the distribution of some rows, chosen by a mask or by index."""
        return FactorisedDistribution(self.mean[rows], self.var[rows], self.log_prob[rows])

    def above(self, other: FactorisedDistribution) -> FactorisedDistribution:
        """Return the distribution of these rows and, below them, those of another."""
        parts = ((self.mean, other.mean), (self.var, other.var), (self.log_prob, other.log_prob))
        return FactorisedDistribution(*(torch.cat(part) for part in parts))

    def halves(self) -> tuple[FactorisedDistribution, FactorisedDistribution]:
        """Return the distributions of the first and of the second half of the rows."""
        first, second = zip(self.mean.chunk(2), self.var.chunk(2), self.log_prob.chunk(2), strict=True)
        return FactorisedDistribution(*first), FactorisedDistribution(*second)

    def to(self, where: torch.device | torch.dtype) -> FactorisedDistribution:
        """Return the distribution on another device or in another floating-point type."""
        return FactorisedDistribution(self.mean.to(where), self.var.to(where), self.log_prob.to(where))

    def detach(self) -> FactorisedDistribution:
        """Return the distribution without its gradient history."""
        return FactorisedDistribution(self.mean.detach(), self.var.detach(), self.log_prob.detach())


@dataclass(frozen=True)
class ConditionalPrior:
    """p(x_u | x_o) of each row of a table, computed once by `CovariatePrior.condition`.

    Attributes:
        distribution: marginal p(x_iq | x_o) of each missing entry.
        log_marginal: log p(x_o) of each row (N,); 0 where the prior's KL does not need it.
    """

    distribution: FactorisedDistribution
    log_marginal: Tensor

    def take(self, rows: Tensor) -> ConditionalPrior:
        """Return the conditional prior of some rows, chosen by a mask or by index."""
        return ConditionalPrior(self.distribution.take(rows), self.log_marginal[rows])

    def above(self, other: ConditionalPrior) -> ConditionalPrior:
        """Return the conditional prior of these rows and, below them, that of others."""
        log_marginal = torch.cat([self.log_marginal, other.log_marginal])
        return ConditionalPrior(self.distribution.above(other.distribution), log_marginal)

    def to(self, where: torch.device | torch.dtype) -> ConditionalPrior:
        """Return the conditional prior on another device or in another floating-point type."""
        return ConditionalPrior(self.distribution.to(where), self.log_marginal.to(where))
