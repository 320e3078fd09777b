"""The one seam between training and its acceleration: whether steps are captured as CUDA graphs, and compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor

from lacova.inference.objective import Terms, bound
from lacova.inference.vae import ConditionalVAE
from lacova.priors.base import NaturalStatistics
from lacova.training.cuda_graph import Captured
from lacova.training.distributed import Team
from lacova.training.options import FitOptions
from lacova.training.training_batch import AnyBatch

log = logging.getLogger("lacova")
# Layouts stay as they are, or else strides differ from those that cuDNN returns. Small kernels side by side become one:
# a third fewer of them.
COMPILE: dict[str, Any] = {"layout_optimization": False, "combo_kernels": True}

TakesBatch = Callable[[AnyBatch, float], Tensor]


class Accelerable(Protocol):
    """What computes the bound of batches: a training step, or validation."""

    vae: ConditionalVAE
    options: FitOptions
    generator: torch.Generator
    bound: Callable[..., Terms]


def captures(vae: ConditionalVAE, options: FitOptions, device: torch.device, team: Team) -> bool:
    """Return whether steps are captured: on a GPU, by one process, unless the options say otherwise."""
    if options.importance > 1 and vae.prior.couples_rows:
        return False  # the layout of patients' draws depends on the batch
    return team.size == 1 and (device.type == "cuda" if options.capture is None else options.capture)


def captured(
    owner: Accelerable, run: Callable[[AnyBatch, Any], Tensor], units: int, steps: int = 0,
    snapshot: Callable[[], Callable[[], None]] | None = None,
) -> TakesBatch:  # fmt: skip
    """Return `run` as a captured graph; where `steps` per epoch repay it, with a compiled bound.

    Args:
        owner: what `run` belongs to; its `bound` is replaced by a compiled one, and put back should capture fail.
        run: what to do with a batch.
        units: most units of a batch.
        steps: batches per epoch; 0 compiles nothing.
        snapshot: as `undo` of `Captured`.
    """
    compiled = steps > 0 and find_spec("triton") is not None and owner.options.worth_compiling(steps)
    if compiled:
        owner.bound = _compiled_bound()
    log.info("steps are captured%s", ", compiled" * compiled)

    def give_up() -> None:
        owner.bound = bound

    return Captured(run, owner.generator, units, snapshot, give_up)


def _compiled_bound() -> Callable[..., Terms]:
    compiled = torch.compile(_plain_bound, dynamic=False, options=COMPILE)

    def terms(*arguments: Any) -> Terms:
        sums, statistics = compiled(*arguments)
        reconstruction, kl_latent, kl_inducing, kl_covariates, gain, masked = sums
        natural = NaturalStatistics(*statistics) if statistics else None
        return Terms(reconstruction, kl_latent, kl_inducing, kl_covariates, natural, gain, masked)

    return terms


def _plain_bound(*arguments: Any) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """Return the bound as plain tensors, which torch can compile."""
    terms = bound(*arguments)
    sums = (terms.reconstruction, terms.kl_latent, terms.kl_inducing, terms.kl_covariates)
    statistics = () if terms.statistics is None else tuple(terms.statistics)
    return (*sums, terms.gain, terms.masked_log_prob), statistics
