"""Missing covariates of the simulated trial, drawn from their true conditional distribution.

Given the days, the chains are completed exactly: filter forward, sample backward. For a missing day: a patient stays
until a day T, uniform on SHORTEST … LONGEST, and has a visit on each day with probability λ, so that n days without
order have probability λⁿ Σ_T p(T)(1 − λ)^(T + 1 − n), summed over the T from the last of them on. It depends on n and
the last day alone. The events and medications observed at the visit add their likelihood. One missing day of a patient
is drawn exactly; several are drawn in turn, given the others (Gibbs), with all missing states summed out.

A filtered table holds the full visits. One of them has less than half of its measurements, and is dropped, with
probability 4·10⁻¹⁰, which is neglected.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.data.errors import DataError
from lacova.datasets.chains import Chains
from lacova.datasets.trial import CHAINS, COVARIATES, KINDS, LONGEST, SHORTEST, VISIT, ages, sexes

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
GRID = np.arange(LONGEST + 1)
MEMORY = np.exp(-GRID[:, None] / CHAINS.memory)  # e^(−d/τ) after d days


def true_covariates(
    table: pd.DataFrame, draws: int, rng: np.random.Generator, *, filtered: bool = True, sweeps: int = 10
) -> Floats:
    """Complete the covariates of a table of `simulated_trial` with random gaps in them (draws × rows × 23).

    Missing entries are draws given all covariates that are observed at any of the patient's visits in the table;
    observed entries are unchanged. Columns are in the order of the schema's covariates. The order of a patient's rows
    is not used as information on their days.

    Args:
        table: all visits of whole patients.
        draws: the number of completions.
        rng: the random generator.
        filtered: whether the table was filtered, which determines how frequent visits are.
        sweeps: the number of Gibbs sweeps over the days of a patient with several missing ones.

    Examples:
        >>> from lacova.datasets import mask_at_random, simulated_trial
        >>> table, schema = simulated_trial(patients=10)
        >>> gaps = mask_at_random(table, list(schema.covariates), 0.2, 1, instance="id", static=schema.static)
        >>> completed = true_covariates(gaps, 5, np.random.default_rng(0))
        >>> completed.shape == (5, len(table), 23), bool(np.isnan(completed).any())
        (True, False)
    """
    absent = [name for name in ("id", *COVARIATES) if name not in table]
    if absent:
        raise DataError(f"the table has no column {', '.join(map(repr, absent))}; expected one of simulated_trial.")
    x = table[list(COVARIATES)].to_numpy(float, na_value=np.nan)
    if not np.isin(x[:, 0][~np.isnan(x[:, 0])], GRID).all():
        raise DataError(f"days must be whole numbers from 0 to {LONGEST}; expected a table of simulated_trial.")
    last = _last_day(VISIT * KINDS["full"] if filtered else VISIT)
    out = np.repeat(x[None], draws, axis=0)
    for rows in table.groupby("id", sort=False).indices.values():
        out[:, rows, 0] = days = _days(x[rows, 0], x[rows, 3:], last, draws, sweeps, rng)
        out[:, rows, 3:] = _states(days, x[rows, 3:], rng)
        for q, draw in ((1, ages), (2, sexes)):
            known = x[rows, q][~np.isnan(x[rows, q])]
            out[:, rows, q] = known[0] if len(known) else draw(draws, rng)[:, None]
    return np.where(np.isnan(x), out, x)


def _last_day(rate: float) -> Floats:
    """Return the probability of a set of n days for each possible last day, up to a factor that depends on n alone."""
    stays = np.where(GRID >= SHORTEST, (1 - rate) ** GRID, 0.0)
    return stays[::-1].cumsum()[::-1]


def _states(days: Floats, seen: Floats, rng: np.random.Generator) -> Floats:
    order = np.argsort(days, axis=1)
    ordered = CHAINS.complete(np.take_along_axis(days, order, 1), seen[order], rng)
    states = np.empty_like(ordered)
    np.put_along_axis(states, order[..., None], ordered, 1)
    return states


def _days(day: Floats, seen: Floats, last: Floats, draws: int, sweeps: int, rng: np.random.Generator) -> Floats:
    """Return days (draws × visits) with the missing ones drawn."""
    days = np.repeat(day[None], draws, axis=0)
    missing = np.flatnonzero(np.isnan(day))
    known = list(np.flatnonzero(~np.isnan(day)))
    for i in missing:  # start: each given the ones before it
        days[:, i] = _draw(_weights(days[:, known], seen[known], seen[i], last), rng)
        known.append(i)
    for _ in range(sweeps if len(missing) > 1 else 0):
        for i in missing:
            others = np.flatnonzero(np.arange(len(day)) != i)
            days[:, i] = _draw(_weights(days[:, others], seen[others], seen[i], last), rng)
    return days


def _draw(weights: Floats, rng: np.random.Generator) -> Indices:
    total = weights.cumsum(1)
    return np.asarray((total > rng.random((len(total), 1)) * total[:, -1:]).argmax(1))


def _weights(days: Floats, seen: Floats, here: Floats, last: Floats) -> Floats:
    """Return p(day | the other visits) of a visit with states `here` (draws × days of the grid), up to a factor.

    In a gap between two of the others, with P(state) a before it and likelihood b after it, a chain observed in state s
    contributes Σ a P(· → s) · Σ P(s → ·) b / Σ a P(· → ·) b, where the last P spans the whole gap: the denominator is
    the probability of the other visits, which does not depend on the day.
    """
    last_of_others = days.max(1, initial=0).astype(int)[:, None]
    weights: Floats = last[np.maximum(GRID, last_of_others)]
    np.put_along_axis(weights, days.astype(int), 0.0, 1)  # no two visits on a day
    c = ~np.isnan(here)
    if not c.any():
        return weights
    chains, s, memory = Chains(CHAINS.share[c], CHAINS.memory[c]), here[c], MEMORY[:, c]
    order = np.argsort(days, axis=1)
    t, seen = np.take_along_axis(days, order, 1), seen[order][..., c]
    prior = np.where(s == 1, chains.share, 1 - chains.share)
    # Before each gap, P(s); before the first there is no visit.
    one = chains.forward(t, seen)
    before = _padded(np.where(s == 1, one, 1 - one) - prior, 0.0, front=True)
    # After each gap, the likelihood of s, and of a state drawn afresh; 1 after the last visit.
    zero_after, one_after = chains.backward(t, seen)
    fresh = _padded((1 - chains.share) * zero_after + chains.share * one_after, 1.0)
    after = _padded(np.where(s == 1, one_after, zero_after), 1.0) - fresh
    # Over each gap, without a visit in it.
    arrive = _padded(chains.step(one[:, :-1], np.diff(t)[..., None]), chains.share, front=True)[:, : t.shape[1]]
    whole = _padded(arrive * one_after + (1 - arrive) * zero_after, 1.0)
    gap = (t[:, None, :] < GRID[:, None]).sum(-1)  # in which gap a day lies
    ends = _padded(t[..., None], 0.0, front=True)[..., 0], _padded(t[..., None], LONGEST)[..., 0]
    since, until = (np.abs(GRID - np.take_along_axis(end, gap, 1)).astype(int) for end in ends)
    flat = gap + whole.shape[1] * np.arange(len(t))[:, None]

    def pick(values: Floats) -> Floats:
        return np.asarray(values.reshape(-1, len(s)).take(flat, axis=0))

    left, right = memory.take(since, axis=0), memory.take(until, axis=0)  # in place: these are the large ones
    left *= pick(before)
    left += prior
    right *= pick(after / whole)
    right += pick(fresh / whole)
    left *= right
    return np.asarray(weights * left.prod(-1))


def _padded(values: Floats, end: float | Floats, front: bool = False) -> Floats:
    """Append one more value along visits (axis 1), in front or behind."""
    extra = np.broadcast_to(end, (len(values), 1, values.shape[2]))
    return np.concatenate([extra, values] if front else [values, extra], axis=1)
