"""q(Z) of a batch: independent rows, or one chain along the visits of each patient."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Batch
from lacova.nn.linalg import log_normal


class Chain(NamedTuple):
    """Patients' visits in the order of time, and how q(Z) couples them: the covariance of a patient is R Rᵀ (n×n).

    R = B⁻¹ with B upper bidiagonal, so that the precision Bᵀ B is tridiagonal. Only rows with a measurement are in it.

    Attributes:
        places: row of each visit (P×n).
        filled: which places hold one (P×n).
        root: R (L×P×n×n); the identity where nothing is.
    """

    places: Tensor
    filled: Tensor
    root: Tensor

    def gather(self, values: Tensor) -> Tensor:
        """(…×rows×L) to (…×L×P×n), zero where padded."""
        return values[..., self.places, :].movedim(-1, -3) * self.filled

    def take(self, rows: Tensor, times: int = 1) -> Chain:
        """The chain with rows numbered as among those of a mask, all of its own included; then again, `times` times."""
        count = rows.sum()
        number = (rows.cumsum(0) - 1).clamp_min(0)[self.places]
        version = torch.arange(times, device=rows.device)[:, None, None]
        return Chain((number + version * count).flatten(0, 1), self.filled.repeat(times, 1),
                     self.root.repeat(1, times, 1, 1))  # fmt: skip


class Latents(NamedTuple):
    """q(Z): mean and variance of each row (N×L each), and what couples the rows, if anything does."""

    mean: Tensor
    var: Tensor
    chain: Chain | None = None

    def take(self, rows: Tensor) -> Latents:
        """The rows chosen by a mask (N,), all of the chain included."""
        chain = None if self.chain is None else self.chain.take(rows)
        return Latents(self.mean[rows], self.var[rows], chain)

    def draw(self, noise: Tensor) -> Tensor:
        """Draws of z (S×N×L) from standard normals of the same shape."""
        spread = self.var.sqrt() * noise
        if self.chain is not None:
            places, filled, root = self.chain
            moved = (root @ self.chain.gather(noise)[..., None])[..., 0].movedim(-3, -1)  # S×P×n×L
            rows = torch.where(filled, places, len(self.mean)).flatten()  # what is padded goes to a row that is cut off
            room = torch.cat([spread, spread[:, :1]], dim=1)
            spread = room.index_copy(1, rows, moved.flatten(1, 2))[:, :-1]
        return self.mean + spread

    def log_density(self, z: Tensor, noise: Tensor, batch: Batch) -> Tensor:
        """log q of the draws z (S×N×L) that were made of this noise, by row (S×N); of a chain, in its patient's first.

        Rows that are in no chain follow the prior given the others, and are left out.
        """
        if self.chain is None:
            return log_normal(z, self.mean, self.var)
        width = self.chain.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # log|R| (L×P): 1 where nothing is
        square = self.chain.gather(noise).square().sum(-1) + math.log(2.0 * math.pi) * self.chain.filled.sum(1)
        return batch.in_first_row((-0.5 * square - width).sum(1))
