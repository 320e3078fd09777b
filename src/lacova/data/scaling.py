"""From measurements in their own units to the scale on which they are modelled, and back; with the Jacobian."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

Floats = npt.NDArray[np.float64]

MOST_KNOTS = 100
ROWS_PER_KNOT = 10
MOST_STEPS, ROWS_PER_STEP = 12, 10  # of a column that takes few values, each of them often
TAIL = 0.05  # beyond the last knots a line goes on that passes through the last one and the one this far inside


@dataclass(frozen=True)
class Knots:
    """A strictly increasing, piecewise linear map through knots, with straight ends: normal scores of one column.

    Attributes:
        own: where the knots are in the column's own units.
        score: what they are mapped to.
        steps: the column takes these values and no others, so that scores between knots are decoded to one of them.
    """

    own: Floats
    score: Floats
    steps: bool = False

    @classmethod
    def learn(cls, values: Floats) -> Knots | None:
        """Through empirical quantiles of the values, ties at the middle of their ranks; None if all are the same."""
        values = values[~np.isnan(values)]
        own, counts = np.unique(values, return_counts=True)
        if len(own) < 2:
            return None
        share = (counts.cumsum() - counts / 2.0) / len(values)
        steps = len(own) <= min(MOST_STEPS, len(values) // ROWS_PER_STEP)
        most = int(np.clip(len(values) // ROWS_PER_KNOT, 3, MOST_KNOTS))
        if len(own) > most:
            wanted = np.linspace(share[0], share[-1], most)
            kept = np.unique(np.clip(np.searchsorted(share, wanted), 0, len(own) - 1))
            own, share = own[kept], share[kept]
        return cls(own, _normal_quantile(share), steps)

    @cached_property
    def ends(self) -> Floats:
        """Scores at which the ranks of one value end and those of the next begin: knots are at the middle of them."""
        share, ends = ndtr(self.score), [0.0]
        for middle in share[:-1]:
            ends.append(2.0 * middle - ends[-1])
        return _normal_quantile(np.clip(ends[1:], 0.0, 1.0))

    @cached_property
    def slopes(self) -> Floats:
        """Of the score, before the first knot, between neighbours, and after the last."""
        inner = np.diff(self.score) / np.diff(self.own)
        reach = _normal_quantile(np.array([TAIL, 1.0 - TAIL]))
        low = int(np.clip(np.searchsorted(self.score, reach[0]), 1, len(self.own) - 1))
        high = int(np.clip(np.searchsorted(self.score, reach[1], side="right") - 1, 0, len(self.own) - 2))
        first = (self.score[low] - self.score[0]) / (self.own[low] - self.own[0])
        last = (self.score[-1] - self.score[high]) / (self.own[-1] - self.own[high])
        return np.concatenate([[first], inner, [last]])

    def encode(self, values: Floats | np.float64) -> Floats:
        inside = np.interp(values, self.own, self.score)
        below = np.minimum(values - self.own[0], 0.0) * self.slopes[0]
        return np.asarray(inside + below + np.maximum(values - self.own[-1], 0.0) * self.slopes[-1])

    def decode(self, scores: Floats) -> Floats:
        if self.steps:
            return self.own[np.searchsorted(self.ends, scores)]
        inside = np.interp(scores, self.score, self.own)
        below = np.minimum(scores - self.score[0], 0.0) / self.slopes[0]
        return np.asarray(inside + below + np.maximum(scores - self.score[-1], 0.0) / self.slopes[-1])

    def log_slope(self, scores: Floats) -> Floats:
        return np.asarray(np.log(self.slopes)[np.searchsorted(self.score, scores)])


@dataclass(frozen=True)
class Scales:
    """The maps of all measurements.

    Attributes:
        shift, scale: y is modelled as (y − shift)/scale; 0 and 1 for counts and codes (D,).
        log: columns of which the logarithm is so scaled (D,).
        knots: those of columns that have normal scores instead, by number.
        spread: what errors in own units are divided by, so that columns can be compared: `scale` of plain columns,
            the standard deviation of others (D,).
    """

    shift: Floats
    scale: Floats
    log: npt.NDArray[np.bool_]
    spread: Floats
    knots: Mapping[int, Knots] = field(default_factory=dict)

    @cached_property
    def linear(self) -> npt.NDArray[np.bool_]:
        """Columns on which means may be taken before or after decoding (D,)."""
        found = ~self.log
        found[list(self.knots)] = False
        return found

    def encode(self, column: int, values: Floats | np.float64) -> Floats:
        """One column on the scale on which it is modelled."""
        if column in self.knots:
            return self.knots[column].encode(values)
        values = np.log(values) if self.log[column] else values
        return np.asarray((values - self.shift[column]) / self.scale[column])

    def decode(self, values: Floats) -> Floats:
        """All columns in their own units (…×D)."""
        found = np.asarray(values * self.scale + self.shift)
        for d in np.flatnonzero(self.log).tolist():
            found[..., d] = np.exp(np.minimum(found[..., d], math.log(np.finfo(float).max)))
        for d, knots in self.knots.items():
            found[..., d] = knots.decode(values[..., d])
        return found

    def log_slope(self, values: Floats) -> Floats:
        """log |d encoded / d own| of encoded values (…×D)."""
        found = np.broadcast_to(-np.log(self.scale), values.shape).copy()
        for d in np.flatnonzero(self.log).tolist():
            found[..., d] -= values[..., d] * self.scale[d] + self.shift[d]
        for d, knots in self.knots.items():
            found[..., d] = knots.log_slope(values[..., d])
        return found


def _normal_quantile(share: Floats) -> Floats:
    return np.asarray(ndtri(share))


def knots_as_table(knots: Mapping[int, Knots]) -> Floats:
    """All knots as rows (column, own, score, whether they are steps), to be stored."""
    parts = [
        np.stack([np.full(len(k.own), float(d)), k.own, k.score, np.full(len(k.own), float(k.steps))], axis=1)
        for d, k in sorted(knots.items())
    ]
    return np.concatenate(parts) if parts else np.zeros((0, 4))


def knots_of_table(table: Floats, allowed: Iterable[int]) -> dict[int, Knots]:
    """The same back; refuses what is no increasing map of one of the columns."""
    allowed, found = set(allowed), {}
    if not np.isfinite(table).all():
        raise ValueError("its normal scores are not finite")
    for d in np.unique(table[:, 0]).tolist():
        own, score, steps = table[table[:, 0] == d, 1:].T
        if d not in allowed or len(own) < 2 or (np.diff(own) <= 0).any() or (np.diff(score) <= 0).any():
            raise ValueError("its normal scores are not increasing maps of its columns")
        made = Knots(np.ascontiguousarray(own), np.ascontiguousarray(score), bool(steps[0]))
        if not np.isin(steps, (0.0, 1.0)).all() or np.ptp(steps) or (made.steps and (np.diff(made.ends) < 0).any()):
            raise ValueError("its normal scores are steps in an order that does not increase")
        found[int(d)] = made
    return found
