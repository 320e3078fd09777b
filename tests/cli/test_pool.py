"""`lacova pool`."""

import json

import pytest

import lacova
from lacova.cli.common import short
from lacova.data.io.files import read_table
from tests.cli.cases import shell


def test_regressions_are_pooled(home, tmp_path, capsys):
    words = ("impute", home / "run", home / "data.csv", "--quiet", "--draws", 3, "--out", tmp_path / "d.csv")
    assert shell(*words) == 0
    completed = read_table(tmp_path / "d.csv")
    words = ("pool", tmp_path / "d.csv", "--formula", "alt ~ ast + sex")
    assert shell(*words, "--out", tmp_path / "p.csv") == 0
    text = capsys.readouterr()
    want = lacova.pool_regression(completed, "alt ~ ast + sex")
    assert read_table(tmp_path / "p.csv")["coefficient"].tolist() == ["Intercept", "ast", "sex[T.m]"]
    assert text.out.split("\n")[2].split()[:3] == ["ast", *(short(v) for v in want.loc["ast"].iloc[:2])]
    assert "least squares on 3 completed tables of 120 rows; 95% intervals." in text.out
    assert shell(*words[:3], "alt ~ ast", "--where", "sex=f", "--confidence", 0.5, "--json") == 0
    want = lacova.pool_regression(completed[completed["sex"] == "f"], "alt ~ ast", confidence=0.5)
    assert json.loads(capsys.readouterr().out)["ast"] == pytest.approx(want.loc["ast"].to_dict())
    for wrong, message in (
        ((*words, "--where", "sex"), "--where is 'sex'; expected COLUMN=VALUE"),
        ((*words, "--where", "sez=f"), "no column 'sez' to choose rows by"),
        ((*words, "--where", "sex=x"), "no row has sex=x in"),
        ((*words[:1], home / "data.csv", *words[2:]), "no column 'draw' that numbers completed tables"),
    ):
        assert shell(*wrong) == 1
        assert message in capsys.readouterr().err
