"""Dates of SDTM: ISO 8601, in which the end or a part in the middle may be unknown.

The rule for a partial date: as a start it is the earliest day that it allows, as an end the latest. Parts behind an
unknown part do not count: 2003---15, the fifteenth of an unknown month of 2003, is 2003. An interval written with a
slash has its first date as start and its second as end. The time of day is ignored.
"""

from __future__ import annotations

import pandas as pd

from lacova.data.errors import DataError

PATTERN = r"^(?P<year>\d{4}|-)(?:-(?P<month>\d{2}|-)(?:-(?P<day>\d{2}|-))?)?$"


def first_day(dates: pd.Series, where: str) -> pd.Series:
    """Return the earliest day that each date allows; NaT without a year. `where` names the column in errors."""
    return _stamp(_parts(dates, where, 0), dates, where)


def last_day(dates: pd.Series, where: str) -> pd.Series:
    """Return the latest day that each date allows."""
    parts = _parts(dates, where, -1)
    day = _stamp(parts.assign(month=parts["month"].fillna(12)), dates, where)
    return day.mask(parts["day"].isna(), day + pd.offsets.MonthEnd(0))


def is_whole(dates: pd.Series, where: str) -> pd.Series:
    """Return whether year, month and day are known."""
    return _parts(dates, where, 0).notna().all(axis=1)


def elapsed(day: pd.Series) -> pd.Series:
    """Return days since the first dose. SDTM counts … -2, -1, 1, 2 …: day 1 is the first dose, and there is no 0."""
    return day - (day > 0)


def _parts(dates: pd.Series, where: str, end: int) -> pd.DataFrame:
    """Return year, month and day as numbers, each missing if one before it is."""
    dates = dates.astype(object).where(dates.notna(), None).astype("string")
    text = dates.str.split("/").str[end].str.split("T").str[0]
    matched = text.str.extract(PATTERN)
    _refuse(dates.notna() & matched["year"].isna(), dates, where)
    parts = pd.DataFrame({name: pd.to_numeric(matched[name].astype(object), errors="coerce") for name in matched})
    parts = parts.astype(float)
    parts["month"] = parts["month"].where(parts["year"].notna())
    parts["day"] = parts["day"].where(parts["month"].notna())
    return parts


def _stamp(parts: pd.DataFrame, dates: pd.Series, where: str) -> pd.Series:
    days = pd.to_datetime(parts.fillna({"month": 1, "day": 1}), errors="coerce")
    _refuse(parts["year"].notna() & days.isna(), dates, where)
    return days


def _refuse(wrong: pd.Series, dates: pd.Series, where: str) -> None:
    if wrong.any():
        raise DataError(
            f"{where} has the date {str(dates[wrong.to_numpy()].iloc[0])!r}; expected ISO 8601, whole or in part, such "
            "as 2014-01-02, 2014-01 or 2014."
        )
