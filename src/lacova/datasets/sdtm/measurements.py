"""LB and VS: results in long form, then wide by patient and visit, then without sparse tests, visits and patients."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from lacova.data.errors import DataError, hint
from lacova.datasets.sdtm.dates import elapsed, first_day, is_whole
from lacova.datasets.sdtm.domains import Remark, ignore, read_domain

VISIT = ["patient", "visit"]
QUALIFIER = {"LB": "LBSPEC", "VS": "VSPOS"}  # the specimen of a test, or the position of the body
LIMIT = r"^[<>]=?\s*[\d.]+$"


def read_results(folder: Path, domain: str) -> pd.DataFrame:
    """Read LB or VS as `results` takes it, with the same column names for both."""
    text = {
        "USUBJID": "patient", f"{domain}TESTCD": "test", f"{domain}STRESC": "text", f"{domain}STRESU": "unit",
        f"{domain}DTC": "date", QUALIFIER[domain]: "qualifier",
    }  # fmt: skip
    numbers = {"VISITNUM": "visit", f"{domain}STRESN": "value", f"{domain}DY": "day"}
    optional = [f"{domain}DTC", f"{domain}DY", QUALIFIER[domain]]
    return read_domain(folder, domain, text, numbers, optional).rename(columns=text | numbers).assign(domain=domain)


def results(
    domains: Iterable[pd.DataFrame], people: pd.DataFrame, by_position: bool = False, exclude: Iterable[str] = (),
    remark: Remark = ignore,
) -> pd.DataFrame:  # fmt: skip
    """Return the numeric results of enrolled patients, with their days since the first dose.

    Args:
        domains: the results of `read_results` for LB and VS.
        people: the result of `enrolled`.
        by_position: treat readings of a vital sign in several positions as separate tests instead of averaging them.
        exclude: tests to leave out.
        remark: receives remarks on the data.
    """
    rows = pd.concat(list(domains), ignore_index=True)
    foreign = ~rows["patient"].isin(people.index)
    if foreign.any():
        remark(f"LB, VS: {foreign.sum():,} results of patients who are left out, or are not in DM, do not count.")
    rows = rows[~foreign]
    unnamed = rows["test"].isna()
    if unnamed.any():
        remark(f"LB, VS: {unnamed.sum():,} results without a test code (LBTESTCD, VSTESTCD) are left out.")
    rows = rows[~unnamed]
    exclude = list(exclude)
    unknown = [name for name in exclude if name not in rows["test"].unique()]
    if unknown:
        raise DataError(f"there is no test {unknown[0]!r} to exclude.{hint(unknown, rows['test'].unique())}")
    rows = rows[~rows["test"].isin(exclude)]
    _remark_on_text(rows, remark)
    rows = rows.dropna(subset=["value"])
    unvisited = rows["visit"].isna()
    if unvisited.any():
        remark(f"LB, VS: {unvisited.sum():,} results without a visit number (VISITNUM) are left out.")
    rows = rows[~unvisited]
    if rows.empty:
        raise DataError("LB and VS have no result that is a number (LBSTRESN, VSSTRESN) of an enrolled patient.")
    return _days(_tests(rows, by_position, remark), people)


def _remark_on_text(rows: pd.DataFrame, remark: Remark) -> None:
    """Remark on results that are text, and on those among them that are beyond a limit of detection."""
    text = rows[rows["value"].isna() & rows["text"].notna()]
    limit = text["text"].str.match(LIMIT)
    never = rows.groupby(["domain", "test"])["value"].transform("count").loc[text.index] == 0
    if never.any():
        names = ", ".join(text.loc[never, "test"].unique())
        remark(f"LB, VS: {names} is text throughout ({never.sum():,} results), and left out.")
    if limit.any():
        values = (text["test"] + " " + text["text"])[limit].value_counts(sort=False).sort_index()
        counts = ", ".join(f"{value} ({count})" for value, count in values.items())
        remark(f"LB, VS: {limit.sum():,} results beyond a limit are text, and missing: {counts}.")
    other = text[~limit & ~never]
    if len(other):
        remark(f"LB, VS: {len(other):,} results of {_list(other['test'])} are other text, and missing.")


def _tests(rows: pd.DataFrame, by_position: bool, remark: Remark) -> pd.DataFrame:
    """Name tests: those from several specimens, and positions with `by_position`, by specimen or position too.

    A code that occurs in both domains names two tests; that of VS has its domain in the name.
    """
    apart = rows["qualifier"].notna() & ((rows["domain"] == "LB") | by_position)
    apart &= rows.groupby(["domain", "test"])["qualifier"].transform("nunique") > 1
    named = rows["test"].mask(apart, rows["test"] + " " + rows["qualifier"])
    both = rows["domain"].groupby(named).transform("nunique") > 1
    if both.any():
        remark(
            f"LB, VS: tests of one code in both domains are kept apart, that of VS as CODE VS: {_list(named[both])}."
        )
    named = named.mask(both & (rows["domain"] == "VS"), named + " VS")
    mixed = rows.assign(test=named).groupby([*VISIT, "test"])["qualifier"].nunique() > 1
    if mixed.any():
        tests = mixed[mixed].reset_index()
        positions = rows.loc[named.isin(tests["test"]), "qualifier"]
        visits = len(tests[VISIT].drop_duplicates())
        remark(
            f"VS: readings {_list(positions)} of a visit are averaged: {_list(tests['test'])}, at {visits:,} visits."
        )
    if apart.any():
        remark(f"LB, VS: tests of several specimens or positions are kept apart: {_list(named[apart])}.")
    return rows.assign(test=named)


def _days(rows: pd.DataFrame, people: pd.DataFrame) -> pd.DataFrame:
    """Compute days since the first dose, from the study day or else from the date."""
    if (rows["day"] == 0).any():
        domain = rows.loc[rows["day"] == 0, "domain"].iloc[0]
        raise DataError(
            f"{domain}DY is 0 for {(rows['day'] == 0).sum()} results, but SDTM goes from day -1 to day 1; correct it, "
            f"or leave it empty, so that days are counted from {domain}DTC."
        )
    day = elapsed(rows["day"])
    undated = day.isna() & rows["date"].notna()
    dates = rows.loc[undated, "date"]
    dates = dates[is_whole(dates, "LBDTC or VSDTC").to_numpy()]
    since = first_day(dates, "LBDTC or VSDTC") - rows.loc[dates.index, "patient"].map(people["first_dose"])
    return rows.assign(day=day.fillna(since.dt.days))


def check_units(results: pd.DataFrame, remark: Remark = ignore) -> None:
    """Refuse a test whose results come in more than one unit."""
    units = results.groupby("test")["unit"]
    count = units.nunique()
    for test in count.index[count > 1]:
        names = sorted(results.loc[results["test"] == test, "unit"].dropna().unique())
        raise DataError(
            f"the test {test} comes in {' and '.join(names)}; convert its results to one unit, or exclude it."
        )
    unnamed = results["test"].isin(count.index[count == 1]) & results["unit"].isna()
    more = f"; {unnamed.sum()} results of these name none, and count as in it" if unnamed.any() else ""
    remark(f"LB, VS: {(count == 1).sum()} tests have one unit throughout, {(count == 0).sum()} have none{more}.")


def visit_days(results: pd.DataFrame, remark: Remark = ignore) -> pd.Series:
    """Return the day of each visit: that of LB, or else that of VS; the first if there are several."""
    first = results.groupby(["domain", *VISIT])["day"].min().unstack("domain").reindex(columns=["LB", "VS"])
    gap = (first["LB"] - first["VS"]).abs()
    if (gap > 0).any():
        remark(
            f"LB, VS: their days differ at {(gap > 0).sum():,} of {gap.notna().sum():,} visits with both, by up to "
            f"{gap.max():.0f}; the day is that of LB."
        )
    day = first["LB"].fillna(first["VS"])
    if day.isna().all():
        raise DataError("no result has a day (LBDY, VSDY) or a whole date (LBDTC, VSDTC); expected one of them.")
    if day.isna().any():
        remark(f"LB, VS: {day.isna().sum():,} visits without a day are left out.")
    return day.dropna().rename("day")


def wide(results: pd.DataFrame, remark: Remark = ignore) -> pd.DataFrame:
    """Return a row per patient and visit and a column per test, with the mean of repeated results."""
    repeated = results.duplicated([*VISIT, "test"]).sum()
    if repeated:
        remark(f"LB, VS: {repeated:,} results repeat a test at a visit; the mean is taken.")
    return results.pivot_table(index=VISIT, columns="test", values="value", aggfunc="mean")


def drop_columns(table: pd.DataFrame, share: float = 0.1) -> pd.DataFrame:
    """Return the tests that are observed at no less than this share of the visits."""
    seen = table.notna().mean()
    if not (seen >= share).any():
        raise DataError(
            f"no test is observed at {share:.0%} of the visits, the best at {seen.max():.0%}; lower min_column."
        )
    return table.loc[:, seen >= share]


def drop_rows(table: pd.DataFrame, share: float = 0.5) -> pd.DataFrame:
    """Return the visits at which no less than this share of the tests is observed."""
    seen = table.notna().mean(axis=1)
    if not (seen >= share).any():
        raise DataError(
            f"no visit has {share:.0%} of the tests observed, the best has {seen.max():.0%}; lower min_row."
        )
    return table[seen >= share]


def drop_patients(table: pd.DataFrame, visits: int = 5) -> pd.DataFrame:
    """Return the patients with no fewer than this many visits."""
    count = table.groupby("patient").size()
    if not (count >= visits).any():
        raise DataError(f"no patient has {visits} visits left, the most is {count.max()}; lower min_visits.")
    return table[table.index.get_level_values("patient").isin(count.index[count >= visits])]


def remark_on_constant(table: pd.DataFrame, remark: Remark) -> None:
    """Remark on tests that are almost constant: in a part of the patients they may not vary at all."""
    for name, column in table.items():
        counts = column.value_counts()
        total = counts.sum()
        rest = total - counts.iloc[0]
        if rest <= 0.01 * total:
            remark(
                f"{name}: all but {rest} of {total:,} values are {counts.index[0]:g}; in part of the patients its sd "
                "can be 0, and its scale is then 1."
            )


def _list(names: pd.Series) -> str:
    return ", ".join(sorted(names.dropna().unique()))
