"""p(mask | y): which measurements are missing may depend on their values, the missing ones included."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

Mechanism = Literal["selfmasking", "selfmasking_high", "selfmasking_low", "linear"]
SIGNS = {"selfmasking_high": 1.0, "selfmasking_low": -1.0}


class Missingness(nn.Module):
    """Entries are missing independently given y, with log-odds linear in y on its encoded scale.

    "selfmasking": a_d y_d + b_d, of a column's own value; "selfmasking_high" and "selfmasking_low" know the sign of
    a_d: high, or low, values go missing more often. "linear": (A y)_d + b_d, of all values of the row.

    Args:
        kind: the mechanism.
        share: of the entries of each column that are missing (D,), to start from; y then says nothing of it yet.
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
    def slope(self) -> Tensor:
        """a (D,), or A (D×D), whose row d is what the log-odds of column d take of each value."""
        return SIGNS[self.kind] * functional.softplus(self.raw) if self.kind in SIGNS else self.raw

    def log_prob(self, y: Tensor, mask: Tensor) -> Tensor:
        """log p(mask) per row (…,), given completed y (…×D); the mask is True where an entry is observed."""
        slope = self.slope
        odds = self.bias + (y @ slope.mT if self.kind == "linear" else y * slope)
        return functional.logsigmoid(torch.where(mask, -odds, odds)).sum(-1)
