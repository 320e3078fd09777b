"""`lacova pool`."""

import json

import pytest

import lacova
from lacova.analysis.pooling import MonteCarloWarning
from lacova.cli.common import short
from lacova.data.io.files import read_table
from tests.cli.cases import shell

FEW = pytest.mark.filterwarnings("ignore::lacova.analysis.pooling.MonteCarloWarning")  # few tables suffice here


@pytest.fixture
def completed(home, tmp_path, capsys):
    """The file of completed tables, and the command up to its formula."""
    words = ("impute", home / "run", home / "data.csv", "--quiet", "--draws", 3, "--out", tmp_path / "d.csv")
    assert shell(*words) == 0
    return tmp_path / "d.csv"


@FEW
def test_regressions_are_pooled(home, completed, tmp_path, capsys):
    tables = read_table(completed)
    words = ("pool", completed, "--formula", "alt ~ ast + sex", "--cluster", "id")
    assert shell(*words, "--out", tmp_path / "p.csv") == 0
    text = capsys.readouterr()
    want = lacova.pool_regression(tables, "alt ~ ast + sex", cluster="id")
    assert read_table(tmp_path / "p.csv")["coefficient"].tolist() == ["Intercept", "ast", "sex[T.m]"]
    assert text.out.split("\n")[2].split()[:3] == ["ast", *(short(v) for v in want.loc["ast"].iloc[:2])]
    count = tables["id"].nunique()
    assert (
        f"least squares, standard errors robust to clusters ({count} values of 'id'); 3 completed tables of 120 rows; "
        "95% intervals."
    ) in text.out
    words = ("pool", completed, "--formula", "alt ~ ast", "--where", "sex=f", "--confidence", 0.5, "--json")
    assert shell(*words, "--independent") == 0
    want = lacova.pool_regression(tables[tables["sex"] == "f"], "alt ~ ast", cluster=None, confidence=0.5)
    assert json.loads(capsys.readouterr().out)["ast"] == pytest.approx(want.loc["ast"].to_dict())
    assert shell("pool", completed, "--formula", "alt ~ ast + sex + (1 | id)", "--json") == 0
    want = lacova.pool_regression(tables, "alt ~ ast + sex + (1 | id)")
    assert json.loads(capsys.readouterr().out)["ast"] == pytest.approx(want.loc["ast"].to_dict())


@FEW
def test_logistic_regressions_are_pooled(completed, tmp_path, capsys):
    tables = read_table(completed)
    formula = "sex ~ alt + ast"
    words = ("pool", completed, "--formula", formula, "--regression", "logistic", "--cluster", "id")
    assert shell(*words, "--out", tmp_path / "p.csv") == 0
    want = lacova.pool_regression(tables, formula, regression="logistic", cluster="id")
    written = read_table(tmp_path / "p.csv").set_index("coefficient")
    assert written["odds_ratio_upper"].tolist() == pytest.approx(want["odds_ratio_upper"].tolist())
    assert "logistic regression of sex = m (against f), standard errors robust to clusters" in capsys.readouterr().out
    assert shell(*words, "--test", "all", "--json") == 0
    tests = lacova.pool_terms(tables, formula, regression="logistic", cluster="id")
    found = json.loads(capsys.readouterr().out)
    assert found["alt"]["p_value"] == pytest.approx(tests.loc["alt", "p_value"])
    scaled = (*words[:3], "sex ~ I(-alt / 1e9)", *words[4:], "--json")  # odds ratios beyond all numbers
    assert shell(*scaled) == 0
    text = capsys.readouterr().out
    assert "Infinity" not in text
    found = json.loads(text)["I(-alt / 1000000000.0)"]
    assert found["odds_ratio_upper"] is None
    assert found["p_value"] == pytest.approx(
        lacova.pool_regression(tables, "sex ~ alt", regression="logistic", cluster="id").loc["alt", "p_value"]
    )


@FEW
def test_terms_are_tested_as_a_whole(completed, tmp_path, capsys):
    words = ("pool", completed, "--formula", "alt ~ ast * sex", "--cluster", "id")
    assert shell(*words, "--test", "sex + ast:sex", "--test", "ast", "--out", tmp_path / "p.csv") == 0
    assert "Wald tests of several coefficients (D1)." in capsys.readouterr().out
    tests = read_table(tmp_path / "p.csv").set_index("terms")
    want = lacova.pool_terms(read_table(completed), "alt ~ ast * sex", ["sex + ast:sex", "ast"], cluster="id")
    assert tests.index.tolist() == want.index.tolist()
    assert tests["p_value"].tolist() == pytest.approx(want["p_value"].tolist())
    assert shell(*words, "--test", "all", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"ast", "sex", "ast:sex"}


def test_a_remark_tells_of_too_few_tables(completed, capsys):
    words = ("pool", completed, "--formula", "ast ~ sex", "--cluster", "id", "--json")
    assert shell(*words) == 0
    text = capsys.readouterr()
    with pytest.warns(MonteCarloWarning) as caught:
        lacova.pool_regression(read_table(completed), "ast ~ sex", cluster="id")
    assert f"lacova: {caught[0].message}" in text.err
    assert json.loads(text.out)
    assert shell(*words, "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_refusals(home, completed, capsys):
    words = ("pool", completed, "--formula", "alt ~ ast + sex")
    for wrong, message in (
        (words, "several rows share a value of 'id'"),
        ((*words, "--cluster", "ix"), "no column 'ix' of clusters"),
        ((*words, "--cluster", "id", "--independent"), "--cluster and --independent contradict each other"),
        ((*words, "--cluster", "id", "--test", "arm"), "'arm' names no terms of the formula"),
        ((*words, "--cluster", "id", "--regression", "binomial"), "regression must be 'linear' or 'logistic'"),
        ((*words, "--cluster", "id", "--regression", "logistic"), "levels in the completed tables"),
        (
            (*words[:3], "sex ~ alt", "--regression", "linear", "--cluster", "id"),
            "For an outcome of two levels, choose regression='logistic' (--regression logistic)",
        ),
        ((*words, "--where", "sex"), "--where is 'sex'; expected COLUMN=VALUE"),
        ((*words, "--where", "sez=f"), "no column 'sez' to choose rows by"),
        ((*words, "--where", "sex=x"), "no row has sex=x in"),
        ((*words[:1], home / "data.csv", *words[2:]), "no column 'draw' that numbers completed tables"),
    ):
        assert shell(*wrong) == 1
        assert message in capsys.readouterr().err
