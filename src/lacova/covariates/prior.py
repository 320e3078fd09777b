"""p_λ(x): what is known of a row's missing covariates before its measurements are looked at."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lacova.covariates import factorised
from lacova.covariates.em import fit_mixture, regulariser, run_em
from lacova.covariates.mixture import Mixture
from lacova.covariates.scenarios import Scenarios
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.data.encoder import Table, TableEncoder

# A constant column has no spread; its distribution still needs some.
MIN_VARIANCE = 1e-6


class CovariatePrior(nn.Module, ABC):
    """p_λ(x) and its conditionals p_λ(x_u | x_o). A table is prepared once; batches then carry what it says of them."""

    space: CovariateSpace

    @abstractmethod
    def condition(self, table: Table) -> ConditionalPrior:
        """p(x_u | x_o) of every row."""

    @abstractmethod
    def update(self, completed: Table) -> None:
        """Move λ towards making the completed covariates of the training rows more likely."""

    def kl(self, q: FactorisedDistribution, scenarios: Scenarios, batch: Batch) -> Tensor:
        """KL[q(x_u) ‖ p(x_u | x_o)] over the batch's unknowns: analytic, the prior being factorised given x_o."""
        return factorised.kl(q, conditional_prior(batch).distribution, batch, self.space)

    def draw(self, batch: Batch, draws: int, generator: torch.Generator) -> Tensor:
        """Completed covariates (draws×N×Q) from p(x_u | x_o)."""
        return factorised.draw(conditional_prior(batch).distribution, batch, self.space, draws, generator)

    def log_density(self, x: Tensor, batch: Batch, entries: Tensor | None = None) -> Tensor:
        """log p(x_u | x_o) of completed rows (draws×N×Q), over all gaps of a row or those in `entries`: draws×N."""
        return factorised.log_density(
            conditional_prior(batch).distribution, x, ~batch.x_mask if entries is None else entries, self.space
        )


def conditional_prior(batch: Batch) -> ConditionalPrior:
    """The prepared prior of a batch."""
    if batch.conditional_prior is None:
        raise ValueError(
            "this table has not been prepared: call CovariatePrior.prepare and keep its result in Table.conditional_prior."
        )
    return batch.conditional_prior


class FactorisedPrior(CovariatePrior):
    """Independent normals and categoricals with the observed mean, variance and frequencies (the paper's prior)."""

    mean: Tensor
    var: Tensor
    log_prob: Tensor

    def __init__(self, space: CovariateSpace, mean: Tensor, var: Tensor, log_prob: Tensor) -> None:
        super().__init__()
        self.space = space
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
        return cls(space, mean, var, log_prob)

    @classmethod
    def blank(cls, space: CovariateSpace) -> FactorisedPrior:
        """Of the right shape, to read stored numbers into."""
        columns = len(space.names)
        return cls(space, torch.zeros(columns), torch.ones(columns), torch.zeros(columns, space.max_levels))

    def update(self, completed: Table) -> None:
        self.load_state_dict(FactorisedPrior.learn(self.space, completed).state_dict())

    def override(self, encoder: TableEncoder, knowledge: Mapping[str, object]) -> None:
        """Replace columns by domain knowledge.

        `{"height": (170, 10)}` gives mean and sd in the column's own units; `{"sex": {"f": 0.5, "m": 0.5}}`
        gives a probability for each level.
        """
        for name, value in knowledge.items():
            if name not in encoder.space.names:
                raise ValueError(
                    f"covariate_prior names {name!r}, which is not a covariate ({', '.join(encoder.space.names)})."
                )
            q = encoder.space.names.index(name)
            if name in encoder.levels:
                self.log_prob[q, : encoder.space.levels[q]] = _level_log_prob(name, encoder.levels[name], value)
            else:
                mean, sd = _mean_and_sd(name, value)
                self.mean[q] = (mean - encoder.x_shift[q]) / encoder.x_scale[q]
                self.var[q] = (sd / encoder.x_scale[q]) ** 2

    def condition(self, table: Table) -> ConditionalPrior:
        n = len(table)
        distribution = FactorisedDistribution(
            self.mean.repeat(n, 1), self.var.repeat(n, 1), self.log_prob.repeat(n, 1, 1)
        )
        return ConditionalPrior(distribution.to(table.x.device), table.x.new_zeros(n))


class JointPrior(CovariatePrior):
    """A mixture over all covariates, fitted to the incomplete training rows; rows are independent."""

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        self.space = mixture.space
        self.mixture = mixture

    @classmethod
    def learn(cls, space: CovariateSpace, table: Table, seed: int, components: int | None = None) -> JointPrior:
        return cls(fit_mixture(space, table.x, table.x_mask, components, seed, group=table.patient))

    def update(self, completed: Table) -> None:
        """Two iterations of EM from the present mixture, whose Q-function is E_q log p(x) by one draw per row."""
        x, mask = completed.x.double(), completed.x_mask
        prior = regulariser(self.space, x, mask)
        self.mixture.load_state_dict(run_em(self.mixture, x, mask, prior, iterations=2).mixture.state_dict())

    @torch.no_grad()
    def condition(self, table: Table) -> ConditionalPrior:
        x, mask = table.x.to(self.mixture.mean), table.x_mask.to(self.mixture.mean.device)
        parts = [self.mixture.condition(x[r], mask[r]) for r in torch.arange(len(x)).split(self.mixture.chunk())]
        each = [self.mixture.distribution(part) for part in parts]
        distribution = FactorisedDistribution(
            *(torch.cat([getattr(b, name) for b in each]) for name in ("mean", "var", "log_prob"))
        )
        prepared = ConditionalPrior(distribution, torch.cat([part.log_marginal for part in parts]))
        return prepared.to(table.x.dtype).to(table.x.device)

    def kl(self, q: FactorisedDistribution, scenarios: Scenarios, batch: Batch) -> Tensor:
        """E_q[log q(x_u)] − E_q[log p(x_u, x_o)] + log p(x_o): the first analytic, the second over the scenarios."""
        gaps = (~batch.x_mask.all(1)).to(batch.x.dtype)
        density = self.mixture.log_density(scenarios.x.to(self.mixture.mean.dtype)).to(batch.x.dtype)
        cross = (density * scenarios.row_weight * gaps[scenarios.row]).sum()
        return (
            factorised.negative_entropy(q, batch, self.space)
            - cross
            + (conditional_prior(batch).log_marginal * gaps).sum()
        )

    def draw(self, batch: Batch, draws: int, generator: torch.Generator) -> Tensor:
        x = batch.x.to(self.mixture.mean.dtype)
        law = self.mixture.condition(x, batch.x_mask)
        return self.mixture.draw(law, x, batch.x_mask, draws, generator).to(batch.x.dtype)

    def log_density(self, x: Tensor, batch: Batch, entries: Tensor | None = None) -> Tensor:
        """Of all gaps of a row at once: rows by themselves have no entries in common."""
        density = self.mixture.log_density(x.to(self.mixture.mean.dtype)).to(x.dtype)
        return torch.where(batch.x_mask.all(1), 0.0, density - conditional_prior(batch).log_marginal)


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
