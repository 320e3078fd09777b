"""`lacova filter`."""

import json

import numpy as np
import pytest

import lacova
from lacova.cli.common import short
from lacova.data.io.files import read_table, write_table
from tests.cli.cases import QUICK, refused, shell, visits


def test_each_visit_is_predicted_from_earlier_ones(home, tmp_path, capsys):
    table = visits().dropna(subset="day")
    table.loc[table["id"] == "p01", "ast"] = np.nan
    write_table(table, tmp_path / "v.csv")
    words = ("filter", home / "run", tmp_path / "v.csv", "--draws", 20, "--interval", 0.5)
    assert shell(*words, "--out", tmp_path / "f.csv") == 0
    text = capsys.readouterr()
    assert f"{2 * len(table)} rows written to {tmp_path / 'f.csv'}" in text.err
    want = lacova.load(home / "run" / "model.lacova").filter(table, draws=20, interval=0.5)
    written = read_table(tmp_path / "f.csv")
    assert written["upper"].to_numpy() == pytest.approx(want["upper"].to_numpy(), rel=1e-9)
    observed = want[(want["measurement"] == "ast") & want["observed"].notna()]
    rmse = ((observed["mean"] - observed["observed"]) ** 2).mean() ** 0.5
    assert text.out.split("\n")[2].split() == ["ast", str(len(observed)), short(rmse), short(observed["inside"].mean())]
    assert "within the 50% interval" in text.out
    assert shell(*words, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert list(summary) == ["alt", "ast"]
    assert summary["ast"] == pytest.approx({"n": len(observed), "rmse": rmse, "inside": observed["inside"].mean()})


def test_tables_with_categories(tmp_path, capsys):
    table = visits(40).dropna(subset="day")
    table["grade"] = np.where(table["alt"] > 32, "high", "low")
    write_table(table, tmp_path / "t.csv")
    roles = lacova.Schema({"alt": "gaussian", "grade": "bernoulli"}, {}, instance="id", time="day")
    roles.to_toml(tmp_path / "s.toml")
    run = tmp_path / "run"
    assert shell("fit", tmp_path / "t.csv", "--schema", tmp_path / "s.toml", "--out", run, *QUICK, "--quiet") == 0
    words = ("filter", run, tmp_path / "t.csv", "--draws", 4)
    assert shell(*words) == 0
    lines = capsys.readouterr().out.split("\n")
    assert [line.split()[0] for line in lines[1:4]] == ["alt", "grade_p_high", "grade_p_low"]
    assert lines[2].split()[1::2] == [str(len(table)), "NaN"]
    assert lines[-2].startswith("NAME_p_LEVEL: of a category")
    assert shell(*words, "--json") == 0
    assert json.loads(capsys.readouterr().out)["grade_p_low"]["inside"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("filter", "run", "data.csv"), "time column 'day' is missing in 15 row(s)"),
        (("filter", "run", "run"), "run is a folder or a large file"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused(home, monkeypatch, capsys, words, message):
    monkeypatch.chdir(home)
    refused(capsys, words, message)
