"""p(mask | y): whether measurements are missing may depend on their values, the missing ones included."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

Mechanism = Literal["selfmasking", "selfmasking_high", "selfmasking_low", "linear"]
SIGNS = {"selfmasking_high": 1.0, "selfmasking_low": -1.0}


class Missingness(nn.Module):
    """Entries that are missing independently given y, with log-odds linear in y on its encoded scale.

    "selfmasking" has log-odds a_d y_d + b_d, which depend on the entry's own value. "selfmasking_high" and
    "selfmasking_low" fix the sign of a_d: high values, or low ones, are missing more often. "linear" has log-odds
    (A y)_d + b_d, which depend on all values of the row.

    Args:
        kind: the mechanism.
        share: share of missing entries of each column (D,). b starts from its log-odds.
    """

    def __init__(self, kind: Mechanism, share: Tensor) -> None:
        super().__init__()
        if kind not in get_args(Mechanism):
            raise ValueError(f"mechanism is {kind!r}; expected one of {', '.join(get_args(Mechanism))}.")
        self.kind = kind
        columns = len(share)
        self.bias = nn.Parameter(share.clamp(0.01, 0.99).logit())
        self.raw = nn.Parameter(torch.zeros(columns, columns) if kind == "linear" else torch.zeros(columns))

    @property
    def coefficients(self) -> Tensor:
        """a (D,), or A (D×D), whose row d has the coefficients of column d's log-odds."""
        return SIGNS[self.kind] * functional.softplus(self.raw) if self.kind in SIGNS else self.raw

    def log_prob(self, y: Tensor, mask: Tensor) -> Tensor:
        """Return log p(mask) per row (…,), given completed y (…×D); the mask is True where an entry is observed."""
        coefficients = self.coefficients
        log_odds = self.bias + (y @ coefficients.mT if self.kind == "linear" else y * coefficients)
        return functional.logsigmoid(torch.where(mask, -log_odds, log_odds)).sum(-1)
