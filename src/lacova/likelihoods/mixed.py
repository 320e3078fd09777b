"""The observation model of a table: all columns Gaussian, or columns of several families; observed entries only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from lacova.data.encoder import Table
from lacova.data.measurement_space import FAMILIES, LEVELS, MeasurementSpace
from lacova.likelihoods.families import NOISE_FLOOR, Coded, Family, GaussianLikelihood, Numeric, family


class MixedLikelihood(nn.Module):
    """Columns of several families, each family's at once.

    Args:
        space: layout of Y.
        floor: least noise variance of scaled numbers.
    """

    def __init__(self, space: MeasurementSpace, floor: float = NOISE_FLOOR) -> None:
        super().__init__()
        self.space = space
        self.families = nn.ModuleDict()
        for name in FAMILIES:
            columns = space.columns(name)
            if columns:
                self.families[name] = family(name, space, columns, floor)
                outputs = [space.outputs[d] for d in columns]
                most = max(map(len, outputs))
                padded = [[*own, *own[-1:] * (most - len(own))] for own in outputs]
                places = torch.tensor(padded) if name == "categorical" else torch.tensor(padded)[:, 0]
                self.register_buffer(f"{name}_columns", torch.tensor(columns), persistent=False)
                self.register_buffer(f"{name}_outputs", places, persistent=False)

    def start(self, table: Table) -> None:
        """Start from the observed entries of a table."""
        for _, part, columns, _ in self._parts():
            part.start(table.y[:, columns], table.y_mask[:, columns])

    def start_at(self, var: Tensor) -> None:
        """Start from these noise variances of Gaussian columns."""
        cast(GaussianLikelihood, self.families["gaussian"]).start_at(var)

    @property
    def gaussian(self) -> tuple[Tensor, Tensor]:
        """The columns of y with normal noise, and the decoder's outputs that are their locations (n,)."""
        return cast(Tensor, self.gaussian_columns), cast(Tensor, self.gaussian_outputs)

    @property
    def var(self) -> Tensor:
        """Noise variances of the columns with normal noise (n,)."""
        return cast(GaussianLikelihood, self.families["gaussian"]).var

    def log_prob(self, outputs: Tensor, y: Tensor, mask: Tensor, extra: float | Tensor = 0.0) -> Tensor:
        """Per row, Σ_{d observed} log p(y_d); `extra` is variance beside the noise of Gaussian columns."""
        total = outputs.new_zeros(())
        y = torch.where(mask, y, 0.0)
        for name, part, columns, places in self._parts():
            own, seen = outputs[..., places], y[..., columns]
            wider = {"extra": extra} if name == "gaussian" else {}
            each = part.each(own, seen, **wider)
            total = total + torch.where(mask[..., columns], each, 0.0).sum(-1)
        return total

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log p(y) per entry (…×D), all observed."""
        return self._gather(outputs, lambda part, own, columns: part.each(own, y[..., columns]))

    def mean(self, outputs: Tensor) -> Tensor:
        """Expectation of y on its encoded scale per entry (…×D); 0 for codes."""
        return self._gather(outputs, lambda part, own, _: part.mean(own) if isinstance(part, Numeric) else None)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """One draw of y per entry (…×D)."""
        return self._gather(outputs, lambda part, own, _: part.sample(own, generator))

    def level_probabilities(self, outputs: Tensor) -> Tensor:
        """Probability of each level per entry (…×D×K); 0 for numbers, and for levels that are not there."""
        found = outputs.new_zeros(*outputs.shape[:-1], len(self.space), self.space.max_levels)
        for name, part, columns, places in self._parts():
            if name in LEVELS:
                level_probabilities = cast(Coded, part).log_probabilities(outputs[..., places]).exp()
                found[..., columns, : level_probabilities.shape[-1]] = level_probabilities
        return found

    def _gather(self, outputs: Tensor, answer: Callable[[Family, Tensor, Tensor], Tensor | None]) -> Tensor:
        found = outputs.new_zeros(*outputs.shape[:-1], len(self.space))
        for _, part, columns, places in self._parts():
            values = answer(part, outputs[..., places], columns)
            if values is not None:
                found[..., columns] = values
        return found

    def _parts(self) -> Iterator[tuple[str, Family, Tensor, Tensor]]:
        """Each family with the columns of y that are its own, and the decoder's outputs for them."""
        for name, part in self.families.items():
            yield name, cast(Family, part), getattr(self, f"{name}_columns"), getattr(self, f"{name}_outputs")


Likelihood = GaussianLikelihood | MixedLikelihood


def blank(space: MeasurementSpace, floor: float = NOISE_FLOOR) -> Likelihood:
    """The observation model of a space: the short way if all columns are Gaussian."""
    return GaussianLikelihood(torch.ones(len(space)), floor) if space.plain else MixedLikelihood(space, floor)


def learn(space: MeasurementSpace, table: Table, floor: float = NOISE_FLOOR) -> Likelihood:
    """The same, started from the observed entries of a table: noise explains everything until the network does."""
    if space.plain:
        return GaussianLikelihood.learn(table, floor)
    made = MixedLikelihood(space, floor)
    made.start(table)
    return made
