"""The amortised posterior q_φ(x_u | ·) of missing covariates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from lacova.covariates.dependence import PosteriorDependence
from lacova.covariates.linear_posterior import LinearPosterior
from lacova.covariates.paths import spread
from lacova.covariates.prior import FactorisedPrior, conditional_prior
from lacova.covariates.static_regression import StaticRegression
from lacova.covariates.visit_regression import VisitRegression
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.measurement_space import MeasurementSpace
from lacova.nn.networks import mlp


class AmortisedPosterior(nn.Module):
    """q(x_u | y_o, x_o), or q(x_u | x_o): a normal or categorical distribution for each entry, from networks.

    The inputs are values and masks of the row, and its conditional prior p(x_u | x_o). The outputs are corrections to a
    starting distribution. Where the prior has paths, so has q: what the visits of a run of gaps tell is shared
    (`covariates/paths.py`). Numbers that a row lacks together depend on each other, where training gave q a
    `linear_posterior` or, of patients, a `dependence` (`covariates/dependence.py`).

    Categorical probabilities start at the conditional prior. Normals start at a `linear_posterior` if there is one.
    Else they start at the conditional prior if `continuous_start` is "conditional"; with "marginal" they start at the
    column's marginal distribution, so that q can move away from a conditional prior with several modes.

    Continuous and categorical columns have a network each. The gradient of a column that is known to within a hundredth
    of its standard deviation is so much larger than that of a category that a shared network would never learn the
    category.

    Args:
        space: layout of X.
        measurements: layout of Y (or D where all are Gaussian) for q(x_u | y_o, x_o); 0 for q(x_u | x_o).
        marginal: marginal distribution of each column.
        continuous_start: "marginal" or "conditional".
        hidden: widths of the networks' hidden layers.
        static_regression: if given, gives the posterior of the visit-constant columns in place of the networks.
    """

    base_mean: Tensor
    base_log_var: Tensor

    def __init__(
        self, space: CovariateSpace, measurements: int | MeasurementSpace, marginal: FactorisedPrior,
        continuous_start: Literal["marginal", "conditional"] = "marginal", hidden: Sequence[int] = (128, 64),
        static_regression: StaticRegression | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.space = space
        self.measurements = MeasurementSpace.of(measurements)
        y_width = self.measurements.width
        self.sees_y = y_width > 0
        self.continuous_start = continuous_start
        self.static_regression = static_regression
        self.visit_regression: VisitRegression | None = None
        self.linear_posterior: LinearPosterior | None = None
        self.dependence: PosteriorDependence | None = None
        columns = len(space.names)
        prior_features = 2 * len(space.continuous) + sum(space.levels)
        inputs = space.width + columns + prior_features
        self.register_buffer("base_mean", marginal.mean.clone())
        self.register_buffer("base_log_var", marginal.var.log())
        if not columns:
            return
        outputs_by_kind = ((space.continuous, 2), (space.categorical, space.max_levels))
        outputs = [len(columns_of_kind) * size for columns_of_kind, size in outputs_by_kind if columns_of_kind]
        # The first layer of all networks side by side, in two parts: x with its prior, and y.
        self.inner = nn.Linear(inputs, len(outputs) * hidden[0])
        self.look = nn.Linear(y_width, len(outputs) * hidden[0], bias=False) if y_width else None
        bound = (inputs + y_width) ** -0.5  # initialised as one layer with all inputs would be
        for layer in (self.inner, self.look):
            for parameter in () if layer is None else layer.parameters():
                nn.init.uniform_(parameter, -bound, bound)
        self.networks = nn.ModuleList(mlp([*hidden, width]) for width in outputs)

    @torch.no_grad()
    def start_from_regression(self, regression: VisitRegression) -> None:
        """Start q of the columns that vary between visits from a fitted regression, corrected by nothing."""
        self.visit_regression = regression
        self._correct_nothing()

    @torch.no_grad()
    def start_from_model(self, model: LinearPosterior) -> None:
        """Start q of the numbers of independent rows from a fitted linear model, corrected by nothing."""
        self.linear_posterior = model
        self._correct_nothing()

    def _correct_nothing(self) -> None:
        for network in self.networks:
            *_, last = network.children()
            for parameter in last.parameters():
                parameter.zero_()

    def end_of_training(self) -> None:
        """Forget the training rows."""
        for start in (self.visit_regression, self.linear_posterior):
            if start is not None:
                start.examples = None

    @property
    def regressed(self) -> Tensor | None:
        """Which columns start from a regression on visits (Q,); None if none does."""
        return None if self.visit_regression is None else self.visit_regression.chosen

    def embed_y(self, batch: Batch) -> Tensor | None:
        """Compute the first layer's response to y_o (N×width), for reuse between calls; None if y is not an input."""
        if not self.space.names or self.look is None:
            return None
        y_embedding: Tensor = self.look(self.measurements.features(batch.y, batch.y_mask))
        return y_embedding

    def forward(self, batch: Batch, y_embedding: Tensor | None = None) -> FactorisedDistribution:
        """Compute q(x_u | ·) of a batch that carries its conditional prior; `embed_y` gives `y_embedding`."""
        prior = conditional_prior(batch).distribution
        if not self.space.names:
            return prior
        hidden = self.inner(torch.cat([batch.features(self.space), *self._prior_features(prior)], dim=1))
        y_embedding = self.embed_y(batch) if y_embedding is None else y_embedding
        hidden = torch.relu(hidden if y_embedding is None else hidden + y_embedding)
        parts = hidden.chunk(len(self.networks), dim=1)
        outputs = [network(part) for network, part in zip(self.networks, parts, strict=True)]
        shift, logits = (self._pool_static(out, batch) for out in self._by_column(outputs))
        to_mean, to_log_var = shift.unbind(-1)
        start = prior if self.visit_regression is None else self.visit_regression(prior, batch)
        start = start if self.linear_posterior is None else self.linear_posterior(prior, batch)
        if self.continuous_start == "conditional" or self.linear_posterior is not None:
            start_mean, start_log_var = start.mean, start.var.log()
        else:
            start_mean, start_log_var = self.base_mean, self.base_log_var
        mean = start_mean + to_mean
        # 8·tanh(·/8) is the identity near 0 and keeps variances within e^±8 of their starting values.
        var = (start_log_var + 8.0 * torch.tanh(to_log_var / 8.0)).exp()
        distribution = FactorisedDistribution(mean, var, torch.log_softmax(start.log_prob + logits, dim=-1))
        if self.sees_y:
            distribution = spread(distribution, replace(start, paths=prior.paths), batch, self.space)
        if start.dependence is not None:
            distribution = replace(distribution, dependence=start.dependence)
        if self.dependence is not None:
            measured = batch.y_mask[:, self.measurements.columns("gaussian")]
            distribution = replace(distribution, dependence=self.dependence(batch, measured, prior))
        if self.static_regression is None:
            return distribution
        regression: FactorisedDistribution = self.static_regression(prior, batch)
        return regression.where(self.space.on(mean.device).static, distribution)

    def both(self, batch: Batch, masked: Batch) -> tuple[FactorisedDistribution, FactorisedDistribution]:
        """Compute q(x_u | ·) of a batch, and of the same rows with more covariates masked, in one pass."""
        y_embedding = self.embed_y(batch)
        q_x: FactorisedDistribution = self(
            batch.above(masked), None if y_embedding is None else y_embedding.repeat(2, 1)
        )
        return q_x.halves()

    def _by_column(self, outputs: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Arrange outputs by column, as mean and log variance (N×Q×2) and logits (N×Q×levels), 0 for the other kind."""
        at, first = self.space.on(outputs[0].device), outputs[0]
        shift, logits = (first.new_zeros(len(first), len(self.space.names), k) for k in (2, self.space.max_levels))
        if self.space.continuous:
            shift = shift.index_copy(1, at.continuous, first.unflatten(1, (-1, 2)))
        if self.space.categorical:
            logits = logits.index_copy(1, at.categorical, outputs[-1].unflatten(1, (-1, self.space.max_levels)))
        return shift, logits

    def _prior_features(self, prior: FactorisedDistribution) -> list[Tensor]:
        """Return the conditional prior as network inputs: mean, log variance and level probabilities of each column."""
        c = self.space.on(prior.mean.device).continuous
        levels = self.space.of_levels(prior.log_prob).exp()
        var = prior.var.index_select(1, c)
        return [prior.mean.index_select(1, c), var.clamp_min(1e-6).log(), levels]

    def _pool_static(self, out: Tensor, batch: Batch) -> Tensor:
        """Average the outputs of visit-constant columns over the patient's visits with measurements."""
        if self.static_regression is not None or not any(self.space.static):
            return out
        weight = batch.y_mask.any(1).to(out.dtype) + 1e-6  # visits without any y matter only if there are no others
        weights = out.new_zeros(batch.patients).index_add(0, batch.patient, weight)
        total = out.new_zeros(batch.patients, *out.shape[1:]).index_add(0, batch.patient, out * weight[:, None, None])
        pooled = (total / weights[:, None, None])[batch.patient]
        return torch.where(self.space.on(out.device).static[:, None], pooled, out)
