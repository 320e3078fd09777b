"""Correlations that observed values have, and whether imputed values keep them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import ndtri, stdtrit

from lacova.data.columns import numbers, patient_codes
from lacova.data.errors import DataError, about, hint
from lacova.data.io.dataframes import Frame, to_pandas
from lacova.data.kinds import values_of
from lacova.data.scaling import Floats
from lacova.data.schema import Schema

MAX_COLUMNS, MAX_TABLES = 40, 20  # columns compared with each other, and completed tables that enter
MIN_PAIRS, MIN_UNITS = 10, 10  # behind either correlation: pairs of values, and patients, or rows without patients
FALSE_WARNINGS = 0.03  # probability that any correlation is called lost although imputations are right, or less
MIN_CORRELATION, LOSS_THAT_MATTERS = 0.2, 0.1  # there is nothing to lose of less; between correlations
Codes = npt.NDArray[np.int64]
COLUMNS = (
    "kind", "first", "second", "observed", "observed_pairs", "completed", "completed_pairs", "units", "difference",
    "se", "lost",
)  # fmt: skip


def lost_correlations(
    completed: Frame, original: Any, schema: Schema, *, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Compare the correlations of observed values with those of imputed ones, and name those that imputation lost.

    A pair of columns is compared over rows: rows that observe both, against rows where at least one of the two was
    imputed. The course of a column is compared over visits: neighbouring visits of a patient that both observe it,
    against neighbouring visits of which at least one was imputed. Numeric measurements and continuous covariates enter;
    the time and visit-constant covariates have no course.

    Correlations are those of normal scores, ranks among the observed values, so they depend neither on outliers nor on
    units. If values are missing completely at random and imputed rightly, both correlations estimate the same one, and
    fewer than one of twenty tables have any false `lost`. Where gaps depend on other columns, the two may really
    differ: then hide observed values at random, as `recover` does.

    Args:
        completed: the result of `model.impute(original, draws=20)`, completed tables one below the other; or one table.
            Of more than 20, 20 are used.
        original: the table with its gaps.
        schema: the roles of the columns.
        columns: those to compare; by default all, or the 40 with most gaps.

    Returns:
        a pandas DataFrame, one line per pair or course with enough values to compare:

        - `kind`, "pair" or "course"; `first` and `second`, the columns, the same for a course;
        - `observed`, the correlation of observed values, from `observed_pairs`; `completed`, that of pairs with an
          imputed value, from `completed_pairs`; `units`, the patients behind the fewer pairs, or rows without patients;
        - `difference`, completed minus observed correlation on Fisher's scale, atanh r, and its standard error `se`,
          which allows for patients with several pairs, and for values that both correlations share;
        - `lost`: an observed correlation of 0.2 at least is weaker by 0.1 at least, and beyond chance.

    Examples:
        >>> import numpy as np, pandas as pd, lacova
        >>> rng = np.random.default_rng(0)
        >>> a = rng.normal(size=300)
        >>> original = pd.DataFrame({"a": a, "b": a + 0.5 * rng.normal(size=300)}).mask(rng.random((300, 2)) < 0.3)
        >>> schema = lacova.Schema(["a", "b"], {})
        >>> drawn = {name: rng.choice(original[name].dropna(), 300) for name in original}  # one column at a time
        >>> lost_correlations(original.fillna(pd.DataFrame(drawn)), original, schema)[["first", "second", "lost"]]
          first second  lost
        0     a      b  True
    """
    gaps, _ = to_pandas(original, schema.columns)
    tables, _ = to_pandas(completed, schema.columns)
    chosen = _chosen(gaps, schema, columns)
    for name, frame in (("original", gaps), ("completed", tables)):
        absent = [c for c in (*chosen, schema.instance, schema.time) if c is not None and c not in frame]
        if absent:
            raise DataError(f"the {name} table has no column {absent[0]!r}.{hint(absent, frame.columns)}")
    count, rest = divmod(len(tables), max(len(gaps), 1))
    if rest or not count:
        raise DataError(
            f"the completed table has {len(tables)} rows and the original {len(gaps)}; expected a whole multiple: give "
            "what impute made of this very table."
        )
    with about("the original table"):
        known = np.stack([numbers(gaps, name) for name in chosen], axis=1)
        rows = Rows.of(gaps, schema)
    filled = np.stack([numbers(tables, name).reshape(count, len(gaps))[spaced(count)] for name in chosen], axis=2)
    return compare_correlations(known, np.isnan(known), filled, chosen, rows, schema)


def spaced(count: int) -> Codes:
    """Return the numbers of the tables to use of so many: draws resampled by weight are in the order of proposals."""
    return np.unique(np.linspace(0, count - 1, MAX_TABLES).round().astype(np.int64))


def _chosen(frame: pd.DataFrame, schema: Schema, columns: Sequence[str] | None) -> list[str]:
    """Return the columns to compare: those given, or all numbers, or those with most gaps."""
    numeric = comparable_columns(schema)
    if columns is None:
        return most_frequent(frame.isna(), [name for name in numeric if name in frame])
    strange = [name for name in columns if name not in numeric]
    if strange:
        raise DataError(
            f"column {strange[0]!r} is no number of the schema; correlations are between {', '.join(numeric[:8])}."
            f"{hint(strange, numeric)}"
        )
    return list(columns)


def comparable_columns(schema: Schema) -> list[str]:
    """Return numeric measurements and continuous covariates."""
    covariates = [name for name, kind in schema.covariates.items() if kind == "continuous"]
    return [name for name in schema.measurements if values_of(schema.kinds.get(name)) != "level"] + covariates


def most_frequent(imputed: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return at most `MAX_COLUMNS` of the columns, in their order: those with most imputed entries."""
    most = imputed[list(columns)].sum().sort_values(ascending=False, kind="stable").index[:MAX_COLUMNS]
    return [name for name in columns if name in set(most)]


@dataclass(frozen=True)
class Rows:
    """How rows belong together.

    Attributes:
        unit: code of each row's patient, or the row itself without patients (N,).
        earlier, later: rows of neighbouring visits of a patient (pairs,).
    """

    unit: Codes
    earlier: Codes
    later: Codes

    @classmethod
    def of(cls, frame: pd.DataFrame, schema: Schema) -> Rows:
        """Read patients and the order of their visits; rows without a time are no neighbours of others."""
        patient, _ = patient_codes(frame, schema.instance)
        if patient is None:
            nothing = np.empty(0, dtype=np.int64)
            return cls(np.arange(len(frame)), nothing, nothing)
        time = np.arange(len(frame), dtype=float) if schema.time is None else numbers(frame, schema.time)
        order = np.lexsort((time, patient))
        order = order[~np.isnan(time[order])]
        same = patient[order[1:]] == patient[order[:-1]]
        return cls(patient, order[:-1][same], order[1:][same])


class _Estimate(NamedTuple):
    """A correlation r, the units of its pairs (n,), and the influence of each pair on atanh r (n,)."""

    r: float
    unit: Codes
    influence: Floats

    @classmethod
    def of(cls, x: Floats, y: Floats, unit: Codes) -> _Estimate | None:
        """Estimate a correlation over pairs of several tables (tables×n); None if it is not defined."""
        if len(unit) < MIN_PAIRS or len(np.unique(unit)) < MIN_UNITS:
            return None
        spread = x.std(), y.std()
        if min(spread) == 0.0:
            return None
        u, v = (x - x.mean()) / spread[0], (y - y.mean()) / spread[1]
        r = float((u * v).mean())
        if abs(r) > 1.0 - 1e-9:
            return None
        influence = (u * v - 0.5 * r * (u**2 + v**2)).mean(0) / (1.0 - r**2) / len(unit)
        return cls(r, unit, influence)


def compare_correlations(
    observed: Floats, imputed: npt.NDArray[np.bool_], filled: Floats, columns: Sequence[str], rows: Rows, schema: Schema
) -> pd.DataFrame:  # fmt: skip
    """Compare correlations of observed values (N×C) with those of pairs that have an imputed member.

    Args:
        observed: observed values, NaN at gaps.
        imputed: entries that were imputed (N×C).
        filled: completed tables (tables×N×C); NaN at entries that do not count.
        columns: names of the columns (C,).
        rows: how the rows belong together.
        schema: the roles of the columns.
    """
    observed, filled = observed.copy(), filled.copy()
    for c in range(len(columns)):
        values = np.sort(observed[:, c][~np.isnan(observed[:, c])])
        observed[:, c], filled[..., c] = _normal_scores(values, observed[:, c]), _normal_scores(values, filled[..., c])
    lines = []
    for kind, a, b, first, second in _comparisons(columns, rows, schema):
        known = ~np.isnan(observed[first, a]) & ~np.isnan(observed[second, b])
        drawn = ~np.isnan(filled[:, first, a]).any(0) & ~np.isnan(filled[:, second, b]).any(0)
        drawn &= imputed[first, a] | imputed[second, b]
        i, j = first[known], second[known]
        before = _Estimate.of(observed[None, i, a], observed[None, j, b], rows.unit[i])
        i, j = first[drawn], second[drawn]
        after = _Estimate.of(filled[:, i, a], filled[:, j, b], rows.unit[i])
        if before is not None and after is not None:
            lines.append((kind, columns[a], columns[b], *_difference(before, after)))
    table = pd.DataFrame(lines, columns=list(COLUMNS[:-1]))
    return table.assign(lost=_lost(table))


def _comparisons(columns: Sequence[str], rows: Rows, schema: Schema) -> Iterator[tuple[str, int, int, Codes, Codes]]:
    """Yield pairs of columns over rows, then courses: kind, columns, and the rows of either value of a pair."""
    everything = np.arange(len(rows.unit))
    for a, b in combinations(range(len(columns)), 2):
        yield "pair", a, b, everything, everything
    constant = {*schema.static, schema.time}
    for c, name in enumerate(columns):
        if name not in constant and len(rows.earlier):
            yield "course", c, c, rows.earlier, rows.later


def _normal_scores(ordered: Floats, values: Floats) -> Floats:
    """Return normal scores of values by their rank among observed ones, in ascending order; NaN stays NaN."""
    if len(ordered) == 0:
        return np.full_like(values, np.nan)
    rank = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") + 1) / 2
    scores = ndtri(np.clip(rank / (len(ordered) + 1), 0.5 / (len(ordered) + 1), 1 - 0.5 / (len(ordered) + 1)))
    return np.asarray(np.where(np.isnan(values), np.nan, scores))


def _difference(before: _Estimate, after: _Estimate) -> tuple[float, int, float, int, int, float, float]:
    """Return both correlations, their pairs, the units behind the fewer, and the difference of atanh r with its error.

    The variance is a sum over units of the square of their influence on the difference (the infinitesimal jackknife,
    the limit of the bootstrap over units), by n/(n − 3) as in Fisher's 1/(n − 3).
    """
    count = 1 + max(int(one.unit.max()) for one in (before, after))
    influence = [np.bincount(one.unit, one.influence, minlength=count) for one in (after, before)]
    units = min(len(np.unique(one.unit)) for one in (before, after))
    variance = ((influence[0] - influence[1]) ** 2).sum() * units / (units - 3)
    difference = float(np.arctanh(after.r) - np.arctanh(before.r))
    return before.r, len(before.unit), after.r, len(after.unit), units, difference, float(np.sqrt(variance))


def _lost(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which completed correlations are weaker by what matters, and beyond chance for so many comparisons."""
    if table.empty:
        return np.zeros(0, dtype=bool)
    sign = np.sign(table["observed"])
    limit = stdtrit(table["units"] - 1, 1.0 - FALSE_WARNINGS / (2 * len(table)))
    weaker = sign * (table["observed"] - table["completed"]) >= LOSS_THAT_MATTERS
    weaker &= table["observed"].abs() >= MIN_CORRELATION
    return np.asarray(weaker & (-sign * table["difference"] > limit * table["se"]))
