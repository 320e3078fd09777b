"""Posteriors of missing covariates by shrunk regressions, fitted to the training rows before training.

The posterior of a covariate x is its conditional prior times the likelihood of a regression on features h:

    continuous:   q(x) ∝ p(x | x_o) · exp(x·(aᵀh + ωb) − ½ωJx²)
    categorical:  q(x) ∝ p(x | x_o) · exp(a_xᵀh + ωb_x)

a is shrunk, by the shrinkage that foretells rows best which were left out.

ω = Σ a²s, relative to its mean over the training rows, is the amount of information about x, where s of a feature is
the share of it that has been observed. Without any, ω = 0 and q is the prior.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lacova.covariates.prior import CovariatePrior
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.measurement_space import MeasurementSpace
from lacova.data.scaling import Floats
from lacova.data.table import Table

MAX_DEVIATION = 3.0  # standard deviations at which a value is clipped


class Coefficients(NamedTuple):
    """The regression of one column: a (F×K), b (K,), and J of a number."""

    a: Floats
    b: Floats
    precision: float = 0.0


class ShrunkRegression(nn.Module, ABC):
    """Posterior of some covariates: the conditional prior times the likelihood of regressions.

    Features come from the measurements (one per level where categorical) and from other covariates at visits with
    measurements, each centred, in standard deviations and clipped at ±3.

    Args:
        space: layout of X.
        measurements: layout of Y.
        columns: the covariates that have a regression.
        predictors: the covariates that enter features.
        parts: how many features there are of each measurement and covariate.
    """

    centre: Tensor
    spread: Tensor
    weight: Tensor
    bias: Tensor
    precision: Tensor
    looked: Tensor
    of_y: Tensor
    of_x: Tensor
    at: Tensor
    number_columns: Tensor
    category_columns: Tensor
    level_outputs: Tensor

    def __init__(
        self, space: CovariateSpace, measurements: MeasurementSpace, columns: Sequence[int], predictors: Sequence[int],
        parts: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.space, self.measurements = space, measurements
        self.numbers = [q for q in columns if not space.levels[q]]
        self.categories = [q for q in columns if space.levels[q]]
        entering = [(at, q) for at, q in enumerate(space.owners) if q in predictors]
        self.register_buffer("of_y", torch.tensor(measurements.owners), persistent=False)
        self.register_buffer("of_x", torch.tensor([q for _, q in entering], dtype=torch.long), persistent=False)
        self.register_buffer("at", torch.tensor([at for at, _ in entering], dtype=torch.long), persistent=False)
        self.register_buffer("number_columns", torch.tensor(self.numbers, dtype=torch.long), persistent=False)
        self.register_buffer("category_columns", torch.tensor(self.categories, dtype=torch.long), persistent=False)
        first = len(self.numbers)
        level_outputs = torch.full((len(self.categories), space.max_levels), -1)  # output of each level, -1 for none
        for row, q in zip(level_outputs, self.categories, strict=True):
            row[: space.levels[q]] = torch.arange(first, first := first + space.levels[q])
        self.register_buffer("level_outputs", level_outputs, persistent=False)
        width = len(self.of_y) + len(self.of_x)
        outputs = len(self.numbers) + sum(space.levels[q] for q in self.categories)
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.register_buffer("weight", torch.zeros(parts * width, outputs))  # a
        self.register_buffer("bias", torch.zeros(outputs))
        self.register_buffer("precision", torch.zeros(len(self.numbers)))  # J
        self.register_buffer("looked", torch.ones(outputs))  # mean of Σ a²s over training rows

    @abstractmethod
    def learn(self, table: Table, prior: CovariatePrior, seed: int) -> None:
        """Fit the regression of each column to the rows in which it is observed.

        The prior that enters is the conditional prior of the column as if it were missing there.
        """

    @abstractmethod
    def features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return h of each row, and the shares s of its features that have been observed (N̂×F each)."""

    def forward(self, prior: FactorisedDistribution, batch: Batch) -> FactorisedDistribution:
        """Return the posterior of the columns that have a regression, and `prior` in the others."""
        h, share = self.features(batch)
        omega = share @ self.weight.square() / self.looked
        logits = h @ self.weight + omega * self.bias  # aᵀh + ωb
        precision = omega[:, : len(self.numbers)] * self.precision  # ωJ
        mean, var, log_prob = prior.mean, prior.var, prior.log_prob
        if self.numbers:
            at, columns = len(self.numbers), self.number_columns
            old = mean.index_select(1, columns), var.index_select(1, columns)
            ratio = 1.0 + precision * old[1]  # prior variance over posterior variance
            mean = mean.index_copy(1, columns, (old[0] + old[1] * logits[:, :at]) / ratio)
            var = var.index_copy(1, columns, old[1] / ratio)
        if self.categories:
            columns, outputs = self.category_columns, self.level_outputs
            own = torch.where(outputs >= 0, logits[:, outputs.clamp_min(0).flatten()].unflatten(1, outputs.shape), 0.0)
            log_prob = log_prob.index_copy(1, columns, torch.log_softmax(log_prob[:, columns] + own, dim=-1))
        return FactorisedDistribution(mean, var, log_prob, prior.paths)

    def _outputs(self, q: int) -> slice:
        """Return which outputs belong to a column."""
        if q in self.numbers:
            place = self.numbers.index(q)
            return slice(place, place + 1)
        first = int(self.level_outputs[self.categories.index(q), 0])
        return slice(first, first + self.space.levels[q])

    def _set(self, q: int, coefficients: Coefficients, scale: Floats, share: Tensor) -> None:
        """Take over the regression of one column.

        Args:
            q: the column.
            coefficients: of features that were multiplied by `scale` (F,).
            scale: of each feature: smaller ones are shrunk more, and 0 leaves a feature out.
            share: the mean share of each feature that is observed (F,).
        """
        outputs = self._outputs(q)
        self.weight[:, outputs] = torch.as_tensor(scale[:, None] * coefficients.a).to(self.weight)
        self.bias[outputs] = torch.as_tensor(coefficients.b).to(self.bias)
        if q in self.numbers:
            self.precision[outputs] = coefficients.precision
        information = share.to(self.weight.device) @ self.weight[:, outputs].square()
        self.looked[outputs] = torch.where(information > 0.0, information, 1.0)

    def _learn_scale(self, batch: Batch) -> None:
        """Learn centre and standard deviation of what enters features."""
        values, observed = self._values(batch)
        count = observed.sum(0).clamp_min(1.0)
        self.centre.copy_((values * observed).sum(0) / count)
        spread = (((values - self.centre) * observed).square().sum(0) / count).sqrt()
        self.spread.copy_(torch.where(spread > 0.0, spread, 1.0))

    def _scaled(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return scaled measurements and covariates, 0 where missing, and 1 where they are observed (N̂×F' each)."""
        values, observed = self._values(batch)
        scaled = ((values - self.centre) / self.spread).clamp(-MAX_DEVIATION, MAX_DEVIATION)
        return scaled * observed, observed

    def _values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return measurements and covariates as network inputs, and 1 where they are observed (N̂×F' each)."""
        features = self.measurements.features(batch.y, batch.y_mask)
        values, y_observed = features.split([len(self.of_y), len(self.measurements)], dim=1)
        x = batch.values(self.space).index_select(1, self.at)
        x_observed = batch.x_mask.index_select(1, self.of_x) & batch.y_mask.any(1, keepdim=True)
        return torch.cat([values, x], 1), torch.cat([y_observed[:, self.of_y], x_observed.to(x.dtype)], 1)


def principal_directions(h: Floats, most: int) -> tuple[Floats, Floats]:
    """Return h (n×F) projected to its leading principal directions (n×R), and the directions (F×R)."""
    directions = np.linalg.svd(h, full_matrices=False)[2][:most].T
    return h @ directions, directions
