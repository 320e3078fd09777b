"""How patients' own levels depend on what does not change with visits: a shrunk linear regression."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lacova.batches import Batch
from lacova.covariates.space import CovariateSpace

START = 0.2  # of α, in units of the scaled measurement


class Slopes(nn.Module):
    """E b_pd = Σ_k w_dk c_pk: of measurement d on the visit-constant covariates, as numbers and as one-hot levels.

    w_dk ~ N(0, α_q²), one α for each covariate q, learnt, and q(w_dk) = N(m_dk, s_dk²): what a few patients say of many
    covariates is shrunk towards nothing. A missing covariate is what the others lead to expect of it, E[c | x_o]. That
    does not look at y, so that the bound stays one.

    Args:
        space: of X.
        sd: s_d to start from (D,).
    """

    chosen: Tensor
    owner: Tensor

    def __init__(self, space: CovariateSpace, sd: Tensor) -> None:
        super().__init__()
        self.space = space
        static = [q for q in (*space.continuous, *space.categorical) if space.static[q]]
        self.names = tuple(space.names[q] for q in static)
        columns = space.continuous + [q for q in space.categorical for _ in range(space.levels[q])]  # of each feature
        chosen = [k for k, q in enumerate(columns) if space.static[q]]
        self.register_buffer("chosen", torch.tensor(chosen), persistent=False)
        self.register_buffer("owner", torch.tensor([static.index(columns[k]) for k in chosen]), persistent=False)
        self.mean = nn.Parameter(sd.new_zeros(len(sd), len(self.chosen)))
        self.log_sd = nn.Parameter(sd.log()[:, None].repeat(1, len(self.chosen)))
        self.log_scale = nn.Parameter(sd.new_full((len(static),), math.log(START)))

    @property
    def var(self) -> Tensor:
        """s² (D×K)."""
        return (2.0 * self.log_sd).exp()

    def features(self, batch: Batch) -> Tensor:
        """c at each row (N̂×K)."""
        values = self.space.values(batch.x, batch.x_mask)
        if batch.given is not None:
            law, at = batch.given.belief, self.space.on(batch.x.device)
            gap = ~batch.x_mask
            parts = [law.mean[:, at.continuous] * gap[:, at.continuous]]
            for q in self.space.categorical:
                parts.append(law.log_prob[:, q, : self.space.levels[q]].exp() * gap[:, q, None])
            values = values + torch.cat(parts, dim=1)
        return values[:, self.chosen]

    def draw(self, draws: int, generator: torch.Generator) -> Tensor:
        """w (draws×D×K)."""
        shape = (draws, *self.mean.shape)
        noise = torch.randn(shape, generator=generator, device=self.mean.device, dtype=self.mean.dtype)
        return self.mean + self.log_sd.exp() * noise

    def of(self, name: str) -> Tensor:
        """Which of the K features belong to this covariate."""
        return self.owner == self.names.index(name)

    def kl(self) -> Tensor:
        """KL[q(w) ‖ p(w)]."""
        log_scale = self.log_scale[self.owner]
        square = (self.var + self.mean.square()) * (-2.0 * log_scale).exp()
        return (log_scale - self.log_sd + 0.5 * (square - 1.0)).sum()
