import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lacova import DataError, shift_imputed

ORIGINAL = pd.DataFrame({
    "arm": ["a", "b", None, "b"], "alt": [30.0, np.nan, np.nan, 40.0], "ast": [np.nan, 1.0, 2.0, 3.0],
    "grade": pd.array([1, None, 2, None], dtype="Int64"), "site": ["x", "y", "z", "x"],
})  # fmt: skip


def completed(draws=3):
    tables = []
    for k in range(draws):
        one = ORIGINAL.assign(
            arm=["a", "b", "ab"[k % 2], "b"], alt=[30.0, 35.0 + k, 36.0 + k, 40.0], ast=[9.0 + k, 1.0, 2.0, 3.0],
            grade=pd.array([1, 3, 2, k], dtype="Int64"),
        )  # fmt: skip
        tables.append(one.assign(draw=k))
    return pd.concat(tables)


def test_imputed_entries_and_no_others_are_shifted():
    before = completed()
    shifted = shift_imputed(before, ORIGINAL, {"alt": 5.0, "ast": -1.5})
    gaps = np.tile(ORIGINAL["alt"].isna(), 3)
    np.testing.assert_array_equal(shifted["alt"], before["alt"] + 5.0 * gaps)
    np.testing.assert_array_equal(shifted["ast"], before["ast"] - 1.5 * np.tile(ORIGINAL["ast"].isna(), 3))
    pd.testing.assert_frame_equal(shifted.drop(columns=["alt", "ast"]), before.drop(columns=["alt", "ast"]))
    pd.testing.assert_frame_equal(before, completed())


def test_shifts_by_arm_follow_the_arm_that_each_table_has():
    shifted = shift_imputed(completed(), ORIGINAL, {"alt": {"arm": {"a": 0.0, "b": 5.0}}})
    # The third row's arm is imputed: a, b, a.
    assert shifted["alt"].tolist() == [30.0, 40.0, 36.0, 40.0, 30.0, 41.0, 42.0, 40.0, 30.0, 42.0, 38.0, 40.0]


def test_observed_values_may_be_rounded_by_a_file():
    near = completed().assign(alt=completed()["alt"] * (1 + 1e-15))
    assert shift_imputed(near, ORIGINAL, {"alt": 5.0})["alt"].tolist()[1] == pytest.approx(40.0)


def test_types_and_libraries_stay():
    integers = shift_imputed(completed(), ORIGINAL, {"grade": 2})
    assert integers["grade"].dtype == "Int64"
    assert integers["grade"].tolist() == [1, 5, 2, 2, 1, 5, 2, 3, 1, 5, 2, 4]
    fractions = shift_imputed(completed(), ORIGINAL, {"grade": 0.5})
    assert fractions["grade"].tolist()[:2] == [1.0, 3.5]
    narrow = shift_imputed(completed().astype({"alt": "float32"}), ORIGINAL, {"alt": 5.0})
    assert narrow["alt"].dtype == "float32"
    other = pl.from_pandas(completed()).with_columns(
        pl.col("alt").cast(pl.Float32), pl.col("site").cast(pl.Categorical)
    )
    shifted = shift_imputed(other, pl.from_pandas(ORIGINAL), {"alt": 5.0})
    assert shifted.schema == other.schema
    assert shifted["alt"].to_list() == shift_imputed(completed(), ORIGINAL, {"alt": 5.0})["alt"].tolist()
    arrow = pa.Table.from_pandas(completed(), preserve_index=False)
    assert shift_imputed(arrow, ORIGINAL, {"alt": 1}).column_names == arrow.column_names
    one = shift_imputed(completed(1).drop(columns="draw"), ORIGINAL, {"alt": 5.0})
    assert one["alt"].tolist() == [30.0, 40.0, 41.0, 40.0]


@pytest.mark.parametrize(
    ("table", "shifts", "message"),
    [
        (completed(), {}, "say by how much"),
        (completed(), {"alat": 5.0}, "no column 'alat' in the original table.*Did you mean 'alt'"),
        (completed().drop(columns="alt"), {"alt": 5.0}, "no column 'alt' in the completed table"),
        (completed().head(5), {"alt": 5.0}, "has 5 rows and the original 4; expected a whole multiple"),
        (completed().head(0), {"alt": 5.0}, "has 0 rows"),
        (completed().assign(alt=1.0), {"alt": 5.0}, "other values where the original is observed"),
        (pd.concat([ORIGINAL] * 2), {"alt": 5.0}, "column 'alt' of the completed table has gaps"),
        (completed(), {"site": 5.0}, "column 'site' must be numeric"),
        (completed(), {"alt": "much"}, "shift of 'alt' is 'much'; expected a finite number"),
        (completed(), {"alt": np.nan}, "expected a finite number"),
        (completed(), {"alt": {"a": 1.0}}, "expected a number, or numbers by the levels of one other column"),
        (completed(), {"alt": {"amr": {"a": 1.0}}}, "no column 'amr'.*Did you mean 'arm'"),
        (completed(), {"alt": {"arm": {"a": 1.0}}}, "are for 'a' of 'arm', which holds 'a', 'b'; give each of its"),
        (completed(), {"alt": {"arm": {"a": 1.0, "b": 1.0, "B": 2.0}}}, "are for 'a', 'b', 'B' of 'arm'"),
        (completed(), {"alt": {"arm": {"a": 1.0, "b": None}}}, "shift of 'alt' where 'arm' is 'b' is None"),
        (completed().assign(arm=None), {"alt": {"arm": {"a": 1.0}}}, "and gaps; give each"),
    ],
)  # fmt: skip
def test_bad_shifts_are_refused(table, shifts, message):
    with pytest.raises(DataError, match=message):
        shift_imputed(table, ORIGINAL, shifts)
