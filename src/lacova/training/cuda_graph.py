"""A computation on batches recorded once as a CUDA graph and replayed: no launch costs, no waiting host.

A graph has fixed shapes. Batches are copied into buffers of a common size, the rest of which holds rows, scenarios and
pairs that count for nothing; a batch that does not fit makes larger buffers and records anew.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from lacova.covariates.scenarios import Plan
from lacova.data.batches import Batch, Blocks
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.training.loader import IndexedBatch, TrainingBatch, tensors

log = logging.getLogger("lacova")
ROOM = 1.15  # how much larger buffers are than the batch that asked for them, where batches differ
WARM_UP = 3  # runs before recording, in which libraries set themselves up


def available(device: torch.device) -> bool:
    """Whether computations on this device can be captured."""
    return device.type == "cuda"


class Captured:
    """`run(training_batch, weight)` as a graph.

    Args:
        run: what to do with a batch; everything it reads beside its arguments must stay where it is in memory.
        generator: the source of its noise.
        units: most units of a batch.
        undo: makes a copy of what `run` changes, and returns a function that puts it back: for the warm-up.
        give_up: called where nothing can be recorded; `run` is then called batch by batch.
    """

    def __init__(
        self, run: Callable[[TrainingBatch | IndexedBatch, Any], Tensor], generator: torch.Generator, units: int,
        undo: Callable[[], Callable[[], None]] | None = None, give_up: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.run, self.generator, self.units, self.undo, self.give_up = run, generator, units, undo, give_up
        self._eager = False
        self._graphs: dict[tuple[bool, ...], _Graph] = {}

    def __call__(self, training_batch: TrainingBatch | IndexedBatch, weight: float) -> Tensor:
        """What `run` returns for this batch: a tensor that the next call overwrites."""
        kind, needed = _kind(training_batch), _sizes(training_batch)
        graph = self._graphs.get(kind)
        if not self._eager and (graph is None or not _fits(needed, graph.sizes)):
            known = {name: 0 for name in needed} if graph is None else graph.sizes
            sizes = {name: max(known[name], _room(size, name, training_batch)) for name, size in needed.items()}
            graph = self._record(training_batch, kind, sizes)
        if self._eager or graph is None:
            return self.run(training_batch, weight)
        return graph.replay(padded(training_batch, graph.sizes, self.units), weight)

    def _record(
        self, training_batch: TrainingBatch | IndexedBatch, kind: tuple[bool, ...], sizes: dict[str, int]
    ) -> _Graph | None:
        start, seed = time.perf_counter(), self.generator.initial_seed()
        restore = None if self.undo is None else self.undo()
        try:
            self._graphs[kind] = _Graph(self.run, self.generator, padded(training_batch, sizes, self.units), sizes)
        except RuntimeError as error:
            self._eager = True
            log.warning("steps cannot be captured and are taken one by one: %s", str(error).split("\n")[0])
            _forget(self.generator)
            if self.give_up is not None:
                self.give_up()
        else:
            room = ", ".join(f"{size} {name}" for name, size in sizes.items() if size)
            log.info("captured a step for %s, in %.1f s", room, time.perf_counter() - start)
        if restore is not None:
            restore()
        self.generator.manual_seed(seed)
        return self._graphs.get(kind)


class _Graph:
    def __init__(
        self,
        run: Callable[[TrainingBatch | IndexedBatch, Any], Tensor],
        generator: torch.Generator,
        training_batch: TrainingBatch | IndexedBatch,
        sizes: dict[str, int],
    ) -> None:
        self.sizes = sizes
        self.weight = torch.ones((), device=next(tensors(training_batch)).device)
        self.training_batch = _map(training_batch, torch.clone)
        self.inputs = list(tensors(self.training_batch))
        self._given: Sequence[Tensor | None] = [None] * len(self.inputs)
        self._weight = 1.0
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                run(
                    _map(self.training_batch, _same), self.weight
                )  # objects of its own: what they cache must not be recorded
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)
        with _undisturbed(), torch.cuda.graph(self.graph):
            self.output = run(_map(self.training_batch, _same), self.weight)

    def replay(self, training_batch: TrainingBatch | IndexedBatch, weight: float) -> Tensor:
        given = list(tensors(training_batch))
        for k, (place, value) in enumerate(zip(self.inputs, given, strict=True)):
            if self._given[k] is not value:  # some come back as they were
                place.copy_(value)
        self._given = given
        if weight != self._weight:
            self._weight = weight
            self.weight.fill_(weight)
        self.graph.replay()
        return self.output


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection meanwhile: a graph of another model, should it be collected, would spoil the recording."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _forget(generator: torch.Generator) -> None:
    """That a recording was under way: outside of one, a generator that takes part in it gives no numbers."""
    if generator.device.type == "cuda":
        generator.graphsafe_set_state(torch.Generator(generator.device).graphsafe_get_state())


def padded(
    training_batch: TrainingBatch | IndexedBatch, sizes: dict[str, int], units: int
) -> TrainingBatch | IndexedBatch:
    """The same batch in larger tensors, with one patient more, whose rows are not real."""
    rows = sizes["rows"]
    if isinstance(training_batch, IndexedBatch):
        return replace(
            training_batch, rows=_grow(training_batch.rows, rows, 0), real=_grow(training_batch.real, rows, False),
            open=_grow(training_batch.open, sizes["open"], 0), open_real=_grow(training_batch.open_real, sizes["open"], 0),
        )  # fmt: skip
    hidden, visits = training_batch.hidden, sizes["visits"] or None
    return TrainingBatch(
        _pad_batch(training_batch.shown, rows, units, visits), _pad_plan(training_batch.how, sizes, units),
        None if hidden is None else _pad_batch(hidden, rows, units, visits),
    )  # fmt: skip


def _kind(training_batch: TrainingBatch | IndexedBatch) -> tuple[bool, ...]:
    """What a graph cannot leave open."""
    if isinstance(training_batch, IndexedBatch):
        return (len(training_batch.open) > 0,)
    how = training_batch.how
    return len(how.line) > 0, how.draws_levels, training_batch.hidden is None, len(how.open) > 0


def _room(size: int, name: str, training_batch: TrainingBatch | IndexedBatch) -> int:
    """Loader by reference come in equal batches, but for the last; of others there may be more another time."""
    if isinstance(training_batch, IndexedBatch) and name == "rows":
        return size
    return math.ceil(size * ROOM) + (1 if name in ("lines", "scenarios") else 0)


def _sizes(training_batch: TrainingBatch | IndexedBatch) -> dict[str, int]:
    if isinstance(training_batch, IndexedBatch):
        return {"rows": len(training_batch.rows), "open": len(training_batch.open)}
    how = training_batch.how
    visits = max(training_batch.shown.longest or 0, 0 if how.pad is None else how.pad.places.shape[1])
    return {
        "rows": len(training_batch.shown), "lines": len(how.row), "scenarios": len(how.probability), "pairs": len(how.line),
        "open": len(how.open), "visits": visits,
    }  # fmt: skip


def _fits(needed: dict[str, int], sizes: dict[str, int]) -> bool:
    """With a line and a scenario to spare, for the padding to stand in."""
    spare = {"lines": 1, "scenarios": 1}
    return all(size + spare.get(name, 0) <= sizes[name] for name, size in needed.items())


def _grow(values: Tensor, size: int, filler: float, dim: int = 0) -> Tensor:
    more = size - values.shape[dim]
    if more == 0:
        return values
    shape = [*values.shape]
    shape[dim] = more
    return torch.cat([values, values.new_full(shape, filler)], dim)


def _pad_batch(batch: Batch, rows: int, units: int, visits: int | None) -> Batch:
    given = batch.conditional_prior
    if given is not None:
        distribution = given.distribution
        given = ConditionalPrior(
            FactorisedDistribution(
                _grow(distribution.mean, rows, 0),
                _grow(distribution.var, rows, 1),
                _grow(distribution.log_prob, rows, 0),
            ),
            _grow(given.log_marginal, rows, 0),
        )
    scale = batch.scale
    if not isinstance(scale, Tensor):
        scale = torch.full((), scale, dtype=batch.x.dtype, device=batch.x.device)
    return Batch(
        _grow(batch.y, rows, 0), _grow(batch.y_mask, rows, False), _grow(batch.x, rows, 0),
        _grow(batch.x_mask, rows, True), _grow(batch.patient, rows, units), scale, given, units + 1,
        _grow(torch.ones(len(batch), device=batch.x.device, dtype=batch.x.dtype), rows, 0), visits,
    )  # fmt: skip


def _pad_plan(how: Plan, sizes: dict[str, int], units: int) -> Plan:
    lines, scenarios, pairs, rows = (sizes[name] for name in ("lines", "scenarios", "pairs", "rows"))
    coupled = how.pad is not None
    pad = how.pad
    if pad is not None:
        places, filled = (_grow(part, sizes["visits"], 0, 1) for part in pad)
        pad = Blocks(_grow(places, scenarios, 0), _grow(filled, scenarios, False))
    return replace(
        how, row=_grow(how.row, lines, 0), scenario=_grow(how.scenario, lines, scenarios - 1),
        sample=_grow(how.sample, lines, 0), first=_grow(how.first, lines, lines - 1),
        unit=_grow(how.unit, scenarios, 0), draw=_grow(how.draw, scenarios, 0),
        probability=_grow(how.probability, scenarios, 0),
        line=_grow(how.line, pairs, lines - 1), entry_row=_grow(how.entry_row, pairs, 0),
        entry_column=_grow(how.entry_column, pairs, 0), place=_grow(how.place, pairs, scenarios - 1),
        code=_grow(how.code, pairs, 0), listed=_grow(how.listed, pairs, True), lots=_grow(how.lots, rows, False),
        row_unit=_grow(how.row_unit, rows, units if coupled else rows - 1),
        open=_grow(how.open, sizes["open"], 0), open_real=_grow(how.open_real, sizes["open"], 0),
        pad=pad, units=units + 1 if coupled else rows,
    )  # fmt: skip


def _same(value: Tensor) -> Tensor:
    return value


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A training_batch with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Batch | Plan | FactorisedDistribution | ConditionalPrior | IndexedBatch):
        return replace(value, **{part.name: _map(getattr(value, part.name), change) for part in fields(value)})
    if isinstance(value, tuple):
        return type(value)(*(_map(part, change) for part in value))
    return value
