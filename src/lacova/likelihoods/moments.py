"""Mean and variance of each measurement, in its own units, at what the decoder gives; of a category, its level_probabilities.

What effects and what-if questions take differences of. A category counts as one number per level, its probability.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lacova.data.columns import keep
from lacova.data.encoder import TableEncoder
from lacova.data.measurement_space import COUNTS, LEVELS
from lacova.data.scaling import Floats
from lacova.likelihoods.families import GaussianLikelihood, NegativeBinomial, Student
from lacova.likelihoods.mixed import Likelihood, MixedLikelihood

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(20)  # for normal scores; kinks cost some 1% of a deviation


class Moments:
    """Expectations under one model's observation families.

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
        self._coded = [encoder.measurements.families[d] in LEVELS for d in self.columns]
        self.names = tuple(
            f"{measured[d]}_p_{encoder.levels[measured[d]][k]}" if measured[d] in encoder.levels else measured[d]
            for d, k in parts
        )

    @torch.no_grad()
    def __call__(self, outputs: Tensor, var: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Means and variances (…×names), float64.

        Args:
            outputs: the decoder's, or means of Gaussian columns in their places.
            var: of Gaussian columns on the encoded scale (broadcasts to …×D), where it is more than that of noise.
        """
        encoder, likelihood = self._encoder, self._likelihood
        noise = self._noise(outputs)
        encoded = (likelihood.mean(outputs) if isinstance(likelihood, MixedLikelihood) else outputs).double()
        var = (noise if var is None else torch.maximum(var.double(), noise)).expand_as(encoded)
        scale, shift = (torch.as_tensor(each, device=encoded.device) for each in (encoder.y_scale, encoder.y_shift))
        mean, spread = encoded * scale + shift, var * scale.square()
        for d in np.flatnonzero(encoder.scales.log).tolist():  # log-normal: E y = exp(μ + σ²/2)
            width = spread[..., d].clone()
            mean[..., d] = (mean[..., d] + width / 2.0).exp()
            spread[..., d] = width.expm1() * mean[..., d].square()
        for d in encoder.scales.knots:
            mean[..., d], spread[..., d] = self._scored(d, encoded[..., d], var[..., d])
        if isinstance(likelihood, MixedLikelihood):
            return self._with_counts_and_levels(likelihood, outputs, mean, spread)
        return mean, spread

    def drawn(self, y: Tensor, mean: Tensor) -> Tensor:
        """Draws of encoded y in their own units (…×names); of a level, its probabilities, taken from the means."""
        own = torch.as_tensor(self._encoder.own(y), device=mean.device)[..., self.columns]
        return torch.where(torch.tensor(self._coded, device=mean.device), mean, own)

    def kept(self, values: Tensor) -> Floats:
        """Means or draws (…×names), moved to within the bounds of the schema."""
        found, schema = values.cpu().numpy().copy(), self._encoder.schema
        for t, name in enumerate(self.names):
            if not self._coded[t] and (name in schema.bounds or name in schema.integers):
                found[..., t] = keep(found[..., t], name, schema)
        return found

    def _noise(self, outputs: Tensor) -> Tensor:
        """Noise variance on the encoded scale (D,); 0 of counts and levels."""
        found = outputs.new_zeros(len(self._encoder.measurements), dtype=torch.float64)
        likelihood = self._likelihood
        if isinstance(likelihood, GaussianLikelihood):
            return found + likelihood.var
        for name, part in likelihood.families.items():
            if isinstance(part, GaussianLikelihood):
                spread = part.freedom / (part.freedom - 2.0) if isinstance(part, Student) else 1.0
                found[self._encoder.measurements.columns(name)] = (part.var * spread).double()
        return found

    def _scored(self, column: int, location: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Of normal scores, by quadrature, as if noise were normal."""
        knots, first, second = self._encoder.scales.knots[column], 0.0, 0.0
        at, sd = location.cpu().numpy(), var.sqrt().cpu().numpy()
        for node, weight in zip(NODES, WEIGHTS / WEIGHTS.sum(), strict=True):
            own = knots.decode(at + node * sd)
            first, second = first + weight * own, second + weight * own**2
        mean = torch.as_tensor(first, device=location.device)
        return mean, (torch.as_tensor(second, device=location.device) - mean.square()).clamp_min(0.0)

    def _with_counts_and_levels(
        self, likelihood: MixedLikelihood, outputs: Tensor, mean: Tensor, spread: Tensor
    ) -> tuple[Tensor, Tensor]:
        space = self._encoder.measurements
        for name in COUNTS:
            if columns := space.columns(name):
                part, count = likelihood.families[name], mean[..., columns]
                extra = (-part.log_size).exp().double() if isinstance(part, NegativeBinomial) else 0.0
                spread[..., columns] = count + extra * count.square()
        mean, spread = mean[..., self.columns], spread[..., self.columns]
        if coded := np.flatnonzero(self._coded).tolist():
            levels = [self._levels[t] for t in coded]
            level_probabilities = likelihood.level_probabilities(outputs)[
                ..., [self.columns[t] for t in coded], levels
            ].double()
            mean[..., coded], spread[..., coded] = (
                level_probabilities,
                level_probabilities * (1.0 - level_probabilities),
            )
        return mean, spread
