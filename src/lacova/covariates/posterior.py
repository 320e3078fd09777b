"""q_φ(x_u | ·): an amortised belief about the covariates that a row lacks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lacova.batches import Batch
from lacova.covariates.belief import Belief
from lacova.covariates.prior import FactorisedPrior
from lacova.covariates.space import CovariateSpace
from lacova.networks import mlp


class AmortisedPosterior(nn.Module):
    """Normal and categorical beliefs from one network that sees values and masks.

    Args:
        space: layout of X.
        measurements: D if the network also sees y_o, so that it gives q(x_u | y_o, x_o); 0 for q(x_u | x_o).
        prior: the belief that the network's output corrects; its start is close to it.
        hidden: widths of the network's hidden layers.
    """

    base_mean: Tensor
    base_log_var: Tensor
    base_log_prob: Tensor

    def __init__(
        self, space: CovariateSpace, measurements: int, prior: FactorisedPrior, hidden: Sequence[int] = (128, 64)
    ) -> None:
        super().__init__()
        self.space = space
        self.sees_y = measurements > 0
        outputs = len(space.names) * (2 + space.max_levels)
        self.network = mlp([space.width + len(space.names) + 2 * measurements, *hidden, outputs])
        self.register_buffer("base_mean", prior.mean.clone())
        self.register_buffer("base_log_var", prior.var.log())
        self.register_buffer("base_log_prob", prior.log_prob.clone())

    def forward(self, batch: Batch) -> Belief:
        parts = [self.space.features(batch.x, batch.x_mask)]
        if self.sees_y:
            parts += [batch.y * batch.y_mask, batch.y_mask.to(batch.y.dtype)]
        out = self.network(torch.cat(parts, dim=1)).unflatten(1, (len(self.space.names), -1))
        out = self._pool_static(out, batch)
        mean = self.base_mean + out[..., 0]
        # 8·tanh(·/8) is the identity near 0 and keeps variances within e^±8 of the prior's.
        var = (self.base_log_var + 8.0 * torch.tanh(out[..., 1] / 8.0)).exp()
        log_prob = torch.log_softmax(self.base_log_prob + out[..., 2:], dim=-1)
        return Belief(mean, var, log_prob)

    def _pool_static(self, out: Tensor, batch: Batch) -> Tensor:
        """One posterior per patient in the visit-constant columns: the average over its informative visits."""
        if not any(self.space.static):
            return out
        seen = batch.y_mask.any(1).to(out.dtype) + 1e-6  # visits without any y count only where there is no other
        visits = out.new_zeros(batch.patients).index_add(0, batch.patient, seen)
        total = out.new_zeros(batch.patients, *out.shape[1:]).index_add(0, batch.patient, out * seen[:, None, None])
        pooled = (total / visits[:, None, None])[batch.patient]
        return torch.where(torch.tensor(self.space.static, device=out.device)[:, None], pooled, out)
