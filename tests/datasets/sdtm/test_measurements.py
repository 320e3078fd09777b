"""LB and VS: results, units, days and filters."""

import numpy as np
import pandas as pd
import pytest

from lacova.data.errors import DataError
from lacova.datasets import sdtm
from lacova.datasets.sdtm.dates import elapsed
from tests.datasets.sdtm.cases import domains, has_note, prepared


def test_text_results_are_missing_and_named(tmp_path):
    tables = domains()
    lb = tables["LB"]
    below = lb.index[lb["LBTESTCD"] == "ALT"][:2]
    lb.loc[below, ["LBSTRESN", "LBSTRESC"]] = [[np.nan, "<3.42"]] * 2
    odd = lb.index[lb["LBTESTCD"] == "AST"][3]
    lb.loc[odd, ["LBSTRESN", "LBSTRESC"]] = [np.nan, "HEMOLYSED"]
    study = prepared(tmp_path, tables)
    assert "COLOR" not in study.table
    assert study.table["ALT"].isna().tolist() == [True, True, *[False] * 18]
    assert np.flatnonzero(study.table["AST"].isna()).tolist() == [3]
    assert has_note(study, "COLOR is text throughout (20 results), and left out.")
    assert has_note(study, "2 results beyond a limit are text, and missing: ALT <3.42 (2).")
    assert has_note(study, "1 results of AST are other text, and missing.")


def test_repeats_and_positions_are_averaged_or_kept_apart(plain, tmp_path):
    assert plain.table["SYSBP"].iloc[[0, 5]].tolist() == [115.0, 116.0]
    assert has_note(plain, "readings STANDING, SUPINE of a visit are averaged: SYSBP, at 20 visits.")
    apart = prepared(tmp_path, by_position=True)
    assert apart.table.loc[0, ["SYSBP SUPINE", "SYSBP STANDING"]].tolist() == [120.0, 112.5]
    assert "SYSBP" not in apart.table
    assert has_note(apart, "kept apart: SYSBP STANDING, SYSBP SUPINE.")
    assert not has_note(apart, "SUPINE of a visit are averaged")


def test_the_same_test_of_two_specimens_is_two_tests(tmp_path):
    tables = domains()
    tables["LB"]["LBSPEC"] = "SERUM"
    tables["LB"].loc[tables["LB"]["LBTESTCD"] == "PH", ["LBTESTCD", "LBSPEC", "LBSTRESU"]] = ["ALT", "URINE", "g/L"]
    assert prepared(tmp_path, tables).schema.measurements == ("ALT SERUM", "ALT URINE", "AST", "SYSBP")


def test_results_without_a_test_code_are_left_out(plain, tmp_path):
    tables = domains()
    nameless = tables["LB"].iloc[[0, 3]].assign(LBTESTCD=[None, " "])  # a number and a text
    tables["LB"] = pd.concat([tables["LB"], nameless], ignore_index=True)
    study = prepared(tmp_path, tables)
    pd.testing.assert_frame_equal(study.table, plain.table)
    assert has_note(study, "2 results without a test code (LBTESTCD, VSTESTCD) are left out.")


def test_a_code_of_both_domains_is_two_tests(plain, tmp_path):
    tables = domains()
    tables["VS"]["VSTESTCD"] = "ALT"
    study = prepared(tmp_path, tables)
    assert study.schema.measurements == ("ALT", "ALT VS", "AST", "PH")
    assert study.table["ALT"].equals(plain.table["ALT"])
    assert study.table["ALT VS"].tolist() == plain.table["SYSBP"].tolist()
    assert has_note(study, "tests of one code in both domains are kept apart, that of VS as CODE VS: ALT.")
    assert has_note(study, "readings STANDING, SUPINE of a visit are averaged: ALT VS, at 20 visits.")
    tables["LB"].loc[tables["LB"]["LBTESTCD"] == "ALT", ["LBSTRESN", "LBSTRESC"]] = [np.nan, "HIGH"]
    text = prepared(tmp_path, tables)  # a text throughout in one domain is no test
    assert text.schema.measurements == ("ALT", "AST", "PH")
    assert has_note(text, "ALT, COLOR is text throughout (40 results), and left out.")


def test_units_are_checked(plain, tmp_path):
    assert has_note(plain, "3 tests have one unit throughout, 1 have none.")
    tables = domains()
    tables["LB"].loc[0, "LBSTRESU"] = None
    assert has_note(prepared(tmp_path, tables), "1 results of these name none")
    tables["LB"].loc[0, "LBSTRESU"] = "ukat/L"
    with pytest.raises(
        DataError, match="the test ALT comes in U/L and ukat/L; convert its results to one unit, or exclude"
    ):
        prepared(tmp_path, tables)
    assert "ALT" not in prepared(tmp_path, tables, exclude=["ALT"]).table
    with pytest.raises(DataError, match=r"no test 'ALTT' to exclude\. Did you mean 'ALT'"):
        prepared(tmp_path, tables, exclude=["ALTT"])
    with pytest.raises(DataError, match="AGE of DM is in MONTHS; expected YEARS"):
        prepared(tmp_path, {**domains(), "DM": domains()["DM"].assign(AGEU="MONTHS")})


def test_days_have_no_zero_in_sdtm_and_count_from_the_first_dose(plain, tmp_path):
    assert elapsed(pd.Series([-2.0, -1.0, 1.0, 2.0])).tolist() == [-2.0, -1.0, 0.0, 1.0]
    assert has_note(plain, "there is no day 0; 4 rows lie before it, with negative days.")
    tables = domains()
    tables["LB"].loc[0, "LBDY"] = 0
    with pytest.raises(DataError, match="LBDY is 0 for 1 results, but SDTM goes from day -1 to day 1"):
        prepared(tmp_path, tables)


def test_rows_are_sorted_by_day_where_visit_numbers_are_not(tmp_path):
    tables = domains()
    for name in ("LB", "VS"):
        here = (tables[name]["USUBJID"] == "002") & (tables[name]["VISITNUM"] == 4.0)
        tables[name].loc[here, "VISITNUM"] = 201.0
    study = prepared(tmp_path, tables)
    assert study.table.loc[5:9, "day"].tolist() == [-7.0, 0.0, 14.0, 29.0, 44.0]
    assert study.table.loc[5:9, "ALT"].tolist() == [3.0, 11.0, 25.0, 40.0, 55.0]
    assert has_note(study, "day: falls 1 times as VISITNUM rises")


def test_the_day_is_that_of_lb_or_else_of_vs_or_else_of_the_date(plain, tmp_path):
    tables = domains()
    lb, vs = tables["LB"], tables["VS"]
    vs.loc[(vs["USUBJID"] == "001") & (vs["VISITNUM"] == 4.0), "VSDY"] = 21
    study = prepared(tmp_path, tables)
    assert study.table.loc[2, "day"] == 14.0
    assert has_note(study, "their days differ at 1 of 20 visits with both, by up to 6; the day is that of LB.")
    at = (lb["USUBJID"] == "001") & (lb["VISITNUM"] == 4.0)
    tables["LB"] = lb[~at]
    assert prepared(tmp_path, tables, min_row=0.1).table.loc[2, "day"] == 20.0
    dated = domains()
    dated["VS"] = dated["VS"].drop(columns="VSDY")
    date = pd.Timestamp("2014-01-02") + pd.to_timedelta(elapsed(dated["LB"]["LBDY"]), unit="D")
    dated["LB"] = dated["LB"].drop(columns="LBDY").assign(LBDTC=date.dt.strftime("%Y-%m-%dT08:00"))
    pd.testing.assert_frame_equal(prepared(tmp_path, dated).table, plain.table)
    dated["LB"].loc[dated["LB"].index[:4], "LBDTC"] = "2013-12"
    undated = prepared(tmp_path, dated, min_visits=4)
    assert len(undated.table) == 19
    assert has_note(undated, "1 visits without a day are left out.")


def test_a_test_that_hardly_varies_is_remarked_upon_and_its_width_is_one(tmp_path):
    tables = domains()
    urobil = tables["LB"]["LBTESTCD"] == "PH"
    assert has_note(
        prepared(tmp_path, tables), "PH: all but 0 of 20 values are 0; in part of the patients its sd can be 0"
    )
    tables["LB"].loc[tables["LB"].index[urobil][0], "LBSTRESN"] = 1.0
    assert not has_note(prepared(tmp_path, tables), "PH: all but")
    for scaling in ("minmax", "standard"):
        table = pd.DataFrame({"a": [0.1] * 3, "b": [1.0, 2.0, np.nan], "c": [np.nan] * 3})
        widths = sdtm.scales(table, ["a", "b", "c"], scaling)
        assert widths["width"].tolist() == [1.0, 1.0 if scaling == "minmax" else 0.5, 1.0]
        assert np.isfinite(sdtm.scale(table, widths)[["a"]]).all().all()


def test_filters_keep_tests_visits_and_patients_with_enough_observations():
    index = pd.MultiIndex.from_product([["p", "q"], [1.0, 2.0]], names=["patient", "visit"])
    nan = np.nan
    wide = pd.DataFrame({"a": [1, 1, 1, nan], "b": [1, nan, nan, nan], "c": [1, nan, nan, nan]}, index=index)
    assert list(sdtm.drop_columns(wide, 0.25)) == ["a", "b", "c"]
    assert list(sdtm.drop_columns(wide, 0.5)) == ["a"]
    assert len(sdtm.drop_rows(wide, 1 / 3)) == 3
    assert len(sdtm.drop_rows(wide, 0.5)) == 1
    assert sdtm.drop_patients(wide.iloc[:3], 2).index.unique("patient").tolist() == ["p"]
    for drop, limit, words in (
        (sdtm.drop_columns, 0.8, "no test is observed at 80% of the visits, the best at 75%; lower min_column."),
        (sdtm.drop_patients, 3, "no patient has 3 visits left, the most is 2; lower min_visits."),
    ):
        with pytest.raises(DataError, match=words):
            drop(wide, limit)
    with pytest.raises(DataError, match="no visit has 50% of the tests observed, the best has 33%; lower min_row"):
        sdtm.drop_rows(wide.iloc[1:], 0.5)
