"""A computation on batches, recorded once as a CUDA graph and replayed: no launch costs, and the host never waits.

A graph has fixed shapes. Batches are copied into buffers of a common size and padded with rows, scenarios and pairs of
weight zero; a batch that does not fit makes larger buffers and a new recording.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lacova.covariates.scenarios import Plan
from lacova.data.batches import Batch, Blocks
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.training.loader import IndexedBatch, TrainingBatch, tensors

log = logging.getLogger("lacova")
HEADROOM = 1.15  # buffers exceed the batch that needed them by this factor, where batches differ
SPARE = ("lines", "scenarios", "slots")  # the padding has one of each to itself
WARM_UP = 3  # runs before recording, in which libraries set themselves up

AnyBatch = TrainingBatch | IndexedBatch
Run = Callable[[AnyBatch, Any], Tensor]


class Captured:
    """`run(batch, weight)` as a graph.

    Args:
        run: what to do with a batch; everything it reads beside its arguments must stay where it is in memory.
        generator: the source of its random numbers.
        units: most units of a batch.
        undo: makes a copy of what `run` changes, and returns a function that puts it back: for the warm-up.
        give_up: called where nothing can be recorded; `run` is then called batch by batch.
    """

    def __init__(
        self, run: Run, generator: torch.Generator, units: int, undo: Callable[[], Callable[[], None]] | None = None,
        give_up: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.run, self.generator, self.units, self.undo, self.give_up = run, generator, units, undo, give_up
        self._eager = False
        self._graphs: dict[tuple[bool, ...], _Graph] = {}

    def __call__(self, batch: AnyBatch, weight: float) -> Tensor:
        """Return what `run` returns for this batch: a tensor that the next call overwrites."""
        kind, needed = _kind(batch), _sizes(batch)
        graph = self._graphs.get(kind)
        if not self._eager and (graph is None or not _fits(needed, graph.sizes)):
            known = {name: 0 for name in needed} if graph is None else graph.sizes
            sizes = {name: max(known[name], _with_headroom(size, name, batch)) for name, size in needed.items()}
            graph = self._record(batch, kind, sizes)
        if self._eager or graph is None:
            return self.run(batch, weight)
        return graph.replay(padded(batch, graph.sizes, self.units), weight)

    def _record(self, batch: AnyBatch, kind: tuple[bool, ...], sizes: dict[str, int]) -> _Graph | None:
        start, seed = time.perf_counter(), self.generator.initial_seed()
        restore = None if self.undo is None else self.undo()
        try:
            self._graphs[kind] = _Graph(self.run, self.generator, padded(batch, sizes, self.units), sizes)
        except RuntimeError as error:
            self._eager = True
            log.warning("steps cannot be captured and are taken one by one: %s", str(error).split("\n")[0])
            _leave_recording(self.generator)
            if self.give_up is not None:
                self.give_up()
        else:
            shown = ", ".join(f"{size} {name}" for name, size in sizes.items() if size)
            log.info("captured a step for %s, in %.1f s", shown, time.perf_counter() - start)
        if restore is not None:
            restore()
        self.generator.manual_seed(seed)
        return self._graphs.get(kind)


class _Graph:
    def __init__(self, run: Run, generator: torch.Generator, batch: AnyBatch, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.weight = torch.ones((), device=next(tensors(batch)).device)
        self.batch = _map_tensors(batch, torch.clone)
        self.inputs = list(tensors(self.batch))
        self._last_inputs: Sequence[Tensor | None] = [None] * len(self.inputs)
        self._last_weight = 1.0
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                run(self._fresh(), self.weight)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)
        with _no_garbage_collection(), torch.cuda.graph(self.graph):
            self.output = run(self._fresh(), self.weight)

    def replay(self, batch: AnyBatch, weight: float) -> Tensor:
        inputs = list(tensors(batch))
        for k, (buffer, value) in enumerate(zip(self.inputs, inputs, strict=True)):
            if self._last_inputs[k] is not value:  # some come back as they were
                buffer.copy_(value)
        self._last_inputs = inputs
        if weight != self._last_weight:
            self._last_weight = weight
            self.weight.fill_(weight)
        self.graph.replay()
        return self.output

    def _fresh(self) -> AnyBatch:
        """Return a new object around the same tensors: what an object caches must not enter the recording."""
        fresh: AnyBatch = _map_tensors(self.batch, lambda value: value)
        return fresh


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect no garbage while recording: freeing a graph of another model would spoil the recording."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _leave_recording(generator: torch.Generator) -> None:
    """Give the generator a new state: one that took part in a failed recording yields no numbers outside of it."""
    if generator.device.type == "cuda":
        generator.graphsafe_set_state(torch.Generator(generator.device).graphsafe_get_state())


def padded(batch: AnyBatch, sizes: dict[str, int], units: int) -> AnyBatch:
    """Return the same batch in larger tensors, with one patient more, whose rows are not real."""
    rows = sizes["rows"]
    if isinstance(batch, IndexedBatch):
        return replace(
            batch, rows=_pad(batch.rows, rows, 0), real=_pad(batch.real, rows, False),
            open=_pad(batch.open, sizes["open"], 0), open_real=_pad(batch.open_real, sizes["open"], 0),
        )  # fmt: skip
    masked, visits = batch.masked, sizes["visits"] or None
    return TrainingBatch(
        _pad_batch(batch.batch, rows, units, visits), _pad_plan(batch.plan, sizes, units),
        None if masked is None else _pad_batch(masked, rows, units, visits),
    )  # fmt: skip


def _kind(batch: AnyBatch) -> tuple[bool, ...]:
    """Return what decides which operations a graph has."""
    if isinstance(batch, IndexedBatch):
        return (len(batch.open) > 0,)
    plan = batch.plan
    return len(plan.line) > 0, plan.draws_levels, batch.masked is None, len(plan.open) > 0


def _with_headroom(size: int, name: str, batch: AnyBatch) -> int:
    """Return a size with headroom. Batches by index have equal numbers of rows, but for the last; others vary."""
    if isinstance(batch, IndexedBatch) and name == "rows":
        return size
    if name == "slots":
        return size + 1
    return math.ceil(size * HEADROOM) + (1 if name in SPARE else 0)


def _sizes(batch: AnyBatch) -> dict[str, int]:
    if isinstance(batch, IndexedBatch):
        return {"rows": len(batch.rows), "open": len(batch.open)}
    plan = batch.plan
    visits = max(batch.batch.longest or 0, 0 if plan.pad is None else plan.pad.places.shape[1])
    return {
        "rows": len(batch.batch), "lines": len(plan.row), "scenarios": len(plan.probability), "pairs": len(plan.line),
        "open": len(plan.open), "visits": visits, "slots": plan.slots,
    }  # fmt: skip


def _fits(needed: dict[str, int], sizes: dict[str, int]) -> bool:
    """Return whether a batch fits, with a line and a scenario to spare for the padding."""
    return all(size + (name in SPARE) <= sizes[name] for name, size in needed.items())


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
        padded = FactorisedDistribution(_pad(p.mean, rows, 0), _pad(p.var, rows, 1), _pad(p.log_prob, rows, 0))
        prior = ConditionalPrior(padded, _pad(prior.log_marginal, rows, 0))
    scale = batch.scale
    if not isinstance(scale, Tensor):
        scale = torch.full((), scale, dtype=batch.x.dtype, device=batch.x.device)
    return Batch(
        _pad(batch.y, rows, 0), _pad(batch.y_mask, rows, False), _pad(batch.x, rows, 0),
        _pad(batch.x_mask, rows, True), _pad(batch.patient, rows, units), scale, prior, units + 1,
        _pad(torch.ones(len(batch), device=batch.x.device, dtype=batch.x.dtype), rows, 0), visits,
    )  # fmt: skip


def _pad_plan(plan: Plan, sizes: dict[str, int], units: int) -> Plan:
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
        open=_pad(plan.open, sizes["open"], 0), open_real=_pad(plan.open_real, sizes["open"], 0),
        pad=pad, units=units + 1 if coupled else rows, slots=sizes["slots"],
    )  # fmt: skip


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a batch with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _map_tensors(getattr(value, f.name), change) for f in fields(value)})
    if isinstance(value, tuple):
        return type(value)(*(_map_tensors(part, change) for part in value))
    return value
