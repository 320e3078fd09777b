"""Scores of draws against the truth, over observed entries only."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def gaussian_nll(location: Tensor, noise_var: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Per row, −log N(y_o) with the mean and variance of the predictive draws: the moment-matched predictive NLL.

    Args:
        location: locations per draw (draws×N×D).
        noise_var: σ_d² (D,).
        y, mask: truth (N×D) and where to score it.
    """
    mean = location.mean(0)
    var = location.var(0, unbiased=False) + noise_var
    each = 0.5 * ((y - mean) ** 2 / var + var.log() + math.log(2.0 * math.pi))
    return torch.where(mask, each, 0.0).sum(-1)


def crps(draws: Tensor, y: Tensor) -> Tensor:
    """Continuous ranked probability score per entry, E|Y − y| − ½E|Y − Y'|, from draws (draws×…).

    The second expectation is over pairs of different draws, so that the score is unbiased for any number of them.
    """
    count = len(draws)
    ordered = draws.sort(0).values
    rank = torch.arange(1, count + 1, dtype=draws.dtype, device=draws.device).view(-1, *(1,) * (draws.dim() - 1))
    spread = ((2 * rank - count - 1) * ordered).sum(0) / (count * (count - 1))
    return (draws - y).abs().mean(0) - spread


def coverage(draws: Tensor, y: Tensor, mask: Tensor, level: float) -> Tensor:
    """Share of the entries in `mask` that lie within the central interval of the draws."""
    tail = (1.0 - level) / 2.0
    low, high = torch.quantile(draws, torch.tensor([tail, 1.0 - tail], dtype=draws.dtype, device=draws.device), dim=0)
    inside: Tensor = (y >= low) & (y <= high)
    return inside[mask].to(draws.dtype).mean()
