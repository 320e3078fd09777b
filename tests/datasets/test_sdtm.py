"""Raw SDTM domains to a study table: formats, each known trap, filters, errors, and the real pilot."""

import json
import math
import os
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import lacova
from lacova.cli import main
from lacova.data.errors import DataError
from lacova.data.io.files import read_table
from lacova.datasets import sdtm
from lacova.datasets.sdtm.dates import elapsed, first_day, is_whole, last_day

DAYS = {1.0: -7, 3.0: 1, 4.0: 15, 5.0: 30, 6.0: 45}  # day of study by visit number; day 1 is the first dose


def domains():
    """Four patients with five visits, one more who failed the screening and one who was never dosed."""
    people = ["001", "002", "003", "004", "fail", "none"]
    dm = pd.DataFrame({
        "USUBJID": people, "RFSTDTC": ["2014-01-02"] * 3 + ["2014-01-02T09:30", None, None], "AGE": range(60, 66),
        "AGEU": "YEARS", "SEX": ["F", "M"] * 3, "ARMCD": ["A", "A", "B", "B", "Scrnfail", "A"],
        "ACTARMCD": ["A", "A", "B", "A", "Scrnfail", "A"],
    })  # fmt: skip
    lb, vs = [], []
    for k, patient in enumerate(people):
        for visit, day in DAYS.items():
            common = {"USUBJID": patient, "VISITNUM": visit}
            for test, value, text, unit in (
                ("ALT", 10.0 * k + day, None, "U/L"), ("AST", 20.0 + day * day, None, "U/L"), ("PH", 0.0, None, None),
                ("COLOR", None, "YELLOW", None),
            ):  # fmt: skip
                lb.append({
                    **common, "LBTESTCD": test, "LBSTRESN": value, "LBSTRESC": text or f"{value:g}", "LBSTRESU": unit,
                    "LBDTC": "2014-01-01", "LBDY": day,
                })  # fmt: skip
            for position, value in (("SUPINE", 120.0), ("STANDING", 111.0), ("STANDING", 114.0)):
                vs.append({
                    **common, "VSTESTCD": "SYSBP", "VSSTRESN": value + k, "VSSTRESC": f"{value + k:g}",
                    "VSSTRESU": "mmHg", "VSPOS": position, "VSDY": day,
                })  # fmt: skip
    ae = [
        ("001", "RASH", "2014-01-10", "2014-01-20"), ("001", "RASH", "2014-01-10", "2014-01-20"),
        ("002", "RASH", "2014-02", None), ("003", "COUGH", None, "2014-01"), ("fail", "FALL", None, None),
    ]  # fmt: skip
    cm = [
        ("001", "MULTIVITAMIN", "2003", None), ("001", "MULTIVITAMIN", "2003", None),
        ("002", "Multivitamins", "2014", None), ("003", "ASPIRIN", "2013-12-20", "2014-01-02"),
    ]  # fmt: skip
    return {
        "DM": dm, "LB": pd.DataFrame(lb), "VS": pd.DataFrame(vs),
        "AE": pd.DataFrame(ae, columns=["USUBJID", "AEDECOD", "AESTDTC", "AEENDTC"]),
        "CM": pd.DataFrame(cm, columns=["USUBJID", "CMTRT", "CMSTDTC", "CMENDTC"]),
    }  # fmt: skip


def write(folder, tables, suffix=".csv"):
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        path = folder / f"{name.lower()}{suffix}"
        if suffix == ".parquet":
            table.to_parquet(path)
        elif suffix == ".xpt":
            write_xpt(path, name, table)
        else:
            table.to_csv(path, index=False)
    return folder


def write_xpt(path, name, table):
    """SAS transport format, version 5, as its specification has it: records of 80 bytes, IBM floats."""
    stamp, zeros = "01JAN20:00:00:00", "0" * 30
    text = {
        c: table[c].fillna("").map(lambda v: str(v).encode("latin-1")) for c in table if table[c].dtype.kind not in "if"
    }
    widths = {c: max(1, text[c].map(len).max()) if c in text else 8 for c in table}
    fields, position = b"", 0
    for number, column in enumerate(table, 1):
        fields += struct.pack(
            ">hhhh8s40s8shhh2s8shhl52s", 2 if column in text else 1, 0, widths[column], number, f"{column:8}".encode(),
            b" " * 40, b" " * 8, 0, 0, 0, b"", b" " * 8, 0, 0, position, b"",
        )  # fmt: skip
        position += widths[column]
    rows = b"".join(
        text[c][i].ljust(widths[c]) if c in text else ibm(table[c][i]) for i in table.index for c in table
    )  # fmt: skip
    heads = [
        f"HEADER RECORD*******LIBRARY HEADER RECORD!!!!!!!{zeros}",
        f"{'SAS     SAS     SASLIB  9.4     Linux':64}{stamp}", stamp,
        f"HEADER RECORD*******MEMBER  HEADER RECORD!!!!!!!{'0' * 17}1600000000140",
        f"HEADER RECORD*******DSCRPTR HEADER RECORD!!!!!!!{zeros}",
        f"{f'SAS     {name:8}SASDATA 9.4     Linux':64}{stamp}", stamp,
        f"HEADER RECORD*******NAMESTR HEADER RECORD!!!!!!!000000{len(widths):04}{'0' * 20}",
    ]  # fmt: skip
    observations = f"HEADER RECORD*******OBS     HEADER RECORD!!!!!!!{zeros}"
    parts = ["".join(f"{head:80}" for head in heads).encode(), fields, f"{observations:80}".encode(), rows]
    path.write_bytes(b"".join(part + b" " * (-len(part) % 80) for part in parts))


def ibm(value):
    if math.isnan(value):
        return b"." + bytes(7)
    if value == 0.0:
        return bytes(8)
    fraction, exponent = math.frexp(abs(value))
    power = -(-exponent // 4)
    digits = int(fraction * 2.0 ** (exponent - 4 * power + 56))
    return bytes([(128 if value < 0 else 0) + power + 64]) + digits.to_bytes(7, "big")


def prepared(tmp_path, tables=None, **options):
    return sdtm.study(write(tmp_path / "sdtm", tables or domains()), **options)


def said(study, words):
    return any(words in note for note in study.notes)


@pytest.fixture
def plain(tmp_path):
    return prepared(tmp_path)


# Formats


def test_a_folder_becomes_a_table_and_its_schema(plain):
    assert plain.schema == lacova.Schema(
        ["ALT", "AST", "PH", "SYSBP"],
        {"age": "continuous"} | dict.fromkeys(
            ["sex", "arm", "AE cough", "AE rash", "CM multivitamin", "CM aspirin"], "categorical"
        ),
        instance="patient", time="day", static=["age", "sex", "arm"],
    )  # fmt: skip
    assert list(plain.table) == list(plain.schema.columns)
    assert plain.table["patient"].tolist() == [name for name in ("001", "002", "003", "004") for _ in range(5)]
    assert plain.table["day"].tolist() == [-7.0, 0.0, 14.0, 29.0, 44.0] * 4
    assert plain.table.loc[5:9, "ALT"].tolist() == [3.0, 11.0, 25.0, 40.0, 55.0]
    assert plain.table.loc[5:9, "age"].eq(61.0).all()
    assert plain.steps.to_dict("list") == {
        "patients": [4] * 4,
        "rows": [20] * 4,
        "tests": [4] * 4,
        "observed": [1.0] * 4,
    }
    assert plain.parts == {}
    assert plain.scales is None


@pytest.mark.parametrize("suffix", [".csv.gz", ".parquet", ".xpt", ".CSV"])
def test_every_format_gives_the_same_table(plain, tmp_path, suffix):
    folder = tmp_path / "other"
    write(folder, domains(), suffix.lower())
    if suffix.isupper():
        for file in list(folder.iterdir()):
            file.rename(folder / file.name.upper())
    found = sdtm.study(folder)
    pd.testing.assert_frame_equal(found.table, plain.table, check_exact=True)
    assert found.notes == plain.notes
    assert found.schema == plain.schema


def test_a_zero_of_an_xpt_file_is_zero_and_its_letters_may_be_latin(tmp_path):
    tables = domains()
    tables["CM"].loc[3, "CMTRT"] = "CAFÉ"
    found = sdtm.study(write(tmp_path / "x", tables, ".xpt"))
    assert found.table["PH"].eq(0.0).all()  # pandas makes 5.4e-79 of it
    assert "CM café" in found.table


def test_sas7bdat_goes_through_pandas(plain, tmp_path, monkeypatch):
    folder = tmp_path / "sas"
    folder.mkdir()
    for name in domains():
        (folder / f"{name.lower()}.sas7bdat").touch()

    def read_sas(path, format, encoding):
        assert (format, encoding) == ("sas7bdat", "infer")
        return domains()[Path(path).stem.upper()].fillna({"AEENDTC": "", "CMENDTC": " "})

    monkeypatch.setattr(pd, "read_sas", read_sas)
    pd.testing.assert_frame_equal(sdtm.study(folder).table, plain.table)


def test_names_of_columns_in_small_letters_will_do(plain, tmp_path):
    found = prepared(tmp_path, {name: table.rename(columns=str.lower) for name, table in domains().items()})
    pd.testing.assert_frame_equal(found.table, plain.table)


# DM


def test_screen_failures_and_patients_without_a_dose_are_left_out(plain):
    assert not plain.table["patient"].isin(["fail", "none"]).any()
    assert said(plain, "DM: 6 patients, of whom 1 screen failures are left out.")
    assert said(plain, "1 patients without a first dose (RFSTDTC) are left out.")
    assert said(plain, "70 results of patients who are left out")
    people = sdtm.enrolled(
        domains()["DM"].assign(RFSTDTC="2014-01-02", ACTARMCD=[None, "A", "NOTASSGN", "a", "b", "B"])
    )
    assert people.index.tolist() == ["002", "004", "fail", "none"]


def test_the_arm_is_the_one_taken(plain, tmp_path):
    assert plain.table.groupby("patient")["arm"].first().tolist() == ["A", "A", "B", "A"]
    assert said(plain, "ARM and ACTARM differ for 1 patients; the arm is ACTARM, what was taken.")
    planned = prepared(tmp_path, planned_arm=True)
    assert planned.table.groupby("patient")["arm"].first().tolist() == ["A", "A", "B", "B"]
    assert said(planned, "the arm is ARM, what was planned")
    older = domains()
    older["DM"] = older["DM"].drop(columns="ACTARMCD")
    assert prepared(tmp_path, older).table["arm"].tolist() == planned.table["arm"].tolist()


def test_arms_can_be_chosen(tmp_path):
    found = prepared(tmp_path, arms=["B"])
    assert found.table["patient"].unique().tolist() == ["003"]
    assert said(found, "1 patients are in the arms asked for: B.")
    with pytest.raises(DataError, match=r"no arm 'C' in DM; the arms are A, B\."):
        prepared(tmp_path, arms=["A", "C"])


# LB and VS


def test_text_results_are_missing_and_named(tmp_path):
    tables = domains()
    lb = tables["LB"]
    below = lb.index[lb["LBTESTCD"] == "ALT"][:2]
    lb.loc[below, ["LBSTRESN", "LBSTRESC"]] = [[np.nan, "<3.42"]] * 2
    odd = lb.index[lb["LBTESTCD"] == "AST"][3]
    lb.loc[odd, ["LBSTRESN", "LBSTRESC"]] = [np.nan, "HEMOLYSED"]
    found = prepared(tmp_path, tables)
    assert "COLOR" not in found.table
    assert found.table["ALT"].isna().tolist() == [True, True, *[False] * 18]
    assert np.flatnonzero(found.table["AST"].isna()).tolist() == [3]
    assert said(found, "COLOR is text throughout (20 results), and left out.")
    assert said(found, "2 results beyond a limit are text, and missing: ALT <3.42 (2).")
    assert said(found, "1 results of AST are other text, and missing.")


def test_repeats_and_positions_are_averaged_or_kept_apart(plain, tmp_path):
    assert plain.table["SYSBP"].iloc[[0, 5]].tolist() == [115.0, 116.0]
    assert said(plain, "readings STANDING, SUPINE of a visit are averaged: SYSBP, at 20 visits.")
    apart = prepared(tmp_path, by_position=True)
    assert apart.table.loc[0, ["SYSBP SUPINE", "SYSBP STANDING"]].tolist() == [120.0, 112.5]
    assert "SYSBP" not in apart.table
    assert said(apart, "kept apart: SYSBP STANDING, SYSBP SUPINE.")
    assert not said(apart, "SUPINE of a visit are averaged")


def test_the_same_test_of_two_specimens_is_two_tests(tmp_path):
    tables = domains()
    tables["LB"]["LBSPEC"] = "SERUM"
    tables["LB"].loc[tables["LB"]["LBTESTCD"] == "PH", ["LBTESTCD", "LBSPEC", "LBSTRESU"]] = ["ALT", "URINE", "g/L"]
    assert prepared(tmp_path, tables).schema.measurements == ("ALT SERUM", "ALT URINE", "AST", "SYSBP")


def test_results_without_a_test_code_are_left_out(plain, tmp_path):
    tables = domains()
    nameless = tables["LB"].iloc[[0, 3]].assign(LBTESTCD=[None, " "])  # a number and a text
    tables["LB"] = pd.concat([tables["LB"], nameless], ignore_index=True)
    found = prepared(tmp_path, tables)
    pd.testing.assert_frame_equal(found.table, plain.table)
    assert said(found, "2 results without a test code (LBTESTCD, VSTESTCD) are left out.")


def test_a_code_of_both_domains_is_two_tests(plain, tmp_path):
    tables = domains()
    tables["VS"]["VSTESTCD"] = "ALT"
    found = prepared(tmp_path, tables)
    assert found.schema.measurements == ("ALT", "ALT VS", "AST", "PH")
    assert found.table["ALT"].equals(plain.table["ALT"])
    assert found.table["ALT VS"].tolist() == plain.table["SYSBP"].tolist()
    assert said(found, "tests of one code in both domains are kept apart, that of VS as CODE VS: ALT.")
    assert said(found, "readings STANDING, SUPINE of a visit are averaged: ALT VS, at 20 visits.")
    tables["LB"].loc[tables["LB"]["LBTESTCD"] == "ALT", ["LBSTRESN", "LBSTRESC"]] = [np.nan, "HIGH"]
    text = prepared(tmp_path, tables)  # a text throughout in one domain is no test
    assert text.schema.measurements == ("ALT", "AST", "PH")
    assert said(text, "ALT, COLOR is text throughout (40 results), and left out.")


def test_units_are_checked(plain, tmp_path):
    assert said(plain, "3 tests have one unit throughout, 1 have none.")
    tables = domains()
    tables["LB"].loc[0, "LBSTRESU"] = None
    assert said(prepared(tmp_path, tables), "1 results of these name none")
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
    assert said(plain, "there is no day 0; 4 rows lie before it, with negative days.")
    tables = domains()
    tables["LB"].loc[0, "LBDY"] = 0
    with pytest.raises(DataError, match="LBDY is 0 for 1 results, but SDTM goes from day -1 to day 1"):
        prepared(tmp_path, tables)


def test_rows_are_sorted_by_day_where_visit_numbers_are_not(tmp_path):
    tables = domains()
    for name in ("LB", "VS"):
        here = (tables[name]["USUBJID"] == "002") & (tables[name]["VISITNUM"] == 4.0)
        tables[name].loc[here, "VISITNUM"] = 201.0
    found = prepared(tmp_path, tables)
    assert found.table.loc[5:9, "day"].tolist() == [-7.0, 0.0, 14.0, 29.0, 44.0]
    assert found.table.loc[5:9, "ALT"].tolist() == [3.0, 11.0, 25.0, 40.0, 55.0]
    assert said(found, "day: falls 1 times as VISITNUM rises")


def test_the_day_is_the_laboratorys_else_that_of_vital_signs_else_from_the_date(plain, tmp_path):
    tables = domains()
    lb, vs = tables["LB"], tables["VS"]
    vs.loc[(vs["USUBJID"] == "001") & (vs["VISITNUM"] == 4.0), "VSDY"] = 21
    found = prepared(tmp_path, tables)
    assert found.table.loc[2, "day"] == 14.0
    assert said(found, "their days differ at 1 of 20 visits with both, by up to 6; the day is that of LB.")
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
    assert said(undated, "1 visits without a day are left out.")


def test_a_test_that_hardly_varies_is_remarked_upon_and_its_width_is_one(tmp_path):
    tables = domains()
    urobil = tables["LB"]["LBTESTCD"] == "PH"
    assert said(prepared(tmp_path, tables), "PH: all but 0 of 20 values are 0; in part of the patients its sd can be 0")
    tables["LB"].loc[tables["LB"].index[urobil][0], "LBSTRESN"] = 1.0
    assert not said(prepared(tmp_path, tables), "PH: all but")
    for scaling in ("minmax", "standard"):
        table = pd.DataFrame({"a": [0.1] * 3, "b": [1.0, 2.0, np.nan], "c": [np.nan] * 3})
        widths = sdtm.scales(table, ["a", "b", "c"], scaling)
        assert widths["width"].tolist() == [1.0, 1.0 if scaling == "minmax" else 0.5, 1.0]
        assert np.isfinite(sdtm.scale(table, widths)[["a"]]).all().all()


# Filters


def test_filters_keep_what_is_observed_enough():
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


def test_the_steps_are_counted(tmp_path):
    tables = domains()
    lb = tables["LB"]
    tables["LB"] = lb[~((lb["USUBJID"] == "004") & (lb["VISITNUM"] > 5.0))]  # a visit with SYSBP alone
    tables["LB"].loc[len(lb)] = {**lb.iloc[0], "LBTESTCD": "RARE"}
    found = prepared(tmp_path, tables)
    assert found.steps.to_dict("list") == {
        "patients": [4, 4, 4, 3], "rows": [20, 20, 19, 15], "tests": [5, 4, 4, 4],
        "observed": [0.78, 0.9625, 1.0, 1.0],
    }  # fmt: skip
    assert found.describe().split("\n")[:5] == [
        "step                   patients rows tests observed", "raw                           4   20     5    78.0%",
        "columns observed ≥ 10%        4   20     4    96.2%", "rows observed ≥ 50%           4   19     4   100.0%",
        "patients with ≥ 5 rows        3   15     4   100.0%",
    ]  # fmt: skip


# AE and CM


def test_partial_dates():
    text = pd.Series(
        ["2014-02-03", "2014-02", "2012-02", "2014", "2014---15", "2014-02-03T10:30", "2014-01/2015", None, "--12-15"]
    )
    assert first_day(text, "X").dt.strftime("%F").fillna("").tolist() == [
        "2014-02-03", "2014-02-01", "2012-02-01", "2014-01-01", "2014-01-01", "2014-02-03", "2014-01-01", "", "",
    ]  # fmt: skip
    assert last_day(text, "X").dt.strftime("%F").fillna("").tolist() == [
        "2014-02-03", "2014-02-28", "2012-02-29", "2014-12-31", "2014-12-31", "2014-02-03", "2015-12-31", "", "",
    ]  # fmt: skip
    assert np.flatnonzero(is_whole(text, "X")).tolist() == [0, 5]
    for wrong in ("2014-02-30", "02/03/2014", "2014-13", "3 May"):
        with pytest.raises(DataError, match=f"X has the date '{wrong}'; expected ISO 8601"):
            first_day(pd.Series([None, "2014", wrong]), "X")


def flags(study, name):
    return study.table[name].eq("yes").to_numpy().reshape(4, 5).astype(int).tolist()


def test_events_and_drugs_are_active_between_their_dates(plain):
    none = [0] * 5  # days -7, 0, 14, 29 (January 31), 44
    assert flags(plain, "AE rash") == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 1], none, none]  # without an end, it goes on
    assert flags(plain, "AE cough") == [none, none, [1, 1, 1, 1, 0], none]  # until the end of January
    assert flags(plain, "CM aspirin") == [none, none, [1, 1, 0, 0, 0], none]  # the last day counts
    assert flags(plain, "CM multivitamin") == [[1] * 5, [0, 1, 1, 1, 1], none, none]  # 2014 begins on January 1
    assert said(plain, "AE: 4 records of enrolled patients, 3 distinct: repeats count once.")
    assert said(plain, "AE: 1 records without an end go on, 1 without a start have always been; 2 with a partial date")
    assert said(plain, "CM: the same thing by two names: MULTIVITAMINS is MULTIVITAMIN.")
    assert "CM multivitamins" not in plain.table


def test_only_known_dates_as_in_the_paper(tmp_path):
    found = prepared(tmp_path, known_dates=True)
    assert [name for name in found.table if name[:3] in ("AE ", "CM ")] == ["AE rash", "CM aspirin"]
    assert said(found, "AE: 1 records have a whole start and end date; the others are left out.")
    assert said(found, "AE: only 1 names are active at a visit; 10 were asked for.")


def test_the_commonest_are_those_that_most_patients_show_at_a_visit(tmp_path):
    tables = domains()
    # Many records, or records that no visit falls into, make nothing common.
    often = [("004", "GOUT", f"2014-01-{day:02}", "2014-01-16") for day in range(1, 10)]
    never = [(patient, "FALL", "2015-01-01", None) for patient in ("001", "002", "003")]
    tables["AE"] = pd.concat([tables["AE"], pd.DataFrame([*often, *never], columns=list(tables["AE"]))])
    found = prepared(tmp_path, tables, events=2, medications=0)
    assert list(found.schema.covariates) == ["age", "sex", "arm", "AE rash", "AE cough", "day"]
    assert not any(note.startswith("CM") for note in found.notes)
    terms = {**tables, "CM": tables["CM"].assign(CMDECOD="UNCODED"), "AE": tables["AE"].assign(AETERM="OUCH")}
    found = prepared(tmp_path, terms, event_term="AETERM", medication_term="CMDECOD")
    assert [name for name in found.table if name[:3] in ("AE ", "CM ")] == ["AE ouch", "CM uncoded"]


def test_a_span_that_ends_before_it_starts_is_remarked_upon(tmp_path):
    tables = domains()
    tables["AE"].loc[0, "AEENDTC"] = "2014-01-05"
    assert said(prepared(tmp_path, tables), "AE: 1 records end before they start")


# Kinds, scaling and parts


def test_kinds_are_those_that_the_table_suggests_or_all_gaussian(tmp_path):
    tables = many()
    enzyme = tables["LB"]["LBTESTCD"] == "AST"
    tables["LB"].loc[enzyme, "LBSTRESN"] = np.exp(np.random.default_rng(1).normal(3, 1, enzyme.sum()))
    found = prepared(tmp_path, tables)
    assert found.schema.kinds == {"AST": "lognormal"}
    names = found.schema.measurements
    same = lacova.Schema.infer(found.table, instance="patient", time="day", measurements=names)
    assert found.schema.kinds == same.kinds
    assert found.schema.integers == ()
    assert said(found, "kinds of measurements, as their values suggest: AST lognormal; 3 gaussian.")
    for options in ({"kinds": "gaussian"}, {"scaling": "minmax"}):  # scaled values need not be positive
        plain = prepared(tmp_path, tables, **options)
        assert plain.schema.kinds == {}
        assert not said(plain, "kinds of measurements")
    out = ("--out", tmp_path / "s.csv", "--schema", tmp_path / "s.toml", "--quiet")
    assert shell("study", tmp_path / "sdtm", *out) == 0
    assert lacova.Schema.from_toml(tmp_path / "s.toml") == found.schema
    assert shell("study", tmp_path / "sdtm", *out, "--kinds", "gaussian") == 0
    assert lacova.Schema.from_toml(tmp_path / "s.toml").kinds == {}


def many(patients=20):
    """The first patient, over and over, with other values."""
    tables, rng = domains(), np.random.default_rng(0)
    for name, table in tables.items():
        one = table[table["USUBJID"] == "001"]
        tables[name] = pd.concat([one.assign(USUBJID=f"p{k:02}") for k in range(patients)], ignore_index=True)
    tables["LB"]["LBSTRESN"] += rng.normal(size=len(tables["LB"]))
    return tables


def test_patients_are_dealt_whole_and_by_the_seed(tmp_path):
    options = {"validation_share": 0.1, "test_share": 0.2}
    parts = prepared(tmp_path, many(), **options).parts
    people = {part: set(table["patient"]) for part, table in parts.items()}
    assert {part: len(names) for part, names in people.items()} == {"train": 14, "validation": 2, "test": 4}
    assert len(set.union(*people.values())) == 20
    assert sum(map(len, parts.values())) == 100
    again = prepared(tmp_path, many(), **options).parts
    assert all(again[part].equals(parts[part]) for part in parts)
    assert set(prepared(tmp_path, many(), **options, seed=1).parts["test"]["patient"]) != people["test"]
    assert set(prepared(tmp_path, many(), test_share=0.2).parts) == {"train", "test"}


def test_training_patients_alone_say_what_is_common_and_how_to_scale(tmp_path):
    tables = many()
    held_out = prepared(tmp_path, tables, test_share=0.2).parts["test"]["patient"].unique()
    seen = next(name for name in tables["DM"]["USUBJID"] if name not in held_out)
    tables["AE"] = pd.DataFrame({"USUBJID": [seen, *held_out], "AEDECOD": ["RASH", *["GOUT"] * len(held_out)]})
    tables["AE"] = tables["AE"].assign(AESTDTC="2014", AEENDTC=None)
    tables["LB"].loc[tables["LB"]["USUBJID"].isin(held_out) & (tables["LB"]["LBTESTCD"] == "ALT"), "LBSTRESN"] += 1e6
    assert "AE gout" in prepared(tmp_path, tables, events=1).table
    raw = prepared(tmp_path, tables, events=1, test_share=0.2)
    assert "AE rash" in raw.table
    assert "AE gout" not in raw.table
    names = list(raw.schema.measurements)
    for scaling, moments in (("minmax", ("min", "max")), ("standard", ("mean", "std"))):
        found = prepared(tmp_path, tables, events=1, test_share=0.2, scaling=scaling)
        train = found.parts["train"][names]
        assert train["ALT"].agg(moments[0]) == pytest.approx(0.0, abs=1e-12)
        more = {"ddof": 0} if scaling == "standard" else {}
        assert getattr(train["ALT"], moments[1])(**more) == pytest.approx(1.0, rel=1e-12)
        assert found.parts["test"]["ALT"].min() > 1e3
        back = train * found.scales["width"] + found.scales["centre"]
        np.testing.assert_allclose(back, raw.parts["train"][names], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_column": 1.5}, "min_column is 1.5; expected a share"),
        ({"min_row": -1}, "min_row is -1; expected a share"),
        ({"min_visits": 0}, "min_visits is 0; expected at least 1"),
        ({"events": -1}, "events is -1; expected at least 0"),
        ({"scaling": "log"}, "scaling is 'log'; expected none, minmax or standard"),
        ({"kinds": "log"}, "kinds is 'log'; expected infer or gaussian"),
        ({"test_share": 1.0}, "the share for test is 1.0; expected"),
        ({"test_share": 0.01}, "4 patients are too few to deal a share of 0.01 to test"),
        ({"test_share": 0.5, "validation_share": 0.5}, "leave none to train on"),
        ({"min_visits": 6}, "no patient has 6 visits left, the most is 5"),
    ],
)
def test_options_that_will_not_do(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        prepared(tmp_path, **options)


# The shell


def shell(*words):
    return main([str(word) for word in words])


def test_the_command_writes_table_and_schema_and_prints_what_was_kept(tmp_path, capsys, plain):
    words = ("study", tmp_path / "sdtm", "--out", tmp_path / "s.parquet", "--schema", tmp_path / "s.toml")
    assert shell(*words) == 0
    text = capsys.readouterr()
    assert text.out.startswith(plain.describe())
    assert f"lacova fit {tmp_path / 's.parquet'} --schema {tmp_path / 's.toml'} --out RUN" in text.out
    assert text.err == ""
    assert read_table(tmp_path / "s.parquet").equals(plain.table.astype(read_table(tmp_path / "s.parquet").dtypes))
    assert lacova.Schema.from_toml(tmp_path / "s.toml") == plain.schema
    assert shell(*words, "--quiet") == 0
    assert capsys.readouterr().out == ""
    assert shell(*words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"]["raw"] == {"patients": 4, "rows": 20, "tests": 4, "observed": 1.0}
    assert found["notes"] == list(plain.notes)


def test_parts_and_scales_get_files_of_their_own_that_a_model_learns_from(tmp_path, capsys):
    write(tmp_path / "sdtm", many())
    out = ("--out", tmp_path / "s.parquet", "--schema", tmp_path / "s.toml")
    assert shell(
        "study", tmp_path / "sdtm", *out, "--scaling", "minmax", "--validation-share", 0.1, "--test-share", 0.1,
        "--arm", "A", "--exclude", "PH", "--events", 1, "--medications", 1, "--quiet",
    ) == 0  # fmt: skip
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "s.scales.csv", "s.test.parquet", "s.toml", "s.train.parquet", "s.validation.parquet", "sdtm",
    ]  # fmt: skip
    assert read_table(tmp_path / "s.scales.csv")["measurement"].tolist() == ["ALT", "AST", "SYSBP"]
    train, validation = tmp_path / "s.train.parquet", tmp_path / "s.validation.parquet"
    words = ("fit", train, "--validation", validation, "--schema", tmp_path / "s.toml", "--out", tmp_path / "run")
    with pytest.warns(UserWarning, match="constant"):
        code = shell(*words, "--epochs", 1, "--latent-dim", 1, "--device", "cpu", "--quiet")
    assert code == 0


def test_the_shell_has_the_defaults_of_the_function():
    import inspect

    from lacova.cli import study

    here = {name: parameter.default for name, parameter in inspect.signature(study).parameters.items()}
    for name, parameter in inspect.signature(sdtm.study).parameters.items():
        if name != "folder":
            assert (here[name] or None) == (parameter.default or None), name


def broken(tables, name, **changes):
    return {**tables, name: tables[name].assign(**changes)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "VS"}, "there is no domain VS in {}; expected vs with one of"),
        (lambda t: {**t, "LB": t["LB"].drop(columns="LBSTRESN").assign(LBSTRES=1)},
         "lb.csv has no column LBSTRESN, which the domain LB needs. Did you mean 'LBSTRES"),
        (lambda t: broken(t, "AE", AESTDTC="01/02/2014"), "AESTDTC has the date '01/02/2014'; expected ISO 8601"),
        (lambda t: broken(t, "CM", CMENDTC="2014-02-31"), "CMENDTC has the date '2014-02-31'; expected ISO 8601"),
        (lambda t: broken(t, "DM", RFSTDTC="2014-01"), "RFSTDTC of DM is '2014-01' for a patient; days need the whole"),
        (lambda t: broken(t, "DM", RFSTDTC=None), "no patient of DM has an arm and a first dose"),
        (lambda t: broken(t, "DM", USUBJID="001"), "DM has more or less than one row for the patient '001'"),
        (lambda t: broken(t, "LB", LBSTRESN="high"), "has 'high' in the column LBSTRESN; expected numbers there"),
        (lambda t: broken(t, "DM", USUBJID=list("uvwxyz")), "LB and VS have no result that is a number"),
        (lambda t: broken(broken(t, "LB", LBDY=None, LBDTC=None), "VS", VSDY=None), "no result has a day (LBDY, VSDY)"),
        (lambda t: {**t, "AE": t["AE"].iloc[:0]}, "ae.csv has a header but no rows."),
        (lambda t: {**t, "VS": t["VS"].iloc[:5], "LB": t["LB"].iloc[:8]}, "no patient has 5 visits left"),
    ],
)  # fmt: skip
def test_one_sentence_and_nothing_written(tmp_path, capsys, change, words):
    folder = write(tmp_path / "sdtm", change(domains()))
    assert shell("study", folder, "--out", tmp_path / "s.parquet", "--schema", tmp_path / "s.toml") == 1
    text = capsys.readouterr()
    assert words.format(folder) in text.err
    assert len(text.err.strip().split("\n")) == 1
    assert text.out == ""
    assert os.listdir(tmp_path) == ["sdtm"]


def test_folders_and_files_that_will_not_do(tmp_path, capsys):
    folder, out = (
        write(tmp_path / "sdtm", domains()),
        ("--out", tmp_path / "s.parquet", "--schema", tmp_path / "s.toml"),
    )
    for words, message in (
        (("nowhere", *out), "nowhere is not there; expected a folder with the SDTM domains"),
        ((folder / "dm.csv", *out), "dm.csv is a file; expected a folder"),
        ((folder, *out[:3], tmp_path / "none" / "s.toml"), "there is no folder"),
        ((folder, *out[:3], tmp_path), "name a file of its own for the roles"),
        ((folder, "--out", tmp_path / "s.txt", *out[2:]), "ends in '.txt'; expected one of"),
    ):
        assert shell("study", *words) == 1
        assert message in capsys.readouterr().err
    (folder / "DM.xpt").write_bytes(b"nothing of the kind" * 20)
    assert shell("study", folder, *out) == 1
    assert "has the domain DM more than once, as DM.xpt and dm.csv; keep one" in capsys.readouterr().err
    (folder / "dm.csv").unlink()
    assert shell("study", folder, *out) == 1
    assert "DM.xpt is no SAS file: Header record is not an XPORT file." in capsys.readouterr().err
    (folder / "DM.xpt").rename(folder / "dm.parquet")
    assert shell("study", folder, *out) == 1
    assert "dm.parquet is no Parquet file" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["sdtm"]


def test_all_files_are_written_or_none(tmp_path, monkeypatch, capsys):
    folder = write(tmp_path / "sdtm", domains())

    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)  # the schema comes after the table
    assert shell("study", folder, "--out", tmp_path / "s.parquet", "--schema", tmp_path / "s.toml") == 1
    assert "s.toml cannot be written: No space left on device." in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["sdtm"]


# The real pilot


@pytest.mark.skipif("LACOVA_DATA" not in os.environ, reason="LACOVA_DATA is not set")
def test_the_cdisc_pilot():
    found = sdtm.study(Path(os.environ["LACOVA_DATA"]) / "cdiscpilot01")
    assert found.describe().split("\n")[1:5] == [
        "raw                         254  2,836    48    52.8%",
        "columns observed ≥ 10%      254  2,836    39    64.0%",
        "rows observed ≥ 50%         254  1,803    39    93.8%",
        "patients with ≥ 5 rows      192  1,633    39    93.5%",
    ]
    assert found.table.shape == (1633, 64)
    skewed = dict.fromkeys(["ALP", "ALT", "AST", "BILI", "CK", "GGT", "GLUC"], "lognormal")
    assert found.schema.kinds == skewed | {"KETONES": "bernoulli"}  # UROBIL is 1 but once
    for words in (
        "306 patients, of whom 52 screen failures", "ARM and ACTARM differ for 12 patients", "COLOR is text throughout",
        "BILI <3.42 (5)", "readings STANDING, SUPINE of a visit are averaged", "differ at 105 of 1,790 visits",
        "by up to 86", "206 rows lie before it", "7,510 records of enrolled patients, 1,081 distinct",
        "772 records without an end go on", "MULTIVITAMINS is MULTIVITAMIN", "UROBIL: all but 1 of 715 values are 0",
        "rows are sorted by day", "39 tests have one unit throughout", "543 with a partial date",
    ):  # fmt: skip
        assert said(found, words), words
