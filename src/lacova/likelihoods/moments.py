"""Mean and variance of each measurement in its own units, given the decoder's outputs; of a category, probabilities.

Effects and what-if questions are differences of these. A category counts as one number per level, its probability.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lacova.data.columns import within_bounds
from lacova.data.kinds import values_of
from lacova.data.scaling import Floats
from lacova.data.table_encoder import TableEncoder
from lacova.likelihoods.likelihood import Likelihood

# Gauss–Hermite quadrature for normal scores; kinks cost some 1% of a standard deviation.
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(20)
LEAST_PROBABILITY = 1e-6  # whose logarithm is taken; float32 tells no smaller ones from 1 minus them


class Moments:
    """Expectations under the observation families of one model.

    Args:
        encoder: units, levels and scales of the measurements.
        likelihood: their families.

    Attributes:
        names: what has a mean: the measurements that are numbers, and `<measurement>_p_<level>`, in the schema's order.
        columns: the measurement of each.
    """

    def __init__(self, encoder: TableEncoder, likelihood: Likelihood) -> None:
        self._encoder, self._likelihood = encoder, likelihood
        measured = encoder.schema.measurements
        parts = [(d, k) for d in range(len(measured)) for k in range(max(1, encoder.measurements.levels[d]))]
        self.columns = [d for d, _ in parts]
        self._levels = [k for _, k in parts]
        values = [values_of(encoder.measurements.families[d]) for d in self.columns]
        self._is_level = [one == "level" for one in values]
        logarithms = encoder.scales.log
        self._positive = [t for t, d in enumerate(self.columns) if logarithms[d] or values[t] in ("positive", "count")]
        levels = [d for t, d in enumerate(self.columns) if self._is_level[t]]
        self._level_sets = [[t for t, of in enumerate(self.columns) if of == d] for d in dict.fromkeys(levels)]
        self.names = tuple(
            f"{measured[d]}_p_{encoder.levels[measured[d]][k]}" if measured[d] in encoder.levels else measured[d]
            for d, k in parts
        )

    @torch.no_grad()
    def __call__(self, outputs: Tensor, var: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return means and variances (…×names) in float64.

        Args:
            outputs: the decoder's outputs, or means of Gaussian columns in their places.
            var: variance of Gaussian columns on the encoded scale (broadcasts to …×D), where it exceeds the noise.
        """
        encoder, likelihood = self._encoder, self._likelihood
        encoded, noise = likelihood.mean(outputs).double(), likelihood.variance(outputs)
        var = (noise if var is None else torch.maximum(var.double(), noise)).expand_as(encoded)
        scale, shift = (torch.as_tensor(part, device=encoded.device) for part in (encoder.y_scale, encoder.y_shift))
        mean, variance = encoded * scale + shift, var * scale.square()
        for d in np.flatnonzero(encoder.scales.log).tolist():  # log-normal: E y = exp(μ + σ²/2)
            log_variance = variance[..., d].clone()
            mean[..., d] = (mean[..., d] + log_variance / 2.0).exp()
            variance[..., d] = log_variance.expm1() * mean[..., d].square()
        for d in encoder.scales.knots:
            mean[..., d], variance[..., d] = self._of_normal_scores(d, encoded[..., d], var[..., d])
        probs = likelihood.level_probabilities(outputs)
        if probs is None:
            return mean, variance
        mean, variance = mean[..., self.columns], variance[..., self.columns]
        levels = np.flatnonzero(self._is_level).tolist()
        own = probs[..., [self.columns[t] for t in levels], [self._levels[t] for t in levels]].double()
        mean[..., levels], variance[..., levels] = own, own * (1.0 - own)
        return mean, variance

    def in_own_units(self, y: Tensor, mean: Tensor) -> Tensor:
        """Return draws of encoded y in their own units (…×names); of a level its probability, taken from the means."""
        own = torch.as_tensor(self._encoder.in_own_units(y), device=mean.device)[..., self.columns]
        return torch.where(torch.tensor(self._is_level, device=mean.device), mean, own)

    def unbounded(self, mean: Tensor) -> Tensor:
        """Return means (…×names) on a scale that has no bounds.

        Positive means and the probabilities of levels have their logarithms, other means are as they are. Adding to
        log-probabilities, up to what all levels of a column share, is adding to log-odds.
        """
        linked = mean.clone()
        linked[..., self._positive] = mean[..., self._positive].clamp_min(torch.finfo(mean.dtype).tiny).log()
        for levels in self._level_sets:
            linked[..., levels] = mean[..., levels].clamp_min(LEAST_PROBABILITY).log()
        return linked

    def bounded(self, linked: Tensor) -> Tensor:
        """Return means from the scale of `unbounded`: positive ones are, and probabilities of a column sum to 1."""
        mean = linked.clone()
        mean[..., self._positive] = linked[..., self._positive].exp()
        for levels in self._level_sets:
            mean[..., levels] = linked[..., levels].softmax(-1)
        return mean

    def within_bounds(self, values: Tensor) -> Floats:
        """Return means or draws (…×names), moved to within the bounds of the schema."""
        bounded, schema = values.cpu().numpy().copy(), self._encoder.schema
        for t, name in enumerate(self.names):
            if not self._is_level[t] and (name in schema.bounds or name in schema.integers):
                bounded[..., t] = within_bounds(bounded[..., t], name, schema)
        return bounded

    def _of_normal_scores(self, column: int, location: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of a column with normal scores, by quadrature, as if noise were normal."""
        knots, first, second = self._encoder.scales.knots[column], 0.0, 0.0
        centre, sd = location.cpu().numpy(), var.sqrt().cpu().numpy()
        for node, weight in zip(NODES, WEIGHTS / WEIGHTS.sum(), strict=True):
            own = knots.decode(centre + node * sd)
            first, second = first + weight * own, second + weight * own**2
        mean = torch.as_tensor(first, device=location.device)
        return mean, (torch.as_tensor(second, device=location.device) - mean.square()).clamp_min(0.0)
