"""Maximum a posteriori estimation of the covariate mixture from incomplete rows, by expectation maximisation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lacova.covariates.mixture import Mixture
from lacova.data.covariate_space import CovariateSpace
from lacova.nn.clusters import k_means

COMPONENT_GRID = (1, 2, 4, 8, 12, 16, 24)  # numbers of components to choose from
MAX_ROWS = 5_000  # random rows that large tables are fitted to
COVARIANCE_PRIOR_SHARE = 0.05  # scale of the covariance prior, as a share of each column's variance


class Regulariser(NamedTuple):
    """Conjugate prior of the mixture's parameters: it keeps covariances regular and rare levels possible.

    Attributes:
        scale: scale matrix of the inverse Wishart prior, per row of `strength` (K×K).
        strength: weight of the covariance prior, in rows per component.
        level_counts: pseudo-counts of the levels (J×levels), 0 beyond a column's own.
    """

    scale: Tensor
    strength: float
    level_counts: Tensor

    def log_prior(self, mixture: Mixture) -> Tensor:
        """Compute the log prior density of the parameters, up to a constant: EM never lowers likelihood times prior."""
        covariance = mixture.covariance
        trace = torch.linalg.solve(covariance, self.scale.expand_as(covariance)).diagonal(dim1=-2, dim2=-1).sum(-1)
        normal = -0.5 * self.strength * (torch.logdet(covariance) + trace).sum()
        levels = (self.level_counts * torch.where(self.level_counts > 0, mixture.log_level, 0.0)).sum()
        total: Tensor = normal + levels
        return total


def regulariser(space: CovariateSpace, x: Tensor, mask: Tensor, strength: float = 5.0) -> Regulariser:
    """Return the prior at the observed moments: a share of each column's variance, one row of level frequencies."""
    observed = mask.to(x.dtype)
    count = observed.sum(0).clamp_min(1.0)
    mean = (x * observed).sum(0) / count
    var = ((x - mean) ** 2 * observed).sum(0) / count
    scale = torch.diag((COVARIANCE_PRIOR_SHARE * var[space.continuous]).clamp_min(1e-4))
    level_counts = x.new_zeros(len(space.categorical), space.max_levels)
    for j, q in enumerate(space.categorical):
        hot = (x[:, q, None] == torch.arange(space.levels[q])) & mask[:, q, None]
        level_counts[j, : space.levels[q]] = (hot.sum(0) + 0.5) / (hot.sum() + 0.5 * space.levels[q])
    return Regulariser(scale, strength, level_counts)


class EMResult(NamedTuple):
    """The fitted mixture, and the penalised log-likelihood before each iteration."""

    mixture: Mixture
    objective: list[float]


def run_em(
    mixture: Mixture, x: Tensor, mask: Tensor, prior: Regulariser, iterations: int = 100, tol: float = 1e-4
) -> EMResult:
    """Iterate from `mixture` until the penalised log-likelihood gains less than `tol` per row."""
    objective: list[float] = []
    for _ in range(iterations):
        updated, log_likelihood = _iteration(mixture, x, mask, prior)
        objective.append(log_likelihood + float(prior.log_prior(mixture)))
        mixture = updated
        if len(objective) > 1 and objective[-1] - objective[-2] < tol * len(x):
            break
    return EMResult(mixture, objective)


def _iteration(mixture: Mixture, x: Tensor, mask: Tensor, prior: Regulariser) -> tuple[Mixture, float]:
    """Return the mixture after one E- and M-step, and the log-likelihood before it."""
    space, c, k = mixture.space, len(mixture), len(mixture.space.continuous)
    count, first = x.new_zeros(c), x.new_zeros(c, k)
    second, levels = x.new_zeros(c, k, k), x.new_zeros(c, *prior.level_counts.shape)
    log_likelihood = 0.0
    for rows in torch.arange(len(x)).split(mixture.chunk()):
        conditional = mixture.condition(x[rows], mask[rows])
        weight = conditional.log_weight.exp()  # responsibilities r_ic
        count += weight.sum(0)
        first += torch.einsum("nc,nck->ck", weight, conditional.mean)
        # Second moments about the current means, which loses fewer digits than about zero.
        gap = conditional.mean - mixture.mean
        per_pattern = weight.new_zeros(len(conditional.covariance), c).index_add(0, conditional.pattern, weight)
        second += torch.einsum("nck,ncl->ckl", weight[..., None] * gap, gap)
        second += torch.einsum("uc,uckl->ckl", per_pattern, conditional.covariance)
        levels += _expected_levels(mixture, weight, x[rows], mask[rows])
        log_likelihood += float(conditional.log_marginal.sum())
    safe = count.clamp_min(1e-8)
    mean = torch.where((count > 1e-8)[:, None], first / safe[:, None], mixture.mean)
    shift = mean - mixture.mean
    scatter = second - count[:, None, None] * shift[:, :, None] * shift[:, None, :]
    covariance = (scatter + prior.strength * prior.scale) / (count + prior.strength)[:, None, None]
    covariance = 0.5 * (covariance + covariance.mT)
    levels = levels + prior.level_counts
    log_level = (levels / levels.sum(-1, keepdim=True)).log()
    log_weight = ((count + 1e-8) / (count + 1e-8).sum()).log()
    return Mixture(space, log_weight, mean, covariance, log_level), log_likelihood


def _expected_levels(mixture: Mixture, weight: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    """Compute Σ_i r_ic E[1(x_ij = v)] (C×J×levels): one-hot where observed, π_cj where missing."""
    columns = mixture.space.categorical
    hot = (x[:, columns, None] == torch.arange(mixture.space.max_levels, device=x.device)).to(x.dtype)
    observed = mask[:, columns].to(x.dtype)
    counts = torch.einsum("nc,njv->cjv", weight, hot * observed[..., None])
    missing = torch.einsum("nc,nj->cj", weight, 1.0 - observed)
    return counts + missing[..., None] * mixture.log_level.exp()


def initial_mixture(
    space: CovariateSpace, x: Tensor, mask: Tensor, components: int, prior: Regulariser, seed: int
) -> Mixture:
    """Return a first mixture from k-means of the rows, with gaps at the column means; it may have fewer components."""
    observed = mask.to(x.dtype)
    mean = (x * observed).sum(0) / observed.sum(0).clamp_min(1.0)
    filled = torch.where(mask, x, mean)
    features = [filled[:, space.continuous]]
    for q in space.categorical:
        hot = (x[:, q, None] == torch.arange(space.levels[q])).to(x.dtype)
        features.append(torch.where(mask[:, q, None], hot, hot[mask[:, q]].mean(0) if mask[:, q].any() else 0.0))
    matrix = torch.cat(features, dim=1).numpy()
    distinct = len(np.unique(matrix, axis=0))
    components = max(1, min(components, distinct))
    clusters = k_means(matrix, components, seed)
    label = torch.as_tensor(np.unique(clusters, return_inverse=True)[1]).long()
    components = int(label.max()) + 1
    membership = torch.nn.functional.one_hot(label, components).to(x.dtype)
    count = membership.sum(0)
    centre = (membership.T @ filled[:, space.continuous]) / count[:, None]
    gap = filled[:, space.continuous] - centre[label]
    scatter = torch.einsum("nc,nk,nl->ckl", membership, gap, gap)
    # Clusters start wide: shrunk towards the columns' full variances, with the weight of `strength` + 1 rows.
    rows = (count + prior.strength + 1.0)[:, None, None]
    covariance = (scatter + (prior.strength + 1.0) * (1.0 / COVARIANCE_PRIOR_SHARE) * prior.scale) / rows
    codes = x[:, space.categorical, None] == torch.arange(space.max_levels)
    shown = codes.to(x.dtype) * observed[:, space.categorical, None]
    levels = prior.level_counts + torch.einsum("nc,njv->cjv", membership, shown)
    return Mixture(
        space, (count / count.sum()).log(), centre, covariance, (levels / levels.sum(-1, keepdim=True)).log()
    )


def fit_mixture(
    space: CovariateSpace, x: Tensor, mask: Tensor, components: int | None = None, seed: int = 0, strength: float = 5.0,
    group: Tensor | None = None,
) -> Mixture:  # fmt: skip
    """Fit a mixture to incomplete rows by EM.

    Tables with more than MAX_ROWS rows are fitted on MAX_ROWS random ones, followed by two iterations on all rows.

    Args:
        space: layout of X.
        x: rows (N×Q).
        mask: which entries of x are observed (N×Q).
        components: C, or None to choose it by the likelihood of held-out rows.
        seed: seed of the initial mixture and of the split into training and held-out rows.
        strength: weight of the covariance prior, in rows per component.
        group: patient of each row (N,), if rows come in groups. A patient's rows are held out together: held out one
            by one, they would favour a small component for each patient.
    """
    x, mask = x.double(), mask.bool()
    group = torch.arange(len(x)) if group is None else group
    informative = mask.any(1)
    rows = informative.nonzero()[:, 0] if informative.any() else torch.zeros(1, dtype=torch.long)
    x, mask, group = x[rows], mask[rows], group[rows]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)[:MAX_ROWS]
    fit_x, fit_mask = x[order], mask[order]
    prior = regulariser(space, x, mask, strength)
    if components is None:
        components = _choose_components(space, fit_x, fit_mask, group[order], prior, seed)
    first = initial_mixture(space, fit_x, fit_mask, components, prior, seed)
    mixture = run_em(first, fit_x, fit_mask, prior).mixture
    return run_em(mixture, x, mask, prior, iterations=2).mixture if len(x) > MAX_ROWS else mixture


def _choose_components(
    space: CovariateSpace, x: Tensor, mask: Tensor, group: Tensor, prior: Regulariser, seed: int
) -> int:
    """Return the number of components with the most likely held-out groups; stop after two sizes without a gain."""
    index = torch.unique(group, return_inverse=True)[1]
    groups = int(index.max()) + 1
    held_out = torch.zeros(groups, dtype=torch.bool)
    held_out[torch.randperm(groups, generator=torch.Generator().manual_seed(seed))[: max(1, groups // 5)]] = True
    test = held_out[index]
    train_x, train_mask, test_x, test_mask = x[~test], mask[~test], x[test], mask[test]
    if len(train_x) < 10:
        return 1
    best, best_score, worse = 1, -float("inf"), 0
    for components in COMPONENT_GRID:
        if components > len(train_x) // 5:
            break
        first = initial_mixture(space, train_x, train_mask, components, prior, seed)
        mixture = run_em(first, train_x, train_mask, prior, tol=1e-3).mixture
        score = sum(
            float(mixture.condition(test_x[rows], test_mask[rows]).log_marginal.sum())
            for rows in torch.arange(len(test_x)).split(mixture.chunk())
        )
        if score > best_score:
            best, best_score, worse = components, score, 0
        else:
            worse += 1
        if worse == 2:
            break
    return best
