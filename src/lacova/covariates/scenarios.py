"""Expectations over x_u: every combination of missing categories up to a cap, samples for the rest.

An expectation is a weighted sum over *scenarios*. A scenario completes one unit: a row, where the terms of
the objective are sums over rows, or a whole patient, where they couple the patient's rows. Which scenarios there are
depends on masks independent_noise: that is a `Plan`, made of whole numbers on the host. What they hold depends on the distribution and on
noise: `Plan.scenarios` fills them in, on the device, with the same few operations whatever the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from lacova.covariates.factorised import share_static
from lacova.data.batches import Batch, Blocks, blocks
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution

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
        pad: completed rows by scenario, where units are patients.
        open, open_real: what holds gaps to be integrated over by other means: completed rows, where units are patients,
            else rows of the batch; 0 where one only fills up a shape.
    """

    x: Tensor
    row: Tensor
    scenario: Tensor
    sample: Tensor
    weight: Tensor
    pad: Blocks | None = None
    open: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    open_real: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.double))

    @property
    def row_weight(self) -> Tensor:
        return self.weight[self.scenario]

    @property
    def blocks(self) -> Blocks:
        return blocks(self.scenario) if self.pad is None else self.pad

    @property
    def line_in_block(self) -> Tensor:
        """The place of each completed row within its scenario (E,)."""
        places = self.blocks.places
        at = torch.arange(len(self.row), device=self.row.device) - places[:, 0][self.scenario]
        return at.clamp(max=places.shape[1] - 1)  # of a line that only fills up a shape


@dataclass(frozen=True)
class StandardDraws:
    """All that is random in one step: standard normals for x (S×N×Q) and z (S×N×L), uniforms for levels (S'×N×Q).

    Also standard normals for y (S×N×D), where a model looks at what gaps in y may hide, and the measurements (N×D) that
    are hidden from the encoder, where some are.
    """

    x: Tensor
    z: Tensor
    level: Tensor
    y: Tensor | None = None
    hidden: Tensor | None = None

    @classmethod
    def draw(
        cls, like: Tensor, samples: int, latent_dim: int, space: CovariateSpace, generator: torch.Generator,
        measurements: int = 0,
    ) -> StandardDraws:  # fmt: skip
        """For rows like x (N×Q). Two uniforms at least: a drawn level is judged by the other draws."""
        where: dict[str, Any] = {"generator": generator, "device": like.device, "dtype": like.dtype}
        n, columns = like.shape
        x = torch.randn(samples, n, columns, **where)
        drawn = max(2, samples) if space.categorical else 0
        level = torch.rand(drawn, n, columns, **where)
        z = torch.randn(samples, n, latent_dim, **where)
        return cls(x, z, level, torch.randn(samples, n, measurements, **where) if measurements else None)

    def rows(self, rows: slice) -> StandardDraws:
        """That of some of the rows."""
        y = None if self.y is None else self.y[:, rows]
        hidden = None if self.hidden is None else self.hidden[rows]
        return StandardDraws(self.x[:, rows], self.z[:, rows], self.level[:, rows], y, hidden)


@dataclass(frozen=True)
class Plan:
    """Which scenarios a batch has: E completed rows, V scenarios, T pairs of a missing category and a scenario of it.

    Attributes:
        row, scenario, sample, first: as in `Scenarios`, and the first line of each line's scenario (E,).
        unit, draw, probability: of each scenario (V,): its unit, which draw of levels it holds, one over the draws.
        line, entry_row, entry_column, place, code, listed: of each pair (T,): the completed row it writes to, the entry
            of the batch it is about, its scenario, the level that enumeration gives it, and whether it is enumerated.
        lots: entries (N×Q) whose level is drawn, in the row that stands for them.
        row_unit: unit of each row of the batch (N,).
        pad: completed rows by scenario, where units are patients.
        open, open_real: as in `Scenarios`.
        units: how many.
        draws_levels: whether there are lots.
    """

    row: Tensor
    scenario: Tensor
    sample: Tensor
    first: Tensor
    unit: Tensor
    draw: Tensor
    probability: Tensor
    line: Tensor
    entry_row: Tensor
    entry_column: Tensor
    place: Tensor
    code: Tensor
    listed: Tensor
    lots: Tensor
    row_unit: Tensor
    pad: Blocks | None
    open: Tensor
    open_real: Tensor
    units: int
    draws_levels: bool

    def to(self, device: torch.device) -> Plan:
        if self.row.device == device:
            return self
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {k: v.to(device, non_blocking=True) for k, v in moved.items() if isinstance(v, Tensor)}
        pad = None if self.pad is None else Blocks(*(part.to(device, non_blocking=True) for part in self.pad))
        return replace(self, pad=pad, **moved)

    def scenarios(
        self, distribution: FactorisedDistribution, batch: Batch, space: CovariateSpace, noise: StandardDraws
    ) -> Scenarios:
        """The scenarios under `distribution`."""
        spread = share_static(noise.x, batch, space)
        drawn = distribution.mean[self.row] + distribution.var.sqrt()[self.row] * spread[self.sample, self.row]
        x = torch.where(batch.x_mask[self.row], batch.x[self.row], drawn)
        weight = self.probability.to(x.dtype)
        if len(self.line):
            code, log_prob = self.code, distribution.log_prob[self.entry_row, self.entry_column]
            if self.draws_levels:
                lot = draw_levels(distribution, space, noise.level)
                code = torch.where(self.listed, code, lot[self.draw[self.place], self.entry_row, self.entry_column])
            log_weight = torch.where(self.listed, log_prob.gather(1, code[:, None])[:, 0], 0.0)
            weight = weight * log_weight.new_zeros(len(weight)).index_add(0, self.place, log_weight).exp()
            if self.draws_levels:
                each = distribution.log_prob.expand(len(lot), -1, -1, -1).gather(-1, lot[..., None])[..., 0]
                each = torch.where(self.lots, each, 0.0).sum(-1)  # S'×N
                total = each.new_zeros(len(each), self.units).index_add(1, self.row_unit, each)
                weight = weight * _score_factor(total)[self.draw, self.unit]
            x = x.index_put((self.line, self.entry_column), code.to(x.dtype))
            if self.pad is not None and any(space.static):
                x = torch.where(space.on(x.device).static, x[self.first], x)
        return Scenarios(x, self.row, self.scenario, self.sample, weight, self.pad, self.open, self.open_real)


def complete(
    distribution: FactorisedDistribution, batch: Batch, space: CovariateSpace, *, couple: bool, samples: int,
    generator: torch.Generator, cap: int | None = None, every_unit: bool = False,
    columns: Sequence[int] | None = None,
) -> Scenarios:  # fmt: skip
    """Scenarios of a batch under `distribution`: `plan` and `Plan.scenarios` in one."""
    how = plan(
        batch.x_mask.cpu(), batch.patient.cpu(), space, couple=couple, samples=samples, cap=cap,
        every_unit=every_unit, columns=columns,
    )  # fmt: skip
    noise = StandardDraws.draw(batch.x, samples, 0, space, generator)
    return how.to(batch.x.device).scenarios(distribution, batch, space, noise)


def plan(
    x_mask: Tensor, patient: Tensor, space: CovariateSpace, *, couple: bool, samples: int, cap: int | None = None,
    every_unit: bool = False, columns: Sequence[int] | None = None, integrate: bool = False,
) -> Plan:  # fmt: skip
    """The scenarios of a batch with the given mask (N×Q) and patients (N,), both on the host.

    Categorical gaps of a row are enumerated jointly while their table has at most `cap` states (None: ROW_CAP or
    PATIENT_CAP); what does not fit is sampled, at least twice, with score-function gradients about the other samples'
    mean. A patient whose whole table does not fit is sampled altogether: two draws of everything cost less than a part
    of the table twice over, and measured the same. Continuous gaps are sampled with reparameterised gradients. Units
    without anything to sample have one sample only, unless `every_unit` is set.

    Gaps outside `columns` (None: all) are no part of the scenarios: they hold some draw that nobody should read. With
    `integrate`, rows with such gaps are marked as open, or, where scenarios complete all columns, rows with any gap.
    """
    cap = (PATIENT_CAP if couple else ROW_CAP) if cap is None else cap
    gaps, rows = ~x_mask, torch.arange(len(x_mask))
    left = gaps
    if columns is not None:
        chosen = torch.isin(torch.arange(len(space.names)), torch.tensor(list(columns), dtype=torch.long))
        gaps, left = gaps & chosen, gaps & ~chosen
    unit = patient if couple else rows
    counts = torch.bincount(unit)
    first_row = counts.cumsum(0) - counts
    found = _missing_levels(gaps, space, unit, first_row, couple, cap)

    draws = torch.full((len(counts),), samples if every_unit else 1)
    if samples > 1 and not every_unit:
        draws[unit[gaps[:, space.on(gaps.device).continuous].any(1)]] = samples
    draws[found.unit[~found.listed]] = max(2, samples)

    per_unit = found.states * draws
    start = per_unit.cumsum(0) - per_unit
    scenario_unit = torch.repeat_interleave(torch.arange(len(per_unit)), per_unit)
    within = torch.arange(len(scenario_unit)) - start[scenario_unit]
    state = within % found.states[scenario_unit]
    draw = within // found.states[scenario_unit]

    rows_per_scenario = counts[scenario_unit]
    first_line = rows_per_scenario.cumsum(0) - rows_per_scenario
    scenario = torch.repeat_interleave(torch.arange(len(scenario_unit)), rows_per_scenario)
    row = first_row[scenario_unit[scenario]] + torch.arange(len(scenario)) - first_line[scenario]

    # Every pair (missing category, scenario of its unit), with the level that enumeration gives it there.
    pairs = per_unit[found.unit]
    which = torch.repeat_interleave(torch.arange(len(pairs)), pairs)
    place = start[found.unit][which] + torch.arange(len(which)) - (pairs.cumsum(0) - pairs)[which]
    listed = found.listed[which]
    code = torch.where(listed, (state[place] // found.stride[which]) % found.levels[which], 0)
    still_open = torch.zeros(0, dtype=torch.long)
    if integrate:
        still_open = (left.any(1)[row] if couple else left.any(1)).nonzero()[:, 0]
    lots = torch.zeros_like(gaps)
    lots[found.row[~found.listed], found.column[~found.listed]] = True
    return Plan(
        row=row, scenario=scenario, sample=(draw % samples)[scenario], first=first_line[scenario],
        unit=scenario_unit, draw=draw, probability=1.0 / draws[scenario_unit].double(),
        line=first_line[place] + found.row[which] - first_row[found.unit[which]],
        entry_row=found.row[which], entry_column=found.column[which], place=place, code=code, listed=listed,
        lots=lots, row_unit=unit, pad=blocks(scenario) if couple else None,
        open=still_open, open_real=torch.ones(len(still_open), dtype=torch.double),
        units=len(counts), draws_levels=bool(lots.any()),
    )  # fmt: skip


def identity_plan(number: Tensor, real: Tensor, columns: int, open_rows: Tensor, open_real: Tensor) -> Plan:
    """One scenario per row, where nothing is to be enumerated; `number` is 0..N−1, `real` the weight of each row."""
    none = number[:0]
    return Plan(
        row=number, scenario=number, sample=torch.zeros_like(number), first=number, unit=number,
        draw=torch.zeros_like(number), probability=real, line=none, entry_row=none, entry_column=none, place=none, code=none,
        listed=none.bool(), lots=torch.zeros(len(number), columns, dtype=torch.bool, device=number.device),
        row_unit=number, pad=None, open=open_rows, open_real=open_real, units=len(number), draws_levels=False,
    )  # fmt: skip


@dataclass(frozen=True)
class _Missing:
    """The missing categorical entries of a batch, grouped by unit, with their places in the units' joint tables."""

    unit: Tensor
    row: Tensor
    column: Tensor
    levels: Tensor
    listed: Tensor
    stride: Tensor
    states: Tensor  # size of each unit's joint table


def _missing_levels(
    gaps: Tensor, space: CovariateSpace, unit: Tensor, first_row: Tensor, couple: bool, cap: int
) -> _Missing:
    at = space.on(gaps.device)
    open_entries = torch.zeros_like(gaps)
    open_entries[:, at.categorical] = gaps[:, at.categorical]
    if couple and any(space.static):  # a visit-constant entry stands in the patient's first row
        open_entries &= (first_row[unit] == torch.arange(len(unit)))[:, None] | ~at.static
    row, column = open_entries.nonzero(as_tuple=True)
    owner, levels = unit[row], torch.tensor(space.levels)[column]

    # Size of the joint table of each missing entry and those before it in its unit, on the log scale.
    size = levels.double().log()
    running = size.cumsum(0)
    first = torch.ones_like(owner, dtype=torch.bool)
    first[1:] = owner[1:] != owner[:-1]
    before = torch.zeros(len(first_row), dtype=torch.double)
    before[owner[first]] = (running - size)[first]
    running = running - before[owner]
    whole = torch.zeros_like(before).index_add(0, owner, size)
    listed = (whole[owner] if couple else running) <= math.log(cap) + 1e-9
    stride = torch.where(listed, (running - size).exp().round(), 1.0).long()
    states = torch.zeros_like(before).index_add(0, owner[listed], size[listed])
    return _Missing(owner, row, column, levels, listed, stride, states.exp().round().long())


def draw_levels(distribution: FactorisedDistribution, space: CovariateSpace, uniform: Tensor) -> Tensor:
    """Levels (S'×N×Q) by inverting the distribution function at uniform numbers of the same shape."""
    cumulative = distribution.log_prob.detach().exp().cumsum(-1)
    reached = cumulative <= (uniform[..., None] * cumulative[..., -1:])
    return reached.sum(-1).clamp(max=space.max_levels - 1)


def _score_factor(log_prob: Tensor) -> Tensor:
    """Weight of each draw of each unit (S'×units), given the log probabilities of what was drawn.

    It is 1, and makes the gradient of a weighted sum the score-function estimator: Σ_s f_s (g_s − mean of the other g),
    which is Σ_s (f_s − mean of the other f) g_s with g_s the gradient of the log probability of draw s.
    """
    each = log_prob - log_prob.detach()
    others = (each.sum(0) - each) / (len(each) - 1)
    return 1.0 + each - others
