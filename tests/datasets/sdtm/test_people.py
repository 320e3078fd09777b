"""DM: enrolled patients and their arms."""

import pytest

from lacova.data.errors import DataError
from lacova.datasets import sdtm
from tests.datasets.sdtm.cases import domains, has_note, prepared


def test_screen_failures_and_patients_without_a_dose_are_left_out(plain):
    assert not plain.table["patient"].isin(["fail", "none"]).any()
    assert has_note(plain, "DM: 6 patients, of whom 1 screen failures are left out.")
    assert has_note(plain, "1 patients without a first dose (RFSTDTC) are left out.")
    assert has_note(plain, "70 results of patients who are left out")
    people = sdtm.enrolled(
        domains()["DM"].assign(RFSTDTC="2014-01-02", ACTARMCD=[None, "A", "NOTASSGN", "a", "b", "B"])
    )
    assert people.index.tolist() == ["002", "004", "fail", "none"]


def test_the_arm_is_the_actual_one_unless_the_planned_one_is_requested(plain, tmp_path):
    assert plain.table.groupby("patient")["arm"].first().tolist() == ["A", "A", "B", "A"]
    assert has_note(plain, "ARM and ACTARM differ for 1 patients; the arm is ACTARM, what was taken.")
    planned = prepared(tmp_path, planned_arm=True)
    assert planned.table.groupby("patient")["arm"].first().tolist() == ["A", "A", "B", "B"]
    assert has_note(planned, "the arm is ARM, what was planned")
    older = domains()
    older["DM"] = older["DM"].drop(columns="ACTARMCD")
    assert prepared(tmp_path, older).table["arm"].tolist() == planned.table["arm"].tolist()


def test_arms_can_be_chosen(tmp_path):
    study = prepared(tmp_path, arms=["B"])
    assert study.table["patient"].unique().tolist() == ["003"]
    assert has_note(study, "1 patients are in the arms asked for: B.")
    with pytest.raises(DataError, match=r"no arm 'C' in DM; the arms are A, B\."):
        prepared(tmp_path, arms=["A", "C"])
