"""Imputation draws of y_u and x_u given everything observed."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import torch
from torch import Tensor

from lacova.covariates.factorised import level_probabilities, most_probable
from lacova.covariates.prior import conditional_prior
from lacova.data.covariate_space import CovariateSpace
from lacova.data.labels import among
from lacova.data.table import Table
from lacova.inference.draws import Draws, chunks, to_draws
from lacova.inference.importance import importance_sample, sum_within_units, units_to_rows
from lacova.inference.unmeasured import draw_unmeasured
from lacova.inference.vae import ConditionalVAE, Observed

# Importance samples of a row: so many at least, and so many for each that is resampled.
MIN_PROPOSALS, PROPOSALS_PER_DRAW = 1000, 10


@torch.no_grad()
def imputation_draws(
    vae: ConditionalVAE, table: Table, draws: int, generator: torch.Generator, trained: Container[Any] = (),
    independent_noise: bool = False,
) -> Iterator[Draws]:  # fmt: skip
    """Draw every row: z from q(z | y_o, x_o), or from its predictive distribution where the row has no y.

    Covariates are drawn once for all rows of a patient, so that all of them have the same visit-constant ones.
    """
    in_posterior = torch.as_tensor(among(table.labels, trained))
    unmeasured, coefficients = not table.y_mask.any(1).all(), vae.draw_coefficients(draws, generator)
    width = max(vae.width, vae.prior.width) if unmeasured else vae.width
    for rows, batch in chunks(table, draws, generator if independent_noise else None, width):
        gaps = not batch.x_mask.all()
        posterior = vae.covariate_posterior(batch) if gaps else None
        measured, x = batch.y_mask.any(1), vae.draw_covariates(batch, draws, generator, posterior)
        q_x = (
            conditional_prior(batch).distribution if posterior is None else vae.covariate_distribution(batch, posterior)
        )
        best, probs = most_probable(q_x, batch, vae.space), level_probabilities(q_x, batch)
        if measured.any():
            q = vae.latents_at(batch, x).take(measured)
            eps = torch.randn(draws, *q.mean.shape[-2:], generator=generator, device=x.device, dtype=q.mean.dtype)
            z, own = q.draw(eps), x[:, measured]
            outputs = vae.decode(z.flatten(0, 1), own.flatten(0, 1)).unflatten(0, (draws, -1))
            fixed_part = vae.fixed_part_at(x, batch, coefficients)  # over all visits, measured or not
            fixed_part = None if fixed_part is None else fixed_part.take(measured)
            observed = vae.observe(outputs, batch.take(measured), generator, fixed_part)
            part = to_draws(vae, rows[measured.to(rows.device)], observed, own)
            yield part._replace(most_probable_x=best[measured], x_level_probabilities=probs[measured])
        others = draw_unmeasured(vae, table, rows, batch, x, coefficients, generator, in_posterior)
        if others is not None:
            yield others._replace(most_probable_x=best[~measured], x_level_probabilities=probs[~measured])


@torch.no_grad()
def weighted_draws(
    vae: ConditionalVAE, table: Table, count: int, generator: torch.Generator, independent_noise: bool = False,
    resample: bool = False,
) -> Iterator[Draws]:  # fmt: skip
    """Draw every row with weights: self-normalised importance sampling of z, x_u, and y_u where gaps depend on it.

    The weighted distribution tends to p(y_u, x_u | y_o, x_o) as draws grow, however far q is from it. Rows of a patient
    share weights where they share visit-constant covariates, or may have gaps on paths.

    Args:
        vae: the trained model, of rows that z does not couple.
        table: the rows.
        count: draws of each row; more are weighted.
        generator: source of random numbers.
        independent_noise: as in `predictive_draws`.
        resample: return `count` draws that count equally, resampled by weight.
    """
    proposals = max(MIN_PROPOSALS, PROPOSALS_PER_DRAW * count)
    for rows, batch in chunks(table, proposals, generator if independent_noise else None, vae.width):
        eps = vae.draw_eps(batch, proposals, generator)
        q_x = vae.covariate_distribution(batch)
        sample = importance_sample(vae, batch, eps, q_x, by_patient=True, prior_proposal=True)
        weight = sum_within_units(sample.log_weight, batch, vae).softmax(0)
        chosen = units_to_rows(_resample(weight, count, generator), batch, vae) if resample else None
        outputs, x, y = (_take_draws(values, chosen) for values in (sample.outputs, sample.x, sample.y))
        if y is None:  # noise is drawn after resampling: completed tables that share z must differ in it
            observed = vae.observe(outputs, batch, generator, vae.fixed_part_at(x, batch))
        else:
            observed = Observed(y, torch.zeros_like(vae.likelihood.noise_variance), y)  # y itself was weighted
        part = to_draws(vae, rows, observed, x, weight=None if resample else units_to_rows(weight, batch, vae))
        yield part if resample else _with_most_probable(part, vae.space)


def _resample(weight: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """Choose proposals (draws×units) by their weights (proposals×units).

    Systematic: one uniform number for all draws of a unit, so that each proposal is chosen as often as its weight says,
    within one.
    """
    cumulative = weight.double().cumsum(0).T.contiguous()
    start = torch.rand(len(cumulative), 1, generator=generator, device=cumulative.device, dtype=cumulative.dtype)
    at = (torch.arange(draws, device=cumulative.device) + start) / draws * cumulative[:, -1:]
    return torch.searchsorted(cumulative, at).clamp(max=len(weight) - 1).T


def _take_draws(values: Tensor | None, chosen: Tensor | None) -> Any:
    """Return the chosen proposals of each row (draws×n) of some values (proposals×n×…), or all of them."""
    if values is None or chosen is None:
        return values
    return values.gather(0, chosen[..., None].expand(-1, -1, values.shape[-1]))


def _with_most_probable(part: Draws, space: CovariateSpace) -> Draws:
    """Add mean or most probable level of each covariate, and the probability of each level, by weight."""
    mean, probs = weighted_covariates(part, space)
    return part._replace(most_probable_x=mean, x_level_probabilities=probs)


def weighted_covariates(part: Draws, space: CovariateSpace) -> tuple[Tensor, Tensor]:
    """Return mean or most probable level of each covariate (n×Q), and the probability of each level (n×Q×K)."""
    columns = space.on(part.x.device)
    one_hot = (part.x[..., None] == torch.arange(space.max_levels, device=part.x.device)).to(part.x.dtype)
    probs = part.average(one_hot.flatten(2)).unflatten(1, one_hot.shape[2:])
    levels = probs.argmax(-1)[:, columns.categorical]
    mean = part.average(part.x)
    return mean.index_copy(1, columns.categorical, levels.to(mean.dtype)), probs
