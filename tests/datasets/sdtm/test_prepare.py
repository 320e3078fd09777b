"""All steps together: from a folder of domains to a table and its schema."""

import os
from pathlib import Path

import numpy as np
import pytest

import lacova
from lacova.datasets import sdtm
from tests.datasets.sdtm.cases import domains, has_note, many, prepared, shell


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


def test_the_steps_are_counted(tmp_path):
    tables = domains()
    lb = tables["LB"]
    tables["LB"] = lb[~((lb["USUBJID"] == "004") & (lb["VISITNUM"] > 5.0))]  # a visit with SYSBP alone
    tables["LB"].loc[len(lb)] = {**lb.iloc[0], "LBTESTCD": "RARE"}
    study = prepared(tmp_path, tables)
    assert study.steps.to_dict("list") == {
        "patients": [4, 4, 4, 3], "rows": [20, 20, 19, 15], "tests": [5, 4, 4, 4],
        "observed": [0.78, 0.9625, 1.0, 1.0],
    }  # fmt: skip
    assert study.describe().split("\n")[:5] == [
        "step                   patients rows tests observed", "raw                           4   20     5    78.0%",
        "columns observed ≥ 10%        4   20     4    96.2%", "rows observed ≥ 50%           4   19     4   100.0%",
        "patients with ≥ 5 rows        3   15     4   100.0%",
    ]  # fmt: skip


def test_kinds_are_inferred_from_the_table_or_all_gaussian(tmp_path):
    tables = many()
    enzyme = tables["LB"]["LBTESTCD"] == "AST"
    tables["LB"].loc[enzyme, "LBSTRESN"] = np.exp(np.random.default_rng(1).normal(3, 1, enzyme.sum()))
    study = prepared(tmp_path, tables)
    assert study.schema.kinds == {"AST": "lognormal"}
    names = study.schema.measurements
    same = lacova.Schema.infer(study.table, instance="patient", time="day", measurements=names)
    assert study.schema.kinds == same.kinds
    assert study.schema.integers == ()
    assert has_note(study, "kinds of measurements, as their values suggest: AST lognormal; 3 gaussian.")
    for options in ({"kinds": "gaussian"}, {"scaling": "minmax"}):  # scaled values need not be positive
        plain = prepared(tmp_path, tables, **options)
        assert plain.schema.kinds == {}
        assert not has_note(plain, "kinds of measurements")
    out = ("--out", tmp_path / "s.csv", "--schema", tmp_path / "s.toml", "--quiet")
    assert shell("study", tmp_path / "sdtm", *out) == 0
    assert lacova.Schema.from_toml(tmp_path / "s.toml") == study.schema
    assert shell("study", tmp_path / "sdtm", *out, "--kinds", "gaussian") == 0
    assert lacova.Schema.from_toml(tmp_path / "s.toml").kinds == {}


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
def test_invalid_options_are_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        prepared(tmp_path, **options)


@pytest.mark.skipif("LACOVA_DATA" not in os.environ, reason="LACOVA_DATA is not set")
def test_the_cdisc_pilot():
    study = sdtm.study(Path(os.environ["LACOVA_DATA"]) / "cdiscpilot01")
    assert study.describe().split("\n")[1:5] == [
        "raw                         254  2,836    48    52.8%",
        "columns observed ≥ 10%      254  2,836    39    64.0%",
        "rows observed ≥ 50%         254  1,803    39    93.8%",
        "patients with ≥ 5 rows      192  1,633    39    93.5%",
    ]
    assert study.table.shape == (1633, 64)
    skewed = dict.fromkeys(["ALP", "ALT", "AST", "BILI", "CK", "GGT", "GLUC"], "lognormal")
    assert study.schema.kinds == skewed | {"KETONES": "bernoulli"}  # UROBIL is 1 only once
    for words in (
        "306 patients, of whom 52 screen failures", "ARM and ACTARM differ for 12 patients", "COLOR is text throughout",
        "BILI <3.42 (5)", "readings STANDING, SUPINE of a visit are averaged", "differ at 105 of 1,790 visits",
        "by up to 86", "206 rows lie before it", "7,510 records of enrolled patients, 1,081 distinct",
        "772 records without an end go on", "MULTIVITAMINS is MULTIVITAMIN", "UROBIL: all but 1 of 715 values are 0",
        "rows are sorted by day", "39 tests have one unit throughout", "543 with a partial date",
    ):  # fmt: skip
        assert has_note(study, words), words
