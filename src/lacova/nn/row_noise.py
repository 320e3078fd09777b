"""The network behind noise that depends on the row."""

from __future__ import annotations

from torch import Tensor, nn

HIDDEN = 16
# Precisions of the normal prior. They count as that many rows: with fewer, noise stays nearly constant.
LINEAR_PRECISION, NETWORK_PRECISION = 20.0, 20.0


class RowNoise(nn.Module):
    """Logs of the noise's standard deviations at (z, x), relative to each column's own.

    They are the sum of a linear map and a small network, and 0 at first. The prior of both is normal about 0, so that a
    small table keeps constant noise. A hidden unit that is c times as large, with last weights c times as small, is the
    same function: the prior is one of last weights times the lengths of their units, of which any direction is as
    likely.

    Args:
        inputs: width of z and x.
        columns: how many columns have such noise.
    """

    def __init__(self, inputs: int, columns: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, columns, bias=False)
        self.hidden, self.last = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, columns, bias=False)
        self.unit = (inputs + 1) / (3.0 * inputs)  # mean squared length of a hidden unit at first, its bias included
        for parameter in (*self.linear.parameters(), *self.last.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logs (K×columns)."""
        out: Tensor = self.linear(inputs) + self.last(self.hidden(inputs).relu())
        return out

    def penalty(self) -> Tensor:
        """Return −log p, less its constant: ½ Σ precision · weight², last weights in units of their first length."""
        lengths = (self.hidden.weight.square().sum(1) + self.hidden.bias.square()) / self.unit
        network = (self.last.weight.square() * lengths).sum()
        return 0.5 * (LINEAR_PRECISION * self.linear.weight.square().sum() + NETWORK_PRECISION * network)
