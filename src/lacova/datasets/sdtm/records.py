"""AE and CM: from when to when a patient had an event or took a drug, and at which visits that was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from lacova.datasets.sdtm.dates import first_day, is_whole, last_day
from lacova.datasets.sdtm.domains import Say, read_domain, unsaid


def read_records(folder: Path, domain: str, term: str) -> pd.DataFrame:
    """AE or CM as `spans` takes it; `term` is the column that names the event or drug."""
    columns = {"USUBJID": "patient", term: "label", f"{domain}STDTC": "start", f"{domain}ENDTC": "end"}
    return read_domain(folder, domain, columns).rename(columns=columns)


def spans(
    records: pd.DataFrame, people: pd.DataFrame, known_dates: bool = False, domain: str = "AE", say: Say = unsaid
) -> pd.DataFrame:
    """From when to when, in days since the first dose, each enrolled patient had an event or took a drug.

    A partial date stands for the earliest start or the latest end that it allows (`dates`); without a start a span
    has always been, without an end it goes on. Records that repeat patient, name and dates count once.

    Args:
        records: what `read_records` gave.
        people: what `enrolled` gave.
        known_dates: keep only records whose start and end are whole dates, as the paper does.
        domain: for errors and remarks.
        say: takes remarks.
    """
    found = records[records["patient"].isin(people.index)]
    unnamed = found["label"].isna()
    found = found[~unnamed]
    distinct = found.drop_duplicates()
    say(f"{domain}: {len(found):,} records of enrolled patients, {len(distinct):,} distinct: repeats count once.")
    if unnamed.any():
        say(f"{domain}: {unnamed.sum():,} records without a name are left out.")
    found = distinct.assign(label=_one_name(distinct["label"], domain, say)).reset_index(drop=True)
    where = {name: f"{domain}{code}" for name, code in (("start", "STDTC"), ("end", "ENDTC"))}
    whole = pd.DataFrame({name: is_whole(found[name], column) for name, column in where.items()})
    partial = (found[["start", "end"]].notna() & ~whole).any(axis=1).sum()
    if known_dates:
        found = found[whole.all(axis=1)].reset_index(drop=True)
        say(f"{domain}: {len(found):,} records have a whole start and end date; the others are left out.")
    else:
        open_end, open_start = found["end"].isna().sum(), found["start"].isna().sum()
        say(
            f"{domain}: {open_end:,} records without an end go on, {open_start:,} without a start have always been; "
            f"{partial:,} with a partial date begin at its first day, or end at its last."
        )
    zero = found["patient"].map(people["first_dose"])
    start = (first_day(found["start"], where["start"]) - zero).dt.days.fillna(-np.inf)
    end = (last_day(found["end"], where["end"]) - zero).dt.days.fillna(np.inf)
    if (end < start).any():
        say(f"{domain}: {(end < start).sum():,} records end before they start, and are never active.")
    return found.assign(start=start, end=end)


def _one_name(labels: pd.Series, domain: str, say: Say) -> pd.Series:
    """Names in capitals with single spaces; a plural with S is its singular, if that is a name too."""
    labels = labels.str.upper().str.split().str.join(" ")
    names = set(labels.unique())
    plurals = sorted(name for name in names if name.removesuffix("S") in names - {name})
    if plurals:
        say(f"{domain}: the same thing by two names: {', '.join(f'{n} is {n[:-1]}' for n in plurals)}.")
    return labels.replace({name: name[:-1] for name in plurals})


def active(table: pd.DataFrame, spans: pd.DataFrame) -> pd.DataFrame:
    """Label by label, the visits (`row` of the table) whose day falls into a span of their patient."""
    met = table[["patient", "day"]].rename_axis("row").reset_index().merge(spans, on="patient")
    return met[(met["start"] <= met["day"]) & (met["day"] <= met["end"])]


def frequent(active: pd.DataFrame, count: int = 10) -> list[str]:
    """The labels that most patients show at a visit, by name if level."""
    patients = active.groupby("label")["patient"].nunique().sort_index().sort_values(ascending=False, kind="stable")
    return [str(label) for label in patients.index[:count]]
