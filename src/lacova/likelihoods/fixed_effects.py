"""Fixed effects: a shrunk linear regression of patients' random effects on their covariates.

A visit's covariates act through z. Differences between patients that last over all visits go into the random effects,
and random effects of mean 0 would absorb them: predictions for new patients would lack them. So the mean of the random
effects is a regression on visit-constant covariates, and on patients' averages of covariates that change: effects
between patients may differ from effects within patients (Mundlak, 1978). The effect of a visit-constant covariate may
change linearly with time, as that of a treatment does.
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
from lacova.nn.linalg import cholesky, identity, log_det, whitener

INITIAL_SCALE = 0.2  # α to start from where it is learnt, in units of the scaled measurement
# Prior of log α of a visit-constant covariate: normal with this mean, for w and for w', and standard deviation.
LOG_SCALE_MEAN, LOG_SCALE_SD = (0.0, 0.0), 0.5
MAX_KAPPA = 1000.0  # for covariates that do not differ between patients
MAX_JOINT = 150  # coefficients of a measurement whose posterior covariance is kept; more are independent


class FixedPart(NamedTuple):
    """Fixed part of the random effects: at the rows h_iᵀ B_d c, with c of the patient and h_i of the visit.

    Attributes:
        mean: its mean at each row (…×N̂×D).
        covariance: Cov B_d c of each patient (…×P̂×D×J×J); None where B and c are known.
        second: c cᵀ of each patient (…×P̂×K×K), where the covariance was computed from it.
    """

    mean: Tensor
    covariance: Tensor | None = None
    second: Tensor | None = None

    def take(self, rows: Tensor) -> FixedPart:
        """Return a fixed part that is known at some of the rows."""
        return FixedPart(self.mean[..., rows, :])


class FixedEffects(nn.Module):
    """E b_pd(t) = Σ_k (w_dk + w'_dk t) c_pk: regression of measurement d on features of a patient's covariates.

    A number has one feature, a category one per level. For a visit-constant covariate, c is that feature. For one that
    changes, c = Σ_i (x_i − μ)/(n + κ) over the patient's n visits: the expected average over very many visits, less the
    average over all patients. κ is the variance within patients divided by the variance between them, so that the
    average of a few visits is shrunk where visits differ much. Only visit-constant covariates have coefficients w' of
    the time, and only where there is a time; at visits without one, t is 0, its mean.

    The prior is w_dk ~ N(0, α_q²) with an α for each covariate q, and another for its w'. α is learnt, with all
    measurements; of a visit-constant covariate it has a prior, log-normal about one standard deviation of the
    measurement, so that a table of a few measurements shrinks the effect of an arm little. The posterior is q(w_d) =
    N(m_d, S_d), with the full covariance S_d up to 150 coefficients. m_d moves by natural gradients.

    Where measurements share factors, the best q of independent w_d has the covariance of w_d given the coefficients of
    all other measurements, which is too narrow for what is said about w_d alone. So S_d is that of measurement d by
    itself. With complete visits and a flat prior it is the exact marginal covariance, as in seemingly unrelated
    regressions with the same regressors; the bound stays a bound.

    Args:
        space: layout of X.
        names: the covariates to regress on.
        sd: standard deviation of q(w_d) to start from (D,).
        time: the column of x that holds the time, for effects that change with it.
        coupled: measurements share factors.
    """

    chosen: Tensor
    owner: Tensor
    member: Tensor
    fixed: Tensor
    fixed_feature: Tensor
    column: Tensor
    source: Tensor
    block: Tensor
    centre: Tensor
    kappa: Tensor
    precision: Tensor
    covariance: Tensor
    log_det_precision: Tensor
    stated: Tensor
    expected_log_scale: Tensor

    def __init__(
        self, space: CovariateSpace, names: Sequence[str], sd: Tensor, time: int | None = None,
        coupled: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.space, self.names, self.time = space, tuple(names), time
        chosen = [k for k, q in enumerate(space.owners) if space.names[q] in names]
        owner = [self.names.index(space.names[space.owners[k]]) for k in chosen]
        self._constant("chosen", torch.tensor(chosen))
        self._constant("owner", torch.tensor(owner))
        # K×Q, 1 where feature k is of covariate q
        self._constant("member", (self.owner[:, None] == torch.arange(len(names))).to(sd.dtype))
        self._constant("fixed", torch.tensor([space.static[space.names.index(name)] for name in names]))
        self._constant("fixed_feature", self.fixed[self.owner])
        self._constant("column", torch.tensor([space.owners[k] for k in chosen]))  # of X, of each feature
        # Coefficients: first w of all features, then w' of visit-constant ones.
        changing = [] if time is None else self.fixed_feature.nonzero()[:, 0].tolist()
        count, self.orders = len(chosen) + len(changing), 2 if changing else 1
        self._constant("source", torch.tensor([*range(len(chosen)), *changing]))  # feature of each coefficient
        order = torch.arange(count) >= len(chosen)
        self._constant("block", self.owner[self.source] + len(names) * order)  # its scale: of w, or of w'
        self.register_buffer("centre", sd.new_zeros(len(chosen)))  # μ
        self.register_buffer("kappa", sd.new_ones(len(names)))
        self.mean = nn.Parameter(sd.new_zeros(len(sd), count))
        start = sd[:, None].square().repeat(1, count)
        self.register_buffer("covariance", torch.diag_embed(start))
        # Of w_d given the coefficients of other measurements, then by itself, if that is another.
        self.register_buffer("precision", torch.diag_embed(start.reciprocal()).repeat(1 + coupled, 1, 1, 1))
        self.register_buffer("log_det_precision", -start.log().sum(1))
        stated = self.fixed.repeat(self.orders)
        expected = sd.new_tensor(LOG_SCALE_MEAN[: self.orders]).repeat_interleave(len(names))
        self._constant("stated", stated)
        self._constant("expected_log_scale", expected)
        self.log_scale = nn.Parameter(torch.where(stated, expected, math.log(INITIAL_SCALE)))

    def _constant(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def learn(self, table: Table) -> None:
        """Estimate μ and κ from the observed entries of a table."""
        values = self.space.values(table.x, table.x_mask)[:, self.chosen]
        observed = table.x_mask[:, [self.space.names.index(self.names[q]) for q in self.owner.tolist()]]
        between, within = (part @ self.member for part in variance_parts(values, observed, table.patient))
        self.kappa.copy_((within / between).nan_to_num(MAX_KAPPA).clamp_max(MAX_KAPPA))
        self.centre.copy_(values.sum(0) / observed.sum(0))

    def expected_mean(self, batch: Batch, distribution: FactorisedDistribution | None) -> Tensor:
        """Return the mean of the fixed part (N̂×D), exact under q(w) and the distribution of missing covariates.

        Without a distribution, the features of missing covariates are 0.
        """
        features = self._observed(batch)
        if distribution is not None:
            features = features + self._gap_means(distribution, self._gap(batch))
        return self._at_visits(self._regressors(features, batch), batch) @ self.mean.mT

    def at(
        self, x: Tensor, batch: Batch, coefficients: Tensor | None = None, averaged_x: Tensor | None = None
    ) -> FixedPart:
        """Return the fixed part at completed covariates.

        Args:
            x: the covariates (…×N̂×Q).
            batch: the rows, with all visits of their patients that enter averages.
            coefficients: w (…×D×K'); None for mean and variance under q(w).
            averaged_x: the covariates that enter averages (…×N̂×Q); None for x.
        """
        c = self._regressors(self._features(x), batch, None if averaged_x is None else self._features(averaged_x))
        if coefficients is None:
            return self._part(c, batch)
        return FixedPart(self._at_visits(c, batch) @ coefficients.mT)

    def draw(self, draws: int, generator: torch.Generator) -> Tensor:
        """Draw coefficients w from q(w) (draws×D×K')."""
        eps = standard_normal(self.mean.expand(draws, -1, -1), generator)
        return self.mean + torch.einsum("dkl,ndl->ndk", cholesky(self.covariance), eps)

    def features_of(self, name: str) -> Tensor:
        """Return which of the K' coefficients belong to a covariate (K',)."""
        return self.owner[self.source] == self.names.index(name)

    def kl(self) -> Tensor:
        """Return KL[q(w) ‖ p(w | α)] − log p(α), the latter of the visit-constant covariates."""
        log_scale = self.log_scale.index_select(0, self.block)
        square = (self.covariance.diagonal(dim1=-2, dim2=-1) + self.mean.square()) * (-2.0 * log_scale).exp()
        stated = (((self.log_scale - self.expected_log_scale) / LOG_SCALE_SD).square() * self.stated).sum()
        return (log_scale + 0.5 * (square - 1.0)).sum() + 0.5 * (self.log_det_precision.sum() + stated)

    @torch.no_grad()
    def information(self, second: Tensor, gram: Tensor) -> Tensor:
        """Return Σ_p E[φ G_pd φᵀ] (D×K'×K'), what a batch adds to the precision of q(w_d).

        Args:
            second: E c cᵀ of each patient (P̂×K×K).
            gram: HᵀΣ⁻¹H of each patient and measurement (P̂×D×J×J), random effects integrated out.
        """
        sources = self._sources()
        rows = [
            torch.cat(
                [
                    torch.einsum("pd,pkl->dkl", gram[:, :, i, j], second[:, one][:, :, other])
                    for j, other in enumerate(sources)
                ],
                dim=-1,
            )
            for i, one in enumerate(sources)
        ]
        return torch.cat(rows, dim=-2)

    @torch.no_grad()
    def natural_step(self, information: Tensor, gradient: Tensor, rate: float | Tensor) -> None:
        """Move q(w) by a step of size ρ: S⁻¹ ← (1−ρ) S⁻¹ + ρ (α⁻² + information), m ← m + ρ S gradient.

        Args:
            information: that of all patients (V×D×K'×K'). The first, of each measurement given the others, is for the
                step of m, as that of a natural gradient; the last, of each by itself, for S.
            gradient: of the bound with respect to m (D×K').
            rate: ρ.
        """
        size = information.shape[-1]
        precision = information + torch.diag_embed((-2.0 * self.log_scale).exp().index_select(0, self.block))
        independent = size > MAX_JOINT
        if independent:
            precision = precision * identity(size, precision.dtype, precision.device)
        self.precision.lerp_(precision, rate)
        if independent:
            diagonal = self.precision.diagonal(dim1=-2, dim2=-1)
            covariance, log_dets = torch.diag_embed(diagonal.reciprocal()), diagonal.log().sum(-1)
        else:
            root = whitener(self.precision)
            covariance, log_dets = root.mT @ root, -log_det(root)
        self.covariance.copy_(covariance[-1])
        self.log_det_precision.copy_(log_dets[-1])
        self.mean.add_(rate * (covariance[0] @ gradient[..., None])[..., 0])

    def _part(self, c: Tensor, batch: Batch) -> FixedPart:
        """Return the fixed part at regressors c (…×N̂×K), over q(w): Cov B_d c = ⟨S_d, c cᵀ⟩, by blocks of w and w'."""
        own = c.index_select(-2, batch.first)
        second = own[..., :, None] * own[..., None, :]
        sources = self._sources()
        sizes, covariance = [len(source) for source in sources], []
        for rows, one in zip(self.covariance.split(sizes, dim=1), sources, strict=True):
            blocks = zip(rows.split(sizes, dim=2), sources, strict=True)
            entries = [
                torch.einsum("dkl,...pkl->...pd", block, second[..., one, :][..., other]) for block, other in blocks
            ]
            covariance.append(torch.stack(entries, dim=-1))
        return FixedPart(self._at_visits(c, batch) @ self.mean.mT, torch.stack(covariance, dim=-2), second)

    def _sources(self) -> list[Tensor]:
        """Return the features that have coefficients w, and those that have w', if any."""
        count = len(self.owner)
        return [self.source[:count], self.source[count:]][: self.orders]

    def _at_visits(self, c: Tensor, batch: Batch) -> Tensor:
        """Return what the coefficients multiply at each row (…×N̂×K'): features, and their products with the time."""
        if self.orders == 1:
            return c
        assert self.time is not None
        changing = c.index_select(-1, self.source[len(self.owner) :])
        return torch.cat([c, changing * visit_time(batch, self.time, c.dtype)[:, None]], dim=-1)

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


def visit_time(batch: Batch, time: int, dtype: torch.dtype) -> Tensor:
    """Return the time of each row (N̂,), 0 where it is missing."""
    return torch.where(batch.x_mask[:, time], batch.x[:, time], 0.0).to(dtype)
