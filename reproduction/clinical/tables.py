"""Real longitudinal tables: the Mayo Clinic's cirrhosis follow-up, the CDISC pilot trial, and intensive care.

Each is a data frame sorted by patient and day, with its schema. The files are not part of the repository.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lacova import Schema
from lacova.datasets import sdtm

PBC_LABS = ("bili", "chol", "albumin", "alk_phos", "ast", "platelet", "protime")
CDISC_COUNTS = {"patients": 192, "rows": 1633, "tests": 39}


def pbc(folder: Path) -> tuple[pd.DataFrame, Schema]:
    """Return 312 patients with 1,945 visits. ascites, hepato and spiders have about 60 gaps each, chol 821.

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
    """Return 192 patients with 1,633 visits, 39 laboratory tests and vital signs; covariates are complete.

    Days are those of the laboratory and count from the first dose, which is day 0 here (SDTM goes from -1 to 1).
    """
    study = sdtm.study(folder / "cdiscpilot01", kinds="gaussian")  # as the committed results were computed
    counts = {name: int(study.steps[name].iloc[-1]) for name in CDISC_COUNTS}
    if counts != CDISC_COUNTS:
        raise ValueError(f"the CDISC pilot filters to {counts}, expected {CDISC_COUNTS}: are these the same files?")
    return study.table, study.schema


def icu(folder: Path) -> tuple[pd.DataFrame, Schema]:
    """Return stays in intensive care in 12 bins of four hours: about 1,000 patients, with 27 measurements.

    Kept are measurements with at least 10% of the bins observed, then bins with at least half of these, then patients
    with at least five bins, as in the pilot. Weight is the one at entry.
    """
    long = pd.read_parquet(folder / "physionet2012a.parquet")
    long = long[long["value"] != -1.0]
    entry = long[long["minute"] == 0].pivot_table(index="record", columns="parameter", values="value", observed=True)
    entry = entry.reindex(columns=["Age", "Gender", "Height", "ICUType", "Weight"])
    measured = long[~long["parameter"].isin(["RecordID", *entry.columns])]
    bins = (measured["minute"] // 240).clip(upper=11).rename("bin")
    wide = measured.pivot_table(index=["record", bins], columns="parameter", values="value", observed=True)
    wide = wide.loc[:, (wide.notna().mean() >= 0.1) & (wide.nunique() > 1)]
    wide = wide[wide.notna().mean(axis=1) >= 0.5]
    wide = wide[wide.groupby("record").transform("size") >= 5]
    table = wide.join(entry, on="record").reset_index()
    kinds = {"Age": "continuous", "Height": "continuous", "Weight": "continuous"}
    kinds |= {"Gender": "categorical", "ICUType": "categorical"}
    schema = Schema(list(wide.columns), kinds, instance="record", time="bin", static=list(kinds))
    return _ready(table, schema), schema


def _ready(table: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Return the schema's columns, with continuous covariates as floats and categorical ones as objects."""
    kinds = {name: float if kind == "continuous" else object for name, kind in schema.covariates.items()}
    return table[list(schema.columns)].astype(kinds)
