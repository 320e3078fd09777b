import warnings

import numpy as np
import pandas as pd
import pytest

from lacova import DataError, Schema, UnseenLevelWarning
from lacova.data.levels import ColumnLevels, check_unseen, level_codes, one_warning
from lacova.data.statistics import ColumnStatistics
from lacova.data.table_encoder import TableEncoder

SCHEMA = Schema(
    {"y": "gaussian", "grade": "ordinal"}, {"stage": "categorical", "arm": "categorical"}, instance="id",
    static=["arm"], levels={"stage": ["I", "II", "III"]},
)  # fmt: skip


def rows(**columns):
    frame = pd.DataFrame({
        "id": [1, 1, 2, 2], "y": [0.0, 1.0, 2.0, np.nan], "grade": [1, 2, 1, 3], "stage": ["I", "III", None, "I"],
        "arm": ["a", None, "b", "b"],
    })  # fmt: skip
    return frame.assign(**columns)


@pytest.fixture
def encoder():
    return TableEncoder.learn(SCHEMA, rows())


def test_levels_of_parts_that_declare_different_categories():
    levels = ColumnLevels()
    levels.add(pd.Series(pd.Categorical(["b"], ["b", "a"])))
    levels.add(pd.Series(pd.Categorical(["c"], ["c", "b"])))
    assert levels.ordered("x") == ("b", "a", "c")
    levels.add(pd.Series(["a"]))  # text has no order of its own
    assert levels.ordered("x") == ("a", "b", "c")


def test_categories_give_the_order_and_the_levels_that_do_not_occur():
    levels = ColumnLevels()
    levels.add(pd.Series(pd.Categorical(["mild", None], ["none", "mild", "severe"], ordered=True)))
    assert levels.ordered("x", "ordinal") == ("none", "mild", "severe")


def test_a_bernoulli_column_has_the_two_categories_that_occur():
    levels = ColumnLevels()
    levels.add(pd.Series(pd.Categorical(["c", "a"], ["a", "b", "c"])))
    assert levels.ordered("x", "bernoulli") == ("a", "c")


def test_levels_of_the_schema_come_before_categories():
    levels = ColumnLevels(("severe", "mild", "none"))
    levels.add(pd.Series(pd.Categorical(["mild"], ["none", "mild", "other"])))
    assert levels.ordered("x", "ordinal") == ("severe", "mild", "none")


def test_rows_that_are_held_out_make_levels_known_but_not_seen():
    statistics = ColumnStatistics(Schema({"c": "categorical", "d": "categorical"}, {}))
    statistics.add(pd.DataFrame({"c": ["u", "w"], "d": ["u", "u"]}))
    statistics.add_held_out(pd.DataFrame({"c": ["v", None], "d": ["v", "u"]}))
    assert statistics.levels() == {"c": ("u", "v", "w"), "d": ("u", "v")}
    assert statistics.constant().tolist() == [False, True]  # in training


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            ["I", "IV"],
            r"^column 'x' holds 'IV', but the schema declares the levels 'I', 'II'; add to its levels, correct",
        ),
        ([None, None], r"covariate column\(s\) 'x' have no observed value in training"),
    ],
)
def test_training_rows_with_other_levels_are_refused(values, message):
    levels = ColumnLevels(("I", "II"))
    levels.add(pd.Series(values))
    with pytest.raises(DataError, match=message):
        levels.ordered("x")


def test_levels_that_differ_in_type_alone_are_named_so():
    levels = ColumnLevels(("1", "2"))
    levels.add(pd.Series([1, 2]))
    with pytest.raises(
        DataError, match="holds 1, 2, but the schema declares the levels '1', '2', which differ in type"
    ):
        levels.ordered("x")


def test_codes_beyond_the_levels_tell_unseen_levels_apart():
    codes = level_codes(pd.Series(["b", "x", None, "y", "a", "x"]), ["a", "b"])
    np.testing.assert_array_equal(codes, [1.0, 2.0, np.nan, 3.0, 0.0, 2.0])


def test_whole_numbers_that_became_floats_are_the_declared_levels():
    np.testing.assert_array_equal(level_codes(pd.Series([2.0, np.nan, 1.0]), (1, 2)), [1.0, np.nan, 0.0])


def test_unseen_levels_are_missing_with_one_warning(encoder):
    table = rows(stage=["I", "IV", "V", "V"], grade=[1, 2, 9, 3], arm=["c", None, "b", "b"])
    with pytest.warns(UnseenLevelWarning) as caught:
        encoded = encoder.encode(table, unseen="warn")
    assert [str(warning.message).split(". ")[0] for warning in caught] == [
        "5 entries hold levels never seen in training, treated as missing: 1 of 'grade' (9), 3 of 'stage' ('IV', 'V'), "
        "1 of 'arm' ('c')"
    ]
    gaps = rows(stage=["I", None, None, None], grade=[1, 2, None, 3], arm=[None, None, "b", "b"])
    expected = encoder.encode(gaps)
    for name in ("y", "y_mask", "x", "x_mask"):
        assert getattr(encoded, name).equal(getattr(expected, name)), name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert encoder.encode(table, unseen="missing").x.equal(expected.x)
    pd.testing.assert_frame_equal(encoder.without_unseen(table), gaps, check_dtype=False)
    with pytest.raises(DataError, match="column 'grade' holds 9, never seen in training; known levels are 1, 2, 3"):
        encoder.encode(table, unseen="error")


def test_an_unseen_level_and_another_one_in_a_patient_contradict_each_other(encoder):
    with pytest.raises(DataError, match="static column 'arm' takes more than one value within instance"):
        encoder.encode(rows(arm=["a", "c", "b", "b"]), unseen="missing")


def test_measurements_that_are_not_looked_at_are_not_counted(encoder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.encode(rows(grade=9), measurements=False, unseen="warn")


def test_the_parts_of_a_table_give_one_warning_at_the_end(encoder):
    def parts():
        with one_warning():
            encoder.encode(rows(stage=["I", "IV", "I", "I"]), unseen="warn")
            encoder.encode(rows(stage=["I", "V", "I", "I"], grade=[9, 1, 1, 1]), unseen="warn")

    with pytest.warns(UnseenLevelWarning, match=r"^3 entries .*: 2 of 'stage' \('IV', 'V'\), 1 of 'grade'") as caught:
        parts()
    assert len(caught) == 1


def test_parts_without_unseen_levels_give_no_warning(encoder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with one_warning():
            encoder.encode(rows(), unseen="warn")


def test_the_warning_names_the_line_that_asked(encoder):
    with pytest.warns(UnseenLevelWarning, match="^1 entry holds a level") as caught:
        encoder.encode(rows(grade=[9, 1, 1, 1]), unseen="warn")
    assert caught[0].filename == __file__


def test_an_unknown_treatment_is_refused():
    with pytest.raises(ValueError, match="unseen is 'ignore'; expected one of warn, missing, error"):
        check_unseen("ignore")
