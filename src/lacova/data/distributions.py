"""Distributions of the covariates of some rows, as plain tensors.

Covariate priors compute them, tables and batches carry them, and posteriors and expectations use them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Paths:
    """Which gaps of a column depend on each other along a patient's visits: a Markov chain for each run of gaps.
    `covariates/paths.py` has the mathematics.

    Rows are given by their distance in rows, so that they are the same in a table ordered by patient and in every batch
    of whole patients.

    Attributes:
        before, after: from each entry to the gaps before and after it in its run, in rows (N×Q); 0 for none.
        coupling: how an entry depends on the one before it (N×Q); 0 for not. Of a number λ, the precision between
            the two, with a minus; of a category r, the share of paths that keep the level where they can.
        numbers, levels: whether any number, and whether any category, may be on a path.
    """

    before: Tensor
    after: Tensor
    coupling: Tensor
    numbers: bool = True
    levels: bool = True

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.before, self.after, self.coupling

    def with_parts(self, before: Tensor, after: Tensor, coupling: Tensor) -> Paths:
        """Return paths of the same kinds."""
        return replace(self, before=before, after=after, coupling=coupling)

    @property
    def linked(self) -> Tensor:
        """Which entries have another one in their run (N×Q)."""
        return (self.before != 0) | (self.after != 0)

    def take(self, rows: Tensor) -> Paths:
        """Return the paths of some patients, by the indices of all their rows, in order."""
        return self.with_parts(*(part[rows] for part in self.parts))

    def cut(self, rows: Tensor) -> Paths:
        """Return the paths of the rows chosen by a mask (N,); they end where a row is left out."""
        place = rows.cumsum(0) - 1
        here = torch.arange(len(rows), device=rows.device)[:, None]
        before, after = (
            torch.where(rows[here + part], place[here + part] - place[:, None], 0) for part in (self.before, self.after)
        )
        return self.with_parts(before, after, torch.where(before != 0, self.coupling, 0.0)).take(rows)

    def without(self, rows: Tensor) -> Paths:
        """Return the same paths, but rows of a mask (N,), which repeat others, are on none."""
        return self.with_parts(*(part.masked_fill(rows[:, None], 0) for part in self.parts))

    def columns(self, columns: Tensor) -> Paths:
        """Return the paths of some columns, by index."""
        return self.with_parts(*(part.index_select(1, columns) for part in self.parts))

    def above(self, other: Paths) -> Paths:
        """Return the paths of these rows and, below them, those of others."""
        return self.with_parts(*(torch.cat(pair) for pair in zip(self.parts, other.parts, strict=True)))

    def halves(self) -> tuple[Paths, Paths]:
        """Return the paths of the first and of the second half of the rows, which share no patient."""
        first, second = zip(*(part.chunk(2) for part in self.parts), strict=True)
        return self.with_parts(*first), self.with_parts(*second)

    def to(self, where: torch.device | torch.dtype) -> Paths:
        """Return the paths on another device, or with λ in another floating-point type."""
        if isinstance(where, torch.dtype):
            return replace(self, coupling=self.coupling.to(where))
        return self.with_parts(*(part.to(where) for part in self.parts))


@dataclass(frozen=True)
class Dependence:
    """How the numbers of a row depend on each other: R, the correlation of what is new in them at the row.
    `covariates/dependence.py` has the mathematics.

    Attributes:
        factor: lower-triangular L with L Lᵀ = R (N×K×K), for the K continuous columns.
        precision: R⁻¹ (N×K×K).
        columns: index of each continuous column (K,).
    """

    factor: Tensor
    precision: Tensor
    columns: Tensor

    def halves(self) -> tuple[Dependence, Dependence]:
        """Return the dependence in the first and in the second half of the rows."""
        first, second = zip(self.factor.chunk(2), self.precision.chunk(2), strict=True)
        return Dependence(*first, self.columns), Dependence(*second, self.columns)

    def to(self, where: torch.device | torch.dtype) -> Dependence:
        """Return the dependence on another device or in another floating-point type."""
        columns = self.columns if isinstance(where, torch.dtype) else self.columns.to(where)
        return Dependence(self.factor.to(where), self.precision.to(where), columns)


@dataclass(frozen=True)
class FactorisedDistribution:
    """q(x) or p(x) of N rows, factorised over entries: normal where continuous, categorical where categorical.

    Every tensor has a place for every entry. The normal of a categorical entry and the probabilities of a continuous
    one are placeholders, and the values at observed entries are ignored. With `paths`, the entries of a run of gaps are
    not independent, and with `dependence`, nor are the numbers of a row: mean, variance and probabilities are those of
    each entry by itself.

    Attributes:
        mean: mean of each continuous entry (N×Q).
        var: variance of each continuous entry (N×Q).
        log_prob: log probabilities of each categorical entry (N×Q×levels), −inf beyond the column's own levels.
        paths: which entries depend on each other along visits; None if all are independent.
        dependence: how the numbers of a row depend on each other; None if they do not. It is that of all numbers of one
            batch: other choices of rows or columns have none.
    """

    mean: Tensor
    var: Tensor
    log_prob: Tensor
    paths: Paths | None = None
    dependence: Dependence | None = None

    def where(self, entries: Tensor, other: FactorisedDistribution) -> FactorisedDistribution:
        """Return this distribution where the mask `entries` (N×Q) is True, and `other` elsewhere.

        Both have the same paths, or one of them has none, whose entries are on no path. The same holds of dependence.
        """
        return FactorisedDistribution(
            torch.where(entries, self.mean, other.mean),
            torch.where(entries, self.var, other.var),
            torch.where(entries[..., None], self.log_prob, other.log_prob),
            other.paths if self.paths is None else self.paths,
            other.dependence if self.dependence is None else self.dependence,
        )

    def by_entry(self) -> FactorisedDistribution:
        """Return the distribution of each entry by itself: the same without paths and dependence."""
        return replace(self, paths=None, dependence=None)

    def by_row(self) -> FactorisedDistribution:
        """Return the distribution of each row by itself: the same without paths."""
        return replace(self, paths=None)

    def take(self, rows: Tensor) -> FactorisedDistribution:
        """Return the distribution of some rows: by index, of all rows of some patients in order, or by a mask."""
        paths = self.paths
        if paths is not None:
            paths = paths.cut(rows) if rows.dtype == torch.bool else paths.take(rows)
        return FactorisedDistribution(self.mean[rows], self.var[rows], self.log_prob[rows], paths)

    def columns(self, columns: Tensor) -> FactorisedDistribution:
        """Return the distribution of some columns, by index."""
        mean, var, log_prob = (part.index_select(1, columns) for part in (self.mean, self.var, self.log_prob))
        return FactorisedDistribution(mean, var, log_prob, None if self.paths is None else self.paths.columns(columns))

    def above(self, other: FactorisedDistribution) -> FactorisedDistribution:
        """Return the distribution of these rows and, below them, those of another."""
        parts = ((self.mean, other.mean), (self.var, other.var), (self.log_prob, other.log_prob))
        mean, var, log_prob = (torch.cat(part) for part in parts)
        both = None if self.paths is None or other.paths is None else self.paths.above(other.paths)
        return FactorisedDistribution(mean, var, log_prob, both)

    def halves(self) -> tuple[FactorisedDistribution, FactorisedDistribution]:
        """Return the distributions of the first and of the second half of the rows."""
        first, second = zip(self.mean.chunk(2), self.var.chunk(2), self.log_prob.chunk(2), strict=True)
        above, below = (None, None) if self.paths is None else self.paths.halves()
        upper, lower = (None, None) if self.dependence is None else self.dependence.halves()
        return FactorisedDistribution(*first, above, upper), FactorisedDistribution(*second, below, lower)

    def to(self, where: torch.device | torch.dtype) -> FactorisedDistribution:
        """Return the distribution on another device or in another floating-point type."""
        paths = None if self.paths is None else self.paths.to(where)
        dependence = None if self.dependence is None else self.dependence.to(where)
        mean, var, log_prob = (part.to(where) for part in (self.mean, self.var, self.log_prob))
        return FactorisedDistribution(mean, var, log_prob, paths, dependence)

    def detach(self) -> FactorisedDistribution:
        """Return the distribution without its gradient history."""
        return replace(self, mean=self.mean.detach(), var=self.var.detach(), log_prob=self.log_prob.detach())


@dataclass(frozen=True)
class ConditionalPrior:
    """p(x_u | x_o) of each row of a table, computed once by `CovariatePrior.condition`.

    Attributes:
        distribution: p(x_iq | x_o) of each missing entry, with the paths that couple them, if there are any.
        log_marginal: log p(x_o) of each row (N,); 0 where the prior's KL does not need it.
    """

    distribution: FactorisedDistribution
    log_marginal: Tensor

    def take(self, rows: Tensor) -> ConditionalPrior:
        """Return the conditional prior of some rows, as `FactorisedDistribution.take` does."""
        return ConditionalPrior(self.distribution.take(rows), self.log_marginal[rows])

    def without_paths(self, rows: Tensor) -> ConditionalPrior:
        """Return the same, but rows of a mask (N,), which repeat others, are on no path."""
        paths = self.distribution.paths
        if paths is None:
            return self
        return replace(self, distribution=replace(self.distribution, paths=paths.without(rows)))

    def above(self, other: ConditionalPrior) -> ConditionalPrior:
        """Return the conditional prior of these rows and, below them, that of others."""
        log_marginal = torch.cat([self.log_marginal, other.log_marginal])
        return ConditionalPrior(self.distribution.above(other.distribution), log_marginal)

    def to(self, where: torch.device | torch.dtype) -> ConditionalPrior:
        """Return the conditional prior on another device or in another floating-point type."""
        return ConditionalPrior(self.distribution.to(where), self.log_marginal.to(where))
