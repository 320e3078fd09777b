"""Numbers along a patient's visits: an Ornstein–Uhlenbeck (OU) process with noise, by Kalman filters.

x_i = f_i + e_i at the visits i = 1, 2, … of a patient, with x standardised. f is an OU process of variance w, and e_i
is N(0, 1 − w), independent of everything else. With w = 1, x itself is an OU process; with a rate near 0, f is the
patient's own mean. One filter goes forward in time, one backward; together they say what all other visits tell of a
visit. The cost is linear in the number of visits, and all patients and columns are filtered at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MIN_LOSS = 1e-6  # least 1 − correlation of f at two visits, such as those at the same time
TINY = 1e-12


class Courses(NamedTuple):
    """Visits in one direction of time, arranged by their number within a patient.

    Attributes:
        rows: rows of the table at the first visits of all patients, at the second visits, and so on; patients with more
            visits come first.
        gap: time between a visit and the one before it in this direction (N,); 0 at a first visit.
    """

    rows: list[Tensor]
    gap: Tensor

    @classmethod
    def of(cls, order: Tensor, patient: Tensor, clock: Tensor) -> Courses:
        """Return those of rows in the order of patients, then of time, given the patient and time of every row (N,)."""
        gap = torch.zeros_like(clock)
        if not len(order):
            return cls([], gap)
        _, count = torch.unique_consecutive(patient[order], return_counts=True)
        start = count.cumsum(0) - count
        within = torch.arange(len(order)) - torch.repeat_interleave(start, count)
        gap[order[1:]] = torch.where(within[1:] > 0, (clock[order[1:]] - clock[order[:-1]]).abs(), 0.0)
        by_length = torch.argsort(count, descending=True, stable=True)
        start, count = start[by_length], count[by_length]
        return cls([order[start[count > k] + k] for k in range(int(count[0]))], gap)

    def decay(self, rate: Tensor) -> Tensor:
        """Return the correlation of f with f at the visit before, for rates (…×C): …×N×C."""
        return torch.exp(-rate[..., None, :] * self.gap[:, None]).clamp_max(1.0 - MIN_LOSS)


class Smoothed(NamedTuple):
    """Each entry (N×C) given what is observed at the patient's other visits.

    Attributes:
        mean, var: of x; of rows on no course, 0 and 1.
        correlation: that of x with x at the visit before, where both are missing; 0 at a first visit.
    """

    mean: Tensor
    var: Tensor
    correlation: Tensor


def _filter(courses: Courses, x: Tensor, observed: Tensor, rate: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of f given the visits before, and the log density of x given them, 0 where missing.

    Args:
        courses: the visits, in one direction of time.
        x: standardised values (N×C).
        observed: which of them are observed (N×C).
        rate: at which the correlation of f decays (…×C).
        w: variance of f (…×C).
    """
    decay = courses.decay(rate)
    mean = var = decay[..., :0, :]
    mean_before, var_before, log_density = (torch.zeros_like(decay) for _ in range(3))
    w = w[..., None, :]
    var_before += w
    for number, rows in enumerate(courses.rows):
        if number:
            a = decay[..., rows, :]
            mean_before[..., rows, :] = a * mean[..., : len(rows), :]
            var_before[..., rows, :] = w + a.square() * (var[..., : len(rows), :] - w)
        m, v = mean_before[..., rows, :], var_before[..., rows, :]
        error, total = x[rows] - m, v + 1.0 - w
        gain = torch.where(observed[rows], v / total, 0.0)
        mean, var = m + gain * error, v * (1.0 - gain)
        log_density[..., rows, :] = torch.where(observed[rows], -0.5 * (error.square() / total + total.log()), 0.0)
    return mean_before, var_before, log_density


def log_likelihood(courses: Courses, x: Tensor, observed: Tensor, rate: Tensor, w: Tensor) -> Tensor:
    """Return the log likelihood of each column of standardised values, less constants, for several rates and w: G×C."""
    return _filter(courses, x, observed, rate, w)[2].sum(-2)


def smooth(
    order: Tensor, patient: Tensor, clock: Tensor, x: Tensor, observed: Tensor, rate: Tensor, w: Tensor
) -> Smoothed:
    """Return the distribution of each entry of standardised values.

    With P and Q the variances of f given the visits before and after, the precision given both is 1/P + 1/Q − 1/w.

    Args:
        order: rows in the order of patients, then of time (n,).
        patient, clock: patient and time of every row (N,).
        x, observed: values, and which are observed (N×C).
        rate, w: of each column (C,).
    """
    forward, backward = Courses.of(order, patient, clock), Courses.of(order.flip(0), patient, clock)
    past, past_var, _ = _filter(forward, x, observed, rate, w)
    future, future_var, _ = _filter(backward, x, observed, rate, w)
    var = 1.0 / (1.0 / past_var + 1.0 / future_var - 1.0 / w)
    mean = var * (past / past_var + future / future_var)
    decay, correlation = forward.decay(rate), torch.zeros_like(mean)
    for earlier, later in zip(forward.rows[:-1], forward.rows[1:], strict=True):
        # Precision of f at two neighbours: what the past tells of the first, the future of the second, and the step.
        first, a = earlier[: len(later)], decay[later]
        step = w * (1.0 - a.square())
        p, q = 1.0 / past_var[first] + a.square() / step, 1.0 / future_var[later] - 1.0 / w + 1.0 / step
        covariance = (a / step) / (p * q - (a / step).square())
        correlation[later] = covariance / ((var[first] + 1.0 - w) * (var[later] + 1.0 - w)).sqrt()
    on_course = torch.zeros(len(x), 1, dtype=torch.bool)
    on_course[order] = True
    bounded = correlation.clamp(0.0, 1.0 - 0.5 * MIN_LOSS)
    return Smoothed(torch.where(on_course, mean, 0.0), torch.where(on_course, var + 1.0 - w, 1.0), bounded)
