"""The assembled model: encoder, decoder, likelihood, latent prior, and the prior and posterior of covariates."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lacova.covariates import factorised
from lacova.covariates.dependence import groups_of
from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.prior import CovariatePrior, conditional_prior
from lacova.covariates.scenarios import Plan, StandardDraws, fill, plan
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.measurement_space import MeasurementSpace
from lacova.data.table import Table
from lacova.likelihoods.fixed_effects import FixedPart
from lacova.likelihoods.likelihood import Likelihood
from lacova.likelihoods.missingness import Missingness
from lacova.likelihoods.random_effects import Factorisation, RandomIntercepts
from lacova.nn.latents import Latents
from lacova.nn.networks import Encoder, Networks
from lacova.nn.row_noise import RowNoise
from lacova.priors.base import LatentPrior

ENCODING_DRAWS = 50  # completions of x over which the moments of q(z) are taken


class Observed(NamedTuple):
    """Distribution of y given z: mean (draws×N̂×D), variance (which broadcasts to that), and draws (draws×N̂×D).

    The variance is that of Gaussian columns, 0 elsewhere. `outputs` (draws×N̂×outputs) are the decoder's, with the means
    of Gaussian columns in their places; None where all columns are Gaussian, whose means say everything.
    """

    mean: Tensor
    var: Tensor
    y: Tensor
    outputs: Tensor | None = None


class Lines(NamedTuple):
    """Completed rows: covariates (K×Q), and the row of the batch behind each (K,)."""

    x: Tensor
    row: Tensor

    def features(self, batch: Batch, space: CovariateSpace) -> Tensor:
        """Return the covariates as network inputs: completed values, then which of them the batch observes."""
        observed = batch.x_mask.index_select(0, self.row).to(self.x.dtype)
        return torch.cat([space.values(self.x), observed], dim=1)


class ConditionalVAE(nn.Module):
    """p(y | z [, x]) p(z | x) p(x) with q(z | y_o, x) q(x_u | ·), or q(z | y_o, x_o) q(x_u | ·).

    Args:
        space: layout of X.
        measurements: layout of Y, or D where all are Gaussian.
        latent_dim: L.
        networks: what builds the encoder and the decoder.
        decoder_sees_x: True for the CVAE, False for the GP-prior VAE, whose decoder takes z alone.
        prior: p(z | x).
        covariate_prior, covariate_posterior: p(x) and q(x_u | ·).
        likelihood: p(y_o | decoder outputs).
        random_effects: patients' random effects on the Gaussian measurements, if there are any.
        missingness: p(mask | y), where gaps in y may depend on the missing values; for Gaussian measurements.
        joint: whether q(z) depends on the missing covariates that were drawn, so that draws of both belong together.
            It is left out where the prior integrates over x_u, or where the encoder couples rows.
    """

    def __init__(
        self, space: CovariateSpace, measurements: int | MeasurementSpace, latent_dim: int, networks: Networks, *,
        decoder_sees_x: bool, prior: LatentPrior, covariate_prior: CovariatePrior,
        covariate_posterior: AmortisedPosterior, likelihood: Likelihood,
        random_effects: RandomIntercepts | None = None, missingness: Missingness | None = None, joint: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.space, self.measurements = space, MeasurementSpace.of(measurements)
        self.decoder_sees_x = decoder_sees_x
        self.latent_dim = latent_dim
        features = space.width + len(space.names) + (0 if random_effects is None else random_effects.raw.numel())
        self.encoder = networks.build_encoder(self.measurements, features, latent_dim)
        inputs = latent_dim + (space.width if decoder_sees_x else 0)
        self.decoder = networks.build_decoder(inputs, self.measurements.output_width)
        columns = len(self.measurements.columns("gaussian"))
        self.row_noise = RowNoise(latent_dim + space.width, columns) if likelihood.by_row else None
        self.likelihood = likelihood
        self.random_effects = random_effects
        self.missingness = missingness
        self.prior = prior
        self.covariate_prior = covariate_prior
        self.covariate_posterior = covariate_posterior
        self._joint = joint

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def outputs_see_x(self) -> bool:
        """Whether p(y | z, x) depends on x: by the decoder, or by noise that depends on the row."""
        return self.decoder_sees_x or self.row_noise is not None

    @property
    def width(self) -> int:
        """Numbers per draw of a row in the largest array of observations: probabilities of levels, if there are any."""
        return len(self.measurements) * max(1, self.measurements.max_levels)

    @property
    def couples_rows(self) -> bool:
        """Whether rows of a patient share unknowns: visit-constant gaps, paths of others, z, or random effects."""
        shared = self.covariate_prior.paths or any(self.space.static)
        return shared or self.prior.couples_rows or self.random_effects is not None

    @property
    def joint(self) -> bool:
        """Whether q(z) depends on the missing covariates that were drawn."""
        return self._joint and self.prior.by_scenario and not hasattr(self.encoder, "latents")

    @property
    def couples_scenarios(self) -> bool:
        """Whether a scenario completes a patient rather than a row."""
        return self.prior.couples_rows or (self.joint and self.random_effects is not None)

    def condition(self, table: Table) -> Table:
        """Return the table with the conditional prior of its gaps, on the device where the table is."""
        prior, device = self.covariate_prior, table.x.device
        if prior.on_host and self.device.type != "cpu":
            prior, table = copy.deepcopy(prior).cpu(), table.to(torch.device("cpu"))
        return replace(table, conditional_prior=prior.condition(table)).to(device)

    def plan(self, x_mask: Tensor, patient: Tensor, samples: int, cap: int | None) -> Plan:
        """Return which scenarios the bound sums over for a batch with this mask and these patients, on the host."""
        return plan(
            x_mask, patient, self.space, couple=self.couples_scenarios, samples=samples, cap=cap,
            every_unit=self.outputs_see_x or self.joint,
            columns=None if self.outputs_see_x else self.prior.scenario_columns, integrate=self.prior.integrates,
        )  # fmt: skip

    def draw_eps(self, batch: Batch, samples: int, generator: torch.Generator, dropout: float = 0.0) -> StandardDraws:
        """Draw all random numbers of one estimate of the bound.

        With `dropout`, each row hides a share of its measurements from the encoder, anything up to this.
        """
        measurements = 0 if self.missingness is None else len(self.measurements)
        eps = StandardDraws.draw(batch.x, samples, self.latent_dim, self.space, generator, measurements)
        if not dropout:
            return eps
        n = len(batch.x)
        where: dict[str, Any] = {"generator": generator, "device": batch.x.device}
        share = dropout * torch.rand(n, 1, **where)
        return replace(eps, dropped_y=torch.rand(n, len(self.measurements), **where) < share)

    # q(z), the decoder, and p(y | z, x)

    def latents(
        self, batch: Batch, hidden: Tensor | None = None, factorisation: Factorisation | None = None,
        lines: Lines | None = None,
    ) -> Latents:  # fmt: skip
        """Return q(Z) of the rows (N̂×L each), or of completed rows (K×L each) where there are `lines`.

        `hidden` measurements (N̂×D) do not enter the encoder, unless all those of a row are hidden. Where patients have
        random effects, the encoder sees their expectation, and the measurements less that expectation. `factorisation`
        is that of the random effects for this batch, if it has been computed.
        """
        if lines is not None and not self.joint:
            return self.latents(batch, hidden, factorisation).at(lines.row)
        if hidden is not None:
            shown = batch.y_mask & ~hidden
            batch = replace(batch, y_mask=torch.where(shown.any(1, keepdim=True), shown, batch.y_mask))
        y, row = batch.y, None if lines is None else lines.row
        features = batch.features(self.space) if lines is None else lines.features(batch, self.space)
        if self.random_effects is not None:
            zeros = y.new_zeros(len(y), self.measurements.output_width)
            with torch.no_grad():
                prior = None if batch.conditional_prior is None else batch.conditional_prior.distribution
                gaussian = self.likelihood.gaussian_part(zeros, batch)
                factorisation = factorisation if hidden is None else None
                fixed = self.random_effects.fixed_effects
                mean = None if fixed is None else fixed.expected_mean(batch, prior)
                effects = self.random_effects.expect(*gaussian, mean, factorisation)
            features = torch.cat([features, effects if row is None else effects.index_select(0, row)], dim=1)
            y = self.likelihood.subtract_from_gaussian(y, effects)
        latents = getattr(self.encoder, "latents", None)  # an encoder that couples rows
        if latents is not None:
            coupled: Latents = latents(y, batch, features)
            return coupled
        if row is None:
            return Latents(*self.encoder(y, batch.y_mask, features))
        if isinstance(self.encoder, Encoder):
            return Latents(*self.encoder(y, batch.y_mask, features, row))
        return Latents(*self.encoder(y[row], batch.y_mask[row], features))

    def latents_at(self, batch: Batch, x: Tensor) -> Latents:
        """Return q(Z) of the rows at completed covariates (draws×N̂×Q): draws×N̂×L, or N̂×L if it is the same in all.

        Rows without gaps are encoded once.
        """
        gaps = ~batch.x_mask.all(1)
        if not self.joint or not gaps.any():
            return self.latents(batch)
        row = gaps.nonzero()[:, 0]
        at_gaps = self.latents(batch, lines=Lines(x[:, row].flatten(0, 1), row.repeat(len(x))))
        whole = self.latents(batch)
        mean, var = (
            every.expand(len(x), -1, -1).index_copy(1, row, own.unflatten(0, (len(x), -1)))
            for every, own in zip(whole[:2], at_gaps[:2], strict=True)
        )
        return Latents(mean, var)

    def encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return mean and variance of q(z_i) of each row (N̂×L each), over draws of missing covariates.

        All rows have the same random numbers, whatever the batch.
        """
        if not self.joint or batch.x_mask.all():
            return self.latents(batch)[:2]
        generator = torch.Generator(batch.x.device).manual_seed(0)
        eps = StandardDraws.draw(batch.x[:1], ENCODING_DRAWS, 0, self.space, generator)
        q = self.latents_at(batch, fill(self.covariate_distribution(batch).by_entry(), batch, self.space, eps))
        return q.mean.mean(0), q.var.mean(0) + q.mean.var(0, correction=0)

    def factorise_effects(self, batch: Batch) -> Factorisation | None:
        """Return what the terms of the random effects share in one batch; None without random effects."""
        if self.random_effects is None:
            return None
        zeros = batch.y.new_zeros(len(batch), self.measurements.output_width)
        return self.random_effects.factorise(*self.likelihood.gaussian_part(zeros, batch)[1:])

    def decode(self, z: Tensor, x: Tensor) -> Tensor:
        """Return the decoder's outputs for latent values z (K×L) and completed x (K×Q), and those of the noise."""
        both = torch.cat([z, self.space.values(x)], dim=1) if self.outputs_see_x else z
        outputs: Tensor = self.decoder(both if self.decoder_sees_x else z)
        return outputs if self.row_noise is None else torch.cat([outputs, self.row_noise(both)], dim=1)

    def observe(
        self, outputs: Tensor, batch: Batch, generator: torch.Generator, fixed_part: FixedPart | None = None
    ) -> Observed:
        """Return the distribution of y at decoder outputs (draws×N̂×outputs), with draws.

        Random effects are those given the observed measurements of the batch; `fixed_part` is that of `fixed_part_at`,
        at these rows.
        """
        likelihood, mean, location, extra = self.likelihood, outputs, outputs, None
        if self.random_effects is not None:
            effects = self.random_effects.draw(*likelihood.gaussian_part(outputs, batch), generator, fixed_part)
            location, mean = (likelihood.add_to_gaussian(outputs, part) for part in (effects.drawn, effects.mean))
            extra = effects.var
        var, y = likelihood.gaussian_variance(mean, extra), likelihood.sample(location, generator)
        return Observed(likelihood.mean(mean), var, y, None if likelihood.plain else mean)

    def level_probabilities(self, observed: Observed, weight: Tensor | None = None) -> Tensor | None:
        """Return the probability of each level over all draws (N̂×D×K); None without categorical measurements.

        Draws count equally, or by their weights (draws×N̂), which sum to one.
        """
        probs = None if observed.outputs is None else self.likelihood.level_probabilities(observed.outputs)
        if probs is None:
            return None
        return probs.mean(0) if weight is None else (weight[..., None, None] * probs).sum(0)

    # The fixed part of random effects

    @torch.no_grad()
    def information(
        self, batch: Batch, fixed_part: FixedPart | None, weight: Tensor, factorisation: Factorisation | None
    ) -> Tensor | None:
        """Return what a batch says about the fixed effects' coefficients (V×D×K'×K'); None without fixed effects.

        Args:
            batch: the rows.
            fixed_part: that of completed covariates (S×N̂×Q).
            weight: of each completion, which sum to one for each patient (S×P̂).
            factorisation: that of the random effects.
        """
        if self.random_effects is None or fixed_part is None or factorisation is None:
            return None
        assert fixed_part.second is not None
        second = torch.einsum("sp,spkl->pkl", weight, fixed_part.second)
        return self.random_effects.information(batch, second, factorisation)

    def draw_coefficients(self, draws: int, generator: torch.Generator) -> Tensor | None:
        """Draw the coefficients of the fixed effects (draws×D×K), once for all rows of a call; None without any."""
        fixed = None if self.random_effects is None else self.random_effects.fixed_effects
        return None if fixed is None else fixed.draw(draws, generator)

    def fixed_part_at(
        self, x: Tensor, batch: Batch, coefficients: Tensor | None = None, averaged_x: Tensor | None = None
    ) -> FixedPart | None:
        """Return the fixed part at completed covariates (…×N̂×Q).

        With coefficients of `draw_coefficients`, or over their posterior. The batch has all visits of its patients that
        enter averages; the averages are those of `averaged_x`, if given.
        """
        fixed = None if self.random_effects is None else self.random_effects.fixed_effects
        return None if fixed is None else fixed.at(x, batch, coefficients, averaged_x)

    # Missing covariates

    def covariate_distribution(
        self, batch: Batch, posterior: FactorisedDistribution | None = None
    ) -> FactorisedDistribution:
        """Return the distribution of each missing covariate: the posterior where y informs it, else the prior."""
        posterior = self.covariate_posterior(batch) if posterior is None else posterior
        return posterior.where(self._informed(batch), conditional_prior(batch).distribution)

    def draw_covariates(
        self, batch: Batch, draws: int, generator: torch.Generator, posterior: FactorisedDistribution | None = None
    ) -> Tensor:
        """Draw completed covariates (draws×N×Q): from the posterior where y informs it, else from p(x_u | x_o).

        `posterior` is q(x_u | ·) of the batch, if it has been computed.
        """
        if batch.x_mask.all():
            return batch.x.expand(draws, -1, -1)
        informed = self._informed(batch)
        prior = None if informed.all() else self.covariate_prior.draw(batch, draws, generator)
        if prior is not None and not informed.any():
            return prior
        q = self.covariate_posterior(batch) if posterior is None else posterior
        x = factorised.draw(q, batch, self.space, draws, generator)
        return x if prior is None else torch.where(informed, x, prior)

    @torch.no_grad()
    def draw_posterior(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Draw completed covariates (N×Q) once from q."""
        return factorised.draw(self.covariate_posterior(batch), batch, self.space, 1, generator)[0]

    @property
    def completed_for_prior(self) -> Tensor:
        """Which covariates the prior is updated to as q completes them (Q,).

        A static regression leans on the prior, which would confirm itself: visit-constant columns keep their gaps.
        """
        static = self.space.on(self.device).static
        return torch.ones_like(static) if self.covariate_posterior.static_regression is None else ~static

    def update_prior(self, completed: Table) -> None:
        """Move the covariate prior towards completed training rows, on the host.

        Its state is copied into place: a captured graph reads it where it lies.
        """
        prior = copy.deepcopy(self.covariate_prior).cpu()
        prior.update(completed)
        if self.covariate_posterior.visit_regression is not None:
            self.covariate_posterior.visit_regression.follow(prior)
        self.covariate_prior.load_state_dict(prior.state_dict())

    def _informed(self, batch: Batch) -> Tensor:
        """Return the entries (N×Q) whose row, or patient for visit-constant columns, has some y; all if q ignores y.

        On a path, every visit is informed by the others; and numbers that a row lacks together are drawn together.
        """
        if not self.covariate_posterior.sees_y:
            return torch.ones_like(batch.x_mask)
        measured = batch.y_mask.any(1)
        patient_measured = torch.zeros(batch.patients, dtype=torch.bool, device=measured.device)
        patient_measured[batch.patient[measured]] = True
        static = self.space.on(measured.device).static
        informed = torch.where(static, patient_measured[batch.patient][:, None], measured[:, None])
        paths = conditional_prior(batch).distribution.paths
        if paths is None:
            return informed
        informed = informed | paths.linked
        for group in groups_of(self.space):
            columns = torch.tensor(group.columns, device=measured.device)
            together = (informed & ~batch.x_mask).index_select(1, columns).any(1, keepdim=True)
            informed = informed.index_copy(1, columns, informed.index_select(1, columns) | together)
        return informed
