"""A distribution about the covariates of some rows: independent normals and categoricals, with its draws and its KL."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.nn.linalg import gaussian_kl


def free_entries(batch: Batch, space: CovariateSpace) -> Tensor:
    """Which entries (N×Q) are unknowns of their own: gaps, a visit-constant one counted once per patient."""
    gaps = ~batch.x_mask
    if any(space.static):
        static = space.on(gaps.device).static
        first = batch.owner == torch.arange(len(batch), device=gaps.device)
        gaps = gaps & (first[:, None] | ~static)
    return gaps


def kl(q: FactorisedDistribution, p: FactorisedDistribution, batch: Batch, space: CovariateSpace) -> Tensor:
    """KL[q(x_u) ‖ p(x_u)] summed over the batch's unknowns; analytic."""
    free = free_entries(batch, space)
    total = batch.x.new_zeros(())
    if space.continuous:
        c = space.on(batch.x.device).continuous
        part = gaussian_kl(q.mean[:, c], q.var[:, c], p.mean[:, c], p.var[:, c])
        total = total + torch.where(free[:, c], part, 0.0).sum()
    if space.categorical:
        c = space.on(batch.x.device).categorical
        log_q, log_p = q.log_prob[:, c], p.log_prob[:, c]
        # 0 · log 0 = 0; a level that p excludes but q does not makes the KL infinite, as it should.
        ratio = torch.where(log_q.isneginf(), 0.0, log_q) - torch.where(log_q.isneginf(), 0.0, log_p)
        part = (log_q.exp() * ratio).sum(-1)
        total = total + torch.where(free[:, c], part, 0.0).sum()
    return total


def negative_entropy(q: FactorisedDistribution, batch: Batch, space: CovariateSpace) -> Tensor:
    """E_q[log q(x_u)] summed over the batch's unknowns; analytic."""
    free = free_entries(batch, space)
    total = batch.x.new_zeros(())
    if space.continuous:
        c = space.on(batch.x.device).continuous
        each = -0.5 * (q.var[:, c].log() + math.log(2.0 * math.pi * math.e))
        total = total + torch.where(free[:, c], each, 0.0).sum()
    if space.categorical:
        c = space.on(batch.x.device).categorical
        log_q = q.log_prob[:, c]
        each = (log_q.exp() * torch.where(log_q.isneginf(), 0.0, log_q)).sum(-1)
        total = total + torch.where(free[:, c], each, 0.0).sum()
    return total


def share_static(values: Tensor, batch: Batch, space: CovariateSpace) -> Tensor:
    """Let each row take its patient's first row in the visit-constant columns; `values` is (…×N×Q)."""
    if not any(space.static):
        return values
    return torch.where(space.on(values.device).static, values[..., batch.owner, :], values)


def draw(
    distribution: FactorisedDistribution, batch: Batch, space: CovariateSpace, draws: int, generator: torch.Generator
) -> Tensor:
    """Completed covariates (draws×N×Q): observed entries as they are, gaps drawn, shared within a patient if static."""
    n, columns = batch.x.shape
    noise = torch.randn(draws, n, columns, generator=generator, device=batch.x.device, dtype=batch.x.dtype)
    x = distribution.mean + distribution.var.sqrt() * noise
    if space.categorical:
        probs = distribution.log_prob[:, space.categorical].exp()
        codes = torch.multinomial(probs.flatten(0, 1), draws, replacement=True, generator=generator)
        x[:, :, space.categorical] = codes.T.reshape(draws, n, -1).to(x.dtype)
    return torch.where(batch.x_mask, batch.x, share_static(x, batch, space))


def most_probable(distribution: FactorisedDistribution, batch: Batch, space: CovariateSpace) -> Tensor:
    """Completed covariates (N×Q): mean of a continuous gap, most probable level of a categorical one."""
    x = distribution.mean.clone()
    if space.categorical:
        x[:, space.categorical] = distribution.log_prob[:, space.categorical].argmax(-1).to(x.dtype)
    return torch.where(batch.x_mask, batch.x, x)


def level_probabilities(distribution: FactorisedDistribution, batch: Batch) -> Tensor:
    """Probability of each level of each categorical entry (N×Q×levels); where observed, 1 for that level."""
    levels = torch.arange(distribution.log_prob.shape[-1], device=batch.x.device)
    seen = (batch.x[..., None].round() == levels).to(distribution.log_prob.dtype)
    return torch.where(batch.x_mask[..., None], seen, distribution.log_prob.exp())


def log_density(distribution: FactorisedDistribution, x: Tensor, entries: Tensor, space: CovariateSpace) -> Tensor:
    """log of the distribution at completed covariates x (draws×N×Q), summed over each row's chosen `entries`: draws×N."""
    total = x.new_zeros(x.shape[:2])
    if space.continuous:
        c = space.on(x.device).continuous
        var = distribution.var[:, c]
        each = -0.5 * ((x[..., c] - distribution.mean[:, c]) ** 2 / var + var.log() + math.log(2.0 * math.pi))
        total = total + torch.where(entries[:, c], each, 0.0).sum(-1)
    if space.categorical:
        c = space.on(x.device).categorical
        log_prob = distribution.log_prob[:, c].expand(len(x), -1, -1, -1)
        each = log_prob.gather(-1, x[..., c].round().long()[..., None])[..., 0]
        total = total + torch.where(entries[:, c], each, 0.0).sum(-1)
    return total
