"""Batches of one size: padded with rows that are not real, scenarios of weight zero and pairs that write to padding.

What is padded belongs to one patient more. Batches by reference are padded on the host, before anything is sent.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from lacova.covariates.scenarios import Plan, RowPlan
from lacova.data.batches import Batch, Blocks
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.training.training_batch import AnyBatch, IndexedBatch, TrainingBatch

HEADROOM = 1.15  # buffers exceed the batch that needed them by this factor, where batches differ
SPARE = {"lines": 1, "scenarios": 1, "slots": 1}  # places that padding takes itself


def padded(batch: AnyBatch, sizes: dict[str, int], units: int) -> AnyBatch:
    """Return the same batch in larger tensors, with one patient more, whose rows are not real.

    Args:
        batch: some units.
        sizes: by the names that `sizes_of` has.
        units: most units of a batch.
    """
    rows, visits = sizes["rows"], sizes.get("visits") or None
    plan = _pad_plan(batch.plan, sizes, units)
    if isinstance(batch, IndexedBatch):
        return replace(
            batch, rows=_pad(batch.rows, rows, 0), real=_pad(batch.real, rows, False),
            patient=_pad(batch.patient, rows, units), plan=plan, count=units + 1, longest=visits,
        )  # fmt: skip
    assert isinstance(plan, Plan)
    masked = None if batch.masked is None else _pad_batch(batch.masked, rows, units, visits)
    return TrainingBatch(_pad_batch(batch.batch, rows, units, visits), plan, masked)


def kind_of(batch: AnyBatch) -> tuple[bool, ...]:
    """Return what decides which operations a graph has."""
    plan, masked = batch.plan, batch.masked if isinstance(batch, IndexedBatch) else batch.masked is not None
    if isinstance(plan, RowPlan):
        return masked, len(plan.open) > 0
    return masked, len(plan.open) > 0, len(plan.line) > 0, plan.draws_levels


def sizes_of(batch: AnyBatch) -> dict[str, int]:
    """Return the sizes of a batch that differ from those of others."""
    plan, rows = batch.plan, batch if isinstance(batch, IndexedBatch) else batch.batch
    sizes = {"rows": len(rows), "open": len(plan.open)}
    if isinstance(plan, RowPlan):
        return sizes
    visits = max(rows.longest or 0, 0 if plan.pad is None else plan.pad.places.shape[1])
    return sizes | {
        "lines": len(plan.row), "scenarios": len(plan.probability), "pairs": len(plan.line), "visits": visits,
        "slots": plan.slots,
    }  # fmt: skip


def with_headroom(sizes: dict[str, int], batch: AnyBatch) -> dict[str, int]:
    """Return sizes that also fit batches somewhat larger. Batches of rows have equal numbers of them."""
    by_row = (batch if isinstance(batch, IndexedBatch) else batch.batch).longest is None
    return {
        name: size if name == "rows" and by_row else math.ceil(size * _headroom(name)) + SPARE.get(name, 0)
        for name, size in sizes.items()
    }


def _headroom(name: str) -> float:
    return 1.0 if name == "slots" else HEADROOM  # which batches have in common, nearly always


def fits(needed: dict[str, int], sizes: dict[str, int]) -> bool:
    """Return whether a batch fits, with a line and a scenario to spare for the padding."""
    return all(size + SPARE.get(name, 0) <= sizes[name] for name, size in needed.items())


def _pad(values: Tensor, size: int, filler: float, dim: int = 0) -> Tensor:
    more = size - values.shape[dim]
    if more == 0:
        return values
    shape = [*values.shape]
    shape[dim] = more
    return torch.cat([values, values.new_full(shape, filler)], dim)


def _pad_batch(batch: Batch, rows: int, units: int, visits: int | None) -> Batch:
    prior = batch.conditional_prior
    if prior is not None:
        p = prior.distribution
        paths = None if p.paths is None else p.paths.with_parts(*(_pad(part, rows, 0) for part in p.paths.parts))
        filled = FactorisedDistribution(_pad(p.mean, rows, 0), _pad(p.var, rows, 1), _pad(p.log_prob, rows, 0), paths)
        prior = ConditionalPrior(filled, _pad(prior.log_marginal, rows, 0))
    scale = batch.scale
    if not isinstance(scale, Tensor):
        scale = torch.full((), scale, dtype=batch.x.dtype, device=batch.x.device)
    return Batch(
        _pad(batch.y, rows, 0), _pad(batch.y_mask, rows, False), _pad(batch.x, rows, 0),
        _pad(batch.x_mask, rows, True), _pad(batch.patient, rows, units), scale, prior, units + 1,
        _pad(torch.ones(len(batch), device=batch.x.device, dtype=batch.x.dtype), rows, 0), visits,
    )  # fmt: skip


def _pad_plan(plan: Plan | RowPlan, sizes: dict[str, int], units: int) -> Plan | RowPlan:
    open_rows, open_real = _pad(plan.open, sizes["open"], 0), _pad(plan.open_real, sizes["open"], 0)
    if isinstance(plan, RowPlan):
        return RowPlan(open_rows, open_real)
    lines, scenarios, pairs, rows = (sizes[name] for name in ("lines", "scenarios", "pairs", "rows"))
    coupled = plan.pad is not None
    pad = plan.pad
    if pad is not None:
        places, filled = (_pad(part, sizes["visits"], 0, 1) for part in pad)
        pad = Blocks(_pad(places, scenarios, 0), _pad(filled, scenarios, False))
    return replace(
        plan, row=_pad(plan.row, lines, 0), scenario=_pad(plan.scenario, lines, scenarios - 1),
        sample=_pad(plan.sample, lines, 0), first=_pad(plan.first, lines, lines - 1),
        unit=_pad(plan.unit, scenarios, 0), slot=_pad(plan.slot, scenarios, sizes["slots"] - 1),
        draw=_pad(plan.draw, scenarios, 0), probability=_pad(plan.probability, scenarios, 0),
        line=_pad(plan.line, pairs, lines - 1), entry_row=_pad(plan.entry_row, pairs, 0),
        entry_column=_pad(plan.entry_column, pairs, 0), entry_scenario=_pad(plan.entry_scenario, pairs, scenarios - 1),
        code=_pad(plan.code, pairs, 0), enumerated=_pad(plan.enumerated, pairs, True),
        sampled=_pad(plan.sampled, rows, False),
        row_unit=_pad(plan.row_unit, rows, units if coupled else rows - 1),
        open=open_rows, open_real=open_real, pad=pad, units=units + 1 if coupled else rows, slots=sizes["slots"],
    )  # fmt: skip
