"""Paths: runs of gaps of a column along a patient's visits, as Markov chains.

The numbers of a run have the means μ, the standard deviations s and the correlations ρ with the entry before them. The
precision between neighbours is then −ρ/((1 − ρ²) s s₋), with s₋ that of the entry before; the precision between entries
that are no neighbours is 0. `Paths.coupling` fixes this number as −λ, so that s determines ρ:

    ρ/(1 − ρ²) = κ = λ s s₋

Prior and posterior share λ. The posterior is thus the prior times a normal factor for each entry: of all distributions
with its own means and variances, the one that is nearest to the prior. Where it is as wide as the prior, it remembers
as much; the closer the measurements tell an entry, the less it has to do with its neighbours.

The categories of a run have the probabilities p, and a path keeps its level where it can with probability r:

    P(b | a) = (1 − r) p(b) + r (k_a 1[a = b] + (1 − k_a) p⁺(b)),  k_a = min(p₋(a), p(a))/p₋(a)

with p₋ of the entry before, and p⁺ in proportion to what p has more than p₋. This leaves the probabilities p as they
are. Prior and posterior share r.

A sum along a run, f_i = w_i + a_i f_{i−1}, takes log₂(longest run) operations on all entries at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution, Paths

TINY = 1e-30  # keeps logarithms finite


class Memory(NamedTuple):
    """The correlation of each entry with the one before it in its run (N×Q each); 0 where there is none.

    Attributes:
        correlation: ρ.
        loss: 1 − ρ, without the loss of digits near 1.
        remainder: 1 − ρ².
    """

    correlation: Tensor
    loss: Tensor
    remainder: Tensor

    @classmethod
    def of(cls, strength: Tensor) -> Memory:
        """Return the correlations ρ with ρ/(1 − ρ²) = κ."""
        root = (1.0 + 4.0 * strength.square()).sqrt()
        loss = (1.0 + 1.0 / (root + 2.0 * strength)) / (1.0 + root)
        return cls(2.0 * strength / (1.0 + root), loss, 2.0 / (1.0 + root))


def before(values: Tensor, paths: Paths) -> Tensor:
    """Return the values (…×N×Q) of the entry before each entry; of the entry itself where there is none."""
    return _pick(values, _places(paths.before))


def memory(distribution: FactorisedDistribution) -> Memory:
    """Return how much the entries of a distribution remember of the ones before them; nothing without paths."""
    sd, paths = distribution.var.sqrt(), distribution.paths
    return Memory.of(torch.zeros_like(sd) if paths is None else paths.coupling * sd * before(sd, paths))


def categories(distribution: FactorisedDistribution, space: CovariateSpace) -> FactorisedDistribution:
    """Return the distribution of the categorical columns, computed once; a distribution has one space."""
    cache = distribution.__dict__
    if "_categories" not in cache:
        cache["_categories"] = distribution.columns(space.on(distribution.mean.device).categorical)
    own: FactorisedDistribution = cache["_categories"]
    return own


def log_steps(distribution: FactorisedDistribution) -> Tensor:
    """Return the log probabilities of levels given the level of the entry before, which comes first, computed once.

    Shape: N×Q×levels×levels.
    """
    cache = distribution.__dict__
    if "_log_steps" not in cache:
        cache["_log_steps"] = _log_steps(distribution)
    steps: Tensor = cache["_log_steps"]
    return steps


def _log_steps(distribution: FactorisedDistribution) -> Tensor:
    paths = distribution.paths
    if paths is None or not paths.levels:
        return distribution.log_prob[..., None, :].expand(*distribution.log_prob.shape, distribution.log_prob.shape[-1])
    now = distribution.log_prob.exp()
    then = _pick(now, _places(paths.before), 2)
    shared = torch.minimum(now, then)
    kept = (shared / then.clamp_min(TINY))[..., None]
    more = (now - shared) / (now - shared).sum(-1, keepdim=True).clamp_min(TINY)
    keep = paths.coupling[..., None, None]
    step = (1.0 - keep) * now[..., None, :] + keep * (
        torch.diag_embed(kept[..., 0]) + (1.0 - kept) * more[..., None, :]
    )
    step = torch.where((paths.before != 0)[..., None, None], step, now[..., None, :])
    step = step / step.sum(-1, keepdim=True)  # rounding leaves it a little off 1
    return torch.where(step > 0.0, step.clamp_min(TINY).log(), -torch.inf)  # of levels that a column has not


def log_prob_of_levels(distribution: FactorisedDistribution, levels: Tensor) -> Tensor:
    """Return log probabilities of levels (…×N×Q), those of a run given the ones before them."""
    if distribution.paths is None or not distribution.paths.levels:
        log_prob = distribution.log_prob.expand(*levels.shape, -1)
        return log_prob.gather(-1, levels[..., None])[..., 0]
    step = log_steps(distribution)
    return step_at(step.expand(*levels.shape, -1, -1), before(levels, distribution.paths), levels)


def step_at(log_step: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return entries of matrices (…×levels×levels)."""
    return log_step.flatten(-2).gather(-1, (first * log_step.shape[-1] + second)[..., None])[..., 0]


def draw_levels(distribution: FactorisedDistribution, space: CovariateSpace, uniform: Tensor, batch: Batch) -> Tensor:
    """Draw levels (S×N×Q), by inverting distribution functions at uniform numbers of the same shape.

    With paths, each entry is a function of the level before it, and the functions of a run are composed.
    """
    if distribution.paths is None or not distribution.paths.levels:
        return _invert(distribution.log_prob, uniform[..., None])
    columns, own = space.on(uniform.device).categorical, categories(distribution, space)
    assert own.paths is not None
    uniform_here, places = uniform.index_select(-1, columns), _places(own.paths.before)
    levels = _invert(log_steps(own), uniform_here[..., None, None]).flatten(-3, -2)  # S×N·J×levels
    for _ in range(_doublings(batch)):
        levels = levels.gather(-1, levels.index_select(-2, places))
        places = places.index_select(0, places)
    drawn = torch.zeros_like(uniform, dtype=torch.long)
    return drawn.index_copy(-1, columns, levels[..., 0].view_as(uniform_here))


def _invert(log_prob: Tensor, uniform: Tensor) -> Tensor:
    """Return the level at which each distribution function (…×levels) reaches a number (…×1)."""
    cumulative = log_prob.detach().exp().cumsum(-1)
    below = cumulative <= uniform * cumulative[..., -1:]
    return below.sum(-1).clamp(max=cumulative.shape[-1] - 1)


def kl_of_levels(q: FactorisedDistribution, p: FactorisedDistribution) -> Tensor:
    """Compute the KL of each entry's level given the one before it (N×Q), in expectation over the latter."""
    if p.paths is None or not p.paths.levels:
        return _kl(q.log_prob, p.log_prob)
    weight = _pick(q.log_prob.exp(), _places(p.paths.before), 2)
    return (weight * _kl(log_steps(q), log_steps(p))).sum(-1)


def _kl(log_q: Tensor, log_p: Tensor) -> Tensor:
    # 0 · log 0 = 0; a level with q > 0 and p = 0 makes the KL infinite, as it should.
    ratio = torch.where(log_q.isneginf(), 0.0, log_q - log_p)
    return (log_q.exp() * ratio).sum(-1)


def along(eps: Tensor, distribution: FactorisedDistribution, batch: Batch) -> Tensor:
    """Turn innovations e (…×N×Q) into paths of standard normals: ε_i = ρ_i ε_{i−1} + √(1 − ρ_i²) e_i."""
    paths = distribution.paths
    if paths is None or not paths.numbers:
        return eps
    kept = memory(distribution)
    return _scan(eps * kept.remainder.sqrt(), kept.correlation, _places(paths.before), batch)


def correlations_before(kept: Memory, within: Tensor, paths: Paths, batch: Batch) -> Tensor:
    """Return the correlation matrix of the numbers at the visit before each row (N×K×K), along paths of K columns.

    P_i = ρ ρᵀ ∘ P_{i−1} + r rᵀ ∘ R, with R (`within`, N×K×K) that of the innovations and r² = 1 − ρ².
    """
    n, k = paths.before.shape
    spread = kept.remainder.sqrt()
    new = (spread[:, :, None] * within * spread[:, None]).expand(n, k, k).flatten(1)
    factor = (kept.correlation[:, :, None] * kept.correlation[:, None]).flatten(1)
    places = _places(paths.before[:, :, None].expand(n, k, k).flatten(1))
    earlier: Tensor = _pick(_scan(new, factor, places, batch), places).unflatten(1, (k, k))
    return earlier


def kl_of_pairs(q: FactorisedDistribution, p: FactorisedDistribution) -> Tensor:
    """Compute what the paths of p add to the KL of the single entries (N×Q), at the later entry of each pair.

    For a Markov chain, KL[q ‖ p] = Σ_i KL[q_i ‖ p_i] + Σ_i (KL of the pair (i − 1, i) − KL of its two entries). With
    u = (μ_q − μ_p)/s_p and s = s_q/s_p, the second term is

        ½ [(ρ_p² (u² + u₋² + s² + s₋²) − 2ρ_p (u u₋ + ρ_q s s₋))/(1 − ρ_p²) + log (1 − ρ_p²)/(1 − ρ_q²)]

    written below without differences of large numbers. A posterior without paths has ρ_q = 0.
    """
    u, s = (q.mean - p.mean) * p.var.rsqrt(), (q.var / p.var).sqrt()
    if p.paths is None or not p.paths.numbers:
        return torch.zeros_like(u)
    u0, s0 = before(u, p.paths), before(s, p.paths)
    prior, own = memory(p), memory(q)
    apart = (u - u0).square() + (s - s0).square() + 2.0 * s * s0 * own.loss
    alone = prior.loss * (u.square() + u0.square() + s.square() + s0.square())
    quadratic = prior.correlation * (apart - alone) / prior.remainder
    return 0.5 * (quadratic + prior.remainder.log() - own.remainder.log())


def log_density_of_pairs(distribution: FactorisedDistribution, x: Tensor) -> Tensor:
    """Compute log p(x_i | x_{i−1}) − log p(x_i) of each entry (draws×N×Q) of completed covariates; 0 off the paths."""
    paths = distribution.paths
    if paths is None or not paths.numbers:
        return torch.zeros_like(x)
    kept = memory(distribution)
    e = (x - distribution.mean) * distribution.var.rsqrt()
    e0 = before(e, paths)
    apart = (e - e0).square() - kept.loss * (e.square() + e0.square())
    value = -0.5 * (kept.correlation * apart / kept.remainder + kept.remainder.log())
    return torch.where(paths.before != 0, value, 0.0)


def innovations(distribution: FactorisedDistribution, x: Tensor) -> Tensor:
    """Return what is new in each standardised number (draws×N×Q): (ε_i − ρ_i ε_{i−1})/√(1 − ρ_i²)."""
    paths = distribution.paths
    e = (x - distribution.mean) * distribution.var.rsqrt()
    if paths is None or not paths.numbers:
        return e
    kept, e0 = memory(distribution), before(e, paths)
    return torch.where(paths.before != 0, (e - e0 + kept.loss * e0) * kept.remainder.rsqrt(), e)


def spread(
    q: FactorisedDistribution, prior: FactorisedDistribution, batch: Batch, space: CovariateSpace
) -> FactorisedDistribution:
    """Share what the measurements of each visit tell of a column between the visits of a run; `prior` has its paths.

    Each entry of q was given by its own visit. A number's log variance and its mean, both relative to the prior, become
    averages over the run, in which entries count by their correlation with the entry: under the prior for the variance,
    under the posterior for the mean. Visits without measurements have no say, and far from those with some, q is the
    prior. So does the logarithm of the ratio of q to the prior for each level of a category, with the products of r as
    correlations. The posterior of a run of one gap stays as it is.
    """
    paths = prior.paths
    if paths is None:
        return q
    linked, c = paths.linked, space.on(prior.mean.device).categorical
    told = (batch.y_mask.any(1)[:, None] & linked).to(prior.mean.dtype)
    correlation, values = paths.coupling.clamp_max(1.0), []
    if paths.numbers:
        kept = memory(prior).correlation
        correlation = kept.index_copy(1, c, correlation.index_select(1, c))
        values = [0.5 * (q.var / prior.var).log()[None]]
    if paths.levels:
        possible = prior.log_prob.isfinite()
        values.append(torch.where(possible, q.log_prob - prior.log_prob, 0.0).movedim(-1, 0))
    if not values:
        return replace(q, paths=paths)
    averages = _average(torch.cat(values), told, correlation, paths, batch)
    mean, var, log_prob = q.mean, q.var, q.log_prob
    if paths.levels:
        factors = averages[-log_prob.shape[-1] :].movedim(0, -1)
        own = (prior.log_prob + factors).log_softmax(-1)
        log_prob = torch.where(linked[..., None], own, log_prob)
    if paths.numbers:
        ratio, scale = averages[0].exp(), prior.var.sqrt()
        var = torch.where(linked, prior.var * ratio.square(), var)
        kept = memory(replace(prior, var=var.detach())).correlation
        shift = ratio * _average(((mean - prior.mean) / (scale * ratio))[None], told, kept, paths, batch)[0]
        mean = torch.where(linked, prior.mean + scale * shift, mean)
    return FactorisedDistribution(mean, var, log_prob, paths)


def _average(values: Tensor, weight: Tensor, correlation: Tensor, paths: Paths, batch: Batch) -> Tensor:
    """Return Σ_j R_ij w_j v_j / max(1, Σ_j R_ij w_j) of values v (K×N×Q), with R the correlations within each run."""
    parts = torch.cat([weight[None], weight * values])
    at, on = _places(paths.before), _places(paths.after)
    backwards = torch.where(paths.after != 0, _pick(correlation, on), 0.0)
    # Both ways at once: side by side, as if the second were more entries.
    both = torch.stack([parts, parts], 1)
    sums = _scan(both, torch.stack([correlation, backwards]), torch.cat([at, len(at) + on]), batch)
    summed = sums.sum(1) - parts
    return summed[1:] / summed[0].clamp_min(1.0)


def _places(step: Tensor) -> Tensor:
    """Return the place of each entry's neighbour among all entries (N·Q,)."""
    n, columns = step.shape
    row = torch.arange(n, device=step.device)[:, None] + step
    return (row * columns + torch.arange(columns, device=step.device)).flatten()


def _pick(values: Tensor, places: Tensor, dims: int = 0) -> Tensor:
    """Return the values (…×N×Q) at some places, in the same shape; or (N×Q×…), of `dims` dimensions in all but one."""
    if dims:
        return values.flatten(0, 1).index_select(0, places).view_as(values)
    return values.flatten(-2).index_select(-1, places).view_as(values)


def _doublings(batch: Batch) -> int:
    """Return how often steps must double to reach from one end of a patient's visits to the other."""
    longest = int(batch.counts.max()) if batch.longest is None else batch.longest
    return (longest - 1).bit_length()


def _scan(values: Tensor, factor: Tensor, places: Tensor, batch: Batch) -> Tensor:
    """Compute f_i = w_i + a_i f_{i−1} along every run, from values w (…×N×Q) and factors a (N×Q, or more).

    After k operations, f has the terms of the last 2^k entries, and a their product.
    """
    total, product = values.flatten(-factor.dim()), factor.flatten()
    for _ in range(_doublings(batch)):
        total = total + product * total.index_select(-1, places)
        product = product * product.index_select(0, places)
        places = places.index_select(0, places)
    return total.view_as(values)
