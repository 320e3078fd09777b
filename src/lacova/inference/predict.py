"""Predictive draws of y at covariates whose gaps are integrated out, given a patient's history if there is one."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Batch, Batches
from lacova.data.encoder import Table
from lacova.data.labels import among
from lacova.inference.vae import ConditionalVAE, Observed
from lacova.priors.base import History

# Numbers per array that are held at a time, of those decoded (rows × draws × D) or of the prior's; bounds memory.
CHUNK = 4_000_000


class Draws(NamedTuple):
    """Draws for some rows of a table.

    Attributes:
        rows: the rows (n,).
        location: mean of y given z and x per draw (draws×n×D); its mean over draws is the mean of y.
        var: variance of y given z and x, of Gaussian columns; broadcasts to the shape of `location`.
        y: draws of y itself (draws×n×D).
        x: the completed covariates behind each draw (draws×n×Q).
        outputs: what families other than Gaussian noise take, per draw; None if there are none.
        level_probabilities: probability of each level of categorical measurements (n×D×K); None if there are none.
        weight: of each draw of each row (draws×n), which sum to one over the draws; None where draws count alike.
    """

    rows: Tensor
    location: Tensor
    var: Tensor
    y: Tensor
    x: Tensor
    outputs: Tensor | None = None
    level_probabilities: Tensor | None = None
    weight: Tensor | None = None

    def average(self, values: Tensor) -> Tensor:
        """The mean over draws of what there is of each (draws×n×…)."""
        return values.mean(0) if self.weight is None else (self.weight[..., None] * values).sum(0)


def chunks(
    table: Table, draws: int, independent_noise: torch.Generator | None = None, width: int = 1
) -> Iterator[tuple[Tensor, Batch]]:
    """Batches of rows or whole patients, with `draws` draws of which about CHUNK numbers are held.

    These are the D that are decoded for each draw of a row, or `width` if that is more.
    With `alone`, batches of one row or patient each, before each of which that generator is as it is now.
    """
    if independent_noise is None:
        rows_per_unit = 1 if table.patient is None else -(-len(table) // len(table.labels))
        yield from Batches(table, max(1, CHUNK // (draws * max(width, table.y.shape[1]) * rows_per_unit))).in_order()
        return
    state = independent_noise.get_state()
    for rows, batch in Batches(table, 1).in_order():
        independent_noise.set_state(state)
        yield rows, batch


class PredictionBatch(NamedTuple):
    """What is asked about some patients: their rows, which of these are new, completed covariates, and the past.

    There is one version of the covariates (versions×n×Q) per draw, or a single one if they have no gaps, and a past for
    each. `group` (versions·new) numbers the patients of the new rows through all versions; `times` is how many draws
    there are of each version.
    """

    rows: Tensor
    batch: Batch
    asked: Tensor
    x: Tensor
    group: Tensor
    history: History | None
    times: int


@torch.no_grad()
def predictive_draws(
    vae: ConditionalVAE,
    table: Table,
    new: Tensor,
    draws: int,
    generator: torch.Generator,
    trained: Container[Any] = (),
    independent_noise: bool = False,
) -> Iterator[Draws]:
    """Draws of y for the rows marked `new` (N,), given the other rows of their patients as history.

    Args:
        vae: the trained model.
        table: new rows, whose y is not looked at, and history.
        new: which rows to predict.
        draws: how many.
        generator: source of noise.
        trained: instance labels whose history is in the GP's posterior already.
        independent_noise: give every row, or patient, the same noise whatever others the table holds.
    """
    coefficients = vae.draw_coefficients(draws, generator)
    for q in _prediction_batches(vae, table, new, draws, generator, trained, independent_noise):
        z = vae.prior.sample(q.x[:, q.asked].flatten(0, 1), q.group, generator, q.history, q.times)
        past = _past_latents(vae, q, generator)
        yield _answer(vae, q, q.x, z, past, coefficients, generator)


@torch.no_grad()
def paired_draws(
    vae: ConditionalVAE,
    table: Table,
    new: Tensor,
    setting: Mapping[int, float],
    draws: int,
    generator: torch.Generator,
    trained: Container[Any] = (),
) -> Iterator[tuple[Draws, Draws]]:
    """`predictive_draws` as things are, and with some covariates of the new rows set to given values.

    The two have everything random in common: gaps in other covariates, z of the past, what is uncertain of the prior,
    and noise. The past is as it was.

    Args:
        setting: encoded value by column of x.

    The other arguments are those of `predictive_draws`.
    """
    shared, coefficients = vae.prior.draw_shared(draws, generator), vae.draw_coefficients(draws, generator)
    for q in _prediction_batches(vae, table, new, draws, generator, trained):
        other, own, known = q.x.clone(), q.batch.x.clone(), q.batch.x_mask.clone()
        for column, value in setting.items():
            other[:, q.asked, column], own[q.asked, column], known[q.asked, column] = value, value, True
        as_is, changed = (x[:, q.asked].flatten(0, 1) for x in (q.x, other))
        both = vae.prior.sample_both(as_is, changed, q.group, generator, shared, q.history, q.times)
        past, state = _past_latents(vae, q, generator), generator.get_state()
        here = _answer(vae, q, q.x, both[0], past, coefficients, generator)
        generator.set_state(state)
        q = q._replace(batch=replace(q.batch, x=own, x_mask=known))  # levels drift with the time that is set
        yield here, _answer(vae, q, other, both[1], past, coefficients, generator, q.x)


def unseen_draws(
    vae: ConditionalVAE, table: Table, rows: Tensor, batch: Batch, x: Tensor, coefficients: Tensor | None,
    generator: torch.Generator, known: Tensor,
) -> Draws | None:  # fmt: skip
    """Draws of y for the rows of a batch without any measurement, at covariates (draws×n×Q) drawn before; None if none.

    Args:
        vae: the trained model.
        table: the whole table.
        rows: the rows of it that the batch has.
        batch: these rows.
        x: their covariates, one version for each draw.
        coefficients: of `ConditionalVAE.draw_coefficients`.
        generator: source of noise.
        known: which patients of the table have their history in the GP's posterior already.
    """
    new = ~batch.y_mask.any(1)
    keep = _concerned(batch, new)
    if not keep.any():
        return None
    q = _prediction_batch(vae, table, rows[keep.cpu()], batch.take(keep), new[keep], x[:, keep], known)
    z = vae.prior.sample(q.x[:, q.asked].flatten(0, 1), q.group, generator, q.history, q.times)
    return _answer(vae, q, q.x, z, _past_latents(vae, q, generator), coefficients, generator)


def _prediction_batches(
    vae: ConditionalVAE, table: Table, new: Tensor, draws: int, generator: torch.Generator,
    trained: Container[Any], independent_noise: bool = False,
) -> Iterator[PredictionBatch]:  # fmt: skip
    known = torch.as_tensor(among(table.labels, trained))
    for rows, batch in chunks(table, draws, generator if independent_noise else None, vae.prior.width):
        asked = new[rows].to(batch.y.device)
        keep = _concerned(batch, asked)
        if not keep.any():
            continue
        rows, batch, asked = rows[keep.cpu()], batch.take(keep), asked[keep]
        batch = replace(batch, y_mask=batch.y_mask & ~asked[:, None])
        yield _prediction_batch(vae, table, rows, batch, asked, vae.draw_covariates(batch, draws, generator), known)


def _concerned(batch: Batch, asked: Tensor) -> Tensor:
    """The rows (n,) of patients of whom some row is asked for."""
    patients = torch.zeros(batch.patients, dtype=torch.bool, device=asked.device)
    patients[batch.patient[asked]] = True
    return patients[batch.patient]


def _prediction_batch(
    vae: ConditionalVAE, table: Table, rows: Tensor, batch: Batch, asked: Tensor, x: Tensor, known: Tensor
) -> PredictionBatch:
    """What is asked at covariates x (draws×n×Q)."""
    times = len(x) if batch.x_mask.all() else 1
    x = x[: len(x) // times]
    history = None
    if vae.prior.couples_rows and table.patient is not None and not asked.all():
        seen_before = known[table.patient[rows]].to(x.device)[batch.owner.unique()]
        history = history_of(vae, batch, x, ~asked, seen_before)
    group = torch.arange(len(x), device=x.device)[:, None] * batch.patients + batch.patient[asked]
    return PredictionBatch(rows, batch, asked, x, group.flatten(), history, times)


def drawn(
    vae: ConditionalVAE, rows: Tensor, seen: Observed, x: Tensor, chosen: Tensor | slice = slice(None),
    weight: Tensor | None = None,
) -> Draws:  # fmt: skip
    """Draws for those of the rows observed that are chosen, with their weights if they have any."""
    var = seen.var if seen.var.dim() == 1 else seen.var[:, chosen]
    outputs = None if seen.outputs is None else seen.outputs[:, chosen]
    picked = Observed(seen.mean[:, chosen], var, seen.y[:, chosen], outputs)
    return Draws(rows, picked.mean, picked.var, picked.y, x, outputs, vae.level_probabilities(picked, weight), weight)


def _past_latents(vae: ConditionalVAE, q: PredictionBatch, generator: torch.Generator) -> Tensor | None:
    """Draws of z of the past (draws×h×L), if patients have levels of their own, of which they tell."""
    if vae.random_effects is None:
        return None
    mean, var = (part[~q.asked] for part in vae.encode(q.batch))
    return mean + var.sqrt() * _normal(mean.expand(len(q.x) * q.times, *mean.shape), generator)


def _answer(
    vae: ConditionalVAE, q: PredictionBatch, x: Tensor, z: Tensor, past: Tensor | None, coefficients: Tensor | None,
    generator: torch.Generator, averaged_x: Tensor | None = None,
) -> Draws:  # fmt: skip
    """Draws of y of the new rows, at covariates x (versions×n×Q) and z (draws·new×L).

    Levels take patients' averages of `averaged_x`, or of x.
    """
    draws, asked = len(x) * q.times, q.asked
    x = x.expand(draws, -1, -1)
    latent = x.new_empty(draws, len(q.batch), vae.latent_dim)
    latent[:, asked] = z.unflatten(0, (draws, -1))
    told = asked
    if past is not None:  # what the patient's other visits say of its own level
        told = torch.ones_like(asked)
        latent[:, ~asked] = past
    batch = q.batch.take(told)
    location = vae.decode(latent[:, told].flatten(0, 1), x[:, told].flatten(0, 1)).unflatten(0, (draws, -1))
    fixed_part = vae.fixed_part_at(
        x, q.batch, coefficients, None if averaged_x is None else averaged_x.expand(draws, -1, -1)
    )
    seen = vae.observe(location, batch, generator, fixed_part)
    return drawn(vae, q.rows[asked.to(q.rows.device)], seen, x[:, asked], asked[told])


def history_of(vae: ConditionalVAE, batch: Batch, x: Tensor, past: Tensor, trained: Tensor) -> History:
    """The rows marked `past` (n,) as a history, once for each version of x (versions×n×Q)."""
    draws = len(x)
    mean, var, chain = vae.latents(batch)
    group = torch.arange(draws, device=x.device)[:, None] * batch.patients + batch.patient[past]
    return History(
        x[:, past].flatten(0, 1), mean[past].repeat(draws, 1), var[past].repeat(draws, 1),
        group.flatten(), trained.repeat(draws), None if chain is None else chain.take(past, draws),
    )  # fmt: skip


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
