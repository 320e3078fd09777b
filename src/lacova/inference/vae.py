"""The assembled model: encoder, decoder, likelihood, latent prior, and the distributions about covariates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lacova.covariates.factorised import draw
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.prior import CovariatePrior, conditional_prior
from lacova.covariates.scenarios import Plan, StandardDraws, plan
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.encoder import Table
from lacova.data.measurement_space import MeasurementSpace
from lacova.likelihoods.fixed_effects import FixedPart
from lacova.likelihoods.missingness import Missingness
from lacova.likelihoods.mixed import Likelihood, MixedLikelihood
from lacova.likelihoods.random_effects import RandomIntercepts
from lacova.nn.latents import Latents
from lacova.nn.networks import Conv, Decoder, Dense, Encoder
from lacova.nn.structured import ChainEncoder
from lacova.priors.base import LatentPrior


class Observed(NamedTuple):
    """The law of y given z: its mean (draws×N̂×D) and variance (which broadcasts to that), and draws from it.

    The variance is that of Gaussian columns. Where others are among them, `outputs` are the decoder's with the means of
    Gaussian columns in their places (draws×N̂×outputs).
    """

    mean: Tensor
    var: Tensor
    y: Tensor
    outputs: Tensor | None = None


Networks = tuple[Callable[..., Encoder], Callable[..., nn.Module]]


class ConditionalVAE(nn.Module):
    """p(y | z [, x]) p(z | x) p(x) with q(z | y_o, x_o) q(x_u | ·).

    Args:
        space: layout of X.
        measurements: their layout, or D where all are Gaussian.
        latent_dim: L.
        architecture: networks of encoder and decoder.
        decoder_sees_x: True for the CVAE, False for the GP-prior VAE, whose decoder takes z alone.
        prior: p(z | x).
        covariate_prior, covariate_posterior: p(x) and q(x_u | ·).
        likelihood: p(y_o | location).
        random_effects: patients' own levels of the measurements, if they have any.
        missingness: p(mask | y), where gaps in y may depend on what they hide; for Gaussian measurements.
        networks: what makes the encoder and the decoder of an architecture.
    """

    def __init__(
        self, space: CovariateSpace, measurements: int | MeasurementSpace, latent_dim: int,
        architecture: Dense | Conv, *, decoder_sees_x: bool, prior: LatentPrior, covariate_prior: CovariatePrior,
        covariate_posterior: AmortisedPosterior, likelihood: Likelihood, random_effects: RandomIntercepts | None = None,
        missingness: Missingness | None = None, networks: Networks = (Encoder, Decoder),
    ) -> None:  # fmt: skip
        super().__init__()
        self.space = space
        self.decoder_sees_x = decoder_sees_x
        self.latent_dim = latent_dim
        features = space.width + len(space.names) + (0 if random_effects is None else random_effects.raw.numel())
        make_encoder, make_decoder = networks
        self.encoder = make_encoder(architecture, measurements, features, latent_dim)
        self.measurements = MeasurementSpace.of(measurements)
        outputs = self.measurements.output_width
        self.decoder = make_decoder(architecture, latent_dim, space.width if decoder_sees_x else 0, outputs)
        self.likelihood = likelihood
        self.random_effects = random_effects
        self.missingness = missingness
        self.prior = prior
        self.covariate_prior = covariate_prior
        self.covariate_posterior = covariate_posterior

    @property
    def couples_rows(self) -> bool:
        """Whether rows of a patient have unknowns in common: gaps in visit-constant columns, z, or levels of y."""
        return self.prior.couples_rows or self.random_effects is not None or any(self.space.static)

    def condition(self, table: Table) -> Table:
        """The table with what the covariate prior says of its gaps, on the device where the table is."""
        prior, where = self.covariate_prior, table.x.device
        if isinstance(prior, LongitudinalPrior) and next(self.parameters()).device.type != "cpu":
            prior, table = copy.deepcopy(prior).cpu(), table.to(torch.device("cpu"))  # small loops over columns
        return replace(table, conditional_prior=prior.condition(table)).to(where)

    def plan(self, x_mask: Tensor, patient: Tensor, samples: int, cap: int | None) -> Plan:
        """The scenarios that the bound takes for a batch with this mask and these patients, both on the host."""
        return plan(
            x_mask, patient, self.space, couple=self.prior.couples_rows, samples=samples, cap=cap,
            every_unit=self.decoder_sees_x, columns=self.prior.scenario_columns, integrate=self.prior.integrates,
        )  # fmt: skip

    def draw_eps(self, batch: Batch, samples: int, generator: torch.Generator, dropout: float = 0.0) -> StandardDraws:
        """All the noise that one estimate of the bound needs; up to the share `dropout` of a row is not encoded."""
        seen = 0 if self.missingness is None else len(self.measurements)
        noise = StandardDraws.draw(batch.x, samples, self.latent_dim, self.space, generator, seen)
        if not dropout:
            return noise
        n = len(batch.x)
        where: dict[str, Any] = {"generator": generator, "device": batch.x.device}
        share = dropout * torch.rand(n, 1, **where)
        return replace(noise, hidden=torch.rand(n, len(self.measurements), **where) < share)

    def encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean and variance of q(z_i) for each row (N̂×L each)."""
        return self.latents(batch)[:2]

    def latents(self, batch: Batch, hidden: Tensor | None = None) -> Latents:
        """q(Z) of the rows, which does not look at `hidden` measurements (N̂×D), unless all of a row are hidden.

        Where patients have levels of their own, the encoder sees its patient's fixed_part, and what a row has beyond it.
        """
        if hidden is not None:
            seen = batch.y_mask & ~hidden
            batch = replace(batch, y_mask=torch.where(seen.any(1, keepdim=True), seen, batch.y_mask))
        y, features = batch.y, self.space.features(batch.x, batch.x_mask)
        if self.random_effects is not None:
            nothing = y.new_zeros(len(y), self.measurements.output_width)
            with torch.no_grad():
                expected = self.fixed_part(
                    batch, None if batch.conditional_prior is None else batch.conditional_prior.distribution
                )
                fixed_part = self.random_effects.expect(*self.gaussian_part(nothing, batch), expected)
            features = torch.cat([features, fixed_part], dim=1)
            if isinstance(self.likelihood, MixedLikelihood):
                y = y.index_add(1, self.likelihood.gaussian[0], -fixed_part)
            else:
                y = y - fixed_part
        if isinstance(self.encoder, ChainEncoder):
            return self.encoder.latents(y, batch, features)
        return Latents(*self.encoder(y, batch.y_mask, features))

    def decode(self, z: Tensor, x: Tensor) -> Tensor:
        """Location of y, or what else its families take, for latent values z (K×L) and completed x (K×Q)."""
        inputs = torch.cat([z, self.space.values(x)], dim=1) if self.decoder_sees_x else z
        location: Tensor = self.decoder(inputs)
        return location

    def fixed_part(self, batch: Batch, distribution: FactorisedDistribution | None) -> FixedPart | None:
        """What levels are on average, at what is believed of missing covariates; None if that depends on nothing."""
        coefficients = None if self.random_effects is None else self.random_effects.fixed_effects
        return None if coefficients is None else coefficients.expect(batch, distribution)

    def draw_coefficients(self, draws: int, generator: torch.Generator) -> Tensor | None:
        """What levels owe to covariates (draws×D×K), in all rows of a call; None if nothing."""
        coefficients = None if self.random_effects is None else self.random_effects.fixed_effects
        return None if coefficients is None else coefficients.draw(draws, generator)

    def fixed_part_at(
        self, x: Tensor, batch: Batch, coefficients: Tensor | None = None, averaged_x: Tensor | None = None
    ) -> FixedPart | None:
        """The same at completed covariates (…×N̂×Q), with coefficients of `draw_coefficients` or over what is not known of them.

        The batch has all visits of its patients that count for averages, which are those of `averaged_x`, if given.
        """
        own = None if self.random_effects is None else self.random_effects.fixed_effects
        return None if own is None else own.at(x, batch, coefficients, averaged_x)

    def observe(
        self, location: Tensor, batch: Batch, generator: torch.Generator, fixed_part: FixedPart | None = None
    ) -> Observed:
        """y at the given locations (draws×N̂×D), each patient at the level that its observed measurements speak for.

        `fixed_part` is that of `fixed_part_at`, at these rows.
        """
        if isinstance(self.likelihood, MixedLikelihood):
            return self._observe_mixed(self.likelihood, location, batch, fixed_part, generator)
        noise = self.likelihood.var
        if self.random_effects is None:
            return Observed(location, noise, self.likelihood.sample(location, generator))
        levels = self.random_effects.draw(location, batch, noise, generator, fixed_part)
        y = self.likelihood.sample(location + levels.drawn, generator)
        return Observed(location + levels.mean, noise + levels.var, y)

    def _observe_mixed(
        self, likelihood: MixedLikelihood, outputs: Tensor, batch: Batch, fixed_part: FixedPart | None,
        generator: torch.Generator,
    ) -> Observed:  # fmt: skip
        """The same for columns of several families, of which Gaussian ones have levels."""
        var = outputs.new_zeros(*outputs.shape[:-1], len(self.measurements))
        drawn = outputs
        if "gaussian" in likelihood.families:
            columns = likelihood.gaussian[0]
            var[..., columns] = likelihood.var
        if self.random_effects is not None:
            levels = self.random_effects.draw(*self.gaussian_part(outputs, batch), generator, fixed_part)
            drawn, outputs = (self.add_to_gaussian(outputs, part) for part in (levels.drawn, levels.mean))
            var[..., columns] += levels.var
        return Observed(likelihood.mean(outputs), var, likelihood.sample(drawn, generator), outputs)

    def gaussian_part(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Batch, Tensor]:
        """Locations, rows and noise of the columns of which patients have levels of their own: the Gaussian ones."""
        if not isinstance(self.likelihood, MixedLikelihood):
            return outputs, batch, self.likelihood.var
        columns, places = self.likelihood.gaussian
        own = replace(batch, y=batch.y[:, columns], y_mask=batch.y_mask[:, columns])
        return outputs[..., places], own, self.likelihood.var

    def add_to_gaussian(self, outputs: Tensor, levels: Tensor) -> Tensor:
        """The outputs with levels (…×N̂×D, of columns that have them) added where they belong."""
        if not isinstance(self.likelihood, MixedLikelihood):
            return outputs + levels
        places = self.likelihood.gaussian[1]
        return outputs.index_copy(-1, places, outputs[..., places] + levels)

    def level_probabilities(self, seen: Observed, weight: Tensor | None = None) -> Tensor | None:
        """Probability of each level of each categorical column, over all draws (N̂×D×K); None without such columns.

        Draws count alike, or by their weights (draws×N̂), which sum to one.
        """
        if not isinstance(self.likelihood, MixedLikelihood) or seen.outputs is None or not self.measurements.max_levels:
            return None
        each = self.likelihood.level_probabilities(seen.outputs)
        return each.mean(0) if weight is None else (weight[..., None, None] * each).sum(0)

    def believe(self, batch: Batch) -> FactorisedDistribution:
        """The distribution about each missing covariate after training: the posterior where y informs it, else the prior."""
        posterior: FactorisedDistribution = self.covariate_posterior(batch)
        return posterior.where(self._informed(batch), conditional_prior(batch).distribution)

    def draw_covariates(self, batch: Batch, draws: int, generator: torch.Generator) -> Tensor:
        """Completed covariates (draws×N×Q): gaps from the posterior where y informs it, else from p(x_u | x_o)."""
        if batch.x_mask.all():
            return batch.x.expand(draws, -1, -1)
        informed = self._informed(batch)
        if informed.all():
            return draw(self.covariate_posterior(batch), batch, self.space, draws, generator)
        prior = self.covariate_prior.draw(batch, draws, generator)
        if not informed.any():
            return prior
        return torch.where(informed, draw(self.covariate_posterior(batch), batch, self.space, draws, generator), prior)

    @torch.no_grad()
    def draw_posterior(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Completed covariates (N×Q), gaps drawn once from q."""
        return draw(self.covariate_posterior(batch), batch, self.space, 1, generator)[0]

    def update_prior(self, completed: Table) -> None:
        """Move the covariate prior towards completed training rows, on the host."""
        device = next(self.parameters()).device
        self.covariate_prior.cpu().update(completed)
        self.covariate_prior.to(device)

    def _informed(self, batch: Batch) -> Tensor:
        """Entries (N×Q) of whose row, or patient for visit-constant columns, some y is seen; all, if q ignores y."""
        if not self.covariate_posterior.sees_y:
            return torch.ones_like(batch.x_mask)
        seen = batch.y_mask.any(1)
        patient_seen = torch.zeros(batch.patients, dtype=torch.bool, device=seen.device)
        patient_seen[batch.patient[seen]] = True
        return torch.where(self.space.on(seen.device).static, patient_seen[batch.patient][:, None], seen[:, None])
