"""Covariate prior for repeated visits: columns with memory along time.

Each time-varying column is a process in continuous time. A categorical column jumps between levels, with a rate for
each pair of levels (a disease stage rises more often than it falls). By the Markov property, the distribution of a gap
given the rest of its column depends only on the nearest observed visits before and after. A continuous column is an
Ornstein–Uhlenbeck (OU) process, of which a share of the variance lasts, and noise at each visit: a gap depends on all
visits of the patient (covariates/smoothing.py).

The prior of a gap combines this with the mixture across the columns of the same visit. The two conditionals are
multiplied, and the column's marginal, which both contain, is divided out.

This gives each gap by itself. A run of gaps, visits that follow each other without an observed value between them, is a
path (covariates/paths.py): numbers keep the correlation with their neighbours that they have in the process, given what
is observed, and categories stay at their level as probably. Numbers that are missing at the same visit are correlated
as what is new in them at a visit is (covariates/dependence.py), and so are visit-constant numbers of a patient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.covariates import factorised
from lacova.covariates.dependence import NumberDependence, groups_of
from lacova.covariates.linear_model import of_patients, regress, with_intercept
from lacova.covariates.mixture import Mixture
from lacova.covariates.prior import CovariatePrior, FactorisedPrior, JointPrior, conditional_prior
from lacova.covariates.processes import (
    MAX_LEVELS,
    MIN_PROBABILITY,
    Sides,
    fit_number,
    fit_rate,
    fit_rate_matrix,
    single_rate_matrices,
)
from lacova.covariates.scenarios import Scenarios
from lacova.covariates.smoothing import smooth
from lacova.covariates.visits import Visits, clock_of
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution, Paths
from lacova.data.table import Table

MAX_ROWS = 2000  # that the dependence of numbers is fitted to


class Residuals(NamedTuple):
    """Numbers of a table in standard deviations (N×K), NaN where missing; visit-constant ones in one row of a patient.

    Attributes:
        left: less what the patient's other visits say, where a number has a memory.
        alone: less the mean.
        share: of the variance that other visits leave, on average (K,).
    """

    left: Tensor
    alone: Tensor
    share: Tensor


class LongitudinalPrior(CovariatePrior):
    """Mixture across columns × Markov process along visits ÷ marginal, entry by entry.

    Args:
        mixture: p(x) of a visit, across columns.
        marginal: marginal distribution of each column.
        rates: rate at which the correlation of each column decays (Q,), per unit of scaled time; inf where a column has
            no memory.
        time: index of the time column in X, or None to take the number of the visit as its time.
        generators: rate matrix G between the levels of each categorical column (Q×levels×levels), zero elsewhere; None
            for jumps at the column's single rate to a level drawn from the marginal.
        lasting: share of the variance of each continuous column that the process has (Q,), the rest being noise; None
            for all of it.
        paths: whether the gaps of a run depend on each other, and numbers that are missing together. Without, the gaps
            of a patient are independent given what is observed, which closed-form expectations over them need.
    """

    on_host = True
    posterior_start = "conditional"
    rates: Tensor
    lasting: Tensor
    generators: Tensor

    def __init__(
        self, mixture: Mixture, marginal: FactorisedPrior, rates: Tensor, time: int | None,
        generators: Tensor | None = None, lasting: Tensor | None = None, paths: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        columns = enumerate(mixture.space.static)
        self.dependence = NumberDependence(mixture.space) if paths else None
        self.paths = paths and any(not static and q != time for q, static in columns)  # if any may have a memory
        self.space = mixture.space
        self.across = JointPrior(mixture)
        self.marginal = marginal
        self.time = time
        self.register_buffer("rates", rates)
        self.register_buffer("lasting", torch.ones_like(rates) if lasting is None else lasting)
        self.register_buffer("generators", single_rate_matrices(marginal, rates) if generators is None else generators)

    @classmethod
    def learn(
        cls, space: CovariateSpace, table: Table, time: int | None, seed: int, components: int | None = None,
        paths: bool = True,
    ) -> LongitudinalPrior:  # fmt: skip
        """Fit marginals and mixture to the observed entries, and rates to pairs of neighbouring observed visits."""
        marginal = FactorisedPrior.learn(space, table)
        mixture = JointPrior.learn(space, table, seed, components).mixture
        rates = torch.full((len(space.names),), torch.inf, dtype=torch.float64)
        lasting, clock = torch.ones_like(rates), clock_of(table, time)
        for q in range(len(space.names)):
            if q != time and not space.static[q]:
                if space.levels[q]:
                    rates[q] = fit_rate(marginal, table, clock, q)
                else:
                    rates[q], lasting[q] = fit_number(marginal, table, clock, q)
        generators = single_rate_matrices(marginal, rates)
        for q in space.categorical:
            if torch.isfinite(rates[q]) and 1 < space.levels[q] <= MAX_LEVELS:
                single_rate = generators[q, : space.levels[q], : space.levels[q]]
                single_rate.copy_(fit_rate_matrix(single_rate, table, clock, q))
        prior = cls(mixture, marginal, rates, time, generators, lasting, paths)
        if prior.dependence is not None:
            prior._learn_dependence(prior.dependence, table, seed)
        return prior

    @classmethod
    def from_table(
        cls, space: CovariateSpace, table: Table, time: int | None, seed: int, paths: bool = True
    ) -> LongitudinalPrior:
        return cls.learn(space, table, time, seed, paths=paths)

    @classmethod
    def empty(
        cls, space: CovariateSpace, time: int | None, sizes: Mapping[str, int], paths: bool = True
    ) -> LongitudinalPrior:
        rates = torch.zeros(len(space.names), dtype=torch.float64)
        generators = rates.new_zeros(len(rates), space.max_levels, space.max_levels)
        mixture = Mixture.blank(space, sizes["mixture"])
        return cls(mixture, FactorisedPrior.blank(space), rates, time, generators, paths=paths)

    def sizes(self) -> dict[str, int]:
        return self.across.sizes()

    def update(self, completed: Table) -> None:
        """Update marginals and mixture; rates and lasting shares stay as they were fitted."""
        self.marginal.update(completed)
        self.across.update(completed)

    @torch.no_grad()
    def residuals(self, table: Table) -> Residuals:
        """Return what the numbers of a table are, beyond what is said of them elsewhere."""
        columns, clock = torch.tensor(self.space.continuous, dtype=torch.long), clock_of(table, self.time)
        mean, sd = self.marginal.mean.double(), self.marginal.var.double().sqrt()
        mask = table.x_mask[:, columns].cpu()
        values = (table.x.cpu().double()[:, columns] - mean[columns]) / sd[columns]
        left, share = values.clone(), torch.ones(len(columns), dtype=values.dtype)
        memory = torch.isfinite(self.rates[columns]).nonzero()[:, 0]
        if len(memory):
            visits = Visits.of(table, clock, columns[memory])
            along = smooth(
                visits.order, visits.patient, clock, values[:, memory], visits.x_mask, self.rates[columns[memory]],
                self.lasting[columns[memory]],
            )  # fmt: skip
            left[:, memory] = (values[:, memory] - along.mean) / along.var.sqrt()
            known = mask[:, memory].double()
            share[memory] = (along.var * known).sum(0) / known.sum(0).clamp_min(1.0)
        assert table.patient is not None
        patient, number = table.patient.cpu(), torch.arange(len(table))
        first = torch.full((int(patient.max()) + 1,), len(table)).scatter_reduce(0, patient, number, "amin")
        static = torch.tensor(self.space.static)[columns]
        mask = mask & ((first[patient] == number)[:, None] | ~static)
        return Residuals(torch.where(mask, left, torch.nan), torch.where(mask, values, torch.nan), share)

    def _learn_dependence(self, dependence: NumberDependence, table: Table, seed: int) -> None:
        """Fit the dependence of numbers to some of the rows."""
        assert table.patient is not None
        residuals, columns = self.residuals(table), torch.tensor(self.space.continuous, dtype=torch.long)
        categories = with_intercept(*self.space.levels_of(table.x, table.x_mask)).cpu()
        averages = of_patients(categories, table.patient.cpu())
        rows = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))
        for group in groups_of(self.space, self.time):
            place = torch.tensor([self.space.continuous.index(q) for q in group.columns])
            parts = [part[:, place] for part in (residuals.left, residuals.alone)]
            chosen = rows[parts[0][rows].isfinite().any(1)][:MAX_ROWS]
            features = (averages if group.static else categories)[chosen]
            dependence.learn(
                group, *(part[chosen] - features @ regress(part[chosen], features) for part in parts)
            )  # fmt: skip
        dependence.left.copy_(residuals.share)
        dependence.marginal.copy_(self.marginal.var[columns])

    @torch.no_grad()
    def condition(self, table: Table) -> ConditionalPrior:
        """Combine the mixture across columns with the process along visits, entry by entry."""
        space, device = self.space, table.x.device
        marginal = self.marginal.condition(table).distribution.to(torch.float64)
        across = _pool_static(self.across.condition(table).distribution.to(torch.float64), table, space)
        mean, var, log_prob = (t.clone() for t in (across.mean, across.var, across.log_prob))
        clock, memory = clock_of(table, self.time), torch.isfinite(self.rates).nonzero()[:, 0]
        visits = Visits.of(table, clock, memory)
        runs = visits.runs()
        before_gap, after_gap = (torch.zeros_like(table.x_mask, dtype=torch.long, device="cpu") for _ in range(2))
        before_gap[:, memory], after_gap[:, memory] = runs.before, runs.after
        coupling = torch.zeros(table.x.shape, dtype=torch.float64)
        neighbours = visits.neighbours()
        levels = torch.tensor(space.levels)[memory]
        for own in self._alike(levels):
            q, k = memory[own], int(levels[own[0]])
            value, distance = neighbours.value[..., own], neighbours.distance[..., own]
            run = runs.of(own)
            if k:
                log_marginal = marginal.log_prob[:1, q, :k]
                sides = Sides.of(value.long(), distance, self.generators[q, :k, :k], log_marginal[0].exp())
                product = log_prob[:, q, :k] + sides.bridge().clamp_min(MIN_PROBABILITY).log() - log_marginal
                log_prob[:, q, :k] = product.log_softmax(-1)
                if self.paths:
                    coupling[:, q] = sides.share_kept(run)
            else:
                centre, scale = marginal.mean[:, q], marginal.var[:, q]
                standardised = (visits.x[:, own] - centre) / scale.sqrt()
                along = smooth(
                    visits.order, visits.patient, clock, standardised, visits.x_mask[:, own], self.rates[q],
                    self.lasting[q],
                )  # fmt: skip
                along_mean, along_var = along.mean * scale.sqrt(), along.var * scale
                precision = 1.0 / across.var[:, q] + 1.0 / along_var - 1.0 / scale  # positive: along_var ≤ scale
                shift = (across.mean[:, q] - centre) / across.var[:, q] + along_mean / along_var
                mean[:, q], var[:, q] = centre + shift / precision, 1.0 / precision
                if self.paths:
                    strength = along.correlation / (1.0 - along.correlation.square())
                    both = (along_var * along_var.gather(0, run.row)).sqrt()
                    coupling[:, q] = torch.where(run.before != 0, strength / both, 0.0)
        paths = self._paths(before_gap, after_gap, coupling) if self.paths else None
        distribution = FactorisedDistribution(mean, var, log_prob, paths).to(table.x.dtype).to(device)
        return ConditionalPrior(distribution, table.x.new_zeros(len(table)))

    def kl(self, q: FactorisedDistribution, scenarios: Scenarios, batch: Batch) -> Tensor:
        return factorised.kl(q, self._dependent(batch), batch, self.space)

    def draw(self, batch: Batch, draws: int, generator: torch.Generator) -> Tensor:
        return factorised.draw(self._dependent(batch), batch, self.space, draws, generator)

    def log_density(self, x: Tensor, batch: Batch, entries: Tensor | None = None) -> Tensor:
        entries = ~batch.x_mask if entries is None else entries
        return factorised.log_density(self._dependent(batch), x, entries, self.space)

    def _dependent(self, batch: Batch) -> FactorisedDistribution:
        """Return p(x_u | x_o) of a batch with the dependence of its numbers."""
        p = conditional_prior(batch).distribution
        if self.dependence is None:
            return p
        return replace(p, dependence=self.dependence.given(batch, p))

    def _alike(self, levels: Tensor) -> list[Tensor]:
        """Return groups of columns with memory that are computed at once: numbers, pairs of levels, and each other."""
        groups = [(levels == k).nonzero()[:, 0] for k in (0, 2)]
        groups += list((levels * (levels != 2)).nonzero())
        return [group for group in groups if len(group)]

    def _paths(self, before: Tensor, after: Tensor, coupling: Tensor) -> Paths:
        memory = [bool(torch.isfinite(rate)) for rate in self.rates]
        kinds = (any(memory[q] for q in columns) for columns in (self.space.continuous, self.space.categorical))
        return Paths(before, after, coupling, *kinds)


def _pool_static(distribution: FactorisedDistribution, table: Table, space: CovariateSpace) -> FactorisedDistribution:
    """Give each patient one distribution in the visit-constant columns: averages of its rows' moments and log_prob."""
    if not any(space.static) or table.patient is None:
        return distribution
    patient = table.patient.to(distribution.mean.device)
    visits = torch.bincount(patient).to(distribution.mean.dtype)

    def average(values: Tensor) -> Tensor:
        total = values.new_zeros(len(visits), *values.shape[1:]).index_add(0, patient, values)
        return (total / visits.view(-1, *(1 for _ in values.shape[1:])))[patient]

    static = torch.tensor(space.static, device=patient.device)
    pooled = FactorisedDistribution(
        average(distribution.mean), average(distribution.var), average(distribution.log_prob).log_softmax(-1)
    )
    return pooled.where(static.expand_as(distribution.mean), distribution)
