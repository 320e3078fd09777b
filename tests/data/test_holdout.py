"""Which rows a fit holds out, and how they are found again."""

import numpy as np
import pandas as pd
import pytest

from lacova.data.holdout import KEPT, MIN_PATIENTS, MIN_ROWS, HeldOut, hold_out, row_prints
from lacova.data.io.files import read_table, write_table
from lacova.data.schema import Schema
from lacova.data.table_encoder import TableEncoder

ROWS = Schema(["alt"], {"arm": "categorical", "dose": "continuous"})
VISITS = Schema(["alt"], {"arm": "categorical", "dose": "continuous"}, instance="id")


def rows(count=600, seed=0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"arm": rng.choice(["a", "b"], count), "dose": rng.normal(size=count)})
    return table.assign(alt=rng.normal(size=count)).mask(rng.random((count, 3)) < 0.1)


def visits(patients=250, count=3, seed=0):
    return rows(patients * count, seed).assign(id=np.repeat([f"p{k}" for k in range(patients)], count))


def test_a_tenth_of_a_large_table_is_held_out_by_the_seed():
    table = rows()
    train, validation, given, asked = hold_out(table, ROWS, None, 3)
    assert (len(train), len(validation), given, asked) == (540, 60, False, None)
    pd.testing.assert_frame_equal(pd.concat([train, validation]).sort_index(), table)
    pd.testing.assert_frame_equal(hold_out(table, ROWS, None, 3).validation, validation)
    assert not hold_out(table, ROWS, None, 4).validation.index.equals(validation.index)


def test_patients_are_held_out_whole():
    train, validation, *_ = hold_out(visits(), VISITS, None, 0)
    assert validation["id"].nunique() == 25
    assert len(validation) == 75
    assert not set(train["id"]) & set(validation["id"])


@pytest.mark.parametrize(("make", "schema", "enough"), [(rows, ROWS, MIN_ROWS), (visits, VISITS, MIN_PATIENTS)])
def test_small_tables_keep_all_rows_unless_a_share_is_asked_for(make, schema, enough):
    assert hold_out(make(enough), schema, None, 0).validation is not None
    small = make(enough - 1)
    train, validation, *_ = hold_out(small, schema, None, 0)
    assert train is small
    assert validation is None
    share = hold_out(small, schema, 0.2, 0)
    assert share.validation is not None
    assert share.asked == 0.2
    large = make(enough)
    assert hold_out(large, schema, False, 0) == (large, None, False, False)


def test_rows_that_are_given_are_returned():
    train, validation = rows(900), rows(9)
    answer = hold_out(train, ROWS, validation, 0)
    assert answer.train is train
    assert answer.validation is validation
    assert answer.given


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("make", [rows, visits])
def test_rare_levels_and_values_stay_in_training(make, seed):
    table = make(300)
    table.loc[:1, "arm"] = "rare"
    table["dose"] = table["dose"].where(np.arange(len(table)) < 9)
    schema = ROWS if make is rows else VISITS
    train, validation, *_ = hold_out(table, schema, 0.5, seed)
    assert (train["arm"] == "rare").sum() == 2
    unit = train.index.to_series() if make is rows else train["id"]
    assert unit[train["dose"].notna()].nunique() >= min(KEPT, 3 if make is visits else KEPT)
    assert len(validation) > 0.3 * len(table)


@pytest.mark.parametrize("validation", [True, 1.0, 0.0, -0.1, 2])
def test_what_is_no_share_is_refused(validation):
    with pytest.raises(ValueError, match="expected validation rows, a share of the rows or patients between 0 and 1"):
        hold_out(rows(), ROWS, validation, 0)


def test_a_share_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match=r"validation=0.1 of 4 row\(s\) or patient\(s\) holds none out"):
        hold_out(rows(4), ROWS, 0.1, 0)


@pytest.mark.parametrize(("make", "schema"), [(rows, ROWS), (visits, VISITS)])
def test_they_are_found_in_any_order_and_in_a_file(make, schema, tmp_path):
    table = make(300).assign(alt=np.arange(300.0) if make is rows else np.arange(900.0))  # no two rows are equal
    train, validation, given, _ = hold_out(table, schema, 0.2, 1)
    encoder = TableEncoder.learn(schema, train)
    held_out = HeldOut.of(validation, encoder, given)
    assert held_out.count == 60
    expected = table.index.isin(validation.index)
    np.testing.assert_array_equal(held_out.among(table, encoder), expected)
    assert not held_out.among(train, encoder).any()
    shuffled = table.sample(frac=1.0, random_state=0).astype({"arm": "category"})
    np.testing.assert_array_equal(held_out.among(shuffled, encoder), expected[shuffled.index])
    write_table(table, tmp_path / "t.csv")
    np.testing.assert_array_equal(held_out.among(read_table(tmp_path / "t.csv"), encoder), expected)
    assert not HeldOut().among(table, encoder).any()


def test_of_equal_rows_as_many_are_found_as_were_held_out():
    table = pd.DataFrame({"arm": ["a"] * 30 + ["b"] * 30, "dose": np.arange(60) % 2, "alt": np.arange(60) // 15})
    train, validation, given, _ = hold_out(table, ROWS, 0.3, 2)
    found = HeldOut.of(validation, TableEncoder.learn(ROWS, train), given).among(table, TableEncoder.learn(ROWS, train))
    assert sorted(map(tuple, table[found].to_numpy())) == sorted(map(tuple, validation.to_numpy()))
    assert not found.all()


def test_rows_that_differ_in_a_single_entry_have_other_fingerprints():
    table = pd.DataFrame({"arm": ["a", "a", "b", "a", None], "dose": [1.0, 1.0, 1.0, None, 1.0], "alt": 2.0})
    table = pd.concat([table, table.assign(alt=3.0), table.assign(alt=[0.0, -0.0, 0.0, 0.0, 0.0])], ignore_index=True)
    table.loc[15] = ["b", 7.0, 5.0]  # so that no column is constant
    prints = row_prints(TableEncoder.learn(ROWS, table).encode(table))[:15]
    assert len(np.unique(prints)) == 12  # of 15: rows 0 and 1 are equal three times
    assert prints[0] == prints[1]
    assert prints[10] == prints[11]  # 0 and -0 are equal
