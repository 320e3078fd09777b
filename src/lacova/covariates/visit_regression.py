"""Posterior of numbers that vary between visits by a shrunk regression on the patient's visits: where q starts.

The networks of q see the measurements of one visit, and learn slowly. What a visit says about its covariates depends on
the patient's other visits, too: a value that is high for this patient is not one that is high among all. A regression
has both at once. Without it, the first completed covariates have nothing to do with y, the model learns from them that
y does not depend on x, and q agrees. Categories are left to the networks: their own course tells most of them, and a
regression made the clinical tables' worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lacova.covariates.dependence import PRIOR_VISITS
from lacova.covariates.left_out_ridge import Ridge, regress_number
from lacova.covariates.prior import CovariatePrior
from lacova.covariates.regression import ShrunkRegression, principal_directions
from lacova.covariates.static_regression import COVARIATE_WEIGHT
from lacova.data.batches import Batch, Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.measurement_space import MeasurementSpace
from lacova.data.scaling import Floats
from lacova.data.table import Table

MIN_VISITS = 40  # visits with an observed value, for a column to have a regression
MAX_VISITS = 3000  # visits that are used, of whole patients
MAX_DIRECTIONS = 100  # principal directions of the features


class Column(NamedTuple):
    """The regression of one column, before it is put into the units of the features.

    Attributes:
        ridge: the regression.
        rows: its rows, among those of both halves (n,).
        directions: principal directions of the features (F×R).
        scale: of the features (F,).
    """

    ridge: Ridge
    rows: Tensor
    directions: Floats
    scale: Floats


@dataclass
class Examples:
    """What the regressions are fitted to, in training: observed entries, each masked in one of two halves.

    Attributes:
        halves: the rows with either half of the observed covariates masked.
        columns: the regression of each column that has one.
        share: mean share of each feature that is observed (F,).
        count: how often each patient of the training table comes in a bootstrap sample; None for once.
    """

    halves: tuple[Table, Table]
    columns: dict[int, Column]
    share: Tensor
    count: Tensor | None = None

    def prior(self, prior: CovariatePrior) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the conditional prior in all rows (2N×Q each)."""
        p = [prior.condition(half).distribution for half in self.halves]
        return torch.cat([one.mean for one in p]), torch.cat([one.var for one in p])


class VisitRegression(ShrunkRegression):
    """q(x | y_o, x_o) of numbers that vary between visits, the time aside.

    h has two parts: what was observed at the visit, and shrunk averages over the patient's other visits, Σ_j v_j/(n +
    ½) over the n of them at which the value v is observed. The column itself enters the second. A patient without
    measurements keeps the prior.

    Args:
        space: layout of X.
        measurements: layout of Y.
        time: index of the time column in X, if there is one.
    """

    chosen: Tensor
    examples: Examples | None

    def __init__(self, space: CovariateSpace, measurements: MeasurementSpace, time: int | None) -> None:
        columns = range(len(space.names))
        varying = [q for q in space.continuous if not space.static[q] and q != time]
        super().__init__(space, measurements, varying, columns, parts=2)
        self.examples = None
        self.register_buffer(
            "chosen", torch.isin(torch.arange(len(space.names)), self.number_columns), persistent=False
        )

    def learn(self, table: Table, prior: CovariatePrior, seed: int) -> None:
        """Fit the regressions to the visits of patients chosen by the seed, and keep these as `examples`."""
        assert table.patient is not None
        if not self.numbers:
            return
        generator = torch.Generator().manual_seed(seed)
        patients = torch.randperm(len(table.labels), generator=generator)
        visits = torch.bincount(table.patient)[patients].cumsum(0)
        patients = patients[: max(1, int((visits <= MAX_VISITS).sum()))]
        batch = Batches(table).batch(patients)
        self._learn_scale(batch)
        masked = [replace(batch, x_mask=batch.x_mask & kept) for kept in _halves(batch, self.space.static, generator)]
        first, second = (Table(b.y, b.y_mask, b.x, b.x_mask, b.patient, tuple(range(b.patients))) for b in masked)
        h, share = (torch.cat(parts) for parts in zip(*map(self.features, masked), strict=True))
        examples = Examples((first, second), {}, share.mean(0))
        mean, var = examples.prior(prior)
        known = torch.cat([batch.x_mask & ~half.x_mask for half in masked]) & (share.sum(1, keepdim=True) > 0.0)
        for q in self.numbers:
            rows, scale = known[:, q].nonzero()[:, 0], self._scale(q)
            if len(rows) < MIN_VISITS:
                continue
            turned, directions = principal_directions(h[rows].double().numpy() * scale, MAX_DIRECTIONS)
            visit = rows % len(batch)
            group = patients[batch.patient[visit]].numpy()
            x, centre, spread = (v[:, q].double().numpy() for v in (batch.x[visit], mean[rows], var[rows]))
            ridge = regress_number(turned, x, centre, spread, group)
            if ridge is not None:
                examples.columns[q] = Column(ridge, rows, directions, scale)
        self.examples = examples
        self.follow(prior)

    def _scale(self, q: int) -> Floats:
        """Return the scale of each feature for the regression of a column, which does not tell itself (F,)."""
        ones, others = np.ones(len(self.of_y)), np.full(len(self.of_x), COVARIATE_WEIGHT)
        here = np.where(self.of_x.cpu().numpy() == q, 0.0, others)
        return np.concatenate([ones, here, ones, others])

    def follow(self, prior: CovariatePrior, count: Tensor | None = None) -> None:
        """Fit the regressions again, with the same shrinkage: the covariate prior has moved, or the sample is another.

        Without that, what the measurements tell would count twice once the prior has learnt it from q.

        Args:
            prior: the covariate prior, on the host.
            count: how often each patient of the training table comes in the sample, from now on; None for no change.
        """
        examples = self.examples
        if examples is None:
            return
        if count is not None:
            examples.count = count
        times = None if examples.count is None else examples.count.double().numpy()
        mean, var = examples.prior(prior)
        for q, (ridge, rows, directions, scale) in examples.columns.items():
            fit = ridge.fit(mean[rows, q].double().numpy(), var[rows, q].double().numpy(), times)
            self._set(q, fit._replace(a=directions @ fit.a), scale, examples.share)

    def features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        values, observed = self._scaled(batch)
        size = (batch.patients, values.shape[1])
        total, count = (
            part.new_zeros(size).index_add(0, batch.patient, part).index_select(0, batch.patient) - part
            for part in (values, observed)
        )
        return (
            torch.cat([values, total / (count + PRIOR_VISITS)], dim=1),
            torch.cat([observed, count / (count + PRIOR_VISITS)], dim=1),
        )


def _halves(batch: Batch, static: Sequence[bool], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return two masks of what is kept (N×Q each): what one keeps, the other leaves out.

    As many patients as have no value of a column at any visit have all of them in the same half; and so have all of a
    visit-constant column.
    """
    seen = torch.zeros(batch.patients, batch.x_mask.shape[1]).index_add(0, batch.patient, batch.x_mask.float())
    whole = (torch.rand(seen.shape, generator=generator) < (seen == 0).float().mean(0)) | torch.tensor(static)
    first = torch.rand(batch.x_mask.shape, generator=generator) < 0.5
    of_patient = torch.rand(seen.shape, generator=generator) < 0.5
    first = torch.where(whole[batch.patient], of_patient[batch.patient], first)
    return first, ~first
