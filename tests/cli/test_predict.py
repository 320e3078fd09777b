"""`lacova predict`."""

import numpy as np
import pandas as pd
import pytest

import lacova
from lacova.data.io.files import read_table, write_table
from tests.cli.cases import QUICK, shell, visits


def test_predictions_are_written_with_their_covariates(home, tmp_path, capsys):
    new = pd.DataFrame({"id": ["p00", "new"], "day": [200.0, 10.0], "sex": [None, "f"], "site": ["a", "b"]})
    write_table(new, tmp_path / "x.csv")
    words = ("predict", home / "run", tmp_path / "x.csv", "--history", home / "data.csv", "--quiet")
    assert shell(*words, "--interval", 0.9, "--out", tmp_path / "y.csv") == 0
    written = read_table(tmp_path / "y.csv")
    assert list(written.columns)[:6] == ["id", "day", "sex", "site", "alt", "ast"]
    assert written["site"].tolist() == ["a", "b"]
    assert (written["alt_lower"] < written["alt_upper"]).all()
    model = lacova.load(home / "run" / "model.lacova")
    want = model.predict(new, visits(), interval=0.9)
    assert np.allclose(written["alt"], want["alt"], rtol=1e-12)
    assert shell(*words, "--draws", 2, "--out", tmp_path / "d.csv") == 0
    drawn = read_table(tmp_path / "d.csv")
    assert list(drawn.columns) == ["draw", "id", "day", "sex", "site", "alt", "ast"]
    assert drawn["draw"].tolist() == [0, 0, 1, 1]
    assert drawn["id"].tolist() == ["p00", "new"] * 2


def test_probabilities_of_levels_of_measurements(tmp_path, capsys):
    table = visits(40)
    table["grade"] = np.where(table["alt"] > 32, "high", "low")
    write_table(table, tmp_path / "t.csv")
    roles = lacova.Schema(["alt", "grade"], {"sex": "categorical"}, kinds={"grade": "bernoulli"})
    roles.to_toml(tmp_path / "s.toml")
    run = tmp_path / "run"
    assert shell("fit", tmp_path / "t.csv", "--schema", tmp_path / "s.toml", "--out", run, *QUICK, "--quiet") == 0
    words = ("predict", run, tmp_path / "t.csv", "--probabilities", "--quiet")
    assert shell(*words, "--out", tmp_path / "p.csv") == 0
    want = lacova.load(run / "model.lacova").predict(table, probabilities=True)
    written = read_table(tmp_path / "p.csv")
    assert written["grade_p_high"].to_numpy() == pytest.approx(want["grade_p_high"].to_numpy(), rel=1e-9)
    assert (written["grade_p_high"] + written["grade_p_low"]).to_numpy() == pytest.approx(1.0)
    capsys.readouterr()
    assert shell(*words, "--draws", 2) == 1
    assert "give --draws or --probabilities, not both" in capsys.readouterr().err


def test_a_remark_says_that_measurements_are_not_used(home, tmp_path, capsys):
    assert shell("predict", home / "run", home / "data.csv", "--out", tmp_path / "a.csv") == 0
    assert "(alt, ast) are predicted, not looked at; visits whose measurements should count go into --history" in (
        capsys.readouterr().err
    )
    write_table(visits()[["id", "day", "sex"]], tmp_path / "x.csv")
    assert shell("predict", home / "run", tmp_path / "x.csv", "--out", tmp_path / "y.csv") == 0
    assert "looked at" not in capsys.readouterr().err
