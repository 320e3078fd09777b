"""Two-state Markov chains in continuous time, observed at visits: events that begin and end.

A chain is in state 1 with probability π at any time, and its memory decays at rate 1/τ: over a time d it moves from s
to s′ with probability π(s′) + e^(−d/τ)(1[s = s′] − π(s′)). State 1 begins at rate π/τ and ends at rate (1 − π)/τ. The
last two dimensions of arrays are visits × chains, in the order of time; the first ones (patients, draws) are batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Chains:
    """Independent chains.

    Attributes:
        share: π of each chain, its share of time in state 1.
        memory: τ of each chain, in the unit of time.
    """

    share: Floats
    memory: Floats

    def step(self, one: Floats, gap: Floats) -> Floats:
        """Return P(1) after a gap (…×1), from P(1) before it."""
        return self.share + np.exp(-gap / self.memory) * (one - self.share)

    def simulate(self, times: Floats, rng: np.random.Generator) -> Floats:
        """Draw states (…×visits×chains) at times (…×visits)."""
        states = np.empty((*times.shape, len(self.share)))
        u: Floats = np.asarray(rng.random(states.shape))
        for k in range(times.shape[-1]):
            one = self.share if k == 0 else self.step(states[..., k - 1, :], _gap(times, k - 1))
            states[..., k, :] = u[..., k, :] < one
        return states

    def forward(self, times: Floats, seen: Floats) -> Floats:
        """Return P(1) at each visit given the states observed (NaN: missing) at it and before it."""
        one = np.empty(seen.shape)
        for k in range(seen.shape[-2]):
            before = self.share if k == 0 else self.step(one[..., k - 1, :], _gap(times, k - 1))
            one[..., k, :] = np.where(np.isnan(seen[..., k, :]), before, seen[..., k, :])
        return one

    def backward(self, times: Floats, seen: Floats) -> tuple[Floats, Floats]:
        """Return P(states observed from each visit on | state 0 or 1 there), scaled so that the two sum to 1."""
        zero, one = np.full(seen.shape, 0.5), np.full(seen.shape, 0.5)
        for k in reversed(range(seen.shape[-2])):
            if k + 1 < seen.shape[-2]:
                keep = np.exp(-_gap(times, k) / self.memory)
                later0, later1 = zero[..., k + 1, :], one[..., k + 1, :]
                mean = (1 - self.share) * later0 + self.share * later1
                zero[..., k, :], one[..., k, :] = (mean + keep * (later - mean) for later in (later0, later1))
            here = seen[..., k, :]
            zero[..., k, :] *= np.where(here == 1, 0.0, 1.0)
            one[..., k, :] *= np.where(here == 0, 0.0, 1.0)
            total = zero[..., k, :] + one[..., k, :]
            zero[..., k, :] /= total
            one[..., k, :] /= total
        return zero, one

    def complete(self, times: Floats, seen: Floats, rng: np.random.Generator) -> Floats:
        """Draw the missing states given all observed ones: filter forward, sample backward."""
        one = self.forward(times, seen)
        states = np.empty(seen.shape)
        for k in reversed(range(seen.shape[-2])):
            weight1, weight0 = one[..., k, :], 1 - one[..., k, :]
            if k + 1 < seen.shape[-2]:
                after = states[..., k + 1, :]
                prior = np.where(after == 1, self.share, 1 - self.share)
                keep = np.exp(-_gap(times, k) / self.memory)
                weight1 = weight1 * (prior + keep * (after - prior))
                weight0 = weight0 * (prior + keep * ((1 - after) - prior))
            states[..., k, :] = rng.random(weight1.shape) * (weight0 + weight1) < weight1
        return states


def _gap(times: Floats, k: int) -> Floats:
    """Return the time from visit k to the next (…×1)."""
    return times[..., k + 1, None] - times[..., k, None]
