"""The state of training, and a file of it from which a fit that was killed continues to the same weights."""

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
from lacova.data.io.atomic import PRIVATE, sweep
from lacova.data.io.files import check_folder
from lacova.inference.vae import ConditionalVAE
from lacova.training.loader import Loader
from lacova.training.options import FitOptions

Record = dict[str, float]

DISK_FACTOR = 3  # free space per size of a checkpoint: the old file, the new one, and something to spare
CHECKPOINT_KEY = "checkpoint"  # only documents of checkpoints have it
MAX_QUOTED = 40  # characters of a value that an error repeats
MAX_DIFFERENCES = 3  # names that an error lists


@dataclass
class State:
    """All that the rest of training depends on beside the weights and the optimiser.

    Attributes:
        sums: sums of the terms over the steps of the current epoch.
        epoch, step: the next epoch and step, from 0; `step` counts within the epoch.
        records: one record per epoch.
        best, best_epoch, best_weights: the highest validation score, its epoch and its weights.
        rate_share: what is left of the rates, after they were too high for the table.
    """

    sums: Tensor
    epoch: int = 0
    step: int = 0
    records: list[Record] = field(default_factory=list)
    best: float = -math.inf
    best_epoch: int = 0
    best_weights: dict[str, Any] | None = None
    rate_share: float = 1.0


def member_file(path: str | os.PathLike[str], number: int) -> Path:
    """Return the checkpoint of a member, numbered from 1, beside that of its fit."""
    return Path(f"{os.fspath(path)}.member{number}")


def remove_checkpoints(path: Path) -> None:
    """Remove the checkpoint of a fit and those of its members."""
    number = 1
    while (member := member_file(path, number)).exists():
        member.unlink()
        number += 1
    path.unlink(missing_ok=True)


class Checkpoint:
    """A file that training writes now and then, whole or not at all, and continues from if it exists.

    Args:
        path: the file.
        every: number of steps from one checkpoint to the next.
        keep: leave the last checkpoint in place when training has ended.
        model: settings and schema of the model, by name, as JSON; options and rows are added to them.
        part_of_several: whether training goes on with other models, so that the file stays until all are trained.
    """

    def __init__(
        self, path: str | os.PathLike[str], every: int, keep: bool, model: Mapping[str, Any], *,
        part_of_several: bool = False,
    ) -> None:  # fmt: skip
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"checkpoint_every must be a whole number of at least 1, got {every!r}.")
        self.path, self.every, self.keep = Path(os.path.realpath(path)), every, keep or part_of_several
        self._keep_at_end = keep
        self._identity = dict(model)
        self._tried = self._written = (0, 0)  # epoch and step of the last attempt, and of the last success
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
        """Prepare a fit: check that the disk has room, and restore the state of the file if there is one.

        A file that belongs to another fit is refused.
        """
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
        needed = DISK_FACTOR * (weights + 2 * sum(parameter.nbytes for parameter in vae.parameters()))
        free = shutil.disk_usage(self.path.parent).free
        if free < needed:
            raise DataError(
                f"the disk of {self.path.parent} has {free:,} bytes left, but checkpoints there need about {needed:,}; "
                "make room, or choose another place for them."
            )
        if self.path.exists():
            self._read(vae, optimiser, state)

    def due(self, state: State, steps: int) -> bool:
        """Return whether it is time for the next checkpoint; an epoch has `steps` steps."""
        epoch, step = self._tried
        return (state.epoch - epoch) * steps + state.step - step >= self.every

    def write(self, vae: ConditionalVAE, optimiser: torch.optim.Optimizer, state: State) -> None:
        """Write the state, unless the file holds it already. A failure is only a warning: training continues."""
        self._tried = state.epoch, state.step
        if self._written == self._tried:
            return
        columns = list(state.records[0]) if state.records else []
        document = {
            CHECKPOINT_KEY: self._identity,
            "state": {"epoch": state.epoch, "step": state.step, "best_epoch": state.best_epoch, "columns": columns,
                      "rate_share": state.rate_share, "best": pack(state.best, "the validation score")},
        }  # fmt: skip
        records = [[record[name] for name in columns] for record in state.records]
        tensors = {f"vae.{name}": value for name, value in vae.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in (state.best_weights or {}).items()}
        for number, moments in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": torch.as_tensor(value) for name, value in moments.items()}
        tensors |= {"sums": state.sums, "records": torch.tensor(records, dtype=torch.float64)}
        try:
            write(self.path, document, tensors, PRIVATE)  # weights, and what the rows made of them
        except OSError as error:
            warnings.warn(
                f"the checkpoint {self.path} cannot be written ({error.strerror or error}); training goes on.",
                stacklevel=2,
            )
        else:
            self._written = self._tried

    def end(self, *, all_done: bool = False) -> None:
        """Remove the file after training, unless it is to be kept, or until all models are trained."""
        if not (self._keep_at_end if all_done else self.keep):
            self.path.unlink(missing_ok=True)

    def _read(self, vae: ConditionalVAE, optimiser: torch.optim.Optimizer, state: State) -> None:
        try:
            document, tensors = read(self.path)
        except StorageError as error:
            raise StorageError(f"{error} Without it, training starts again.") from None
        if CHECKPOINT_KEY not in document:
            raise StorageError(f"{self.path} is no checkpoint; choose another name for that.")
        if document[CHECKPOINT_KEY] != self._identity:
            what = _differences(document[CHECKPOINT_KEY], self._identity)
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
    state.rate_share = float(stored["rate_share"])
    state.best, state.best_weights = float(unpack(stored["best"])), _part(tensors, "best.") or None


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors with a prefix, without it, as copies: tensors of a file may not be aligned in memory."""
    return {name.removeprefix(prefix): value.clone() for name, value in tensors.items() if name.startswith(prefix)}


def _differences(stored: Any, current: dict[str, Any]) -> str:
    """Return the names under which two identities differ, with both values where they are short."""
    if not isinstance(stored, dict):
        return "everything"
    names = []
    for name in current | stored:
        if stored.get(name) != current.get(name):
            there, here = (json.dumps(part.get(name), ensure_ascii=False) for part in (stored, current))
            short = max(len(there), len(here)) <= MAX_QUOTED
            names.append(f"{name} ({there} there, {here} here)" if short else name)
    more = len(names) - MAX_DIFFERENCES
    return ", ".join(names[:MAX_DIFFERENCES]) + (f" and {more} more" if more > 0 else "")
