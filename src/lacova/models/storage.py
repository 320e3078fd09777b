"""Loading a saved model. `archive` knows the file, `snapshot` what of a model is in it."""

from __future__ import annotations

import os

from lacova.data.io.archive import StorageError, read, written_by
from lacova.models.base import Model, resolve_device
from lacova.models.conditional import CVAE, GPPriorVAE
from lacova.models.literature import GPPVAE, GPVAE, HIVAE, LVAE
from lacova.models.snapshot import put_together
from lacova.models.unconditional import MIWAE, VAE, NotMIWAE
from lacova.training.checkpoint import KIND

CLASSES: dict[str, type[Model]] = {
    cls.__name__: cls for cls in (CVAE, GPPriorVAE, LVAE, GPPVAE, GPVAE, HIVAE, VAE, MIWAE, NotMIWAE)
}


def load(path: str | os.PathLike[str], device: str = "cpu") -> Model:
    """A model as `model.save(path)` wrote it: it predicts the same, bit for bit on the same machine.

    Nothing in the file is executed. A file that is damaged, foreign, tampered with or too new is a `StorageError`.

    Args:
        path: the file.
        device: where the model goes: "cpu", "cuda", "auto", or any torch device, wherever it was trained.
    """
    target = resolve_device(device)
    document, tensors = read(path)
    if KIND in document:
        raise StorageError(f"{os.fspath(path)} is a checkpoint, of training that has not ended: go on with it in fit.")
    try:
        model = put_together(document, tensors, CLASSES)
    except MemoryError:
        raise
    except Exception as error:  # whatever it is that the content makes stumble, the content is at fault
        reason = str(error)[:200] if isinstance(error, ValueError) else "its parts do not fit together"
        reason = "".join(c if c.isprintable() else " " for c in reason).rstrip(". ")
        raise StorageError(f"{os.fspath(path)} cannot be loaded: {reason}.") from error
    model._written_by = written_by(document)
    model._fitted()[1].to(target)
    return model
