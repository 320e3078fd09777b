"""One training step: the loss, its gradient, the optimiser, the natural gradient of q(v)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from lacova.covariates.masked_loss import masked_log_prob
from lacova.covariates.scenarios import StandardDraws
from lacova.inference.objective import Terms, bound, weighted
from lacova.inference.vae import ConditionalVAE
from lacova.priors.base import GPPrior
from lacova.priors.gp.inducing import NaturalStatistics
from lacova.training.cuda_graph import Captured, available, log
from lacova.training.distributed import SINGLE, Team
from lacova.training.loader import IndexedBatch, Loader, TrainingBatch
from lacova.training.options import FitOptions

POSTERIOR_DECAY = 100.0
# Layouts stay as they are, or else strides differ from those that cuDNN returns. Small kernels side by side become one:
# a third fewer of them.
COMPILE: dict[str, Any] = {"layout_optimization": False, "combo_kernels": True}
TERMS = ("reconstruction", "kl_latent", "kl_inducing", "kl_covariates", "elbo", "masked_log_prob")


class Step:
    """Moves the parameters of a model by one batch at a time; on a GPU as a captured graph, unless told otherwise.

    Args:
        vae: the model.
        options: rates and weights.
        units, length: P (or N) and N of the training rows.
        device: where the batches live.
        team: the processes that each take their part of the step; several of them capture nothing.
    """

    def __init__(
        self, vae: ConditionalVAE, options: FitOptions, units: int, length: int, device: torch.device,
        team: Team = SINGLE,
    ) -> None:  # fmt: skip
        self.vae, self.options, self.length, self.team = vae, options, length, team
        self.noise = torch.Generator(device)
        capture = _captures(vae, options, device, team)
        self.optimiser = _optimiser(vae, options, units, capturable=capture)
        compiled = (
            capture and find_spec("triton") is not None and options.worth_compiling(-(-units // options.batch_size))
        )
        self._loss = torch.compile(loss, dynamic=False, options=COMPILE) if compiled else loss
        if available(device):
            log.info("steps are %s%s", "captured" if capture else "taken one by one", ", compiled" * compiled)
        self._run: Callable[[TrainingBatch | IndexedBatch, float], Tensor] = self._take
        if capture:
            self._run = Captured(self._take, self.noise, min(units, options.batch_size), self._undo, self._give_up)

    def __call__(self, training_batch: TrainingBatch | IndexedBatch, number: int, weight: float) -> Tensor:
        """Take one step and return its TERMS, detached, on the device.

        Args:
            training_batch: the batch.
            number: of the step since training began; seeds its noise.
            weight: how often the latent KL counts.
        """
        self.noise.manual_seed(1_000_003 * self.options.seed + number)
        return self._run(training_batch, weight)

    def _take(self, indexed: TrainingBatch | IndexedBatch, weight: float | Tensor) -> Tensor:
        training_batch = indexed.training_batch()
        noise = training_batch.draw_eps(self.vae, self.options.draws, self.noise, self.options.encoder_dropout)
        value, terms, statistics = self._loss(
            self.vae, training_batch, noise, weight, self.options.masked_loss, self.options.importance > 1
        )
        self.optimiser.zero_grad(set_to_none=True)
        (value / self.length).backward()
        if self.team.size > 1:
            self.team.sum([*_gradients(self.vae), terms, *statistics])
        self.optimiser.step()
        if statistics and isinstance(self.vae.prior, GPPrior):
            self.vae.prior.inducing.natural_step(NaturalStatistics(*statistics), self.options.natural_rate)
        return terms

    def _give_up(self) -> None:
        """Nothing compiled either, should that have been the reason."""
        self._loss = loss

    def _undo(self) -> Callable[[], None]:
        """A function that puts parameters, buffers and the optimiser back to where they are now, in place."""
        weights = {name: value.clone() for name, value in self.vae.state_dict().items()}
        moments = {p: {k: v.clone() for k, v in state.items()} for p, state in self.optimiser.state.items()}

        @torch.no_grad()
        def restore() -> None:
            for name, value in self.vae.state_dict().items():
                value.copy_(weights[name])
            for p, state in self.optimiser.state.items():
                for name, value in state.items():
                    value.copy_(moments[p][name]) if p in moments else value.zero_()

        return restore


class Validator:
    """The bound and recall per row on held-out rows, with the same noise every time."""

    def __init__(self, vae: ConditionalVAE, options: FitOptions, rows: Loader) -> None:
        self.vae, self.options, self.rows = vae, options, rows
        self.noise = torch.Generator(rows.device)
        self._run: Callable[[TrainingBatch | IndexedBatch, float], Tensor] = self._judge
        if _captures(vae, options, rows.device, rows.team):
            self._run = Captured(self._judge, self.noise, min(rows.units, options.batch_size))

    @torch.no_grad()
    def __call__(self) -> tuple[float, float]:
        self.vae.eval()
        self.noise.manual_seed(self.options.seed)
        total = torch.zeros(2, dtype=torch.float64, device=self.rows.device)
        for training_batch in self.rows.in_order(self.vae, team=self.rows.team):
            total += self._run(training_batch, 1.0)
        self.rows.team.sum([total])
        bound, asked = (total / self.rows.length).tolist()
        return bound, asked

    def _judge(self, indexed: TrainingBatch | IndexedBatch, weight: float | Tensor) -> Tensor:
        training_batch = indexed.training_batch()
        noise = training_batch.draw_eps(self.vae, self.options.draws, self.noise)
        terms, asked = estimate(self.vae, training_batch, noise, self.options.importance > 1)
        return torch.stack([terms.data, asked])


def loss(
    vae: ConditionalVAE,
    training_batch: TrainingBatch,
    noise: StandardDraws,
    weight: float | Tensor,
    recall_weight: float,
    importance: bool = False,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """What a step makes small, the TERMS, detached, and the statistics of v: plain tensors, which torch can compile."""
    terms, asked = estimate(vae, training_batch, noise, importance)
    value = (weight - 1.0) * terms.kl_latent - terms.elbo - recall_weight * asked
    return value, values(terms, asked), () if terms.statistics is None else tuple(terms.statistics)


def values(terms: Terms, asked: Tensor) -> Tensor:
    """The TERMS as one tensor."""
    return torch.stack([*(getattr(terms, name).detach() for name in TERMS[:-1]), asked.detach()])


def estimate(
    vae: ConditionalVAE, training_batch: TrainingBatch, noise: StandardDraws, importance: bool = False
) -> tuple[Terms, Tensor]:
    """The bound of a batch, and log q of its hidden covariates, scaled to the table; 0 without recall.

    With `importance`, the samples of the noise are weighted against each other.
    """
    shown, q = training_batch.shown, vae.covariate_posterior
    y_embedding = q.embed_y(shown)
    q_x = q(shown, y_embedding)
    importance = importance or vae.missingness is not None  # which speaks of y as drawn
    terms = weighted(vae, shown, noise, q_x) if importance else bound(vae, shown, training_batch.how, noise, q_x)
    if training_batch.part is not None:
        terms = replace(terms, kl_inducing=training_batch.part.once * terms.kl_inducing)
    if training_batch.hidden is None:
        return terms, shown.x.new_zeros(())
    return terms, shown.scale * masked_log_prob(
        q(training_batch.hidden, y_embedding), shown, training_batch.hidden, vae.space
    )


def _captures(vae: ConditionalVAE, options: FitOptions, device: torch.device, team: Team) -> bool:
    if options.importance > 1 and vae.prior.couples_rows:
        return False  # how draws of patients are laid out depends on the batch
    return team.size == 1 and (available(device) if options.capture is None else options.capture)


def _gradients(vae: ConditionalVAE) -> list[Tensor]:
    """Of every parameter: zero where this part of a batch says nothing of it."""
    for parameter in vae.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in vae.parameters() if parameter.grad is not None]


def _optimiser(vae: ConditionalVAE, options: FitOptions, units: int, capturable: bool) -> torch.optim.Optimizer:
    fast = [*vae.likelihood.parameters(), *(vae.prior.parameters() if isinstance(vae.prior, GPPrior) else ())]
    for part in (vae.random_effects, vae.missingness):
        fast += [] if part is None else part.parameters()
    posterior = list(vae.covariate_posterior.parameters())
    known = {id(p) for p in (*fast, *posterior)}
    networks = [p for p in vae.parameters() if id(p) not in known]
    # By recall, q would soon know a few dozen patients by heart: a prior of its weights, worth so many of them.
    decay = POSTERIOR_DECAY / units if options.masked_loss else 0.0
    return torch.optim.AdamW(
        [
            {"params": networks, "lr": options.learning_rate},
            {"params": posterior, "lr": options.learning_rate, "weight_decay": decay},
            {"params": fast, "lr": options.fast_learning_rate},
        ],
        weight_decay=0.0,
        fused=True,
        capturable=capturable,
    )
