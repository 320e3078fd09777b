"""The simulation of pooled coefficients: its truth, its gaps, its table, and how a run continues."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from reproduction.clinical import rubin


@pytest.mark.parametrize("setting", list(rubin.TRUTH))
def test_complete_data_are_right_and_complete_rows_are_not(setting):
    errors = {method: [] for method in ("complete data", "complete rows", "mean imputation")}
    for repetition in range(40):
        tables = rubin.simulate(setting, 50_000 + repetition)
        for method, estimates in errors.items():
            (table,) = rubin.METHODS[method](*tables, 0)
            estimates.append(rubin.analyse(table, setting)[0] - rubin.TRUTH[setting])
    error = {m: np.abs(np.mean(e, 0)) / (np.std(e, 0) / len(e) ** 0.5) for m, e in errors.items()}
    assert (error["complete data"] < 4).all()
    assert error["complete rows"][0] > 8  # the intercept: high pressures are left out
    assert error["mean imputation"][2] > 8  # bmi


def test_gaps_are_missing_at_random():
    table, gappy = rubin.simulate("linear", 60_000)
    again, _ = rubin.simulate("linear", 60_000)
    pd.testing.assert_frame_equal(table, again)
    assert gappy[["age", "arm"]].notna().all().all()
    assert not (gappy["bmi"].isna() & gappy["pressure"].isna()).any()  # what a gap depends on is observed
    pd.testing.assert_frame_equal(gappy.fillna(table), table)
    assert 0.4 < gappy.isna().any(axis=1).mean() < 0.6


def test_the_command_continues_where_it_stopped_and_prints_what_is_done(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rubin, "work", lambda f, tasks, *_: ((k, f(*task), None) for k, task in enumerate(tasks)))
    file = tmp_path / "results.jsonl"
    words = ["rubin", "run", "--results", str(file), "--settings", "linear", "--methods", "complete data"]
    monkeypatch.setattr(sys, "argv", [*words, "--repetitions", "1"])
    assert rubin.main() == 0
    first = file.read_text()
    monkeypatch.setattr(sys, "argv", [*words, "--repetitions", "2"])
    assert rubin.main() == 0
    assert "1 to do, 1 done" in capsys.readouterr().err
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert file.read_text().startswith(first)
    assert [line["repetition"] for line in lines] == [0, 1]
    table, _ = rubin.simulate("linear", 1)
    assert lines[1]["estimate"] == pytest.approx(rubin.analyse(table, "linear")[0], abs=1e-5)
    shown = rubin.table(file)
    assert list(shown["coefficient"]) == ["intercept", "age", "bmi", "arm b"]
    width = np.mean([line["upper"][2] - line["lower"][2] for line in lines])
    assert float(shown["width"].iloc[2]) == pytest.approx(width, abs=6e-4)
    off = np.mean([line["estimate"][2] for line in lines]) - 0.5
    assert float(shown["bias"].iloc[2].split(" ± ")[0]) == pytest.approx(off, abs=6e-4)


def test_coverage_counts_the_intervals_that_hold_the_truth(tmp_path):
    line = {"setting": "linear", "method": "lacova", "estimate": [0.0] * 4, "std_error": [1.0] * 4}
    rows = [
        line | {"repetition": k, "lower": [-1.0, 0.6, 0.4, 0.0], "upper": [1.0, 0.7, 0.5 + k / 10, 0.9]}
        for k in (-1, 0)
    ]
    file = tmp_path / "results.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [text.split(" ± ")[0] for text in rubin.table(file)["coverage, %"]] == ["100.0", "0.0", "50.0", "100.0"]


def test_lacova_completes_tables_through_its_public_interface(monkeypatch):
    monkeypatch.setitem(rubin.TRAINING, "max_epochs", 1)
    monkeypatch.setattr(rubin, "FITS", 2)
    _, gappy = rubin.simulate("interaction", 70_000)
    for method in ("lacova", "lacova, bootstrap"):
        tables = list(rubin.METHODS[method](None, gappy, 0))
        assert len(tables) == 20
        for table in tables:
            assert table.notna().all().all()
            np.testing.assert_allclose(table["bmi"][gappy["bmi"].notna()], gappy["bmi"].dropna())
        assert not np.allclose(tables[0]["pressure"], tables[-1]["pressure"])


def test_the_page_shows_the_table_of_the_results():
    page = (Path(rubin.__file__).parents[2] / "docs" / "multiple-imputation.md").read_text(encoding="utf-8")
    assert rubin.brief(rubin.RESULTS) in page
