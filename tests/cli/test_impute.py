"""`lacova impute`."""

import numpy as np

from lacova.data.io.files import read_table
from tests.cli.cases import shell, visits


def test_gaps_are_filled_in_files_of_both_kinds(home, tmp_path, capsys):
    data = visits()
    for suffix in ("csv", "parquet"):
        assert shell("impute", home / "run", home / "data.csv", "--out", tmp_path / f"a.{suffix}") == 0
        filled = read_table(tmp_path / f"a.{suffix}")
        assert filled.notna().all().all()
        assert list(filled.columns) == list(data.columns)
        observed = data["alt"].notna()
        assert (filled["alt"][observed] == data["alt"][observed]).all()
        assert f"120 rows written to {tmp_path / f'a.{suffix}'}" in capsys.readouterr().err
    words = ("impute", home / "run", home / "data.csv", "--quiet")
    assert shell(*words, "--draws", 3, "--out", tmp_path / "d.csv") == 0
    assert read_table(tmp_path / "d.csv")["draw"].value_counts().to_dict() == {0: 120, 1: 120, 2: 120}
    assert shell(*words, "--interval", 0.9, "--probabilities", "--out", tmp_path / "i.csv") == 0
    wide = read_table(tmp_path / "i.csv")
    assert (wide["alt_lower"] <= wide["alt"]).all()
    assert np.allclose(wide["sex_p_f"] + wide["sex_p_m"], 1.0)
    assert capsys.readouterr().err == ""


def test_without_out_the_table_goes_to_stdout(home, capsys, tmp_path):
    assert shell("impute", home / "run", home / "data.csv", "--out", tmp_path / "a.csv", "--quiet") == 0
    assert shell("impute", home / "run", home / "data.csv") == 0
    text = capsys.readouterr()
    assert text.out == (tmp_path / "a.csv").read_text()
    assert text.err == ""


def test_a_remark_counts_the_gaps_filled(home, tmp_path, capsys):
    assert shell("impute", home / "run", home / "data.csv", "--out", tmp_path / "a.csv") == 0
    gaps = visits().isna().sum()
    want = f"Gaps filled: day {gaps.day}, sex {gaps.sex}, alt {gaps.alt}, ast {gaps.ast}.\n"
    assert capsys.readouterr().err.endswith(want)
    assert shell("impute", home / "run", tmp_path / "a.csv", "--out", tmp_path / "b.csv") == 0
    assert "Gaps filled: none, as there are none." in capsys.readouterr().err
