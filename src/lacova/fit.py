"""The training loop: batches, optimisers, early stopping, progress. Knows no maths."""

from __future__ import annotations

import copy
import math
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from lacova.batches import Batch, Batches
from lacova.objective import Terms, elbo, encode
from lacova.priors import GPPrior
from lacova.table import Table
from lacova.vae import ConditionalVAE


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
        samples: draws of continuous x_u and of z per row and step.
        cap: largest joint table of missing categories that is summed exactly; None for 64 states of a row, or 8 of a
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
    samples: int = 1
    cap: int | None = None
    seed: int = 0
    progress: bool | None = None

    def __post_init__(self) -> None:
        optional = {name: getattr(self, name) for name in ("latent_epochs", "cap") if getattr(self, name) is not None}
        needed = {name: getattr(self, name) for name in ("max_epochs", "batch_size", "patience", "samples")}
        for name, value in (needed | optional).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
        for name in ("learning_rate", "fast_learning_rate", "latent_weight"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}.")
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


def fit(vae: ConditionalVAE, train: Table, validation: Table | None, options: FitOptions) -> list[Record]:
    """Train in place and return one record per epoch: the terms per training row, and the validation bound per row."""
    device = next(vae.parameters()).device
    noise = torch.Generator(device).manual_seed(options.seed)
    order = torch.Generator().manual_seed(options.seed)
    batches = Batches(train.to(device), options.batch_size)
    optimiser = _optimiser(vae, options)
    records: list[Record] = []
    best, best_state, best_epoch = -float("inf"), None, 0
    with _progress(options) as bar:
        for epoch in range(options.max_epochs):
            vae.train()
            sums: Record = {}
            for batch in batches.shuffled(order):
                terms = _step(vae, batch, noise, optimiser, options, len(train), epoch)
                for name, value in terms.named().items():
                    sums[name] = sums.get(name, 0.0) + value / (len(batches) * len(train))
            record = {"epoch": epoch + 1.0, **sums}
            if validation is not None:
                record["validation"] = score = evaluate(vae, validation, options)
                if score > best:
                    best, best_state, best_epoch = score, copy.deepcopy(vae.state_dict()), epoch
            records.append(record)
            if bar is not None:
                bar.show(epoch + 1, record)
            if validation is not None and epoch - max(best_epoch, options.warm_up) >= options.patience:
                break
    if best_state is not None:
        vae.load_state_dict(best_state)
    vae.eval()
    _finite_elbo(vae, next(batches.in_order())[1], noise, options, len(records) - 1)  # the last step was not checked
    vae.prior.absorb(encode(vae, batch, noise, options.samples, options.cap) for _, batch in batches.in_order())
    return records


@torch.no_grad()
def evaluate(vae: ConditionalVAE, table: Table, options: FitOptions) -> float:
    """The bound per row on held-out rows, with the same noise every time."""
    vae.eval()
    device = next(vae.parameters()).device
    noise = torch.Generator(device).manual_seed(options.seed)
    batches = Batches(table.to(device), options.batch_size).in_order()
    return sum(float(elbo(vae, batch, noise, options.samples, options.cap).data) for _, batch in batches) / len(table)


def _step(
    vae: ConditionalVAE, batch: Batch, noise: torch.Generator, optimiser: torch.optim.Optimizer,
    options: FitOptions, rows: int, epoch: int,
) -> Terms:  # fmt: skip
    terms = _finite_elbo(vae, batch, noise, options, epoch)
    optimiser.zero_grad(set_to_none=True)
    extra = (options.weight(epoch) - 1.0) * terms.kl_latent
    ((extra - terms.elbo) / rows).backward()
    optimiser.step()
    if terms.statistics is not None and isinstance(vae.prior, GPPrior):
        vae.prior.inducing.natural_step(terms.statistics, options.natural_rate)
    return terms


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


def _optimiser(vae: ConditionalVAE, options: FitOptions) -> torch.optim.Adam:
    fast = [*vae.likelihood.parameters(), *(vae.prior.parameters() if isinstance(vae.prior, GPPrior) else ())]
    known = {id(p) for p in fast}
    networks = [p for p in vae.parameters() if id(p) not in known]
    return torch.optim.Adam(
        [{"params": networks, "lr": options.learning_rate}, {"params": fast, "lr": options.fast_learning_rate}],
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
