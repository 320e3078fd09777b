"""Statistics of the training rows: moments of numbers and levels of categories, gathered part by part."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.data.columns import checked_numbers, measurement_values, require_columns
from lacova.data.errors import DataError, listed
from lacova.data.kinds import values_of
from lacova.data.levels import ColumnLevels
from lacova.data.scaling import Floats, Knots, Scales, suits_scores
from lacova.data.schema import Schema

Scaling = Literal["auto", "standard", "minmax", "none", "normal"]
NORMAL = ("gaussian", "student")  # kinds of measurements that get normal scores with scaling="normal"
SCORED = ("auto", "normal")  # scalings under which columns may have normal scores


def check_scaling(scaling: object) -> None:
    """Refuse an unknown scaling."""
    if scaling not in get_args(Scaling):
        raise ValueError(f"scaling is {scaling!r}; expected one of {', '.join(get_args(Scaling))}.")


class ColumnMoments:
    """Count, mean, variance, minimum and maximum of the observed entries of several columns.

    Parts are merged by their means and variances: sums of squares would lose the digits of columns far from 0.
    """

    def __init__(self, columns: int) -> None:
        self.count, self.mean, self.var = (np.zeros(columns) for _ in range(3))
        self.low, self.high = np.full(columns, np.inf), np.full(columns, -np.inf)

    def add(self, values: Floats) -> None:
        """Add rows (n×columns), with NaN at gaps."""
        count = (~np.isnan(values)).sum(0)
        seen = count > 0
        if not seen.all():
            values = values[:, seen]
        share = count[seen] / (self.count[seen] + count[seen])
        step = np.nanmean(values, axis=0) - self.mean[seen]
        between = step**2 * share * (1.0 - share)
        self.var[seen] = self.var[seen] * (1.0 - share) + np.nanvar(values, axis=0) * share + between
        self.mean[seen] += step * share
        self.low[seen] = np.minimum(self.low[seen], np.nanmin(values, axis=0))
        self.high[seen] = np.maximum(self.high[seen], np.nanmax(values, axis=0))
        self.count += count

    def scales(self, names: Sequence[str], role: str, scaling: Scaling) -> tuple[Floats, Floats]:
        """Return location and scale of each column; refuse empty columns, and warn of constant ones."""
        if (self.count == 0).any():
            empty = [names[i] for i in np.flatnonzero(self.count == 0).tolist()]
            raise DataError(
                f"{role} column(s) {listed(empty)} have no observed value in training; take them out of the schema."
            )
        low, high = self.low, self.high
        if (low == high).any():
            constant = [names[i] for i in np.flatnonzero(low == high).tolist()]
            warnings.warn(
                f"{role} column(s) {listed(constant)} are constant in training; "
                "kept with scale 1, but they carry no information.",
                UserWarning,
                stacklevel=7,  # the caller of fit
            )
        if scaling == "none":
            return np.zeros(len(names)), np.ones(len(names))
        if scaling == "minmax":
            return low, np.where(low == high, 1.0, high - low)
        sd = np.sqrt(self.var)
        return self.mean, np.where((low == high) | (sd == 0.0), 1.0, sd)


class ColumnStatistics:
    """Moments and levels of all columns of a schema, gathered part by part from the training rows."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._numbers = [name for name in schema.measurements if name not in schema.categories]
        self._logs = [name for name in self._numbers if schema.kinds.get(name) == "lognormal"]
        self._y = ColumnMoments(len(self._numbers))  # of the logarithm where it is modelled
        self._own = ColumnMoments(len(self._logs))  # log-normal columns in their own units
        self._x = {name: ColumnMoments(1) for name, kind in schema.covariates.items() if kind == "continuous"}
        self._levels = {name: ColumnLevels(schema.levels.get(name)) for name in schema.categories}

    def add(self, frame: pd.DataFrame) -> None:
        """Add rows, which must satisfy the schema."""
        schema = self.schema
        require_columns(frame, schema.columns)
        values = {name: checked_numbers(frame, name, schema) for name in self._numbers}
        if self._logs:
            self._own.add(np.stack([values[name] for name in self._logs], axis=1))
            values |= {name: np.log(values[name]) for name in self._logs}
        if values:
            self._y.add(np.stack(list(values.values()), axis=1))
        for name, moments in self._x.items():
            moments.add(checked_numbers(frame, name, schema)[:, None])
        for name, levels in self._levels.items():
            levels.add(frame[name])

    def add_held_out(self, frame: pd.DataFrame) -> None:
        """Add levels that rows held out from training show: they are known, without a training row that has them."""
        for name, levels in self._levels.items():
            levels.add(frame[name], held_out=True)

    def measurement_scales(self, scaling: Scaling, sample: pd.DataFrame | None = None) -> Scales:
        """Return the scales of all measurements; `sample` holds the rows from which normal scores are learnt."""
        others = "standard" if scaling in SCORED else scaling
        location, scale = self._y.scales(self._numbers, "measurement", others)
        names, kinds = self.schema.measurements, self.schema.kinds
        log = np.array([name in self._logs for name in names], dtype=bool)
        scales = Scales(np.zeros(len(names)), np.ones(len(names)), log, np.ones(len(names)))
        for k, (name, sd) in enumerate(zip(self._numbers, np.sqrt(self._y.var), strict=True)):
            d = names.index(name)
            values = values_of(kinds.get(name))
            if values == "count":
                scales.spread[d] = sd or 1.0
            elif values == "positive":
                scales.scale[d] = scales.spread[d] = sd or 1.0
            else:
                scales.shift[d], scales.scale[d], scales.spread[d] = location[k], scale[k], scale[k]
        for name, sd in zip(self._logs, np.sqrt(self._own.var), strict=True):
            scales.spread[names.index(name)] = sd or 1.0
        if scaling not in SCORED:
            return scales
        if sample is None:
            raise ValueError(f'scaling="{scaling}" needs rows to learn quantiles from.')
        own = {
            d: measurement_values(sample, name, self.schema)
            for d, name in enumerate(names)
            if kinds.get(name, "gaussian") in (NORMAL if scaling == "normal" else ("gaussian",))
        }
        learnt = {d: Knots.learn(values) for d, values in own.items() if scaling == "normal" or suits_scores(values)}
        return replace(scales, knots={d: knots for d, knots in learnt.items() if knots is not None})

    def constant(self) -> npt.NDArray[np.bool_]:
        """Return which measurements take a single value (D,)."""
        constant = dict(zip(self._numbers, self._y.low == self._y.high, strict=True))
        constant |= {name: len(levels.seen) < 2 for name, levels in self._levels.items()}
        return np.array([constant[name] for name in self.schema.measurements], dtype=bool)

    def covariate_scales(self) -> tuple[Floats, Floats]:
        """Return location and scale of each covariate (Q,); 0 and 1 for categories."""
        shift, scale = np.zeros(len(self.schema.covariates)), np.ones(len(self.schema.covariates))
        for q, name in enumerate(self.schema.covariates):
            if name in self._x:
                shift[q : q + 1], scale[q : q + 1] = self._x[name].scales([name], "covariate", "standard")
        return shift, scale

    @classmethod
    def known_levels(cls, schema: Schema, frame: pd.DataFrame) -> dict[str, tuple[Any, ...]]:
        """Return the levels of each categorical column that a model fitted to these rows would know."""
        statistics = cls(schema)
        for name, levels in statistics._levels.items():
            levels.add(frame[name])
        return {name: levels.known for name, levels in statistics._levels.items()}

    def levels(self) -> dict[str, tuple[Any, ...]]:
        """Return the ordered levels of each categorical column."""
        return {name: levels.ordered(name, self.schema.kinds.get(name)) for name, levels in self._levels.items()}
