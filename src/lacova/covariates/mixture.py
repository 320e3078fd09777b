"""A joint distribution of the covariates: a finite mixture with closed-form conditionals.

A component is a normal with full covariance over the continuous columns, times independent categoricals over the
categorical ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.nn.linalg import inverse_lower, log_det, solve_lower

# Bound on rows × components × K², which limits the memory that conditioning takes at a time.
MAX_CHUNK_SIZE = 2_000_000
WIDEST_CODE = 62  # columns of a mask that fit a whole number


@dataclass(frozen=True)
class Conditional:
    """p(c, x | x_o) of N rows, with c the component: again a mixture for each row.

    Attributes:
        log_weight: log p(c | x_o) (N×C).
        mean: E[x | c, x_o] of the continuous columns (N×C×K); the value itself where observed.
        covariance: Cov[x | c, x_o] of the continuous columns for each gap pattern (U×C×K×K); zero where observed.
        pattern: index of each row's gap pattern (N,).
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
        mean: μ (C×K) of the K continuous columns.
        covariance: Σ (C×K×K).
        log_level: log π (C×J×levels) of the J categorical columns; −inf beyond a column's own levels.
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
        """Return a mixture of the right shape, to load a stored state into."""
        k, j = len(space.continuous), len(space.categorical)
        mean = torch.zeros(components, k, dtype=torch.float64)
        covariance = torch.eye(k, dtype=torch.float64).repeat(components, 1, 1)
        return cls(space, mean.new_zeros(components), mean, covariance, mean.new_zeros(components, j, space.max_levels))

    @property
    def covariance(self) -> Tensor:
        """Σ (C×K×K)."""
        return self.factor @ self.factor.mT

    def __len__(self) -> int:
        """Return C, the number of components."""
        return len(self.log_weight)

    def log_density(self, x: Tensor) -> Tensor:
        """Compute log p(x) of complete rows (…×Q); differentiable in the continuous columns."""
        return (self._log_levels(x, None) + self._log_normals(x) + self.log_weight).logsumexp(-1)

    def _log_normals(self, x: Tensor) -> Tensor:
        """Compute log N(x_cont | μ_c, Σ_c) of complete rows: …×C."""
        size = self.mean.shape[1]
        # One small inverse per component serves all rows.
        whitener = inverse_lower(self.factor)
        gap = x[..., None, self.space.on(x.device).continuous] - self.mean  # …×C×K
        white = torch.einsum("...ck,cjk->...cj", gap, whitener)
        return -0.5 * (white.square().sum(-1) + log_det(self.factor) + size * math.log(2.0 * math.pi))

    def _log_levels(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute Σ_j log π_cj[x_j] over the categorical columns, or over those observed by `mask`: …×C."""
        columns = self.space.categorical
        if not columns:
            return x.new_zeros(*x.shape[:-1], len(self))
        columns_at = self.space.on(x.device).categorical
        code = x[..., columns_at].round().long().clamp(0, self.space.max_levels - 1)
        place = torch.arange(len(columns), device=x.device)
        log_prob = self.log_level.permute(1, 2, 0)[place, code]  # …×J×C
        return (log_prob if mask is None else torch.where(mask[..., columns_at, None], log_prob, 0.0)).sum(-2)

    def condition(self, x: Tensor, mask: Tensor) -> Conditional:
        """Condition on the observed entries of N rows.

        Whatever depends on the gap pattern only is computed once per pattern: the factor of Σ_oo, the regression of
        every column on the observed ones, and the conditional covariance.
        """
        columns = self.space.continuous
        patterns, pattern = _unique_rows(mask[:, columns])
        shown = patterns.to(x.dtype)  # U×K, 1 where observed
        missing = (1.0 - shown)[:, None]
        covariance = self.covariance
        # Σ_oo, with the missing columns as an identity block.
        block = covariance * (shown[:, :, None] * shown[:, None, :])[:, None] + torch.diag_embed(missing)
        factor = torch.linalg.cholesky(block)  # U×C×K×K
        whitener = solve_lower(factor, torch.diag_embed(shown)[:, None].expand_as(factor))
        white_cross = whitener @ covariance  # factor⁻¹ Σ_o·
        # Σ_uu − Σ_uo Σ_oo⁻¹ Σ_ou
        residual = (covariance - white_cross.mT @ white_cross) * missing[..., None] * missing[..., None, :]

        observed = mask[:, columns]
        gap = torch.where(observed[:, None], x[:, None, columns] - self.mean, 0.0)
        white = torch.einsum("nckl,ncl->nck", whitener[pattern], gap)
        mean = self.mean + torch.einsum("nckl,nck->ncl", white_cross[pattern], white)
        mean = torch.where(observed[:, None], x[:, None, columns], mean)
        constant = log_det(factor) + shown.sum(1, keepdim=True) * math.log(2.0 * math.pi)
        joint = self.log_weight - 0.5 * (white.square().sum(-1) + constant[pattern]) + self._log_levels(x, mask)
        log_marginal = joint.logsumexp(-1)
        return Conditional(joint - log_marginal[:, None], mean, residual, pattern, log_marginal)

    def chunk(self) -> int:
        """Return the number of rows that `condition` should take at a time."""
        return max(1, MAX_CHUNK_SIZE // (len(self) * max(1, len(self.space.continuous)) ** 2))

    def distribution(self, conditional: Conditional) -> FactorisedDistribution:
        """Return the marginal of each entry given x_o: mean and variance of a number, probabilities of the levels."""
        space, weight = self.space, conditional.log_weight.exp()
        n, q = len(weight), len(space.names)
        mean, var = weight.new_zeros(n, q), weight.new_ones(n, q)
        if space.continuous:
            centre = (weight[..., None] * conditional.mean).sum(1)
            # Var[x] = E[Var[x | c]] + Var[E[x | c]]
            within = conditional.covariance.diagonal(dim1=-2, dim2=-1)[conditional.pattern]
            between = (conditional.mean - centre[:, None]) ** 2
            mean[:, space.continuous] = centre
            var[:, space.continuous] = (weight[..., None] * (within + between)).sum(1).clamp_min(1e-9)
        log_prob = weight.new_zeros(n, q, space.max_levels)
        if space.categorical:
            log_prob[:, space.categorical] = (conditional.log_weight[:, :, None, None] + self.log_level).logsumexp(1)
        return FactorisedDistribution(mean, var, log_prob)

    def draw(self, conditional: Conditional, x: Tensor, mask: Tensor, draws: int, generator: torch.Generator) -> Tensor:
        """Draw completed rows (draws×N×Q) from p(x_u | x_o)."""
        n, k = len(x), len(self.space.continuous)
        weight = conditional.log_weight.exp()
        component = torch.multinomial(weight, draws, replacement=True, generator=generator).T  # draws×N
        out = x.expand(draws, -1, -1).clone()
        rows = torch.arange(n, device=x.device)
        if k:
            # The covariance is zero at observed columns; ones on the diagonal there make it factorisable.
            zero = conditional.covariance.diagonal(dim1=-2, dim2=-1) == 0
            factor = torch.linalg.cholesky(conditional.covariance + torch.diag_embed(zero.to(x.dtype)))
            eps = torch.randn(draws, n, k, 1, generator=generator, device=x.device, dtype=x.dtype)
            value = conditional.mean[rows, component] + (factor[conditional.pattern, component] @ eps)[..., 0]
            out[..., self.space.continuous] = value
        for j, q in enumerate(self.space.categorical):
            prob = self.log_level[component, j].exp()  # draws×N×levels
            code = torch.multinomial(prob.flatten(0, 1), 1, generator=generator).view(draws, n)
            out[..., q] = code.to(x.dtype)
        return torch.where(mask, x, out)


def _unique_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows of a mask in lexicographic order, and for each row the index of its equal among them."""
    width = mask.shape[1]
    if width == 0:
        return mask[:1], torch.zeros(len(mask), dtype=torch.long, device=mask.device)
    if width > WIDEST_CODE:
        unique, index = torch.unique(mask, dim=0, return_inverse=True)
        return unique, index
    # As numbers, rows are sorted in one operation, and in the same order; torch compares rows one by one.
    place = torch.arange(width - 1, -1, -1, device=mask.device)
    code, index = torch.unique((mask.long() << place).sum(1), return_inverse=True)
    return (code[:, None] >> place & 1).bool(), index
