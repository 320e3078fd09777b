"""Scores of draws against the truth, over observed entries only."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def gaussian_nll(location: Tensor, noise_var: Tensor, y: Tensor) -> Tensor:
    """Return the moment-matched predictive NLL per entry: −log N(y) with mean and variance of the predictive draws.

    Args:
        location: locations per draw (draws×N×D).
        noise_var: variance about each location (D,), or draws×N×D.
        y: true values (N×D).
    """
    mean = location.mean(0)
    var = location.var(0, unbiased=False) + (noise_var if noise_var.dim() == 1 else noise_var.mean(0))
    return 0.5 * ((y - mean) ** 2 / var + var.log() + math.log(2.0 * math.pi))


def ascending(draws: Tensor) -> Tensor:
    """Return draws (draws×…) in ascending order; on the host by numpy, which takes a tenth of torch's time."""
    return draws.sort(0).values if draws.is_cuda else torch.from_numpy(np.sort(draws.numpy(), axis=0))


def crps(ordered: Tensor, y: Tensor) -> Tensor:
    """Return the continuous ranked probability score per entry, E|Y − y| − ½E|Y − Y'|, from sorted draws (draws×…).

    The second expectation is over pairs of different draws, so that the score is unbiased for any number of draws.
    """
    count = len(ordered)
    rank = torch.arange(1, count + 1, dtype=ordered.dtype, device=ordered.device).view(-1, *(1 for _ in y.shape))
    spread = ((2 * rank - count - 1) * ordered).sum(0) / (count * (count - 1))
    return (ordered - y).abs().mean(0) - spread


def covered(ordered: Tensor, y: Tensor, coverage: float) -> Tensor:
    """Return which entries lie within the central interval of this coverage, from sorted draws (draws×…)."""
    low, high = quantile(ordered, (1.0 - coverage) / 2.0), quantile(ordered, (1.0 + coverage) / 2.0)
    inside: Tensor = (y >= low) & (y <= high)
    return inside


def quantile(ordered: Tensor, share: float) -> Tensor:
    """Return the value below which another draw falls with this probability, from sorted draws (draws×…).

    Another draw falls below the k-th of n with probability k/(n + 1); between two draws, interpolate. So an interval of
    90% covers 90% of further draws even where draws are few, down to 19. The usual empirical quantiles cover 88.4% with
    100 draws, and 76% with 10.
    """
    position = min(max(share * (len(ordered) + 1) - 1.0, 0.0), len(ordered) - 1.0)
    below = math.floor(position)
    return torch.lerp(ordered[below], ordered[min(below + 1, len(ordered) - 1)], position - below)


def weighted_quantile(draws: Tensor, weight: Tensor, share: float) -> Tensor:
    """Return the smallest draw (draws×…) with this share of the weight at or below it; weights sum to one."""
    ordered, order = draws.sort(0)
    cumulative = weight.gather(0, order).cumsum(0)
    index = (cumulative < share * cumulative[-1:]).sum(0, keepdim=True).clamp(max=len(draws) - 1)
    return ordered.gather(0, index)[0]
