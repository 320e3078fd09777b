"""Several processes that train one model: each takes its part of every batch, and sums make them one."""

from __future__ import annotations

import io
import logging
import os
import pickle
import socket
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import ProcessException, spawn

from lacova.training.interrupt import deferred_interrupt
from lacova.training.options import TrainingError

T = TypeVar("T")
RESULT = "result"


class OtherProcessError(TrainingError):
    """Another process has failed, so that this one cannot go on."""


class Team:
    """A process that trains alone; `Ranks` has others beside it.

    Attributes:
        rank, size: the number of this process, and how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """Whether it is this process that writes."""
        return self.rank == 0

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sums over all processes, in place; the same number of the same shapes everywhere."""

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return flag

    def broadcast(self, value: T) -> T:
        """What the main process has, its tensors on the host; numbers, texts, tensors, lists, tuples and dicts."""
        return value


SINGLE = Team()


class Ranks(Team):
    """One of the processes of the default process group.

    Whatever they do together, they first meet, over a group of their own on the host. A process that has failed comes
    to the next meeting, whatever it is for, and says why: so all end, and none waits for one that has gone.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._control: Any = dist.new_group(backend="gloo")

    def sum(self, tensors: Sequence[Tensor]) -> None:
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        flat = [torch.cat([tensor.detach().flatten() for tensor in group]) for group in by_type.values()]
        self._meet()
        for buffer, group in zip(flat, by_type.values(), strict=True):
            with _others():
                dist.all_reduce(buffer)
            for tensor, total in zip(group, buffer.split([tensor.numel() for tensor in group]), strict=True):
                tensor.detach().copy_(total.view_as(tensor))

    def any(self, flag: bool) -> bool:
        return self._meet(flag=flag)

    def broadcast(self, value: T) -> T:
        held = [None]
        if self.main:
            buffer = io.BytesIO()
            torch.save(value, buffer)
            held = [buffer.getvalue()]  # type: ignore[list-item]
        self._meet()
        dist.broadcast_object_list(held, src=0, group=self._control)
        found: T = torch.load(io.BytesIO(held[0]), map_location="cpu", weights_only=True)  # type: ignore[arg-type]
        return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """If what is done within fails in one process, it ends in all with that process's message."""
        try:
            yield
            self._meet()
        except OtherProcessError:
            raise
        except BaseException as error:
            with suppress(OtherProcessError):  # they have gone already
                self._meet(failure=f"{type(error).__name__}: {error}")
            raise

    def _meet(self, failure: str | None = None, flag: bool = False) -> bool:
        state = torch.tensor([failure is not None, flag], dtype=torch.int32)
        with _others():
            dist.all_reduce(state, op=dist.ReduceOp.MAX, group=self._control)
        failed, said = state.tolist()
        if failed:
            told: list[str | None] = [None] * self.size
            dist.all_gather_object(told, failure, group=self._control)
            rank, why = next((rank, why) for rank, why in enumerate(told) if why is not None)
            if failure is None:
                raise OtherProcessError(f"process {rank} of {self.size} failed: {why}")
        return bool(said)


def launch(function: Callable[[Team, torch.device], T], devices: int, nodes: int, device: str) -> T:
    """Call a function in `devices` processes on each of `nodes` machines, each with a device of its own.

    Under torchrun or SLURM, which start this very program as often as is wanted, every process calls the function
    itself. Otherwise processes are started here; function and result must then be such that pickle takes them.

    Args:
        function: takes its team and its device.
        devices, nodes: how many.
        device: "auto", "cpu" or "cuda".

    Returns:
        What the function returned: here, or in process 0 where processes were started; its tensors on the host.
    """
    for name, value in (("devices", devices), ("nodes", nodes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}, but several processes choose their own; give 'auto', 'cpu' or 'cuda'.")
    try:
        from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
        from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    except ImportError:
        raise TrainingError(
            "several processes need Lightning Fabric, which is not installed: pip install 'lacova[distributed]'."
        ) from None
    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if where == "cuda" and torch.cuda.device_count() < devices:
        raise ValueError(
            f"devices is {devices}, but there are {torch.cuda.device_count()} GPUs here; lower it, or use device='cpu'."
        )
    started = TorchElasticEnvironment.detect() or SLURMEnvironment.detect()
    if nodes > 1 and not started:
        raise ValueError(
            f"nodes is {nodes}, but only torchrun and srun reach other machines; start the program with one of them, "
            "as docs/scaling.md shows."
        )
    if started:
        return _join(function, devices, nodes, where)
    with tempfile.TemporaryDirectory(prefix="lacova-") as folder, deferred_interrupt():
        arguments = (function, devices, where, _free_port(), Path(folder))
        try:
            spawn(_work, arguments, devices)
        except ProcessException as error:
            raise TrainingError(f"one of {devices} processes did not end well: {str(error).strip()}") from None
        found: T = _result(Path(folder))
        return found


def writes() -> bool:
    """Whether this is the one that writes, of the processes that torchrun or srun have started."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0))) == 0


def _join(function: Callable[[Team, torch.device], T], devices: int, nodes: int, where: str) -> T:
    """What each process does: find the others, call the function together, part from them."""
    from lightning_fabric import Fabric

    with _quiet():
        fabric = Fabric(accelerator=where, devices=devices, num_nodes=nodes, strategy="ddp")
        fabric.launch()
    team = Ranks()
    try:
        with nullcontext() if team.main else _no_warnings(), team.together():
            return function(team, fabric.device)
    finally:
        dist.destroy_process_group()


def _work(
    rank: int, function: Callable[[Team, torch.device], Any], devices: int, where: str, port: int, folder: Path
) -> None:
    """What a process does that was started here: leave the result, or an error, in the folder."""
    os.environ |= {"LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // devices))

    def record(team: Team, device: torch.device) -> tuple[Any, list[tuple[type[Warning], str]]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            found = function(team, device)
        return found, [(warning.category, str(warning.message)) for warning in caught]

    try:
        found = _join(record, devices, 1, where)
    except Exception as error:
        (folder / f"{isinstance(error, OtherProcessError):d}-{rank}").write_bytes(_pickled(error))
        return
    if rank == 0:
        torch.save(found, folder / RESULT)


def _result(folder: Path) -> Any:
    """What the processes left: the error of the one that failed first of all, or the result and its warnings."""
    errors = sorted(file for file in folder.iterdir() if file.name != RESULT)
    if errors:
        raise pickle.loads(errors[0].read_bytes())
    if not (folder / RESULT).exists():
        raise KeyboardInterrupt
    found, said = torch.load(folder / RESULT, map_location="cpu", weights_only=False)
    for category, message in said:
        warnings.warn(message, category, stacklevel=4)  # the caller of `fit`
    return found


def _pickled(error: Exception) -> bytes:
    """With the traceback as a note; another exception in place of one that cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        text = pickle.dumps(error)
        pickle.loads(text)
    except Exception:
        return pickle.dumps(TrainingError(f"{type(error).__name__}: {error}"))
    return text


@contextmanager
def _others() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise OtherProcessError(f"another process has gone, or cannot be reached: {error}") from None


@contextmanager
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Fabric tells of its start at length."""
    logger = logging.getLogger("lightning_fabric")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
