"""Each patient's own level of each measurement, b_pd ~ N(0, τ_d²), integrated out exactly.

y_pid = location_pid + b_pd + ε. A patient's residuals on measurement d have the covariance σ_d²I + τ_d²11ᵀ: by Sherman
and Morrison, all that is needed of them is their number, their sum and their sum of squares.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lacova.batches import Batch
from lacova.table import Table

LEAST = 1e-3  # of τ_d² to start from, in units of the scaled measurement


class Levels(NamedTuple):
    """What is known of b of each patient: normal, with mean and variance (…×P×D)."""

    mean: Tensor
    var: Tensor


class Intercepts(nn.Module):
    """The spread of patients' own levels, one variance per measurement.

    Args:
        start: τ_d² to start from (D,).
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.raw = nn.Parameter(start.clamp_min(LEAST).log())

    @property
    def var(self) -> Tensor:
        """τ² (D,)."""
        return self.raw.exp()

    def gain(self, location: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        """What log p(y_o | location) gains, per patient (…×P), over rows without a common level.

        Σ_d ½ [ τ²(Σ_i r_i)² / (σ²(σ² + nτ²)) − log(1 + nτ²/σ²) ], over the observed r = y − location.

        Args:
            location: of y (…×N̂×D).
            batch: the rows, and whose they are.
            noise: σ² (D,).
        """
        count, total = _sums(location, batch)
        var, spread = self.var, noise + count * self.var
        return 0.5 * (var * total.square() / (noise * spread) - (spread / noise).log()).sum(-1)

    def levels(self, location: Tensor, batch: Batch, noise: Tensor) -> Levels:
        """b given the observed measurements, at this location of y: shrunk means of the residuals."""
        count, total = _sums(location, batch)
        spread = noise + count * self.var
        return Levels(self.var * total / spread, (self.var * noise / spread).expand_as(total))


def variance_parts(table: Table) -> tuple[Tensor, Tensor]:
    """Variance between and within patients (D,) each, of the observed entries; none is negative."""
    if table.patient is None:
        raise ValueError("a table without an instance column has no patients to have levels of their own.")
    seen = table.y_mask.to(table.y.dtype)
    patients = len(table.labels)
    zero = seen.new_zeros(patients, seen.shape[1])
    count = zero.index_add(0, table.patient, seen)
    mean = zero.index_add(0, table.patient, table.y * seen) / count.clamp_min(1.0)
    square = ((table.y - mean[table.patient]) ** 2 * seen).sum(0)
    freedom = (count.sum(0) - (count > 0).sum(0)).clamp_min(1.0)
    within = square / freedom
    overall = (table.y * seen).sum(0) / seen.sum(0)
    total = ((table.y - overall) ** 2 * seen).sum(0) / seen.sum(0)
    return (total - within).clamp_min(0.0), torch.minimum(within, total)


def _sums(location: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Per patient, the number of observed entries (P×D) and the sum of their residuals (…×P×D)."""
    seen = batch.y_mask.to(location.dtype)
    zero = seen.new_zeros(batch.patients, seen.shape[1])
    count = zero.index_add(0, batch.patient, seen)
    residual = (batch.y - location) * seen
    shape = (*residual.shape[:-2], *zero.shape)
    return count, residual.new_zeros(shape).index_add(-2, batch.patient, residual)
