"""The training loop: epochs, early stopping, progress. Knows no maths."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.inference.objective import elbo, encode
from lacova.inference.vae import ConditionalVAE
from lacova.training.checkpoint import Checkpoint, Record, State
from lacova.training.distributed import Team
from lacova.training.interrupt import noted_interrupt
from lacova.training.loader import Loader
from lacova.training.options import FitOptions, TrainingError
from lacova.training.progress import progress
from lacova.training.step import TERMS, Step, Validator


class Outcome(NamedTuple):
    """One record per epoch; and, if Ctrl-C ended training, what that means for the model, in a sentence."""

    records: list[Record]
    interrupted: str | None


def fit(
    vae: ConditionalVAE,
    train: Loader,
    validation: Loader | None,
    options: FitOptions,
    checkpoint: Checkpoint | None = None,
) -> Outcome:
    """Train in place; records have terms per training row, and the validation rows' bound per row.

    With validation rows, the weights of the epoch come back whose bound, with recall where there is any, was highest.
    Ctrl-C ends training after the step at hand. Where there is a checkpoint, training goes on from it. Of several
    processes, which all do this at once, the main one has the checkpoint.
    """
    team, asked, options = train.team, options, options.settled(train.units)
    step = Step(vae, options, train.units, train.length, train.device, team)
    state = State(sums=torch.zeros(len(TERMS), dtype=torch.float64, device=train.device))
    if checkpoint is not None:
        checkpoint.begin(vae, step.optimiser, state, train, validation, asked)
    _start_alike(team, vae, step.optimiser, state)
    train.condition(vae)
    if validation is not None:
        validation.condition(vae)
    validator = None if validation is None else Validator(vae, options, validation)
    with noted_interrupt() as interrupt, progress(options.epochs, options.progress if team.main else False) as bar:

        def pause() -> bool:
            """Between two steps, when everything is whole: write it down if it is time, and say whether to stop."""
            if checkpoint is not None and checkpoint.due(state, train.steps):
                checkpoint.write(vae, step.optimiser, state)
            return team.any(interrupt.asked)

        while not (_done(state, validation is not None, options) or pause()):
            _epoch(vae, step, validator, state, train, options, pause)
            if bar is not None and state.step == 0:
                bar.show(state.epoch, state.records[-1])
    stopped = not _done(state, validation is not None, options)
    if stopped and state.epoch == state.step == 0:
        raise KeyboardInterrupt
    if checkpoint is not None and (stopped or checkpoint.keep):
        checkpoint.write(vae, step.optimiser, state)
    if state.best_weights is not None:
        vae.load_state_dict(state.best_weights)
        if options.prior_every is not None:
            train.condition(vae)
    vae.eval()
    _cache_posterior(vae, train, options, state.epoch if state.step else state.epoch - 1)
    if checkpoint is not None and not stopped:
        checkpoint.end()
    return Outcome(state.records, _interrupted(state, options, checkpoint) if stopped else None)


def _start_alike(team: Team, vae: ConditionalVAE, optimiser: torch.optim.Optimizer, state: State) -> None:
    """Every process begins where the main one does."""
    if team.size == 1:
        return
    stored = {name: value for name, value in vars(state).items() if name != "sums"}
    weights, moments, sums, stored = team.broadcast((vae.state_dict(), optimiser.state_dict(), state.sums, stored))
    vae.load_state_dict(weights)
    optimiser.load_state_dict(moments)
    state.sums.copy_(sums)
    for name, value in stored.items():
        setattr(state, name, value)


def _interrupted(state: State, options: FitOptions, checkpoint: Checkpoint | None) -> str:
    best = "last weights" if state.best_weights is None else f"best weights so far, of epoch {state.best_epoch + 1}"
    on = "" if checkpoint is None else f" To go on, fit in the same way with the checkpoint {checkpoint.path}."
    done = f"{state.epoch} of {options.epochs} epochs"
    return f"training was interrupted after {done}; the model has the {best}.{on}"


def _done(state: State, validated: bool, options: FitOptions) -> bool:
    if state.epoch >= options.epochs:
        return True
    if not validated or state.epoch == 0:
        return False
    return state.epoch - 1 - max(state.best_epoch, options.warm_up) >= options.waits


def _epoch(
    vae: ConditionalVAE, step: Step, validator: Validator | None, state: State, train: Loader, options: FitOptions,
    pause: Callable[[], bool],
) -> None:  # fmt: skip
    """One epoch, or what is left of it; up to where `pause`, asked after every step but the last, says to stop."""
    epoch = state.epoch
    vae.train()
    if state.step == 0 and options.prior_every is not None and epoch > 0 and epoch % options.prior_every == 0:
        noise = torch.Generator(train.device).manual_seed(1_000_003 * options.seed + epoch)
        vae.update_prior(train.complete(vae, noise))
        if train.team.size > 1:
            vae.load_state_dict(train.team.broadcast(vae.state_dict()))
        train.condition(vae)
        if validator is not None:
            validator.rows.condition(vae)
    with _named_failure(epoch):
        for training_batch in train.epoch(vae, epoch, state.step):
            state.sums += step(training_batch, epoch * train.steps + state.step, options.weight(epoch))
            state.step += 1
            if state.step < train.steps and pause():
                return
    record = {"epoch": epoch + 1.0, **_record(state.sums / (train.steps * train.length), epoch, options)}
    if validator is not None:
        record["validation"], asked = train.team.broadcast(validator())  # all stop early, or none
        score = record["validation"] + options.masked_loss * asked
        if options.masked_loss:
            record["validation_masked_log_prob"] = asked
        if score > state.best:
            state.best, state.best_weights, state.best_epoch = score, copy.deepcopy(vae.state_dict()), epoch
    state.records.append(record)
    state.sums.zero_()
    state.epoch, state.step = epoch + 1, 0


def _record(sums: Tensor, epoch: int, options: FitOptions) -> Record:
    record = dict(zip(TERMS, sums.tolist(), strict=True))
    if not options.masked_loss:
        del record["masked_log_prob"]
    broken = ", ".join(name for name, value in record.items() if not math.isfinite(value))
    if broken:
        raise _failure(epoch, broken)
    return record


def _cache_posterior(vae: ConditionalVAE, train: Loader, options: FitOptions, epoch: int) -> None:
    """Let the prior take in all training rows at the final weights, which the last step left unchecked."""
    noise = torch.Generator(train.device).manual_seed(options.seed)
    with _named_failure(epoch), torch.no_grad():
        first = next(train.in_order(vae, hide=False)).training_batch().shown
        terms = elbo(vae, first, noise, options.samples, options.cap)
        _record(torch.stack([getattr(terms, name) for name in TERMS[:-1]] + [terms.elbo]), epoch, options)
        vae.prior.cache_posterior(
            encode(vae, training_batch.training_batch().shown, noise, options.samples, options.cap)
            for training_batch in train.in_order(vae, hide=False)
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
