"""Networks with the structure of one model: a chain along visits (GPVAE), a head per column (HIVAE)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from lacova.data.batches import Batch
from lacova.data.measurement_space import MeasurementSpace
from lacova.nn.latents import Chain, Latents
from lacova.nn.linalg import identity
from lacova.nn.networks import LOG_VAR_RANGE, Conv, Dense, Encoder, Networks

# Initial log-variance of a chain. Wide draws are rough, and a smooth prior penalises roughness so heavily that training
# would first make q independent of the measurements and then need several times as many steps.
INITIAL_LOG_VAR = -4.0
# A correlation is the tanh of a number in ±MAX_ARTANH, at most 0.99999.
MAX_ARTANH = 6.0


class ChainEncoder(Encoder):
    """q(Z) of a patient as a Markov chain along time, with a tridiagonal precision Bᵀ B for each latent dimension.

    Visits with a measurement are sorted by time. The network gives each a mean m_i, a standard deviation s_i and the
    correlation r_i with the next visit. A draw runs backwards in time:

        z_i = m_i + s_i u_i,   u_i = r_i u_{i+1} + √(1 − r_i²) ε_i

    That is z = m + B⁻¹ε with B upper bidiagonal. Within the bounds of s and r, every such B has this form. s_i is the
    standard deviation of z_i itself, which keeps long series stable: regression coefficients on z_{i+1} can exceed 1
    and would multiply along the series.

    The network's input at a visit is that visit, the one before, the one after, and the times between them: a
    convolution along irregular times. Rows without any measurement are in no chain. Given the others they follow the
    prior, which is their optimal q, and their KL is zero. Where a time is missing, its prior mean given x_o decides
    the order; any order gives a bound.

    Args:
        networks, measurements, features, latent_dim: as for `Encoder`.
        time: index of the time column in X.
        banded: whether visits are correlated; False fixes r = 0, independent rows.
    """

    def __init__(
        self, networks: Dense | Conv, measurements: int | MeasurementSpace, features: int, latent_dim: int, *,
        time: int, banded: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(networks, measurements, features + 4, latent_dim, rows=3, outputs=3 if banded else 2)
        self.time, self.banded = time, banded
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.bias[latent_dim : 2 * latent_dim] += INITIAL_LOG_VAR

    def latents(self, y: Tensor, batch: Batch, features: Tensor) -> Latents:
        """Compute q(Z) of a batch from its measurements y and covariate features."""
        time = batch.x[:, self.time]
        if batch.conditional_prior is not None:
            time = torch.where(
                batch.x_mask[:, self.time], time, batch.conditional_prior.distribution.mean[:, self.time]
            )
        order = _in_time(batch, time)
        image = self.trunk(self.measurements.features(y, batch.y_mask))
        image, time = image[order.rows], time[order.rows]
        inputs = [image, features[order.rows]]
        for step, exists in ((1, order.rank > 0), (-1, order.rank < order.last)):  # the visit before, the visit after
            gap = (time.roll(step) - time) * exists
            inputs += [image.roll(step, 0) * exists[:, None], gap[:, None], exists[:, None].to(gap.dtype)]
        out = self.head(torch.cat(inputs, dim=1)).unflatten(1, (3 if self.banded else 2, -1))
        out = torch.empty_like(out).index_copy(0, order.rows, out)  # back to the order of the batch
        mean, sd = out[:, 0], (0.5 * out[:, 1].clamp(*LOG_VAR_RANGE)).exp()
        artanh = out[:, 2].clamp(-MAX_ARTANH, MAX_ARTANH) if self.banded else torch.zeros_like(mean)
        chain = order.chain(sd, artanh, batch.longest)
        has_y = batch.y_mask.any(1)[:, None]
        return Latents(torch.where(has_y, mean, 0.0), torch.where(has_y, sd.square(), 1.0), chain)


@dataclass(frozen=True)
class ChainNetworks(Networks):
    """Networks of a GPVAE: a chain along time as encoder, the decoder as it was.

    Args:
        networks: the networks behind both; the chain needs their trunk.
        time, banded: as for `ChainEncoder`.
    """

    networks: Networks
    time: int
    banded: bool

    def build_encoder(self, measurements: MeasurementSpace, features: int, latent_dim: int) -> ChainEncoder:
        return ChainEncoder(
            cast(Dense | Conv, self.networks), measurements, features, latent_dim, time=self.time, banded=self.banded
        )

    def build_decoder(self, inputs: int, outputs: int) -> nn.Module:
        return self.networks.build_decoder(inputs, outputs)


@dataclass(frozen=True)
class ColumnNetworks(Networks):
    """Networks of an HIVAE: the encoder as it was, and a decoder with a head per column.

    Args:
        networks: the networks behind both.
        outputs, width: as for `ColumnDecoder`.
    """

    networks: Networks
    outputs: tuple[tuple[int, ...], ...]
    width: int

    def build_encoder(self, measurements: MeasurementSpace, features: int, latent_dim: int) -> nn.Module:
        return self.networks.build_encoder(measurements, features, latent_dim)

    def build_decoder(self, inputs: int, outputs: int) -> ColumnDecoder:
        return ColumnDecoder(self.networks, inputs, self.outputs, self.width)


class _TimeOrder:
    """Rows with a measurement, patient by patient in order of time, followed by the rows without.

    Attributes:
        rows: the sorted rows (N,).
        rank: rank of each sorted row among its patient's visits (N,).
        last: the last rank of that patient (N,).
        start: place of each patient's first visit (P+1,).
        counts: number of visits of each patient (P,).
    """

    def __init__(self, rows: Tensor, group: Tensor, patients: int) -> None:
        ones = torch.ones_like(group)
        counts = torch.zeros(patients + 1, dtype=torch.long, device=group.device).index_add(0, group, ones)
        self.start, sorted_group = counts.cumsum(0) - counts, group[rows]
        self.rows, self.counts, self.last = rows, counts[:-1], counts[sorted_group] - 1
        self.rank = torch.arange(len(rows), device=rows.device) - self.start[sorted_group]

    def chain(self, sd: Tensor, artanh: Tensor, longest: int | None) -> Chain:
        """Build the chain, R = B⁻¹, from the standard deviation s and artanh r of each row (N×L)."""
        size = max(1, int(self.counts.max()) if longest is None else longest)
        place = torch.arange(size, device=sd.device)
        filled = place < self.counts[:, None]
        at = torch.where(filled, self.start[:-1, None] + place, 0)
        chain = Chain(torch.where(filled, self.rows[at], 0), filled, sd)
        has_next = filled & (place + 1 < self.counts[:, None])
        artanh = chain.gather(artanh) * has_next
        # u = (I − diag(r) shift)⁻¹ diag(√(1 − r²)) ε, with r = tanh(·) and √(1 − r²) = 1/cosh(·)
        eye = identity(size, artanh.dtype, artanh.device)
        bidiagonal = eye - torch.diag_embed(artanh.tanh()[..., :-1], offset=1)
        inverse: Tensor = torch.linalg.solve_triangular(
            bidiagonal, eye.expand_as(bidiagonal), upper=True, unitriangular=True
        )
        deviation = chain.gather(sd) + (~filled)
        return chain._replace(root=deviation[..., None] * inverse / artanh.cosh()[..., None, :])


def _in_time(batch: Batch, time: Tensor) -> _TimeOrder:
    """Sort the rows of a batch by patient and time (N,)."""
    group = torch.where(batch.y_mask.any(1), batch.patient, batch.patients)
    rows = torch.argsort(time, stable=True)
    rows = rows[torch.argsort(group[rows], stable=True)]
    return _TimeOrder(rows, group, batch.patients)


class ColumnDecoder(nn.Module):
    """Decoder with a shared network g(z) and a small head per column of y.

    g gives each column `width` numbers; the column's head turns them into the parameters of its likelihood.

    Args:
        networks: what builds g.
        inputs: width of z, and of the covariate features beside it.
        outputs: indices of the outputs of each column.
        width: numbers per column.
    """

    chosen: Tensor

    def __init__(self, networks: Networks, inputs: int, outputs: Sequence[Sequence[int]], width: int = 5) -> None:
        super().__init__()
        columns, max_outputs = len(outputs), max(map(len, outputs))
        self.shared = networks.build_decoder(inputs, columns * width)
        self.width = width
        bound = width**-0.5
        self.hidden = nn.Parameter(torch.empty(columns, width + 1, width).uniform_(-bound, bound))
        self.last = nn.Parameter(torch.empty(columns, width + 1, max_outputs).uniform_(-bound, bound))
        places = [d * max_outputs + k for d, column in enumerate(outputs) for k in range(len(column))]
        self.register_buffer("chosen", torch.tensor(places), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs (K×measurements) of K inputs (z, or z and covariate features)."""
        values = self.shared(inputs).unflatten(1, (-1, self.width))  # K×D×w
        values = values + torch.relu(_heads(values, self.hidden))  # residual: so few units alone could all die
        out = _heads(values, self.last)
        return out.flatten(1)[:, self.chosen]


def _heads(values: Tensor, weight: Tensor) -> Tensor:
    """Apply one linear layer per column to values (K×D×w); the last row of each weight (D×(w+1)×o) is the bias."""
    return torch.einsum("kdw,dwo->kdo", values, weight[:, :-1]) + weight[:, -1]
