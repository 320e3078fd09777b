"""Loading a saved model. `data.io.archive` reads the file, `snapshot` turns its parts into a model."""

from __future__ import annotations

import os

from lacova.data.io.archive import StorageError, read, written_by
from lacova.models.base import Model, resolve_device
from lacova.models.migration import migrated
from lacova.models.registry import models
from lacova.models.snapshot import put_together
from lacova.training.checkpoint import CHECKPOINT_KEY


def load(path: str | os.PathLike[str], device: str = "cpu") -> Model:
    """Load a model as `model.save(path)` wrote it: it predicts the same, bit for bit on the same machine.

    Nothing in the file is executed. A file that is damaged, foreign, tampered with or too new is a `StorageError`, and
    so is one with a part that is not registered: import the module that registers it first.

    Args:
        path: the file.
        device: where the model goes: "cpu", "cuda", "auto", or any torch device, wherever it was trained.
    """
    target = resolve_device(device)
    document, tensors = read(path)
    if CHECKPOINT_KEY in document:
        raise StorageError(f"{os.fspath(path)} is a checkpoint, of training that has not ended: go on with it in fit.")
    try:
        document, tensors = migrated(document, tensors)
        model = put_together(document, tensors, models())
    except MemoryError:
        raise
    except Exception as error:  # whatever part of the content it is that fails, the content is at fault
        reason = str(error)[:300] if isinstance(error, ValueError) else "its parts do not fit together"
        reason = "".join(c if c.isprintable() else " " for c in reason).rstrip(". ")
        raise StorageError(f"{os.fspath(path)} cannot be loaded: {reason}.") from error
    model._written_by = written_by(document)
    for vae in (model.fitted()[1], *model.members):
        vae.to(target)
    return model
