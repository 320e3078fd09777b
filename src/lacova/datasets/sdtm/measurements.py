"""LB and VS: results one below the other, then wide by patient and visit, then without what is mostly empty."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from lacova.data.errors import DataError, meant
from lacova.datasets.sdtm.dates import elapsed, first_day, is_whole
from lacova.datasets.sdtm.domains import Say, read_domain, unsaid

VISIT = ["patient", "visit"]
QUALIFIER = {"LB": "LBSPEC", "VS": "VSPOS"}  # of a test: the specimen, the position of the body
LIMIT = r"^[<>]=?\s*[\d.]+$"


def read_results(folder: Path, domain: str) -> pd.DataFrame:
    """LB or VS as `results` takes it, with columns named alike."""
    text = {
        "USUBJID": "patient", f"{domain}TESTCD": "test", f"{domain}STRESC": "text", f"{domain}STRESU": "unit",
        f"{domain}DTC": "date", QUALIFIER[domain]: "qualifier",
    }  # fmt: skip
    numbers = {"VISITNUM": "visit", f"{domain}STRESN": "value", f"{domain}DY": "day"}
    optional = [f"{domain}DTC", f"{domain}DY", QUALIFIER[domain]]
    return read_domain(folder, domain, text, numbers, optional).rename(columns=text | numbers).assign(domain=domain)


def results(
    domains: Iterable[pd.DataFrame], people: pd.DataFrame, by_position: bool = False, exclude: Iterable[str] = (),
    say: Say = unsaid,
) -> pd.DataFrame:  # fmt: skip
    """The results of enrolled patients that are numbers, with their days since the first dose.

    Args:
        domains: what `read_results` gave for LB and VS.
        people: what `enrolled` gave.
        by_position: readings of vital signs in several positions are tests of their own, not averaged.
        exclude: tests to leave out.
        say: takes remarks.
    """
    every = pd.concat(list(domains), ignore_index=True)
    strange = ~every["patient"].isin(people.index)
    if strange.any():
        say(f"LB, VS: {strange.sum():,} results of patients who are left out, or are not in DM, do not count.")
    every = every[~strange]
    unnamed = every["test"].isna()
    if unnamed.any():
        say(f"LB, VS: {unnamed.sum():,} results without a test code (LBTESTCD, VSTESTCD) are left out.")
    every = every[~unnamed]
    exclude = list(exclude)
    unknown = [name for name in exclude if name not in every["test"].unique()]
    if unknown:
        raise DataError(f"there is no test {unknown[0]!r} to exclude.{meant(unknown, every['test'].unique())}")
    every = every[~every["test"].isin(exclude)]
    _say_text(every, say)
    every = every.dropna(subset=["value"])
    nowhere = every["visit"].isna()
    if nowhere.any():
        say(f"LB, VS: {nowhere.sum():,} results without a visit number (VISITNUM) are left out.")
    every = every[~nowhere]
    if every.empty:
        raise DataError("LB and VS have no result that is a number (LBSTRESN, VSSTRESN) of an enrolled patient.")
    return _days(_tests(every, by_position, say), people)


def _say_text(every: pd.DataFrame, say: Say) -> None:
    """Which results are text, and which of these are beyond a limit of detection."""
    text = every[every["value"].isna() & every["text"].notna()]
    limit = text["text"].str.match(LIMIT)
    never = every.groupby(["domain", "test"])["value"].transform("count").loc[text.index] == 0
    if never.any():
        names = ", ".join(text.loc[never, "test"].unique())
        say(f"LB, VS: {names} is text throughout ({never.sum():,} results), and left out.")
    if limit.any():
        found = (text["test"] + " " + text["text"])[limit].value_counts(sort=False).sort_index()
        some = ", ".join(f"{value} ({count})" for value, count in found.items())
        say(f"LB, VS: {limit.sum():,} results beyond a limit are text, and missing: {some}.")
    other = text[~limit & ~never]
    if len(other):
        say(f"LB, VS: {len(other):,} results of {_list(other['test'])} are other text, and missing.")


def _tests(every: pd.DataFrame, by_position: bool, say: Say) -> pd.DataFrame:
    """Names of tests: of those from several specimens, and positions if asked for, with the specimen or position.

    A code of both domains names two tests, of which that of VS has its domain in the name.
    """
    apart = every["qualifier"].notna() & ((every["domain"] == "LB") | by_position)
    apart &= every.groupby(["domain", "test"])["qualifier"].transform("nunique") > 1
    named = every["test"].mask(apart, every["test"] + " " + every["qualifier"])
    both = every["domain"].groupby(named).transform("nunique") > 1
    if both.any():
        say(f"LB, VS: tests of one code in both domains are kept apart, that of VS as CODE VS: {_list(named[both])}.")
    named = named.mask(both & (every["domain"] == "VS"), named + " VS")
    mixed = every.assign(test=named).groupby([*VISIT, "test"])["qualifier"].nunique() > 1
    if mixed.any():
        tests = mixed[mixed].reset_index()
        positions = every.loc[named.isin(tests["test"]), "qualifier"]
        visits = len(tests[VISIT].drop_duplicates())
        say(f"VS: readings {_list(positions)} of a visit are averaged: {_list(tests['test'])}, at {visits:,} visits.")
    if apart.any():
        say(f"LB, VS: tests of several specimens or positions are kept apart: {_list(named[apart])}.")
    return every.assign(test=named)


def _days(every: pd.DataFrame, people: pd.DataFrame) -> pd.DataFrame:
    """Days since the first dose: from the day of study, else from the date."""
    if (every["day"] == 0).any():
        domain = every.loc[every["day"] == 0, "domain"].iloc[0]
        raise DataError(
            f"{domain}DY is 0 for {(every['day'] == 0).sum()} results, but SDTM goes from day -1 to day 1; correct it, "
            f"or leave it empty, so that days are counted from {domain}DTC."
        )
    day = elapsed(every["day"])
    undated = day.isna() & every["date"].notna()
    dates = every.loc[undated, "date"]
    dates = dates[is_whole(dates, "LBDTC or VSDTC").to_numpy()]
    since = first_day(dates, "LBDTC or VSDTC") - every.loc[dates.index, "patient"].map(people["first_dose"])
    return every.assign(day=day.fillna(since.dt.days))


def check_units(results: pd.DataFrame, say: Say = unsaid) -> None:
    """Refuse a test whose results come in more than one unit."""
    units = results.groupby("test")["unit"]
    count = units.nunique()
    for test in count.index[count > 1]:
        found = sorted(results.loc[results["test"] == test, "unit"].dropna().unique())
        raise DataError(
            f"the test {test} comes in {' and '.join(found)}; convert its results to one unit, or exclude it."
        )
    some = results["test"].isin(count.index[count == 1]) & results["unit"].isna()
    more = f"; {some.sum()} results of these name none, and count as in it" if some.any() else ""
    say(f"LB, VS: {(count == 1).sum()} tests have one unit throughout, {(count == 0).sum()} have none{more}.")


def visit_days(results: pd.DataFrame, say: Say = unsaid) -> pd.Series:
    """The day of each visit: that of the laboratory, else that of the vital signs; the first if there are several."""
    first = results.groupby(["domain", *VISIT])["day"].min().unstack("domain").reindex(columns=["LB", "VS"])
    gap = (first["LB"] - first["VS"]).abs()
    if (gap > 0).any():
        say(
            f"LB, VS: their days differ at {(gap > 0).sum():,} of {gap.notna().sum():,} visits with both, by up to "
            f"{gap.max():.0f}; the day is that of LB."
        )
    day = first["LB"].fillna(first["VS"])
    if day.isna().all():
        raise DataError("no result has a day (LBDY, VSDY) or a whole date (LBDTC, VSDTC); expected one of them.")
    if day.isna().any():
        say(f"LB, VS: {day.isna().sum():,} visits without a day are left out.")
    return day.dropna().rename("day")


def wide(results: pd.DataFrame, say: Say = unsaid) -> pd.DataFrame:
    """A row per patient and visit, a column per test, the mean of repeats."""
    repeated = results.duplicated([*VISIT, "test"]).sum()
    if repeated:
        say(f"LB, VS: {repeated:,} results repeat a test at a visit; the mean is taken.")
    return results.pivot_table(index=VISIT, columns="test", values="value", aggfunc="mean")


def drop_columns(table: pd.DataFrame, share: float = 0.1) -> pd.DataFrame:
    """The tests that are observed in at least this share of the visits."""
    seen = table.notna().mean()
    if not (seen >= share).any():
        raise DataError(
            f"no test is observed at {share:.0%} of the visits, the best at {seen.max():.0%}; lower min_column."
        )
    return table.loc[:, seen >= share]


def drop_rows(table: pd.DataFrame, share: float = 0.5) -> pd.DataFrame:
    """The visits at which at least this share of the tests is observed."""
    seen = table.notna().mean(axis=1)
    if not (seen >= share).any():
        raise DataError(
            f"no visit has {share:.0%} of the tests observed, the best has {seen.max():.0%}; lower min_row."
        )
    return table[seen >= share]


def drop_patients(table: pd.DataFrame, visits: int = 5) -> pd.DataFrame:
    """The patients with at least this many visits."""
    count = table.groupby("patient").size()
    if not (count >= visits).any():
        raise DataError(f"no patient has {visits} visits left, the most is {count.max()}; lower min_visits.")
    return table[table.index.get_level_values("patient").isin(count.index[count >= visits])]


def say_sparse(table: pd.DataFrame, say: Say) -> None:
    """Remark on tests whose values hardly vary: in part of the patients they may not vary at all."""
    for name, column in table.items():
        counts = column.value_counts()
        total = counts.sum()
        rest = total - counts.iloc[0]
        if rest <= 0.01 * total:
            say(
                f"{name}: all but {rest} of {total:,} values are {counts.index[0]:g}; in part of the patients its sd "
                "can be 0, and its scale is then 1."
            )


def _list(names: pd.Series) -> str:
    return ", ".join(sorted(names.dropna().unique()))
