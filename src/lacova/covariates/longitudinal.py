"""Covariate prior for repeated visits: columns with memory along time.

Each time-varying column is a Markov process in continuous time. A categorical column jumps between levels, with a rate
for each pair of levels (a disease stage rises more often than it falls). A continuous column is an Ornstein–Uhlenbeck
(OU) process. By the Markov property, the distribution of a gap given the rest of its column depends only on the nearest
observed visits before and after.

The prior of a gap combines this with the mixture across the columns of the same visit. The two conditionals are
multiplied, and the column's marginal, which both contain, is divided out.

This gives each gap by itself. A run of gaps, visits that follow each other without an observed value between them, is a
path (covariates/paths.py): numbers keep the precision between neighbours that they have in the process, and categories
stay at their level as probably.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.covariates.mixture import Mixture
from lacova.covariates.prior import CovariatePrior, FactorisedPrior, JointPrior
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution, Paths
from lacova.data.table import Table

RATE_GRID = torch.logspace(-4, 4, 161, dtype=torch.float64)  # rates per mean gap between visits
MAX_PAIRS = 5_000  # pairs of neighbouring visits that rates between levels are fitted to
MAX_LEVELS = 12  # columns with more levels keep a single rate
LOG_RATE_PRECISION = 1.0  # precision of the normal prior of a log rate, centred at the single-rate model
MIN_PROBABILITY = 1e-12  # keeps transition probabilities away from zero
MIN_LOSS = 1e-6  # least 1 − correlation of two visits, such as those at the same time


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
        paths: whether the gaps of a run depend on each other. Without paths, the gaps of a patient are independent
            given what is observed, which closed-form expectations over them need.
    """

    on_host = True
    posterior_start = "conditional"
    rates: Tensor
    generators: Tensor

    def __init__(
        self, mixture: Mixture, marginal: FactorisedPrior, rates: Tensor, time: int | None,
        generators: Tensor | None = None, paths: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        columns = enumerate(mixture.space.static)
        self.paths = paths and any(not static and q != time for q, static in columns)  # if any may have a memory
        self.space = mixture.space
        self.across = JointPrior(mixture)
        self.marginal = marginal
        self.time = time
        self.register_buffer("rates", rates)
        self.register_buffer("generators", _single_rate_matrices(marginal, rates) if generators is None else generators)

    @classmethod
    def learn(
        cls, space: CovariateSpace, table: Table, time: int | None, seed: int, components: int | None = None,
        paths: bool = True,
    ) -> LongitudinalPrior:  # fmt: skip
        """Fit marginals and mixture to the observed entries, and rates to pairs of neighbouring observed visits."""
        marginal = FactorisedPrior.learn(space, table)
        mixture = JointPrior.learn(space, table, seed, components).mixture
        rates = torch.full((len(space.names),), torch.inf, dtype=torch.float64)
        clock = _clock(table, time)
        for q in range(len(space.names)):
            if q != time and not space.static[q]:
                rates[q] = _fit_rate(space, marginal, table, clock, q)
        generators = _single_rate_matrices(marginal, rates)
        for q in space.categorical:
            if torch.isfinite(rates[q]) and 1 < space.levels[q] <= MAX_LEVELS:
                single_rate = generators[q, : space.levels[q], : space.levels[q]]
                single_rate.copy_(_fit_rate_matrix(single_rate, table, clock, q))
        return cls(mixture, marginal, rates, time, generators, paths)

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
        return cls(mixture, FactorisedPrior.blank(space), rates, time, generators, paths)

    def sizes(self) -> dict[str, int]:
        return self.across.sizes()

    def update(self, completed: Table) -> None:
        """Update marginals and mixture; the rates stay as they were fitted."""
        self.marginal.update(completed)
        self.across.update(completed)

    @torch.no_grad()
    def condition(self, table: Table) -> ConditionalPrior:
        """Combine the mixture across columns with the process along visits, entry by entry."""
        space, device = self.space, table.x.device
        marginal = self.marginal.condition(table).distribution.to(torch.float64)
        across = _pool_static(self.across.condition(table).distribution.to(torch.float64), table, space)
        mean, var, log_prob = (t.clone() for t in (across.mean, across.var, across.log_prob))
        clock = _clock(table, self.time)
        before_gap, after_gap = (torch.zeros_like(table.x_mask, dtype=torch.long, device="cpu") for _ in range(2))
        coupling = torch.zeros(table.x.shape, dtype=torch.float64)
        for q in range(len(space.names)):
            if not torch.isfinite(self.rates[q]):
                continue
            before, after = _neighbours(table, clock, q)
            values = torch.stack([before.value, after.value], 1)
            distance = torch.stack([before.distance, after.distance], 1)
            if levels := space.levels[q]:
                log_marginal = marginal.log_prob[:, q, :levels]
                rate_matrix = self.generators[q, :levels, :levels]
                along = _bridge_levels(values, distance, rate_matrix, log_marginal[0].exp())
                product = log_prob[:, q, :levels] + along.clamp_min(MIN_PROBABILITY).log() - log_marginal
                log_prob[:, q, :levels] = product.log_softmax(-1)
                if self.paths:
                    run = _runs(table, clock, q)
                    before_gap[:, q], after_gap[:, q] = run.before, run.after
                    coupling[:, q] = _share_kept(values, distance, run, rate_matrix, log_marginal[0].exp())
            else:
                correlation = torch.exp(-self.rates[q] * distance)
                centre, scale = marginal.mean[:, q], marginal.var[:, q]
                along_mean, along_var = _bridge_normal(values - centre[:, None], correlation, scale)
                precision = 1.0 / across.var[:, q] + 1.0 / along_var - 1.0 / scale  # positive: along_var ≤ scale
                shift = (across.mean[:, q] - centre) / across.var[:, q] + along_mean / along_var
                mean[:, q], var[:, q] = centre + shift / precision, 1.0 / precision
                if self.paths:
                    run = _runs(table, clock, q)
                    before_gap[:, q], after_gap[:, q] = run.before, run.after
                    coupling[:, q] = torch.where(run.before != 0, _coupling(self.rates[q] * run.distance) / scale, 0.0)
        paths = self._paths(before_gap, after_gap, coupling) if self.paths else None
        distribution = FactorisedDistribution(mean, var, log_prob, paths).to(table.x.dtype).to(device)
        return ConditionalPrior(distribution, table.x.new_zeros(len(table)))

    def _paths(self, before: Tensor, after: Tensor, coupling: Tensor) -> Paths:
        memory = [bool(torch.isfinite(rate)) for rate in self.rates]
        kinds = (any(memory[q] for q in columns) for columns in (self.space.continuous, self.space.categorical))
        return Paths(before, after, coupling, *kinds)


def _clock(table: Table, time: int | None) -> Tensor:
    """Return the time of each row (N,), NaN where missing; without a time column, the number of the visit."""
    assert table.patient is not None
    if time is not None:
        return torch.where(table.x_mask[:, time].cpu(), table.x[:, time].cpu().double(), math.nan)
    order = torch.argsort(table.patient, stable=True)
    counts = torch.bincount(table.patient)
    visit = torch.empty(len(table), dtype=torch.float64)
    visit[order] = (torch.arange(len(table)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)).double()
    return visit


class _Neighbour(NamedTuple):
    """The nearest visit, on one side of each row, of the same patient at which a column is observed.

    Attributes:
        value: value of the column there (N,); 0 where there is no such visit.
        distance: distance in time (N,); inf where there is no such visit or the row's own time is missing.
    """

    value: Tensor
    distance: Tensor


def _neighbours(table: Table, clock: Tensor, q: int) -> tuple[_Neighbour, _Neighbour]:
    """Find each row's neighbours before and after in column q."""
    assert table.patient is not None
    order = _in_time(table, clock)
    x, mask = table.x[:, q].cpu().double(), table.x_mask[:, q].cpu()
    sides = []
    for rows in (order, order.flip(0)):  # the last observed visit so far, forwards and backwards in time
        patient, time, observed = table.patient[rows], clock[rows], mask[rows]
        place = torch.where(observed, torch.arange(len(rows)), -1)
        last = torch.cat([torch.tensor([-1]), place.cummax(0).values[:-1]]) if len(rows) else place
        exists = (last >= 0) & (patient[last.clamp_min(0)] == patient)
        value, distance = torch.zeros(len(clock)).double(), torch.full((len(clock),), torch.inf).double()
        value[rows] = torch.where(exists, x[rows][last.clamp_min(0)], 0.0)
        distance[rows] = torch.where(exists, (time - time[last.clamp_min(0)]).abs(), torch.inf)
        sides.append(_Neighbour(value, distance))
    return sides[0], sides[1]


class _Runs(NamedTuple):
    """The runs of gaps of a column: visits of a patient that follow each other in time, all without a value.

    Attributes:
        before, after: as in `Paths` (N,).
        distance: distance in time to the gap before (N,); 0 where there is none.
        row: row of the gap before (N,); the row itself where there is none.
    """

    before: Tensor
    after: Tensor
    distance: Tensor
    row: Tensor


def _runs(table: Table, clock: Tensor, q: int) -> _Runs:
    """Find the runs of gaps of column q. Rows of unknown time are in none."""
    assert table.patient is not None
    order = _in_time(table, clock)
    place = torch.empty_like(table.patient)
    place[torch.argsort(table.patient, stable=True)] = torch.arange(len(place))
    patient, gap = table.patient[order], ~table.x_mask[:, q].cpu()[order]
    pair = gap[1:] & gap[:-1] & (patient[1:] == patient[:-1])
    first, second = order[:-1][pair], order[1:][pair]
    before, after, distance = torch.zeros_like(place), torch.zeros_like(place), torch.zeros_like(clock)
    before[second], after[first] = place[first] - place[second], place[second] - place[first]
    distance[second] = clock[second] - clock[first]
    row = torch.arange(len(place))
    row[second] = first
    return _Runs(before, after, distance, row)


def _in_time(table: Table, clock: Tensor) -> Tensor:
    """Return the rows of known time, by patient, then time."""
    assert table.patient is not None
    rows = (~clock.isnan()).nonzero()[:, 0]
    by_time = rows[torch.argsort(clock[rows], stable=True)]
    return by_time[torch.argsort(table.patient[by_time], stable=True)]


def _coupling(decay: Tensor) -> Tensor:
    """Compute c/(1 − c²), c = exp(−decay): minus the precision between two visits of an OU process of variance 1.

    It is the same whatever else is observed, before or after them.
    """
    decay = decay.clamp_min(MIN_LOSS)
    return torch.exp(-decay) / -torch.expm1(-2.0 * decay)


def _share_kept(values: Tensor, distance: Tensor, run: _Runs, rate_matrix: Tensor, marginal: Tensor) -> Tensor:
    """Return r (N,) with which a path stays at its level as probably as the process does, given the visits around.

    Two neighbours a and b of a run have the joint probabilities J(a, b) ∝ P(before → a) P(a → b) P(b → after). With
    their marginals, r = 1 stays as often as can be, and r = 0 as often as independent levels do.
    """
    linked = (run.before != 0).nonzero()[:, 0]
    one_side = torch.full_like(distance, torch.inf)
    one_side[:, 0] = distance[:, 0]
    start = _bridge_levels(values, one_side, rate_matrix, marginal)[run.row[linked]]  # p(a | before)
    flat = torch.full_like(marginal, 1.0 / len(marginal))
    other_side = torch.full_like(distance, torch.inf)
    other_side[:, 1] = distance[:, 1]
    end = _bridge_levels(values, other_side, rate_matrix, flat)[linked]  # in proportion to P(b → after)
    gap, index = torch.unique(run.distance[linked], return_inverse=True)
    joint = start[:, :, None] * _transition(rate_matrix, gap)[index] * end[:, None]
    joint = joint / joint.sum((1, 2), keepdim=True)
    first, second = joint.sum(2), joint.sum(1)
    independent = (first * second).sum(1)
    most = torch.minimum(first, second).sum(1)
    stays = joint.diagonal(dim1=1, dim2=2).sum(1)
    share = torch.zeros(len(values), dtype=values.dtype)
    share[linked] = ((stays - independent) / (most - independent).clamp_min(MIN_LOSS)).clamp(0.0, 1.0 - MIN_LOSS)
    return share


def _bridge_levels(values: Tensor, distance: Tensor, rate_matrix: Tensor, marginal: Tensor) -> Tensor:
    """Compute p(x | level before, level after) ∝ P(before → x) P(x → after): N×levels.

    `marginal` (levels,) replaces the first factor where no visit before is observed; the second is 1 where no visit
    after is.

    Args:
        values: level before and after each row (N×2).
        distance: distance in time to both (N×2), inf where there is none.
        rate_matrix: G (levels×levels).
        marginal: marginal probabilities of the levels.
    """
    probs = marginal.expand(len(values), -1)
    for side in range(2):
        near = torch.isfinite(distance[:, side]).nonzero()[:, 0]
        level = values[near, side].long()
        gap, index = torch.unique(distance[near, side], return_inverse=True)
        step = _transition(rate_matrix, gap)[index]
        reached = step[torch.arange(len(near)), level] if side == 0 else step[torch.arange(len(near)), :, level]
        probs = probs.index_put((near,), reached if side == 0 else probs[near] * reached)
    probs = probs.clamp_min(1e-30)  # two visits at the same time may have different levels
    return probs / probs.sum(1, keepdim=True)


def _transition(rate_matrix: Tensor, gap: Tensor) -> Tensor:
    """Compute P(gap) = exp(gap · G) for each gap (K×levels×levels), kept away from zero and one."""
    step = torch.matrix_exp(gap[:, None, None] * rate_matrix).clamp_min(0.0) + MIN_PROBABILITY
    return step / step.sum(-1, keepdim=True)


def _bridge_normal(values: Tensor, correlation: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean and variance (N,) of an OU process given its values before and after (N×2).

    Values and mean are relative to the stationary mean; `scale` is the stationary variance, and `correlation` (N×2)
    that of the row with its two neighbours.
    """
    a, b = correlation[:, 0].clamp_max(1.0 - MIN_LOSS), correlation[:, 1].clamp_max(1.0 - MIN_LOSS)
    # Regression on the two neighbours, which have correlation a·b with each other.
    denominator = 1.0 - (a * b) ** 2
    first, second = a * (1.0 - b**2) / denominator, b * (1.0 - a**2) / denominator
    mean = first * values[:, 0] + second * values[:, 1]
    return mean, (scale * (1.0 - a * first - b * second)).clamp_min(1e-9)


def _single_rate_matrices(marginal: FactorisedPrior, rates: Tensor) -> Tensor:
    """Return G = rate (1 πᵀ − I) of each categorical column with memory: jumps at one rate to a level drawn from π."""
    space = marginal.space
    generators = torch.zeros(len(space.names), space.max_levels, space.max_levels, dtype=torch.float64)
    for q in space.categorical:
        if torch.isfinite(rates[q]):
            k = space.levels[q]
            probs = marginal.log_prob[q, :k].double().exp()
            generators[q, :k, :k] = rates[q] * (probs.expand(k, k) - torch.eye(k, dtype=torch.float64))
    return generators


def _fit_rate(space: CovariateSpace, marginal: FactorisedPrior, table: Table, clock: Tensor, q: int) -> Tensor:
    """Return the rate of the grid that makes pairs of neighbouring visits most likely; inf if there are no pairs."""
    value, distance = _neighbours(table, clock, q)[0]
    pair = torch.isfinite(distance) & table.x_mask[:, q].cpu()
    if not pair.any():
        return torch.tensor(torch.inf)
    before, now, gap = value[pair], table.x[:, q].cpu().double()[pair], distance[pair].clamp_min(1e-6)
    rates = RATE_GRID / gap.mean()
    rho = torch.exp(-rates[:, None] * gap)
    if space.levels[q]:
        stationary = marginal.log_prob[q].double().exp()[now.long()]
        log_prob = (rho * (before == now) + (1.0 - rho) * stationary).clamp_min(MIN_PROBABILITY).log()
    else:
        centre, scale = marginal.mean[q].double(), marginal.var[q].double()
        var = (scale * (1.0 - rho**2)).clamp_min(1e-9)
        log_prob = -0.5 * ((now - centre - rho * (before - centre)) ** 2 / var + var.log())
    return rates[log_prob.sum(1).argmax()]


def _fit_rate_matrix(single_rate: Tensor, table: Table, clock: Tensor, q: int) -> Tensor:
    """Fit the rates between levels to pairs of neighbouring observed visits, shrunk towards those of `single_rate`."""
    value, distance = _neighbours(table, clock, q)[0]
    pair = (torch.isfinite(distance) & table.x_mask[:, q].cpu()).nonzero()[:, 0]
    pair = pair[:: -(-len(pair) // MAX_PAIRS)]
    before, now = value[pair].long(), table.x[:, q].cpu().long()[pair]
    gap, index = torch.unique(distance[pair], return_inverse=True)
    off_diagonal = ~torch.eye(len(single_rate), dtype=torch.bool)
    start = single_rate[off_diagonal].log()
    log_rate = start.clone().requires_grad_()

    def rate_matrix() -> Tensor:
        rates = torch.zeros_like(single_rate).masked_scatter(off_diagonal, log_rate.exp())
        return rates - torch.diag(rates.sum(1))

    def penalised_loss() -> Tensor:
        optimiser.zero_grad()
        log_likelihood = _transition(rate_matrix(), gap)[index, before, now].log().sum()
        loss: Tensor = 0.5 * LOG_RATE_PRECISION * (log_rate - start).square().sum() - log_likelihood
        loss.backward()
        return loss

    optimiser = torch.optim.LBFGS([log_rate], max_iter=50, line_search_fn="strong_wolfe")
    with torch.enable_grad():
        optimiser.step(penalised_loss)
    fitted = rate_matrix().detach()
    return fitted if torch.isfinite(fitted).all() else single_rate


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
