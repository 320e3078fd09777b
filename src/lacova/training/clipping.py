"""Gradients that exceed what Adam has seen are scaled down, so that a batch with outliers does not undo many steps.

The typical norm of the gradient is that of Adam's second moments, the root of the sum of E g². It needs no state of its
own, so that a fit that is continued from a checkpoint takes the same steps; and the host does not wait for the device.
"""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor

MOST = 2.0  # times the typical norm


@torch.no_grad()
def clip_gradients(optimiser: torch.optim.Optimizer) -> None:
    """Scale all gradients of an Adam optimiser by one factor, so that their norm is at most `MOST` times the typical.

    All groups of the optimiser have the same betas. The first step, before which nothing has been seen, stays as it is.
    """
    state = optimiser.state
    known = [p for group in optimiser.param_groups for p in group["params"] if p.grad is not None and state.get(p)]
    if not known:
        return
    known.sort(key=_type)  # torch takes all tensors of one type at once
    alike = [list(part) for _, part in groupby(known, _type)]
    decay = optimiser.param_groups[0]["betas"][1]
    missing = decay ** torch.stack([state[p]["step"] for p in known]).double()  # weight of the zero at first
    sums = _norms([[state[p]["exp_avg_sq"] for p in part] for part in alike], 1)
    most = MOST * torch.where(missing < 1.0, sums / (1.0 - missing), 0.0).sum().sqrt()
    gradients = [[p.grad for p in part] for part in alike]
    norm = _norms(gradients, 2).square().sum().sqrt()
    factor = torch.where((most > 0.0) & (norm > most), most / norm, 1.0)
    for part in gradients:
        torch._foreach_mul_(part, factor.to(part[0].dtype))


def _type(parameter: Tensor) -> str:
    return str(parameter.dtype)


def _norms(parts: list[list[Tensor]], order: int) -> Tensor:
    """Return the norm of each tensor in float64; those of a part have one type."""
    return torch.cat([torch.stack(torch._foreach_norm(part, order)).double() for part in parts])
