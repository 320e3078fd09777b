"""A computation on batches, recorded once as a CUDA graph and replayed: no launch costs, and the host never waits.

A graph has fixed shapes. Batches are padded to a common size and copied into its inputs; a batch that does not fit
makes larger inputs and a new recording.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lacova.training.graph_inputs import inputs_for
from lacova.training.padding import fits, kind_of, padded, sizes_of, with_headroom
from lacova.training.training_batch import AnyBatch, map_tensors

log = logging.getLogger("lacova")
WARM_UP = 3  # runs before recording, in which libraries set themselves up

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
        kind, needed = kind_of(batch), sizes_of(batch)
        graph = self._graphs.get(kind)
        if not self._eager and (graph is None or not fits(needed, graph.sizes)):
            known = {} if graph is None else graph.sizes
            sizes = {name: max(known.get(name, 0), size) for name, size in with_headroom(needed, batch).items()}
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
        self.weight = torch.ones((), device=generator.device)
        self._last_weight = 1.0
        self.inputs = inputs_for(batch, generator.device)
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
        self.inputs.fill(batch)
        if weight != self._last_weight:
            self._last_weight = weight
            self.weight.fill_(weight)
        self.graph.replay()
        return self.output

    def _fresh(self) -> AnyBatch:
        """Return a new object around the same tensors: what an object caches must not enter the recording."""
        fresh: AnyBatch = map_tensors(self.inputs.batch, lambda value: value)
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
