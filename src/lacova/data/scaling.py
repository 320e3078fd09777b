"""Maps of measurements from their own units to the scale on which they are modelled, their inverses and Jacobians."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

Floats = npt.NDArray[np.float64]

MAX_KNOTS, ROWS_PER_KNOT = 100, 10
MAX_STEPS, ROWS_PER_STEP = 12, 10  # a column with so few values, each of them frequent, is mapped in steps
# Under scaling="auto": least number of values, their least excess kurtosis, and the largest share of equal ones.
LEAST_VALUES, LEAST_EXCESS, MOST_EQUAL = 50, 1.0, 0.5
TAIL = 0.05  # beyond the outermost knots, a line continues through the outermost one and the one at this quantile


@dataclass(frozen=True)
class Knots:
    """Normal scores of one column: a strictly increasing, piecewise linear map through knots, with straight ends.

    Attributes:
        own: the knots in the units of the column.
        score: their normal scores.
        steps: whether the column takes no values but these; scores between knots are then decoded to one of them.
    """

    own: Floats
    score: Floats
    steps: bool = False

    @classmethod
    def learn(cls, values: Floats) -> Knots | None:
        """Learn the map from empirical quantiles, ties at the middle of their ranks; None if all values are equal."""
        values = values[~np.isnan(values)]
        own, counts = np.unique(values, return_counts=True)
        if len(own) < 2:
            return None
        share = (counts.cumsum() - counts / 2.0) / len(values)
        steps = _takes_steps(len(own), len(values))
        limit = int(np.clip(len(values) // ROWS_PER_KNOT, 3, MAX_KNOTS))
        if len(own) > limit:
            shares = np.linspace(share[0], share[-1], limit)
            chosen = np.unique(np.clip(np.searchsorted(share, shares), 0, len(own) - 1))
            own, share = own[chosen], share[chosen]
        return cls(own, _normal_quantile(share), steps)

    @cached_property
    def ends(self) -> Floats:
        """Scores at which the ranks of one value end and those of the next begin; knots lie in the middle."""
        share, ends = ndtr(self.score), [0.0]
        for middle in share[:-1]:
            ends.append(2.0 * middle - ends[-1])
        return _normal_quantile(np.clip(ends[1:], 0.0, 1.0))

    @cached_property
    def slopes(self) -> Floats:
        """Slopes of the score before the first knot, between neighbours, and after the last."""
        inner = np.diff(self.score) / np.diff(self.own)
        tails = _normal_quantile(np.array([TAIL, 1.0 - TAIL]))
        low = int(np.clip(np.searchsorted(self.score, tails[0]), 1, len(self.own) - 1))
        high = int(np.clip(np.searchsorted(self.score, tails[1], side="right") - 1, 0, len(self.own) - 2))
        first = (self.score[low] - self.score[0]) / (self.own[low] - self.own[0])
        last = (self.score[-1] - self.score[high]) / (self.own[-1] - self.own[high])
        return np.concatenate([[first], inner, [last]])

    def encode(self, values: Floats | np.float64) -> Floats:
        """Return the scores of values."""
        inside = np.interp(values, self.own, self.score)
        below = np.minimum(values - self.own[0], 0.0) * self.slopes[0]
        return np.asarray(inside + below + np.maximum(values - self.own[-1], 0.0) * self.slopes[-1])

    def decode(self, scores: Floats) -> Floats:
        """Return the values of scores."""
        if self.steps:
            return self.own[np.searchsorted(self.ends, scores)]
        inside = np.interp(scores, self.score, self.own)
        below = np.minimum(scores - self.score[0], 0.0) / self.slopes[0]
        return np.asarray(inside + below + np.maximum(scores - self.score[-1], 0.0) / self.slopes[-1])

    def log_slope(self, scores: Floats) -> Floats:
        """Return log |d score / d value| at scores."""
        return np.asarray(np.log(self.slopes)[np.searchsorted(self.score, scores)])


@dataclass(frozen=True)
class Scales:
    """The maps of all measurements.

    Attributes:
        shift, scale: y is modelled as (y − shift)/scale; 0 and 1 for counts and codes (D,).
        log: columns whose logarithm is scaled in this way (D,).
        spread: divisor that makes errors in own units comparable between columns (D,): `scale` of linear columns, the
            standard deviation of the others.
        knots: normal scores, by index of the column, which replace shift and scale there.
    """

    shift: Floats
    scale: Floats
    log: npt.NDArray[np.bool_]
    spread: Floats
    knots: Mapping[int, Knots] = field(default_factory=dict)

    @cached_property
    def linear(self) -> npt.NDArray[np.bool_]:
        """Columns whose map is linear, so that the mean of decoded values is the decoded mean (D,)."""
        linear = ~self.log
        linear[list(self.knots)] = False
        return linear

    def encode(self, column: int, values: Floats | np.float64) -> Floats:
        """Return one column on the scale on which it is modelled."""
        if column in self.knots:
            return self.knots[column].encode(values)
        values = np.log(values) if self.log[column] else values
        return np.asarray((values - self.shift[column]) / self.scale[column])

    def decode(self, values: Floats) -> Floats:
        """Return all columns (…×D) in their own units."""
        decoded = np.asarray(values * self.scale + self.shift)
        for d in np.flatnonzero(self.log).tolist():
            decoded[..., d] = np.exp(np.minimum(decoded[..., d], math.log(np.finfo(float).max)))
        for d, knots in self.knots.items():
            decoded[..., d] = knots.decode(values[..., d])
        return decoded

    def log_slope(self, values: Floats) -> Floats:
        """Return log |d encoded / d own| at encoded values (…×D)."""
        slopes = np.broadcast_to(-np.log(self.scale), values.shape).copy()
        for d in np.flatnonzero(self.log).tolist():
            slopes[..., d] -= values[..., d] * self.scale[d] + self.shift[d]
        for d, knots in self.knots.items():
            slopes[..., d] = knots.log_slope(values[..., d])
        return slopes


def _takes_steps(distinct: int, count: int) -> bool:
    return distinct <= min(MAX_STEPS, count // ROWS_PER_STEP)


def _normal_quantile(share: Floats) -> Floats:
    return np.asarray(ndtri(share))


def suits_scores(values: Floats) -> bool:
    """Return whether normal scores suit a column: it takes a few values alone, or has heavier tails than the normal.

    A column whose values are spread evenly, as heights of children are, or lie in groups, owes its shape to what it
    depends on: there, scores would bend what is straight. Nor do scores suit a column with many values, most of whose
    entries are equal.
    """
    values = values[~np.isnan(values)]
    if len(values) < LEAST_VALUES or np.ptp(values) == 0.0:
        return False
    counts = np.unique(values, return_counts=True)[1]
    if _takes_steps(len(counts), len(values)):
        return True
    z = (values - values.mean()) / np.ptp(values)  # of any unit, without overflow
    excess = (z**4).mean() / (z**2).mean() ** 2 - 3.0
    return bool(excess > LEAST_EXCESS and counts.max() <= MOST_EQUAL * len(values))


def knots_as_table(knots: Mapping[int, Knots]) -> Floats:
    """Return all knots as rows (column, own, score, whether they are steps), for storage."""
    parts = [
        np.stack([np.full(len(k.own), float(d)), k.own, k.score, np.full(len(k.own), float(k.steps))], axis=1)
        for d, k in sorted(knots.items())
    ]
    return np.concatenate(parts) if parts else np.zeros((0, 4))


def knots_of_table(table: Floats, allowed: Iterable[int]) -> dict[int, Knots]:
    """Undo `knots_as_table`; refuse anything but increasing maps of the allowed columns."""
    allowed, knots = set(allowed), {}
    if not np.isfinite(table).all():
        raise ValueError("its normal scores are not finite")
    for d in np.unique(table[:, 0]).tolist():
        own, score, steps = table[table[:, 0] == d, 1:].T
        if d not in allowed or len(own) < 2 or (np.diff(own) <= 0).any() or (np.diff(score) <= 0).any():
            raise ValueError("its normal scores are not increasing maps of its columns")
        column = Knots(np.ascontiguousarray(own), np.ascontiguousarray(score), bool(steps[0]))
        disordered = column.steps and (np.diff(column.ends) < 0).any()
        if not np.isin(steps, (0.0, 1.0)).all() or np.ptp(steps) or disordered:
            raise ValueError("its normal scores are steps in an order that does not increase")
        knots[int(d)] = column
    return knots
