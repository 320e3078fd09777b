"""What a permutation test permutes: patients, or rows, with the value of each, within strata."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.data.columns import patient_codes
from lacova.data.errors import DataError, hint, listed
from lacova.data.schema import Schema

LEAST_ASSIGNMENTS = 20  # with fewer, no p-value is below 5%
LEAST_UNITS = 2  # patients under each of both values


class Units(NamedTuple):
    """What is permuted: the unit of each row (N,), the value of each unit, and its stratum (units,)."""

    unit: npt.NDArray[np.int64]
    values: pd.Series[Any]
    stratum: npt.NDArray[np.int64]


def units_of(frame: pd.DataFrame, schema: Schema, covariate: str, strata: Sequence[str]) -> Units:
    """Return patients, or rows where there are none, with the covariate's value of each."""
    names = [name for name in schema.covariates if name != schema.time]
    if covariate not in names:
        raise DataError(
            f"{covariate!r} cannot be permuted; expected one of the covariates, {listed(names)}."
            f"{hint([covariate], names)}"
        )
    codes, labels = patient_codes(frame, schema.instance)
    unit = np.arange(len(frame), dtype=np.int64) if codes is None else codes
    shown = [f"row {index}" for index in frame.index] if codes is None else labels
    columns = {name: _constant(frame, unit, shown, name) for name in dict.fromkeys([covariate, *strata])}
    stratum = pd.DataFrame({name: columns[name] for name in strata}, index=columns[covariate].index)
    code = stratum.groupby(list(strata), sort=False).ngroup() if strata else pd.Series(0, stratum.index)
    return Units(unit, columns[covariate], np.asarray(code, dtype=np.int64))


def _constant(frame: pd.DataFrame, unit: npt.NDArray[np.int64], shown: Sequence[Any], name: str) -> pd.Series[Any]:
    """Return the value of a column in each unit; refuse units with several values, or none."""
    by_unit = frame[name].groupby(unit)
    changing = np.flatnonzero(by_unit.nunique().to_numpy() > 1).tolist()
    if changing:
        raise DataError(
            f"{name!r} takes more than one value within {listed([shown[i] for i in changing])}; only what does not "
            "change within a patient can be permuted between patients, or be a stratum. Correct the values, or name "
            "another column."
        )
    values = by_unit.first()
    unknown = np.flatnonzero(values.isna().to_numpy()).tolist()
    if unknown:
        raise DataError(
            f"{name!r} is missing for {listed([shown[i] for i in unknown])}; every unit needs a value to be permuted. "
            "Fill it in, or leave their rows out."
        )
    return values


def contrast(units: Units, schema: Schema, versus: Any, value: Any) -> tuple[Any, Any]:
    """Return both values of the effect, as given or as the two values of the column in order."""
    present = sorted(units.values.unique().tolist())
    name = str(units.values.name)
    if len(present) < 2:
        raise DataError(f"{name!r} is {present[0]!r} in all rows; expected at least two values to compare.")
    if value is None and versus is None and len(present) == 2:
        return present[0], present[1]
    if value is None or versus is None:
        raise DataError(f"{name!r} holds {listed(present)}; say which two to compare, as versus and value.")
    if schema.covariates[name] == "continuous":
        for end in (versus, value):
            if not (isinstance(end, int | float | np.number) and math.isfinite(end)):
                raise DataError(f"{name!r} is to be set to {end!r}; versus and value must be finite numbers.")
    strange = [v for v in (versus, value) if v not in present and schema.covariates[name] == "categorical"]
    if strange or value == versus:
        wrong = f"{strange[0]!r} is none of them" if strange else f"both are {value!r}"
        raise DataError(f"{name!r} holds {listed(present)}; versus and value must be two of these, but {wrong}.")
    return versus, value


def check_counts(units: Units, versus: Any, value: Any) -> None:
    """Refuse a study with too few patients for any answer."""
    name, counts = str(units.values.name), units.values.value_counts()
    few = [v for v in (versus, value) if v in counts.index and counts[v] < LEAST_UNITS]
    if few:
        raise DataError(
            f"only one unit has {name!r} {few[0]!r}; expected at least {LEAST_UNITS} patients, or rows, under each "
            "value that is compared."
        )
    table = pd.crosstab(pd.Series(units.stratum), units.values.to_numpy())
    log_count = float(sum(math.lgamma(n + 1.0) for n in table.sum(axis=1)))
    log_count -= float(sum(math.lgamma(n + 1.0) for n in table.to_numpy().ravel()))
    if log_count < math.log(LEAST_ASSIGNMENTS - 0.5):
        raise DataError(
            f"{name!r} can be given out in {round(math.exp(log_count))} different ways only; a permutation test needs "
            f"at least {LEAST_ASSIGNMENTS}: more patients, or fewer strata."
        )


def permutation_of(stratum: npt.NDArray[np.int64], seed: int, k: int) -> npt.NDArray[np.int64]:
    """Return which unit's value each unit has in permutation k, one of its own stratum; 0 changes nothing."""
    order = np.arange(len(stratum))
    if k:
        rng = np.random.default_rng([seed, k])
        for code in range(int(stratum.max()) + 1):
            own = np.flatnonzero(stratum == code)
            order[own] = rng.permutation(own)
    return order


def with_values(frame: pd.DataFrame, units: Units, order: npt.NDArray[np.int64]) -> pd.DataFrame:
    """Return the table with the value of unit `order[i]` in all rows of unit i."""
    values = units.values.iloc[order].iloc[units.unit]
    return frame.assign(**{str(units.values.name): values.set_axis(frame.index)})
