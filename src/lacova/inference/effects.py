"""What each additive component does to each measurement: decoded differences, and shares of the variance.

With z = Σ_r f_r + ε, the effect of component r at a row is m(z) − m(z − f_r), where m(z) is the mean of y, in its own
units, that the decoder gives at z and at the patient's level: what that mean loses when the component's part of z is
taken away. Levels depend on covariates: what they owe to one of them is part of the effect of the
component with that covariate, the first of the fewest columns. The components are drawn jointly, given all measurements
of the row's patient.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, Generic, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lacova.data.batches import Batch
from lacova.data.encoder import TableEncoder
from lacova.data.io.dataframes import Frame
from lacova.data.labels import among
from lacova.data.table import Table
from lacova.inference.draws import chunks
from lacova.inference.long_form import gather, long_form, summary
from lacova.inference.unmeasured import history_of
from lacova.inference.vae import ConditionalVAE
from lacova.likelihoods.moments import Moments
from lacova.priors.gp.prior import GPPrior

LEVEL, VISIT, NOISE = "patient effect", "visit", "noise"


class Effects(NamedTuple, Generic[Frame]):
    """Effects row by row, and what each component explains.

    Attributes:
        rows: one line per row, component and measurement, with the `mean` of the effect in the measurement's units,
            its `sd`, and the ends of a central interval, `lower` and `upper`. A categorical measurement has a line for
            each level, `<measurement>_p_<level>`: the effect on its probability.
        shares: one line per component and a column per measurement, or per level of one: the share of variance. What
            the posterior does not know of an effect varies from draw to draw and counts as part of it.
        known: the same, for the terms and the patient's level, of the posterior mean of the effects: the part of each
            share that is known. Nearly 0 where nothing has been found; not a number if there is a single draw.
    """

    rows: Frame
    shares: Frame
    known: Frame


class _Parts(NamedTuple):
    """Draws of effects at some rows (draws×n×D each): of each component and the patient's level, and of the visit.

    `noise` is the variance of y that is left, summed over the rows and averaged over draws (D,).
    """

    rows: Tensor
    components: list[Tensor]
    visit: Tensor
    noise: Tensor


def measure(
    vae: ConditionalVAE, encoder: TableEncoder, frame: pd.DataFrame, table: Table, names: tuple[str, ...], draws: int,
    interval: float, generator: torch.Generator, trained: Container[Any],
) -> Effects[pd.DataFrame]:  # fmt: skip
    """Effects of the components called `names` at every row of the table.

    Args:
        vae: the trained model, with a GP prior.
        encoder: for units.
        frame: the caller's rows.
        table: the same, encoded.
        names: of the components.
        draws: of everything that is unknown.
        interval: such as 0.9.
        generator: source of noise.
        trained: instance labels that the GP's posterior has seen.
    """
    found, spread, moments = [], _Spread(), Moments(encoder, vae.likelihood)
    noise = torch.zeros(len(moments.names), dtype=torch.float64)
    if vae.random_effects is not None:
        names = (*names, LEVEL)
    for part in _draws(vae, moments, table, draws, generator, trained):
        effects = torch.stack(part.components, dim=2)  # draws×n×R×D
        found.append((part.rows, summary(effects, interval) | {"sd": effects.std(0, correction=0).cpu()}))
        spread.add(torch.cat([effects, part.visit[:, :, None]], dim=2))
        noise += part.noise.cpu()
    whole = gather(found)
    values = {name: whole[name].numpy() for name in ("mean", "sd", "lower", "upper")}
    rows = long_form(frame, encoder.schema, {"component": names, "measurement": moments.names}, values)
    variance = torch.cat([spread.variance(), noise[None] / len(table)])
    total = variance.sum(0)
    shares = _by_component((*names, VISIT, NOISE), variance / total, moments.names)
    return Effects(rows, shares, _by_component(names, spread.known()[: len(names)] / total, moments.names))


def _by_component(components: tuple[str, ...], values: Tensor, names: tuple[str, ...]) -> pd.DataFrame:
    labels = pd.DataFrame({"component": np.array(components, dtype=object)})
    return pd.concat([labels, pd.DataFrame(values.numpy(), columns=list(names))], axis=1)


class _Spread:
    """Variance over rows, within a draw and averaged over draws, or of the mean over draws, gathered part by part."""

    def __init__(self) -> None:
        self.count, self.total, self.square, self.of_mean = 0, torch.zeros(()), torch.zeros(()), torch.zeros(())

    def add(self, values: Tensor) -> None:
        """Take in some rows (draws×n×R×D)."""
        values = values.double().cpu()
        self.count += values.shape[1]
        self.total = self.total + values.sum(1)
        self.square = self.square + values.square().sum(1)
        self.of_mean = self.of_mean + values.mean(0).square().sum(0)

    def variance(self) -> Tensor:
        """R×D; not a number if there is a single row."""
        if self.count < 2:
            return torch.full(self.total.shape[1:], torch.nan, dtype=torch.float64)
        return ((self.square - self.total.square() / self.count) / (self.count - 1)).clamp_min(0.0).mean(0)

    def known(self) -> Tensor:
        """That of the posterior mean (R×D): the mean covariance of two draws, free of the error of K draws.

        With V of the mean over draws and V̄ over rows within a draw, (K V − V̄)/(K − 1).
        """
        draws = len(self.total)
        if draws < 2 or self.count < 2:
            return torch.full(self.total.shape[1:], torch.nan, dtype=torch.float64)
        of_mean = (self.of_mean - self.total.mean(0).square() / self.count) / (self.count - 1)
        return ((draws * of_mean - self.variance()) / (draws - 1)).clamp_min(0.0)


@torch.no_grad()
def _draws(
    vae: ConditionalVAE, moments: Moments, table: Table, draws: int, generator: torch.Generator, trained: Container[Any]
) -> Iterator[_Parts]:
    prior = vae.prior
    assert isinstance(prior, GPPrior)
    count = len(prior.kernel.components)
    known = torch.as_tensor(among(table.labels, trained))
    shift, coefficients = prior.draw_shared(draws, generator), vae.draw_coefficients(draws, generator)
    for rows, batch in chunks(table, draws, width=count * max(prior.width, table.y.shape[1])):
        x = vae.draw_covariates(batch, draws, generator)
        versions = x[:1] if batch.x_mask.all() else x
        seen, history = batch.y_mask.any(1), None
        if prior.couples_rows and table.patient is not None and seen.any():
            trained_before = known[table.patient[rows]].to(x.device)[batch.owner.unique()]
            history = history_of(vae, batch, versions, seen, trained_before)
        f = prior.sample_components(versions, batch.patient, shift, generator, history)  # draws×n×R×L
        noise = prior.noise.sqrt().to(x.dtype) * _normal((draws, len(batch), vae.latent_dim), x, generator)
        z = f.sum(2) + noise
        level, owed = _levels(vae, batch, x, coefficients, generator)
        mean, spread = moments(_decode(vae, z, x) + level)
        parts = [mean - moments(_decode(vae, z - f[:, :, r], x) + level - owed.get(r, 0.0))[0] for r in range(count)]
        if vae.random_effects is not None:
            parts.append(mean - moments(_decode(vae, z, x) + sum(owed.values()))[0])
        visit = mean - moments(_decode(vae, z - noise, x) + level)[0]
        yield _Parts(rows, parts, visit, spread.mean(0).sum(0))


def _levels(
    vae: ConditionalVAE, batch: Batch, x: Tensor, coefficients: Tensor | None, generator: torch.Generator
) -> tuple[Tensor | float, dict[int, Tensor]]:
    """Draws of the level of each row's patient, as part of the decoder's outputs, and what components have of it."""
    own = vae.random_effects
    if own is None:
        return 0.0, {}
    mean, var = vae.encode(batch)
    z = mean + var.sqrt() * _normal((len(x), *mean.shape), x, generator)
    outputs = _decode(vae, z, x)
    nothing, fixed_part = torch.zeros_like(outputs), None
    owed: dict[int, Tensor] = {}
    if own.fixed_effects is not None and coefficients is not None:
        fixed_part = vae.fixed_part_at(x, batch, coefficients)
        for name in own.fixed_effects.names:
            part = vae.likelihood.add_to_gaussian(
                nothing, own.fixed_effects.at(x, batch, coefficients * own.fixed_effects.of(name)).mean
            )
            owner = _owner(vae, name)
            owed[owner] = owed.get(owner, nothing) + part
    drawn = own.draw(*vae.likelihood.gaussian_part(outputs, batch), generator, fixed_part).drawn
    return vae.likelihood.add_to_gaussian(nothing, drawn), owed


def _owner(vae: ConditionalVAE, name: str) -> int:
    """The component that the coefficients of a covariate belong to: the first of the fewest columns."""
    assert isinstance(vae.prior, GPPrior)
    components = vae.prior.kernel.components
    return min(
        (r for r, one in enumerate(components) if one.in_fixed_effects(name)), key=lambda r: len(components[r].columns)
    )


def _decode(vae: ConditionalVAE, z: Tensor, x: Tensor) -> Tensor:
    location: Tensor = vae.decode(z.flatten(0, 1), x.flatten(0, 1)).unflatten(0, (len(z), -1))
    return location


def _normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
