"""Processes along visits: bridges of levels between observed visits, and rates fitted to what is observed.

A category jumps between levels in continuous time with rate matrix G. A number is an Ornstein–Uhlenbeck (OU) process
with noise (`smoothing.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lacova.covariates.prior import FactorisedPrior
from lacova.covariates.smoothing import Courses, log_likelihood
from lacova.covariates.visits import Runs, Visits
from lacova.data.table import Table

NUMBER_RATES = torch.logspace(-3, 2, 26, dtype=torch.float64)  # of numbers, per mean gap between visits
LASTING = torch.linspace(0.1, 1.0, 10, dtype=torch.float64)  # share of the variance that lasts
MAX_PATIENTS = 500  # patients that these are fitted to
RATE_GRID = torch.logspace(-4, 4, 161, dtype=torch.float64)  # rates per mean gap between visits
MAX_PAIRS = 5_000  # pairs of neighbouring visits that rates between levels are fitted to
MAX_LEVELS = 12  # columns with more levels keep a single rate
LOG_RATE_PRECISION = 1.0  # precision of the normal prior of a log rate, centred at the single-rate model
MIN_PROBABILITY = 1e-12  # keeps transition probabilities away from zero
MIN_LOSS = 1e-6  # least 1 − correlation of two visits, such as those at the same time


class Sides(NamedTuple):
    """What the nearest visits say of the level of columns with as many levels each.

    Attributes:
        rate_matrix: G of each column (C×levels×levels).
        first: P(before → level), the marginal where no visit before is observed (N×C×levels).
        second: P(level → after), 1 where no visit after is (N×C×levels).
    """

    rate_matrix: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, level: Tensor, distance: Tensor, rate_matrix: Tensor, marginal: Tensor) -> Sides:
        """Compute them from levels and distances of both neighbours (2×N×C), and marginal probabilities (C×levels)."""
        known, size = torch.isfinite(distance)[..., None], marginal.shape[-1]
        before, after = transition(rate_matrix, torch.where(known[..., 0], distance, 0.0))
        index = level[..., None, None].expand(*level.shape, 1, size)
        reached, reaching = before.gather(-2, index[0])[..., 0, :], after.gather(-1, index[1].mT)[..., 0]
        return cls(
            rate_matrix, torch.where(known[0], reached, marginal), torch.where(known[1], reaching, 1.0)
        )  # fmt: skip

    def bridge(self) -> Tensor:
        """Compute p(x | level before, level after) ∝ P(before → x) P(x → after): N×C×levels."""
        probs = (self.first * self.second).clamp_min(1e-30)  # two visits at the same time may have different levels
        return probs / probs.sum(-1, keepdim=True)

    def share_kept(self, run: Runs) -> Tensor:
        """Return r (N×C) with which a path stays at its level as probably as the process does, given the visits around.

        Two neighbours a and b of a run have the joint probabilities J(a, b) ∝ P(before → a) P(a → b) P(b → after). With
        their marginals, r = 1 stays as often as can be, and r = 0 as often as independent levels do.
        """
        linked, column = (run.before != 0).nonzero(as_tuple=True)
        start, end = self.first[run.row[linked, column], column], self.second[linked, column]
        between = transition(self.rate_matrix[column], run.distance[linked, column])
        joint = start[:, :, None] * between * end[:, None]
        joint = joint / joint.sum((1, 2), keepdim=True)
        first, second = joint.sum(2), joint.sum(1)
        independent = (first * second).sum(1)
        most = torch.minimum(first, second).sum(1)
        stays = joint.diagonal(dim1=1, dim2=2).sum(1)
        share = torch.zeros(run.before.shape, dtype=joint.dtype)
        kept = (stays - independent) / (most - independent).clamp_min(MIN_LOSS)
        share[linked, column] = kept.clamp(0.0, 1.0 - MIN_LOSS)
        return share


def transition(rate_matrix: Tensor, gap: Tensor) -> Tensor:
    """Compute P(gap) = exp(gap · G) of each gap (…×levels×levels), kept away from zero and one.

    `rate_matrix` (…×levels×levels) is that of each gap, or of the last dimension of gaps; with more than two levels, it
    is the same of all.
    """
    if rate_matrix.shape[-1] == 2:  # exp(gap · G) = I + (1 − e^{−gap · s})/s · G, s the sum of both rates
        total = -rate_matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
        share = -torch.expm1(-gap * total) / total.clamp_min(MIN_PROBABILITY)
        step = torch.eye(2, dtype=rate_matrix.dtype) + share[..., None, None] * rate_matrix
    else:
        each, index = torch.unique(gap, return_inverse=True)
        single = rate_matrix.reshape(-1, *rate_matrix.shape[-2:])[:1]  # such columns are computed one by one
        step = torch.matrix_exp(each[:, None, None] * single)[index]
    step = step.clamp_min(0.0) + MIN_PROBABILITY
    return step / step.sum(-1, keepdim=True)


def single_rate_matrices(marginal: FactorisedPrior, rates: Tensor) -> Tensor:
    """Return G = rate (1 πᵀ − I) of each categorical column with memory: jumps at one rate to a level drawn from π."""
    space = marginal.space
    generators = torch.zeros(len(space.names), space.max_levels, space.max_levels, dtype=torch.float64)
    for q in space.categorical:
        if torch.isfinite(rates[q]):
            k = space.levels[q]
            probs = marginal.log_prob[q, :k].double().exp()
            generators[q, :k, :k] = rates[q] * (probs.expand(k, k) - torch.eye(k, dtype=torch.float64))
    return generators


def _before(table: Table, clock: Tensor, q: int) -> tuple[Tensor, Tensor]:
    """Return the value of column q at the nearest visit before each row, and the distance in time (N,)."""
    neighbours = Visits.of(table, clock, torch.tensor([q])).neighbours()
    return neighbours.value[0, :, 0], neighbours.distance[0, :, 0]


def fit_rate(marginal: FactorisedPrior, table: Table, clock: Tensor, q: int) -> Tensor:
    """Return the rate of a category that makes pairs of neighbouring visits most likely; inf if there are no pairs."""
    value, distance = _before(table, clock, q)
    pair = torch.isfinite(distance) & table.x_mask[:, q].cpu()
    if not pair.any():
        return torch.tensor(torch.inf)
    before, now, gap = value[pair], table.x[:, q].cpu().double()[pair], distance[pair].clamp_min(1e-6)
    rates = RATE_GRID / gap.mean()
    rho = torch.exp(-rates[:, None] * gap)
    stationary = marginal.log_prob[q].double().exp()[now.long()]
    likelihood = (rho * (before == now) + (1.0 - rho) * stationary).clamp_min(MIN_PROBABILITY)
    return rates[likelihood.log().sum(1).argmax()]


def fit_number(marginal: FactorisedPrior, table: Table, clock: Tensor, q: int) -> tuple[Tensor, Tensor]:
    """Return the rate of a number and the share of its variance that lasts, which make its courses most likely.

    They are those of a grid, for at most MAX_PATIENTS patients, evenly spread over the table; inf and 1 if no patient
    has two values.
    """
    visits = Visits.of(table, clock, torch.tensor([q]))
    observed = visits.order[visits.x_mask[visits.order, 0]]
    patients = torch.unique_consecutive(visits.patient[observed])
    chosen = patients[:: -(-max(len(patients), 1) // MAX_PATIENTS)]
    observed = observed[torch.isin(visits.patient[observed], chosen)]
    # Filters hold arrays of all rows, so that others are left out.
    values, patient, clock = visits.x[observed], visits.patient[observed], clock[observed]
    courses = Courses.of(torch.arange(len(observed)), patient, clock)
    if len(courses.rows) < 2:
        return torch.tensor(torch.inf), torch.tensor(1.0)
    second = courses.gap[torch.cat(courses.rows[1:])]
    rates = NUMBER_RATES / second.clamp_min(1e-6).mean()
    rate, lasting = (part.reshape(-1, 1) for part in torch.meshgrid(rates, LASTING, indexing="ij"))
    x = (values - marginal.mean[q].double()) / marginal.var[q].double().sqrt()
    best = log_likelihood(courses, x, torch.ones_like(x, dtype=torch.bool), rate, lasting)[:, 0].argmax()
    return rate[best, 0], lasting[best, 0]


def fit_rate_matrix(single_rate: Tensor, table: Table, clock: Tensor, q: int) -> Tensor:
    """Fit the rates between levels to pairs of neighbouring observed visits, shrunk towards those of `single_rate`."""
    value, distance = _before(table, clock, q)
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
        log_likelihood = transition(rate_matrix(), gap)[index, before, now].log().sum()
        loss: Tensor = 0.5 * LOG_RATE_PRECISION * (log_rate - start).square().sum() - log_likelihood
        loss.backward()
        return loss

    optimiser = torch.optim.LBFGS([log_rate], max_iter=50, line_search_fn="strong_wolfe")
    with torch.enable_grad():
        optimiser.step(penalised_loss)
    fitted = rate_matrix().detach()
    return fitted if torch.isfinite(fitted).all() else single_rate
