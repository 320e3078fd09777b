"""q(Z) of a batch: independent rows, or one Markov chain along the visits of each patient."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Batch
from lacova.nn.linalg import log_normal


class Chain(NamedTuple):
    """Coupling of each patient's visits in q(Z), in order of time: the covariance of a patient is R Rᵀ (n×n).

    R = B⁻¹ with B upper bidiagonal, so that the precision Bᵀ B is tridiagonal. Only rows with a measurement take part.

    Attributes:
        places: row of each visit (P×n), padded to the longest patient.
        filled: which places hold a visit (P×n).
        root: R (L×P×n×n); the identity at padded places.
    """

    places: Tensor
    filled: Tensor
    root: Tensor

    def gather(self, values: Tensor) -> Tensor:
        """Gather values of rows (…×N×L) by patient (…×L×P×n), zero where padded."""
        return values[..., self.places, :].movedim(-1, -3) * self.filled

    def take(self, rows: Tensor, times: int = 1) -> Chain:
        """Return the chain of the rows chosen by a mask (N,), numbered anew and repeated `times` times.

        The mask must include every row of the chain.
        """
        count = rows.sum()
        number = (rows.cumsum(0) - 1).clamp_min(0)[self.places]
        version = torch.arange(times, device=rows.device)[:, None, None]
        return Chain((number + version * count).flatten(0, 1), self.filled.repeat(times, 1),
                     self.root.repeat(1, times, 1, 1))  # fmt: skip


class Latents(NamedTuple):
    """q(Z) of N rows.

    Attributes:
        mean, var: mean and variance of each row (N×L each), or of each row at several completions of its covariates
            (draws×N×L).
        chain: coupling of each patient's rows; None where rows are independent.
    """

    mean: Tensor
    var: Tensor
    chain: Chain | None = None

    def take(self, rows: Tensor) -> Latents:
        """Return q of the rows chosen by a mask (N,), which must include every row of the chain."""
        chain = None if self.chain is None else self.chain.take(rows)
        return Latents(self.mean[..., rows, :], self.var[..., rows, :], chain)

    def at(self, lines: Tensor) -> Latents:
        """Return q of the rows behind some lines (K,), each row by itself."""
        return Latents(self.mean[lines], self.var[lines])

    def draw(self, eps: Tensor) -> Tensor:
        """Draw z (S×N×L) from standard normals `eps` of the same shape."""
        deviation = self.var.sqrt() * eps
        if self.chain is not None:
            places, filled, root = self.chain
            coupled = (root @ self.chain.gather(eps)[..., None])[..., 0].movedim(-3, -1)  # S×P×n×L
            rows = torch.where(filled, places, len(self.mean)).flatten()  # padding is written to an extra last row
            extended = torch.cat([deviation, deviation[:, :1]], dim=1)
            deviation = extended.index_copy(1, rows, coupled.flatten(1, 2))[:, :-1]
        return self.mean + deviation

    def log_density(self, z: Tensor, eps: Tensor, batch: Batch) -> Tensor:
        """Compute log q(z) (S×N) of the draws z = draw(eps) (S×N×L).

        Independent rows have a density each. The density of a chain stands in its patient's first row. Rows outside
        every chain follow the prior given the others and are left out.
        """
        if self.chain is None:
            return log_normal(z, self.mean, self.var)
        log_det_root = self.chain.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # log |R| (L×P); padding adds log 1
        square = self.chain.gather(eps).square().sum(-1) + math.log(2.0 * math.pi) * self.chain.filled.sum(1)
        return batch.in_first_row((-0.5 * square - log_det_root).sum(1))
