"""The Gaussian-process prior: its KL by the bounds, its posterior after training, prediction and draws."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lacova.covariates.scenarios import Scenarios
from lacova.data.batches import Batch, blocks
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.nn.latents import Chain, Latents
from lacova.priors.base import Density, Encoded, History, NaturalStatistics, PriorTerms
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
from lacova.priors.gp.inducing import InducingPoints, Whitened
from lacova.priors.gp.kernels import AdditiveKernel
from lacova.priors.gp.posterior import (
    LatentPosterior,
    latent_posterior,
    patient_encoder_spread,
    predict_blocks,
    row_encoder_spread,
)
from lacova.priors.gp.uncertain import excess, expected_cross, expected_kernel, inducing_whitener, uncertain_inputs
from lacova.priors.joint_rows import JointRowsPrior

# Smallest σ_z².
_NOISE_FLOOR = 1e-3


class GPPrior(JointRowsPrior):
    """z_l = f_l(x) + N(0, σ_z²), f_l an additive Gaussian process: D̂³ for rows, D̂⁴ where the instance has a component.

    Args:
        kernel: the additive kernel.
        inducing: S and q(v).
        space: layout of X.
        exact: integrate the bounds over x_u in closed form instead of over scenarios.
        noise: σ_z² to start from; it is learnt, above a floor.
    """

    fast = True

    def __init__(
        self, kernel: AdditiveKernel, inducing: InducingPoints, space: CovariateSpace, *, exact: bool = False,
        noise: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel, self.inducing, self.space, self.exact = kernel, inducing, space, exact
        self.couples_rows, self.integrates, self.by_scenario = bool(kernel.own), exact, not exact
        if exact and self.couples_rows:
            # Scenarios complete what a patient's rows share and what enters K^(R); given that, gaps are independent.
            own = {c for r in kernel.own for c in (*(c for c, _ in kernel.scales(r)), *kernel.categorical(r))}
            self.scenario_columns = sorted(own | {c for c, static in enumerate(space.static) if static})
        completed = [c in (self.scenario_columns or ()) for c in range(len(space.names))]
        self.register_buffer("completed", torch.tensor(completed), persistent=False)
        latent_dim, count = inducing.shift.shape
        self.inducing_count = count
        self.width = latent_dim * count
        dtype = inducing.shift.dtype
        self.raw_noise = nn.Parameter(torch.full((latent_dim,), noise - _NOISE_FLOOR, dtype=dtype).log())
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
        return _NOISE_FLOOR + self.raw_noise.exp()

    @torch.no_grad()
    def set_noise(self, noise: Tensor) -> None:
        """Set σ_z² (L,), above its floor."""
        self.raw_noise.copy_((noise - _NOISE_FLOOR).clamp_min(_NOISE_FLOOR).log())

    @property
    def prior_variance(self) -> Tensor:
        """Sum of the variances of all components (L,)."""
        return self.kernel.log_variance.exp().sum(0)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the parameters."""
        return self.raw_noise.dtype

    def kl(self, scenarios: Scenarios, batch: Batch, q: Latents, q_x: FactorisedDistribution) -> PriorTerms:
        q_v = self.inducing.distribution()
        mean, var = q.mean.mT, q.var.mT
        if self.exact:
            bound = self._exact_bound(q_v, scenarios, batch, q_x, mean.to(self.dtype), var.to(self.dtype))
        else:
            x, scale = scenarios.x, batch.scale
            a = project(self.kernel, self.inducing.inputs.to(x.dtype), x)
            v, noise = q_v.to(x.dtype), self.noise.to(x.dtype)
            if self.couples_rows:
                weight = scenarios.weight.to(x.dtype)
                bound = patient_bound(self.kernel, a, x, scenarios.blocks, v, noise, mean, var, weight, scale)
            else:
                weight = scenarios.row_weight.to(x.dtype)
                prior_var = self.kernel.diagonal(x, self.kernel.shared)
                bound = row_bound(a, prior_var, v, noise, mean, var, weight, scale)
        return PriorTerms(bound.value.to(q.mean.dtype), q_v.kl().to(q.mean.dtype), bound.statistics)

    def _exact_bound(
        self, q_v: Whitened, scenarios: Scenarios, batch: Batch, q_x: FactorisedDistribution, mean: Tensor, var: Tensor
    ) -> Bound:
        """Compute the bound in closed form over q(x_u), for q(Z) with `mean` and `var` (L×N̂ each).

        This is the bound at the expected projections E[a_i], plus the excess that Cov[a_i] of rows with gaps adds.
        """
        kernel, inducing, space, noise = self.kernel, self.inducing.inputs, self.space, self.noise
        whitener = inducing_whitener(kernel, inducing)
        if not self.couples_rows:
            inputs = uncertain_inputs(batch.x, batch.x_mask, q_x, space)
            cross = expected_cross(kernel, inducing, inputs, kernel.shared, space)
            a = whitener @ cross
            one = torch.ones(len(batch), dtype=self.dtype, device=a.device)
            prior_var = kernel.diagonal(batch.x, kernel.shared)
            if batch.real is not None:
                one = one * batch.real
            bound = row_bound(a, prior_var, q_v, noise, mean, var, one, batch.scale)
            weight = (batch.scale / noise)[:, None].expand(-1, len(batch))
        else:
            row, pad = scenarios.row, scenarios.blocks
            known = batch.x_mask[row] | self.completed
            inputs = uncertain_inputs(scenarios.x, known, q_x.take(row), space)
            cross = expected_cross(kernel, inducing, inputs, kernel.shared, space)
            a = whitener @ cross
            block = inputs.take(pad.places)
            shared = expected_kernel(kernel, block, block, kernel.shared).to(self.dtype)
            same_visit = torch.eye(shared.shape[-1], dtype=torch.bool, device=shared.device)
            x, probability = scenarios.x.to(self.dtype), scenarios.weight.to(self.dtype)
            prior_var = kernel.diagonal(x[pad.places], kernel.shared)
            shared = torch.where(same_visit, prior_var[..., None], shared)
            bound = patient_bound(
                kernel, a, x, pad, q_v, noise, mean[:, row], var[:, row], probability, batch.scale, shared
            )
            precision = own_whitener(kernel, x[pad.places], pad, noise).square().sum(-2)  # (Σ̂⁻¹)_ii, L×V×n
            precision = precision[:, scenarios.scenario, scenarios.line_in_block]  # L×K
            weight = batch.scale * precision * scenarios.row_weight.to(self.dtype)
        rows_with_gaps = scenarios.open
        if len(rows_with_gaps) == 0:
            return bound
        weight = weight[:, rows_with_gaps].double() * scenarios.open_real
        added, spread = excess(
            kernel, inducing, inputs.take(rows_with_gaps), cross[..., rows_with_gaps], weight, q_v, whitener, space
        )
        statistics = bound.statistics._replace(precision=bound.statistics.precision + spread.to(self.dtype))
        return Bound(bound.value + added.to(self.dtype), statistics)

    def density(self, z: Tensor, x: Tensor, batch: Batch, chain: Chain | None = None) -> Density:
        """Return E log p(z | f) under q(v) and p(f | v); less KL[q(v) ‖ p(v)], it bounds log p(Z | X) from below.

        The bound holds for every Z and X, and its exponential is a product over rows, or over patients where their rows
        are coupled. So importance weights with it in place of log p(z | x) still give a bound on log p(Y_o | X_o).
        """
        q_v, x, target = self.inducing.distribution(), x.flatten(0, 1), z.flatten(0, 1).mT
        v, noise, kl = q_v.to(x.dtype), self.noise.to(x.dtype), q_v.kl().to(z.dtype)
        a = project(self.kernel, self.inducing.inputs.to(x.dtype), x)
        log_2pi = math.log(2.0 * math.pi)
        if not self.couples_rows:
            misfit = row_misfit(a, self.kernel.diagonal(x, self.kernel.shared), v, target)
            minus_twice = misfit / noise[:, None] + noise.log()[:, None] + log_2pi  # L×K·N̂
            value = -0.5 * minus_twice.sum(0).unflatten(0, z.shape[:2])
            return Density(value, kl, lambda weight: row_statistics(a, noise, target, weight.flatten()))
        draws, patients = len(z), batch.patients
        group = torch.arange(draws, device=x.device)[:, None] * patients + batch.patient
        pad = blocks(group.flatten(), draws * patients)
        parts, statistics = patient_parts(self.kernel, a, x, pad, v, noise, target, None)
        value = -0.5 * (parts + pad.filled.sum(1) * log_2pi).sum(0).unflatten(0, (draws, patients))
        first = pad.places[:, 0]
        return Density(batch.in_first_row(value), kl, lambda weight: statistics(weight.flatten()[first]))

    def natural_step(self, statistics: NaturalStatistics, rate: float | Tensor) -> None:
        self.inducing.natural_step(statistics, rate)

    @torch.no_grad()
    def cache_posterior(self, encoded: Iterable[Encoded]) -> None:
        """Sum A, b and G over all training rows, at the final parameters, and keep the posterior of v."""
        kernel, noise = self.kernel, self.noise
        precision, spread = torch.zeros_like(self.posterior_spread), torch.zeros_like(self.posterior_spread)
        shift = torch.zeros_like(self.posterior_mean)
        q_v = self.inducing.distribution()
        for scenarios, batch, mean, var in encoded:
            x, weight = scenarios.x.to(self.dtype), scenarios.weight.to(self.dtype)
            mean, var = (part.mT.to(self.dtype) for part in (mean, var))
            if not self.by_scenario:
                mean, var = mean[:, scenarios.row], var[:, scenarios.row]
            a = project(kernel, self.inducing.inputs, x)
            if self.couples_rows:
                pad = scenarios.blocks
                _, natural = patient_parts(kernel, a, x, pad, q_v, noise, mean, var)
                statistics = natural(batch.scale * weight)
                spread += patient_encoder_spread(kernel, a, x, pad, noise, var, weight)
            else:
                weight = scenarios.row_weight.to(self.dtype)
                statistics = row_statistics(a, noise, mean, batch.scale * weight)
                spread += row_encoder_spread(a, noise, var, weight)
            precision, shift = precision + statistics.precision, shift + statistics.shift
        posterior = latent_posterior(NaturalStatistics(precision, shift), spread)
        self.posterior_mean.copy_(posterior.q.mean)
        self.posterior_factor.copy_(posterior.q.precision_factor)
        self.posterior_spread.copy_(spread)

    def sample_both(
        self, x: Tensor, other: Tensor, group: Tensor, generator: torch.Generator, shared: Tensor | None,
        history: History | None = None, times: int = 1,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        assert shared is not None
        versions = len(shared) // times
        both = x.to(self.dtype), other.to(self.dtype)
        lines, pad = joint_lines(
            self.kernel, self.inducing.inputs, self._posterior, self.noise, both, group, self._past(history)
        )
        f = lines.sample(shared, versions, self.prior_variance, generator)[:, :, :, 0]  # draws×L×P×2n
        here, there = (part[:, :, pad.filled.unflatten(0, (versions, -1))[0]] for part in f.chunk(2, dim=-1))
        eps = torch.randn(here.shape, generator=generator, device=x.device, dtype=self.dtype)
        here, there = (
            (part + self.noise.sqrt()[:, None] * eps).transpose(1, 2).flatten(0, 1).to(x.dtype)
            for part in (here, there)
        )
        # The jitter of the joint covariance must not move z of rows whose x is unchanged.
        return here, torch.where((x == other).all(1, keepdim=True).repeat(times, 1), here, there)

    def draw_shared(self, draws: int, generator: torch.Generator) -> Tensor:
        """Draw v − m (draws×L×M) from the posterior of v."""
        return inducing_shift(self._posterior, draws, generator)

    def sample_components(
        self, x: Tensor, patient: Tensor, shift: Tensor, generator: torch.Generator, history: History | None = None
    ) -> Tensor:
        """Draw every component (draws×N×R×L) at x (draws×N×Q, or 1×N×Q if it is the same in all draws).

        Args:
            x: completed covariates.
            patient: patient of each row (N,).
            shift: draws of v − m, from `draw_shared`.
            generator: source of random numbers.
            history: earlier visits, whose patients are numbered through the versions of x.
        """
        versions, patients = len(x), int(patient[-1]) + 1
        group = torch.arange(versions, device=x.device)[:, None] * patients + patient
        lines, pad = component_lines(
            self.kernel, self.inducing.inputs, self._posterior, self.noise, x.flatten(0, 1).to(self.dtype),
            group.flatten(), self._past(history),
        )  # fmt: skip
        f = lines.sample(shift, versions, self.prior_variance, generator)  # draws×L×P×n×R
        f = f[:, :, pad.filled.unflatten(0, (versions, -1))[0]]  # draws×L×N×R
        return f.permute(0, 2, 3, 1).to(x.dtype)

    @property
    def _posterior(self) -> LatentPosterior:
        return LatentPosterior(Whitened(self.posterior_mean, self.posterior_factor), self.posterior_spread)

    def _past(self, history: History | None) -> History | None:
        """Return the history in the precision of the prior; None if rows are not coupled."""
        if history is None or not self.couples_rows:
            return None
        x, mean, var = (part.to(self.dtype) for part in history[:3])
        return history._replace(x=x, mean=mean, var=var)

    def _blocks(self, x: Tensor, group: Tensor, history: History | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean (L×V×n), covariance (L×V×n×n) of z by patient, or by row, and which places hold a row (V×n)."""
        group = group if self.couples_rows else torch.arange(len(x), device=x.device)
        mean, covariance, pad = predict_blocks(
            self.kernel, self.inducing.inputs, self._posterior, self.noise, x.to(self.dtype), group,
            self._past(history),
        )  # fmt: skip
        return mean, covariance, pad.filled
