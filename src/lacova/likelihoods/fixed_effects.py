"""Fixed effects: a shrunk linear regression of patients' random effects on their covariates.

A visit's covariates act through z. Differences between patients that last over all visits go into the random effects,
and random effects of mean 0 would absorb them: predictions for new patients would lack them. So the mean of the random
effects is a regression on visit-constant covariates, and on patients' averages of covariates that change: effects
between patients may differ from effects within patients (Mundlak, 1978).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lacova.data.batches import Batch, variance_parts
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.table import Table
from lacova.likelihoods.base import standard_normal

INITIAL_SCALE = 0.2  # α to start from, in units of the scaled measurement
MAX_KAPPA = 1000.0  # for covariates that do not differ between patients


class FixedPart(NamedTuple):
    """wᵀc at each row: mean and variance (…×N̂×D). It is the same variable at all rows of a patient."""

    mean: Tensor
    var: Tensor

    def take(self, rows: Tensor) -> FixedPart:
        """Return the fixed part at some of the rows."""
        return FixedPart(self.mean[..., rows, :], self.var[..., rows, :])


class FixedEffects(nn.Module):
    """E b_pd = Σ_k w_dk c_pk: regression of measurement d on features of a patient's covariates.

    A number has one feature, a category one per level. For a visit-constant covariate, c is that feature. For one that
    changes, c = Σ_i (x_i − μ)/(n + κ) over the patient's n visits: the expected average over very many visits, less the
    average over all patients. κ is the variance within patients divided by the variance between them, so that the
    average of a few visits is shrunk where visits differ much.

    The prior is w_dk ~ N(0, α_q²) with a learnt α for each covariate q, the posterior q(w_dk) = N(m_dk, s_dk²). The
    prior shrinks coefficients towards 0 where there are few patients and many covariates.

    Args:
        space: layout of X.
        names: the covariates to regress on.
        sd: s_d to start from (D,).
    """

    chosen: Tensor
    owner: Tensor
    member: Tensor
    fixed: Tensor
    fixed_feature: Tensor
    column: Tensor
    hot: Tensor
    pairs: Tensor
    centre: Tensor
    kappa: Tensor

    def __init__(self, space: CovariateSpace, names: Sequence[str], sd: Tensor) -> None:
        super().__init__()
        self.space, self.names = space, tuple(names)
        chosen = [k for k, q in enumerate(space.owners) if space.names[q] in names]
        owner = [self.names.index(space.names[space.owners[k]]) for k in chosen]
        self.register_buffer("chosen", torch.tensor(chosen), persistent=False)
        self.register_buffer("owner", torch.tensor(owner), persistent=False)
        member = (self.owner[:, None] == torch.arange(len(names))).to(
            sd.dtype
        )  # K×Q, 1 where feature k is of covariate q
        self.register_buffer("member", member, persistent=False)
        pairs = torch.tensor([(k, j) for j in range(len(owner)) for k in range(j) if owner[k] == owner[j]])
        self.register_buffer("pairs", pairs.reshape(-1, 2).T.contiguous().long(), persistent=False)  # of one covariate
        fixed = torch.tensor([space.static[space.names.index(name)] for name in names])
        self.register_buffer("fixed", fixed, persistent=False)
        self.register_buffer("fixed_feature", fixed[self.owner], persistent=False)
        column = torch.tensor([space.owners[k] for k in chosen])
        self.register_buffer("column", column, persistent=False)  # of X, of each feature
        hot = torch.tensor([space.levels[space.owners[k]] > 0 for k in chosen])
        self.register_buffer("hot", hot, persistent=False)
        self.register_buffer("centre", sd.new_zeros(len(chosen)))  # μ
        self.register_buffer("kappa", sd.new_ones(len(names)))
        self.mean = nn.Parameter(sd.new_zeros(len(sd), len(chosen)))
        self.log_sd = nn.Parameter(sd.log()[:, None].repeat(1, len(chosen)))
        self.log_scale = nn.Parameter(sd.new_full((len(names),), math.log(INITIAL_SCALE)))

    def learn(self, table: Table) -> None:
        """Estimate μ and κ from the observed entries of a table."""
        values = self.space.values(table.x, table.x_mask)[:, self.chosen]
        observed = table.x_mask[:, [self.space.names.index(self.names[q]) for q in self.owner.tolist()]]
        between, within = (part @ self.member for part in variance_parts(values, observed, table.patient))
        self.kappa.copy_((within / between).nan_to_num(MAX_KAPPA).clamp_max(MAX_KAPPA))
        self.centre.copy_(values.sum(0) / observed.sum(0))

    @property
    def var(self) -> Tensor:
        """s² (D×K)."""
        return (2.0 * self.log_sd).exp()

    def expect(self, batch: Batch, distribution: FactorisedDistribution | None) -> FixedPart:
        """Return wᵀc at each row, its mean and variance exact under q(w) and the distribution of missing covariates.

        Var wᵀc = Σ_k s_k² E c_k² + Σ_q Var_c m_qᵀc_q, with independent covariates q, and independent visits of those
        that change. Var m_qᵀx_q = Σ_k m_k² Var x_k − 2 Σ_{k<k'} m_k m_k' p_k p_k' over the levels k of a category, and
        a number has no second sum. Without a distribution, the features of missing covariates are 0.
        """
        mean, var = self.mean, self.var
        if distribution is None:
            c = self._regressors(self._observed(batch), batch)
            return FixedPart(c @ mean.mT, c.square() @ var.mT)
        gap = self._gap(batch)
        first = self._gap_means(distribution, gap)
        c = self._regressors(self._observed(batch) + first, batch)
        # Variance of missing features; a one-hot feature is its own square.
        spread = torch.where(self.hot, first - first.square(), distribution.var.index_select(1, self.column) * gap)
        weight, (one, other) = self._variance_weights(batch).index_select(1, self.owner), self.pairs
        products = weight.index_select(1, one) * first.index_select(1, one) * first.index_select(1, other)
        moments = torch.cat([weight * spread, products], 1)
        moments = moments.new_zeros(batch.patients, moments.shape[1]).index_add(0, batch.patient, moments)
        variances, products = moments.split([len(self.owner), len(one)], dim=1)  # P̂×K, P̂×pairs
        gap_var = variances @ (mean.square() + var).mT
        gap_var = gap_var - 2.0 * products @ (mean.index_select(1, one) * mean.index_select(1, other)).mT
        return FixedPart(c @ mean.mT, c.square() @ var.mT + gap_var.clamp_min(0.0).index_select(0, batch.patient))

    def expected_mean(self, batch: Batch, distribution: FactorisedDistribution | None) -> Tensor:
        """Return the mean of `expect` alone."""
        features = self._observed(batch)
        if distribution is not None:
            features = features + self._gap_means(distribution, self._gap(batch))
        return self._regressors(features, batch) @ self.mean.mT

    def at(
        self, x: Tensor, batch: Batch, coefficients: Tensor | None = None, averaged_x: Tensor | None = None
    ) -> FixedPart:
        """Return wᵀc at completed covariates.

        Args:
            x: the covariates (…×N̂×Q).
            batch: the rows, with all visits of their patients that enter averages.
            coefficients: w (…×D×K); None for mean and variance under q(w).
            averaged_x: the covariates that enter averages (…×N̂×Q); None for x.
        """
        c = self._regressors(self._features(x), batch, None if averaged_x is None else self._features(averaged_x))
        if coefficients is not None:
            mean = c @ coefficients.mT
            return FixedPart(mean, torch.zeros_like(mean))
        return FixedPart(c @ self.mean.mT, c.square() @ self.var.mT)

    def draw(self, draws: int, generator: torch.Generator) -> Tensor:
        """Draw coefficients w from q(w) (draws×D×K)."""
        return self.mean + self.log_sd.exp() * standard_normal(self.mean.expand(draws, -1, -1), generator)

    def features_of(self, name: str) -> Tensor:
        """Return which of the K features belong to a covariate (K,)."""
        return self.owner == self.names.index(name)

    def kl(self) -> Tensor:
        """Return KL[q(w) ‖ p(w)]."""
        log_scale = self.log_scale.index_select(0, self.owner)
        square = (self.var + self.mean.square()) * (-2.0 * log_scale).exp()
        return (log_scale - self.log_sd + 0.5 * (square - 1.0)).sum()

    def _observed(self, batch: Batch) -> Tensor:
        """Return the features of observed covariates (N̂×K), 0 where missing."""
        return batch.values(self.space).index_select(1, self.chosen)

    def _gap(self, batch: Batch) -> Tensor:
        """Return which features are those of missing covariates (N̂×K)."""
        return (~batch.x_mask).index_select(1, self.column)

    def _gap_means(self, distribution: FactorisedDistribution, gap: Tensor) -> Tensor:
        """Return E x_k of missing features (N̂×K), 0 where observed."""
        numbers = distribution.mean.index_select(1, self.space.on(gap.device).continuous)
        probs = self.space.of_levels(distribution.log_prob).exp()
        return torch.cat([numbers, probs], dim=1).index_select(1, self.chosen) * gap

    def _features(self, x: Tensor) -> Tensor:
        """Return completed covariates (…×N̂×Q) as features: numbers and one-hot levels (…×N̂×K)."""
        features: Tensor = self.space.values(x.flatten(0, -2))[:, self.chosen].unflatten(0, x.shape[:-1])
        return features

    def _regressors(self, features: Tensor, batch: Batch, averaged: Tensor | None = None) -> Tensor:
        """Return c at each row (…×N̂×K) from features (…×N̂×K), with averages of `averaged` features, or of these."""
        centred = (features if averaged is None else averaged) - self.centre
        zeros = centred.new_zeros(*centred.shape[:-2], batch.patients, centred.shape[-1])
        size = (batch.counts[:, None] + self.kappa).index_select(1, self.owner)
        average = zeros.index_add(-2, batch.patient, centred) / size
        c: Tensor = torch.where(self.fixed_feature, features, average.index_select(-2, batch.patient))
        return c

    def _variance_weights(self, batch: Batch) -> Tensor:
        """Return the weight of a covariate's variance at each row (N̂×Q) in the variance of its patient's c.

        A visit-constant covariate is one variable per patient, which counts at the patient's first row.
        """
        shrunk = (batch.counts[:, None] + self.kappa).index_select(0, batch.patient) ** -2
        return torch.where(self.fixed, batch.is_first[:, None], shrunk)
