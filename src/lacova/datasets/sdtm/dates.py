"""Dates as SDTM has them: ISO 8601 of which the end, or a part in the middle, may be unknown.

The rule for a partial date: as a start it is the earliest day that it allows, as an end the latest. What stands
behind an unknown part does not count: 2003---15, some fifteenth of 2003, is 2003. Of an interval with a stroke the
beginning is the start, and the end the end. The time of day is left out.
"""

from __future__ import annotations

import pandas as pd

from lacova.data.errors import DataError

PATTERN = r"^(?P<year>\d{4}|-)(?:-(?P<month>\d{2}|-)(?:-(?P<day>\d{2}|-))?)?$"


def first_day(dates: pd.Series, where: str) -> pd.Series:
    """The earliest day that each date allows; none for one without a year. `where` names the column in errors."""
    return _stamp(_parts(dates, where, 0), dates, where)


def last_day(dates: pd.Series, where: str) -> pd.Series:
    """The latest day that each date allows."""
    parts = _parts(dates, where, -1)
    day = _stamp(parts.assign(month=parts["month"].fillna(12)), dates, where)
    return day.mask(parts["day"].isna(), day + pd.offsets.MonthEnd(0))


def is_whole(dates: pd.Series, where: str) -> pd.Series:
    """Whether year, month and day are known."""
    return _parts(dates, where, 0).notna().all(axis=1)


def elapsed(day: pd.Series) -> pd.Series:
    """Days since the first dose. SDTM counts … -2, -1, 1, 2 …: day 1 is that of the first dose, and there is no 0."""
    return day - (day > 0)


def _parts(dates: pd.Series, where: str, end: int) -> pd.DataFrame:
    """Year, month and day as numbers, each missing where one before it is."""
    dates = dates.astype(object).where(dates.notna(), None).astype("string")
    text = dates.str.split("/").str[end].str.split("T").str[0]
    found = text.str.extract(PATTERN)
    _refuse(dates.notna() & found["year"].isna(), dates, where)
    parts = pd.DataFrame({name: pd.to_numeric(found[name].astype(object), errors="coerce") for name in found})
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
