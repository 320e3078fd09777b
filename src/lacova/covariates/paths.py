"""Paths: runs of gaps of a column along a patient's visits, as Gaussian Markov chains.

The numbers of a run have the means μ, the standard deviations s and the correlations ρ with the entry before them. The
precision between neighbours is then −ρ/((1 − ρ²) s s₋), with s₋ that of the entry before; the precision between entries
that are no neighbours is 0. `Paths.coupling` fixes this number as −λ, so that s determines ρ:

    ρ/(1 − ρ²) = κ = λ s s₋

Prior and posterior share λ. The posterior is thus the prior times a normal factor for each entry: of all distributions
with its own means and variances, the one that is nearest to the prior. Where it is as wide as the prior, it remembers
as much; the closer the measurements tell an entry, the less it has to do with its neighbours.

A sum along a run, f_i = w_i + a_i f_{i−1}, takes log₂(longest run) operations on all entries at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Batch
from lacova.data.distributions import FactorisedDistribution, Paths


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


def correlated(eps: Tensor, distribution: FactorisedDistribution, batch: Batch) -> Tensor:
    """Turn independent standard normals e (…×N×Q) into paths of them: ε_i = ρ_i ε_{i−1} + √(1 − ρ_i²) e_i."""
    paths = distribution.paths
    if paths is None:
        return eps
    kept = memory(distribution)
    return _scan(eps * kept.remainder.sqrt(), kept.correlation, _places(paths.before), batch)


def kl_of_pairs(q: FactorisedDistribution, p: FactorisedDistribution, paths: Paths) -> Tensor:
    """Compute what the paths of p add to the KL of the single entries (N×Q), at the later entry of each pair.

    For a Markov chain, KL[q ‖ p] = Σ_i KL[q_i ‖ p_i] + Σ_i (KL of the pair (i − 1, i) − KL of its two entries). With
    u = (μ_q − μ_p)/s_p and s = s_q/s_p, the second term is

        ½ [(ρ_p² (u² + u₋² + s² + s₋²) − 2ρ_p (u u₋ + ρ_q s s₋))/(1 − ρ_p²) + log (1 − ρ_p²)/(1 − ρ_q²)]

    written below without differences of large numbers. A posterior without paths has ρ_q = 0.
    """
    u, s = (q.mean - p.mean) * p.var.rsqrt(), (q.var / p.var).sqrt()
    u0, s0 = before(u, paths), before(s, paths)
    prior, own = memory(p), memory(q)
    apart = (u - u0).square() + (s - s0).square() + 2.0 * s * s0 * own.loss
    alone = prior.loss * (u.square() + u0.square() + s.square() + s0.square())
    quadratic = prior.correlation * (apart - alone) / prior.remainder
    return 0.5 * (quadratic + prior.remainder.log() - own.remainder.log())


def log_density_of_pairs(distribution: FactorisedDistribution, x: Tensor) -> Tensor:
    """Compute log p(x_i | x_{i−1}) − log p(x_i) of each entry (draws×N×Q) of completed covariates; 0 off the paths."""
    paths = distribution.paths
    if paths is None:
        return torch.zeros_like(x)
    kept = memory(distribution)
    e = (x - distribution.mean) * distribution.var.rsqrt()
    e0 = before(e, paths)
    apart = (e - e0).square() - kept.loss * (e.square() + e0.square())
    value = -0.5 * (kept.correlation * apart / kept.remainder + kept.remainder.log())
    return torch.where(paths.before != 0, value, 0.0)


def spread(q: FactorisedDistribution, prior: FactorisedDistribution, batch: Batch) -> FactorisedDistribution:
    """Share what the measurements of each visit tell of a column between the visits of a run; `prior` has its paths.

    Each entry of q was given by its own visit. Its log variance and its mean, both relative to the prior, become
    averages over the run, in which entries count by their correlation with the entry: under the prior for the variance,
    under the posterior for the mean. Visits without measurements have no say, and far from those with some, q is the
    prior. The posterior of a run of one gap stays as it is.
    """
    paths = prior.paths
    if paths is None:
        return q
    linked, scale = paths.linked, prior.var.sqrt()
    told = (batch.y_mask.any(1)[:, None] & linked).to(scale.dtype)
    log_ratio = _average(0.5 * (q.var / prior.var).log(), told, memory(prior), paths, batch)
    ratio = log_ratio.exp()
    var = torch.where(linked, prior.var * ratio.square(), q.var)
    kept = memory(replace(prior, var=var.detach()))
    shift = ratio * _average((q.mean - prior.mean) / (scale * ratio), told, kept, paths, batch)
    mean = torch.where(linked, prior.mean + scale * shift, q.mean)
    return FactorisedDistribution(mean, var, q.log_prob, paths)


def _average(values: Tensor, weight: Tensor, kept: Memory, paths: Paths, batch: Batch) -> Tensor:
    """Return Σ_j R_ij w_j v_j / max(1, Σ_j R_ij w_j), with R the correlations within each run."""
    at, on = _places(paths.before), _places(paths.after)
    parts = torch.stack([weight, weight * values])
    backwards = torch.where(paths.after != 0, _pick(kept.correlation, on), 0.0)
    total, summed = (
        _scan(parts, kept.correlation, at, batch) + _scan(parts, backwards, on, batch) - parts
    ).unbind(0)  # fmt: skip
    return summed / total.clamp_min(1.0)


def _places(step: Tensor) -> Tensor:
    """Return the place of each entry's neighbour among all entries (N·Q,)."""
    n, columns = step.shape
    row = torch.arange(n, device=step.device)[:, None] + step
    return (row * columns + torch.arange(columns, device=step.device)).flatten()


def _pick(values: Tensor, places: Tensor) -> Tensor:
    """Return the values (…×N×Q) at some places, in the same shape."""
    return values.flatten(-2).index_select(-1, places).view_as(values)


def _scan(values: Tensor, factor: Tensor, places: Tensor, batch: Batch) -> Tensor:
    """Compute f_i = w_i + a_i f_{i−1} (…×N×Q) along every run, from values w and factors a (N×Q).

    After k operations, f has the terms of the last 2^k entries, and a their product.
    """
    longest = int(batch.counts.max()) if batch.longest is None else batch.longest
    total, product = values.flatten(-2), factor.flatten()
    for _ in range((longest - 1).bit_length()):
        total = total + product * total.index_select(-1, places)
        product = product * product.index_select(0, places)
        places = places.index_select(0, places)
    return total.view_as(values)
