"""Predictive draws of y at covariates whose gaps are integrated out, given a patient's history if there is one."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lacova.batches import Batch, Batches
from lacova.labels import among
from lacova.priors import History
from lacova.table import Table
from lacova.vae import ConditionalVAE, Observed

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
        chances: probability of each level of categorical measurements (n×D×K); None if there are none.
    """

    rows: Tensor
    location: Tensor
    var: Tensor
    y: Tensor
    x: Tensor
    outputs: Tensor | None = None
    chances: Tensor | None = None


def chunks(
    table: Table, draws: int, alone: torch.Generator | None = None, width: int = 1
) -> Iterator[tuple[Tensor, Batch]]:
    """Batches of rows or whole patients, with `draws` draws of which about CHUNK numbers are held.

    These are the D that are decoded for each draw of a row, or `width` if that is more.
    With `alone`, batches of one row or patient each, before each of which that generator starts again.
    """
    if alone is None:
        rows_per_unit = 1 if table.patient is None else -(-len(table) // len(table.labels))
        yield from Batches(table, max(1, CHUNK // (draws * max(width, table.y.shape[1]) * rows_per_unit))).in_order()
        return
    for rows, batch in Batches(table, 1).in_order():
        alone.manual_seed(alone.initial_seed())
        yield rows, batch


@torch.no_grad()
def predictive_draws(
    vae: ConditionalVAE,
    table: Table,
    new: Tensor,
    draws: int,
    generator: torch.Generator,
    trained: Container[Any] = (),
    alone: bool = False,
) -> Iterator[Draws]:
    """Draws of y for the rows marked `new` (N,), given the other rows of their patients as history.

    Args:
        vae: the trained model.
        table: new rows, whose y is not looked at, and history.
        new: which rows to predict.
        draws: how many.
        generator: source of noise.
        trained: instance labels whose history is in the GP's posterior already.
        alone: give every row, or patient, the same noise whatever others the table holds.
    """
    known = torch.as_tensor(among(table.labels, trained))
    for rows, batch in chunks(table, draws, generator if alone else None, vae.prior.width):
        concerned = torch.zeros(batch.patients, dtype=torch.bool)
        concerned[batch.patient.cpu()[new[rows]]] = True
        keep = concerned[batch.patient.cpu()]
        if not keep.any():
            continue
        rows, batch = rows[keep], batch.take(keep.to(batch.y.device))
        asked = new[rows].to(batch.y.device)
        batch = replace(batch, y_mask=batch.y_mask & ~asked[:, None])
        x = vae.draw_covariates(batch, draws, generator)
        history = None
        if vae.prior.couples_rows and table.patient is not None and not asked.all():
            seen_before = known[table.patient[rows]].to(x.device)[batch.owner.unique()]
            history = _history(vae, batch, x, ~asked, seen_before)
        group = torch.arange(draws, device=x.device)[:, None] * batch.patients + batch.patient[asked]
        z = x.new_empty(draws, len(batch), vae.latent_dim)
        z[:, asked] = vae.prior.sample(x[:, asked].flatten(0, 1), group.flatten(), generator, history).unflatten(
            0, (draws, -1)
        )
        if vae.intercepts is None:
            told = asked
        else:  # what the patient's other visits say of its own level
            told = torch.ones_like(asked)
            mean, var = (part[~asked] for part in vae.encode(batch))
            z[:, ~asked] = mean + var.sqrt() * _normal(z[:, ~asked], generator)
        batch = batch.take(told)
        location = vae.decode(z[:, told].flatten(0, 1), x[:, told].flatten(0, 1)).unflatten(0, (draws, -1))
        yield drawn(vae, rows[new[rows]], vae.observe(location, batch, generator), x[:, asked], asked[told])


def drawn(vae: ConditionalVAE, rows: Tensor, seen: Observed, x: Tensor, chosen: Tensor | slice = slice(None)) -> Draws:
    """Draws for those of the rows observed that are chosen."""
    var = seen.var if seen.var.dim() == 1 else seen.var[:, chosen]
    outputs = None if seen.outputs is None else seen.outputs[:, chosen]
    picked = Observed(seen.mean[:, chosen], var, seen.y[:, chosen], outputs)
    return Draws(rows, picked.mean, picked.var, picked.y, x, outputs, vae.chances(picked))


def _history(vae: ConditionalVAE, batch: Batch, x: Tensor, past: Tensor, trained: Tensor) -> History:
    draws = len(x)
    mean, var = vae.encode(batch)
    group = torch.arange(draws, device=x.device)[:, None] * batch.patients + batch.patient[past]
    return History(
        x[:, past].flatten(0, 1), mean[past].repeat(draws, 1), var[past].repeat(draws, 1),
        group.flatten(), trained.repeat(draws),
    )  # fmt: skip


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
