"""DataFrame ⇄ tensors. The only module that knows both: it encodes, scales and masks, and undoes all three."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from lacova.covariates.law import RowPrior
from lacova.covariates.space import CovariateSpace
from lacova.errors import meant
from lacova.schema import DataError, Schema

Scaling = Literal["standard", "minmax", "none"]
Floats = npt.NDArray[np.float64]


def check_scaling(scaling: object) -> None:
    if scaling not in get_args(Scaling):
        raise ValueError(f"scaling is {scaling!r}; expected one of {', '.join(get_args(Scaling))}.")


@dataclass(frozen=True)
class Table:
    """One table as tensors. Gaps hold 0 and are False in the mask.

    Attributes:
        y: scaled measurements (N×D), with mask `y_mask`.
        x: covariates (N×Q), continuous ones standardised, categorical ones as level codes, with mask `x_mask`.
        patient: code of each row's instance (N,), numbered by first appearance; None without instance column.
        labels: the instance labels behind those codes.
        given: what the covariate prior says of each row's gaps, once a model has prepared the table.
    """

    y: Tensor
    y_mask: Tensor
    x: Tensor
    x_mask: Tensor
    patient: Tensor | None
    labels: tuple[Any, ...]
    given: RowPrior | None = None

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device) -> Table:
        """The same table with its data on `device`; instance codes stay on the host, which orders the batches."""
        moved = {k: getattr(self, k).to(device) for k in ("y", "y_mask", "x", "x_mask")}
        return replace(self, given=None if self.given is None else self.given.to(device), **moved)


class Codec:
    """What was learnt from the training rows, once: location and scale of each column, levels of each category."""

    def __init__(
        self, schema: Schema, y_shift: Floats, y_scale: Floats, x_shift: Floats, x_scale: Floats,
        levels: dict[str, tuple[Any, ...]],
    ) -> None:  # fmt: skip
        self.schema = schema
        self.y_shift, self.y_scale = y_shift, y_scale
        self.x_shift, self.x_scale = x_shift, x_scale
        self.levels = levels
        self.space = CovariateSpace(
            names=tuple(schema.covariates),
            levels=tuple(len(levels[name]) if name in levels else 0 for name in schema.covariates),
            static=tuple(name in schema.static for name in schema.covariates),
        )

    @classmethod
    def learn(cls, schema: Schema, frame: pd.DataFrame, scaling: Scaling = "standard") -> Codec:
        """Learn scales and levels from the observed entries of the training rows."""
        check_scaling(scaling)
        _require(frame, schema.columns)
        y = np.stack([_checked_numbers(frame, name, schema) for name in schema.measurements], axis=1)
        y_shift, y_scale = _scales(y, schema.measurements, "measurement", scaling)
        x_shift, x_scale = np.zeros(len(schema.covariates)), np.ones(len(schema.covariates))
        levels: dict[str, tuple[Any, ...]] = {}
        for q, (name, kind) in enumerate(schema.covariates.items()):
            if kind == "categorical":
                levels[name] = _learn_levels(frame, name)
            else:
                values = _checked_numbers(frame, name, schema)[:, None]
                shift, scale = _scales(values, [name], "covariate", "standard")
                x_shift[q], x_scale[q] = shift[0], scale[0]
        return cls(schema, y_shift, y_scale, x_shift, x_scale, levels)

    def encode(self, frame: pd.DataFrame, *, measurements: bool = True, dtype: torch.dtype = torch.float32) -> Table:
        """Tensors of a table with the training scales; without `measurements`, all of Y counts as missing."""
        schema = self.schema
        self.require(frame, measurements)
        n = len(frame)
        y = np.full((n, len(schema.measurements)), np.nan)
        if measurements:
            for d, name in enumerate(schema.measurements):
                y[:, d] = (_numbers(frame, name) - self.y_shift[d]) / self.y_scale[d]
        x = np.empty((n, len(schema.covariates)))
        for q, (name, kind) in enumerate(schema.covariates.items()):
            if kind == "categorical":
                x[:, q] = self._codes(frame, name)
            else:
                x[:, q] = (_numbers(frame, name) - self.x_shift[q]) / self.x_scale[q]
        patient, labels = self._patients(frame)
        if patient is not None:
            for name in schema.static:
                q = self.space.names.index(name)
                x[:, q] = _spread_static(x[:, q], patient, labels, name)
        return Table(
            y=torch.as_tensor(np.nan_to_num(y), dtype=dtype), y_mask=torch.as_tensor(~np.isnan(y)),
            x=torch.as_tensor(np.nan_to_num(x), dtype=dtype), x_mask=torch.as_tensor(~np.isnan(x)),
            patient=None if patient is None else torch.as_tensor(patient), labels=labels,
        )  # fmt: skip

    def require(self, frame: pd.DataFrame, measurements: bool = True) -> None:
        """Refuse what is no table, or lacks a column."""
        _require(frame, [c for c in self.schema.columns if measurements or c not in self.schema.measurements])

    def decode_measurements(self, y: Tensor) -> Floats:
        """Measurements in their own units, within their bounds; the last dimension is the column."""
        values = np.asarray(y.detach().cpu().double().numpy() * self.y_scale + self.y_shift)
        for name in {*self.schema.bounds, *self.schema.integers} - self.schema.covariates.keys():
            d = self.schema.measurements.index(name)
            values[..., d] = _keep(values[..., d], name, self.schema)
        return values

    def decode_covariate(self, name: str, x: Tensor) -> npt.NDArray[Any]:
        """One covariate in its own units, within its bounds, or as levels."""
        values = x.detach().cpu().double().numpy()
        if name in self.levels:
            levels = np.empty(len(self.levels[name]), dtype=object)
            levels[:] = self.levels[name]
            return np.asarray(levels[values.round().astype(int)])
        q = self.space.names.index(name)
        return _keep(np.asarray(values * self.x_scale[q] + self.x_shift[q]), name, self.schema)

    def fill(self, frame: pd.DataFrame, y: Floats, x: Tensor) -> pd.DataFrame:
        """A copy of `frame` with its gaps, and only those, taken from y (in own units) and x (encoded)."""
        done = frame.copy()
        for d, name in enumerate(self.schema.measurements):
            if name in done.columns:
                done[name] = _fill_column(done[name], y[:, d])
        for q, name in enumerate(self.schema.covariates):
            if name in self.schema.static:
                done[name] = _copy_within(done[name], done[self.schema.instance])
            done[name] = _fill_column(done[name], self.decode_covariate(name, x[:, q]))
        return done

    def log_jacobian(self, y_mask: Tensor) -> Tensor:
        """Per row, log |d y_scaled / d y| over the observed entries: turns scaled densities into densities of y."""
        log_scale = torch.as_tensor(np.log(self.y_scale), device=y_mask.device)
        return -(y_mask * log_scale).sum(-1)

    def _codes(self, frame: pd.DataFrame, name: str) -> Floats:
        values, levels = frame[name], self.levels[name]
        gaps = values.isna().to_numpy()
        codes = pd.Index(list(levels), dtype=object).get_indexer(pd.Index(values.astype(object))).astype(float)
        unseen = (codes < 0) & ~gaps
        if unseen.any():
            strange = list(dict.fromkeys(values[unseen].tolist()))
            raise DataError(
                f"column {name!r} holds {_some(strange)}, never seen in training; known levels are {_some(levels)}. "
                "Mark such entries as missing, or fit again with rows that contain them."
            )
        codes[gaps] = np.nan
        return np.asarray(codes)

    def _patients(self, frame: pd.DataFrame) -> tuple[npt.NDArray[np.int64] | None, tuple[Any, ...]]:
        name = self.schema.instance
        if name is None:
            return None, ()
        gaps = int(frame[name].isna().sum())
        if gaps:
            raise DataError(
                f"instance column {name!r} is missing in {gaps} row(s); every row must name its instance. "
                "Drop those rows, or give each a new label."
            )
        codes, labels = pd.factorize(frame[name], sort=False)
        return codes.astype(np.int64), tuple(labels.tolist())


def _require(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"expected a pandas DataFrame, got {type(frame).__name__}.")
    absent = [c for c in columns if c not in frame.columns]
    if absent:
        raise DataError(
            f"column(s) {_some(absent)} are in the schema but not in the table, "
            f"whose columns are {_some(list(frame.columns))}."
            f"{meant(absent, [c for c in frame.columns if c not in columns])} "
            "Add them (empty where unknown), or take them out of the schema."
        )
    twice = [c for c in columns if int((frame.columns == c).sum()) > 1]
    if twice:
        raise DataError(
            f"column name(s) {_some(twice)} appear more than once in the table; rename or drop one of each."
        )
    if len(frame) == 0:
        raise DataError("the table has no rows.")
    for name in columns:
        values = frame[name]
        if values.dtype == object and not all(isinstance(value, Hashable) for value in values):
            raise DataError(f"column {name!r} holds nested values; expected numbers, text or categories.")


def _numbers(frame: pd.DataFrame, name: str) -> Floats:
    column = frame[name]
    if column.dtype.kind in "Mmc":
        raise DataError(
            f"column {name!r} must be numeric, but holds {column.dtype} values. "
            "Turn dates into numbers first, such as days since the start of the study."
        )
    numeric = pd.to_numeric(column, errors="coerce")
    bad = numeric.isna() & column.notna()
    if bad.any():
        raise DataError(
            f"column {name!r} must be numeric, but holds {_some(list(dict.fromkeys(column[bad].tolist())))}. "
            "Turn text into numbers or gaps first, or declare the column categorical."
        )
    values = numeric.to_numpy(dtype=float, na_value=np.nan)
    if np.isinf(values).any():
        raise DataError(
            f"column {name!r} holds {int(np.isinf(values).sum())} infinite value(s); "
            "replace them by gaps (NaN) or finite values."
        )
    return np.asarray(values)


def _checked_numbers(frame: pd.DataFrame, name: str, schema: Schema) -> Floats:
    """Training values, which must keep to what the schema says of them."""
    values = _numbers(frame, name)
    strange = values[~np.isnan(values) & (values != _keep(values, name, schema))]
    if len(strange):
        lower, upper = schema.bounds.get(name, (None, None))
        whole = " and whole numbers" if name in schema.integers else ""
        raise DataError(
            f"column {name!r} holds {_some(list(dict.fromkeys(strange.tolist())))}, but the schema says bounds "
            f"({lower}, {upper}){whole}; correct the values, or the schema."
        )
    return values


def _scales(values: Floats, names: Sequence[str], role: str, scaling: Scaling) -> tuple[Floats, Floats]:
    observed = (~np.isnan(values)).sum(0)
    if (observed == 0).any():
        empty = [names[i] for i in np.flatnonzero(observed == 0).tolist()]
        raise DataError(
            f"{role} column(s) {_some(empty)} have no observed value in training; take them out of the schema."
        )
    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    if (low == high).any():
        constant = [names[i] for i in np.flatnonzero(low == high).tolist()]
        warnings.warn(
            f"{role} column(s) {_some(constant)} are constant in training; "
            "kept with scale 1, but they carry no information.",
            UserWarning,
            stacklevel=4,
        )
    if scaling == "none":
        return np.zeros(len(names)), np.ones(len(names))
    if scaling == "minmax":
        return low, np.where(low == high, 1.0, high - low)
    spread = np.nanstd(values, axis=0)
    return np.nanmean(values, axis=0), np.where((low == high) | (spread == 0.0), 1.0, spread)


def _learn_levels(frame: pd.DataFrame, name: str) -> tuple[Any, ...]:
    levels = list(dict.fromkeys(frame[name].dropna().tolist()))
    if not levels:
        raise DataError(
            f"covariate column(s) {name!r} have no observed value in training; take them out of the schema."
        )
    if isinstance(frame[name].dtype, pd.CategoricalDtype):
        known = set(levels)
        return tuple(v for v in frame[name].cat.categories.tolist() if v in known)
    try:
        return tuple(sorted(levels))
    except TypeError:
        return tuple(sorted(levels, key=str))


def _spread_static(column: Floats, patient: npt.NDArray[np.int64], labels: tuple[Any, ...], name: str) -> Floats:
    """A visit-constant value seen at one visit is known at all of them; two different ones contradict."""
    groups = pd.Series(column).groupby(patient)
    conflict = np.flatnonzero(groups.nunique().to_numpy() > 1)
    if len(conflict):
        raise DataError(
            f"static column {name!r} takes more than one value within instance(s) "
            f"{_some([labels[i] for i in conflict])}; "
            "correct the values, or take the column out of `static`."
        )
    return np.asarray(groups.transform("first").to_numpy(dtype=float))


def _keep(values: Floats, name: str, schema: Schema) -> Floats:
    """Values rounded if the column holds whole numbers, and moved to the nearest bound if beyond it."""
    lower, upper = schema.bounds.get(name, (None, None))
    if name in schema.integers:
        values = np.rint(values)
        lower, upper = None if lower is None else math.ceil(lower), None if upper is None else math.floor(upper)
    if lower is not None:
        values = np.maximum(values, lower)
    return values if upper is None else np.minimum(values, upper)


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


def _some(items: Sequence[Any], most: int = 5) -> str:
    shown = [repr(item) for item in list(items)[:most]]
    rest = len(items) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")
