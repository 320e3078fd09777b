"""From a DataFrame to tensors and back: encoding, scaling and masking, and the inverse of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from lacova.data.columns import (
    measurement_values,
    numbers,
    patient_codes,
    require_columns,
    spread_static,
    within_bounds,
)
from lacova.data.covariate_space import CovariateSpace
from lacova.data.filling import copy_within, fill_column
from lacova.data.kinds import values_of
from lacova.data.levels import Unseen, UnseenLevels, level_codes, without_unseen
from lacova.data.measurement_space import NO_LIMITS, MeasurementSpace
from lacova.data.scaling import Floats, Scales
from lacova.data.schema import Schema
from lacova.data.statistics import ColumnStatistics, Scaling, check_scaling
from lacova.data.table import Table


class TableEncoder:
    """Encodes tables with the scales and levels of the training rows.

    Args:
        schema: the roles of the columns.
        scales: how measurements are scaled.
        x_shift, x_scale: location and scale of the covariates (Q,); 0 and 1 for categories.
        levels: the ordered levels of each categorical column.
    """

    def __init__(
        self, schema: Schema, scales: Scales, x_shift: Floats, x_scale: Floats, levels: dict[str, tuple[Any, ...]]
    ) -> None:
        self.schema = schema
        self.scales = scales
        self.y_shift, self.y_scale = scales.shift, scales.scale
        self.x_shift, self.x_scale = x_shift, x_scale
        self.levels = levels
        self.space = CovariateSpace(
            names=tuple(schema.covariates),
            levels=tuple(len(levels[name]) if name in levels else 0 for name in schema.covariates),
            static=tuple(name in schema.static for name in schema.covariates),
        )
        self.measurements = self._measurement_space()

    def _measurement_space(self) -> MeasurementSpace:
        schema, names = self.schema, self.schema.measurements
        kinds = {name: schema.kinds.get(name, "gaussian") for name in names}
        levels = {name: len(self.levels[name]) for name in names if name in self.levels}
        levels |= {name: 2 for name in levels if kinds[name] == "bernoulli"}
        limits = []
        for d, name in enumerate(names):
            ends = zip(schema.limits.get(name, (None, None)), NO_LIMITS, strict=True)
            limits.append(
                [none if end is None else float(self.scales.encode(d, np.float64(end))) for end, none in ends]
            )
        return MeasurementSpace(
            tuple("gaussian" if kind == "lognormal" else kind for kind in kinds.values()),
            tuple(levels.get(name, 0) for name in names), tuple((low, high) for low, high in limits),
        )  # fmt: skip

    @classmethod
    def learn(cls, schema: Schema, frame: pd.DataFrame, scaling: Scaling = "standard") -> TableEncoder:
        """Learn scales and levels from the observed entries of the training rows."""
        statistics = ColumnStatistics(schema)
        statistics.add(frame)
        return cls.from_statistics(statistics, scaling, frame)

    @classmethod
    def from_statistics(
        cls, statistics: ColumnStatistics, scaling: Scaling = "standard", sample: pd.DataFrame | None = None
    ) -> TableEncoder:
        """Build an encoder from the statistics of the training rows, and a sample of them for normal scores."""
        check_scaling(scaling)
        return cls(
            statistics.schema,
            statistics.measurement_scales(scaling, sample),
            *statistics.covariate_scales(),
            statistics.levels(),
        )

    def encode(
        self, frame: pd.DataFrame, *, measurements: bool = True, dtype: torch.dtype = torch.float32,
        unseen: Unseen = "error",
    ) -> Table:  # fmt: skip
        """Return a table as tensors on the training scales.

        Args:
            frame: the rows.
            measurements: False if all of Y is missing, whatever the rows hold.
            dtype: of the tensors.
            unseen: what becomes of entries with levels that training does not know: "missing", the same with a warning,
                "warn", or "error".
        """
        schema, beyond = self.schema, UnseenLevels()
        self.require(frame, measurements)

        def codes(name: str) -> Floats:
            codes = level_codes(frame[name], self.levels[name])
            beyond.add(frame[name], codes, self.levels[name])
            return codes

        n = len(frame)
        y = np.full((n, len(schema.measurements)), np.nan)
        if measurements:
            for d, name in enumerate(schema.measurements):
                if name in self.levels:
                    y[:, d] = self._known(name, codes(name))
                else:
                    y[:, d] = self.scales.encode(d, measurement_values(frame, name, schema))
        x = np.empty((n, len(schema.covariates)))
        for q, (name, kind) in enumerate(schema.covariates.items()):
            x[:, q] = codes(name) if kind == "categorical" else self._standardised(frame, name)
        patient, labels = patient_codes(frame, schema.instance)
        if patient is not None:
            for name in schema.static:
                q = self.space.names.index(name)
                x[:, q] = spread_static(x[:, q], patient, labels, name)
        for q in self.space.categorical:
            x[:, q] = self._known(self.space.names[q], x[:, q])
        beyond.handle(unseen)
        return Table(
            y=torch.as_tensor(np.nan_to_num(y), dtype=dtype), y_mask=torch.as_tensor(~np.isnan(y)),
            x=torch.as_tensor(np.nan_to_num(x), dtype=dtype), x_mask=torch.as_tensor(~np.isnan(x)),
            patient=None if patient is None else torch.as_tensor(patient), labels=labels,
        )  # fmt: skip

    def encode_covariate(self, frame: pd.DataFrame, name: str) -> Floats:
        """Return one covariate on its training scale, or as codes, NaN at gaps; refuse unseen levels."""
        if name not in self.levels:
            return self._standardised(frame, name)
        beyond, codes = UnseenLevels(), level_codes(frame[name], self.levels[name])
        beyond.add(frame[name], codes, self.levels[name])
        beyond.handle("error")
        return codes

    def _standardised(self, frame: pd.DataFrame, name: str) -> Floats:
        q = self.space.names.index(name)
        return np.asarray((numbers(frame, name) - self.x_shift[q]) / self.x_scale[q])

    def require(self, frame: pd.DataFrame, measurements: bool = True) -> None:
        """Refuse anything but a DataFrame with rows that has every column of the schema."""
        require_columns(frame, [c for c in self.schema.columns if measurements or c not in self.schema.measurements])

    def decode_measurements(self, y: Tensor) -> Floats:
        """Return measurements (…×D) in their own units and within their bounds; categories as codes."""
        return self.within_bounds(self.in_own_units(y))

    def in_own_units(self, y: Tensor) -> Floats:
        """Return measurements (…×D) in their own units, regardless of bounds; categories as codes."""
        return self.scales.decode(y.detach().cpu().double().numpy())

    def within_bounds(self, values: Floats) -> Floats:
        """Round and clip measurements (…×D), in their own units, in place; return them."""
        for name in {*self.schema.bounds, *self.schema.integers} - self.schema.covariates.keys():
            d = self.schema.measurements.index(name)
            values[..., d] = within_bounds(values[..., d], name, self.schema)
        return values

    def decode_covariate(self, name: str, x: Tensor) -> npt.NDArray[Any]:
        """Return one covariate in its own units and within its bounds, or as levels."""
        values = x.detach().cpu().double().numpy()
        if name in self.levels:
            return self.labels(name, values)
        q = self.space.names.index(name)
        return within_bounds(np.asarray(values * self.x_scale[q] + self.x_shift[q]), name, self.schema)

    def labels(self, name: str, codes: Floats) -> npt.NDArray[Any]:
        """Return the levels of the codes."""
        levels = np.empty(len(self.levels[name]), dtype=object)
        levels[:] = self.levels[name]
        return np.asarray(levels[np.minimum(codes.round().astype(int), len(levels) - 1)])

    def fill(self, frame: pd.DataFrame, y: Floats, x: Tensor) -> pd.DataFrame:
        """Return a copy of `frame` with only its gaps filled, from y (in own units, or codes) and x (encoded)."""
        filled, whole = frame.copy(), set[str]()
        types, columns = frame.dtypes.to_dict(), self.schema.measurements
        plain = [d for d, name in enumerate(columns) if types.get(name) == np.dtype(float) and self._is_number(name)]
        if len(plain) > 1:  # at once, which takes a small part of the time where there are many, as with images
            names = [columns[d] for d in plain]
            values = frame[names].to_numpy()
            filled[names] = np.where(np.isnan(values), y[:, plain], values)
            whole.update(names)
        for d, name in enumerate(columns):
            if name in filled.columns and name not in whole:
                count = values_of(self.schema.kinds.get(name)) == "count"
                values = np.rint(y[:, d]) if count else y[:, d]
                decoded = self.labels(name, values) if name in self.levels else values
                filled[name] = fill_column(filled[name], decoded)
        for q, name in enumerate(self.schema.covariates):
            if name in self.schema.static:
                filled[name] = copy_within(filled[name], filled[self.schema.instance])
            filled[name] = fill_column(filled[name], self.decode_covariate(name, x[:, q]))
        return filled

    def _is_number(self, name: str) -> bool:
        return name not in self.levels and values_of(self.schema.kinds.get(name)) != "count"

    def log_jacobian(self, y: Tensor, y_mask: Tensor) -> Tensor:
        """Return Σ_d log |∂y_encoded/∂y| over the observed entries of each row (N,).

        Added to a log density of encoded measurements, it gives that of the measurements in their own units.
        """
        return torch.where(y_mask, self.log_slopes(y), 0.0).sum(-1)

    def log_slopes(self, y: Tensor) -> Tensor:
        """Return log |∂y_encoded/∂y| per entry; 0 for counts, categories, and entries at a limit of detection."""
        if self.measurements.plain and self.scales.linear.all():
            return torch.as_tensor(-np.log(self.y_scale), device=y.device).expand_as(y)
        slopes = self.scales.log_slope(y.detach().cpu().double().numpy())
        return torch.as_tensor(np.where(self.beyond(y).any(0), 0.0, slopes), device=y.device)

    def beyond(self, y: Tensor) -> npt.NDArray[np.bool_]:
        """Return which entries lie at or beyond the lower and the upper limit of detection (2×N×D)."""
        values = y.detach().cpu().numpy()
        lower, upper = np.array(self.measurements.limits, dtype=values.dtype).T
        return np.stack([values <= lower, values >= upper])

    def codes(self, frame: pd.DataFrame, name: str) -> Floats:
        """Return the codes of a column's levels, NaN at gaps and at levels that training does not know."""
        return self._known(name, level_codes(frame[name], self.levels[name]))

    def without_unseen(self, frame: pd.DataFrame, unseen: Unseen = "missing") -> pd.DataFrame:
        """Return the rows with gaps in the place of levels that training does not know; see `encode`."""
        return without_unseen(frame, self.levels, unseen)

    def _known(self, name: str, codes: Floats) -> Floats:
        return np.where(codes < len(self.levels[name]), codes, np.nan)
