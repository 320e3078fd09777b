"""The inputs of a captured graph: where they lie, and how the next batch gets there."""

from __future__ import annotations

from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from lacova.training.training_batch import AnyBatch, IndexedBatch, map_tensors, tensors


class Inputs(Protocol):
    """A batch whose tensors stay where they are in memory."""

    batch: AnyBatch

    def fill(self, batch: AnyBatch) -> None:
        """Copy the values of a batch of the same sizes."""


def inputs_for(batch: AnyBatch, device: torch.device) -> Inputs:
    """Return the inputs that take batches like this one."""
    return PackedInputs(batch, device) if isinstance(batch, IndexedBatch) else CopiedInputs(batch)


class PackedInputs:
    """Tensors of the host, side by side in one buffer on the device: one copy per batch, for which nobody waits.

    Args:
        batch: one by reference, whose tensors are small.
        device: where the buffer is.
    """

    def __init__(self, batch: AnyBatch, device: torch.device) -> None:
        dtypes = [value.dtype for value in tensors(batch)]
        # The widest types come first, so that all tensors begin where their type allows.
        self._order = sorted(range(len(dtypes)), key=lambda k: (-dtypes[k].itemsize, str(dtypes[k])))
        values = self._sorted(batch)
        self._bytes = sum(value.nbytes for value in values)
        self.buffer = torch.empty(self._bytes, dtype=torch.uint8, device=device)
        places: dict[int, Tensor] = {}
        start = 0
        for k, value in zip(self._order, values, strict=True):
            stop = start + value.nbytes
            places[k], start = self.buffer[start:stop].view(value.dtype).view(value.shape), stop
        views = (places[k] for k in range(len(places)))
        self.batch: AnyBatch = map_tensors(batch, lambda value: next(views))
        self.fill(batch)

    def fill(self, batch: AnyBatch) -> None:
        # torch's allocator of pinned memory gives it to nobody else before the copy is done.
        packed = torch.empty(self._bytes, dtype=torch.uint8, pin_memory=self.buffer.is_cuda)
        start = 0
        for dtype, group in groupby(self._sorted(batch), lambda value: value.dtype):
            values = [value.flatten() for value in group]
            stop = start + sum(value.nbytes for value in values)
            torch.cat(values, out=packed[start:stop].view(dtype))
            start = stop
        self.buffer.copy_(packed, non_blocking=True)

    def _sorted(self, batch: AnyBatch) -> list[Tensor]:
        values = list(tensors(batch))
        return [values[k] for k in self._order]


class CopiedInputs:
    """Tensors of the device, each copied."""

    def __init__(self, batch: AnyBatch) -> None:
        self.batch: AnyBatch = map_tensors(batch, torch.clone)
        self._targets = list(tensors(self.batch))

    def fill(self, batch: AnyBatch) -> None:
        for target, value in zip(self._targets, tensors(batch), strict=True):
            target.copy_(value)
