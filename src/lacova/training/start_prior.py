"""A start of a Gaussian-process prior on few rows: what x explains of the measurements, in closed form.

y_d = μ_d + f_d(x) + ε_d with f_d a Gaussian process of the prior's kernel and ε_d ~ N(0, ψ_d). Length-scales are those
of the largest evidence on a short list, and f has the mean of its posterior. The f_d of all measurements are a few
patterns, which latent dimensions take over: z_l = f_l(x) + N(0, σ_z²) with q(v) at its optimum. A table of a few dozen
rows has a few dozen steps, in which gradients would find none of this.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lacova.data.batches import Batch
from lacova.priors.gp.bounds import patient_parts, project, row_statistics
from lacova.priors.gp.prior import GPPrior

LOG_LENGTHSCALES = (0.5, 1.0, 1.5, 2.0, 2.5)  # in standard deviations of the covariate
# Normal priors of log ℓ, and of the logarithm of s²/ℓ², the variance of the slope of f, in units of that of y. A few
# dozen rows say little of either: short length-scales fit the noise, and small variances deny what is there.
LOG_LENGTHSCALE_MEAN, LOG_LENGTHSCALE_SD = 2.0, 0.3
LOG_SLOPE_MEAN, LOG_SLOPE_SD = -1.6, 0.5
RATIOS = torch.logspace(-2, 4, 25, dtype=torch.float64)  # s²/ψ, variance of f over that of the noise
SHARE_OF_NOISE = 0.5  # of ψ that z takes over as σ_z²
LEAST_SHARE = 0.05  # of what x explains: a smaller pattern has no dimension
_LOG_2PI = math.log(2.0 * math.pi)
IDLE_VARIANCE, IDLE_NOISE = 0.1, 0.9  # kernel variance and σ_z² of dimensions that x does not explain
MOST_VARIANCE = 100.0  # of f in a dimension of variance 1: where f is next to nothing, its prior is wide beside it
OWN_SHARE = 0.3  # of what a dimension has beside f, in terms of the instance


class Regression(NamedTuple):
    """Gaussian-process regression of D measurements, with M inducing values under a kernel of variance 1.

    Attributes:
        coefficients: the posterior mean of v (M×D).
        variance: s² (D,), the prior variance of f and of each entry of v.
        noise: ψ (D,).
        evidence: a lower bound of log p(y_o | x), summed over measurements; exact where S has all rows.
    """

    coefficients: Tensor
    variance: Tensor
    noise: Tensor
    evidence: float


def regress(a: Tensor, prior_var: Tensor, residual: Tensor, mask: Tensor, log_lengthscale: float) -> Regression:
    """Regress residuals of mean 0 (N×D, 0 where the mask is 0) on projections a (M×N), each with its own s² and ψ.

    With G = Σ a_i a_iᵀ, c = Σ a_i y_i and ρ = s²/ψ, the bound of Titsias (2009) is −½ [n log 2πψ + log |I + ρG| +
    (Σ y² − ρ cᵀ(I + ρG)⁻¹c)/ψ + ρ Σ (k_ii − a_iᵀa_i)]. ψ is the best given ρ, and ρ the best on a grid, with the prior
    of the slope; the evidence is without that.

    Args:
        a: projections of the rows, under a kernel of variance 1.
        prior_var: k(x, x) of the rows (N,).
        residual, mask: measurements less their means, and which are observed, as numbers.
        log_lengthscale: log ℓ of the kernel, on which the prior of s² depends.
    """
    gram = torch.einsum("mn,nd,kn->dmk", a, mask, a)
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp_min(0.0)
    cross = (vectors.mT @ (a @ residual).mT[..., None])[..., 0]  # D×M
    count, square = mask.sum(0).clamp_min(1.0), residual.square().sum(0)
    left = ((prior_var - a.square().sum(0)).clamp_min(0.0)[:, None] * mask).sum(0)
    ratio = RATIOS[:, None, None]
    shrunk = ratio / (1.0 + ratio * values)  # ratios×D×M
    noise = ((square - (shrunk * cross.square()).sum(-1)) / count).clamp_min(1e-6)
    minus_twice = count * (noise.log() + 1.0 + _LOG_2PI) + (1.0 + ratio * values).log().sum(-1) + RATIOS[:, None] * left
    log_slope = (RATIOS[:, None] * noise / (square / count)).log() - 2.0 * log_lengthscale
    best = (minus_twice + ((log_slope - LOG_SLOPE_MEAN) / LOG_SLOPE_SD).square()).argmin(0)
    column = torch.arange(residual.shape[1])
    coefficients = (vectors @ (shrunk[best, column] * cross)[..., None])[..., 0].mT
    noise = noise[best, column]
    return Regression(coefficients, RATIOS[best] * noise, noise, float(-0.5 * minus_twice[best, column].sum()))


class Signals(NamedTuple):
    """What x explains, by latent dimensions: y = W f(x) + ..., with r dimensions of z that have variance 1.

    Attributes:
        mean: f of each row (N×r).
        loadings: W (D×r).
        variance: prior variance of each f (r,).
        noise: σ_z² (r,), which takes W_d² σ_z² of the noise of each measurement.
    """

    mean: Tensor
    loadings: Tensor
    variance: Tensor
    noise: Tensor


def signals(regression: Regression, a: Tensor, most: int) -> Signals:
    """Split what x explains into at most so many patterns, by singular values of the coefficients."""
    u, size, v = torch.linalg.svd(regression.coefficients, full_matrices=False)
    explained = (a.mT @ u * size).square().mean(0)  # by each pattern
    kept = (explained >= LEAST_SHARE * explained.sum()).nonzero()[:most, 0]
    kept = kept if len(kept) else torch.zeros(1, dtype=torch.long)
    u, size, v = u[:, kept], size[kept], v[kept].mT  # v: D×r
    own = SHARE_OF_NOISE / len(kept) * (regression.noise[:, None] / v.square().clamp_min(1e-6)).amin(0)
    width = (explained[kept] + own).sqrt()
    variance = (v.square() * regression.variance[:, None]).sum(0) / width.square()
    return Signals(a.mT @ u * size / width, v * width, variance, own / width.square())


@torch.no_grad()
def regress_on_kernel(prior: GPPrior, x: Tensor, residual: Tensor, mask: Tensor) -> tuple[Regression, Tensor]:
    """Set the length-scales that suit best, and return the regression with the projections (M×N) it has."""
    prior.kernel.log_variance.fill_(-math.log(len(prior.kernel.components)))

    def at(log_lengthscale: float) -> tuple[Regression, Tensor]:
        for parameter in prior.kernel.log_lengthscale:
            parameter.fill_(log_lengthscale)
        a, prior_var = project(prior.kernel, prior.inducing.inputs, x), prior.kernel.diagonal(x, prior.kernel.shared)
        return regress(a[0], prior_var[0], residual, mask, log_lengthscale), a[0]

    def score(log_lengthscale: float) -> float:
        preference = -0.5 * ((log_lengthscale - LOG_LENGTHSCALE_MEAN) / LOG_LENGTHSCALE_SD) ** 2
        return at(log_lengthscale)[0].evidence + preference

    return at(max(LOG_LENGTHSCALES, key=score))


@torch.no_grad()
def set_prior(prior: GPPrior, x: Tensor, of_x: Signals, latents: Tensor, batch: Batch) -> None:
    """Give the first dimensions the variances of the signals and all others mostly noise, and solve q(v).

    Args:
        prior: with the length-scales that the regression has.
        x: completed covariates of the rows (N×Q).
        of_x: what x explains.
        latents: values of z (N×L), for which q(v) is the optimum.
        batch: the rows.
    """
    kernel, count = prior.kernel, len(of_x.noise)
    shared, own = list(kernel.shared), list(kernel.own)
    variance, noise = torch.full_like(prior.noise, IDLE_VARIANCE), torch.full_like(prior.noise, IDLE_NOISE)
    variance[:count], noise[:count] = of_x.variance.clamp_max(MOST_VARIANCE), of_x.noise
    kernel.log_variance[shared] = (variance / len(shared)).log()
    if own:
        kernel.log_variance[own] = (OWN_SHARE * noise / len(own)).log()
        noise = (1.0 - OWN_SHARE) * noise
    prior.set_noise(noise)
    a, q_v, latents = project(kernel, prior.inducing.inputs, x), prior.inducing.distribution(), latents.mT
    weight = torch.full((batch.patients,), float(batch.scale), dtype=a.dtype)
    if prior.couples_rows:
        _, of_patients = patient_parts(kernel, a, x, batch.blocks, q_v, prior.noise, latents, None)
        statistics = of_patients(weight)
    else:
        statistics = row_statistics(a, prior.noise, latents, weight[batch.patient])
    prior.natural_step(statistics, 1.0)
