"""A start near the end: a linear factor model with gaps gives the decoder, the noise and the encoder first values.

y_d = μ_d + B_dᵀx + W_dᵀz + ε_d with z ~ N(0, I) and ε_d ~ N(0, ψ_d), fitted to the observed entries. B is there for a
decoder that sees x. Where patients have random effects, y is less its patient's average, so that z explains how visits
differ. EM takes a few dozen passes over a small table; gradient steps take many times as long to find the same. In a
GP prior of few rows, what x explains starts in z: `start_prior.py`. Where patients have a few measurements, so it does,
and their random effects start at the maximum of their likelihood: `start_effects.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from lacova.covariates.linear_model import identifiable_factors
from lacova.covariates.visit_regression import VisitRegression
from lacova.data.batches import Batch, Batches
from lacova.data.table import Table
from lacova.inference.vae import ConditionalVAE, Lines
from lacova.likelihoods.random_effects import DriftingIntercepts, RandomIntercepts
from lacova.nn.adam import Adam
from lacova.nn.networks import Decoder
from lacova.priors.gp.prior import GPPrior
from lacova.training.options import FEW_ROWS
from lacova.training.start_effects import MAX_MEASUREMENTS, MAX_ROWS, EffectsStart
from lacova.training.start_factors import LEAST_NOISE, RIDGE, Factors, fit_factors
from lacova.training.start_prior import Signals, regress_on_kernel, set_prior, signals

MAX_ENTRIES = 500_000  # of the measurements that enter
LEAST_OWN = 0.2  # τ_d² as a share of the variance between patients, the rest of which factors explain
ENCODER_STEPS, ENCODER_ROWS, ENCODER_RATE = 300, 200, 3e-3
ENCODER_STEPS_OF_FEW = 100  # of few rows


def start_posterior(vae: ConditionalVAE, table: Table, time: int | None, seed: int) -> None:
    """Start q(x_u | ·) of numbers that vary between visits from regressions on the patient's visits.

    It leaves a model alone whose q starts elsewhere or does not see y, or whose decoder has no linear path.

    Args:
        vae: the model on the host, as built.
        table: the training rows, or a sample of them.
        time: index of the time column in X, if there is one.
        seed: of the random numbers.
    """
    posterior, linear = vae.covariate_posterior, isinstance(vae.decoder, Decoder) and vae.decoder.linear is not None
    if table.patient is None or not (posterior.sees_y and posterior.continuous_start == "conditional" and linear):
        return
    regression = VisitRegression(vae.space, vae.measurements, time)
    regression.learn(table, vae.covariate_prior, seed)
    if regression.examples is not None and regression.examples.columns:
        posterior.start_from_regression(regression)


def start_from_factors(vae: ConditionalVAE, table: Table, seed: int) -> None:
    """Give a model on the host the values of a linear factor model of its Gaussian measurements.

    It leaves a model alone whose decoder has no linear path. One or two measurements have no factors, only B.

    Args:
        vae: the model, as built.
        table: the training rows, or a sample of them.
        seed: of the random numbers.
    """
    decoder, columns = vae.decoder, vae.measurements.columns("gaussian")
    count = min(identifiable_factors(len(columns)), vae.latent_dim)
    regress = vae.decoder_sees_x and bool(vae.space.names)
    kernel, effects = _regresses_on_kernel(vae, table), _starts_effects(vae, columns)
    if not isinstance(decoder, Decoder) or decoder.linear is None or not columns:
        return
    if not (count or regress or kernel or effects):
        return
    generator = torch.Generator().manual_seed(seed)
    batches = Batches(vae.condition(table))
    rows_per_unit = len(table) / batches.units
    most = max(1, int(min(MAX_ENTRIES / len(columns), MAX_ROWS if effects else math.inf) / rows_per_unit))
    batch = batches.batch(torch.randperm(batches.units, generator=generator)[:most])
    y, mask = batch.y[:, columns].double(), batch.y_mask[:, columns].double()
    centre = (y * mask).sum(0) / mask.sum(0).clamp_min(1.0)
    residual = (y - centre) * mask
    coefficients = None
    if regress:
        coefficients, residual = _regressed(vae, batch, residual, mask)
    if vae.random_effects is not None:
        _start_patient_factors(vae.random_effects, residual, mask, batch, generator)
    if kernel or effects:
        start = _start_from_effects if effects else _start_from_kernel
        start(vae, decoder.linear, batch, columns, centre, residual, mask, generator)
        return
    if vae.random_effects is not None:
        residual, mask = _within_patients(residual, mask, batch)
    factors = fit_factors(residual, mask, count, generator)
    _set_decoder(vae, decoder.linear, columns, centre, factors, coefficients)
    if count and not hasattr(vae.encoder, "latents"):  # an encoder that couples rows learns by itself
        _teach_encoder(vae, batch, *factors.posterior(residual, mask), generator)


def _regresses_on_kernel(vae: ConditionalVAE, table: Table) -> bool:
    """Return whether a GP prior of independent rows starts from a regression on its kernel: on few rows."""
    prior = vae.prior
    return isinstance(prior, GPPrior) and not vae.couples_rows and table.patient is None and len(table) < FEW_ROWS


def _starts_effects(vae: ConditionalVAE, columns: list[int]) -> bool:
    """Return whether random effects start at their likelihood's maximum, and z at what the covariates explain."""
    prior = vae.prior
    few = vae.random_effects is not None and len(columns) <= MAX_MEASUREMENTS
    return few and isinstance(prior, GPPrior) and len(prior.inducing.locations) > 0


def _start_from_kernel(
    vae: ConditionalVAE, linear: torch.nn.Linear, batch: Batch, columns: list[int], centre: Tensor, residual: Tensor,
    mask: Tensor, generator: torch.Generator,
) -> None:  # fmt: skip
    """Start from y = μ + f(x) + ε, with f from a regression on the kernel."""
    prior = vae.prior
    assert isinstance(prior, GPPrior)
    x = _completed(vae, batch, generator)
    regression, a = regress_on_kernel(prior, x.to(prior.dtype), residual, mask)
    of_x = signals(regression, a, min(vae.latent_dim, len(columns)))
    left = (residual - of_x.mean @ of_x.loadings.mT) * mask
    _start_from_signals(vae, linear, batch, columns, centre, x, of_x, left, mask, generator)


def _start_from_effects(
    vae: ConditionalVAE, linear: torch.nn.Linear, batch: Batch, columns: list[int], centre: Tensor, residual: Tensor,
    mask: Tensor, generator: torch.Generator,
) -> None:  # fmt: skip
    """Start from y = μ + f(x) + random effects + ε, whose variances have the greatest likelihood."""
    prior, x = vae.prior, _completed(vae, batch, generator)
    assert isinstance(prior, GPPrior)
    assert vae.random_effects is not None
    zeros = batch.y.new_zeros(len(batch), vae.measurements.output_width)
    _, own, noise = vae.likelihood.gaussian_part(zeros, batch)
    # In single precision, what patients' effects leave of a measurement would be lost where noise is small.
    effects, dtype = vae.random_effects.double(), noise.dtype
    wide = replace(own, y=own.y.double(), x=own.x.double())
    rows = EffectsStart(effects, wide, x.double(), centre, noise.detach().double())
    smooth = rows.run(prior, generator)
    left = rows.left(smooth.values)
    effects.to(dtype)
    unique = fit_factors(left, mask, identifiable_factors(len(columns)), generator).noise
    of_x = signals(smooth.regression(unique), smooth.a, min(vae.latent_dim, len(columns)))
    _start_from_signals(vae, linear, batch, columns, centre, x, of_x, left, mask, generator)


@torch.no_grad()
def _completed(vae: ConditionalVAE, batch: Batch, generator: torch.Generator) -> Tensor:
    """Return the covariates (N×Q), gaps drawn given x_o, and given the measurements where q starts from a regression.

    Drawn without them, they would weaken what the covariates explain.
    """
    posterior = vae.covariate_posterior
    parts = (posterior.visit_regression, posterior.linear_posterior, posterior.static_regression)
    if any(part is not None for part in parts):
        return vae.draw_covariates(batch, 1, generator)[0]
    return batch.x if batch.x_mask.all() else vae.covariate_prior.draw(batch, 1, generator)[0]


def _start_from_signals(
    vae: ConditionalVAE, linear: torch.nn.Linear, batch: Batch, columns: list[int], centre: Tensor, x: Tensor,
    of_x: Signals, left: Tensor, mask: Tensor, generator: torch.Generator,
) -> None:  # fmt: skip
    """Start from y = μ + W f(x) + W' z' + ε (+ random effects), with z' the factors of what f leaves of single rows.

    z = f(x) + N(0, σ_z²) has the first dimensions, and z' ~ N(0, 1) those after them.
    """
    prior = vae.prior
    assert isinstance(prior, GPPrior)
    count = min(identifiable_factors(len(columns)), vae.latent_dim - len(of_x.noise))
    factors = fit_factors(left, mask, count, generator)
    own = of_x.loadings * of_x.noise.sqrt()
    noise = torch.maximum(factors.noise - own.square().sum(1), LEAST_NOISE * factors.noise)
    mean, covariance = Factors(torch.cat([own, factors.loadings], dim=1), noise).posterior(left, mask)
    scale = torch.cat([of_x.noise.sqrt(), torch.ones(count)])
    mean = pad(of_x.mean, (0, count)) + scale * mean
    set_prior(prior, x.to(prior.dtype), of_x, pad(mean, (0, vae.latent_dim - mean.shape[1])), batch)
    with torch.no_grad():
        linear.weight[[vae.measurements.outputs[d][0] for d in columns]] = 0.0  # of dimensions that have no use yet
    loadings = torch.cat([of_x.loadings, factors.loadings], dim=1)
    _set_decoder(vae, linear, columns, centre, Factors(loadings, noise), None, split=False)
    if not hasattr(vae.encoder, "latents"):
        _teach_encoder(vae, batch, mean, scale[:, None] * covariance * scale, generator, ENCODER_STEPS_OF_FEW)


def _regressed(vae: ConditionalVAE, batch: Batch, residual: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the coefficients of a ridge regression on expected covariates (D×width), and what it leaves."""
    features = _expected_covariates(vae, batch)
    outer = (features[:, :, None] * features[:, None, :]).flatten(1)
    gram = (mask.mT @ outer).unflatten(1, (features.shape[1], features.shape[1]))
    ridge = RIDGE * torch.eye(features.shape[1], dtype=features.dtype)
    coefficients = torch.linalg.solve(gram + ridge, residual.mT @ features)
    return coefficients, (residual - features @ coefficients.mT) * mask


def _expected_covariates(vae: ConditionalVAE, batch: Batch) -> Tensor:
    """Return value features of x, in expectation under the conditional prior where x is missing (N×width)."""
    space, prior = vae.space, batch.conditional_prior
    assert prior is not None
    at, gap = space.on(batch.x.device), ~batch.x_mask
    expected = torch.cat(
        [prior.distribution.mean[:, at.continuous], space.of_levels(prior.distribution.log_prob).exp()], dim=1
    )
    return torch.where(gap[:, at.owner], expected, space.values(batch.x)).double()


@torch.no_grad()
def _start_patient_factors(
    effects: RandomIntercepts, residual: Tensor, mask: Tensor, batch: Batch, generator: torch.Generator
) -> None:
    """Start the factors that measurements share from a factor model of patients' averages, and τ² from the rest."""
    if effects.loadings is None:
        return
    average, count = _patient_averages(residual, mask, batch)
    known = (count > 0.0).to(average.dtype)
    factors = min(identifiable_factors(average.shape[1]), effects.loadings.shape[-1])
    if not factors:
        return
    loadings = fit_factors(average, known, factors, generator).loadings.to(effects.loadings)
    effects.loadings[:, 0, :factors] += loadings
    own = effects.raw.exp() - loadings.square().sum(1)
    effects.raw.copy_(torch.maximum(own, LEAST_OWN * effects.raw.exp()).log())


def _patient_averages(residual: Tensor, mask: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return averages of observed residuals (P×D), 0 where there is none, and how many each has."""
    zeros = residual.new_zeros(batch.patients, residual.shape[1])
    count = zeros.index_add(0, batch.patient, mask)
    return zeros.index_add(0, batch.patient, residual) / count.clamp_min(1.0), count


def _within_patients(residual: Tensor, mask: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return deviations from patients' averages, with the variance of single visits; alone, a value says nothing."""
    average, count = _patient_averages(residual, mask, batch)
    widened = (count / (count - 1.0).clamp_min(1.0)).sqrt()
    mask = mask * (count > 1.0)[batch.patient]
    return (residual - average[batch.patient]) * widened[batch.patient] * mask, mask


@torch.no_grad()
def _set_decoder(
    vae: ConditionalVAE, linear: torch.nn.Linear, columns: list[int], centre: Tensor, factors: Factors,
    coefficients: Tensor | None, split: bool = True,
) -> None:  # fmt: skip
    """Set the linear path and the noise, half of which is drift where that is to be `split`."""
    outputs, count = [vae.measurements.outputs[d][0] for d in columns], factors.loadings.shape[1]
    linear.weight[outputs, :count] = factors.loadings.to(linear.weight)
    if coefficients is not None:
        linear.weight[outputs, vae.latent_dim :] = coefficients.to(linear.weight)
    linear.bias[outputs] = centre.to(linear.bias)
    noise, effects = factors.noise.to(linear.weight), vae.random_effects
    if split and isinstance(effects, DriftingIntercepts):
        noise = noise / 2.0
        effects.start_drift(noise)
    vae.likelihood.set_noise_variance(noise)


def _teach_encoder(
    vae: ConditionalVAE, batch: Batch, mean: Tensor, covariance: Tensor, generator: torch.Generator,
    steps: int = ENCODER_STEPS,
) -> None:  # fmt: skip
    """Move q(z) towards the factors' posterior, by the KL divergence from q to it; other dimensions to N(0, 1)."""
    inputs: list[tuple[Tensor, ...]] = []
    hook = vae.encoder.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments))
    number = torch.arange(len(batch))
    with torch.no_grad():
        x = _completed(vae, batch, generator)
        vae.latents(batch, lines=Lines(x, number) if vae.joint else None)
    hook.remove()
    arguments = [tensor.detach() for tensor in inputs[0][:3]]  # of all rows, in their order
    target_mean, target_var = torch.zeros(len(batch), vae.latent_dim), torch.ones(len(batch), vae.latent_dim)
    count = mean.shape[1]
    target_mean[:, :count], target_var[:, :count] = mean, covariance.diagonal(dim1=1, dim2=2)
    optimiser = Adam(vae.encoder.parameters(), lr=ENCODER_RATE, weight_decay=0.0, fused=True)
    for _ in range(steps):
        rows = torch.randint(len(batch), (min(ENCODER_ROWS, len(batch)),), generator=generator)
        q_mean, q_var = vae.encoder(*(tensor[rows] for tensor in arguments))
        misfit = ((q_mean - target_mean[rows]).square() + q_var) / target_var[rows] - q_var.log()
        optimiser.zero_grad()
        misfit.sum(1).mean().backward()
        optimiser.step()
    optimiser.zero_grad()
