"""Gradients that exceed what Adam has seen are scaled down, so that a batch with outliers does not undo many steps.

The typical norm of the gradient is that of Adam's second moments, the root of the sum of E g². It needs no state of its
own, so that a fit that is continued from a checkpoint takes the same steps; and the host does not wait for the device.
"""

from __future__ import annotations

import torch

MOST = 2.0  # times the typical norm


@torch.no_grad()
def clip_gradients(optimiser: torch.optim.Optimizer) -> None:
    """Scale all gradients of an Adam optimiser by one factor, so that their norm is at most `MOST` times the typical.

    The first step, before which nothing has been seen, stays as it is.
    """
    gradients, seen = [], []
    for group in optimiser.param_groups:
        known = [p for p in group["params"] if p.grad is not None and optimiser.state.get(p)]
        if not known:
            continue
        states = [optimiser.state[p] for p in known]
        gradients += [p.grad for p in known]
        sums = torch.stack([total.double() for total in torch._foreach_norm([s["exp_avg_sq"] for s in states], 1)])
        missing = group["betas"][1] ** torch.stack([s["step"] for s in states]).double()  # weight of the zero at first
        seen.append(torch.where(missing < 1.0, sums / (1.0 - missing), 0.0).sum())
    if not gradients:
        return
    most = MOST * torch.stack(seen).sum().sqrt()
    norm = torch.stack([part.double() for part in torch._foreach_norm(gradients)]).square().sum().sqrt()
    torch._foreach_mul_(gradients, torch.where((most > 0.0) & (norm > most), most / norm, 1.0))
