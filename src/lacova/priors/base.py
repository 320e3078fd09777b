"""Priors of the latent variables: standard normal, conditional on x, Gaussian process.

Each offers the same three things: its KL to q(Z) for a batch, the law of z at given covariates, and draws from it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lacova.covariates.scenarios import Scenarios
from lacova.data.batches import Batch, blocks
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.nn.latents import Chain, Latents
from lacova.nn.linalg import cholesky, gaussian_kl, log_normal
from lacova.nn.networks import LOG_VAR_RANGE, mlp
from lacova.priors.gp.bounds import (
    Bound,
    own_whitener,
    patient_bound,
    patient_parts,
    project,
    row_bound,
    row_misfit,
    row_statistics,
)
from lacova.priors.gp.components import component_lines, inducing_shift, joint_lines
from lacova.priors.gp.inducing import InducingPoints, NaturalStatistics, Whitened
from lacova.priors.gp.kernels import AdditiveKernel
from lacova.priors.gp.posterior import (
    History,
    LatentPosterior,
    latent_posterior,
    patient_encoder_spread,
    predict_blocks,
    row_encoder_spread,
)
from lacova.priors.gp.uncertain import excess, expected_cross, expected_kernel, inducing_root, uncertain

__all__ = ["ConditionalNormal", "GPPrior", "History", "LatentPrior", "PriorTerms", "StandardNormal"]

NOISE_FLOOR = 1e-3


class PriorTerms(NamedTuple):
    """KL of Z for a batch, scaled to the table; KL of the inducing values; what moves the latter's distribution."""

    latent: Tensor
    inducing: Tensor
    statistics: NaturalStatistics | None = None


class Encoded(NamedTuple):
    """Everything that a pass over the training rows hands to a prior: scenarios and q(Z) of one batch."""

    scenarios: Scenarios
    batch: Batch
    mean: Tensor
    var: Tensor


class Density(NamedTuple):
    """p(z | x) of K draws of the rows of a batch.

    Attributes:
        value: log p(z | x) (K×N̂); of patients whose rows are coupled, in their first rows. Of a GP prior, the bound on
            it that q(v) gives, less `inducing`.
        inducing: KL of the inducing values; None if there are none.
        statistics: what moves q(v), given how often each draw of each row counts (K×N̂).
    """

    value: Tensor
    inducing: Tensor | None = None
    statistics: Callable[[Tensor], NaturalStatistics] | None = None


class LatentPrior(nn.Module, ABC):
    """p_θ(Z | X)."""

    independent: bool = True  # rows, given x and what training has found
    couples_rows: bool = False
    width: int = 1  # numbers per row that `predict` and `sample` hold at a time
    integrates: bool = False  # over the distribution itself, where scenarios leave gaps open
    scenario_columns: Sequence[int] | None = None  # which gaps scenarios must complete; None for all

    @abstractmethod
    def kl(self, scenarios: Scenarios, batch: Batch, q: Latents, distribution: FactorisedDistribution) -> PriorTerms:
        """E_{x_u} KL[q(Z) ‖ p(Z | X)]; rows of q are independent, unless the prior is one for chains.

        The expectation is over the scenarios, or over the distribution they come from where the prior can do so exactly.
        """

    @abstractmethod
    def predict(self, x: Tensor, group: Tensor, history: History | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance (K×L each) of z at completed covariates x (K×Q); `group` numbers the patients."""

    def sample(
        self, x: Tensor, group: Tensor, generator: torch.Generator, history: History | None = None, times: int = 1
    ) -> Tensor:
        """Draws of z (times·K×L), joint within a group where the prior couples rows; all rows once, then again."""
        mean, var = (part.repeat(times, 1) for part in self.predict(x, group, history))
        return mean + var.sqrt() * torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)

    def log_density(self, z: Tensor, x: Tensor) -> Tensor:
        """log p(z | x) of each row by itself (K,)."""
        return log_normal(z, *self.predict(x, torch.arange(len(x), device=x.device)))

    def sample_both(
        self, x: Tensor, other: Tensor, group: Tensor, generator: torch.Generator, shared: Tensor | None,
        history: History | None = None, times: int = 1,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Draws of z (times·K×L each) at x and at other covariates of the same rows, with the same noise.

        `shared` comes from `draw_shared`: what draws of several batches have in common. The other arguments are those
        of `sample`.
        """
        state = generator.get_state()
        z = self.sample(x, group, generator, history, times)
        generator.set_state(state)
        return z, self.sample(other, group, generator, history, times)

    def draw_shared(self, draws: int, generator: torch.Generator) -> Tensor | None:
        """Draws of what is uncertain of z and common to all rows; None if there is nothing."""
        return None

    def density(self, z: Tensor, x: Tensor, batch: Batch, chain: Chain | None = None) -> Density:
        """log p(z | x) of draws of z (K×N̂×L) at completed covariates (K×N̂×Q), of each row by itself.

        `chain` says which rows of a patient q couples, for a prior that couples them as well.
        """
        del chain
        return Density(self.log_density(z.flatten(0, 1), x.flatten(0, 1)).unflatten(0, x.shape[:2]))

    def cache_posterior(self, encoded: Iterable[Encoded]) -> None:
        """Take in all training rows once training is over, for prediction. Nothing to keep unless rows are coupled."""
        del encoded


class StandardNormal(LatentPrior):
    """p(z) = N(0, I), whatever x."""

    def __init__(self, latent_dim: int) -> None:
        super().__init__()
        self.latent_dim = latent_dim

    def kl(self, scenarios: Scenarios, batch: Batch, q: Latents, distribution: FactorisedDistribution) -> PriorTerms:
        mean, var, _ = q
        one, zero = torch.ones_like(var), torch.zeros_like(mean)
        each = gaussian_kl(mean, var, zero, one)
        total = each.sum() if batch.real is None else (each * batch.real[:, None]).sum()
        return PriorTerms(batch.scale * total, mean.new_zeros(()))

    def predict(self, x: Tensor, group: Tensor, history: History | None = None) -> tuple[Tensor, Tensor]:
        zero = x.new_zeros(len(x), self.latent_dim)
        return zero, torch.ones_like(zero)


class ConditionalNormal(LatentPrior):
    """p_θ(z | x) = N(μ_θ(x), diag σ_θ²(x)) from a network."""

    def __init__(self, space: CovariateSpace, latent_dim: int, hidden: Sequence[int] = (64,)) -> None:
        super().__init__()
        self.space = space
        self.network = mlp([space.width, *hidden, 2 * latent_dim])

    def kl(self, scenarios: Scenarios, batch: Batch, q: Latents, distribution: FactorisedDistribution) -> PriorTerms:
        mean, var, _ = q
        prior_mean, prior_var = self._moments(scenarios.x)
        each = gaussian_kl(mean[scenarios.row], var[scenarios.row], prior_mean, prior_var).sum(-1)
        return PriorTerms(batch.scale * (each * scenarios.row_weight).sum(), mean.new_zeros(()))

    def predict(self, x: Tensor, group: Tensor, history: History | None = None) -> tuple[Tensor, Tensor]:
        return self._moments(x)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_var = self.network(self.space.values(x)).chunk(2, dim=1)
        return mean, log_var.clamp(*LOG_VAR_RANGE).exp()


class GPPrior(LatentPrior):
    """z_l = f_l(x) + N(0, σ_z²), f_l an additive Gaussian process: D̂³ for rows, D̂⁴ where the instance has a component.

    Args:
        kernel: the additive kernel.
        inducing: S and q(v).
        space: layout of X.
        exact: integrate the bounds over x_u in closed form instead of over scenarios.
        noise: σ_z² to start from; it is learnt, above a floor.
    """

    independent = False

    def __init__(
        self, kernel: AdditiveKernel, inducing: InducingPoints, space: CovariateSpace, *, exact: bool = False,
        noise: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel, self.inducing, self.space, self.exact = kernel, inducing, space, exact
        self.couples_rows, self.integrates = bool(kernel.own), exact
        if exact and self.couples_rows:
            # What a patient's rows share, and what enters K^(R), is completed; rows are independent given that.
            own = {c for r in kernel.own for c in (*(column for column, _ in kernel.scales(r)), *kernel.levels(r))}
            self.scenario_columns = sorted(own | {q for q, fixed in enumerate(space.static) if fixed})
        completed = [q in (self.scenario_columns or ()) for q in range(len(space.names))]
        self.register_buffer("completed", torch.tensor(completed), persistent=False)
        latent_dim, count = inducing.shift.shape
        self.width = latent_dim * count
        dtype = inducing.shift.dtype
        self.raw_noise = nn.Parameter(torch.full((latent_dim,), noise - NOISE_FLOOR, dtype=dtype).log())
        self.register_buffer("posterior_mean", torch.zeros(latent_dim, count, dtype=dtype))
        self.register_buffer("posterior_factor", torch.eye(count, dtype=dtype).repeat(latent_dim, 1, 1))
        self.register_buffer("posterior_spread", torch.zeros(latent_dim, count, count, dtype=dtype))

    completed: Tensor
    posterior_mean: Tensor
    posterior_factor: Tensor
    posterior_spread: Tensor

    @property
    def noise(self) -> Tensor:
        """σ_z² (L,)."""
        return NOISE_FLOOR + self.raw_noise.exp()

    @property
    def dtype(self) -> torch.dtype:
        return self.raw_noise.dtype

    def kl(self, scenarios: Scenarios, batch: Batch, q: Latents, distribution: FactorisedDistribution) -> PriorTerms:
        mean, var, _ = q
        v = self.inducing.distribution()
        if self.exact:
            latent = mean.mT.to(self.dtype), var.mT.to(self.dtype)
            bound = self._exact_bound(v, scenarios, batch, distribution, *latent)
        else:
            x = scenarios.x
            a = project(self.kernel, self.inducing.inputs.to(x.dtype), x)
            bound = self._bound(a, x, v.to(x.dtype), scenarios, batch, mean.mT, var.mT)
        return PriorTerms(bound.value.to(mean.dtype), v.kl().to(mean.dtype), bound.statistics)

    def _exact_bound(
        self, q: Whitened, s: Scenarios, batch: Batch, distribution: FactorisedDistribution, mean: Tensor, var: Tensor
    ) -> Bound:
        """The bound at mean projections, plus what the spread of uncertain rows adds."""
        kernel, inducing, space, noise = self.kernel, self.inducing.inputs, self.space, self.noise
        inducing_white = inducing_root(kernel, inducing)
        if not self.couples_rows:
            rows = torch.arange(len(batch), device=batch.x.device)
            inputs = uncertain(batch.x, batch.x_mask, distribution, space)
            first = expected_cross(kernel, inducing, inputs, kernel.shared, space)
            a = inducing_white @ first
            one = torch.ones(len(batch), dtype=self.dtype, device=a.device)
            prior_var = kernel.diagonal(batch.x, kernel.shared)
            if batch.real is not None:
                one = one * batch.real
            bound = row_bound(a, prior_var, q, noise, mean, var, rows, one, batch.scale, batch.real)
            weight = (batch.scale / noise)[:, None].expand(-1, len(batch))
        else:
            known = batch.x_mask[s.row]
            known = known | self.completed
            inputs = uncertain(s.x, known, distribution.take(s.row), space)
            first = expected_cross(kernel, inducing, inputs, kernel.shared, space)
            a = inducing_white @ first
            pad = s.blocks
            block = inputs.take(pad.places)
            shared = expected_kernel(kernel, block, block, kernel.shared).to(self.dtype)
            self_pair = torch.eye(shared.shape[-1], dtype=torch.bool, device=shared.device)
            x, probability = s.x.to(self.dtype), s.weight.to(self.dtype)
            prior_var = kernel.diagonal(x[pad.places], kernel.shared)
            shared = torch.where(self_pair, prior_var[..., None], shared)
            bound = patient_bound(
                kernel, a, x, pad, q, noise, mean, var, s.row, probability, batch.scale, shared, batch.real
            )
            root = own_whitener(kernel, x[pad.places], pad, noise)
            precision = root.square().sum(-2)  # (Σ̂⁻¹)_ii, L×V×n
            at = s.line_in_block
            weight = batch.scale * precision[:, s.scenario, at] * s.row_weight.to(self.dtype)
        if len(s.open) == 0:
            return bound
        chosen = weight[:, s.open].double() * s.open_real
        added, spread = excess(
            kernel, inducing, inputs.take(s.open), first[..., s.open], chosen, q, inducing_white, space
        )
        precision_sum = bound.statistics.precision + spread.to(self.dtype)
        return Bound(bound.value + added.to(self.dtype), bound.statistics._replace(precision=precision_sum))

    def _bound(self, a: Tensor, x: Tensor, q: Whitened, s: Scenarios, batch: Batch, mean: Tensor, var: Tensor) -> Bound:
        weight, noise = s.weight.to(x.dtype), self.noise.to(x.dtype)
        if self.couples_rows:
            return patient_bound(
                self.kernel, a, x, s.blocks, q, noise, mean, var, s.row, weight, batch.scale, real=batch.real
            )
        prior_var = self.kernel.diagonal(x, self.kernel.shared)
        return row_bound(a, prior_var, q, noise, mean, var, s.row, weight, batch.scale, batch.real)

    def density(self, z: Tensor, x: Tensor, batch: Batch, chain: Chain | None = None) -> Density:
        """E log p(z | f) under q(v) and p(f | v), which less KL[q(v) ‖ p(v)] bounds log p(Z | X) for every Z and X.

        So weights that have it in the place of log p(z | x) give a bound on log p(Y_o | X_o), too: its exponential is a
        product over rows, or over patients where their rows are coupled, and lies below p(Z | X) everywhere.
        """
        distribution, flat, target = self.inducing.distribution(), x.flatten(0, 1), z.flatten(0, 1).mT
        q, noise = distribution.to(x.dtype), self.noise.to(x.dtype)
        inducing = distribution.kl().to(z.dtype)
        a = project(self.kernel, self.inducing.inputs.to(x.dtype), flat)
        constant = math.log(2.0 * math.pi)
        if not self.couples_rows:
            misfit = row_misfit(a, self.kernel.diagonal(flat, self.kernel.shared), q, target)
            each = misfit / noise[:, None] + noise.log()[:, None] + constant
            value = -0.5 * each.sum(0).unflatten(0, z.shape[:2])
            return Density(value, inducing, lambda weight: row_statistics(a, noise, target, weight.flatten()))
        group = torch.arange(len(z), device=x.device)[:, None] * batch.patients + batch.patient
        pad = blocks(group.flatten(), len(z) * batch.patients)
        parts, statistics = patient_parts(self.kernel, a, flat, pad, q, noise, target, None)
        whole = -0.5 * (parts + pad.filled.sum(1) * constant).sum(0).unflatten(0, (len(z), batch.patients))
        first = pad.places[:, 0]
        return Density(batch.in_first_row(whole), inducing, lambda weight: statistics(weight.flatten()[first]))

    @torch.no_grad()
    def cache_posterior(self, encoded: Iterable[Encoded]) -> None:
        """Sum A, b and G over all training rows, at the final parameters, and keep the posterior of v."""
        precision, shift, spread = (
            torch.zeros_like(t) for t in (self.posterior_spread, self.posterior_mean, self.posterior_spread)
        )
        q = self.inducing.distribution()
        for s, batch, mean, var in encoded:
            x = s.x.to(self.dtype)
            mean, var = mean.mT.to(self.dtype), var.mT.to(self.dtype)
            a = project(self.kernel, self.inducing.inputs, x)
            weight, line_var = s.weight.to(self.dtype), var[:, s.row]
            statistics = self._bound(a, x, q, s, batch, mean, var).statistics
            precision, shift = precision + statistics.precision, shift + statistics.shift
            if self.couples_rows:
                spread += patient_encoder_spread(self.kernel, a, x, s.blocks, self.noise, line_var, weight)
            else:
                spread += row_encoder_spread(a, self.noise, line_var, weight)
        posterior = latent_posterior(NaturalStatistics(precision, shift), spread)
        self.posterior_mean.copy_(posterior.q.mean)
        self.posterior_factor.copy_(posterior.q.precision_factor)
        self.posterior_spread.copy_(spread)

    def predict(self, x: Tensor, group: Tensor, history: History | None = None) -> tuple[Tensor, Tensor]:
        rows = torch.arange(len(x), device=x.device)
        mean, covariance, filled = self._blocks(x, group if self.couples_rows else rows, history)
        var = covariance.diagonal(dim1=-2, dim2=-1)
        return mean[:, filled].mT.to(x.dtype), var[:, filled].mT.to(x.dtype)

    def sample(
        self, x: Tensor, group: Tensor, generator: torch.Generator, history: History | None = None, times: int = 1
    ) -> Tensor:
        rows = torch.arange(len(x), device=x.device)
        mean, covariance, filled = self._blocks(x, group if self.couples_rows else rows, history)
        latent, count, size = mean.shape
        noise = torch.randn(latent, times, count, size, generator=generator, device=x.device, dtype=mean.dtype)
        z = mean[..., None] + cholesky(covariance) @ noise.permute(0, 2, 3, 1)  # L×V×n×times
        return z[:, filled].permute(2, 1, 0).flatten(0, 1).to(x.dtype)

    def sample_both(
        self, x: Tensor, other: Tensor, group: Tensor, generator: torch.Generator, shared: Tensor | None,
        history: History | None = None, times: int = 1,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        assert shared is not None
        versions = len(shared) // times
        at = x.to(self.dtype), other.to(self.dtype)
        lines, pad = joint_lines(
            self.kernel, self.inducing.inputs, self._posterior, self.noise, at, group, self._past(history)
        )
        f = lines.sample(shared, versions, self._level, generator)[:, :, :, 0]  # draws×L×P×2n
        here, there = (part[:, :, pad.filled.unflatten(0, (versions, -1))[0]] for part in f.chunk(2, dim=-1))
        visit = torch.randn(here.shape, generator=generator, device=x.device, dtype=self.dtype)
        here, there = (
            (part + self.noise.sqrt()[:, None] * visit).transpose(1, 2).flatten(0, 1).to(x.dtype)
            for part in (here, there)
        )
        return here, torch.where((x == other).all(1, keepdim=True).repeat(times, 1), here, there)

    def draw_shared(self, draws: int, generator: torch.Generator) -> Tensor:
        """Draws of v − m (draws×L×M)."""
        return inducing_shift(self._posterior, draws, generator)

    def sample_components(
        self, x: Tensor, patient: Tensor, shift: Tensor, generator: torch.Generator, history: History | None = None
    ) -> Tensor:
        """Draws of every component (draws×N×R×L) at x (draws×N×Q, or 1×N×Q if it is the same in all draws).

        `shift` comes from `draw_shared`; history is that of the patients, numbered through the versions of x.
        """
        versions, patients = len(x), int(patient[-1]) + 1
        group = torch.arange(versions, device=x.device)[:, None] * patients + patient
        lines, pad = component_lines(
            self.kernel, self.inducing.inputs, self._posterior, self.noise, x.flatten(0, 1).to(self.dtype),
            group.flatten(), self._past(history),
        )  # fmt: skip
        f = lines.sample(shift, versions, self._level, generator)  # draws×L×P×n×R
        f = f[:, :, pad.filled.unflatten(0, (versions, -1))[0]]  # draws×L×N×R
        return f.permute(0, 2, 3, 1).to(x.dtype)

    @property
    def _level(self) -> Tensor:
        return self.kernel.log_variance.exp().sum(0)

    @property
    def _posterior(self) -> LatentPosterior:
        return LatentPosterior(Whitened(self.posterior_mean, self.posterior_factor), self.posterior_spread)

    def _past(self, history: History | None) -> History | None:
        if history is None or not self.couples_rows:
            return None
        x, mean, var = (part.to(self.dtype) for part in history[:3])
        return history._replace(x=x, mean=mean, var=var)

    def _blocks(self, x: Tensor, group: Tensor, history: History | None) -> tuple[Tensor, Tensor, Tensor]:
        mean, covariance, pad = predict_blocks(
            self.kernel, self.inducing.inputs, self._posterior, self.noise, x.to(self.dtype), group,
            self._past(history),
        )  # fmt: skip
        return mean, covariance, pad.filled
