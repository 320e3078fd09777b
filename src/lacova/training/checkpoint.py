"""How far training has come, and a file that keeps it, from which a fit that was killed goes on to the same weights."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lacova import __version__
from lacova.data.errors import DataError
from lacova.data.io.archive import StorageError, pack, read, unpack, write
from lacova.data.io.atomic import sweep
from lacova.data.io.files import check_folder
from lacova.inference.vae import ConditionalVAE
from lacova.training.loader import Loader
from lacova.training.options import FitOptions

Record = dict[str, float]

ROOM = 3  # times the size of a checkpoint: the old file, the new one, and something to spare
KIND = "checkpoint"
SHOWN = 40  # characters of a value that an error repeats


@dataclass
class State:
    """How far training has come, beside the weights and the optimiser; everything that the rest of it depends on.

    Attributes:
        epoch, step: those that come next, from 0; `step` counts within the epoch.
        sums: of the terms over the steps of the epoch so far.
        records: one per epoch.
        best, best_epoch, best_weights: the highest validation score, where it was reached, and with what.
    """

    sums: Tensor
    epoch: int = 0
    step: int = 0
    records: list[Record] = field(default_factory=list)
    best: float = -math.inf
    best_epoch: int = 0
    best_weights: dict[str, Any] | None = None


class Checkpoint:
    """A file that training writes now and then, whole or not at all, and goes on from where there is one.

    Args:
        path: the file.
        every: steps from one time of writing to the next.
        keep: leave the file when training has ended well, as it then stands.
        model: what the fit is of, by name, as JSON; options and rows are added to it.
    """

    def __init__(self, path: str | os.PathLike[str], every: int, keep: bool, model: Mapping[str, Any]) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"checkpoint_every must be a whole number of at least 1, got {every!r}.")
        self.path, self.every, self.keep = Path(os.path.realpath(path)), every, keep
        self._identity = dict(model)
        self._tried = self._written = (0, 0)  # epoch and step of the last time, and of the last that went well
        check_folder(self.path.parent)
        try:
            if self.path.is_dir():
                raise DataError(f"{self.path} is a folder; name a file for the checkpoint.")
            sweep(self.path)
            tempfile.NamedTemporaryFile(prefix=".lacova-", dir=self.path.parent).close()
        except OSError as error:
            raise DataError(f"the checkpoint {self.path} cannot be written: {error.strerror or error}.") from None

    def begin(
        self, vae: ConditionalVAE, optimiser: torch.optim.Optimizer, state: State, train: Loader,
        validation: Loader | None, options: FitOptions,
    ) -> None:  # fmt: skip
        """Before training: go on from the file if there is one that belongs to this fit; see that there is room."""
        about: dict[str, Any] = {
            "version of lacova": __version__,
            "version of torch": str(torch.__version__).split("+")[0],
            **self._identity,
            **{k: pack(v, f"fit option {k}") for k, v in asdict(options).items() if k != "progress"},
            "the training rows": train.fingerprint(),
            "the validation rows": None if validation is None else validation.fingerprint(),
        }
        self._identity = json.loads(json.dumps(about))
        weights = sum(value.nbytes for value in vae.state_dict().values()) * (1 if validation is None else 2)
        need = ROOM * (weights + 2 * sum(parameter.nbytes for parameter in vae.parameters()))
        free = shutil.disk_usage(self.path.parent).free
        if free < need:
            raise DataError(
                f"the disk of {self.path.parent} has {free:,} bytes left, but checkpoints there need about {need:,}; "
                "make room, or choose another place for them."
            )
        if self.path.exists():
            self._read(vae, optimiser, state)

    def due(self, state: State, steps: int) -> bool:
        """Whether as many steps as were asked for have passed since the last time, with `steps` in an epoch."""
        epoch, step = self._tried
        return (state.epoch - epoch) * steps + state.step - step >= self.every

    def write(self, vae: ConditionalVAE, optimiser: torch.optim.Optimizer, state: State) -> None:
        """Write everything down, unless the file has it. A failure is a warning: training is worth more than this."""
        self._tried = state.epoch, state.step
        if self._written == self._tried:
            return
        columns = list(state.records[0]) if state.records else []
        document = {
            KIND: self._identity,
            "state": {"epoch": state.epoch, "step": state.step, "best_epoch": state.best_epoch,
                      "best": pack(state.best, "the validation score"), "columns": columns},
        }  # fmt: skip
        records = [[record[name] for name in columns] for record in state.records]
        tensors = {f"vae.{name}": value for name, value in vae.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in (state.best_weights or {}).items()}
        for number, moments in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": torch.as_tensor(value) for name, value in moments.items()}
        tensors |= {"sums": state.sums, "records": torch.tensor(records, dtype=torch.float64)}
        try:
            write(self.path, document, tensors)
        except OSError as error:
            warnings.warn(
                f"the checkpoint {self.path} cannot be written ({error.strerror or error}); training goes on.",
                stacklevel=2,
            )
        else:
            self._written = self._tried

    def end(self) -> None:
        """Training has ended well."""
        if not self.keep:
            self.path.unlink(missing_ok=True)

    def _read(self, vae: ConditionalVAE, optimiser: torch.optim.Optimizer, state: State) -> None:
        try:
            document, tensors = read(self.path)
        except StorageError as error:
            raise StorageError(f"{error} Without it, training starts again.") from None
        if KIND not in document:
            raise StorageError(f"{self.path} is no checkpoint; choose another name for that.")
        if document[KIND] != self._identity:
            what = _difference(document[KIND], self._identity)
            raise StorageError(
                f"the checkpoint {self.path} belongs to another fit: it differs in {what}. Fit as it was begun, or "
                "remove the file to start again."
            )
        try:
            _restore(document["state"], tensors, vae, optimiser, state)
        except (ValueError, KeyError, TypeError, RuntimeError, IndexError) as error:
            raise StorageError(
                f"the checkpoint {self.path} cannot be used: its parts do not fit together. Remove it to start again."
            ) from error
        self._tried = self._written = state.epoch, state.step


def _restore(
    stored: Mapping[str, Any], tensors: Mapping[str, Tensor], vae: ConditionalVAE, optimiser: torch.optim.Optimizer,
    state: State,
) -> None:  # fmt: skip
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in _part(tensors, "optimiser.").items():
        number, kind = name.split(".", 1)
        moments.setdefault(int(number), {})[kind] = value
    vae.load_state_dict(_part(tensors, "vae."))
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
    state.sums.copy_(tensors["sums"])
    rows = tensors["records"].tolist()
    state.records = [dict(zip(stored["columns"], row, strict=True)) for row in rows]
    state.epoch, state.step, state.best_epoch = (int(stored[name]) for name in ("epoch", "step", "best_epoch"))
    state.best, state.best_weights = float(unpack(stored["best"])), _part(tensors, "best.") or None


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Copies, which unlike tensors of a file begin where vector instructions like it."""
    return {name.removeprefix(prefix): value.clone() for name, value in tensors.items() if name.startswith(prefix)}


def _difference(there: Any, here: dict[str, Any]) -> str:
    """The names under which two identities differ, with their values where they are short."""
    if not isinstance(there, dict):
        return "everything"
    found = []
    for name in here | there:
        one, other = there.get(name), here.get(name)
        if one != other:
            texts = [json.dumps(value, ensure_ascii=False) for value in (one, other)]
            short = max(map(len, texts)) <= SHOWN
            found.append(f"{name} ({texts[0]} there, {texts[1]} here)" if short else name)
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
