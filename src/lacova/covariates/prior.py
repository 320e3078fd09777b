"""p_λ(x): what is known of a covariate before its row is looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lacova.batches import Batch
from lacova.covariates.belief import Belief
from lacova.covariates.space import CovariateSpace
from lacova.table import Codec, Table

# A constant column has no spread; its belief still needs some.
MIN_VARIANCE = 1e-6


class FactorisedPrior(nn.Module):
    """Independent normals and categoricals with the observed mean, variance and frequencies (the paper's prior)."""

    mean: Tensor
    var: Tensor
    log_prob: Tensor

    def __init__(self, mean: Tensor, var: Tensor, log_prob: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("var", var)
        self.register_buffer("log_prob", log_prob)

    @classmethod
    def learn(cls, space: CovariateSpace, table: Table) -> FactorisedPrior:
        """From the observed entries of the training rows; a visit-constant value counts once per patient."""
        x, seen = table.x, table.x_mask.to(table.x.dtype)
        if table.patient is not None and any(space.static):
            visits = torch.bincount(table.patient).to(x.dtype)[table.patient]
            weight = torch.where(torch.tensor(space.static), 1.0 / visits[:, None], 1.0).to(x.dtype) * seen
        else:
            weight = seen
        total = weight.sum(0)
        mean = (weight * x).sum(0) / total
        var = ((weight * (x - mean) ** 2).sum(0) / total).clamp_min(MIN_VARIANCE)
        log_prob = torch.zeros(len(space.names), space.max_levels, dtype=x.dtype)
        for q in space.categorical:
            log_prob[q] = -torch.inf
            level = torch.arange(space.levels[q])
            counts = (weight[:, q, None] * (x[:, q, None] == level)).sum(0)
            log_prob[q, : space.levels[q]] = (counts / total[q]).log()
        return cls(mean, var, log_prob)

    def override(self, codec: Codec, knowledge: Mapping[str, object]) -> None:
        """Replace columns by domain knowledge.

        `{"height": (170, 10)}` gives mean and sd in the column's own units; `{"sex": {"f": 0.5, "m": 0.5}}`
        gives a probability for each level.
        """
        for name, value in knowledge.items():
            if name not in codec.space.names:
                raise ValueError(
                    f"covariate_prior names {name!r}, which is not a covariate ({', '.join(codec.space.names)})."
                )
            q = codec.space.names.index(name)
            if name in codec.levels:
                self.log_prob[q, : codec.space.levels[q]] = _level_log_prob(name, codec.levels[name], value)
            else:
                mean, sd = _mean_and_sd(name, value)
                self.mean[q] = (mean - codec.x_shift[q]) / codec.x_scale[q]
                self.var[q] = (sd / codec.x_scale[q]) ** 2

    def forward(self, batch: Batch) -> Belief:
        """The belief about each row of the batch; the same for all of them."""
        n = len(batch)
        return Belief(self.mean.expand(n, -1), self.var.expand(n, -1), self.log_prob.expand(n, -1, -1))


def _mean_and_sd(name: str, value: object) -> tuple[float, float]:
    if not (isinstance(value, tuple | list) and len(value) == 2):
        raise ValueError(f"covariate_prior[{name!r}] is {value!r}; a continuous covariate needs (mean, sd).")
    try:
        mean, sd = float(value[0]), float(value[1])
    except (TypeError, ValueError):
        mean = sd = math.nan
    if not (math.isfinite(mean) and math.isfinite(sd) and sd > 0):
        raise ValueError(
            f"covariate_prior[{name!r}] is {value!r}; mean and sd must be finite numbers, and sd positive."
        )
    return mean, sd


def _level_log_prob(name: str, levels: tuple[object, ...], value: object) -> Tensor:
    if not isinstance(value, Mapping) or set(value) != set(levels):
        raise ValueError(
            f"covariate_prior[{name!r}] is {value!r}; a categorical covariate needs a probability for each of "
            f"{list(levels)}."
        )
    prob = torch.tensor([float(value[level]) for level in levels], dtype=torch.float64)
    if (prob <= 0).any() or abs(float(prob.sum()) - 1.0) > 1e-6:
        raise ValueError(
            f"covariate_prior[{name!r}] must hold positive probabilities that sum to 1, got {dict(value)}."
        )
    return prob.log()
