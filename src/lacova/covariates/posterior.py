"""q_φ(x_u | ·): an amortised distribution about the covariates that a row lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from lacova.covariates.prior import FactorisedPrior, conditional_prior
from lacova.covariates.static_regression import StaticRegression
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.measurement_space import MeasurementSpace
from lacova.nn.networks import mlp


class AmortisedPosterior(nn.Module):
    """Normal and categorical distributions from networks that see values, masks, and what the prior says given x_o.

    Numbers and categories have a network each: the gradients of a number that is known within a hundredth of its spread
    are so much larger than those of a category that one network would never learn the category.

    Categorical probabilities start at the prior's given x_o. So do normals where `continuous_start` is "conditional"; with
    "marginal" they start at the column's overall law, which lets them leave a prior with several modes.

    Args:
        space: layout of X.
        measurements: their layout, or D where all are Gaussian, if the network also sees y_o, so that it gives
            q(x_u | y_o, x_o); 0 for q(x_u | x_o).
        marginal: overall law of each column.
        continuous_start: "marginal" or "conditional".
        hidden: widths of the network's hidden layers.
        static_regression: answers for the visit-constant columns instead of the networks, if given.
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
        seen = self.measurements.width
        self.sees_y = seen > 0
        self.continuous_start = continuous_start
        self.static_regression = static_regression
        columns = len(space.names)
        prior_features = 2 * len(space.continuous) + sum(space.levels)
        inputs = space.width + columns + prior_features
        self.register_buffer("base_mean", marginal.mean.clone())
        self.register_buffer("base_log_var", marginal.var.log())
        if not columns:
            return  # nothing to have distributions about
        wanted = ((space.continuous, 2), (space.categorical, space.max_levels))
        outputs = [len(kind) * each for kind, each in wanted if kind]
        self.inner = nn.Linear(inputs, len(outputs) * hidden[0])  # the first layers of all networks, side by side
        self.look = nn.Linear(seen, len(outputs) * hidden[0], bias=False) if seen else None
        reach = (inputs + seen) ** -0.5  # both start as the halves of one layer would
        for layer in (self.inner, self.look):
            for parameter in () if layer is None else layer.parameters():
                nn.init.uniform_(parameter, -reach, reach)
        self.networks = nn.ModuleList(mlp([*hidden, width]) for width in outputs)

    def embed_y(self, batch: Batch) -> Tensor | None:
        """What the first layer makes of y_o, which does not depend on x: to be shared between calls; None if unseen."""
        if not self.space.names or self.look is None:
            return None
        y_embedding: Tensor = self.look(self.measurements.features(batch.y, batch.y_mask))
        return y_embedding

    def forward(self, batch: Batch, y_embedding: Tensor | None = None) -> FactorisedDistribution:
        prior = conditional_prior(batch).distribution
        if not self.space.names:
            return prior
        hidden = self.inner(
            torch.cat([self.space.features(batch.x, batch.x_mask), *self._prior_features(prior)], dim=1)
        )
        y_embedding = self.embed_y(batch) if y_embedding is None else y_embedding
        seen = torch.relu(hidden if y_embedding is None else hidden + y_embedding).chunk(len(self.networks), dim=1)
        found = [network(part) for network, part in zip(self.networks, seen, strict=True)]
        out = self._pool_static(self._by_column(found), batch)
        if self.continuous_start == "conditional":
            start_mean, start_log_var = prior.mean, prior.var.log()
        else:
            start_mean, start_log_var = self.base_mean, self.base_log_var
        mean = start_mean + out[..., 0]
        # 8·tanh(·/8) is the identity near 0 and keeps variances within e^±8 of where they start.
        var = (start_log_var + 8.0 * torch.tanh(out[..., 1] / 8.0)).exp()
        distribution = FactorisedDistribution(mean, var, torch.log_softmax(prior.log_prob + out[..., 2:], dim=-1))
        if self.static_regression is None:
            return distribution
        read: FactorisedDistribution = self.static_regression(prior, batch)
        return read.where(self.space.on(out.device).static, distribution)

    def _by_column(self, found: list[Tensor]) -> Tensor:
        """Of every column its mean, log variance and logits (N×Q×(2+levels)); 0 where it has none."""
        space, first = self.space.on(found[0].device), found[0]
        out = first.new_zeros(len(first), len(self.space.names), 2 + self.space.max_levels)
        if self.space.continuous:
            out[:, space.continuous, :2] = first.unflatten(1, (-1, 2))
        if self.space.categorical:
            out[:, space.categorical, 2:] = found[-1].unflatten(1, (-1, self.space.max_levels))
        return out

    def _prior_features(self, prior: FactorisedDistribution) -> list[Tensor]:
        c = self.space.on(prior.mean.device).continuous
        levels = [prior.log_prob[:, q, : self.space.levels[q]].exp() for q in self.space.categorical]
        return [prior.mean[:, c], prior.var[:, c].clamp_min(1e-6).log(), *levels]

    def _pool_static(self, out: Tensor, batch: Batch) -> Tensor:
        """One posterior per patient in the visit-constant columns: the average over its informative visits."""
        if self.static_regression is not None or not any(self.space.static):
            return out
        seen = batch.y_mask.any(1).to(out.dtype) + 1e-6  # visits without any y count only where there is no other
        visits = out.new_zeros(batch.patients).index_add(0, batch.patient, seen)
        total = out.new_zeros(batch.patients, *out.shape[1:]).index_add(0, batch.patient, out * seen[:, None, None])
        pooled = (total / visits[:, None, None])[batch.patient]
        return torch.where(self.space.on(out.device).static[:, None], pooled, out)
