"""The network behind noise that depends on the row."""

from __future__ import annotations

from torch import Tensor, nn

HIDDEN = 16
# Precisions of the normal prior of the weights. They count as that many rows: with fewer, noise stays nearly constant.
LINEAR_PRECISION, NETWORK_PRECISION = 20.0, 20.0


class RowNoise(nn.Module):
    """Logs of the noise's standard deviations at (z, x), relative to each column's own.

    They are the sum of a linear map and a small network, and 0 at first. The prior of the weights is normal about 0, so
    that a small table keeps constant noise.

    Args:
        inputs: width of z and x.
        columns: how many columns have such noise.
    """

    def __init__(self, inputs: int, columns: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, columns, bias=False)
        self.hidden, self.last = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, columns, bias=False)
        for parameter in (*self.linear.parameters(), *self.last.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logs (K×columns)."""
        out: Tensor = self.linear(inputs) + self.last(self.hidden(inputs).relu())
        return out

    def penalty(self) -> Tensor:
        """Return −log p(weights), less its constant: ½ Σ precision · weight²."""
        linear, network = (part.weight.square().sum() for part in (self.linear, self.last))
        return 0.5 * (LINEAR_PRECISION * linear + NETWORK_PRECISION * network)
