"""A joint model of the covariates: a finite mixture, normal with full covariance over the continuous columns and
independent categorical over the discrete ones. Everything conditional on observed entries is in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.nn.linalg import inverse_lower, log_det, solve_lower

# Rows × components × K² numbers that are held at a time.
CHUNK = 2_000_000


@dataclass(frozen=True)
class Conditional:
    """p(component, x | x_o) for N rows: a mixture again.

    Attributes:
        log_weight: log p(c | x_o) (N×C).
        mean: of the continuous columns given c and x_o (N×C×K); observed entries are themselves.
        covariance: of the same, per gap pattern (U×C×K×K); zero where observed.
        pattern: the gap pattern of each row (N,).
        log_marginal: log p(x_o) (N,).
    """

    log_weight: Tensor
    mean: Tensor
    covariance: Tensor
    pattern: Tensor
    log_marginal: Tensor


class Mixture(nn.Module):
    """p(x) = Σ_c w_c N(x_cont | μ_c, Σ_c) Π_j π_cj[x_j].

    Args:
        space: layout of X.
        log_weight: log w (C,).
        mean: μ (C×K), K continuous columns.
        covariance: Σ (C×K×K).
        log_level: log π (C×J×levels), J categorical columns; −inf beyond a column's own levels.
    """

    log_weight: Tensor
    mean: Tensor
    factor: Tensor
    log_level: Tensor

    def __init__(
        self, space: CovariateSpace, log_weight: Tensor, mean: Tensor, covariance: Tensor, log_level: Tensor
    ) -> None:
        super().__init__()
        self.space = space
        self.register_buffer("log_weight", log_weight)
        self.register_buffer("mean", mean)
        self.register_buffer("factor", torch.linalg.cholesky(covariance))
        self.register_buffer("log_level", log_level)

    @classmethod
    def blank(cls, space: CovariateSpace, components: int) -> Mixture:
        """Of the right shape, to read stored numbers into."""
        k, j = len(space.continuous), len(space.categorical)
        mean = torch.zeros(components, k, dtype=torch.float64)
        covariance = torch.eye(k, dtype=torch.float64).repeat(components, 1, 1)
        return cls(space, mean.new_zeros(components), mean, covariance, mean.new_zeros(components, j, space.max_levels))

    @property
    def covariance(self) -> Tensor:
        return self.factor @ self.factor.mT

    def __len__(self) -> int:
        return len(self.log_weight)

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x) of complete rows (…×Q); differentiable in the continuous columns."""
        return (self._log_levels(x, None) + self._log_normals(x) + self.log_weight).logsumexp(-1)

    def _log_normals(self, x: Tensor) -> Tensor:
        size = self.mean.shape[1]
        # One small inverse per component serves all rows.
        whitener = inverse_lower(self.factor)
        gap = x[..., None, self.space.on(x.device).continuous] - self.mean  # …×C×K
        white = torch.einsum("...ck,cjk->...cj", gap, whitener)
        return -0.5 * (white.square().sum(-1) + log_det(self.factor) + size * math.log(2.0 * math.pi))

    def _log_levels(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Σ_j log π_cj[x_j] over the (observed) categorical columns: …×C."""
        columns = self.space.categorical
        if not columns:
            return x.new_zeros(*x.shape[:-1], len(self))
        columns_at = self.space.on(x.device).categorical
        code = x[..., columns_at].round().long().clamp(0, self.space.max_levels - 1)
        place = torch.arange(len(columns), device=x.device)
        each = self.log_level.permute(1, 2, 0)[place, code]  # …×J×C
        return (each if mask is None else torch.where(mask[..., columns_at, None], each, 0.0)).sum(-2)

    def condition(self, x: Tensor, mask: Tensor) -> Conditional:
        """The law of the missing entries of N rows given their observed ones.

        What depends on the gap pattern alone is computed once per pattern: Σ_oo's factor, the regression of every
        column on the observed ones, and the covariance that is left.
        """
        columns = self.space.continuous
        patterns, pattern = _unique_rows(mask[:, columns])
        seen = patterns.to(x.dtype)  # U×K
        covariance = self.covariance
        unit = torch.diag_embed(1.0 - seen)[:, None]
        block = covariance * (seen[:, :, None] * seen[:, None, :])[:, None] + unit  # missing columns are unit and apart
        factor = torch.linalg.cholesky(block)  # U×C×K×K
        whitener = solve_lower(factor, torch.diag_embed(seen)[:, None].expand_as(factor))
        reach = whitener @ covariance  # factor⁻¹ Σ_o·
        keep = (1.0 - seen)[:, None]
        left = (covariance - reach.mT @ reach) * keep[..., None] * keep[..., None, :]

        observed = mask[:, columns]
        gap = torch.where(observed[:, None], x[:, None, columns] - self.mean, 0.0)
        white = torch.einsum("nckl,ncl->nck", whitener[pattern], gap)
        mean = self.mean + torch.einsum("nckl,nck->ncl", reach[pattern], white)
        mean = torch.where(observed[:, None], x[:, None, columns], mean)
        constant = log_det(factor) + seen.sum(1, keepdim=True) * math.log(2.0 * math.pi)
        joint = self.log_weight - 0.5 * (white.square().sum(-1) + constant[pattern]) + self._log_levels(x, mask)
        log_marginal = joint.logsumexp(-1)
        return Conditional(joint - log_marginal[:, None], mean, left, pattern, log_marginal)

    def chunk(self) -> int:
        """Rows that `condition` can take at a time within CHUNK numbers."""
        return max(1, CHUNK // (len(self) * max(1, len(self.space.continuous)) ** 2))

    def distribution(self, given: Conditional) -> FactorisedDistribution:
        """Marginal law of each single missing entry: mean and variance over components, mixed level probabilities."""
        space, weight = self.space, given.log_weight.exp()
        n, q = len(weight), len(space.names)
        mean, var = weight.new_zeros(n, q), weight.new_ones(n, q)
        if space.continuous:
            centre = (weight[..., None] * given.mean).sum(1)
            inner = given.covariance.diagonal(dim1=-2, dim2=-1)[given.pattern] + (given.mean - centre[:, None]) ** 2
            mean[:, space.continuous] = centre
            var[:, space.continuous] = (weight[..., None] * inner).sum(1).clamp_min(1e-9)
        log_prob = weight.new_zeros(n, q, space.max_levels)
        if space.categorical:
            log_prob[:, space.categorical] = (given.log_weight[:, :, None, None] + self.log_level).logsumexp(1)
        return FactorisedDistribution(mean, var, log_prob)

    def draw(self, given: Conditional, x: Tensor, mask: Tensor, draws: int, generator: torch.Generator) -> Tensor:
        """Completed rows (draws×N×Q) from p(x_u | x_o)."""
        n, k = len(x), len(self.space.continuous)
        component = torch.multinomial(given.log_weight.exp(), draws, replacement=True, generator=generator).T  # draws×N
        out = x.expand(draws, -1, -1).clone()
        rows = torch.arange(n, device=x.device)
        if k:
            # A zero block for observed columns: its factor is found from the covariance with a unit block there.
            zero = given.covariance.diagonal(dim1=-2, dim2=-1) == 0
            factor = torch.linalg.cholesky(given.covariance + torch.diag_embed(zero.to(x.dtype)))
            noise = torch.randn(draws, n, k, 1, generator=generator, device=x.device, dtype=x.dtype)
            value = given.mean[rows, component] + (factor[given.pattern, component] @ noise)[..., 0]
            out[..., self.space.continuous] = value
        for j, q in enumerate(self.space.categorical):
            prob = self.log_level[component, j].exp()  # draws×N×levels
            code = torch.multinomial(prob.flatten(0, 1), 1, generator=generator).view(draws, n)
            out[..., q] = code.to(x.dtype)
        return torch.where(mask, x, out)


def _unique_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows of a mask, and which of them each row is."""
    if mask.shape[1] == 0:
        return mask[:1], torch.zeros(len(mask), dtype=torch.long, device=mask.device)
    unique, which = torch.unique(mask, dim=0, return_inverse=True)
    return unique, which
