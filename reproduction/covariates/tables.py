"""Two real longitudinal tables: the Mayo Clinic's primary biliary cirrhosis follow-up and the CDISC pilot trial.

Both come as a data frame, sorted by patient and day, and its schema. The files are not part of the repository.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from lacova import Schema

PBC_LABS = ("bili", "chol", "albumin", "alk_phos", "ast", "platelet", "protime")
CDISC_COUNTS = {"patients": 192, "rows": 1633, "tests": 39}
EVENTS = 10  # adverse events, and as many medications, that become covariates
ONE_DRUG = {"MULTIVITAMINS": "MULTIVITAMIN"}  # two names of the same thing


def pbc(folder: Path) -> tuple[pd.DataFrame, Schema]:
    """312 patients, 1,945 visits. ascites, hepato and spiders have about 60 gaps each, chol 821.

    All covariates but age and day are categorical: edema (0, 0.5, 1: none, treated or untreated, despite treatment)
    and stage (1 to 4) are ordered, but have no unit of distance. stage changes along the visits of half the patients.
    """
    table = pd.read_csv(folder / "pbcseq.csv").sort_values(["id", "day"], ignore_index=True)
    kinds = {name: "categorical" for name in ("trt", "sex", "ascites", "hepato", "spiders", "edema", "stage")}
    schema = Schema(
        PBC_LABS, {"age": "continuous", **kinds}, instance="id", time="day", static=["trt", "age", "sex"]
    )  # fmt: skip
    return _ready(table, schema), schema


def cdisc(folder: Path) -> tuple[pd.DataFrame, Schema]:
    """192 patients, 1,633 visits, 39 laboratory tests and vital signs; covariates are complete.

    Days count from the first dose, which is day 0 here (SDTM goes from -1 to 1), and are those of the laboratory.
    """
    folder = folder / "cdiscpilot01"
    wide, day = _measurements(folder)
    found = {"patients": wide.index.unique("patient").size, "rows": len(wide), "tests": wide.shape[1]}
    if found != CDISC_COUNTS:
        raise ValueError(f"the CDISC pilot filters to {found}, expected {CDISC_COUNTS}: are these the same files?")
    tests = list(wide.columns)
    table = wide.assign(day=day).reset_index().sort_values(["patient", "day"], ignore_index=True)
    people = pd.read_csv(folder / "dm.csv.gz").set_index("USUBJID").loc[table["patient"].unique()]
    for name, source in (("age", "AGE"), ("sex", "SEX"), ("arm", "ACTARMCD")):
        table[name] = table["patient"].map(people[source])
    first_dose = pd.to_datetime(people["RFSTDTC"])
    kinds = {"age": "continuous", "sex": "categorical", "arm": "categorical"}
    for domain, term in (("AE", "AEDECOD"), ("CM", "CMTRT")):
        active = _frequent(_active(table, _spans(folder / f"{domain.lower()}.csv.gz", domain, term, first_dose)))
        for label, rows in active.items():
            name = f"{domain} {label.lower()}"
            table[name] = np.where(table.index.isin(rows), "yes", "no")
            kinds[name] = "categorical"
    schema = Schema(tests, kinds, instance="patient", time="day", static=["age", "sex", "arm"])
    return _ready(table, schema), schema


def _ready(table: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """The schema's columns; continuous covariates as floats and categorical ones as objects, which can hold gaps."""
    kinds = {name: float if kind == "continuous" else object for name, kind in schema.covariates.items()}
    return table[list(schema.columns)].astype(kinds)


def _measurements(folder: Path) -> tuple[pd.DataFrame, pd.Series]:
    """LB and VS wide by patient and visit, mean of repeats; what is mostly empty is left out. And each visit's day."""
    parts = []
    for domain in ("LB", "VS"):
        columns = {
            "USUBJID": "patient", "VISITNUM": "visit",
            f"{domain}TESTCD": "test", f"{domain}STRESN": "value", f"{domain}DY": "day",
        }  # fmt: skip
        parts.append(pd.read_csv(folder / f"{domain.lower()}.csv.gz", usecols=list(columns)).rename(columns=columns))
    every = pd.concat(parts).dropna(subset="value")
    wide = every.pivot_table(index=["patient", "visit"], columns="test", values="value", aggfunc="mean")
    wide = wide.loc[:, wide.notna().mean() >= 0.1]
    wide = wide[wide.notna().mean(axis=1) >= 0.5]
    wide = wide[wide.groupby("patient")["ALB"].transform("size") >= 5]
    day = parts[0].groupby(["patient", "visit"])["day"].first().loc[wide.index]
    return wide, day - (day > 0)


def _spans(file: Path, domain: str, term: str, first_dose: pd.Series) -> pd.DataFrame:
    """From when to when, in days since the first dose, each kept patient had an event or took a drug.

    A partial date stands for the earliest start or the latest end that it allows; no end is a span that goes on.
    """
    columns = {"USUBJID": "patient", term: "label", f"{domain}STDTC": "start", f"{domain}ENDTC": "end"}
    spans = pd.read_csv(file, usecols=list(columns), dtype=str).rename(columns=columns)
    spans["label"] = spans["label"].replace(ONE_DRUG)
    spans = spans[spans["patient"].isin(first_dose.index)].drop_duplicates()
    zero = spans["patient"].map(first_dose)
    start = pd.to_datetime(spans["start"].str[:10], format="ISO8601")  # a year or a month alone: its first day
    end = pd.to_datetime(spans["end"].str[:10], format="ISO8601")
    length = spans["end"].str.len()
    end = end.mask(length == 4, end + pd.offsets.YearEnd(0)).mask(length == 7, end + pd.offsets.MonthEnd(0))
    return spans.assign(start=(start - zero).dt.days.fillna(-np.inf), end=(end - zero).dt.days.fillna(np.inf))


def _active(table: pd.DataFrame, spans: pd.DataFrame) -> pd.DataFrame:
    """Label by label, the visits (`row` of the table) that fall into a span of their patient."""
    met = table[["patient", "day"]].rename_axis("row").reset_index().merge(spans, on="patient")
    return met[(met["start"] <= met["day"]) & (met["day"] <= met["end"])]


def _frequent(active: pd.DataFrame) -> dict[str, pd.Series]:
    """The labels that most patients show at a visit, and the rows where they do."""
    patients = active.groupby("label")["patient"].nunique().sort_index().sort_values(ascending=False, kind="stable")
    return {label: active.loc[active["label"] == label, "row"] for label in patients.index[:EVENTS]}
