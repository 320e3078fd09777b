"""Predictive draws of y at covariates whose gaps are integrated out, given a patient's history if there is one."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lacova.data.labels import among
from lacova.data.table import Table
from lacova.inference.draws import Draws, chunks
from lacova.inference.unmeasured import (
    PredictionBatch,
    draw_new_rows,
    history_latents,
    prediction_batch,
    rows_of_patients_with,
)
from lacova.inference.vae import ConditionalVAE


@torch.no_grad()
def predictive_draws(
    vae: ConditionalVAE, table: Table, new: Tensor, draws: int, generator: torch.Generator,
    trained: Container[Any] = (), independent_noise: bool = False,
) -> Iterator[Draws]:  # fmt: skip
    """Draw y of the rows marked `new` (N,), given the other rows of their patients as history.

    Args:
        vae: the trained model.
        table: new rows, whose y does not enter, and history.
        new: which rows to predict.
        draws: how many.
        generator: source of random numbers.
        trained: instance labels whose history is in the GP's posterior already.
        independent_noise: give every row, or patient, the same random numbers whatever others the table holds.
    """
    coefficients = vae.draw_coefficients(draws, generator)
    for batch in _prediction_batches(vae, table, new, draws, generator, trained, independent_noise):
        z = vae.prior.sample(batch.x[:, batch.new].flatten(0, 1), batch.group, generator, batch.history, batch.times)
        history_z = history_latents(vae, batch, generator)
        yield draw_new_rows(vae, batch, batch.x, z, history_z, coefficients, generator)


@torch.no_grad()
def paired_draws(
    vae: ConditionalVAE, table: Table, new: Tensor, setting: Mapping[int, float], draws: int,
    generator: torch.Generator, trained: Container[Any] = (),
) -> Iterator[tuple[Draws, Draws]]:  # fmt: skip
    """Draw as `predictive_draws` does, and again with some covariates of the new rows set to given values.

    The two share everything random: gaps in other covariates, z of the history, what is uncertain of the prior, and
    noise. The history is as it was.

    Args:
        setting: encoded value by column of x.

    The other arguments are those of `predictive_draws`.
    """
    shared, coefficients = vae.prior.draw_shared(draws, generator), vae.draw_coefficients(draws, generator)
    for batch in _prediction_batches(vae, table, new, draws, generator, trained):
        changed, own_x, own_mask = batch.x.clone(), batch.batch.x.clone(), batch.batch.x_mask.clone()
        for column, value in setting.items():
            changed[:, batch.new, column] = value
            own_x[batch.new, column], own_mask[batch.new, column] = value, True
        as_is, set_to = (x[:, batch.new].flatten(0, 1) for x in (batch.x, changed))
        z, other_z = vae.prior.sample_both(as_is, set_to, batch.group, generator, shared, batch.history, batch.times)
        history_z, state = history_latents(vae, batch, generator), generator.get_state()
        first = draw_new_rows(vae, batch, batch.x, z, history_z, coefficients, generator)
        generator.set_state(state)
        # Random effects drift with the time that is set.
        other = batch._replace(batch=replace(batch.batch, x=own_x, x_mask=own_mask))
        yield first, draw_new_rows(vae, other, changed, other_z, history_z, coefficients, generator, batch.x)


def _prediction_batches(
    vae: ConditionalVAE, table: Table, new: Tensor, draws: int, generator: torch.Generator,
    trained: Container[Any], independent_noise: bool = False,
) -> Iterator[PredictionBatch]:  # fmt: skip
    in_posterior = torch.as_tensor(among(table.labels, trained))
    for rows, batch in chunks(table, draws, generator if independent_noise else None, max(vae.width, vae.prior.width)):
        here = new[rows].to(batch.y.device)
        keep = rows_of_patients_with(batch, here)
        if not keep.any():
            continue
        rows, batch, here = rows[keep.cpu()], batch.take(keep), here[keep]
        batch = replace(batch, y_mask=batch.y_mask & ~here[:, None])
        x = vae.draw_covariates(batch, draws, generator)
        yield prediction_batch(vae, table, rows, batch, here, x, in_posterior)
