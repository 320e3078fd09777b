"""A start of patients' random effects near the maximum of their likelihood, for a few measurements.

y_pid = μ_d + f_d(x_pi) + random effects + ε, with f_d(x) = Σ_m a_m(x) v_dm and v ~ N(0, s²): a Gaussian process of the
kernel of z. Given the variances, what is linear is solved: v, and the coefficients of the fixed effects. Given f, the
variances, and the factors that measurements share, climb the likelihood, in which the random effects are integrated
out. An evaluation of it takes a fraction of a training step, and a few dozen of them find what gradients of the bound
would need a thousand steps for: a study of one or two measurements has nothing else to learn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lacova.data.batches import Batch
from lacova.likelihoods.fixed_effects import FixedPart
from lacova.likelihoods.random_effects import DriftingIntercepts, RandomIntercepts
from lacova.priors.gp.bounds import project
from lacova.priors.gp.prior import GPPrior
from lacova.training.start_prior import LOG_SLOPE_MEAN, Regression

MAX_MEASUREMENTS = 4
MAX_ROWS = 3000
ROUNDS = 4  # of solving what is linear and of climbing the likelihood
EVALUATIONS = 15  # of the likelihood in a round
DRAWS = 4  # of v, in the mean over which the likelihood is climbed
LEAST_NOISE = 0.01  # σ² as a share of what it starts from
LOG_VARIANCES, LOG_RATES = (math.log(1e-4), math.log(4.0)), (-3.0, 3.0)  # where variances and rates of drift are kept
# Length-scales to choose from, in standard deviations of the covariate, with normal priors of log ℓ and of log s²/ℓ²;
# they are wide, as patients' visits say much about the course over time.
LOG_LENGTHSCALES = (-0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
LOG_LENGTHSCALE_MEAN, LOG_LENGTHSCALE_SD, LOG_SLOPE_SD = 1.0, 0.7, 1.0
SCALES = torch.logspace(-2, 4, 25, dtype=torch.float64)  # s², in units of the scaled measurements

Floats = npt.NDArray[np.float64]


class Smooth(NamedTuple):
    """f = Aᵀv on some rows, with v ~ N(m, S).

    Attributes:
        a: the projections (M×N) of the rows, under a kernel of variance 1.
        mean: m (M×D).
        root: a root of S (D·M×D·M).
        variance: s².
        evidence: log p(y | s²), less that without f.
    """

    a: Tensor
    mean: Tensor
    root: Tensor
    variance: float
    evidence: float

    @property
    def values(self) -> Tensor:
        """E f (N×D)."""
        return self.a.mT @ self.mean

    def regression(self, noise: Tensor) -> Regression:
        """Return f as a regression of measurements that have the noise ψ (D,) of their own."""
        variance = torch.full_like(self.mean[0], self.variance)
        return Regression(self.mean, variance, noise.to(variance), self.evidence)

    def draw(self, draws: int, generator: torch.Generator) -> Tensor:
        """Draw f (draws×N×D), in pairs on both sides of its mean."""
        eps = torch.randn(draws // 2, len(self.root), generator=generator, dtype=self.a.dtype)
        v = (torch.cat([eps, -eps]) @ self.root.mT).unflatten(1, (-1, len(self.a)))  # draws×D×M
        drawn: Tensor = ((self.mean.mT + v) @ self.a).mT
        return drawn


class EffectsStart:
    """The likelihood of random effects on the rows of some patients, and what is moved to raise it; in float64.

    Args:
        effects: the random effects.
        batch: the rows, with the Gaussian measurements alone; sums over them count `scale` times.
        x: their completed covariates.
        centre: μ (D,).
        noise: σ² to start from (D,).
    """

    def __init__(self, effects: RandomIntercepts, batch: Batch, x: Tensor, centre: Tensor, noise: Tensor) -> None:
        self.effects, self.batch, self.x, self.centre = effects, batch, x, centre
        self.least = LEAST_NOISE * noise
        self.log_noise = (noise - self.least).log().requires_grad_(True)
        fixed = effects.fixed_effects
        self.moved = [self.log_noise, *(p for p in effects.parameters() if fixed is None or p is not fixed.mean)]

    @property
    def noise(self) -> Tensor:
        """σ² (D,)."""
        return self.least + self.log_noise.exp()

    def run(self, prior: GPPrior, generator: torch.Generator) -> Smooth:
        """Start the random effects, and return f; the kernel gets the length-scales that suit best."""
        f = torch.zeros_like(self.batch.y)
        for number in range(ROUNDS):
            self.solve_fixed(f)
            smooth = self.best_smooth(prior, LOG_LENGTHSCALES if number else (LOG_LENGTHSCALE_MEAN,))
            f = smooth.draw(DRAWS, generator).to(f.dtype)
            self.climb(f)
        return smooth

    def log_likelihood(self, f: Tensor) -> Tensor:
        """Return log p(y | f), over q(w) of the fixed effects, less a constant; the mean over versions of f (…×N×D)."""
        location, noise, batch, fixed = self.centre + f, self.noise, self.batch, self._fixed_part()
        alone = -0.5 * (((batch.y - location).square() / noise + noise.log()) * batch.y_mask).sum((-2, -1))
        return batch.scale * (alone + self.effects.gain(location, batch, noise, fixed).sum(-1)).mean()

    def climb(self, f: Tensor) -> None:
        """Move variances and factors up the likelihood given f; leave them where that fails."""
        from scipy.optimize import minimize

        before = np.concatenate([p.detach().double().flatten().numpy() for p in self.moved])
        if not np.isfinite(before).all():
            return

        def loss(values: Floats) -> tuple[float, Floats]:
            self._set(values)
            try:
                value = self.effects.kl() - self.log_likelihood(f)
                gradient = torch.autograd.grad(value, self.moved, materialize_grads=True)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # there, but not in torch's stubs
                return np.inf, np.zeros_like(values)
            return float(value.detach()), np.concatenate([g.double().flatten().numpy() for g in gradient])

        result = minimize(
            loss, before, jac=True, method="L-BFGS-B", bounds=self._bounds(), options={"maxfun": EVALUATIONS}
        )
        self._set(result.x if np.isfinite(result.fun) else before)

    @torch.no_grad()
    def _set(self, values: Floats) -> None:
        parts = torch.from_numpy(values).split([p.numel() for p in self.moved])
        for p, part in zip(self.moved, parts, strict=True):
            p.copy_(part.view_as(p))

    def _bounds(self) -> list[tuple[float | None, float | None]]:
        """Return where each number is kept."""
        limits: dict[int, tuple[float | None, float | None]] = {id(self.effects.raw): LOG_VARIANCES}
        if isinstance(self.effects, DriftingIntercepts):
            limits |= {id(self.effects.raw_drift): LOG_VARIANCES, id(self.effects.raw_rate): LOG_RATES}
        return [limits.get(id(p), (None, None)) for p in self.moved for _ in range(p.numel())]

    def solve_fixed(self, f: Tensor) -> None:
        """Set q(w) of the fixed effects to its optimum given f (N×D, or versions of it)."""
        fixed, part = self.effects.fixed_effects, self._fixed_part()
        if fixed is None or part is None or part.second is None:
            return
        (gradient,) = torch.autograd.grad(self.log_likelihood(f) - self.effects.kl(), [fixed.mean])
        with torch.no_grad():
            factorisation = self.effects.factorise(self.batch, self.noise)
            information = self.effects.information(self.batch, part.second, factorisation)
            fixed.natural_step(information, gradient, 1.0)

    def best_smooth(self, prior: GPPrior, log_lengthscales: Sequence[float]) -> Smooth:
        """Solve f with the length-scale that suits best, which the kernel gets."""
        kernel, solved = prior.kernel, {}
        with torch.no_grad():
            kernel.log_variance.fill_(-math.log(len(kernel.shared)))
            for one in log_lengthscales:
                _set_lengthscale(prior, one)
                a = project(kernel, prior.inducing.inputs, self.x.to(prior.dtype))[0]
                solved[one] = self.smooth(a, one)
            best = max(solved, key=lambda one: solved[one].evidence + _log_prior(one))
            _set_lengthscale(prior, best)
        return solved[best]

    @torch.no_grad()
    def smooth(self, a: Tensor, log_lengthscale: float) -> Smooth:
        """Solve f by generalised least squares, with the s² of the largest evidence.

        With Ã the patterns of all v (D·M×N·D), G = ÃΣ⁻¹Ãᵀ and c = ÃΣ⁻¹r: log p(y | s²) = ½ [s² cᵀ(I + s²G)⁻¹c −
        log |I + s²G|] + const, and v ~ N((s⁻²I + G)⁻¹c, (s⁻²I + G)⁻¹).
        """
        count, scale, part = self.batch.y.shape[1], self.batch.scale, self._fixed_part()
        residual = self.batch.y - self.centre - (0.0 if part is None else part.mean)
        cross = scale * (a @ self._weigh(residual).to(a.dtype)).mT.flatten()
        patterns = torch.einsum("mn,de->dmne", a.to(residual.dtype), torch.eye(count)).flatten(0, 1)
        gram = scale * torch.einsum("mn,qne->qem", a, self._weigh(patterns).to(a.dtype)).flatten(1)
        values, vectors = torch.linalg.eigh(0.5 * (gram + gram.mT))
        values, along = values.clamp_min(0.0), vectors.mT @ cross
        shrunk = SCALES[:, None] / (1.0 + SCALES[:, None] * values)
        evidence = 0.5 * ((shrunk * along.square()).sum(1) - (1.0 + SCALES[:, None] * values).log().sum(1))
        slope = (SCALES.log() - 2.0 * log_lengthscale - LOG_SLOPE_MEAN) / LOG_SLOPE_SD
        best = int((evidence - 0.5 * count * slope.square()).argmax())
        mean = (vectors @ (shrunk[best] * along)).unflatten(0, (count, -1)).mT
        return Smooth(a, mean, vectors * shrunk[best].sqrt(), float(SCALES[best]), float(evidence[best]))

    @torch.no_grad()
    def left(self, f: Tensor) -> Tensor:
        """Return what f and the random effects leave (N×D), with the variance of the noise; 0 where not observed."""
        part, f = self._fixed_part(), f.to(self.batch.y)
        left = self.noise * self._weigh(self.batch.y - self.centre - f - (0.0 if part is None else part.mean))
        count = self.batch.y_mask.sum(0).clamp_min(1)
        return left * (self.noise / (left.square().sum(0) / count).clamp_min(1e-12)).sqrt()

    def _weigh(self, residual: Tensor) -> Tensor:
        """Return Σ⁻¹r (…×N×D) of residuals, 0 where not observed. Σ is their covariance: random effects and noise."""
        effect = self.effects.expect(self.batch.y - residual, self.batch, self.noise)
        return (residual - effect) * self.batch.y_mask / self.noise

    def _fixed_part(self) -> FixedPart | None:
        fixed = self.effects.fixed_effects
        return None if fixed is None else fixed.at(self.x, self.batch)


def _set_lengthscale(prior: GPPrior, log_lengthscale: float) -> None:
    for parameter in prior.kernel.log_lengthscale:
        parameter.fill_(log_lengthscale)


def _log_prior(log_lengthscale: float) -> float:
    return -0.5 * ((log_lengthscale - LOG_LENGTHSCALE_MEAN) / LOG_LENGTHSCALE_SD) ** 2
