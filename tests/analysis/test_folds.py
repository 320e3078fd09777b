"""Folds hold all rows of a patient, and hide a share of the entries held out."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lacova import Schema
from lacova.analysis.folds import assign_folds, make_fold
from tests.analysis.cases import VISITS, visits


@pytest.mark.parametrize("folds", [2, 5, 12])
def test_folds_hold_all_rows_of_a_patient_and_have_equal_sizes(folds):
    table = visits()
    fold = assign_folds(table, VISITS, folds, 3)
    assert (pd.Series(fold).groupby(table["id"]).nunique() == 1).all()
    sizes = pd.Series(fold).groupby(fold).size() // 3
    assert len(sizes) == folds
    assert sizes.max() - sizes.min() <= 1
    assert not np.array_equal(fold, assign_folds(table, VISITS, folds, 4))


def test_without_an_instance_rows_are_split():
    fold = assign_folds(visits(), Schema(["alt"], {"sex": "categorical"}), 4, 0)
    assert np.bincount(fold).tolist() == [9, 9, 9, 9]


def folds_of(table, folds, hide):
    fold = assign_folds(table, VISITS, folds, 0)
    return [make_fold(table, VISITS, fold, k, hide, 0.1, 0) for k in range(folds)]


def test_training_validation_and_test_rows_are_of_different_patients():
    table = visits(40)
    parts = folds_of(table, 4, 0.2)
    for part in parts:
        groups = [set(rows["id"]) for rows in (part.train, part.validation, part.test)]
        assert [len(group) for group in groups] == [27, 3, 10]
        assert len(set.union(*groups)) == 40
    assert sorted(pd.concat([part.test for part in parts])["alt"]) == sorted(table["alt"])


def test_a_share_of_measurements_and_covariates_is_hidden_but_not_the_time():
    for part in folds_of(visits(300), 2, 0.3):
        share = part.hidden.isna().mean()
        assert (share[["day", "id", "note"]] == 0).all()
        assert ((share[["alt", "ast", "sex"]] - 0.3).abs() < 0.1).all()
        assert (part.hidden["sex"].isna().groupby(part.hidden["id"]).nunique() == 1).all()
        pd.testing.assert_frame_equal(part.hidden_y[["alt", "ast"]], part.hidden[["alt", "ast"]])
        assert part.hidden_y["sex"].notna().all()


@pytest.mark.parametrize(("declared", "kept"), [(None, False), (["f", "m", "other"], True)])
def test_levels_that_training_does_not_know_are_gaps_in_the_rows_held_out(declared, kept):
    table = visits(12)
    table["sex"] = table["sex"].where(table["id"] != 3, "other")
    schema = replace(VISITS, levels=None if declared is None else {"sex": declared})
    fold = (table["id"] == 3).to_numpy().astype(int)
    part = make_fold(table, schema, fold, 1, 0.2, 0.0, 0)
    assert part.test["sex"].fillna("gap").tolist() == ["other" if kept else "gap"] * 3
