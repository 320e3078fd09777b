"""From settings to modules: the VAE of a model, started from the training rows, or blank to load weights into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from lacova.covariates.dependence import PosteriorDependence
from lacova.covariates.linear_model import most_factors
from lacova.covariates.linear_posterior import LinearPosterior
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.prior import CovariatePrior, FactorisedPrior, JointPrior
from lacova.covariates.single_imputation import FILLS
from lacova.covariates.static_regression import StaticRegression
from lacova.covariates.visit_regression import VisitRegression
from lacova.data.batches import Batches, variance_parts
from lacova.data.schema import Schema
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder
from lacova.inference.vae import ConditionalVAE
from lacova.likelihoods.fixed_effects import FixedEffects
from lacova.likelihoods.likelihood import Likelihood
from lacova.likelihoods.missingness import Missingness
from lacova.likelihoods.random_effects import MIN_VARIANCE, DriftingIntercepts, RandomIntercepts
from lacova.nn.networks import Networks
from lacova.priors.base import LatentPrior
from lacova.priors.gp.inducing import spread_rows


class Blueprint(Protocol):
    """What the builder needs of a model: its settings, and what models decide for themselves."""

    schema: Schema
    latent_dim: int
    covariates: Any
    covariate_prior: dict[str, object]
    noise_floor: float
    noise: str
    decoder_sees_x: bool

    @property
    def _joint(self) -> bool: ...
    @property
    def _has_random_effects(self) -> bool: ...
    @property
    def _effects_drift(self) -> bool: ...
    @property
    def _patient_slopes(self) -> bool: ...
    def _factors_of(self, measurements: int) -> int: ...
    def _fixed_effects_on(self, encoder: TableEncoder) -> list[str]: ...
    def _latent_prior(self, encoder: TableEncoder, inputs: Callable[[int], Tensor]) -> LatentPrior: ...
    def _networks(self, encoder: TableEncoder) -> Networks: ...
    def _missingness(self, encoder: TableEncoder, table: Table | None) -> Missingness | None: ...


def build(model: Blueprint, encoder: TableEncoder, table: Table, seed: int) -> ConditionalVAE:
    """Build the VAE of a model, started from its training rows or a sample of them."""
    space = encoder.space
    marginal = FactorisedPrior.learn(space, table)
    marginal.override(encoder, model.covariate_prior)
    kind = _covariate_prior(model)
    prior = marginal if kind is FactorisedPrior else kind.from_table(space, table, _time(model, encoder), seed)
    latent = model._latent_prior(encoder, partial(_inducing_inputs, encoder, table, marginal, seed))
    likelihood = Likelihood.learn(encoder.measurements, table, model.noise_floor, by_row=model.noise == "row")
    if not _uses_random_effects(model, encoder):
        return _join(model, encoder, marginal, prior, latent, likelihood, None, model._missingness(encoder, table))
    gaussian = encoder.measurements.columns("gaussian")
    between, within = variance_parts(table.y, table.y_mask, table.patient)
    coefficient_sd = (between[gaussian].clamp_min(MIN_VARIANCE) / len(table.labels)).sqrt()  # as patients allow
    effects = _random_effects(model, encoder, between[gaussian], within[gaussian], coefficient_sd)
    if effects.fixed_effects is not None:
        effects.fixed_effects.learn(table)
    likelihood.set_noise_variance((between + within)[gaussian] - effects.var.detach())
    vae = _join(model, encoder, marginal, prior, latent, likelihood, effects)
    regression = vae.covariate_posterior.static_regression
    if regression is not None:
        # Its likelihood is that of the observed rows; a stated prior is multiplied with it afterwards.
        observed = FactorisedPrior.learn(space, table) if prior is marginal else prior
        regression.learn(table, observed, seed)
    return vae


def build_blank(model: Blueprint, encoder: TableEncoder, sizes: Mapping[str, Any]) -> ConditionalVAE:
    """Build the VAE of a model with arbitrary weights; `sizes` are those that the training rows decided."""
    space = encoder.space
    marginal = FactorisedPrior.blank(space)
    kind = _covariate_prior(model)
    prior = marginal if kind is FactorisedPrior else kind.empty(space, _time(model, encoder), sizes["covariate prior"])
    latent = model._latent_prior(encoder, lambda _: torch.zeros(sizes["inducing"], len(space.names)))
    ones, effects = torch.ones(len(encoder.measurements.columns("gaussian"))), None
    if _uses_random_effects(model, encoder):
        effects = _random_effects(model, encoder, ones, ones, ones)
    likelihood = Likelihood(encoder.measurements, model.noise_floor, by_row=model.noise == "row")
    vae = _join(model, encoder, marginal, prior, latent, likelihood, effects, model._missingness(encoder, None))
    if sizes["regressed visits"]:
        regression = VisitRegression(space, encoder.measurements, _time(model, encoder))
        vae.covariate_posterior.visit_regression = regression
    factors, gaussian = sizes["linear factors"], encoder.measurements.columns("gaussian")
    if isinstance(prior, LongitudinalPrior):
        if factors is None:  # in older files, the numbers of a row are independent
            prior.dependence = vae.covariate_posterior.dependence = None
        elif prior.dependence is not None:
            vae.covariate_posterior.dependence = PosteriorDependence(prior.dependence, len(gaussian), factors)
    elif factors is not None:
        vae.covariate_posterior.linear_posterior = LinearPosterior(space, gaussian, factors)
    return vae


def infers_covariates(covariates: Any) -> bool:
    """Return whether q(x_u | y_o, x_o) uses the measurements: unless X is filled once, or q is the paper's."""
    return covariates != "paper" and not (isinstance(covariates, str) and covariates in FILLS)


def _covariate_prior(model: Blueprint) -> Any:
    """Return the class of p(x), with its configuration."""
    covariates = model.covariates
    if not isinstance(covariates, str):
        return _Configured(covariates) if isinstance(covariates, partial) else covariates
    if covariates != "joint":
        return FactorisedPrior
    if model.schema.instance is None:
        return JointPrior
    return _Configured(partial(LongitudinalPrior, paths=model._joint))


class _Configured:
    """A class of covariate priors with its configuration."""

    def __init__(self, configured: partial[Any]) -> None:
        self.kind: Any = configured.func
        self.configuration = configured.keywords

    def from_table(self, *arguments: Any) -> CovariatePrior:
        prior: CovariatePrior = self.kind.from_table(*arguments, **self.configuration)
        return prior

    def empty(self, *arguments: Any) -> CovariatePrior:
        prior: CovariatePrior = self.kind.empty(*arguments, **self.configuration)
        return prior


def _join(
    model: Blueprint, encoder: TableEncoder, marginal: FactorisedPrior, prior: CovariatePrior, latent: LatentPrior,
    likelihood: Likelihood, random_effects: RandomIntercepts | None = None, missingness: Missingness | None = None,
) -> ConditionalVAE:  # fmt: skip
    space, regression = encoder.space, None
    if random_effects is not None and infers_covariates(model.covariates) and any(space.static):
        # Random effects explain how patients differ, and leave the bound no gradient for q of static covariates.
        regression = StaticRegression(space, encoder.measurements, _time(model, encoder))
    posterior = AmortisedPosterior(
        space, 0 if model.covariates == "paper" else encoder.measurements, marginal, prior.posterior_start,
        static_regression=regression,
    )  # fmt: skip
    if isinstance(prior, LongitudinalPrior) and prior.dependence is not None:
        count = len(encoder.measurements.columns("gaussian"))
        posterior.dependence = PosteriorDependence(prior.dependence, count, most_factors(count))
    return ConditionalVAE(
        space, encoder.measurements, model.latent_dim, model._networks(encoder), decoder_sees_x=model.decoder_sees_x,
        prior=latent, covariate_prior=prior, covariate_posterior=posterior, likelihood=likelihood,
        random_effects=random_effects, missingness=missingness, joint=model._joint,
    )  # fmt: skip


def _random_effects(
    model: Blueprint, encoder: TableEncoder, between: Tensor, within: Tensor, coefficient_sd: Tensor
) -> RandomIntercepts:
    """Return random effects with the variance between patients; drift starts with half of that within them."""
    time, names, factors = _time(model, encoder), model._fixed_effects_on(encoder), model._factors_of(len(between))
    if time is None or not model._effects_drift:
        fixed = FixedEffects(encoder.space, names, coefficient_sd, coupled=factors > 0) if names else None
        return RandomIntercepts(between, fixed, factors)
    slopes = model._patient_slopes
    changing = time if slopes else None
    fixed = FixedEffects(encoder.space, names, coefficient_sd, changing, factors > 0) if names else None
    return DriftingIntercepts(between, within / 2.0, time, fixed, factors, slopes)


def _uses_random_effects(model: Blueprint, encoder: TableEncoder) -> bool:
    """Return whether patients have random effects: on Gaussian columns, if there are any."""
    return model._has_random_effects and bool(encoder.measurements.columns("gaussian"))


def _time(model: Blueprint, encoder: TableEncoder) -> int | None:
    return None if model.schema.time is None else encoder.space.names.index(model.schema.time)


def _inducing_inputs(encoder: TableEncoder, table: Table, prior: FactorisedPrior, seed: int, count: int) -> Tensor:
    """Return training rows spread over the covariate space, with gaps drawn from the prior."""
    batches = Batches(replace(table, conditional_prior=prior.condition(table)))
    x = prior.draw(batches.batch(torch.arange(batches.units)), 1, torch.Generator().manual_seed(seed))[0]
    return x[spread_rows(encoder.space.values(x), count, seed)]
