"""The training loop: batches, optimisers, early stopping, progress. Knows no maths."""

from __future__ import annotations

import copy
import math
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from torch import Tensor

from lacova.batches import Batch, Batches
from lacova.covariates.belief import draw
from lacova.covariates.recall import hidden_share, hide, recall
from lacova.objective import Terms, elbo, encode
from lacova.priors import GPPrior
from lacova.table import Table
from lacova.vae import ConditionalVAE

POSTERIOR_DECAY = 100.0


class TrainingError(RuntimeError):
    """Training cannot go on."""


@dataclass(frozen=True)
class FitOptions:
    """How to train.

    Args:
        max_epochs: passes over the training rows.
        batch_size: rows per step, or patients per step where there is an instance column.
        learning_rate: of Adam for the networks.
        fast_learning_rate: of Adam for kernel parameters, inducing inputs and noise variances, on the log scale.
        natural_rate: step of the natural gradient of q(v), between 0 and 1.
        patience: epochs without improvement on the validation rows before training stops.
        latent_weight, latent_epochs: the latent KL counts `latent_weight` times at first and falls, geometrically, to
            once after `latent_epochs` epochs (a third of `max_epochs`). This makes a decoder that sees x learn what x
            explains before z can take its place; `CVAE` therefore starts at 100.
        recall: weight of the term that hides observed covariates from q(x_u | ·) and asks for them; 0 leaves it out.
            Models whose q sees y have 1.
        prior_every: after so many epochs each time, the covariate prior takes a step towards the training covariates as
            q completes them; None leaves it as it was fitted to the observed entries.
        samples: draws of continuous x_u and of z per row and step.
        cap: largest joint table of missing categories that is summed exactly; None for 64 states of a row, or 4 of a
            patient where the prior couples its rows. What does not fit is sampled.
        seed: of every random number; the same seed gives the same model on the same CPU.
        progress: show a progress bar on stderr; None shows it in a terminal only.
    """

    max_epochs: int = 200
    batch_size: int = 100
    learning_rate: float = 1e-3
    fast_learning_rate: float = 1e-2
    natural_rate: float = 0.1
    patience: int = 30
    latent_weight: float = 1.0
    latent_epochs: int | None = None
    recall: float = 0.0
    prior_every: int | None = None
    samples: int = 1
    cap: int | None = None
    seed: int = 0
    progress: bool | None = None

    def __post_init__(self) -> None:
        optional = {
            name: getattr(self, name)
            for name in ("latent_epochs", "cap", "prior_every")
            if getattr(self, name) is not None
        }
        needed = {name: getattr(self, name) for name in ("max_epochs", "batch_size", "patience", "samples")}
        for name, value in (needed | optional).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
        for name in ("learning_rate", "fast_learning_rate", "latent_weight"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}.")
        if not self.recall >= 0:
            raise ValueError(f"recall must not be negative, got {self.recall!r}.")
        if not 0 < self.natural_rate <= 1:
            raise ValueError(f"natural_rate must lie in (0, 1], got {self.natural_rate!r}.")

    def weight(self, epoch: int) -> float:
        """How often the latent KL counts in an epoch, numbered from 0."""
        return float(self.latent_weight ** max(0.0, 1.0 - epoch / max(1, self.warm_up)))

    @property
    def warm_up(self) -> int:
        """Epochs until the latent KL counts once."""
        if self.latent_weight == 1.0:
            return 0
        return max(1, self.max_epochs // 3) if self.latent_epochs is None else self.latent_epochs


Record = dict[str, float]


class _Bar(Protocol):
    def show(self, epoch: int, record: Record) -> None: ...


class _Rows:
    """A table as batches on the model's device, and the same rows with some more covariates hidden, for recall."""

    def __init__(self, vae: ConditionalVAE, table: Table, share: Tensor, options: FitOptions) -> None:
        self.host, self.share, self.options = table, share, options
        self.device = next(vae.parameters()).device
        self.prepare(vae)

    def prepare(self, vae: ConditionalVAE, lesson: int = 0) -> None:
        """Ask the covariate prior about every row, and hide."""
        self.shown = Batches(vae.prepare(self.host).to(self.device), self.options.batch_size)
        self.hidden: Batches | None = None
        if self.options.recall:
            self.hide(vae, lesson)

    def hide(self, vae: ConditionalVAE, lesson: int) -> None:
        """Hide other entries in every lesson."""
        generator = torch.Generator().manual_seed(1_000_003 * self.options.seed + lesson)
        hidden = vae.prepare(hide(self.host, vae.space, self.share, generator))
        given = None if hidden.given is None else hidden.given.to(self.device)
        table = replace(self.shown.table, x_mask=hidden.x_mask.to(self.device), given=given)
        self.hidden = Batches(table, self.options.batch_size)


def fit(vae: ConditionalVAE, train: Table, validation: Table | None, options: FitOptions) -> list[Record]:
    """Train in place and return one record per epoch: terms per training row, and the validation rows' bound per row.

    With validation rows, the weights of the epoch come back whose bound, with recall where there is any, was highest.
    """
    noise = torch.Generator(next(vae.parameters()).device).manual_seed(options.seed)
    order = torch.Generator().manual_seed(options.seed)
    rows = _Rows(vae, train, hidden_share(train), options)
    exam = None if validation is None else _Rows(vae, validation, rows.share, options)
    optimiser = _optimiser(vae, options, rows.shown.units)
    records: list[Record] = []
    best, best_state, best_epoch = -float("inf"), None, 0
    with _progress(options) as bar:
        for epoch in range(options.max_epochs):
            vae.train()
            sums: Record = {}
            if options.prior_every is not None and epoch > 0 and epoch % options.prior_every == 0:
                _update_prior(vae, rows, noise)
                rows.prepare(vae, epoch)
                if exam is not None:
                    exam.prepare(vae)
            elif options.recall and epoch > 0:
                rows.hide(vae, epoch)
            for units in rows.shown.shuffled(order):
                for name, value in _step(vae, rows, units, noise, optimiser, options, epoch).items():
                    sums[name] = sums.get(name, 0.0) + value / (len(rows.shown) * len(train))
            record = {"epoch": epoch + 1.0, **sums}
            if exam is not None:
                found = _evaluate(vae, exam, options)
                record["validation"] = score = found["bound"]
                if options.recall:
                    record["validation_recall"] = found["recall"]
                    score += options.recall * found["recall"]
                if score > best:
                    best, best_state, best_epoch = score, copy.deepcopy(vae.state_dict()), epoch
            records.append(record)
            if bar is not None:
                bar.show(epoch + 1, record)
            if exam is not None and epoch - max(best_epoch, options.warm_up) >= options.patience:
                break
    if best_state is not None:
        vae.load_state_dict(best_state)
        rows.prepare(vae)  # the prior may have been updated since
    vae.eval()
    first = next(rows.shown.in_order())[1]
    _finite_elbo(vae, first, noise, options, len(records) - 1)  # the last step was not checked
    vae.prior.absorb(encode(vae, batch, noise, options.samples, options.cap) for _, batch in rows.shown.in_order())
    return records


@torch.no_grad()
def _evaluate(vae: ConditionalVAE, rows: _Rows, options: FitOptions) -> Record:
    """The bound and recall per row on held-out rows, with the same noise every time."""
    vae.eval()
    noise = torch.Generator(rows.device).manual_seed(options.seed)
    total = {"bound": 0.0, "recall": 0.0}
    for units in torch.arange(rows.shown.units).split(options.batch_size):
        batch = replace(rows.shown.batch(units), scale=1.0)
        total["bound"] += float(elbo(vae, batch, noise, options.samples, options.cap).data)
        if rows.hidden is not None:
            total["recall"] += float(_recall(vae, batch, rows.hidden.batch(units)))
    return {name: value / len(rows.host) for name, value in total.items()}


def _step(
    vae: ConditionalVAE, rows: _Rows, units: Tensor, noise: torch.Generator, optimiser: torch.optim.Optimizer,
    options: FitOptions, epoch: int,
) -> Record:  # fmt: skip
    batch = rows.shown.batch(units)
    terms = _finite_elbo(vae, batch, noise, options, epoch)
    record = terms.named()
    loss = (options.weight(epoch) - 1.0) * terms.kl_latent - terms.elbo
    if rows.hidden is not None:
        found = _recall(vae, batch, rows.hidden.batch(units))
        record["recall"] = float(found.detach())
        loss = loss - options.recall * found
    optimiser.zero_grad(set_to_none=True)
    (loss / len(rows.host)).backward()
    optimiser.step()
    if terms.statistics is not None and isinstance(vae.prior, GPPrior):
        vae.prior.inducing.natural_step(terms.statistics, options.natural_rate)
    return record


@torch.no_grad()
def _update_prior(vae: ConditionalVAE, rows: _Rows, noise: torch.Generator) -> None:
    x = torch.empty_like(rows.host.x)
    for index, batch in rows.shown.in_order():
        x[index] = draw(vae.covariate_posterior(batch), batch, vae.space, 1, noise)[0].cpu()
    vae.covariate_prior.cpu().update(replace(rows.host, x=x, x_mask=torch.ones_like(rows.host.x_mask)))
    vae.covariate_prior.to(rows.device)


def _recall(vae: ConditionalVAE, batch: Batch, hidden: Batch) -> Tensor:
    return batch.scale * recall(vae.covariate_posterior(hidden), batch, hidden, vae.space)


def _finite_elbo(vae: ConditionalVAE, batch: Batch, noise: torch.Generator, options: FitOptions, epoch: int) -> Terms:
    try:
        terms = elbo(vae, batch, noise, options.samples, options.cap)
        broken = ", ".join(name for name, value in terms.named().items() if not math.isfinite(value))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # there, but not in torch's stubs
        broken = "a kernel matrix"
    if broken:
        raise TrainingError(
            f"the loss became non-finite in epoch {epoch + 1} ({broken}). Try a smaller learning_rate, "
            "fast_learning_rate or natural_rate, look for extreme values in the table, or raise the noise floor."
        )
    return terms


def _optimiser(vae: ConditionalVAE, options: FitOptions, units: int) -> torch.optim.Optimizer:
    fast = [*vae.likelihood.parameters(), *(vae.prior.parameters() if isinstance(vae.prior, GPPrior) else ())]
    posterior = list(vae.covariate_posterior.parameters())
    known = {id(p) for p in (*fast, *posterior)}
    networks = [p for p in vae.parameters() if id(p) not in known]
    # By recall, q would soon know a few dozen patients by heart: a prior of its weights, worth so many of them.
    decay = POSTERIOR_DECAY / units if options.recall else 0.0
    return torch.optim.AdamW(
        [
            {"params": networks, "lr": options.learning_rate},
            {"params": posterior, "lr": options.learning_rate, "weight_decay": decay},
            {"params": fast, "lr": options.fast_learning_rate},
        ],
        weight_decay=0.0,
        fused=True,
    )


class _RichBar(Progress):
    def start_task_for(self, epochs: int) -> None:
        self._job = self.add_task("training", total=epochs, note="")

    def show(self, epoch: int, record: Record) -> None:
        shown = {
            "validation": "val",
            "elbo": "elbo",
            "reconstruction": "rec",
            "kl_latent": "kl_z",
            "kl_covariates": "kl_x",
        }
        note = "  ".join(f"{short} {record[name]:.4g}" for name, short in shown.items() if name in record)
        self.update(self._job, completed=epoch, note=note)


def _progress(options: FitOptions) -> AbstractContextManager[_Bar | None]:
    wanted = sys.stderr.isatty() if options.progress is None else options.progress
    if not wanted:
        return nullcontext()
    bar = _RichBar(
        MofNCompleteColumn(table_column=Column(min_width=2 * len(str(options.max_epochs)) + 1, no_wrap=True)),
        BarColumn(bar_width=12, table_column=Column(min_width=12, no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
        TextColumn("{task.fields[note]}", table_column=Column(overflow="ellipsis", no_wrap=True)),
        console=Console(file=sys.stderr),
    )
    bar.start_task_for(options.max_epochs)
    return bar
