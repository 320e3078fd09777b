"""The training loop: epochs, early stopping, checkpoints, progress. It contains no maths."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.inference.objective import TERMS, elbo, encode
from lacova.inference.vae import ConditionalVAE
from lacova.training.checkpoint import Checkpoint, Record, State
from lacova.training.distributed import synchronise
from lacova.training.interrupt import Interrupt, deferred_interrupt
from lacova.training.loader import Loader
from lacova.training.options import FitOptions, TrainingError
from lacova.training.progress import progress
from lacova.training.step import Step, Validator

# A fall of the validation score that is no chance: where rates suit a table, it is a tenth of this.
DROP_PER_MEASUREMENT, MIN_DROP = 0.03, 0.5
# Two standard errors of the difference between two looks at one row with one measurement, in nats.
LOOKS_DIFFER = 1.0


class Outcome(NamedTuple):
    """One record per epoch; and, if Ctrl-C ended training, a sentence about what the model then has."""

    records: list[Record]
    interrupted: str | None


class Trainer:
    """Trains a model in place.

    Of several processes, which all run a trainer at once, the main one has the checkpoint.

    Args:
        vae: the model.
        train: training rows.
        validation: rows to stop early on, if any.
        options: how to train.
        checkpoint: a file to write now and then; training continues from it if it is there.
        posterior_rows: the rows that the prior caches at the end; None for the training rows.
        only_guard: keep the last weights of a whole cycle unless the best are better beyond chance; else the best are
            restored.
    """

    def __init__(
        self, vae: ConditionalVAE, train: Loader, validation: Loader | None, options: FitOptions,
        checkpoint: Checkpoint | None = None, posterior_rows: Loader | None = None, only_guard: bool = False,
    ) -> None:  # fmt: skip
        self.posterior_rows = posterior_rows or train
        self.vae, self.train, self.validation, self.checkpoint = vae, train, validation, checkpoint
        self.team, self.options = train.team, options.resolved(train.units, train.by_row, train.length)
        whole = self.options.schedule == "cycle" and self.options.patience_epochs >= self.options.epochs
        self.only_guard = only_guard and whole
        self.updates_prior = bool(self.options.prior_every) and train.has_gaps
        self.step = Step(vae, self.options, train.units, train.length, train.device, self.team)
        self.state = State(sums=torch.zeros(len(TERMS), dtype=torch.float64, device=train.device))
        if checkpoint is not None:
            checkpoint.begin(vae, self.step.optimiser, self.state, train, validation, options)
        synchronise(self.team, vae, self.step.optimiser, self.state)
        train.condition(vae)
        if validation is not None:
            validation.condition(vae)
        self.validator = None if validation is None else Validator(vae, self.options, validation)

    def run(self) -> Outcome:
        """Train to the end, or until Ctrl-C, which ends training after the current step.

        Records have the terms per training row and the validation bound per row. With validation rows, the weights of
        the epoch with the best score are restored: the validation bound, plus the masked log probability by its weight.
        Epochs are judged once the weight of the latent KL is 1: before, the bound can be high because z is held down.
        """
        state, options, checkpoint = self.state, self.options, self.checkpoint
        show = options.progress if self.team.main else False
        with deferred_interrupt() as interrupt, progress(options.epochs, show) as bar:
            while not (self._finished() or self._pause(interrupt)):
                self._epoch(interrupt)
                if bar is not None and state.step == 0:
                    bar.show(state.epoch, state.records[-1])
        stopped = not self._finished()
        if stopped and state.epoch == state.step == 0:
            raise KeyboardInterrupt
        if checkpoint is not None and (stopped or checkpoint.keep):
            checkpoint.write(self.vae, self.step.optimiser, state)
        if state.best_weights is not None and (stopped or not self.only_guard or not self._last_is_good()):
            self.vae.load_state_dict(state.best_weights)
            if self.updates_prior:
                self.train.condition(self.vae)
        self.vae.eval()
        self._cache_posterior(state.epoch if state.step else state.epoch - 1)
        if checkpoint is not None and not stopped:
            checkpoint.end()
        return Outcome(state.records, self._interrupted() if stopped else None)

    def _epoch(self, interrupt: Interrupt) -> None:
        """Run one epoch, or the rest of it, unless `_pause` ends it after a step."""
        vae, state, options, train = self.vae, self.state, self.options, self.train
        epoch = state.epoch
        vae.train()
        if self.updates_prior and state.step == 0 and epoch > 0 and epoch % (options.prior_every or 1) == 0:
            self._update_prior(epoch)
        with _named_failure(epoch):
            for batch in train.epoch(vae, epoch, state.step):
                number = epoch * train.steps + state.step
                self.step.seed(number)
                if options.schedule != "constant":
                    planned = options.epochs * train.steps
                    self.step.set_rates(state.rate_share * options.rate_factor(number / planned))
                state.sums += self.step.take(batch, options.latent_weight_at(epoch))
                state.step += 1
                if state.step < train.steps and self._pause(interrupt):
                    return
        record = {"epoch": epoch + 1.0, **_record(state.sums / (train.steps * train.length), epoch, options)}
        if self.validator is not None:
            value, masked = math.nan, math.nan
            if options.validates_after(epoch):
                value, masked = self.team.broadcast(self.validator())  # all stop early, or none
            record["validation"] = value
            if options.masked_loss:
                record["validation_masked_log_prob"] = masked
            if epoch >= options.warm_up:
                self._judge(value + options.masked_loss * masked)
        state.records.append(record)
        state.sums.zero_()
        state.epoch, state.step = epoch + 1, 0

    def _judge(self, score: float) -> None:
        """Keep the weights of the present epoch if they are the best; go back if they are far worse. NaN is neither."""
        state = self.state
        if score > state.best:
            state.best, state.best_epoch = score, state.epoch
            state.best_weights = copy.deepcopy(self.vae.state_dict())
        elif self.options.schedule != "constant" and score < state.best - _drop_allowed(self.vae):
            self._step_back()

    def _last_is_good(self) -> bool:
        """Return whether the last score is as good as the best, but for chance.

        The best of thirty looks is the luckiest. Early ones have high rates behind them and a covariate prior that has
        not settled: with the best of a tenth of the rows, pooled slopes were further from the truth (docs/training.md).
        """
        last, validation = self.state.records[-1], self.validation
        assert validation is not None
        score = last["validation"] + self.options.masked_loss * last.get("validation_masked_log_prob", 0.0)
        chance = LOOKS_DIFFER * (len(self.vae.measurements) / validation.length) ** 0.5
        return bool(self.state.best - score <= chance)

    def _step_back(self) -> None:
        """Go back to the best weights and halve the rates, which are too high for the table."""
        state = self.state
        assert state.best_weights is not None
        self.vae.load_state_dict(state.best_weights)
        state.rate_share *= 0.5
        if self.updates_prior:
            self.train.condition(self.vae)

    def _pause(self, interrupt: Interrupt) -> bool:
        """Between two steps, write a checkpoint if it is due, and return whether to stop."""
        if self.checkpoint is not None and self.checkpoint.due(self.state, self.train.steps):
            self.checkpoint.write(self.vae, self.step.optimiser, self.state)
        return self.team.any(interrupt.requested)

    def _finished(self) -> bool:
        state, options = self.state, self.options
        if state.epoch >= options.epochs:
            return True
        if self.validation is None or state.epoch == 0:
            return False
        return state.epoch - 1 - max(state.best_epoch, options.warm_up) >= options.patience_epochs

    def _update_prior(self, epoch: int) -> None:
        vae, train = self.vae, self.train
        generator = torch.Generator(train.device).manual_seed(1_000_003 * self.options.seed + epoch)
        vae.update_prior(train.complete(vae, generator))
        if self.team.size > 1:
            vae.load_state_dict(self.team.broadcast(vae.state_dict()))
        train.condition(vae)
        if self.validation is not None:
            self.validation.condition(vae)

    def _cache_posterior(self, epoch: int) -> None:
        """Let the prior cache all rows at the final weights, and check these once more."""
        vae, rows, options = self.vae, self.posterior_rows, self.options
        if rows is not self.train:  # others may have conditioned them on a prior of their own
            rows.condition(vae)
        generator = torch.Generator(rows.device).manual_seed(options.seed)
        with _named_failure(epoch), torch.no_grad():
            first = next(rows.in_order(vae, masked=False)).gather().batch
            _record(elbo(vae, first, generator, options.samples, options.cap).stacked(), epoch, options)
            vae.prior.cache_posterior(
                encode(vae, batch.gather().batch, generator, options.samples, options.cap)
                for batch in rows.in_order(vae, masked=False)
            )

    def _interrupted(self) -> str:
        state, path = self.state, None if self.checkpoint is None else self.checkpoint.path
        best = "last weights" if state.best_weights is None else f"best weights so far, of epoch {state.best_epoch + 1}"
        resume = "" if path is None else f" To go on, fit in the same way with the checkpoint {path}."
        done = f"{state.epoch} of {self.options.epochs} epochs"
        return f"training was interrupted after {done}; the model has the {best}.{resume}"


def _drop_allowed(vae: ConditionalVAE) -> float:
    """Return how far the validation score may fall below the best, in nats per row, before rates count as too high."""
    return max(MIN_DROP, DROP_PER_MEASUREMENT * len(vae.measurements))


def _record(sums: Tensor, epoch: int, options: FitOptions) -> Record:
    record = dict(zip(TERMS, sums.tolist(), strict=True))
    if not options.masked_loss:
        del record["masked_log_prob"]
    broken = ", ".join(name for name, value in record.items() if not math.isfinite(value))
    if broken:
        raise _failure(epoch, broken)
    return record


@contextmanager
def _named_failure(epoch: int) -> Iterator[None]:
    """Turn a failed factorisation in training into a sentence."""
    try:
        yield
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # there, but not in torch's stubs
        raise _failure(epoch, "a kernel matrix") from None


def _failure(epoch: int, broken: str) -> TrainingError:
    return TrainingError(
        f"the loss became non-finite in epoch {epoch + 1} ({broken}). Try a smaller learning_rate, "
        "fast_learning_rate or natural_rate, look for extreme values in the table, or raise the noise floor."
    )
