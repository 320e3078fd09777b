"""The training loop: epochs, early stopping, progress. Knows no maths."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lacova.objective import elbo, encode
from lacova.options import FitOptions, TrainingError
from lacova.progress import progress
from lacova.rows import Rows
from lacova.step import TERMS, Exam, Step
from lacova.vae import ConditionalVAE

Record = dict[str, float]


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


def fit(vae: ConditionalVAE, train: Rows, validation: Rows | None, options: FitOptions) -> list[Record]:
    """Train in place and return one record per epoch: terms per training row, and the validation rows' bound per row.

    With validation rows, the weights of the epoch come back whose bound, with recall where there is any, was highest.
    """
    train.prepare(vae)
    if validation is not None:
        validation.prepare(vae)
    step = Step(vae, options, train.units, train.length, train.device)
    exam = None if validation is None else Exam(vae, options, validation)
    state = State(sums=torch.zeros(len(TERMS), dtype=torch.float64, device=train.device))
    with progress(options.max_epochs, options.progress) as bar:
        while not _done(state, validation is not None, options):
            _epoch(vae, step, exam, state, train, options)
            if bar is not None:
                bar.show(state.epoch, state.records[-1])
    if state.best_weights is not None:
        vae.load_state_dict(state.best_weights)
        if options.prior_every is not None:
            train.prepare(vae)
    vae.eval()
    _absorb(vae, train, options, state.epoch)
    return state.records


def _done(state: State, validated: bool, options: FitOptions) -> bool:
    if state.epoch >= options.max_epochs:
        return True
    if not validated or state.epoch == 0:
        return False
    return state.epoch - 1 - max(state.best_epoch, options.warm_up) >= options.patience


def _epoch(vae: ConditionalVAE, step: Step, exam: Exam | None, state: State, train: Rows, options: FitOptions) -> None:
    epoch = state.epoch
    vae.train()
    if state.step == 0 and options.prior_every is not None and epoch > 0 and epoch % options.prior_every == 0:
        noise = torch.Generator(train.device).manual_seed(1_000_003 * options.seed + epoch)
        vae.update_prior(train.complete(vae, noise))
        train.prepare(vae)
        if exam is not None:
            exam.rows.prepare(vae)
    with _named_failure(epoch):
        for lesson in train.epoch(vae, epoch, state.step):
            state.sums += step(lesson, epoch * train.steps + state.step, options.weight(epoch))
            state.step += 1
    record = {"epoch": epoch + 1.0, **_record(state.sums / (train.steps * train.length), epoch, options)}
    if exam is not None:
        record["validation"], asked = exam()
        score = record["validation"] + options.recall * asked
        if options.recall:
            record["validation_recall"] = asked
        if score > state.best:
            state.best, state.best_weights, state.best_epoch = score, copy.deepcopy(vae.state_dict()), epoch
    state.records.append(record)
    state.sums.zero_()
    state.epoch, state.step = epoch + 1, 0


def _record(sums: Tensor, epoch: int, options: FitOptions) -> Record:
    record = dict(zip(TERMS, sums.tolist(), strict=True))
    if not options.recall:
        del record["recall"]
    broken = ", ".join(name for name, value in record.items() if not math.isfinite(value))
    if broken:
        raise _failure(epoch, broken)
    return record


def _absorb(vae: ConditionalVAE, train: Rows, options: FitOptions, epochs: int) -> None:
    """Let the prior take in all training rows at the final weights, which the last step left unchecked."""
    noise = torch.Generator(train.device).manual_seed(options.seed)
    with _named_failure(epochs - 1), torch.no_grad():
        first = next(train.in_order(vae, hide=False)).lesson().shown
        terms = elbo(vae, first, noise, options.samples, options.cap)
        _record(torch.stack([getattr(terms, name) for name in TERMS[:-1]] + [terms.elbo]), epochs - 1, options)
        vae.prior.absorb(
            encode(vae, lesson.lesson().shown, noise, options.samples, options.cap)
            for lesson in train.in_order(vae, hide=False)
        )


class _named_failure:
    """A factorisation that fails in training ends it with a sentence."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # there, but not in torch's stubs
            raise _failure(self.epoch, "a kernel matrix") from None


def _failure(epoch: int, broken: str) -> TrainingError:
    return TrainingError(
        f"the loss became non-finite in epoch {epoch + 1} ({broken}). Try a smaller learning_rate, "
        "fast_learning_rate or natural_rate, look for extreme values in the table, or raise the noise floor."
    )
