"""Maximum a posteriori estimation of the mixture from incomplete rows, by expectation maximisation."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lacova.covariates.mixture import Mixture
from lacova.data.covariate_space import CovariateSpace

CANDIDATES = (1, 2, 4, 8, 12, 16, 24)
MAX_ROWS = 5_000


class Regulariser(NamedTuple):
    """Conjugate prior of the mixture's parameters: it keeps covariances regular and rare levels possible.

    Attributes:
        spread: scale matrix of the inverse Wishart prior (K×K), in units of `strength` rows.
        strength: weight of the covariance prior, in rows per component.
        level: pseudo-counts of the levels (J×levels), 0 beyond a column's own.
    """

    spread: Tensor
    strength: float
    level: Tensor

    def log_prior(self, mixture: Mixture) -> Tensor:
        """log of the parameters' prior density, up to a constant: EM never lowers likelihood times this."""
        covariance = mixture.covariance
        trace = torch.linalg.solve(covariance, self.spread.expand_as(covariance)).diagonal(dim1=-2, dim2=-1).sum(-1)
        normal = -0.5 * self.strength * (torch.logdet(covariance) + trace).sum()
        levels = (self.level * torch.where(self.level > 0, mixture.log_level, 0.0)).sum()
        total: Tensor = normal + levels
        return total


def regulariser(space: CovariateSpace, x: Tensor, mask: Tensor, strength: float = 5.0) -> Regulariser:
    """From the observed moments: a twentieth of each column's variance, one row's worth of level frequencies."""
    seen = mask.to(x.dtype)
    count = seen.sum(0).clamp_min(1.0)
    mean = (x * seen).sum(0) / count
    var = ((x - mean) ** 2 * seen).sum(0) / count
    spread = torch.diag((0.05 * var[space.continuous]).clamp_min(1e-4))
    level = x.new_zeros(len(space.categorical), space.max_levels)
    for j, q in enumerate(space.categorical):
        hot = (x[:, q, None] == torch.arange(space.levels[q])) & mask[:, q, None]
        level[j, : space.levels[q]] = (hot.sum(0) + 0.5) / (hot.sum() + 0.5 * space.levels[q])
    return Regulariser(spread, strength, level)


class Trace(NamedTuple):
    """What an EM run leaves behind: the mixture and the penalised log-likelihood before each iteration."""

    mixture: Mixture
    objective: list[float]


def run_em(
    mixture: Mixture, x: Tensor, mask: Tensor, prior: Regulariser, iterations: int = 100, tol: float = 1e-4
) -> Trace:
    """Iterate from `mixture` until the penalised log-likelihood gains less than `tol` per row."""
    objective: list[float] = []
    for _ in range(iterations):
        updated, log_likelihood = _iteration(mixture, x, mask, prior)
        objective.append(log_likelihood + float(prior.log_prior(mixture)))
        mixture = updated
        if len(objective) > 1 and objective[-1] - objective[-2] < tol * len(x):
            break
    return Trace(mixture, objective)


def _iteration(mixture: Mixture, x: Tensor, mask: Tensor, prior: Regulariser) -> tuple[Mixture, float]:
    space, c, k = mixture.space, len(mixture), len(mixture.space.continuous)
    count, first = x.new_zeros(c), x.new_zeros(c, k)
    second, levels = x.new_zeros(c, k, k), x.new_zeros(c, *prior.level.shape)
    log_likelihood = 0.0
    for rows in torch.arange(len(x)).split(mixture.chunk()):
        given = mixture.condition(x[rows], mask[rows])
        weight = given.log_weight.exp()  # responsibilities
        count += weight.sum(0)
        first += torch.einsum("nc,nck->ck", weight, given.mean)
        # Second moments about the current means, for precision.
        gap = given.mean - mixture.mean
        per_pattern = weight.new_zeros(len(given.covariance), c).index_add(0, given.pattern, weight)
        second += torch.einsum("nck,ncl->ckl", weight[..., None] * gap, gap)
        second += torch.einsum("uc,uckl->ckl", per_pattern, given.covariance)
        levels += _expected_levels(mixture, weight, x[rows], mask[rows])
        log_likelihood += float(given.log_marginal.sum())
    safe = count.clamp_min(1e-8)
    mean = torch.where((count > 1e-8)[:, None], first / safe[:, None], mixture.mean)
    shift = mean - mixture.mean
    scatter = second - count[:, None, None] * shift[:, :, None] * shift[:, None, :]
    covariance = (scatter + prior.strength * prior.spread) / (count + prior.strength)[:, None, None]
    covariance = 0.5 * (covariance + covariance.mT)
    levels = levels + prior.level
    log_level = (levels / levels.sum(-1, keepdim=True)).log()
    log_weight = ((count + 1e-8) / (count + 1e-8).sum()).log()
    return Mixture(space, log_weight, mean, covariance, log_level), log_likelihood


def _expected_levels(mixture: Mixture, weight: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    """Σ_i r_ic E[1(x_ij = v)] (C×J×levels): the level itself where observed, π_cj where missing."""
    columns = mixture.space.categorical
    hot = (x[:, columns, None] == torch.arange(mixture.space.max_levels, device=x.device)).to(x.dtype)
    seen = mask[:, columns].to(x.dtype)
    observed = torch.einsum("nc,njv->cjv", weight, hot * seen[..., None])
    missing = torch.einsum("nc,nj->cj", weight, 1.0 - seen)
    return observed + missing[..., None] * mixture.log_level.exp()


def start(space: CovariateSpace, x: Tensor, mask: Tensor, components: int, prior: Regulariser, seed: int) -> Mixture:
    """A first mixture from k-means of the rows with their gaps at the column means."""
    from sklearn.cluster import KMeans  # slow to import
    from sklearn.exceptions import ConvergenceWarning

    seen = mask.to(x.dtype)
    mean = (x * seen).sum(0) / seen.sum(0).clamp_min(1.0)
    filled = torch.where(mask, x, mean)
    features = [filled[:, space.continuous]]
    for q in space.categorical:
        hot = (x[:, q, None] == torch.arange(space.levels[q])).to(x.dtype)
        features.append(torch.where(mask[:, q, None], hot, hot[mask[:, q]].mean(0) if mask[:, q].any() else 0.0))
    matrix = torch.cat(features, dim=1).numpy()
    distinct = len(np.unique(matrix, axis=0))
    components = max(1, min(components, distinct))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer clusters than asked for: counted below
        found = KMeans(components, n_init=1, random_state=seed).fit_predict(matrix)
    label = torch.as_tensor(np.unique(found, return_inverse=True)[1]).long()
    components = int(label.max()) + 1
    hard = torch.nn.functional.one_hot(label, components).to(x.dtype)
    count = hard.sum(0)
    centre = (hard.T @ filled[:, space.continuous]) / count[:, None]
    gap = filled[:, space.continuous] - centre[label]
    scatter = torch.einsum("nc,nk,nl->ckl", hard, gap, gap)
    covariance = (scatter + (prior.strength + 1.0) * 20.0 * prior.spread) / (count + prior.strength + 1.0)[
        :, None, None
    ]
    codes = x[:, space.categorical, None] == torch.arange(space.max_levels)
    shown = codes.to(x.dtype) * seen[:, space.categorical, None]
    levels = prior.level + torch.einsum("nc,njv->cjv", hard, shown)
    return Mixture(
        space, (count / count.sum()).log(), centre, covariance, (levels / levels.sum(-1, keepdim=True)).log()
    )


def fit_mixture(
    space: CovariateSpace, x: Tensor, mask: Tensor, components: int | None = None, seed: int = 0, strength: float = 5.0,
    group: Tensor | None = None,
) -> Mixture:  # fmt: skip
    """Fit by EM to incomplete rows.

    Args:
        space: layout of X.
        x, mask: rows (N×Q) and which entries are observed.
        components: C, or None to choose it by the likelihood of held-out rows.
        seed: of the start and of the held-out rows.
        strength: weight of the covariance prior, in rows per component.
        group: code of each row's patient (N,), if rows come in groups. They are held out together: a patient's other
            visits would make many small components look good.

    Large tables are fitted on MAX_ROWS random rows; two last iterations then see all of them.
    """
    x, mask = x.double(), mask.bool()
    group = torch.arange(len(x)) if group is None else group
    informative = mask.any(1)
    rows = informative.nonzero()[:, 0] if informative.any() else torch.zeros(1, dtype=torch.long)
    x, mask, group = x[rows], mask[rows], group[rows]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)[:MAX_ROWS]
    some_x, some_mask = x[order], mask[order]
    prior = regulariser(space, x, mask, strength)
    if components is None:
        components = _choose(space, some_x, some_mask, group[order], prior, seed)
    mixture = run_em(start(space, some_x, some_mask, components, prior, seed), some_x, some_mask, prior).mixture
    return run_em(mixture, x, mask, prior, iterations=2).mixture if len(x) > MAX_ROWS else mixture


def _choose(space: CovariateSpace, x: Tensor, mask: Tensor, group: Tensor, prior: Regulariser, seed: int) -> int:
    """The number of components after which held-out groups of rows become less likely, twice in a row."""
    place = torch.unique(group, return_inverse=True)[1]
    groups = int(place.max()) + 1
    held_out = torch.zeros(groups, dtype=torch.bool)
    held_out[torch.randperm(groups, generator=torch.Generator().manual_seed(seed))[: max(1, groups // 5)]] = True
    test = held_out[place]
    train_x, train_mask, test_x, test_mask = x[~test], mask[~test], x[test], mask[test]
    if len(train_x) < 10:
        return 1
    best, best_score, worse = 1, -float("inf"), 0
    for components in CANDIDATES:
        if components > len(train_x) // 5:
            break
        mixture = run_em(
            start(space, train_x, train_mask, components, prior, seed), train_x, train_mask, prior, tol=1e-3
        ).mixture
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
