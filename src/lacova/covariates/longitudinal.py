"""The prior of covariates with memory: a patient's other visits say most about the one at hand.

Each time-varying column is a stationary Markov process in continuous time: categorical ones jump, at the column's
rate, to a level drawn from the stationary law; continuous ones follow an Ornstein–Uhlenbeck process. Both forget
exponentially, corr = exp(−rate·Δt), so that the visits next to a gap, before and after, say all that the column's own
history can say. Across columns, the mixture speaks; the two conditionals are multiplied and divided by the marginal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lacova.covariates.law import Belief, RowPrior
from lacova.covariates.mixture import Mixture
from lacova.covariates.prior import CovariatePrior, FactorisedPrior, JointPrior
from lacova.covariates.space import CovariateSpace
from lacova.table import Table

RATES = torch.logspace(-4, 4, 161, dtype=torch.float64)  # per mean gap between visits


class LongitudinalPrior(CovariatePrior):
    """Mixture across columns × Markov process along visits ÷ marginal, entry by entry.

    Args:
        mixture: p(x) of a visit.
        marginal: stationary law of each column.
        rates: rate of forgetting of each column (Q,), per unit of scaled time; inf where a column has no memory.
        time: index of the time column in X, or None to count visits.
    """

    rates: Tensor

    def __init__(self, mixture: Mixture, marginal: FactorisedPrior, rates: Tensor, time: int | None) -> None:
        super().__init__()
        self.space = mixture.space
        self.across = JointPrior(mixture)
        self.marginal = marginal
        self.time = time
        self.register_buffer("rates", rates)

    @classmethod
    def learn(
        cls, space: CovariateSpace, table: Table, time: int | None, seed: int, components: int | None = None
    ) -> LongitudinalPrior:
        """Stationary laws and mixture from the observed entries, rates from pairs of neighbouring observed visits."""
        marginal = FactorisedPrior.learn(space, table)
        mixture = JointPrior.learn(space, table, seed, components).mixture
        rates = torch.full((len(space.names),), torch.inf, dtype=torch.float64)
        clock = _clock(table, time)
        for q in range(len(space.names)):
            if q != time and not space.static[q]:
                rates[q] = _fit_rate(space, marginal, table, clock, q)
        return cls(mixture, marginal, rates, time)

    @torch.no_grad()
    def prepare(self, table: Table) -> RowPrior:
        space, device = self.space, table.x.device
        marginal = self.marginal.prepare(table).belief.to(torch.float64)
        across = _pool_static(self.across.prepare(table).belief.to(torch.float64), table, space)
        mean, var, log_prob = (t.clone() for t in (across.mean, across.var, across.log_prob))
        clock = _clock(table, self.time)
        for q in range(len(space.names)):
            if not torch.isfinite(self.rates[q]):
                continue
            before, after = _neighbours(table, clock, q)
            memory = torch.stack([torch.exp(-self.rates[q] * gap) for _, gap in (before, after)], 1)
            values = torch.stack([value for value, _ in (before, after)], 1)
            if space.levels[q]:
                stationary = marginal.log_prob[:, q, : space.levels[q]].exp()
                along = _bridge_levels(values, memory, stationary)
                joint = log_prob[:, q, : space.levels[q]] + along.clamp_min(1e-12).log() - stationary.log()
                log_prob[:, q, : space.levels[q]] = joint.log_softmax(-1)
            else:
                centre, scale = marginal.mean[:, q], marginal.var[:, q]
                along_mean, along_var = _bridge_normal(values - centre[:, None], memory, scale)
                precision = 1.0 / across.var[:, q] + 1.0 / along_var - 1.0 / scale  # positive: along_var ≤ scale
                shift = (across.mean[:, q] - centre) / across.var[:, q] + along_mean / along_var
                mean[:, q], var[:, q] = centre + shift / precision, 1.0 / precision
        belief = Belief(mean, var, log_prob).to(table.x.dtype).to(device)
        return RowPrior(belief, table.x.new_zeros(len(table)))


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


def _bridge_levels(values: Tensor, memory: Tensor, stationary: Tensor) -> Tensor:
    """p(x | level before, level after) ∝ P(before → x) P(x → after), P = ρ I + (1 − ρ) 1 πᵀ; reversible."""
    level = torch.arange(stationary.shape[1])
    law = torch.ones_like(stationary)
    for side in range(2):
        rho = memory[:, side, None].clamp_max(1.0 - 1e-9)  # two visits at one time may disagree
        hit = (values[:, side, None] == level).double()
        if side == 0:
            law = law * (rho * hit + (1.0 - rho) * stationary)
        else:
            reached = (stationary * hit).sum(1, keepdim=True)
            law = law * (rho * hit + (1.0 - rho) * torch.where(reached > 0, reached, 1.0))
    return law / law.sum(1, keepdim=True)


def _bridge_normal(values: Tensor, memory: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (about the stationary one) and variance of an OU process given its values before and after."""
    a, b = memory[:, 0].clamp_max(1.0 - 1e-6), memory[:, 1].clamp_max(1.0 - 1e-6)
    # Regression on the two neighbours, whose own correlation is a·b.
    denominator = 1.0 - (a * b) ** 2
    first, second = a * (1.0 - b**2) / denominator, b * (1.0 - a**2) / denominator
    mean = first * values[:, 0] + second * values[:, 1]
    return mean, (scale * (1.0 - a * first - b * second)).clamp_min(1e-9)


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


def _pool_static(belief: Belief, table: Table, space: CovariateSpace) -> Belief:
    """One law per patient in the visit-constant columns: the average over its visits, of log probabilities too."""
    if not any(space.static) or table.patient is None:
        return belief
    patient = table.patient.to(belief.mean.device)
    visits = torch.bincount(patient).to(belief.mean.dtype)

    def average(values: Tensor) -> Tensor:
        total = values.new_zeros(len(visits), *values.shape[1:]).index_add(0, patient, values)
        return (total / visits.view(-1, *(1 for _ in values.shape[1:])))[patient]

    static = torch.tensor(space.static, device=patient.device)
    pooled = Belief(average(belief.mean), average(belief.var), average(belief.log_prob).log_softmax(-1))
    return pooled.where(static.expand_as(belief.mean), belief)
