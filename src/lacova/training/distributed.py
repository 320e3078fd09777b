"""Training of one model by several processes: each takes its part of every batch, and their gradients are summed."""

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
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessException, spawn

from lacova.training.interrupt import deferred_interrupt
from lacova.training.options import TrainingError

T = TypeVar("T")
RESULT_FILE = "result"


class OtherProcessError(TrainingError):
    """Another process has failed, so this one cannot continue."""


class Team:
    """The processes that train a model: here, a single one; `Ranks` are several.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """Whether this is the main process, which writes files and shows progress."""
        return self.rank == 0

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over all processes, in place; every process passes the same shapes in the same order."""

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return flag

    def broadcast(self, value: T) -> T:
        """Return the value of the main process, with its tensors on the host.

        It may consist of numbers, texts, tensors, lists, tuples and dicts.
        """
        return value


SINGLE = Team()


class Ranks(Team):
    """The processes of the default process group.

    Before every collective operation they synchronise over a group of their own on the host. A process that has failed
    joins the next synchronisation, whatever it is for, and passes its message on: so all processes end, and none waits
    for one that has ended.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._control: Any = dist.new_group(backend="gloo")

    def sum(self, tensors: Sequence[Tensor]) -> None:
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        flat = [torch.cat([tensor.detach().flatten() for tensor in group]) for group in by_type.values()]
        self._synchronise()
        for buffer, group in zip(flat, by_type.values(), strict=True):
            with _lost_process():
                dist.all_reduce(buffer)
            for tensor, total in zip(group, buffer.split([tensor.numel() for tensor in group]), strict=True):
                tensor.detach().copy_(total.view_as(tensor))

    def any(self, flag: bool) -> bool:
        return self._synchronise(flag=flag)

    def broadcast(self, value: T) -> T:
        saved: list[bytes | None] = [None]
        if self.main:
            buffer = io.BytesIO()
            torch.save(value, buffer)
            saved = [buffer.getvalue()]
        self._synchronise()
        dist.broadcast_object_list(saved, src=0, group=self._control)
        main_value: T = torch.load(io.BytesIO(saved[0] or b""), map_location="cpu", weights_only=True)
        return main_value

    @contextmanager
    def together(self) -> Iterator[None]:
        """End the block in all processes, with the same message, if it fails in one of them."""
        try:
            yield
            self._synchronise()
        except OtherProcessError:
            raise
        except BaseException as error:
            with suppress(OtherProcessError):  # the others may have ended
                self._synchronise(failure=f"{type(error).__name__}: {error}")
            raise

    def _synchronise(self, failure: str | None = None, flag: bool = False) -> bool:
        """Return whether the flag is set in any process; raise if one of the others has failed."""
        state = torch.tensor([failure is not None, flag], dtype=torch.int32)
        with _lost_process():
            dist.all_reduce(state, op=dist.ReduceOp.MAX, group=self._control)
        failed, flagged = state.tolist()
        if failed:
            failures: list[str | None] = [None] * self.size
            dist.all_gather_object(failures, failure, group=self._control)
            rank, message = next((rank, message) for rank, message in enumerate(failures) if message is not None)
            if failure is None:
                raise OtherProcessError(f"process {rank} of {self.size} failed: {message}")
        return bool(flagged)


def synchronise(team: Team, module: nn.Module, optimiser: torch.optim.Optimizer, state: Any) -> None:
    """Start every process from the state of the main one: weights, optimiser, and how far training has come."""
    if team.size == 1:
        return
    values = {name: value for name, value in vars(state).items() if name != "sums"}
    main = team.broadcast((module.state_dict(), optimiser.state_dict(), state.sums, values))
    weights, moments, sums, values = main
    module.load_state_dict(weights)
    optimiser.load_state_dict(moments)
    state.sums.copy_(sums)
    for name, value in values.items():
        setattr(state, name, value)


def launch(function: Callable[[Team, torch.device], T], devices: int, nodes: int, device: str) -> T:
    """Call a function in `devices` processes on each of `nodes` machines, each with a device of its own.

    Under torchrun or SLURM, which start the same program several times, every process calls the function itself.
    Otherwise processes are started here; the function and its result must then be picklable.

    Args:
        function: what to call, with the team and the device of the process.
        devices: number of processes per machine.
        nodes: number of machines.
        device: "auto", "cpu" or "cuda".

    Returns:
        the result of the function in this process, or, if processes were started here, in process 0, with its tensors
        on the host.
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
        result: T = _result(Path(folder))
        return result


def writes() -> bool:
    """Return whether this process writes files, of those that torchrun or srun have started."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0))) == 0


def _join(function: Callable[[Team, torch.device], T], devices: int, nodes: int, where: str) -> T:
    """Join the process group, call the function together with the other processes, and leave the group."""
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
    """Run a process that was started here, and write its result or its error into the folder."""
    os.environ |= {"LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // devices))

    def record(team: Team, device: torch.device) -> tuple[Any, list[tuple[type[Warning], str]]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            result = function(team, device)
        return result, [(warning.category, str(warning.message)) for warning in caught]

    try:
        result = _join(record, devices, 1, where)
    except Exception as error:
        (folder / f"{isinstance(error, OtherProcessError):d}-{rank}").write_bytes(_pickled(error))
        return
    if rank == 0:
        torch.save(result, folder / RESULT_FILE)


def _result(folder: Path) -> Any:
    """Return the result that the processes wrote and issue its warnings, or raise the error of the first failure."""
    errors = sorted(file for file in folder.iterdir() if file.name != RESULT_FILE)
    if errors:
        raise pickle.loads(errors[0].read_bytes())
    if not (folder / RESULT_FILE).exists():
        raise KeyboardInterrupt
    result, caught = torch.load(folder / RESULT_FILE, map_location="cpu", weights_only=False)
    for category, message in caught:
        warnings.warn(message, category, stacklevel=4)  # the caller of `fit`
    return result


def _pickled(error: Exception) -> bytes:
    """Pickle an exception with its traceback as a note; one that cannot be pickled becomes a `TrainingError`."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return pickle.dumps(TrainingError(f"{type(error).__name__}: {error}"))
    return data


@contextmanager
def _lost_process() -> Iterator[None]:
    """Turn the failure of a collective operation into a sentence."""
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
    """Silence the messages of Fabric about its start."""
    logger = logging.getLogger("lightning_fabric")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
