"""Effects of additive components on each measurement: decoded differences, and shares of the variance.

With z = Σ_r f_r + ε, the effect of component r at a row is m(z) − m(z − f_r). Here m(z) is the mean of y, in its own
units, at z and with the patient's random effects: the effect is the change of that mean when the component's part of z
is removed. Random effects have a fixed part, a sum over covariates. Its term for a covariate belongs to the effect of
the component that has this covariate; of several such components, to the first with the fewest columns. The components
are drawn jointly, given all measurements of the row's patient.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lacova.data.batches import Batch
from lacova.data.io.dataframes import Frame
from lacova.data.labels import among
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder
from lacova.inference.draws import chunks
from lacova.inference.ensemble import MemberDoubt, interleave
from lacova.inference.long_form import gather, long_form, summary
from lacova.inference.unmeasured import history_of
from lacova.inference.vae import ConditionalVAE
from lacova.likelihoods.moments import Moments
from lacova.priors.gp.prior import GPPrior

# Names of what varies beside the components of the formula.
PATIENT_EFFECT, LATENT_NOISE, OBSERVATION_NOISE = "patient effect", "visit", "noise"


class Effects(NamedTuple, Generic[Frame]):
    """Effects row by row, and the share of variance that each component explains.

    Attributes:
        rows: one line per row, component and measurement, with the `mean` of the effect in the measurement's units,
            its `sd`, and the ends of a central interval, `lower` and `upper`. A categorical measurement has a line for
            each level, `<measurement>_p_<level>`: the effect on its probability.
        shares: one line per component and a column per measurement, or per level of one: the share of variance. The
            posterior uncertainty of an effect varies from draw to draw and counts as part of it.
        known: the same for the posterior mean of the effects, of components and of the patient effect: the part of each
            share that is known. Nearly 0 where the data show no effect; NaN if there is a single draw.
    """

    rows: Frame
    shares: Frame
    known: Frame


class EffectDraws(NamedTuple):
    """Draws of effects at some rows (draws×n×D each).

    Attributes:
        rows: the rows (n,).
        mean: of y, given all components.
        without: the same without each component, then without the patient's random effects, if there are any.
        latent_noise: effect of ε, the part of z that no component explains.
        noise_variance: variance of y given z, summed over the rows and averaged over draws (D,).
    """

    rows: Tensor
    mean: Tensor
    without: list[Tensor]
    latent_noise: Tensor
    noise_variance: Tensor


def measure(
    vae: ConditionalVAE, encoder: TableEncoder, frame: pd.DataFrame, table: Table, names: tuple[str, ...],
    interval: float, parts: Iterable[EffectDraws], doubt: MemberDoubt,
) -> Effects[pd.DataFrame]:  # fmt: skip
    """Return the effects of the components called `names` at every row of the table.

    Args:
        vae: the trained model, with a GP prior.
        encoder: units, levels and scales of the measurements.
        frame: the caller's rows.
        table: the same, encoded.
        names: names of the components.
        interval: the central interval, such as 0.9.
        parts: draws of the effects, by `effect_draws`.
        doubt: completes the means' doubt about the parameters.
    """
    summaries, variances, moments = [], _RowVariance(), Moments(encoder, vae.likelihood)
    noise_variance = torch.zeros(len(moments.names), dtype=torch.float64)
    if vae.random_effects is not None:
        names = (*names, PATIENT_EFFECT)
    for part in parts:
        own = torch.stack([part.mean - without for without in part.without], dim=2)  # draws×n×R×D
        mean = doubt(part.mean, moments)
        effects = torch.stack([mean - doubt(without, moments) for without in part.without], dim=2)
        estimate, spread = doubt.estimate(own).cpu(), effects.std(0, correction=0).cpu()
        summaries.append((part.rows, summary(effects, interval) | {"mean": estimate, "sd": spread}))
        variances.add(torch.cat([effects, part.latent_noise[:, :, None]], dim=2))
        noise_variance += part.noise_variance.cpu()
    table_summary = gather(summaries)
    values = {name: table_summary[name].numpy() for name in ("mean", "sd", "lower", "upper")}
    rows = long_form(frame, encoder.schema, {"component": names, "measurement": moments.names}, values)
    variance = torch.cat([variances.within_draws(), noise_variance[None] / len(table)])
    total = variance.sum(0)
    shares = _by_component((*names, LATENT_NOISE, OBSERVATION_NOISE), variance / total, moments.names)
    known = _by_component(names, variances.of_mean()[: len(names)] / total, moments.names)
    return Effects(rows, shares, known)


def merge_effects(parts: Sequence[EffectDraws], draws: int) -> EffectDraws:
    """Join the draws of several members at the same rows, `draws` in all."""
    mean = interleave([part.mean for part in parts], draws)
    without = [interleave(values, draws) for values in zip(*(part.without for part in parts), strict=True)]
    latent_noise = interleave([part.latent_noise for part in parts], draws)
    noise_variance = torch.stack([part.noise_variance for part in parts]).mean(0)
    return EffectDraws(parts[0].rows, mean, without, latent_noise, noise_variance)


def _by_component(components: tuple[str, ...], values: Tensor, names: tuple[str, ...]) -> pd.DataFrame:
    labels = pd.DataFrame({"component": np.array(components, dtype=object)})
    return pd.concat([labels, pd.DataFrame(values.numpy(), columns=list(names))], axis=1)


class _RowVariance:
    """Variances of effects over the rows of a table, which come part by part."""

    def __init__(self) -> None:
        self._rows, self._sum, self._sum_of_squares = 0, torch.zeros(()), torch.zeros(())
        self._squares_of_mean = torch.zeros(())

    def add(self, effects: Tensor) -> None:
        """Add some rows (draws×n×R×D)."""
        effects = effects.double().cpu()
        self._rows += effects.shape[1]
        self._sum = self._sum + effects.sum(1)
        self._sum_of_squares = self._sum_of_squares + effects.square().sum(1)
        self._squares_of_mean = self._squares_of_mean + effects.mean(0).square().sum(0)

    def within_draws(self) -> Tensor:
        """Return the variance within a draw, averaged over draws (R×D); NaN if there is a single row."""
        if self._rows < 2:
            return torch.full(self._sum.shape[1:], torch.nan, dtype=torch.float64)
        return ((self._sum_of_squares - self._sum.square() / self._rows) / (self._rows - 1)).clamp_min(0.0).mean(0)

    def of_mean(self) -> Tensor:
        """Return the variance of the posterior mean (R×D); NaN if there is a single row or draw.

        It is the mean covariance of two different draws, which has no bias from the finite number of draws K. With V of
        the mean over draws and V̄ within draws, (K V − V̄)/(K − 1).
        """
        draws = len(self._sum)
        if draws < 2 or self._rows < 2:
            return torch.full(self._sum.shape[1:], torch.nan, dtype=torch.float64)
        of_mean = (self._squares_of_mean - self._sum.mean(0).square() / self._rows) / (self._rows - 1)
        return ((draws * of_mean - self.within_draws()) / (draws - 1)).clamp_min(0.0)


@torch.no_grad()
def effect_draws(
    vae: ConditionalVAE, encoder: TableEncoder, table: Table, draws: int, generator: torch.Generator,
    trained: Container[Any],
) -> Iterator[EffectDraws]:  # fmt: skip
    """Draw effects of all rows, some patients at a time.

    Args:
        vae: the trained model, with a GP prior.
        encoder: units, levels and scales of the measurements.
        table: the rows, encoded.
        draws: draws of everything that is unknown.
        generator: source of random numbers.
        trained: instance labels whose history is in the GP's posterior already.
    """
    prior, moments = vae.prior, Moments(encoder, vae.likelihood)
    assert isinstance(prior, GPPrior)
    count = len(prior.kernel.components)
    in_posterior = torch.as_tensor(among(table.labels, trained))
    shared, coefficients = prior.draw_shared(draws, generator), vae.draw_coefficients(draws, generator)
    for rows, batch in chunks(table, draws, width=count * max(prior.width, table.y.shape[1])):
        x = vae.draw_covariates(batch, draws, generator)
        versions = x[:1] if batch.x_mask.all() else x
        measured, history = batch.y_mask.any(1), None
        if prior.couples_rows and table.patient is not None and measured.any():
            trained_patients = in_posterior[table.patient[rows]].to(x.device)[batch.owner.unique()]
            history = history_of(vae, batch, versions, measured, trained_patients)
        f = prior.sample_components(versions, batch.patient, shared, generator, history)  # draws×n×R×L
        noise = prior.noise.sqrt().to(x.dtype) * _standard_normal((draws, len(batch), vae.latent_dim), x, generator)
        z = f.sum(2) + noise
        random_effects, fixed = _random_effects(vae, batch, x, coefficients, generator)
        mean, var = moments(_decode(vae, z, x) + random_effects)
        without = [
            moments(_decode(vae, z - f[:, :, r], x) + random_effects - fixed.get(r, 0.0))[0] for r in range(count)
        ]
        if vae.random_effects is not None:
            without.append(moments(_decode(vae, z, x) + sum(fixed.values()))[0])
        latent_noise = mean - moments(_decode(vae, z - noise, x) + random_effects)[0]
        yield EffectDraws(rows, mean, without, latent_noise, var.mean(0).sum(0))


def _random_effects(
    vae: ConditionalVAE, batch: Batch, x: Tensor, coefficients: Tensor | None, generator: torch.Generator
) -> tuple[Tensor | float, dict[int, Tensor]]:
    """Draw random effects, and return them with their fixed part by component.

    Both are additions to the decoder's outputs (draws×n×outputs). The fixed part is split by the component that each
    covariate belongs to.
    """
    random_effects = vae.random_effects
    if random_effects is None:
        return 0.0, {}
    mean, var, _ = vae.latents_at(batch, x)
    z = mean + var.sqrt() * _standard_normal((len(x), *mean.shape[-2:]), x, generator)
    outputs = _decode(vae, z, x)
    zeros, fixed_part = torch.zeros_like(outputs), None
    by_component: dict[int, Tensor] = {}
    fixed_effects = random_effects.fixed_effects
    if fixed_effects is not None and coefficients is not None:
        fixed_part = vae.fixed_part_at(x, batch, coefficients)
        for name in fixed_effects.names:
            own = fixed_effects.at(x, batch, coefficients * fixed_effects.features_of(name)).mean
            r = _component_of(vae, name)
            by_component[r] = by_component.get(r, zeros) + vae.likelihood.add_to_gaussian(zeros, own)
    drawn = random_effects.draw(*vae.likelihood.gaussian_part(outputs, batch), generator, fixed_part).drawn
    return vae.likelihood.add_to_gaussian(zeros, drawn), by_component


def _component_of(vae: ConditionalVAE, name: str) -> int:
    """Return the component that a covariate's coefficients belong to: the first with the fewest columns."""
    assert isinstance(vae.prior, GPPrior)
    components = vae.prior.kernel.components
    return min(
        (r for r, component in enumerate(components) if component.in_fixed_effects(name)),
        key=lambda r: len(components[r].columns),
    )


def _decode(vae: ConditionalVAE, z: Tensor, x: Tensor) -> Tensor:
    outputs: Tensor = vae.decode(z.flatten(0, 1), x.flatten(0, 1)).unflatten(0, (len(z), -1))
    return outputs


def _standard_normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
