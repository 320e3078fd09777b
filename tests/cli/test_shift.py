"""`lacova shift`."""

import pandas as pd

import lacova
from lacova.cli.shift import _amounts_by_level
from lacova.data.io.files import read_table
from tests.cli.cases import shell, visits


def test_imputed_values_are_shifted(home, tmp_path, capsys):
    words = ("impute", home / "run", home / "data.csv", "--quiet", "--draws", 3, "--out", tmp_path / "d.csv")
    assert shell(*words) == 0
    drawn, data = read_table(tmp_path / "d.csv"), visits()
    shift = ("shift", tmp_path / "d.csv", home / "data.csv")
    assert shell(*shift, "--add", "alt=5", "--add", "ast=-1", "--out", tmp_path / "s.csv") == 0
    assert "360 rows written" in capsys.readouterr().err
    pd.testing.assert_frame_equal(
        read_table(tmp_path / "s.csv"), lacova.shift_imputed(drawn, data, {"alt": 5.0, "ast": -1.0})
    )
    assert shell(*shift, "--by", "sex", "--add", "alt=m:0,f:-2.5", "--quiet", "--out", tmp_path / "s.csv") == 0
    shifted = read_table(tmp_path / "s.csv")
    pd.testing.assert_frame_equal(shifted, lacova.shift_imputed(drawn, data, {"alt": {"sex": {"m": 0.0, "f": -2.5}}}))
    for wrong, message in (
        ((*shift, "--add", "alt"), "--add is 'alt'; expected COLUMN=AMOUNT"),
        ((*shift, "--add", "alt=f:1,m:2"), "'f:1,m:2' is no number; levels of a column need --by"),
        ((*shift, "--add", "alt=1", "--add", "alt=2"), "gives alt twice"),
        ((*shift, "--by", "sex", "--add", "alt=5"), "with --by sex expected COLUMN=LEVEL:AMOUNT"),
        ((*shift, "--by", "sex", "--add", "alt=f:5"), "give each of its levels an amount, 0 for none"),
        ((*shift, "--by", "arm", "--add", "alt=f:5"), "no column 'arm' in the completed table"),
    ):
        assert shell(*wrong) == 1
        assert message in capsys.readouterr().err


def test_levels_with_commas_and_numbers_have_amounts():
    table = pd.DataFrame({"dose": [0, 54], "arm": ["low, once", "b:c"]})
    assert _amounts_by_level(table, "dose", "0:0,54:-2", "") == {0: 0.0, 54: -2.0}
    assert _amounts_by_level(table, "arm", "low, once:1,b:c:-1e1", "") == {"low, once": 1.0, "b:c": -10.0}
