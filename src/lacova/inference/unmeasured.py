"""Draws of y for rows whose measurements do not enter, given the other rows of their patients as history."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Batch
from lacova.data.table import Table
from lacova.inference.draws import Draws, standard_normal, to_draws
from lacova.inference.vae import ConditionalVAE
from lacova.priors.base import History


class PredictionBatch(NamedTuple):
    """Some patients: their rows, which of these are new, completed covariates, and the history.

    There is one version of the covariates (versions×n×Q) per draw, or a single one if they have no gaps, and a history
    for each version. `group` (versions·new) numbers the patients of the new rows through all versions; `times` is the
    number of draws of each version.
    """

    rows: Tensor
    batch: Batch
    new: Tensor
    x: Tensor
    group: Tensor
    history: History | None
    times: int


def prediction_batch(
    vae: ConditionalVAE, table: Table, rows: Tensor, batch: Batch, new: Tensor, x: Tensor, trained: Tensor
) -> PredictionBatch:
    """Return what is needed to draw the new rows of a batch.

    Args:
        vae: the trained model.
        table: the whole table.
        rows: the rows of it that the batch has.
        batch: these rows.
        new: which of them are to be drawn (n,).
        x: their covariates (draws×n×Q).
        trained: which patients of the table have their history in the GP's posterior already.
    """
    times = len(x) if batch.x_mask.all() else 1
    x = x[: len(x) // times]
    history = None
    if vae.prior.couples_rows and table.patient is not None and not new.all():
        in_posterior = trained[table.patient[rows]].to(x.device)[batch.owner.unique()]
        history = history_of(vae, batch, x, ~new, in_posterior)
    group = torch.arange(len(x), device=x.device)[:, None] * batch.patients + batch.patient[new]
    return PredictionBatch(rows, batch, new, x, group.flatten(), history, times)


def rows_of_patients_with(batch: Batch, new: Tensor) -> Tensor:
    """Return the rows (n,) of patients who have a new row."""
    patients = torch.zeros(batch.patients, dtype=torch.bool, device=new.device)
    patients[batch.patient[new]] = True
    return patients[batch.patient]


def draw_unmeasured(
    vae: ConditionalVAE, table: Table, rows: Tensor, batch: Batch, x: Tensor, coefficients: Tensor | None,
    generator: torch.Generator, trained: Tensor,
) -> Draws | None:  # fmt: skip
    """Draw y of the rows of a batch without any measurement; None if there are none.

    `coefficients` are those of `ConditionalVAE.draw_coefficients`; the other arguments are those of `prediction_batch`.
    """
    new = ~batch.y_mask.any(1)
    keep = rows_of_patients_with(batch, new)
    if not keep.any():
        return None
    own = prediction_batch(vae, table, rows[keep.cpu()], batch.take(keep), new[keep], x[:, keep], trained)
    z = vae.prior.sample(own.x[:, own.new].flatten(0, 1), own.group, generator, own.history, own.times)
    return draw_new_rows(vae, own, own.x, z, history_latents(vae, own, generator), coefficients, generator)


def history_latents(vae: ConditionalVAE, prediction: PredictionBatch, generator: torch.Generator) -> Tensor | None:
    """Draw z of the history (draws×h×L), on which patients' random effects depend; None without random effects."""
    if vae.random_effects is None:
        return None
    mean, var, _ = vae.latents_at(prediction.batch, prediction.x).take(~prediction.new)
    draws = len(prediction.x) * prediction.times
    return mean + var.sqrt() * standard_normal(mean.expand(draws, *mean.shape[-2:]), generator)


def draw_new_rows(
    vae: ConditionalVAE, prediction: PredictionBatch, x: Tensor, z: Tensor, history_z: Tensor | None,
    coefficients: Tensor | None, generator: torch.Generator, averaged_x: Tensor | None = None,
) -> Draws:  # fmt: skip
    """Draw y of the new rows at covariates x (versions×n×Q) and z (draws·new×L).

    Fixed effects take patients' averages of `averaged_x`, or of x.
    """
    draws, new = len(x) * prediction.times, prediction.new
    x = x.expand(draws, -1, -1)
    latent = x.new_empty(draws, len(prediction.batch), vae.latent_dim)
    latent[:, new] = z.unflatten(0, (draws, -1))
    decoded = new
    if history_z is not None:  # the history informs the patient's random effects
        decoded = torch.ones_like(new)
        latent[:, ~new] = history_z
    batch = prediction.batch.take(decoded)
    outputs = vae.decode(latent[:, decoded].flatten(0, 1), x[:, decoded].flatten(0, 1)).unflatten(0, (draws, -1))
    averaged = None if averaged_x is None else averaged_x.expand(draws, -1, -1)
    observed = vae.observe(outputs, batch, generator, vae.fixed_part_at(x, prediction.batch, coefficients, averaged))
    rows = prediction.rows[new.to(prediction.rows.device)]
    return to_draws(vae, rows, observed, x[:, new], new[decoded])


def history_of(vae: ConditionalVAE, batch: Batch, x: Tensor, past: Tensor, trained: Tensor) -> History:
    """Return the rows marked `past` (n,) as a history, once for each version of x (versions×n×Q)."""
    draws = len(x)
    mean, var, chain = vae.latents_at(batch, x)
    mean, var = (part.expand(draws, -1, -1)[:, past].flatten(0, 1) for part in (mean, var))
    group = torch.arange(draws, device=x.device)[:, None] * batch.patients + batch.patient[past]
    return History(
        x[:, past].flatten(0, 1), mean, var, group.flatten(), trained.repeat(draws),
        None if chain is None else chain.take(past, draws),
    )  # fmt: skip
