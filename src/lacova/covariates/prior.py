"""Covariate priors p_λ(x): the distribution of a row's covariates, without its measurements.

`FactorisedPrior` treats columns as independent; `JointPrior` is a mixture over all columns of a row.
`LongitudinalPrior` (covariates/longitudinal.py) adds the memory of columns along a patient's visits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from lacova.covariates import factorised
from lacova.covariates.em import fit_mixture, regulariser, run_em
from lacova.covariates.mixture import Mixture
from lacova.covariates.scenarios import Scenarios
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder

# Lower bound on a column's variance, for constant columns.
MIN_VARIANCE = 1e-6
MIN_COUNT = 0.5  # rows with a level


class CovariatePrior(nn.Module, ABC):
    """A distribution p_λ(x) of the covariates, with its conditionals p_λ(x_u | x_o): the protocol of a covariate prior.

    A subclass sets `space` and implements `from_table`, `empty`, `condition` and `update`. λ should be buffers, not
    parameters: it moves by `update`, not by gradients.

    - `from_table(space, table, time, seed)` fits the prior to the training rows. `empty(space, time, sizes)` makes one
      of the right shape, to load a saved state into; `sizes()` names the sizes that it needs.
    - `condition(table)` is called once per table. Its result, a `ConditionalPrior`, is stored in
      `Table.conditional_prior` and travels with each batch; the methods below read it from there.
    - `update(completed)` is called every `prior_every` epochs, a fit option, with the training rows and
      their gaps filled by draws from q(x_u | ·). `condition` follows.
    - `kl(q, scenarios, batch)`, `draw(batch, ...)` and `log_density(x, batch, ...)` default to the factorised
      distribution that `condition` returned: KL term of the objective, draws for prediction, and density for
      importance weights. A prior whose missing entries are dependent given x_o overrides all three, and they must
      agree: E_q[log q(x_u) − log_density] is the KL, and `draw` samples from exp(log_density).

    Attributes:
        space: layout of X.
        on_host: whether `condition` runs on the host even where the model is on a GPU: many small operations.
        paths: whether the gaps of a patient's visits may depend on each other, given what is observed.
        posterior_start: where the normals of q(x_u | ·) start: at the "marginal" distribution of their column, which
            lets them leave a conditional prior with several modes, or at the "conditional" prior itself.
    """

    part_kind: ClassVar[str] = "covariate prior"
    on_host: ClassVar[bool] = False
    paths: bool = False
    posterior_start: ClassVar[Literal["marginal", "conditional"]] = "marginal"
    space: CovariateSpace

    @classmethod
    @abstractmethod
    def from_table(cls, space: CovariateSpace, table: Table, time: int | None, seed: int) -> CovariatePrior:
        """Fit the prior to the observed covariates of the training rows.

        Further keyword arguments, with defaults, are the prior's configuration, which is saved with the model.

        Args:
            space: layout of X.
            table: the rows.
            time: index of the time column, if there is one.
            seed: of any random numbers.
        """

    @classmethod
    @abstractmethod
    def empty(cls, space: CovariateSpace, time: int | None, sizes: Mapping[str, int]) -> CovariatePrior:
        """Return a prior of the right shape, to load a stored state into; `sizes` are those that `sizes` returned."""

    def sizes(self) -> dict[str, int]:
        """Return by name the sizes of the state that depend on the training rows; by default, none."""
        return {}

    @abstractmethod
    def condition(self, table: Table) -> ConditionalPrior:
        """Compute p(x_u | x_o) of every row of a table.

        Rows of one patient may inform each other. Values of `table.x` where `table.x_mask` is False must not be used.
        The result has the table's precision and device; a visit-constant column has the same distribution in all rows
        of a patient.
        """

    @abstractmethod
    def update(self, completed: Table) -> None:
        """Update λ to make the completed covariates of the training rows more likely."""

    def kl(self, q: FactorisedDistribution, scenarios: Scenarios, batch: Batch) -> Tensor:
        """Compute KL[q(x_u) ‖ p(x_u | x_o)], summed over the batch's unknowns (a scalar).

        In closed form here, for a prior that is factorised given x_o. A subclass may instead average over
        `scenarios`, the completions of the batch under q with their weights.
        """
        return factorised.kl(q, conditional_prior(batch).distribution, batch, self.space)

    def draw(self, batch: Batch, draws: int, generator: torch.Generator) -> Tensor:
        """Draw completed covariates (draws×N×Q) from p(x_u | x_o)."""
        return factorised.draw(conditional_prior(batch).distribution, batch, self.space, draws, generator)

    def log_density(self, x: Tensor, batch: Batch, entries: Tensor | None = None) -> Tensor:
        """Compute log p(x_u | x_o) (draws×N) of completed rows (draws×N×Q).

        The sum is over the gaps of each row, or over those in the mask `entries` (N×Q), which counts a visit-constant
        gap in one row of its patient only.
        """
        return factorised.log_density(
            conditional_prior(batch).distribution, x, ~batch.x_mask if entries is None else entries, self.space
        )


def conditional_prior(batch: Batch) -> ConditionalPrior:
    """Return the conditional prior that a batch carries."""
    if batch.conditional_prior is None:
        raise ValueError(
            "this table has no conditional prior: call CovariatePrior.condition and keep its result in "
            "Table.conditional_prior."
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
        """Fit to the observed entries of the training rows; a visit-constant value counts once per patient."""
        x, observed = table.x, table.x_mask.to(table.x.dtype)
        if table.patient is not None and any(space.static):
            visits = torch.bincount(table.patient).to(x.dtype)[table.patient]
            weight = torch.where(torch.tensor(space.static), 1.0 / visits[:, None], 1.0).to(x.dtype) * observed
        else:
            weight = observed
        total = weight.sum(0)
        mean = (weight * x).sum(0) / total
        var = ((weight * (x - mean) ** 2).sum(0) / total).clamp_min(MIN_VARIANCE)
        log_prob = torch.zeros(len(space.names), space.max_levels, dtype=x.dtype)
        for q in space.categorical:
            log_prob[q] = -torch.inf
            counts = (weight[:, q, None] * (x[:, q, None] == torch.arange(space.levels[q]))).sum(0)
            probability = counts / total[q]
            if counts.min() < MIN_COUNT:  # a bootstrap sample may lack a level
                probability = counts.clamp_min(MIN_COUNT) / counts.clamp_min(MIN_COUNT).sum()
            log_prob[q, : space.levels[q]] = probability.log()
        return cls(space, mean, var, log_prob)

    @classmethod
    def from_table(cls, space: CovariateSpace, table: Table, time: int | None, seed: int) -> FactorisedPrior:
        return cls.learn(space, table)

    @classmethod
    def empty(cls, space: CovariateSpace, time: int | None, sizes: Mapping[str, int]) -> FactorisedPrior:
        return cls.blank(space)

    @classmethod
    def blank(cls, space: CovariateSpace) -> FactorisedPrior:
        """Return a prior of the right shape, to load a stored state into."""
        columns = len(space.names)
        return cls(space, torch.zeros(columns), torch.ones(columns), torch.zeros(columns, space.max_levels))

    def update(self, completed: Table) -> None:
        """Fit anew to the completed rows; columns without any value there stay as they are."""
        learnt, known = FactorisedPrior.learn(self.space, completed), completed.x_mask.any(0).cpu()
        for own, new in ((self.mean, learnt.mean), (self.var, learnt.var), (self.log_prob, learnt.log_prob)):
            own[known] = new[known]

    def override(self, encoder: TableEncoder, knowledge: Mapping[str, object]) -> None:
        """Replace what was learnt of some columns by domain knowledge.

        `{"height": (170, 10)}` sets mean and standard deviation, in the column's own units.
        `{"sex": {"f": 0.5, "m": 0.5}}` sets the probability of each level.
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
        """Return the same distribution for every row: columns are independent."""
        n = len(table)
        distribution = FactorisedDistribution(
            self.mean.repeat(n, 1), self.var.repeat(n, 1), self.log_prob.repeat(n, 1, 1)
        )
        return ConditionalPrior(distribution.to(table.x.device), table.x.new_zeros(n))


class JointPrior(CovariatePrior):
    """A mixture over all covariates of a row, fitted to the incomplete training rows; rows are independent."""

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        self.space = mixture.space
        self.mixture = mixture

    @classmethod
    def learn(cls, space: CovariateSpace, table: Table, seed: int, components: int | None = None) -> JointPrior:
        """Fit the mixture to the training rows; None chooses the number of components."""
        return cls(fit_mixture(space, table.x, table.x_mask, components, seed, group=table.patient))

    @classmethod
    def from_table(cls, space: CovariateSpace, table: Table, time: int | None, seed: int) -> JointPrior:
        return cls.learn(space, table, seed)

    @classmethod
    def empty(cls, space: CovariateSpace, time: int | None, sizes: Mapping[str, int]) -> JointPrior:
        return cls(Mixture.blank(space, sizes["mixture"]))

    def sizes(self) -> dict[str, int]:
        return {"mixture": len(self.mixture)}

    def update(self, completed: Table) -> None:
        """Run two iterations of EM from the present mixture; its objective is E_q[log p(x)], one draw per row."""
        x, mask = completed.x.double(), completed.x_mask
        prior = regulariser(self.space, x, mask)
        self.mixture.load_state_dict(run_em(self.mixture, x, mask, prior, iterations=2).mixture.state_dict())

    @torch.no_grad()
    def condition(self, table: Table) -> ConditionalPrior:
        """Compute the marginals of p(x_u | x_o) and log p(x_o) of each row, in chunks of rows."""
        x, mask = table.x.to(self.mixture.mean), table.x_mask.to(self.mixture.mean.device)
        chunks = [self.mixture.condition(x[r], mask[r]) for r in torch.arange(len(x)).split(self.mixture.chunk())]
        marginals = [self.mixture.distribution(chunk) for chunk in chunks]
        mean, var, log_prob = (
            torch.cat([getattr(marginal, name) for marginal in marginals]) for name in ("mean", "var", "log_prob")
        )
        distribution = FactorisedDistribution(mean, var, log_prob)
        conditional = ConditionalPrior(distribution, torch.cat([chunk.log_marginal for chunk in chunks]))
        return conditional.to(table.x.dtype).to(table.x.device)

    def kl(self, q: FactorisedDistribution, scenarios: Scenarios, batch: Batch) -> Tensor:
        """Compute E_q[log q(x_u)] − E_q[log p(x_u, x_o)] + log p(x_o).

        The first term is in closed form; the second is an average over the scenarios.
        """
        has_gaps = (~batch.x_mask.all(1)).to(batch.x.dtype)
        density = self.mixture.log_density(scenarios.x.to(self.mixture.mean.dtype)).to(batch.x.dtype)
        cross = (density * scenarios.row_weight * has_gaps[scenarios.row]).sum()
        return (
            factorised.negative_entropy(q, batch, self.space)
            - cross
            + (conditional_prior(batch).log_marginal * has_gaps).sum()
        )

    def draw(self, batch: Batch, draws: int, generator: torch.Generator) -> Tensor:
        """Draw the missing entries of each row jointly, with their dependence: draws×N×Q."""
        x = batch.x.to(self.mixture.mean.dtype)
        conditional = self.mixture.condition(x, batch.x_mask)
        return self.mixture.draw(conditional, x, batch.x_mask, draws, generator).to(batch.x.dtype)

    def log_density(self, x: Tensor, batch: Batch, entries: Tensor | None = None) -> Tensor:
        """Compute log p(x_u | x_o) = log p(x) − log p(x_o) of whole rows.

        `entries` is ignored: rows are independent units here, so no two rows share an unknown.
        """
        density = self.mixture.log_density(x.to(self.mixture.mean.dtype)).to(x.dtype)
        return torch.where(batch.x_mask.all(1), 0.0, density - conditional_prior(batch).log_marginal)


def _mean_and_sd(name: str, value: object) -> tuple[float, float]:
    """Check and return the (mean, sd) that a user stated for a continuous column."""
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
    """Check the probabilities that a user stated for the levels of a categorical column; return their logs."""
    if not isinstance(value, Mapping) or set(value) != set(levels):
        raise ValueError(
            f"covariate_prior[{name!r}] is {value!r}; a categorical covariate needs a probability for each of "
            f"{list(levels)}."
        )
    probs = torch.tensor([float(value[level]) for level in levels], dtype=torch.float64)
    if (probs <= 0).any() or abs(float(probs.sum()) - 1.0) > 1e-6:
        raise ValueError(
            f"covariate_prior[{name!r}] must hold positive probabilities that sum to 1, got {dict(value)}."
        )
    return probs.log()
