"""Imputation draws of y_u and x_u given everything observed."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import torch
from torch import Tensor

from lacova.data.covariate_space import CovariateSpace
from lacova.data.encoder import Table
from lacova.data.labels import among
from lacova.inference.importance import importance_sample, pooled, spread
from lacova.inference.predict import Draws, chunks, drawn, unseen_draws
from lacova.inference.vae import ConditionalVAE, Observed

# Draws of a row that are weighed against each other: so many at least, and so many for each that is resampled.
PROPOSALS, PER_DRAW = 1000, 10


@torch.no_grad()
def imputation_draws(
    vae: ConditionalVAE, table: Table, draws: int, generator: torch.Generator, trained: Container[Any] = (),
    independent_noise: bool = False,
) -> Iterator[Draws]:  # fmt: skip
    """Draws for every row: z from q(z | y_o, x_o), or from the predictive law where the row has no y.

    Covariates are drawn once for all rows of a patient, so that all of them have the same visit-constant ones.
    """
    known = torch.as_tensor(among(table.labels, trained))
    gaps, coefficients = not table.y_mask.any(1).all(), vae.draw_coefficients(draws, generator)
    for rows, batch in chunks(table, draws, generator if independent_noise else None, vae.prior.width if gaps else 1):
        seen, x = batch.y_mask.any(1), vae.draw_covariates(batch, draws, generator)
        if seen.any():
            q = vae.latents(batch).take(seen)
            noise = torch.randn(draws, *q.mean.shape, generator=generator, device=x.device, dtype=q.mean.dtype)
            z, mine = q.draw(noise), x[:, seen]
            location = vae.decode(z.flatten(0, 1), mine.flatten(0, 1)).unflatten(0, (draws, -1))
            fixed_part = vae.fixed_part_at(x, batch, coefficients)  # of all visits, measured or not
            found = vae.observe(
                location, batch.take(seen), generator, None if fixed_part is None else fixed_part.take(seen)
            )
            yield drawn(vae, rows[seen.to(rows.device)], found, mine)
        if (unseen := unseen_draws(vae, table, rows, batch, x, coefficients, generator, known)) is not None:
            yield unseen


@torch.no_grad()
def weighted_draws(
    vae: ConditionalVAE, table: Table, count: int, generator: torch.Generator, independent_noise: bool = False,
    resample: bool = False,
) -> Iterator[Draws]:  # fmt: skip
    """Draws for every row, with weights: self-normalised importance sampling of z, x_u, and y_u where gaps look at it.

    The weighted law tends to p(y_u, x_u | y_o, x_o) as draws grow, however far q is from it. Rows of a patient have
    weights in common where they have visit-constant covariates in common.

    Args:
        vae: the trained model, of rows that z does not couple.
        table: the rows.
        count: draws of each row, of which more are weighed.
        generator: source of noise.
        independent_noise: as in `imputation_draws`.
        resample: give `count` draws that count alike, taken at random by weight.
    """
    proposals = max(PROPOSALS, PER_DRAW * count)
    for rows, batch in chunks(table, proposals, generator if independent_noise else None):
        noise = vae.draw_eps(batch, proposals, generator)
        found = importance_sample(vae, batch, noise, vae.believe(batch), together=True, prior_proposal=True)
        weight = pooled(found.total, batch, vae).softmax(0)
        pick = spread(_pick(weight, count, generator), batch, vae) if resample else None
        outputs, x, y = (_taken(values, pick) for values in (found.outputs, found.x, found.y))
        if y is None:  # noise is drawn after resampling: tables that have z in common must differ by it
            seen = vae.observe(outputs, batch, generator, vae.fixed_part_at(x, batch))
        else:
            seen = Observed(y, torch.zeros_like(vae.likelihood.var), y)  # what was weighed is y itself
        yield drawn(vae, rows, seen, x, weight=None if resample else spread(weight, batch, vae))


def _pick(weight: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """Which proposals (draws×units) to take, by their weights (proposals×units).

    Systematic: one uniform number for all draws of a unit, so that each proposal is taken as often as its weight says,
    within one.
    """
    steps = weight.double().cumsum(0).T.contiguous()
    start = torch.rand(len(steps), 1, generator=generator, device=steps.device, dtype=steps.dtype)
    at = (torch.arange(draws, device=steps.device) + start) / draws * steps[:, -1:]
    return torch.searchsorted(steps, at).clamp(max=len(weight) - 1).T


def _taken(values: Tensor | None, pick: Tensor | None) -> Any:
    """Some of the proposals of each row (draws×n) of what there is of them (proposals×n×…), or all."""
    if values is None or pick is None:
        return values
    return values.gather(0, pick[..., None].expand(-1, -1, values.shape[-1]))


def guessed(part: Draws, space: CovariateSpace) -> tuple[Tensor, Tensor]:
    """Mean or most probable level of each covariate (n×Q), and the chance of each level (n×Q×levels), by weight."""
    at = space.on(part.x.device)
    hot = (part.x[..., None] == at.level).to(part.x.dtype)
    level_probabilities = part.average(hot.flatten(2)).unflatten(1, hot.shape[2:])
    guess = part.average(part.x)
    return guess.index_copy(
        1, at.categorical, level_probabilities.argmax(-1)[:, at.categorical].to(guess.dtype)
    ), level_probabilities
