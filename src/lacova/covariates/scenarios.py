"""Expectations over the missing covariates x_u: exact sums over missing categories up to a cap, samples for the rest.

An expectation is a weighted sum over scenarios. A scenario completes one unit of the batch: a row where the objective
is a sum over rows, or a patient where it couples the patient's rows.

The work has two parts. `plan` decides which scenarios there are. This depends on the masks alone, and the resulting
`Plan` consists of integers, computed on the host. `Plan.scenarios` then fills in values and weights from a distribution
and random numbers. It runs on the device, with the same few operations for every batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from lacova.covariates.dependence import correlated
from lacova.covariates.factorised import share_static
from lacova.covariates.paths import categories, draw_levels, log_prob_of_levels, log_steps, step_at
from lacova.data.batches import Batch, Blocks, blocks
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution

# Default caps on the joint table of missing categories that is summed exactly, for rows and for patients. The second is
# smaller because every state of a patient repeats all of its rows.
ROW_CAP = 64
PATIENT_CAP = 4


@dataclass(frozen=True)
class Scenarios:
    """Completions of the units of a batch: E completed rows in V scenarios.

    Attributes:
        x: completed covariates (E×Q).
        row: row of the batch behind each completed row (E,).
        scenario: scenario of each completed row (E,); the rows of a scenario are adjacent.
        sample: index of the sample in each completed row (E,).
        weight: probability of each scenario (V,); sums to one over the scenarios of a unit, and carries the gradient
            with respect to the categorical probabilities.
        unit, slot: unit of each scenario, and its place among the scenarios of that unit (V,).
        units, slots: number of units, and how many scenarios a unit has at most.
        pad: completed rows by scenario, padded, where units are patients.
        open: indices of what still has gaps that are integrated over analytically: completed rows where units are
            patients, otherwise rows of the batch.
        open_real: 1 for each index in `open`, 0 for padding.
    """

    x: Tensor
    row: Tensor
    scenario: Tensor
    sample: Tensor
    weight: Tensor
    unit: Tensor
    slot: Tensor
    units: int
    slots: int
    pad: Blocks | None = None
    open: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    open_real: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.double))

    def by_slot(self, values: Tensor, rows: int) -> Tensor:
        """Arrange values of the completed rows (E×…) as slots×rows×…, 0 where a unit has no such scenario."""
        arranged = values.new_zeros(self.slots, rows, *values.shape[1:])
        return arranged.index_put((self.slot[self.scenario], self.row), values)

    @property
    def slot_weight(self) -> Tensor:
        """Weight of each scenario as slots×units, 0 where a unit has no such scenario."""
        return self.weight.new_zeros(self.slots, self.units).index_put((self.slot, self.unit), self.weight)

    @property
    def row_weight(self) -> Tensor:
        """Weight of each completed row's scenario (E,)."""
        return self.weight[self.scenario]

    @property
    def blocks(self) -> Blocks:
        """The completed rows by scenario, padded."""
        return blocks(self.scenario) if self.pad is None else self.pad

    @property
    def line_in_block(self) -> Tensor:
        """Position of each completed row within its scenario (E,)."""
        places = self.blocks.places
        at = torch.arange(len(self.row), device=self.row.device) - places[:, 0][self.scenario]
        return at.clamp(max=places.shape[1] - 1)  # padding lies beyond the block


@dataclass(frozen=True)
class StandardDraws:
    """All random numbers of one step.

    Attributes:
        x: standard normals for continuous covariates (S×N×Q).
        z: standard normals for the latent variables (S×N×L).
        uniform: uniforms for levels of categorical covariates (S'×N×Q).
        y: standard normals for missing measurements (S×N×D), where the model draws them.
        dropped_y: measurements that encoder dropout masks (N×D), where it is on.
    """

    x: Tensor
    z: Tensor
    uniform: Tensor
    y: Tensor | None = None
    dropped_y: Tensor | None = None

    @classmethod
    def draw(
        cls, like: Tensor, samples: int, latent_dim: int, space: CovariateSpace, generator: torch.Generator,
        measurements: int = 0,
    ) -> StandardDraws:  # fmt: skip
        """Draw for rows like `like` (N×Q); at least two uniforms, since a sampled level's baseline is the others."""
        where: dict[str, Any] = {"generator": generator, "device": like.device, "dtype": like.dtype}
        n, columns = like.shape
        x = torch.randn(samples, n, columns, **where)
        level_samples = max(2, samples) if space.categorical else 0
        uniform = torch.rand(level_samples, n, columns, **where)
        z = torch.randn(samples, n, latent_dim, **where)
        return cls(x, z, uniform, torch.randn(samples, n, measurements, **where) if measurements else None)

    def rows(self, rows: slice) -> StandardDraws:
        """Return the random numbers of some rows."""
        y = None if self.y is None else self.y[:, rows]
        dropped_y = None if self.dropped_y is None else self.dropped_y[rows]
        return StandardDraws(self.x[:, rows], self.z[:, rows], self.uniform[:, rows], y, dropped_y)


@dataclass(frozen=True)
class Plan:
    """The scenarios of a batch, without their values: E completed rows ("lines") in V scenarios.

    A missing category appears in every scenario of its unit; T counts these pairs of an entry and a scenario.

    Attributes:
        row, scenario, sample: of each line, as in `Scenarios` (E,).
        first: first line of each line's scenario (E,).
        unit, slot: unit of each scenario, and its place among the scenarios of that unit (V,).
        draw: which of the unit's draws each scenario holds (V,).
        probability: one over the number of the unit's draws (V,).
        line: line that each pair writes to (T,).
        entry_row, entry_column: entry of the batch that each pair completes (T,).
        entry_scenario: scenario of each pair (T,).
        code: level that enumeration gives each pair (T,); 0 where the level is sampled.
        enumerated: whether the level of each pair is enumerated rather than sampled (T,).
        sampled: entries whose level is sampled (N×Q); a visit-constant one only in its patient's first row.
        row_unit: unit of each row of the batch (N,).
        pad: lines by scenario, padded, where units are patients.
        open, open_real: as in `Scenarios`.
        units, slots: number of units, and how many scenarios a unit has at most.
        draws_levels: whether any level is sampled.
    """

    row: Tensor
    scenario: Tensor
    sample: Tensor
    first: Tensor
    unit: Tensor
    slot: Tensor
    draw: Tensor
    probability: Tensor
    line: Tensor
    entry_row: Tensor
    entry_column: Tensor
    entry_scenario: Tensor
    code: Tensor
    enumerated: Tensor
    sampled: Tensor
    row_unit: Tensor
    pad: Blocks | None
    open: Tensor
    open_real: Tensor
    units: int
    slots: int
    draws_levels: bool

    def to(self, device: torch.device) -> Plan:
        """Return the plan on another device."""
        if self.row.device == device:
            return self
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {k: v.to(device, non_blocking=True) for k, v in moved.items() if isinstance(v, Tensor)}
        pad = None if self.pad is None else Blocks(*(part.to(device, non_blocking=True) for part in self.pad))
        return replace(self, pad=pad, **moved)

    def scenarios(
        self, distribution: FactorisedDistribution, batch: Batch, space: CovariateSpace, eps: StandardDraws
    ) -> Scenarios:
        """Fill in values and weights under `distribution`."""
        eps_x = share_static(correlated(eps.x, distribution, batch), batch, space)
        mean, sd = (part.index_select(0, self.row) for part in (distribution.mean, distribution.var.sqrt()))
        drawn = mean + sd * eps_x[self.sample, self.row]
        if space.categorical:  # lines that only fill up a shape must hold levels, too: a density is evaluated there
            drawn = drawn.index_fill(1, space.on(drawn.device).categorical, 0.0)
        x = torch.where(batch.x_mask[self.row], batch.x[self.row], drawn)
        weight = self.probability.to(x.dtype)
        if len(self.line):
            # A scenario of a row has the probabilities of the row by itself, one of a patient those of its paths.
            own = categories(distribution, space)
            own = own if self.pad is not None else own.by_entry()
            at, code = space.on(x.device).categorical, self.code
            if self.draws_levels:
                levels = draw_levels(distribution, space, eps.uniform, batch)
                drawn_code = levels[self.draw[self.entry_scenario], self.entry_row, self.entry_column]
                code = torch.where(self.enumerated, code, drawn_code)
            entry = self.entry_row * len(at) + torch.searchsorted(at, self.entry_column)
            if own.paths is None or not own.paths.levels:
                log_prob = own.log_prob.flatten(0, 1).index_select(0, entry).gather(1, code[:, None])[:, 0]
            else:
                line = self.line + own.paths.before.flatten().index_select(0, entry)
                codes = torch.zeros_like(x, dtype=torch.long).index_put((self.line, self.entry_column), code)
                code_before = codes[line.clamp(0, len(x) - 1), self.entry_column]
                log_prob = step_at(log_steps(own).flatten(0, 1).index_select(0, entry), code_before, code)
            log_weight = torch.where(self.enumerated, log_prob, 0.0)
            weight = weight * log_weight.new_zeros(len(weight)).index_add(0, self.entry_scenario, log_weight).exp()
            if self.draws_levels:
                log_q = log_prob_of_levels(own, levels.index_select(-1, at))
                log_q = torch.where(self.sampled.index_select(1, at), log_q, 0.0).sum(-1)  # S'×N
                total = log_q.new_zeros(len(log_q), self.units).index_add(1, self.row_unit, log_q)
                of_draw = self.draw * self.units + self.unit
                weight = weight * _score_factor(total).flatten().index_select(0, of_draw)
            x = x.index_put((self.line, self.entry_column), code.to(x.dtype))
            if self.pad is not None and any(space.static):
                x = torch.where(space.on(x.device).static, x.index_select(0, self.first), x)
        return Scenarios(
            x, self.row, self.scenario, self.sample, weight, self.unit, self.slot, self.units, self.slots, self.pad,
            self.open, self.open_real,
        )  # fmt: skip


def complete(
    distribution: FactorisedDistribution, batch: Batch, space: CovariateSpace, *, couple: bool, samples: int,
    generator: torch.Generator, cap: int | None = None, every_unit: bool = False,
    columns: Sequence[int] | None = None,
) -> Scenarios:  # fmt: skip
    """Return the scenarios of a batch under `distribution`: `plan` and `Plan.scenarios` in one call."""
    batch_plan = plan(
        batch.x_mask.cpu(), batch.patient.cpu(), space, couple=couple, samples=samples, cap=cap,
        every_unit=every_unit, columns=columns,
    )  # fmt: skip
    eps = StandardDraws.draw(batch.x, samples, 0, space, generator)
    return batch_plan.to(batch.x.device).scenarios(distribution, batch, space, eps)


def plan(
    x_mask: Tensor, patient: Tensor, space: CovariateSpace, *, couple: bool, samples: int, cap: int | None = None,
    every_unit: bool = False, columns: Sequence[int] | None = None, integrate: bool = False,
) -> Plan:  # fmt: skip
    """Plan the scenarios of a batch.

    Categorical gaps of a row are enumerated jointly while their table has at most `cap` states. The others are sampled,
    at least twice, with score-function gradients that have the mean of the other samples as baseline. A patient whose
    table exceeds the cap is sampled as a whole: two draws of everything cost less than a part of the table twice, and
    gave the same accuracy. Continuous gaps are sampled with reparameterised gradients.

    Args:
        x_mask: observed covariates (N×Q), on the host.
        patient: patient of each row (N,), on the host.
        space: layout of X.
        couple: whether a scenario completes a patient rather than a row.
        samples: S.
        cap: largest table that is enumerated; None for ROW_CAP or PATIENT_CAP.
        every_unit: whether units without anything to sample also have S samples instead of one.
        columns: columns that scenarios complete, None for all. Gaps in other columns hold a draw that must not be used.
        integrate: whether to list as `open` the rows with gaps outside `columns`, or with any gap where `columns` is
            None.
    """
    cap = (PATIENT_CAP if couple else ROW_CAP) if cap is None else cap
    gaps, rows = ~x_mask, torch.arange(len(x_mask))
    remaining = gaps
    if columns is not None:
        chosen = torch.isin(torch.arange(len(space.names)), torch.tensor(list(columns), dtype=torch.long))
        gaps, remaining = gaps & chosen, gaps & ~chosen
    unit = patient if couple else rows
    counts = torch.bincount(unit)
    first_row = counts.cumsum(0) - counts
    entries = _missing_levels(gaps, space, unit, first_row, couple, cap)

    draws = torch.full((len(counts),), samples if every_unit else 1)
    if samples > 1 and not every_unit:
        draws[unit[gaps[:, space.on(gaps.device).continuous].any(1)]] = samples
    draws[entries.unit[~entries.enumerated]] = max(2, samples)

    per_unit = entries.states * draws
    start = per_unit.cumsum(0) - per_unit
    scenario_unit = torch.repeat_interleave(torch.arange(len(per_unit)), per_unit)
    within = torch.arange(len(scenario_unit)) - start[scenario_unit]
    state = within % entries.states[scenario_unit]
    draw = within // entries.states[scenario_unit]

    rows_per_scenario = counts[scenario_unit]
    first_line = rows_per_scenario.cumsum(0) - rows_per_scenario
    scenario = torch.repeat_interleave(torch.arange(len(scenario_unit)), rows_per_scenario)
    row = first_row[scenario_unit[scenario]] + torch.arange(len(scenario)) - first_line[scenario]

    # Every pair (missing category, scenario of its unit), with the level that enumeration gives it there.
    pairs = per_unit[entries.unit]
    entry = torch.repeat_interleave(torch.arange(len(pairs)), pairs)
    entry_scenario = start[entries.unit][entry] + torch.arange(len(entry)) - (pairs.cumsum(0) - pairs)[entry]
    enumerated = entries.enumerated[entry]
    code = torch.where(enumerated, (state[entry_scenario] // entries.stride[entry]) % entries.levels[entry], 0)
    open_rows = torch.zeros(0, dtype=torch.long)
    if integrate:
        open_rows = (remaining.any(1)[row] if couple else remaining.any(1)).nonzero()[:, 0]
    sampled = torch.zeros_like(gaps)
    sampled[entries.row[~entries.enumerated], entries.column[~entries.enumerated]] = True
    return Plan(
        row=row, scenario=scenario, sample=(draw % samples)[scenario], first=first_line[scenario],
        unit=scenario_unit, slot=within, draw=draw, probability=1.0 / draws[scenario_unit].double(),
        line=first_line[entry_scenario] + entries.row[entry] - first_row[entries.unit[entry]],
        entry_row=entries.row[entry], entry_column=entries.column[entry], entry_scenario=entry_scenario, code=code,
        enumerated=enumerated, sampled=sampled, row_unit=unit, pad=blocks(scenario) if couple else None,
        open=open_rows, open_real=torch.ones(len(open_rows), dtype=torch.double),
        units=len(counts), slots=int(per_unit.max()) if len(per_unit) else 1, draws_levels=bool(sampled.any()),
    )  # fmt: skip


@dataclass(frozen=True)
class RowPlan:
    """The plan of a batch without categorical gaps and with one sample: one scenario per row.

    Attributes:
        open, open_real: as in `Scenarios`.
    """

    open: Tensor
    open_real: Tensor

    @classmethod
    def of(cls, open_rows: Tensor) -> RowPlan:
        return cls(open_rows, torch.ones(len(open_rows), dtype=torch.double))

    def expand(self, real: Tensor, columns: int) -> Plan:
        """Return the whole plan.

        Args:
            real: weight of each row (N,): 1, or 0 for padding.
            columns: Q.
        """
        number = torch.arange(len(real), device=real.device)
        none = number[:0]
        return Plan(
            row=number, scenario=number, sample=torch.zeros_like(number), first=number, unit=number,
            slot=torch.zeros_like(number), draw=torch.zeros_like(number), probability=real, line=none, entry_row=none,
            entry_column=none, entry_scenario=none, code=none, enumerated=none.bool(),
            sampled=torch.zeros(len(real), columns, dtype=torch.bool, device=real.device), row_unit=number, pad=None,
            open=self.open, open_real=self.open_real, units=len(real), slots=1, draws_levels=False,
        )  # fmt: skip


@dataclass(frozen=True)
class _MissingLevels:
    """The missing categorical entries of a batch, sorted by unit, with their axes in the units' joint tables.

    Attributes:
        unit, row, column: position of each entry.
        levels: number of levels of its column.
        enumerated: whether it is part of its unit's joint table.
        stride: number of states of the entries before it in that table.
        states: size of each unit's joint table (units,).
    """

    unit: Tensor
    row: Tensor
    column: Tensor
    levels: Tensor
    enumerated: Tensor
    stride: Tensor
    states: Tensor


def _missing_levels(
    gaps: Tensor, space: CovariateSpace, unit: Tensor, first_row: Tensor, couple: bool, cap: int
) -> _MissingLevels:
    """List the missing categorical entries and decide which are enumerated within the cap."""
    at = space.on(gaps.device)
    missing = torch.zeros_like(gaps)
    missing[:, at.categorical] = gaps[:, at.categorical]
    if couple and any(space.static):  # a visit-constant entry stands in the patient's first row
        missing &= (first_row[unit] == torch.arange(len(unit)))[:, None] | ~at.static
    row, column = missing.nonzero(as_tuple=True)
    owner, levels = unit[row], torch.tensor(space.levels)[column]

    # Log size of the joint table of each entry and those before it in its unit.
    size = levels.double().log()
    running = size.cumsum(0)
    first = torch.ones_like(owner, dtype=torch.bool)
    first[1:] = owner[1:] != owner[:-1]
    before = torch.zeros(len(first_row), dtype=torch.double)
    before[owner[first]] = (running - size)[first]
    running = running - before[owner]
    total = torch.zeros_like(before).index_add(0, owner, size)
    enumerated = (total[owner] if couple else running) <= math.log(cap) + 1e-9
    stride = torch.where(enumerated, (running - size).exp().round(), 1.0).long()
    states = torch.zeros_like(before).index_add(0, owner[enumerated], size[enumerated])
    return _MissingLevels(owner, row, column, levels, enumerated, stride, states.exp().round().long())


def fill(distribution: FactorisedDistribution, batch: Batch, space: CovariateSpace, eps: StandardDraws) -> Tensor:
    """Fill gaps by draws (S×N×Q), shared within a patient if visit-constant.

    `eps` is of each row; or one for all, if the distribution has no paths and no dependence.
    """
    x = distribution.mean + distribution.var.sqrt() * correlated(eps.x, distribution, batch)
    if space.categorical:
        categorical = space.on(x.device).categorical
        levels = draw_levels(distribution, space, eps.uniform[: len(x)], batch)
        x = x.index_copy(-1, categorical, levels[..., categorical].to(x.dtype))
    return torch.where(batch.x_mask, batch.x, share_static(x, batch, space))


def _score_factor(log_prob: Tensor) -> Tensor:
    """Return the weight of each draw of each unit (S'×units), from the log probabilities of the sampled levels.

    Its value is 1. Its gradient turns that of a weighted sum Σ_s f_s into the score-function estimator
    Σ_s f_s (g_s − mean of the other g) = Σ_s (f_s − mean of the other f) g_s, with g_s the gradient of log_prob_s.
    """
    score = log_prob - log_prob.detach()
    others = (score.sum(0) - score) / (len(score) - 1)
    return 1.0 + score - others
