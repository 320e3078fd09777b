"""How patients' own levels depend on their covariates: a shrunk linear regression.

A visit's covariates act through z. What patients differ in all along goes with their levels, and a level that knows
nothing of covariates takes it all: predictions of new patients would be without it. So levels are regressed on what
does not change with visits, and on patients' averages of what does: effects between patients need not be those within
them (Mundlak, 1978).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lacova.data.batches import Batch, variance_parts
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.table import Table

START = 0.2  # of α, in units of the scaled measurement
MOST = 1000.0  # of κ: visits that an average is taken to need


class FixedPart(NamedTuple):
    """wᵀc at each row: mean and variance (…×N̂×D). The rows of a patient have it in common."""

    mean: Tensor
    var: Tensor

    def take(self, rows: Tensor) -> FixedPart:
        return FixedPart(self.mean[..., rows, :], self.var[..., rows, :])


class FixedEffects(nn.Module):
    """E b_pd = Σ_k w_dk c_pk: of measurement d on a patient's covariates, as numbers and as one-hot levels.

    A visit-constant covariate is itself c. Of one that changes, c = Σ_i (x_i − μ)/(n + κ) over the patient's n visits:
    what very many visits are expected to have on average, less what all patients have. κ is the variance within
    patients over that between them, so that one visit says little where visits differ much.

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
    fixed: Tensor
    centre: Tensor
    kappa: Tensor

    def __init__(self, space: CovariateSpace, names: Sequence[str], sd: Tensor) -> None:
        super().__init__()
        self.space, self.names = space, tuple(names)
        chosen = [k for k, q in enumerate(space.owners) if space.names[q] in names]
        owner = [self.names.index(space.names[space.owners[k]]) for k in chosen]
        self.register_buffer("chosen", torch.tensor(chosen), persistent=False)
        self.register_buffer("owner", torch.tensor(owner), persistent=False)
        member = (self.owner[:, None] == torch.arange(len(names))).to(sd.dtype)  # K×Q: which features are whose
        self.register_buffer("member", member, persistent=False)
        fixed = torch.tensor([space.static[space.names.index(name)] for name in names])
        self.register_buffer("fixed", fixed, persistent=False)
        self.register_buffer("centre", sd.new_zeros(len(chosen)))  # μ
        self.register_buffer("kappa", sd.new_ones(len(names)))
        self.mean = nn.Parameter(sd.new_zeros(len(sd), len(chosen)))
        self.log_sd = nn.Parameter(sd.log()[:, None].repeat(1, len(chosen)))
        self.log_scale = nn.Parameter(sd.new_full((len(names),), math.log(START)))

    def learn(self, table: Table) -> None:
        """μ and κ, from what is observed."""
        values = self.space.values(table.x, table.x_mask)[:, self.chosen]
        seen = table.x_mask[:, [self.space.names.index(self.names[q]) for q in self.owner.tolist()]]
        between, within = (part @ self.member for part in variance_parts(values, seen, table.patient))
        self.kappa.copy_((within / between).nan_to_num(MOST).clamp_max(MOST))
        self.centre.copy_(values.sum(0) / seen.sum(0))

    @property
    def var(self) -> Tensor:
        """s² (D×K)."""
        return (2.0 * self.log_sd).exp()

    def expect(self, batch: Batch, distribution: FactorisedDistribution | None) -> FixedPart:
        """At each row, over q(w) and over what is believed of missing covariates: exact.

        Var wᵀc = Σ_k s_k² E c_k² + Σ_q Var_c m_qᵀc_q, with independent covariates q, and independent visits of those
        that change.
        """
        x = self.space.values(batch.x, batch.x_mask)
        if distribution is None:
            c = self._of_patients(x[:, self.chosen], batch)
            return FixedPart(c @ self.mean.mT, c.square() @ self.var.mT)
        at, gap = self.space.on(x.device), ~batch.x_mask
        mean, var = (part[:, at.continuous] * gap[:, at.continuous] for part in (distribution.mean, distribution.var))
        hot = [
            distribution.log_prob[:, q, : self.space.levels[q]].exp() * gap[:, q, None] for q in self.space.categorical
        ]
        guess, square = (torch.cat([one, *hot], dim=1)[:, self.chosen] for one in (mean, mean.square() + var))
        c = self._of_patients(x[:, self.chosen] + guess, batch)
        # Σ_k m_k² E x_k² = E (m_qᵀx_q)², for a number is alone, and one of the levels is there.
        share = self._shares(batch)
        each = share[:, self.owner]
        product = (guess[:, None] * self.member.mT) @ self.mean.mT  # E m_qᵀx_q of each row, N̂×Q×D
        unknown = (each * square) @ self.mean.square().mT + (each * (square - guess.square())) @ self.var.mT
        unknown = unknown - (share[..., None] * product.square()).sum(1)
        unknown = unknown.new_zeros(batch.patients, unknown.shape[1]).index_add(0, batch.patient, unknown)
        return FixedPart(c @ self.mean.mT, c.square() @ self.var.mT + unknown.clamp_min(0.0)[batch.patient])

    def at(self, x: Tensor, batch: Batch, weight: Tensor | None = None, averaged_x: Tensor | None = None) -> FixedPart:
        """At completed covariates (…×N̂×Q): with these w (…×D×K), or over q(w). Averages are those of `averaged_x`."""
        c = self._of_patients(self._features(x), batch, None if averaged_x is None else self._features(averaged_x))
        if weight is not None:
            mean = c @ weight.mT
            return FixedPart(mean, torch.zeros_like(mean))
        return FixedPart(c @ self.mean.mT, c.square() @ self.var.mT)

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

    def _features(self, x: Tensor) -> Tensor:
        """Completed covariates (…×N̂×Q) as numbers and levels (…×N̂×K)."""
        features: Tensor = self.space.values(x.flatten(0, -2))[:, self.chosen].unflatten(0, x.shape[:-1])
        return features

    def _of_patients(self, values: Tensor, batch: Batch, averaged: Tensor | None = None) -> Tensor:
        """c at each row (…×N̂×K), from covariates at each (…×N̂×K), or from others where averages are taken."""
        apart = (values if averaged is None else averaged) - self.centre
        total = apart.new_zeros(*apart.shape[:-2], batch.patients, apart.shape[-1]).index_add(-2, batch.patient, apart)
        average = total / (self._visits(batch) + self.kappa)[:, self.owner]
        c: Tensor = torch.where(self.fixed[self.owner], values, average[..., batch.patient, :])
        return c

    def _shares(self, batch: Batch) -> Tensor:
        """What the variance of a covariate at each row (N̂×Q) counts in that of c, which it has with other rows."""
        first = batch.in_first_row(self.kappa.new_ones(batch.patients))[:, None]
        return torch.where(self.fixed, first, (self._visits(batch) + self.kappa)[batch.patient] ** -2)

    def _visits(self, batch: Batch) -> Tensor:
        """Of each patient (P̂×1)."""
        one = self.kappa.new_ones(len(batch), 1)
        return self.kappa.new_zeros(batch.patients, 1).index_add(0, batch.patient, one)
