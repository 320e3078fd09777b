"""DataFrame ⇄ tensors. The only module that knows both: it encodes, scales and masks, and undoes all three."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from lacova.data.columns import (
    ColumnStatistics,
    Scaling,
    check_scaling,
    keep,
    measured,
    numbers,
    patients,
    require,
    some,
    spread_static,
)  # fmt: skip
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior
from lacova.data.errors import DataError
from lacova.data.measurement_space import COUNTS, NO_LIMITS, MeasurementSpace
from lacova.data.scaling import Floats, Scales
from lacova.data.schema import Schema


@dataclass(frozen=True)
class Table:
    """One table as tensors. Gaps hold 0 and are False in the mask.

    Attributes:
        y: measurements (N×D), with mask `y_mask`: numbers scaled, counts as they are, categories as level codes.
        x: covariates (N×Q), continuous ones standardised, categorical ones as level codes, with mask `x_mask`.
        patient: code of each row's instance (N,), numbered by first appearance; None without instance column.
        labels: the instance labels behind those codes.
        conditional_prior: what the covariate prior says of each row's gaps, once a model has prepared the table.
    """

    y: Tensor
    y_mask: Tensor
    x: Tensor
    x_mask: Tensor
    patient: Tensor | None
    labels: tuple[Any, ...]
    conditional_prior: ConditionalPrior | None = None

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device) -> Table:
        """The same table with its data on `device`; instance codes stay on the host, which orders the batches."""
        moved = {k: getattr(self, k).to(device) for k in ("y", "y_mask", "x", "x_mask")}
        return replace(
            self,
            conditional_prior=None if self.conditional_prior is None else self.conditional_prior.to(device),
            **moved,
        )


class TableEncoder:
    """What was learnt from the training rows, once: location and scale of each column, levels of each category."""

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
        """The same from what was gathered of them, all at once or in parts, and from a sample for normal scores."""
        check_scaling(scaling)
        return cls(
            statistics.schema,
            statistics.measurement_scales(scaling, sample),
            *statistics.covariate_scales(),
            statistics.levels(),
        )

    def encode(self, frame: pd.DataFrame, *, measurements: bool = True, dtype: torch.dtype = torch.float32) -> Table:
        """Tensors of a table with the training scales; without `measurements`, all of Y counts as missing."""
        schema = self.schema
        self.require(frame, measurements)
        n = len(frame)
        y = np.full((n, len(schema.measurements)), np.nan)
        if measurements:
            for d, name in enumerate(schema.measurements):
                known = name in self.levels
                y[:, d] = self.codes(frame, name) if known else self.scales.encode(d, measured(frame, name, schema))
        x = np.empty((n, len(schema.covariates)))
        for q, (name, kind) in enumerate(schema.covariates.items()):
            if kind == "categorical":
                x[:, q] = self.codes(frame, name)
            else:
                x[:, q] = (numbers(frame, name) - self.x_shift[q]) / self.x_scale[q]
        patient, labels = patients(frame, schema.instance)
        if patient is not None:
            for name in schema.static:
                q = self.space.names.index(name)
                x[:, q] = spread_static(x[:, q], patient, labels, name)
        return Table(
            y=torch.as_tensor(np.nan_to_num(y), dtype=dtype), y_mask=torch.as_tensor(~np.isnan(y)),
            x=torch.as_tensor(np.nan_to_num(x), dtype=dtype), x_mask=torch.as_tensor(~np.isnan(x)),
            patient=None if patient is None else torch.as_tensor(patient), labels=labels,
        )  # fmt: skip

    def require(self, frame: pd.DataFrame, measurements: bool = True) -> None:
        """Refuse what is no table, or lacks a column."""
        require(frame, [c for c in self.schema.columns if measurements or c not in self.schema.measurements])

    def decode_measurements(self, y: Tensor) -> Floats:
        """Measurements in their own units, within their bounds; categories as codes. Columns are the last dimension."""
        return self.kept(self.own(y))

    def own(self, y: Tensor) -> Floats:
        """Measurements in their own units, bounds or not; categories as codes."""
        return self.scales.decode(y.detach().cpu().double().numpy())

    def kept(self, values: Floats) -> Floats:
        """Measurements in their own units, moved to within their bounds."""
        for name in {*self.schema.bounds, *self.schema.integers} - self.schema.covariates.keys():
            d = self.schema.measurements.index(name)
            values[..., d] = keep(values[..., d], name, self.schema)
        return values

    def decode_covariate(self, name: str, x: Tensor) -> npt.NDArray[Any]:
        """One covariate in its own units, within its bounds, or as levels."""
        values = x.detach().cpu().double().numpy()
        if name in self.levels:
            return self.labels(name, values)
        q = self.space.names.index(name)
        return keep(np.asarray(values * self.x_scale[q] + self.x_shift[q]), name, self.schema)

    def labels(self, name: str, codes: Floats) -> npt.NDArray[Any]:
        """Levels by their codes."""
        levels = np.empty(len(self.levels[name]), dtype=object)
        levels[:] = self.levels[name]
        return np.asarray(levels[np.minimum(codes.round().astype(int), len(levels) - 1)])

    def measurement(self, name: str, values: Floats) -> npt.NDArray[Any]:
        """Values of a measurement as `decode_measurements` gives them, or levels."""
        return self.labels(name, values) if name in self.levels else values

    def fill(self, frame: pd.DataFrame, y: Floats, x: Tensor) -> pd.DataFrame:
        """A copy of `frame` with its gaps, and only those, taken from y (in own units, or codes) and x (encoded)."""
        done = frame.copy()
        for d, name in enumerate(self.schema.measurements):
            if name in done.columns:
                values = np.rint(y[:, d]) if self.schema.kinds.get(name) in COUNTS else y[:, d]
                done[name] = _fill_column(done[name], self.measurement(name, values))
        for q, name in enumerate(self.schema.covariates):
            if name in self.schema.static:
                done[name] = _copy_within(done[name], done[self.schema.instance])
            done[name] = _fill_column(done[name], self.decode_covariate(name, x[:, q]))
        return done

    def log_jacobian(self, y: Tensor, y_mask: Tensor) -> Tensor:
        """Per row, log |d y_encoded / d y| over the observed entries: turns encoded densities into densities of y."""
        return torch.where(y_mask, self.log_slopes(y), 0.0).sum(-1)

    def log_slopes(self, y: Tensor) -> Tensor:
        """The same per entry; 0 where an entry has a probability: counts, categories, and beyond a detection limit."""
        if self.measurements.plain and self.scales.linear.all():
            return torch.as_tensor(-np.log(self.y_scale), device=y.device).expand_as(y)
        slopes = self.scales.log_slope(y.detach().cpu().double().numpy())
        return torch.as_tensor(np.where(self.beyond(y).any(0), 0.0, slopes), device=y.device)

    def beyond(self, y: Tensor) -> npt.NDArray[np.bool_]:
        """Entries at or beyond the lower and the upper limit of detection (2×N×D)."""
        values = y.detach().cpu().numpy()
        lower, upper = np.array(self.measurements.limits, dtype=values.dtype).T
        return np.stack([values <= lower, values >= upper])

    def codes(self, frame: pd.DataFrame, name: str) -> Floats:
        """Codes of a column's levels, NaN at gaps; refuses levels never seen."""
        values, levels = frame[name], self.levels[name]
        gaps = values.isna().to_numpy()
        codes = pd.Index(list(levels), dtype=object).get_indexer(pd.Index(values.astype(object))).astype(float)
        unseen = (codes < 0) & ~gaps
        if unseen.any():
            strange = list(dict.fromkeys(values[unseen].tolist()))
            raise DataError(
                f"column {name!r} holds {some(strange)}, never seen in training; known levels are {some(levels)}. "
                "Mark such entries as missing, or fit again with rows that contain them."
            )
        codes[gaps] = np.nan
        return np.asarray(codes)


def _fill_column(column: pd.Series[Any], values: npt.NDArray[Any]) -> pd.Series[Any]:
    """The column with its gaps taken from `values`, of its own type."""
    gaps = column.isna().to_numpy()
    if not gaps.any():
        return column
    new, dtype = values[gaps], column.dtype
    filled = column.copy()
    if isinstance(dtype, pd.CategoricalDtype):
        known = set(dtype.categories)
        filled = filled.cat.add_categories([level for level in dict.fromkeys(new.tolist()) if level not in known])
    elif dtype.kind in "iu":  # pandas' nullable integers
        limits = np.iinfo(str(dtype).lower().removesuffix("[pyarrow]"))
        new = np.clip(np.rint(new), limits.min, limits.max) if new.dtype.kind == "f" else new
    elif isinstance(dtype, np.dtype) and dtype.kind == "f":
        new = new.astype(dtype)  # pandas refuses digits that a narrow float would lose
    elif dtype.kind == "b":
        new = new.astype(float) > 0.5
    elif pd.api.types.is_string_dtype(dtype) and not pd.api.types.is_object_dtype(dtype):
        new = np.asarray([str(value) for value in new.tolist()], dtype=object)
    if new.dtype == object:  # levels: let them be what the column holds
        items = new.tolist()
        types = set(map(type, items))
        new = np.asarray(items, dtype=object if str in types and len(types) > 1 else None)
    filled[gaps] = new
    return filled


def _copy_within(column: pd.Series[Any], instance: pd.Series[Any]) -> pd.Series[Any]:
    """Fill gaps with the value that the same instance shows at another visit, exactly as it stands there."""
    known = column.notna()
    values = dict(zip(instance[known], column[known], strict=True))
    gaps = ~known & instance.isin(list(values))
    if not gaps.any():
        return column
    filled = column.copy()
    filled[gaps] = instance[gaps].map(values)
    return filled
