"""p(y_o | decoder outputs) of a table: its columns by family, observed entries only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from lacova.data.batches import Batch
from lacova.data.kinds import values_of
from lacova.data.measurement_space import MeasurementSpace
from lacova.data.registry import lookup
from lacova.data.table import Table
from lacova.likelihoods.base import NOISE_FLOOR, Family, FamilyColumns
from lacova.likelihoods.categorical import LevelFamily as LevelFamily
from lacova.likelihoods.counts import Poisson as Poisson
from lacova.likelihoods.gaussian import Gaussian, RowGaussian

Index = Tensor | slice
ALL = slice(None)


class Group(NamedTuple):
    """The columns of one family: their kind, the family, where they stand in y, and where their outputs stand."""

    kind: str
    family: Family
    columns: Index
    outputs: Index


class Likelihood(nn.Module):
    """Observation model of all columns. FamilyColumns of one family are evaluated at once.

    A table of Gaussian columns alone needs no selection of columns: its single group has all of them.

    Args:
        space: layout of Y.
        floor: least noise variance of scaled numbers.
        by_row: whether the noise of Gaussian columns depends on the row. Its logs then follow the decoder's outputs, in
            the order of the columns.
    """

    def __init__(self, space: MeasurementSpace, floor: float = NOISE_FLOOR, by_row: bool = False) -> None:
        super().__init__()
        self.space, self.by_row = space, by_row and "gaussian" in space.families
        self.plain = space.plain and not self.by_row
        self.families = nn.ModuleDict()
        for kind in space.family_names:
            columns = space.columns(kind)
            info = FamilyColumns(
                tuple(space.levels[d] for d in columns), tuple(space.limits[d] for d in columns), noise_floor=floor
            )
            noisy = self.by_row and kind == "gaussian"
            family = RowGaussian if noisy else cast(type[Family], lookup("family", kind))
            if hasattr(nn.ModuleDict, kind):
                raise ValueError(f"a family cannot be called {kind!r}, which torch uses itself; register another name.")
            self.families[kind] = family.build(info)
            if not self.plain:
                outputs = [space.outputs[d] for d in columns]
                if noisy:
                    outputs = [(*own, space.output_width + k) for k, own in enumerate(outputs)]
                width = max(map(len, outputs))
                padded = torch.tensor([[*own, *own[-1:] * (width - len(own))] for own in outputs])
                places = padded if family.outputs != 1 else padded[:, 0]
                self.register_buffer(f"{kind}_columns", torch.tensor(columns), persistent=False)
                self.register_buffer(f"{kind}_outputs", places, persistent=False)

    @classmethod
    def gaussian(cls, noise_variance: Tensor, floor: float = NOISE_FLOOR, by_row: bool = False) -> Likelihood:
        """Return the likelihood of Gaussian columns with these noise variances (D,)."""
        likelihood = cls(MeasurementSpace.of(len(noise_variance)), floor, by_row)
        likelihood.families["gaussian"] = (RowGaussian if by_row else Gaussian)(noise_variance, floor)
        return likelihood

    @classmethod
    def learn(
        cls, space: MeasurementSpace, table: Table, floor: float = NOISE_FLOOR, by_row: bool = False
    ) -> Likelihood:  # fmt: skip
        """Return the likelihood of a space, started from the observed entries of a table."""
        likelihood = cls(space, floor, by_row)
        for group in likelihood._groups():
            group.family.initialise(table.y[:, group.columns], table.y_mask[:, group.columns])
        return likelihood

    def log_prob(self, outputs: Tensor, y: Tensor, mask: Tensor, extra: float | Tensor = 0.0) -> Tensor:
        """Return Σ_{d observed} log p(y_d) per row; `extra` is variance of Gaussian columns beside their noise."""
        if self.plain:
            return (self._gaussian.log_prob(outputs, y, extra) * mask).sum(-1)
        total = outputs.new_zeros(())
        y = torch.where(mask, y, 0.0)
        for kind, family, columns, places in self._groups():
            more = {"extra": extra} if kind == "gaussian" else {}
            log_prob = family.log_prob(outputs[..., places], _valid(y[..., columns], mask[..., columns], kind), **more)
            total = total + torch.where(mask[..., columns], log_prob, 0.0).sum(-1)
        return total

    def entry_log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return log p(y) per entry (…×D), all observed."""
        return self._by_column(
            outputs,
            outputs.dtype,
            lambda group, own: group.family.log_prob(own, _valid(y[..., group.columns], None, group.kind)),
        )

    def mean(self, outputs: Tensor) -> Tensor:
        """Return E y on the encoded scale per entry (…×D); 0 for codes of levels."""
        return self._by_column(
            outputs, outputs.dtype, lambda group, own: None if _has_levels(group) else group.family.mean(own)
        )

    def variance(self, outputs: Tensor) -> Tensor:
        """Return Var y on the encoded scale in float64, in what broadcasts to …×D; 0 for codes of levels."""
        if self.plain:
            return self.noise_variance.double()
        return self._by_column(
            outputs, torch.float64, lambda group, own: None if _has_levels(group) else group.family.variance(own)
        )

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Draw y once per entry (…×D)."""
        return self._by_column(outputs, outputs.dtype, lambda group, own: group.family.sample(own, generator))

    def level_probabilities(self, outputs: Tensor) -> Tensor | None:
        """Return the probability of each level per entry (…×D×K), 0 for numbers; None without columns of levels."""
        if not self.space.max_levels:
            return None
        probs = outputs.new_zeros(*outputs.shape[:-1], len(self.space), self.space.max_levels)
        for group in self._groups():
            if _has_levels(group):
                own = group.family.log_probabilities(outputs[..., group.outputs]).exp()
                probs[..., group.columns, : own.shape[-1]] = own
        return probs

    # Gaussian columns, which may have random effects.

    @property
    def noise_variance(self) -> Tensor:
        """Noise variances of the Gaussian columns (n,); where noise depends on the row, those about which it varies."""
        return self._gaussian.noise_variance

    def set_noise_variance(self, variance: Tensor) -> None:
        """Start the noise of the Gaussian columns from these variances (n,)."""
        self._gaussian.set_variance(variance)

    def gaussian_part(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Batch, Tensor]:
        """Return locations, rows and noise variances of the Gaussian columns alone."""
        if self.plain:
            return outputs, batch, self.noise_variance
        columns, places = self._gaussian_index
        own = replace(batch, y=batch.y[:, columns], y_mask=batch.y_mask[:, columns])
        return self._gaussian.mean(outputs[..., places]), own, self.noise_variance

    def add_to_gaussian(self, outputs: Tensor, values: Tensor) -> Tensor:
        """Return the outputs with values (…×N̂×n) added to the locations of the Gaussian columns."""
        if self.plain:
            return outputs + values
        places = self._gaussian_index[1]
        return outputs.index_copy(-1, places, outputs[..., places] + values)

    def subtract_from_gaussian(self, y: Tensor, values: Tensor) -> Tensor:
        """Return y (N̂×D) less values (N̂×n) in the Gaussian columns."""
        return y - values if self.plain else y.index_add(1, self._gaussian_index[0], -values)

    def gaussian_variance(self, outputs: Tensor, extra: Tensor | None = None) -> Tensor:
        """Return noise plus `extra` variance of the Gaussian columns, 0 of others: in what broadcasts to …×D."""
        if self.plain:
            return self.noise_variance if extra is None else self.noise_variance + extra
        var = outputs.new_zeros(*outputs.shape[:-1], len(self.space))
        if "gaussian" in self.families:
            columns = self._gaussian_index[0]
            places = self._gaussian_index[1]
            var[..., columns] = self._gaussian.variance(outputs[..., places])
            if extra is not None:
                var[..., columns] += extra
        return var

    @property
    def _gaussian(self) -> Gaussian:
        return cast(Gaussian, self.families["gaussian"])

    @property
    def _gaussian_index(self) -> tuple[Tensor, Tensor]:
        return cast(Tensor, self.gaussian_columns), cast(Tensor, self.gaussian_outputs)

    def _groups(self) -> Iterator[Group]:
        for kind, family in self.families.items():
            index = (ALL, ALL) if self.plain else (getattr(self, f"{kind}_columns"), getattr(self, f"{kind}_outputs"))
            yield Group(kind, cast(Family, family), *index)

    def _by_column(
        self, outputs: Tensor, dtype: torch.dtype, values: Callable[[Group, Tensor], Tensor | None]
    ) -> Tensor:
        """Return what each family gives, column by column (…×D); 0 where it gives nothing."""
        if self.plain:
            return cast(Tensor, values(next(self._groups()), outputs))
        columns = outputs.new_zeros(*outputs.shape[:-1], len(self.space), dtype=dtype)
        for group in self._groups():
            own = values(group, outputs[..., group.outputs])
            if own is not None:
                columns[..., group.columns] = own.to(dtype)
        return columns


def _has_levels(group: Group) -> bool:
    return values_of(group.kind) == "level"


def _valid(y: Tensor, mask: Tensor | None, kind: str) -> Tensor:
    """Return y with 1 in the gaps, which hold 0, of kinds that are positive; without a mask there are no gaps."""
    if values_of(kind) != "positive":
        return y
    positive = y.clamp_min(torch.finfo(y.dtype).tiny)
    return positive if mask is None else torch.where(mask, positive, 1.0)
