"""AE and CM: the spans of adverse events and medications, and the visits that fall into them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from lacova.datasets.sdtm.dates import first_day, is_whole, last_day
from lacova.datasets.sdtm.domains import Remark, ignore, read_domain


def read_records(folder: Path, domain: str, term: str) -> pd.DataFrame:
    """Read AE or CM as `spans` takes it; `term` is the column that names the event or drug."""
    columns = {"USUBJID": "patient", term: "label", f"{domain}STDTC": "start", f"{domain}ENDTC": "end"}
    return read_domain(folder, domain, columns).rename(columns=columns)


def spans(
    records: pd.DataFrame, people: pd.DataFrame, known_dates: bool = False, domain: str = "AE", remark: Remark = ignore
) -> pd.DataFrame:
    """Return start and end, in days since the first dose, of the events or medications of enrolled patients.

    A partial date stands for the earliest start or the latest end that it allows (`dates`). A span without a start is
    active from the beginning, one without an end until the end. Records with equal patient, name and dates count once.

    Args:
        records: the result of `read_records`.
        people: the result of `enrolled`.
        known_dates: use only records whose start and end are whole dates, as in the paper.
        domain: name of the domain in errors and remarks.
        remark: receives remarks on the data.
    """
    enrolled = records[records["patient"].isin(people.index)]
    unnamed = enrolled["label"].isna()
    named = enrolled[~unnamed]
    distinct = named.drop_duplicates()
    remark(f"{domain}: {len(named):,} records of enrolled patients, {len(distinct):,} distinct: repeats count once.")
    if unnamed.any():
        remark(f"{domain}: {unnamed.sum():,} records without a name are left out.")
    spans = distinct.assign(label=_one_name(distinct["label"], domain, remark)).reset_index(drop=True)
    where = {name: f"{domain}{code}" for name, code in (("start", "STDTC"), ("end", "ENDTC"))}
    whole = pd.DataFrame({name: is_whole(spans[name], column) for name, column in where.items()})
    partial = (spans[["start", "end"]].notna() & ~whole).any(axis=1).sum()
    if known_dates:
        spans = spans[whole.all(axis=1)].reset_index(drop=True)
        remark(f"{domain}: {len(spans):,} records have a whole start and end date; the others are left out.")
    else:
        open_end, open_start = spans["end"].isna().sum(), spans["start"].isna().sum()
        remark(
            f"{domain}: {open_end:,} records without an end go on, {open_start:,} without a start have always been; "
            f"{partial:,} with a partial date begin at its first day, or end at its last."
        )
    first_dose = spans["patient"].map(people["first_dose"])
    start = (first_day(spans["start"], where["start"]) - first_dose).dt.days.fillna(-np.inf)
    end = (last_day(spans["end"], where["end"]) - first_dose).dt.days.fillna(np.inf)
    if (end < start).any():
        remark(f"{domain}: {(end < start).sum():,} records end before they start, and are never active.")
    return spans.assign(start=start, end=end)


def _one_name(labels: pd.Series, domain: str, remark: Remark) -> pd.Series:
    """Return names in capitals with single spaces; a plural with S becomes its singular, if that occurs too."""
    labels = labels.str.upper().str.split().str.join(" ")
    names = set(labels.unique())
    plurals = sorted(name for name in names if name.removesuffix("S") in names - {name})
    if plurals:
        remark(f"{domain}: the same thing by two names: {', '.join(f'{n} is {n[:-1]}' for n in plurals)}.")
    return labels.replace({name: name[:-1] for name in plurals})


def active(table: pd.DataFrame, spans: pd.DataFrame) -> pd.DataFrame:
    """Return the visits (`row` of the table) whose day falls into a span of their patient, with the span's label."""
    pairs = table[["patient", "day"]].rename_axis("row").reset_index().merge(spans, on="patient")
    return pairs[(pairs["start"] <= pairs["day"]) & (pairs["day"] <= pairs["end"])]


def frequent(active: pd.DataFrame, count: int = 10) -> list[str]:
    """Return the labels that most patients show at a visit; ties are in alphabetical order."""
    patients = active.groupby("label")["patient"].nunique().sort_index().sort_values(ascending=False, kind="stable")
    return [str(label) for label in patients.index[:count]]
