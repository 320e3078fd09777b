"""Trajectories of patients."""

import numpy as np
import pandas as pd

import lacova
from lacova import report
from lacova.report.facts import ReportOptions
from lacova.report.patients import trajectories
from tests.report.cases import LAB, facts_of


def test_patients_with_missing_times_are_in_order(model, table):
    data = table.copy()
    data.loc[[0, 5, 10], "day"] = None
    shown = trajectories(model, data, [LAB], ReportOptions(10, 0, True))["people"]
    assert all(person["at"] == sorted(person["at"]) for person in shown)
    first = shown[[p["id"] for p in shown].index(table["id"][0])]
    rows = data[:4].assign(at=model.impute(data[:4], seed=0)["day"]).sort_values("at", kind="stable")
    assert first["values"][0]["gap"] == np.flatnonzero(rows[LAB].isna()).tolist()


def test_of_many_visits_fewer_patients_can_be_picked_and_the_page_stays_small(tmp_path):
    rng = np.random.default_rng(0)
    patients, count, names = 24, 400, [f"lab{k}" for k in range(40)]
    table = pd.DataFrame(rng.normal(0, 1e-3, (patients * count, 40)), columns=names).mask(
        rng.random((patients * count, 40)) < 0.5
    )
    table = table.assign(id=np.repeat(np.arange(patients), count), day=np.tile(np.arange(count) / 7, patients))
    model = lacova.CVAE(lacova.Schema(names, {}, instance="id", time="day"), latent_dim=1)
    path = report.write(model.fit(table, max_epochs=1, device="cpu"), table, tmp_path / "r.html", draws=10)
    assert path.stat().st_size < 8e6
    text = path.read_text(encoding="utf-8")
    shown = facts_of(text)["patients"]["people"]
    assert 0 < len(shown) < patients
    assert f"A random {len(shown)} of 24 patients, as many as fit on a page, to choose from" in text
    one = table.assign(id=0)
    assert trajectories(model, one, names, ReportOptions(10, 0, True)) is None  # thousands of visits of one patient
