"""KL, entropy, draws and densities of a `FactorisedDistribution` of covariates, with its paths and dependence.

An unknown is a missing entry of X; a visit-constant one is a single unknown, shared by all rows of its patient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lacova.covariates.dependence import correlated, kl_of_numbers, log_density_of_rows, log_determinant
from lacova.covariates.paths import (
    categories,
    draw_levels,
    innovations,
    kl_of_levels,
    kl_of_pairs,
    log_density_of_pairs,
    log_prob_of_levels,
)
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.nn.linalg import gaussian_kl


def free_entries(batch: Batch, space: CovariateSpace, x_mask: Tensor | None = None) -> Tensor:
    """Return a mask (N×Q) of the unknowns: all gaps, a visit-constant one only in its patient's first row.

    `x_mask` replaces the mask of the batch.
    """
    gaps = ~(batch.x_mask if x_mask is None else x_mask)
    if any(space.static):
        gaps = gaps & (batch.is_first[:, None] | space.on(gaps.device).varying)
    return gaps


def kl(q: FactorisedDistribution, p: FactorisedDistribution, batch: Batch, space: CovariateSpace) -> Tensor:
    """Compute KL[q(x_u) ‖ p(x_u)], summed over the batch's unknowns, in closed form."""
    free = free_entries(batch, space)
    total = batch.x.new_zeros(())
    if q.dependence is not None or p.dependence is not None:
        own = free.index_select(1, space.on(batch.x.device).continuous)
        total = total + kl_of_numbers(q, p, own, batch, space).sum()
    elif space.continuous:
        c = space.on(batch.x.device).continuous
        terms = gaussian_kl(*(part.index_select(1, c) for part in (q.mean, q.var, p.mean, p.var)))
        total = total + torch.where(free.index_select(1, c), terms, 0.0).sum()
        if p.paths is not None:
            total = total + kl_of_pairs(q.columns(c), p.columns(c)).sum()
    if space.categorical:
        c = space.on(batch.x.device).categorical
        terms = kl_of_levels(categories(q, space), p.columns(c))
        total = total + torch.where(free.index_select(1, c), terms, 0.0).sum()
    return total


def negative_entropy(q: FactorisedDistribution, batch: Batch, space: CovariateSpace) -> Tensor:
    """Compute E_q[log q(x_u)], summed over the batch's unknowns, in closed form."""
    free = free_entries(batch, space)
    total = batch.x.new_zeros(())
    if space.continuous:
        c = space.on(batch.x.device).continuous
        terms = -0.5 * (q.var.index_select(1, c).log() + math.log(2.0 * math.pi * math.e))
        total = total + torch.where(free.index_select(1, c), terms, 0.0).sum()
        if q.dependence is not None:
            total = total - log_determinant(q.dependence, free.index_select(1, c)).sum()
    if space.categorical:
        c = space.on(batch.x.device).categorical
        log_q = q.log_prob.index_select(1, c)
        terms = (log_q.exp() * torch.where(log_q.isneginf(), 0.0, log_q)).sum(-1)
        total = total + torch.where(free.index_select(1, c), terms, 0.0).sum()
    return total


def share_static(values: Tensor, batch: Batch, space: CovariateSpace) -> Tensor:
    """Copy the values (…×N×Q) of each patient's first row to all its rows, in the visit-constant columns."""
    if not any(space.static):
        return values
    return torch.where(space.on(values.device).static, values[..., batch.owner, :], values)


def draw(
    distribution: FactorisedDistribution, batch: Batch, space: CovariateSpace, draws: int, generator: torch.Generator
) -> Tensor:
    """Draw completed covariates (draws×N×Q): observed entries are kept, visit-constant draws shared by a patient."""
    n, columns = batch.x.shape
    eps = torch.randn(draws, n, columns, generator=generator, device=batch.x.device, dtype=batch.x.dtype)
    x = distribution.mean + distribution.var.sqrt() * correlated(eps, distribution, batch)
    if space.categorical and distribution.paths is not None:
        uniform = torch.rand(eps.shape, generator=generator, device=x.device, dtype=x.dtype)
        levels = draw_levels(distribution, space, uniform, batch)[..., space.categorical]
        x[:, :, space.categorical] = levels.to(x.dtype)
    elif space.categorical:
        probs = distribution.log_prob[:, space.categorical].exp()
        codes = torch.multinomial(probs.flatten(0, 1), draws, replacement=True, generator=generator)
        x[:, :, space.categorical] = codes.T.reshape(draws, n, -1).to(x.dtype)
    return torch.where(batch.x_mask, batch.x, share_static(x, batch, space))


def most_probable(distribution: FactorisedDistribution, batch: Batch, space: CovariateSpace) -> Tensor:
    """Complete the covariates (N×Q) with means at continuous gaps and most probable levels at categorical ones."""
    x = distribution.mean.clone()
    if space.categorical:
        x[:, space.categorical] = distribution.log_prob[:, space.categorical].argmax(-1).to(x.dtype)
    return torch.where(batch.x_mask, batch.x, x)


def level_probabilities(distribution: FactorisedDistribution, batch: Batch) -> Tensor:
    """Return the probability of each level of each categorical entry (N×Q×levels), one-hot where observed."""
    levels = torch.arange(distribution.log_prob.shape[-1], device=batch.x.device)
    observed = (batch.x[..., None].round() == levels).to(distribution.log_prob.dtype)
    return torch.where(batch.x_mask[..., None], observed, distribution.log_prob.exp())


def log_density(distribution: FactorisedDistribution, x: Tensor, entries: Tensor, space: CovariateSpace) -> Tensor:
    """Compute the log density (draws×N) of completed covariates x (draws×N×Q), over the entries in a mask (N×Q).

    With paths, the density of an entry is that given the one before it in its run. With dependence, `entries` has all
    gaps of a row's numbers, or none.
    """
    total = x.new_zeros(x.shape[:2])
    if space.continuous:
        c = space.on(x.device).continuous
        mean, var = distribution.mean.index_select(1, c), distribution.var.index_select(1, c)
        terms = -0.5 * ((x.index_select(-1, c) - mean) ** 2 / var + var.log() + math.log(2.0 * math.pi))
        own, free = distribution.columns(c), entries.index_select(1, c)
        if distribution.paths is not None:
            terms = terms + log_density_of_pairs(own, x.index_select(-1, c))
        total = total + torch.where(free, terms, 0.0).sum(-1)
        if distribution.dependence is not None:
            total = total + log_density_of_rows(distribution.dependence, innovations(own, x.index_select(-1, c)), free)
    if space.categorical:
        c = space.on(x.device).categorical
        terms = log_prob_of_levels(categories(distribution, space), x.index_select(-1, c).round().long())
        total = total + torch.where(entries.index_select(1, c), terms, 0.0).sum(-1)
    return total
