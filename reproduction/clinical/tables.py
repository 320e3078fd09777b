"""Two real longitudinal tables: the Mayo Clinic's primary biliary cirrhosis follow-up and the CDISC pilot trial.

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


def _ready(table: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Return the schema's columns, with continuous covariates as floats and categorical ones as objects."""
    kinds = {name: float if kind == "continuous" else object for name, kind in schema.covariates.items()}
    return table[list(schema.columns)].astype(kinds)
