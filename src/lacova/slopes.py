"""How patients' own levels depend on what does not change with visits: a shrunk linear regression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lacova.batches import Batch
from lacova.covariates.law import Belief
from lacova.covariates.space import CovariateSpace

START = 0.2  # of α, in units of the scaled measurement


class Usual(NamedTuple):
    """wᵀc at each row: mean and variance (…×N̂×D). The rows of a patient have it in common."""

    mean: Tensor
    var: Tensor


class Slopes(nn.Module):
    """E b_pd = Σ_k w_dk c_pk: of measurement d on visit-constant covariates, as numbers and as one-hot levels.

    w_dk ~ N(0, α_q²), one α for each covariate q, learnt, and q(w_dk) = N(m_dk, s_dk²): what a few patients say of many
    covariates is shrunk towards nothing.

    Args:
        space: of X.
        names: the covariates.
        sd: s_d to start from (D,).
    """

    chosen: Tensor
    owner: Tensor
    member: Tensor

    def __init__(self, space: CovariateSpace, names: Sequence[str], sd: Tensor) -> None:
        super().__init__()
        self.space, self.names = space, tuple(names)
        columns = space.continuous + [q for q in space.categorical for _ in range(space.levels[q])]  # of each feature
        chosen = [k for k, q in enumerate(columns) if space.names[q] in names]
        owner = [self.names.index(space.names[columns[k]]) for k in chosen]
        self.register_buffer("chosen", torch.tensor(chosen), persistent=False)
        self.register_buffer("owner", torch.tensor(owner), persistent=False)
        member = (self.owner[:, None] == torch.arange(len(names))).to(sd.dtype)  # K×Q: which features are whose
        self.register_buffer("member", member, persistent=False)
        self.mean = nn.Parameter(sd.new_zeros(len(sd), len(chosen)))
        self.log_sd = nn.Parameter(sd.log()[:, None].repeat(1, len(chosen)))
        self.log_scale = nn.Parameter(sd.new_full((len(names),), math.log(START)))

    @property
    def var(self) -> Tensor:
        """s² (D×K)."""
        return (2.0 * self.log_sd).exp()

    def expect(self, batch: Batch, belief: Belief | None) -> Usual:
        """At each row, over q(w) and over what is believed of missing covariates: exact.

        Var wᵀc = Σ_k s_k² E c_k² + Σ_q Var_c m_qᵀc_q, with independent covariates q.
        """
        first = batch.first
        x, known = batch.x[first], batch.x_mask[first]
        c = self.space.values(x, known)
        at = self.space.on(x.device)
        square = torch.cat([c[:, : len(at.continuous)].square(), c[:, len(at.continuous) :]], dim=1)
        if belief is not None:
            law, gap = belief.take(first), ~known
            mean, var = (part[:, at.continuous] * gap[:, at.continuous] for part in (law.mean, law.var))
            hot = [law.log_prob[:, q, : self.space.levels[q]].exp() * gap[:, q, None] for q in self.space.categorical]
            c, square = c + torch.cat([mean, *hot], dim=1), square + torch.cat([mean.square() + var, *hot], dim=1)
        c, square = c[:, self.chosen], square[:, self.chosen]
        parts = (c[:, None] * self.mean) @ self.member  # of each covariate, P×D×Q
        unknown = (square @ self.mean.square().mT - parts.square().sum(-1)).clamp_min(0.0)
        return Usual((c @ self.mean.mT)[batch.patient], (square @ self.var.mT + unknown)[batch.patient])

    def at(self, x: Tensor, weight: Tensor | None = None) -> Usual:
        """At completed covariates (…×N̂×Q): with these w (…×D×K), or over q(w)."""
        c = self.space.values(x.flatten(0, -2))[:, self.chosen].unflatten(0, x.shape[:-1])
        if weight is not None:
            mean = c @ weight.mT
            return Usual(mean, torch.zeros_like(mean))
        return Usual(c @ self.mean.mT, c.square() @ self.var.mT)

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
