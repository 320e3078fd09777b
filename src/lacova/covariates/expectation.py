"""Expectations over x_u: every combination of missing categories up to a cap, samples for the rest.

An expectation is a weighted sum over *scenarios*. A scenario completes one unit: a row, where the terms of
the objective are sums over rows, or a whole patient, where they couple the patient's rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lacova.batches import Batch
from lacova.covariates.belief import free_entries, share_static
from lacova.covariates.law import Belief
from lacova.covariates.space import CovariateSpace

# Largest joint table of missing categories that is summed exactly, unless the caller says otherwise. A patient's is
# smaller, because every state of a patient repeats all of its rows.
ROW_CAP = 64
PATIENT_CAP = 4


@dataclass(frozen=True)
class Scenarios:
    """Completions of the units of a batch: E completed rows in V scenarios.

    Attributes:
        x: completed covariates (E×Q).
        row: the batch row behind each completed row (E,).
        scenario: the scenario that each completed row belongs to (E,); rows of a scenario are adjacent.
        sample: which of the `samples` each completed row holds (E,).
        weight: probability of each scenario (V,); sums to one over the scenarios of a unit, and carries the
            gradient with respect to the categorical probabilities.
    """

    x: Tensor
    row: Tensor
    scenario: Tensor
    sample: Tensor
    weight: Tensor

    @property
    def row_weight(self) -> Tensor:
        return self.weight[self.scenario]


@dataclass(frozen=True)
class _Unknowns:
    """The missing categorical entries of a batch, grouped by unit, with their places in the units' joint tables."""

    unit: Tensor
    row: Tensor
    column: Tensor
    levels: Tensor
    enumerated: Tensor
    stride: Tensor
    states: Tensor  # size of each unit's joint table


def complete(
    belief: Belief, batch: Batch, space: CovariateSpace, *, couple: bool, samples: int,
    generator: torch.Generator, cap: int | None = None, every_unit: bool = False,
    columns: Sequence[int] | None = None,
) -> Scenarios:  # fmt: skip
    """Scenarios of a batch under `belief`.

    Categorical gaps of a row are enumerated jointly while their table has at most `cap` states (None: ROW_CAP or
    PATIENT_CAP); what does not fit is sampled, at least twice, with score-function gradients about the other samples'
    mean. A patient whose whole table does not fit is sampled altogether: two draws of everything cost less than a part
    of the table twice over, and measured the same. Continuous gaps are sampled with reparameterised gradients. Units
    without anything to sample have one sample only, unless `every_unit` is set.

    Gaps outside `columns` (None: all) are no part of the scenarios: they hold some draw that nobody should read.
    """
    device = batch.x.device
    cap = (PATIENT_CAP if couple else ROW_CAP) if cap is None else cap
    gaps = ~batch.x_mask.cpu()
    unit = batch.patient.cpu() if couple else torch.arange(len(batch))
    chosen = torch.ones(len(space.names), dtype=torch.bool)
    if columns is not None:
        chosen = torch.isin(torch.arange(len(space.names)), torch.tensor(list(columns), dtype=torch.long))
    unknowns = _categorical_unknowns(batch, space, unit, couple, cap, chosen)

    needs_sampling = torch.full((len(unknowns.states),), every_unit)
    needs_sampling[unit[(gaps & chosen)[:, space.continuous].any(1)]] = True
    draws = torch.where(needs_sampling, samples, 1)
    draws[unknowns.unit[~unknowns.enumerated]] = max(2, samples)

    per_unit = unknowns.states * draws
    start = per_unit.cumsum(0) - per_unit
    scenario_unit = torch.repeat_interleave(torch.arange(len(per_unit)), per_unit)
    within = torch.arange(len(scenario_unit)) - start[scenario_unit]
    state = within % unknowns.states[scenario_unit]
    sample = within // unknowns.states[scenario_unit]

    rows_per_unit = torch.bincount(unit, minlength=len(per_unit))
    first_row = rows_per_unit.cumsum(0) - rows_per_unit
    rows_per_scenario = rows_per_unit[scenario_unit]
    first_line = rows_per_scenario.cumsum(0) - rows_per_scenario
    scenario = torch.repeat_interleave(torch.arange(len(scenario_unit)), rows_per_scenario)
    row = first_row[scenario_unit[scenario]] + torch.arange(len(scenario)) - first_line[scenario]

    noise = torch.randn(samples, *batch.x.shape, generator=generator, device=device, dtype=batch.x.dtype)
    noise = share_static(noise, batch, space)
    line_row, line_sample = row.to(device), (sample % samples)[scenario].to(device)
    drawn = belief.mean[line_row] + belief.var[line_row].sqrt() * noise[line_sample, line_row]
    x = torch.where(batch.x_mask[line_row], batch.x[line_row], drawn)

    # Every pair (categorical unknown, scenario of its unit), with the level that the unknown takes there.
    pairs = per_unit[unknowns.unit]
    which = torch.repeat_interleave(torch.arange(len(pairs)), pairs)
    where = start[unknowns.unit][which] + torch.arange(len(which)) - (pairs.cumsum(0) - pairs)[which]
    log_prob = belief.log_prob[unknowns.row.to(device), unknowns.column.to(device)]
    code = (state[where] // unknowns.stride[which]) % unknowns.levels[which]
    log_weight = torch.where(
        unknowns.enumerated[which].to(device), log_prob[which.to(device), code.to(device)], log_prob.new_zeros(())
    )
    weight = log_weight.new_zeros(len(scenario_unit)).index_add(0, where.to(device), log_weight).exp()
    weight = weight / draws[scenario_unit].to(device)
    lots = (~unknowns.enumerated).nonzero()[:, 0]
    if len(lots):
        chance = log_prob[lots.to(device)]
        lot = torch.multinomial(chance.detach().exp(), max(2, samples), replacement=True, generator=generator)
        drawn_code = torch.zeros(len(pairs), max(2, samples), dtype=torch.long)
        drawn_code[lots] = lot.cpu()
        code = torch.where(unknowns.enumerated[which], code, drawn_code[which, sample[where]])
        chosen = _score_factor(chance.gather(1, lot), unknowns.unit[lots].to(device), len(per_unit))
        weight = weight * chosen[scenario_unit.to(device), sample.to(device)]

    line = first_line[where] + unknowns.row[which] - first_row[unknowns.unit[which]]
    x = x.index_put((line.to(device), unknowns.column[which].to(device)), code.to(device, x.dtype))
    if couple and any(space.static):
        static = torch.tensor(space.static, device=device)
        x = torch.where(static, x[first_line[scenario].to(device)], x)
    return Scenarios(x, line_row, scenario.to(device), line_sample, weight)


def _score_factor(log_prob: Tensor, unit: Tensor, units: int) -> Tensor:
    """Weight of each sample of each unit (units×S), given the log probabilities of its sampled levels (lots×S).

    It is 1, and makes the gradient of a weighted sum the score-function estimator: Σ_s f_s (g_s − mean of the other g),
    which is Σ_s (f_s − mean of the other f) g_s with g_s the gradient of the log probability of sample s.
    """
    zero = log_prob - log_prob.detach()
    each = zero.new_zeros(units, zero.shape[1]).index_add(0, unit, zero)
    others = (each.sum(1, keepdim=True) - each) / (zero.shape[1] - 1)
    return 1.0 + each - others


def _categorical_unknowns(
    batch: Batch, space: CovariateSpace, unit: Tensor, couple: bool, cap: int, chosen: Tensor
) -> _Unknowns:
    gaps = (free_entries(batch, space) if couple else ~batch.x_mask).cpu() & chosen
    open_entries = torch.zeros_like(gaps)
    open_entries[:, space.categorical] = gaps[:, space.categorical]
    row, column = open_entries.nonzero(as_tuple=True)
    owner, levels = unit[row], torch.tensor(space.levels)[column]

    # Size of the joint table of each unknown and those before it in its unit, on the log scale.
    size = levels.double().log()
    running = size.cumsum(0)
    first = torch.ones_like(owner, dtype=torch.bool)
    first[1:] = owner[1:] != owner[:-1]
    units = int(unit[-1]) + 1
    before = torch.zeros(units, dtype=torch.double)
    before[owner[first]] = (running - size)[first]
    running = running - before[owner]
    whole = torch.zeros(units, dtype=torch.double).index_add(0, owner, size)
    enumerated = (whole[owner] if couple else running) <= math.log(cap) + 1e-9
    stride = torch.where(enumerated, (running - size).exp().round(), 1.0).long()
    states = torch.zeros(units, dtype=torch.double).index_add(0, owner[enumerated], size[enumerated])
    return _Unknowns(owner, row, column, levels, enumerated, stride, states.exp().round().long())
