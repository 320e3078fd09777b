"""Posterior of missing numbers of independent rows by a linear model: where q starts.

The networks of q learn slowly, and a small table has few steps. Without a start, completed covariates have too little
to do with y at first, and the model learns from them that y depends little on x. In the linear model

    x = A c + N(0, Σ), y = C c + B (x − A c) + W z + ε with z ~ N(0, I) and ε_d ~ N(0, ψ_d)

where c is an intercept and the levels of the categories, the gaps of a row are normal given what is observed. q starts
as p(x_u | x_o) of the covariate prior, which need not be linear, times the likelihood of y: means, variances, and how
gaps go together (`dependence.py`). The networks correct means and variances. EM fits the model to the incomplete rows,
so it is right where gaps in x depend on y.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lacova.covariates.dependence import coupled, covariance_of, of_precision, scaled, without_factors
from lacova.covariates.linear_model import fit_linear_model, of_gaps, variance_of, with_intercept
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.table import Table

MAX_DEVIATION = 4.0  # standard deviations at which a value is clipped


@dataclass(frozen=True)
class Examples:
    """Rows that the model is fitted to, in training, with gaps as NaN.

    Attributes:
        x: numbers (n×K).
        y: Gaussian measurements (n×D).
        categories: c (n×C).
        row: of the training table (n,).
        seed: of the first loadings.
    """

    x: Tensor
    y: Tensor
    categories: Tensor
    row: Tensor
    seed: int


class LinearPosterior(nn.Module):
    """q(x_u | y_o, x_o) of the numbers of a row, by a linear model.

    Args:
        space: layout of X.
        gaussian: the Gaussian measurements, as columns of Y.
        factors: r, the number of factors.
    """

    precision: Tensor
    loadings: Tensor
    noise: Tensor
    of_x: Tensor
    of_y: Tensor
    spread: Tensor
    shares: Tensor
    columns: Tensor
    examples: Examples | None

    def __init__(self, space: CovariateSpace, gaussian: list[int], factors: int) -> None:
        super().__init__()
        self.space, self.factors, self.examples = space, factors, None
        k, d, levels = len(space.continuous), len(gaussian), sum(space.levels)
        self.register_buffer("columns", torch.tensor(gaussian, dtype=torch.long), persistent=False)
        self.register_buffer("precision", torch.eye(k, dtype=torch.float64))  # Σ⁻¹
        self.register_buffer("loadings", torch.zeros(d, k + factors, dtype=torch.float64))  # (B, W)
        self.register_buffer("noise", torch.ones(d, dtype=torch.float64))  # ψ
        self.register_buffer("of_x", torch.zeros(1 + levels, k, dtype=torch.float64))  # Aᵀ
        self.register_buffer("of_y", torch.zeros(1 + levels, d, dtype=torch.float64))  # Cᵀ
        self.register_buffer("spread", torch.ones(k + d, dtype=torch.float64))  # of x − A c and y − C c
        self.register_buffer("shares", torch.zeros(levels, dtype=torch.float64))  # of the levels

    @torch.no_grad()
    def learn(self, table: Table, rows: Tensor, seed: int) -> None:
        """Fit the model to some rows of the training table, and keep these as `examples`."""
        chosen = table.x[rows], table.x_mask[rows]
        hot, known = self.space.levels_of(*chosen)
        self.shares.copy_((hot * known).sum(0) / known.sum(0).clamp_min(1.0))
        x, y = (
            torch.where(mask[:, columns], values[:, columns].double(), torch.nan)
            for values, mask, columns in (
                (*chosen, self.space.on(table.x.device).continuous),
                (table.y[rows], table.y_mask[rows], self.columns),
            )
        )
        self.examples = Examples(x, y, with_intercept(hot, known, self.shares), rows, seed)
        self.fit()

    @torch.no_grad()
    def fit(self, count: Tensor | None = None) -> None:
        """Fit the model to the examples.

        Args:
            count: how often each row of the training table comes in a bootstrap sample; None for once.
        """
        if self.examples is None:
            return
        x, y, categories = self.examples.x, self.examples.y, self.examples.categories
        weight = torch.ones(len(x), dtype=x.dtype) if count is None else count[self.examples.row].to(x.dtype)
        generator = torch.Generator().manual_seed(self.examples.seed)
        model = fit_linear_model(x, y, self.factors, generator, weight, categories)
        self.precision.copy_(torch.linalg.inv(model.covariance))
        for name in ("loadings", "noise", "of_x", "of_y"):
            getattr(self, name).copy_(getattr(model, name))
        left = torch.cat([x - categories @ model.of_x, y - categories @ model.of_y], 1)
        self.spread.copy_(variance_of(left, weight).sqrt())

    @torch.no_grad()
    def forward(self, prior: FactorisedDistribution, batch: Batch) -> FactorisedDistribution:
        """Return q of the numbers of a batch; categories keep their conditional prior."""
        at = self.space.on(batch.x.device).continuous
        categories = with_intercept(*self.space.levels_of(batch.x, batch.x_mask), self.shares)
        gaps, shown = ~batch.x_mask.index_select(1, at), batch.y_mask.index_select(1, self.columns).double()
        mean, var = (part.index_select(1, at).double() for part in (prior.mean, prior.var))
        x = torch.where(gaps, mean, batch.x.index_select(1, at).double()) - categories @ self.of_x
        y = batch.y.index_select(1, self.columns).double() - categories @ self.of_y
        most_x, most_y = (MAX_DEVIATION * self.spread).split([len(at), len(self.columns)])
        residual = (y.clamp(-most_y, most_y) - x.clamp(-most_x, most_x) @ self.loadings[:, : len(at)].mT) * shown
        # What y says: a joint precision of the numbers and z, and the gradient of the log-likelihood at the prior mean.
        outer = self.loadings[:, :, None] * self.loadings[:, None, :] / self.noise[:, None, None]
        information, gradient = without_factors(
            torch.tensordot(shown, outer, dims=1), (residual / self.noise) @ self.loadings, len(at)
        )
        # In standard deviations of the prior, whose correlations are those of the linear model.
        sd = torch.where(gaps, var.sqrt(), 0.0)
        of_prior = of_precision(of_gaps(self.precision, gaps), self.space).precision
        precision = of_prior + sd[:, :, None] * information * sd[:, None, :]
        covariance = covariance_of(precision)
        mean = mean + sd * (covariance @ (sd * gradient)[..., None])[..., 0]
        var = var * covariance.diagonal(dim1=1, dim2=2)
        dtype, together = batch.x.dtype, coupled(self.space, batch.x_mask)
        return FactorisedDistribution(
            prior.mean.index_copy(1, at, mean.to(dtype)), prior.var.index_copy(1, at, var.to(dtype)), prior.log_prob,
            dependence=scaled(precision, covariance, self.space).to(dtype) if together else None,
        )  # fmt: skip
