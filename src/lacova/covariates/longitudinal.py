"""The prior of covariates with memory: a patient's other visits say most about the one at hand.

Each time-varying column is a Markov process in continuous time: categorical ones jump between levels at rates of their
own (a disease stage rises more often than it falls); continuous ones follow an Ornstein–Uhlenbeck process. So the
visits next to a gap, before and after, say all that the column's own history can say. Across columns, the mixture
speaks; the two conditionals are multiplied and divided by the marginal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lacova.covariates.mixture import Mixture
from lacova.covariates.prior import CovariatePrior, FactorisedPrior, JointPrior
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.data.encoder import Table

RATES = torch.logspace(-4, 4, 161, dtype=torch.float64)  # per mean gap between visits
MAX_PAIRS = 5_000  # pairs of visits that rates between levels are fitted to
MAX_LEVELS = 12  # of columns whose rates between levels are free
SHRINKAGE = 1.0  # precision of the log rates' normal prior about one rate for all


class LongitudinalPrior(CovariatePrior):
    """Mixture across columns × Markov process along visits ÷ marginal, entry by entry.

    Args:
        mixture: p(x) of a visit.
        marginal: overall law of each column.
        rates: rate of forgetting of each column (Q,), per unit of scaled time; inf where a column has no memory.
        time: index of the time column in X, or None to count visits.
        generators: rates between the levels of each categorical column (Q×levels×levels), zero beyond its own and
            elsewhere; None for jumps at the column's rate to a level of the marginal.
    """

    rates: Tensor
    generators: Tensor

    def __init__(
        self, mixture: Mixture, marginal: FactorisedPrior, rates: Tensor, time: int | None,
        generators: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.space = mixture.space
        self.across = JointPrior(mixture)
        self.marginal = marginal
        self.time = time
        self.register_buffer("rates", rates)
        self.register_buffer("generators", _even_generators(marginal, rates) if generators is None else generators)

    @classmethod
    def learn(
        cls, space: CovariateSpace, table: Table, time: int | None, seed: int, components: int | None = None
    ) -> LongitudinalPrior:
        """Marginals and mixture from the observed entries, rates from pairs of neighbouring observed visits."""
        marginal = FactorisedPrior.learn(space, table)
        mixture = JointPrior.learn(space, table, seed, components).mixture
        rates = torch.full((len(space.names),), torch.inf, dtype=torch.float64)
        clock = _clock(table, time)
        for q in range(len(space.names)):
            if q != time and not space.static[q]:
                rates[q] = _fit_rate(space, marginal, table, clock, q)
        generators = _even_generators(marginal, rates)
        for q in space.categorical:
            if torch.isfinite(rates[q]) and 1 < space.levels[q] <= MAX_LEVELS:
                inner = generators[q, : space.levels[q], : space.levels[q]]
                inner.copy_(_fit_generator(inner, table, clock, q))
        return cls(mixture, marginal, rates, time, generators)

    def update(self, completed: Table) -> None:
        """Marginals and mixture; the rates stay."""
        self.marginal.update(completed)
        self.across.update(completed)

    @torch.no_grad()
    def condition(self, table: Table) -> ConditionalPrior:
        space, device = self.space, table.x.device
        marginal = self.marginal.condition(table).distribution.to(torch.float64)
        across = _pool_static(self.across.condition(table).distribution.to(torch.float64), table, space)
        mean, var, log_prob = (t.clone() for t in (across.mean, across.var, across.log_prob))
        clock = _clock(table, self.time)
        for q in range(len(space.names)):
            if not torch.isfinite(self.rates[q]):
                continue
            before, after = _neighbours(table, clock, q)
            values = torch.stack([value for value, _ in (before, after)], 1)
            distance = torch.stack([gap for _, gap in (before, after)], 1)
            if levels := space.levels[q]:
                overall = marginal.log_prob[:, q, :levels]
                along = _bridge_levels(values, distance, self.generators[q, :levels, :levels], overall[0].exp())
                joint = log_prob[:, q, :levels] + along.clamp_min(1e-12).log() - overall
                log_prob[:, q, :levels] = joint.log_softmax(-1)
            else:
                memory = torch.exp(-self.rates[q] * distance)
                centre, scale = marginal.mean[:, q], marginal.var[:, q]
                along_mean, along_var = _bridge_normal(values - centre[:, None], memory, scale)
                precision = 1.0 / across.var[:, q] + 1.0 / along_var - 1.0 / scale  # positive: along_var ≤ scale
                shift = (across.mean[:, q] - centre) / across.var[:, q] + along_mean / along_var
                mean[:, q], var[:, q] = centre + shift / precision, 1.0 / precision
        distribution = FactorisedDistribution(mean, var, log_prob).to(table.x.dtype).to(device)
        return ConditionalPrior(distribution, table.x.new_zeros(len(table)))


def _clock(table: Table, time: int | None) -> Tensor:
    """Time of each row; NaN where unknown. Without a time column, the number of the visit."""
    assert table.patient is not None
    if time is not None:
        return torch.where(table.x_mask[:, time].cpu(), table.x[:, time].cpu().double(), math.nan)
    order = torch.argsort(table.patient, stable=True)
    counts = torch.bincount(table.patient)
    visit = torch.empty(len(table), dtype=torch.float64)
    visit[order] = (torch.arange(len(table)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)).double()
    return visit


def _neighbours(table: Table, clock: Tensor, q: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Per row, value and distance in time of the patient's nearest earlier and later visits that show column q.

    Distance is inf where there is none, or where the row's own time is unknown.
    """
    assert table.patient is not None
    known = ~clock.isnan()
    rows = known.nonzero()[:, 0]
    by_time = rows[torch.argsort(clock[rows], stable=True)]
    order = by_time[torch.argsort(table.patient[by_time], stable=True)]  # by patient, then time
    patient, when = table.patient[order], clock[order]
    value, seen = table.x[:, q].cpu().double()[order], table.x_mask[:, q].cpu()[order]
    sides = []
    for direction in (1, -1):
        p, t, v, s = (part if direction == 1 else part.flip(0) for part in (patient, when, value, seen))
        place = torch.where(s, torch.arange(len(s)), -1)
        last = torch.cat([torch.tensor([-1]), place.cummax(0).values[:-1]]) if len(s) else place
        valid = (last >= 0) & (p[last.clamp_min(0)] == p)
        distance = torch.where(valid, (t - t[last.clamp_min(0)]).abs(), torch.inf)
        found = torch.where(valid, v[last.clamp_min(0)], 0.0)
        out_value, out_distance = torch.zeros(len(clock)).double(), torch.full((len(clock),), torch.inf).double()
        target = order if direction == 1 else order.flip(0)
        out_value[target], out_distance[target] = found, distance
        sides.append((out_value, out_distance))
    return sides[0], sides[1]


def _bridge_levels(values: Tensor, distance: Tensor, generator: Tensor, overall: Tensor) -> Tensor:
    """p(x | level before, level after) ∝ P(before → x) P(x → after), with `overall` for P where nothing is before."""
    law = overall.expand(len(values), -1)
    for side in range(2):
        near = torch.isfinite(distance[:, side]).nonzero()[:, 0]
        level = values[near, side].long()
        gap, which = torch.unique(distance[near, side], return_inverse=True)
        step = _transition(generator, gap)[which]
        reached = step[torch.arange(len(near)), level] if side == 0 else step[torch.arange(len(near)), :, level]
        law = law.index_put((near,), reached if side == 0 else law[near] * reached)
    law = law.clamp_min(1e-30)  # two visits at one time may disagree
    return law / law.sum(1, keepdim=True)


def _transition(generator: Tensor, gap: Tensor) -> Tensor:
    """P(gap) = exp(gap · G) for each gap (K×levels×levels), a hair away from zero and one."""
    step = torch.matrix_exp(gap[:, None, None] * generator).clamp_min(0.0) + 1e-12
    return step / step.sum(-1, keepdim=True)


def _bridge_normal(values: Tensor, memory: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (about the stationary one) and variance of an OU process given its values before and after."""
    a, b = memory[:, 0].clamp_max(1.0 - 1e-6), memory[:, 1].clamp_max(1.0 - 1e-6)
    # Regression on the two neighbours, whose own correlation is a·b.
    denominator = 1.0 - (a * b) ** 2
    first, second = a * (1.0 - b**2) / denominator, b * (1.0 - a**2) / denominator
    mean = first * values[:, 0] + second * values[:, 1]
    return mean, (scale * (1.0 - a * first - b * second)).clamp_min(1e-9)


def _even_generators(marginal: FactorisedPrior, rates: Tensor) -> Tensor:
    """G = rate (1 πᵀ − I) for each categorical column with memory: jumps at one rate to a level of the marginal."""
    space = marginal.space
    generators = torch.zeros(len(space.names), space.max_levels, space.max_levels, dtype=torch.float64)
    for q in space.categorical:
        if torch.isfinite(rates[q]):
            k = space.levels[q]
            law = marginal.log_prob[q, :k].double().exp()
            generators[q, :k, :k] = rates[q] * (law.expand(k, k) - torch.eye(k, dtype=torch.float64))
    return generators


def _fit_rate(space: CovariateSpace, marginal: FactorisedPrior, table: Table, clock: Tensor, q: int) -> Tensor:
    """The rate that makes the observed pairs of neighbouring visits most likely; inf if there is none."""
    value, distance = _neighbours(table, clock, q)[0]
    pair = torch.isfinite(distance) & table.x_mask[:, q].cpu()
    if not pair.any():
        return torch.tensor(torch.inf)
    before, now, gap = value[pair], table.x[:, q].cpu().double()[pair], distance[pair].clamp_min(1e-6)
    rates = RATES / gap.mean()
    rho = torch.exp(-rates[:, None] * gap)
    if space.levels[q]:
        stationary = marginal.log_prob[q].double().exp()[now.long()]
        likelihood = (rho * (before == now) + (1.0 - rho) * stationary).clamp_min(1e-12).log()
    else:
        centre, scale = marginal.mean[q].double(), marginal.var[q].double()
        left = (scale * (1.0 - rho**2)).clamp_min(1e-9)
        likelihood = -0.5 * ((now - centre - rho * (before - centre)) ** 2 / left + left.log())
    return rates[likelihood.sum(1).argmax()]


def _fit_generator(even: Tensor, table: Table, clock: Tensor, q: int) -> Tensor:
    """Rates between levels, penalised for leaving those of `even`, from pairs of neighbouring observed visits."""
    value, distance = _neighbours(table, clock, q)[0]
    pair = (torch.isfinite(distance) & table.x_mask[:, q].cpu()).nonzero()[:, 0]
    pair = pair[:: -(-len(pair) // MAX_PAIRS)]
    before, now = value[pair].long(), table.x[:, q].cpu().long()[pair]
    gap, which = torch.unique(distance[pair], return_inverse=True)
    apart = ~torch.eye(len(even), dtype=torch.bool)
    start = even[apart].log()
    log_rate = start.clone().requires_grad_()

    def generator() -> Tensor:
        rate = torch.zeros_like(even).masked_scatter(apart, log_rate.exp())
        return rate - torch.diag(rate.sum(1))

    def penalised() -> Tensor:
        optimiser.zero_grad()
        fit = _transition(generator(), gap)[which, before, now].log().sum()
        loss: Tensor = 0.5 * SHRINKAGE * (log_rate - start).square().sum() - fit
        loss.backward()
        return loss

    optimiser = torch.optim.LBFGS([log_rate], max_iter=50, line_search_fn="strong_wolfe")
    with torch.enable_grad():
        optimiser.step(penalised)
    found = generator().detach()
    return found if torch.isfinite(found).all() else even


def _pool_static(distribution: FactorisedDistribution, table: Table, space: CovariateSpace) -> FactorisedDistribution:
    """One law per patient in the visit-constant columns: the average over its visits, of log probabilities too."""
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
