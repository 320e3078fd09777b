"""`lacova whatif`."""

import json
import types

import pandas as pd
import pytest

import lacova
from lacova.data.io.files import read_table, write_table
from tests.cli.cases import refused, shell, visits


def test_predictions_with_covariates_set(home, tmp_path, capsys):
    model = lacova.load(home / "run" / "model.lacova")
    new = pd.DataFrame({"id": ["p00", "new"], "day": [200.0, 10.0], "sex": ["m", "f"]})
    write_table(new, tmp_path / "x.csv")
    words = ("whatif", home / "run", tmp_path / "x.csv", "--history", home / "data.csv", "--draws", 5)
    assert shell(*words, "--set", "sex=f", "--set", "day=10", "--out", tmp_path / "w.csv", "--json", "--quiet") == 0
    text = capsys.readouterr()
    assert text.err == ""
    want = model.what_if(new, {"sex": "f", "day": 10.0}, visits(), draws=5)
    average = want.average.set_index("measurement")
    assert json.loads(text.out)["alt"]["difference"] == pytest.approx(average.loc["alt", "difference"])
    rows = read_table(tmp_path / "w.csv").set_index(["id", "measurement"])
    assert rows.loc[("new", "ast"), "difference"] == 0.0
    assert rows["difference"].to_numpy() == pytest.approx(want.rows["difference"].to_numpy(), rel=1e-9)
    assert shell(*words, "--set", "sex=f", "--draws-out", tmp_path / "d.parquet") == 0
    drawn = read_table(tmp_path / "d.parquet")
    assert len(drawn) == 5 * 2 * 2
    assert f"20 rows written to {tmp_path / 'd.parquet'}" in capsys.readouterr().err
    want = model.what_if(new, {"sex": "f"}, visits(), draws=5, keep_draws=True).draws
    assert drawn["what_if_drawn"].to_numpy() == pytest.approx(want["what_if_drawn"].to_numpy(), rel=1e-9)
    assert shell(*words, "--set", "sex=f", "--draws-out", tmp_path / "d.csv", "--out", tmp_path / "d.csv") == 1
    assert "name a file for each" in capsys.readouterr().err
    assert shell(*words, "--set", "sex=f") == 0
    assert "what setting sex=f changes of them" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("whatif", "run", "data.csv", "--set", "sex=x"), "column 'sex' holds 'x', never seen in training"),
        (("whatif", "run", "data.csv", "--set", "sexx=f"), "Did you mean 'sex'?"),
        (("whatif", "run", "data.csv", "--set", "day=soon"), "column 'day' must be numeric, but holds 'soon'"),
        (("whatif", "run", "data.csv", "--set", "sex"), "--set is 'sex'; expected COVARIATE=VALUE"),
        (("whatif", "run", "run", "--set", "sex=f"), "run is a folder or a large file"),
    ],
)  # fmt: skip
def test_bad_values_are_refused(home, monkeypatch, capsys, words, message):
    monkeypatch.chdir(home)
    refused(capsys, words, message)


def test_values_are_read_as_the_column_holds_them():
    from lacova.inference.what_if import from_text

    levels = {"grade": (1.0, 2.0), "code": ("1", "a"), "sick": (False, True)}
    encoder = types.SimpleNamespace(levels=levels)
    assert [from_text(encoder, name, text) for name, text in
            (("grade", "2"), ("code", "1"), ("sick", "True"), ("day", "3"), ("day", "x"), ("grade", "9"))] == [
        2.0, "1", True, 3.0, "x", "9"]  # fmt: skip
