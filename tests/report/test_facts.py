"""Facts about the data and the model are right."""

import numpy as np
import pandas as pd

from lacova.report import facts
from lacova.report.patients import MAX_PATIENTS
from tests.report.cases import HOSTILE, LAB, facts_of


def test_figures_are_those_of_the_model(model, table, page):
    shown = facts_of(page)
    person = next(p for p in shown["patients"]["people"] if p["id"].startswith("patient-1" + HOSTILE[1]))
    rows = table[table["id"].str.startswith("patient-1" + HOSTILE[1][:3])].reset_index(drop=True)
    values = person["values"][0]
    assert values["gap"] == np.flatnonzero(rows[LAB].isna()).tolist()
    seen = [k for k in range(len(rows)) if k not in values["gap"]]
    np.testing.assert_allclose([values["mean"][k] for k in seen], rows[LAB][seen], rtol=1e-3)
    assert len(values["lower"]) == len(values["gap"])
    assert min(person["fan"]["at"]) > max(person["at"])
    shares = np.array(shown["effects"]["shares"], float)
    np.testing.assert_allclose(shares.sum(0), 1.0, atol=0.01)
    age = next(c for c in shown["covariates"] if c["name"] == "age")
    assert {g["who"] for g in age["gaps"]} == {f"patient-3{HOSTILE[3]}"}
    gaps = shown["gaps"]
    np.testing.assert_allclose(np.mean(gaps["share"], 0), table[gaps["columns"]].isna().mean(), atol=0.01)


def test_large_data_are_sampled_and_the_report_says_so(model, table):
    many = pd.concat([table.assign(id=table["id"] + str(k)) for k in range(4)], ignore_index=True)
    sample = facts.sample_units(many, model.schema, MAX_PATIENTS, 0)
    assert sample["id"].nunique() == 60
    assert len(sample) == 240
    assert facts.sample_units(many, model.schema, 1000, 0) is many
