"""One table as tensors: measurements, covariates and patients, with the masks of what is observed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lacova.data.distributions import ConditionalPrior


@dataclass(frozen=True)
class Table:
    """One table as tensors. Gaps hold 0 and are False in the mask.

    Attributes:
        y: measurements (N×D), with mask `y_mask`: numbers scaled, counts as they are, categories as level codes.
        x: covariates (N×Q), continuous ones standardised, categorical ones as level codes, with mask `x_mask`.
        patient: code of each row's instance (N,), numbered by first appearance; None without an instance column.
        labels: the instance labels behind those codes.
        conditional_prior: p(x_u | x_o) of each row, once a model has conditioned its covariate prior on the table.
    """

    y: Tensor
    y_mask: Tensor
    x: Tensor
    x_mask: Tensor
    patient: Tensor | None
    labels: tuple[Any, ...]
    conditional_prior: ConditionalPrior | None = None

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device) -> Table:
        """Return the table with its data on `device`; instance codes stay on the host, where batches are ordered."""
        moved = {k: getattr(self, k).to(device) for k in ("y", "y_mask", "x", "x_mask")}
        return replace(
            self,
            conditional_prior=None if self.conditional_prior is None else self.conditional_prior.to(device),
            **moved,
        )
