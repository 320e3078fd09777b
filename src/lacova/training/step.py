"""One training step: the bound and its gradient, the optimiser, the natural gradient of q(v); and validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lacova.inference.objective import bound
from lacova.inference.vae import ConditionalVAE
from lacova.nn.adam import Adam
from lacova.training.accelerate import TakesBatch, captured, captures
from lacova.training.clipping import clip_gradients
from lacova.training.distributed import SINGLE, Team
from lacova.training.loader import Loader
from lacova.training.options import FitOptions
from lacova.training.training_batch import AnyBatch

# Weight decay of q(x_u | ·) under the masked loss: a prior of its weights that counts as much as this many patients.
# Without it the network memorises a study of a few dozen.
POSTERIOR_DECAY = 100.0


class Step:
    """Moves the parameters of a model by one batch at a time.

    Args:
        vae: the model.
        options: rates and weights.
        units, length: P (or N) and N of the training rows.
        device: where the batches live.
        team: the processes that each take their part of the step.

    Attributes:
        optimiser: of all parameters but q(v).
        take: takes a step on a batch, given the weight of the latent KL, and returns its TERMS, detached, on the
            device; as a captured graph on a GPU.
    """

    def __init__(
        self, vae: ConditionalVAE, options: FitOptions, units: int, length: int, device: torch.device,
        team: Team = SINGLE,
    ) -> None:  # fmt: skip
        self.vae, self.options, self.length, self.team = vae, options, length, team
        self.generator = torch.Generator(device)
        self.bound = bound
        capture = captures(vae, options, device, team)
        self.optimiser = _optimiser(vae, options, units, capturable=capture)
        self.rates = options.rates
        self.natural_rate: float | Tensor = self.rates.natural_rate
        if capture and options.schedule != "constant":  # a graph reads rates that change from tensors
            self.natural_rate = torch.tensor(self.rates.natural_rate, dtype=torch.float64, device=device)
            for group in self.optimiser.param_groups:
                group["lr"] = torch.tensor(group["lr"], device=device)
        self.take: TakesBatch = self._take
        if capture:
            steps = -(-units // options.batch)
            self.take = captured(self, self._take, min(units, options.batch), steps, self.snapshot)

    def seed(self, number: int) -> None:
        """Seed the random numbers of a step, by its number since training began."""
        self.generator.manual_seed(1_000_003 * self.options.seed + number)

    def set_rates(self, factor: float) -> None:
        """Set all rates to the options' times a factor."""
        networks, fast, natural = self.rates
        for group, rate in zip(self.optimiser.param_groups, (networks, networks, fast), strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor
        if isinstance(self.natural_rate, Tensor):
            self.natural_rate.fill_(natural * factor)
        else:
            self.natural_rate = natural * factor

    def _take(self, indexed: AnyBatch, weight: float | Tensor) -> Tensor:
        options, training_batch = self.options, indexed.gather()
        eps = training_batch.draw_eps(self.vae, options.draws, self.generator, options.encoder_dropout)
        batch, plan, masked, part = training_batch
        terms = self.bound(self.vae, batch, plan, eps, masked, options.importance > 1)
        if part is not None:
            once = part.once
            terms = replace(terms, kl_inducing=once * terms.kl_inducing, penalty=once * terms.penalty)
        loss, values = terms.loss(weight, options.masked_loss), terms.stacked()
        self.vae.zero_grad(set_to_none=True)
        (loss / self.length).backward()
        statistics, information = terms.statistics, terms.information
        if self.team.size > 1:
            shared = () if information is None else (information,)
            self.team.sum([*_gradients(self.vae), values, *(statistics or ()), *shared])
        if self.options.schedule == "cycle":
            clip_gradients(self.optimiser)
        self.optimiser.step()
        if statistics is not None:
            self.vae.prior.natural_step(statistics, self.natural_rate)
        if information is not None:
            self._step_coefficients(information)
        return values

    def _step_coefficients(self, information: Tensor) -> None:
        """Move q(w) of the fixed effects by its natural gradient."""
        fixed = None if self.vae.random_effects is None else self.vae.random_effects.fixed_effects
        if fixed is not None and fixed.mean.grad is not None:
            fixed.natural_step(information, -self.length * fixed.mean.grad, self.natural_rate)

    def snapshot(self) -> Callable[[], None]:
        """Return a function that puts parameters, buffers and the optimiser back to where they are now, in place."""
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
    """The bound and the log probability of masked covariates per row on held-out rows, with the same random numbers
    every time."""

    def __init__(self, vae: ConditionalVAE, options: FitOptions, loader: Loader) -> None:
        self.vae, self.options, self.loader = vae, options, loader
        self.generator = torch.Generator(loader.device)
        self.bound = bound
        self._run: TakesBatch = self._validate
        if captures(vae, options, loader.device, loader.team):
            self._run = captured(self, self._validate, min(loader.units, options.batch))

    @torch.no_grad()
    def __call__(self) -> tuple[float, float]:
        self.vae.eval()
        self.generator.manual_seed(self.options.seed)
        total = torch.zeros(2, dtype=torch.float64, device=self.loader.device)
        for batch in self.loader.in_order(self.vae, team=self.loader.team):
            total += self._run(batch, 1.0)
        self.loader.team.sum([total])
        value, masked = (total / self.loader.length).tolist()
        return value, masked

    def _validate(self, indexed: AnyBatch, weight: float | Tensor) -> Tensor:
        training_batch = indexed.gather()
        eps = training_batch.draw_eps(self.vae, self.options.draws, self.generator)
        batch, plan, masked, _ = training_batch
        terms = self.bound(self.vae, batch, plan, eps, masked, self.options.importance > 1)
        log_q = terms.masked_log_prob
        return torch.stack([terms.data, log_q if isinstance(log_q, Tensor) else torch.zeros_like(terms.data)])


def _gradients(vae: ConditionalVAE) -> list[Tensor]:
    """Return the gradient of every parameter, zero where this part of a batch does not depend on it."""
    for parameter in vae.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in vae.parameters() if parameter.grad is not None]


def _optimiser(vae: ConditionalVAE, options: FitOptions, units: int, capturable: bool) -> torch.optim.Optimizer:
    fast = [*vae.likelihood.parameters(), *(vae.prior.parameters() if vae.prior.fast else ())]
    for part in (vae.random_effects, vae.missingness):
        fast += [] if part is None else part.parameters()
    fixed = None if vae.random_effects is None else vae.random_effects.fixed_effects
    natural = set() if fixed is None else {id(fixed.mean)}  # moved by natural gradients
    fast = [p for p in fast if id(p) not in natural]
    posterior = list(vae.covariate_posterior.parameters())
    known = {id(p) for p in (*fast, *posterior)} | natural
    networks = [p for p in vae.parameters() if id(p) not in known]
    decay = POSTERIOR_DECAY / units if options.masked_loss else 0.0
    return Adam(
        [
            {"params": networks, "lr": options.rates.learning_rate},
            {"params": posterior, "lr": options.rates.learning_rate, "weight_decay": decay},
            {"params": fast, "lr": options.rates.fast_learning_rate},
        ],
        weight_decay=0.0,
        fused=True,
        capturable=capturable,
    )
