"""What each additive component does to each measurement: decoded differences, and shares of the variance.

With z = Σ_r f_r + ε, the effect of component r at a row is decoder(z) − decoder(z − f_r): what the mean of y loses when
the component's part of z is taken away. The components are drawn jointly, given all measurements of the row's patient.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, Generic, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lacova.batches import Batch
from lacova.dataframes import Frame
from lacova.labels import among
from lacova.longform import gather, in_units, long_form, summary
from lacova.predict import chunks, history_of
from lacova.priors import GPPrior
from lacova.table import Codec, Table
from lacova.vae import ConditionalVAE

LEVEL, VISIT, NOISE = "patient level", "visit", "noise"


class Effects(NamedTuple, Generic[Frame]):
    """Effects row by row, and what each component explains.

    Attributes:
        rows: one line per row, component and measurement, with the `mean` of the effect in the measurement's units,
            its `sd`, and the ends of a central interval, `lower` and `upper`.
        shares: one line per component and a column per measurement: the share of variance.
    """

    rows: Frame
    shares: Frame


class _Parts(NamedTuple):
    """Draws of effects at some rows (draws×n×D each): of each component and the patient's level, and of the visit."""

    rows: Tensor
    components: list[Tensor]
    visit: Tensor


def measure(
    vae: ConditionalVAE, codec: Codec, frame: pd.DataFrame, table: Table, names: tuple[str, ...], draws: int,
    interval: float, generator: torch.Generator, trained: Container[Any],
) -> Effects[pd.DataFrame]:  # fmt: skip
    """Effects of the components called `names` at every row of the table.

    Args:
        vae: the trained model, with a GP prior.
        codec: for units.
        frame: the caller's rows.
        table: the same, encoded.
        names: of the components.
        draws: of everything that is unknown.
        interval: such as 0.9.
        generator: source of noise.
        trained: instance labels that the GP's posterior has seen.
    """
    schema, found, spread = codec.schema, [], _Spread()
    if vae.intercepts is not None:
        names = (*names, LEVEL)
    for part in _draws(vae, table, draws, generator, trained):
        effects = torch.stack(part.components, dim=2)  # draws×n×R×D
        found.append((part.rows, summary(effects, interval) | {"sd": effects.std(0, correction=0).cpu()}))
        spread.add(torch.cat([effects, part.visit[:, :, None]], dim=2))
    whole = gather(found)
    values = {name: in_units(codec, whole[name]) for name in ("mean", "sd", "lower", "upper")}
    rows = long_form(frame, schema, {"component": names, "measurement": schema.measurements}, values)
    variance = torch.cat([spread.variance(), vae.likelihood.var.detach().double().cpu()[None]])
    shares = pd.DataFrame((variance / variance.sum(0)).numpy(), columns=list(schema.measurements))
    labels = pd.DataFrame({"component": np.array([*names, VISIT, NOISE], dtype=object)})
    return Effects(rows, pd.concat([labels, shares], axis=1))


class _Spread:
    """Variance over rows within a draw, averaged over draws, gathered part by part."""

    def __init__(self) -> None:
        self.count, self.total, self.square = 0, torch.zeros(()), torch.zeros(())

    def add(self, values: Tensor) -> None:
        """Take in some rows (draws×n×R×D)."""
        values = values.double().cpu()
        self.count += values.shape[1]
        self.total = self.total + values.sum(1)
        self.square = self.square + values.square().sum(1)

    def variance(self) -> Tensor:
        """R×D; not a number if there is a single row."""
        if self.count < 2:
            return torch.full(self.total.shape[1:], torch.nan, dtype=torch.float64)
        return ((self.square - self.total.square() / self.count) / (self.count - 1)).clamp_min(0.0).mean(0)


@torch.no_grad()
def _draws(
    vae: ConditionalVAE, table: Table, draws: int, generator: torch.Generator, trained: Container[Any]
) -> Iterator[_Parts]:
    prior = vae.prior
    assert isinstance(prior, GPPrior)
    count = len(prior.kernel.components)
    known = torch.as_tensor(among(table.labels, trained))
    shift = prior.draw_shared(draws, generator)
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
        location = _decode(vae, z, x)
        parts = [location - _decode(vae, z - f[:, :, r], x) for r in range(count)]
        if vae.intercepts is not None:
            parts.append(_levels(vae, batch, x, generator))
        yield _Parts(rows, parts, location - _decode(vae, z - noise, x))


def _levels(vae: ConditionalVAE, batch: Batch, x: Tensor, generator: torch.Generator) -> Tensor:
    """Draws of the level of each row's patient (draws×n×D)."""
    assert vae.intercepts is not None
    mean, var = vae.encode(batch)
    z = mean + var.sqrt() * _normal((len(x), *mean.shape), x, generator)
    return vae.intercepts.draw(_decode(vae, z, x), batch, vae.likelihood.var, generator).drawn


def _decode(vae: ConditionalVAE, z: Tensor, x: Tensor) -> Tensor:
    location: Tensor = vae.decode(z.flatten(0, 1), x.flatten(0, 1)).unflatten(0, (len(z), -1))
    return location


def _normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
