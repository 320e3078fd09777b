"""Imputation draws of y_u and x_u given everything observed."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import torch

from lacova.predict import Draws, chunks, drawn, predictive_draws
from lacova.table import Table
from lacova.vae import ConditionalVAE


@torch.no_grad()
def imputation_draws(
    vae: ConditionalVAE, table: Table, draws: int, generator: torch.Generator, trained: Container[Any] = (),
    alone: bool = False,
) -> Iterator[Draws]:  # fmt: skip
    """Draws for every row: z from q(z | y_o, x_o), or from the predictive law where the row has no y."""
    for rows, batch in chunks(table, draws, generator if alone else None):
        seen = batch.y_mask.any(1)
        if not seen.any():
            continue
        x = vae.draw_covariates(batch, draws, generator)[:, seen]
        q = vae.latents(batch).take(seen)
        noise = torch.randn(draws, *q.mean.shape, generator=generator, device=x.device, dtype=q.mean.dtype)
        z = q.draw(noise)
        location = vae.decode(z.flatten(0, 1), x.flatten(0, 1)).unflatten(0, (draws, -1))
        yield drawn(vae, rows[seen.to(rows.device)], vae.observe(location, batch.take(seen), generator), x)
    unseen = ~table.y_mask.any(1).cpu()
    if unseen.any():
        yield from predictive_draws(vae, table, unseen, draws, generator, trained, alone)
