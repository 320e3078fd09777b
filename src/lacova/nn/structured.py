"""Networks of models with a structure of their own: a chain along visits (GPVAE), a head per column (HIVAE)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lacova.data.batches import Batch
from lacova.data.measurement_space import MeasurementSpace
from lacova.nn.latents import Chain, Latents
from lacova.nn.linalg import identity
from lacova.nn.networks import LOG_VAR_RANGE, Conv, Decoder, Dense, Encoder

# Log-variances of a chain start here. Uncertain draws are rough, which costs so much under a smooth prior that q would
# first unlearn to look at the measurements, and take several times as many steps.
START = -4.0
# A correlation is the tanh of a number within ±TIGHT, at most 0.99999.
TIGHT = 6.0


class ChainEncoder(Encoder):
    """q(Z) of a patient as a chain along time, with a tridiagonal precision Bᵀ B for each latent dimension.

    Visits with a measurement are put in the order of time. Each gives a mean m_i, a standard deviation s_i and its
    correlation r_i with the next, and the draw goes backwards in time:

        z_i = m_i + s_i u_i,   u_i = r_i u_{i+1} + √(1 − r_i²) ε_i

    That is z = m + B⁻¹ε with B upper bidiagonal, and every such B can be had so, up to the bounds of s and r. s_i is
    the standard deviation of z_i itself, so that no series is too long: coefficients on z_{i+1}, which exceed 1 where
    the next visit tells more than the visit itself, would multiply along it. Visits see the one before and the one
    after, and the time between, as a convolution along time would, but at irregular times. Rows without any
    measurement are in no chain: given the others they follow the prior, which is the best q of them, and their KL is
    zero. Where a time is missing, what the covariate prior expects of it decides the order; any order gives a bound.

    Args:
        architecture, measurements, features, latent_dim: as of `Encoder`.
        time: the column of X that holds it.
        banded: False for r = 0, independent rows.
    """

    def __init__(
        self, architecture: Dense | Conv, measurements: int | MeasurementSpace, features: int, latent_dim: int, *,
        time: int, banded: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(architecture, measurements, features + 4, latent_dim, rows=3, outputs=3 if banded else 2)
        self.time, self.banded = time, banded
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.bias[latent_dim : 2 * latent_dim] += START

    def latents(self, y: Tensor, batch: Batch, features: Tensor) -> Latents:
        """q(Z) of a batch, of which the network sees y."""
        time = batch.x[:, self.time]
        if batch.conditional_prior is not None:
            time = torch.where(
                batch.x_mask[:, self.time], time, batch.conditional_prior.distribution.mean[:, self.time]
            )
        line = _in_time(batch, time)
        image = self.trunk(self.measurements.features(y, batch.y_mask))
        image, time = image[line.order], time[line.order]
        seen = [image, features[line.order]]
        for step, there in ((1, line.rank > 0), (-1, line.rank < line.last)):
            gap = (time.roll(step) - time) * there
            seen += [image.roll(step, 0) * there[:, None], gap[:, None], there[:, None].to(gap.dtype)]
        out = self.head(torch.cat(seen, dim=1)).unflatten(1, (3 if self.banded else 2, -1))
        out = torch.empty_like(out).index_copy(0, line.order, out)  # as the rows stand in the batch
        mean, spread = out[:, 0], (0.5 * out[:, 1].clamp(*LOG_VAR_RANGE)).exp()
        tie = out[:, 2].clamp(-TIGHT, TIGHT) if self.banded else torch.zeros_like(mean)
        chain = line.chain(spread, tie, batch.longest)
        with_y = batch.y_mask.any(1)[:, None]
        return Latents(torch.where(with_y, mean, 0.0), torch.where(with_y, spread.square(), 1.0), chain)


class _Line:
    """Rows with a measurement, patient by patient in the order of time; then the others.

    Attributes:
        order: row at each place (N,).
        rank: of it among its patient's (N,); `last`: the last rank of its patient.
        counts: visits of each patient (P,).
    """

    def __init__(self, order: Tensor, group: Tensor, patients: int) -> None:
        ones = torch.ones_like(group)
        counts = torch.zeros(patients + 1, dtype=torch.long, device=group.device).index_add(0, group, ones)
        self.start, here = counts.cumsum(0) - counts, group[order]
        self.order, self.counts, self.last = order, counts[:-1], counts[here] - 1
        self.rank = torch.arange(len(order), device=order.device) - self.start[here]

    def chain(self, spread: Tensor, tie: Tensor, longest: int | None) -> Chain:
        """With R = B⁻¹ from the standard deviations and artanh r of each row (N×L)."""
        size = max(1, int(self.counts.max()) if longest is None else longest)
        place = torch.arange(size, device=spread.device)
        filled = place < self.counts[:, None]
        at = torch.where(filled, self.start[:-1, None] + place, 0)
        chain = Chain(torch.where(filled, self.order[at], 0), filled, spread)
        after = filled & (place + 1 < self.counts[:, None])  # the last visit of a patient has no one after it
        tie = chain.gather(tie) * after
        # u = (I − diag(r) shift)⁻¹ diag(√(1 − r²)) ε
        eye = identity(size, tie.dtype, tie.device)
        link = eye - torch.diag_embed(tie.tanh()[..., :-1], offset=1)
        inverse: Tensor = torch.linalg.solve_triangular(link, eye.expand_as(link), upper=True, unitriangular=True)
        deviation = chain.gather(spread) + (~filled)
        return chain._replace(root=deviation[..., None] * inverse / tie.cosh()[..., None, :])


def _in_time(batch: Batch, time: Tensor) -> _Line:
    group = torch.where(batch.y_mask.any(1), batch.patient, batch.patients)
    order = torch.argsort(time, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    return _Line(order, group, batch.patients)


class ColumnDecoder(nn.Module):
    """g(z) gives each column of y a few numbers of its own; a small head per column makes its parameters of them.

    Args:
        architecture: the networks of g.
        latent_dim: L.
        features: width of what is seen of x beside z.
        measurements: number of outputs.
        outputs: per column, which of these are its own.
        width: numbers per column.
    """

    chosen: Tensor

    def __init__(
        self, architecture: Dense | Conv, latent_dim: int, features: int, measurements: int, *,
        outputs: Sequence[Sequence[int]], width: int = 5,
    ) -> None:  # fmt: skip
        super().__init__()
        columns, most = len(outputs), max(map(len, outputs))
        self.shared = Decoder(architecture, latent_dim, features, columns * width)
        self.width = width
        reach = width**-0.5
        self.hidden = nn.Parameter(torch.empty(columns, width + 1, width).uniform_(-reach, reach))
        self.last = nn.Parameter(torch.empty(columns, width + 1, most).uniform_(-reach, reach))
        places = [d * most + k for d, own in enumerate(outputs) for k in range(len(own))]
        assert len(places) == measurements
        self.register_buffer("chosen", torch.tensor(places), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        own = self.shared(inputs).unflatten(1, (-1, self.width))  # K×D×w
        own = own + torch.relu(_heads(own, self.hidden))  # so few units would die out by themselves
        out = _heads(own, self.last)
        return out.flatten(1)[:, self.chosen]


def _heads(values: Tensor, weight: Tensor) -> Tensor:
    """A linear layer per column: K×D×w with weights D×(w+1)×o, the last of which are the biases."""
    return torch.einsum("kdw,dwo->kdo", values, weight[:, :-1]) + weight[:, -1]
