"""The command line, from a file to an answer."""

import json
import os
import subprocess
import sys
import types

import numpy as np
import pandas as pd
import pytest

import lacova
from lacova.cli import main
from lacova.cli.common import short
from lacova.data.io.files import read_table, write_table


def visits(patients=30, count=4, seed=0, missing=0.15):
    rng = np.random.default_rng(seed)
    n, patient = patients * count, np.repeat(np.arange(patients), count)
    table = pd.DataFrame({
        "id": [f"p{p:02}" for p in patient],
        "day": np.tile(np.arange(count) * 30.0, patients) + rng.normal(0, 2, n).round(1),
        "sex": np.where(patient % 2, "f", "m"),
        "alt": (30 + 4 * (patient % 2) + rng.normal(0, 3, patients)[patient] + rng.normal(0, 1, n)).round(1),
        "ast": rng.normal(25.0, 4.0, n).round(1),
    })  # fmt: skip
    holes = rng.random((n, 5)) < missing
    holes[:, 0] = False
    holes[:, 2] = (rng.random(patients) < missing)[patient]
    return table.mask(holes)


def shell(*words):
    return main([str(word) for word in words])


QUICK = ("--epochs", 2, "--latent-dim", 1, "--device", "cpu")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A table, its schema and a model, all made from the shell."""
    folder = tmp_path_factory.mktemp("home")
    write_table(visits(), folder / "data.csv")
    roles = ("--instance", "id", "--time", "day", "-m", "alt", "-m", "ast")
    assert shell("schema", folder / "data.csv", *roles, "--out", folder / "s.toml", "--quiet") == 0
    words = ("fit", folder / "data.csv", "--schema", folder / "s.toml", "--out", folder / "run", *QUICK, "--quiet")
    assert shell(*words) == 0
    return folder


def test_the_schema_is_proposed_and_printed(home, capsys):
    found = lacova.Schema.from_toml(home / "s.toml")
    assert found.measurements == ("alt", "ast")
    assert dict(found.covariates) == {"sex": "categorical", "day": "continuous"}
    assert (found.instance, found.time, found.static) == ("id", "day", ("sex",))
    assert shell("schema", home / "data.csv", "--instance", "id", "--time", "day") == 0
    text = capsys.readouterr()
    assert text.err == ""
    assert lacova.Schema.from_toml(text.out).instance == "id"


def test_a_run_is_a_folder_with_model_schema_and_record(home):
    assert sorted(os.listdir(home / "run")) == ["model.lacova", "schema.toml", "training.csv"]
    assert lacova.Schema.from_toml(home / "run" / "schema.toml") == lacova.Schema.from_toml(home / "s.toml")
    record = read_table(home / "run" / "training.csv")
    assert record["epoch"].tolist() == [1.0, 2.0]
    assert {"elbo", "validation"} <= set(record)


def test_gaps_are_filled_in_files_of_both_kinds(home, tmp_path, capsys):
    data = visits()
    for suffix in ("csv", "parquet"):
        assert shell("impute", home / "run", home / "data.csv", "--out", tmp_path / f"a.{suffix}") == 0
        filled = read_table(tmp_path / f"a.{suffix}")
        assert filled.notna().all().all()
        assert list(filled.columns) == list(data.columns)
        seen = data["alt"].notna()
        assert (filled["alt"][seen] == data["alt"][seen]).all()
        assert f"120 rows written to {tmp_path / f'a.{suffix}'}" in capsys.readouterr().err
    words = ("impute", home / "run", home / "data.csv", "--quiet")
    assert shell(*words, "--draws", 3, "--out", tmp_path / "d.csv") == 0
    assert read_table(tmp_path / "d.csv")["draw"].value_counts().to_dict() == {0: 120, 1: 120, 2: 120}
    assert shell(*words, "--interval", 0.9, "--probabilities", "--out", tmp_path / "i.csv") == 0
    wide = read_table(tmp_path / "i.csv")
    assert (wide["alt_lower"] <= wide["alt"]).all()
    assert np.allclose(wide["sex_p_f"] + wide["sex_p_m"], 1.0)
    assert capsys.readouterr().err == ""


def test_imputed_values_are_shifted_and_regressions_pooled(home, tmp_path, capsys):
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
    words = ("pool", tmp_path / "s.csv", "--formula", "alt ~ ast + sex")
    assert shell(*words, "--out", tmp_path / "p.csv") == 0
    text = capsys.readouterr()
    want = lacova.pool_regression(shifted, "alt ~ ast + sex")
    assert read_table(tmp_path / "p.csv")["coefficient"].tolist() == ["Intercept", "ast", "sex[T.m]"]
    assert text.out.split("\n")[2].split()[:3] == ["ast", *(short(v) for v in want.loc["ast"].iloc[:2])]
    assert "least squares on 3 completed tables of 120 rows; 95% intervals." in text.out
    assert shell(*words[:3], "alt ~ ast", "--where", "sex=f", "--confidence", 0.5, "--json") == 0
    want = lacova.pool_regression(shifted[shifted["sex"] == "f"], "alt ~ ast", confidence=0.5)
    assert json.loads(capsys.readouterr().out)["ast"] == pytest.approx(want.loc["ast"].to_dict())
    for wrong, message in (
        ((*shift, "--add", "alt"), "--add is 'alt'; expected COLUMN=AMOUNT"),
        ((*shift, "--add", "alt=f:1,m:2"), "'f:1,m:2' is no number; levels of a column need --by"),
        ((*shift, "--add", "alt=1", "--add", "alt=2"), "gives alt twice"),
        ((*shift, "--by", "sex", "--add", "alt=5"), "with --by sex expected COLUMN=LEVEL:AMOUNT"),
        ((*shift, "--by", "sex", "--add", "alt=f:5"), "give each of its levels an amount, 0 for none"),
        ((*shift, "--by", "arm", "--add", "alt=f:5"), "no column 'arm' in the completed table"),
        ((*words, "--where", "sex"), "--where is 'sex'; expected COLUMN=VALUE"),
        ((*words, "--where", "sez=f"), "no column 'sez' to choose rows by"),
        ((*words, "--where", "sex=x"), "no row has sex=x in"),
        ((*words[:1], home / "data.csv", *words[2:]), "no column 'draw' that numbers completed tables"),
    ):
        assert shell(*wrong) == 1
        assert message in capsys.readouterr().err


def test_levels_with_commas_and_numbers_have_amounts():
    from lacova.cli.pooling import _by_level

    table = pd.DataFrame({"dose": [0, 54], "arm": ["low, once", "b:c"]})
    assert _by_level(table, "dose", "0:0,54:-2", "") == {0: 0.0, 54: -2.0}
    assert _by_level(table, "arm", "low, once:1,b:c:-1e1", "") == {"low, once": 1.0, "b:c": -10.0}


def test_what_has_no_file_goes_to_stdout(home, capsys, tmp_path):
    assert shell("impute", home / "run", home / "data.csv", "--out", tmp_path / "a.csv", "--quiet") == 0
    assert shell("impute", home / "run", home / "data.csv") == 0
    text = capsys.readouterr()
    assert text.out == (tmp_path / "a.csv").read_text()
    assert text.err == ""


def test_predictions_stand_beside_their_covariates(home, tmp_path, capsys):
    new = pd.DataFrame({"id": ["p00", "new"], "day": [200.0, 10.0], "sex": [None, "f"], "site": ["a", "b"]})
    write_table(new, tmp_path / "x.csv")
    words = ("predict", home / "run", tmp_path / "x.csv", "--history", home / "data.csv", "--quiet")
    assert shell(*words, "--interval", 0.9, "--out", tmp_path / "y.csv") == 0
    found = read_table(tmp_path / "y.csv")
    assert list(found.columns)[:6] == ["id", "day", "sex", "site", "alt", "ast"]
    assert found["site"].tolist() == ["a", "b"]
    assert (found["alt_lower"] < found["alt_upper"]).all()
    model = lacova.load(home / "run" / "model.lacova")
    want = model.predict(new, visits(), interval=0.9)
    assert np.allclose(found["alt"], want["alt"], rtol=1e-12)
    assert shell(*words, "--draws", 2, "--out", tmp_path / "d.csv") == 0
    drawn = read_table(tmp_path / "d.csv")
    assert list(drawn.columns) == ["draw", "id", "day", "sex", "site", "alt", "ast"]
    assert drawn["draw"].tolist() == [0, 0, 1, 1]
    assert drawn["id"].tolist() == ["p00", "new"] * 2


def test_effects_and_what_if(home, tmp_path, capsys):
    model = lacova.load(home / "run" / "model.lacova")
    words = ("effects", home / "run", home / "data.csv", "--draws", 5)
    assert shell(*words, "--out", tmp_path / "e.csv") == 0
    text = capsys.readouterr()
    assert f"written to {tmp_path / 'e.csv'}" in text.err
    want = model.effects(visits(), draws=5)
    assert read_table(tmp_path / "e.csv")["mean"].to_numpy() == pytest.approx(want.rows["mean"].to_numpy(), rel=1e-9)
    assert text.out.split("\n")[1].split() == ["alt", *(f"{share:.3f}" for share in want.shares["alt"])]
    assert shell(*words, "--json") == 0
    assert text.out.rstrip().split("\n")[-2].split() == ["alt", *(f"{share:.3f}" for share in want.known["alt"])]
    printed = json.loads(capsys.readouterr().out)
    assert printed["noise"]["alt"] == pytest.approx(want.shares["alt"].iloc[-1])
    assert list(printed["known"]) == want.known["component"].tolist()
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


def test_filter_follows_the_visits(home, tmp_path, capsys):
    table = visits().dropna(subset="day")
    table.loc[table["id"] == "p01", "ast"] = np.nan
    write_table(table, tmp_path / "v.csv")
    words = ("filter", home / "run", tmp_path / "v.csv", "--draws", 20, "--interval", 0.5)
    assert shell(*words, "--out", tmp_path / "f.csv") == 0
    text = capsys.readouterr()
    assert f"{2 * len(table)} rows written to {tmp_path / 'f.csv'}" in text.err
    want = lacova.load(home / "run" / "model.lacova").filter(table, draws=20, interval=0.5)
    found = read_table(tmp_path / "f.csv")
    assert found["upper"].to_numpy() == pytest.approx(want["upper"].to_numpy(), rel=1e-9)
    seen = want[(want["measurement"] == "ast") & want["observed"].notna()]
    rmse = ((seen["mean"] - seen["observed"]) ** 2).mean() ** 0.5
    assert text.out.split("\n")[2].split() == ["ast", str(len(seen)), short(rmse), short(seen["inside"].mean())]
    assert "within the 50% interval" in text.out
    assert shell(*words, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert list(summary) == ["alt", "ast"]
    assert summary["ast"] == pytest.approx({"n": len(seen), "rmse": rmse, "inside": seen["inside"].mean()})


def test_filter_takes_tables_with_categories(tmp_path, capsys):
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
    found = read_table(tmp_path / "p.csv")
    assert found["grade_p_high"].to_numpy() == pytest.approx(want["grade_p_high"].to_numpy(), rel=1e-9)
    assert (found["grade_p_high"] + found["grade_p_low"]).to_numpy() == pytest.approx(1.0)
    capsys.readouterr()
    assert shell(*words, "--draws", 2) == 1
    assert "give --draws or --probabilities, not both" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("filter", "run", "data.csv"), "time column 'day' is missing in 15 row(s)"),
        (("filter", "run", "run"), "run is a folder or a large file"),
        (("whatif", "run", "data.csv", "--set", "sex=x"), "column 'sex' holds 'x', never seen in training"),
        (("whatif", "run", "data.csv", "--set", "sexx=f"), "Did you mean 'sex'?"),
        (("whatif", "run", "data.csv", "--set", "day=soon"), "column 'day' must be numeric, but holds 'soon'"),
        (("whatif", "run", "data.csv", "--set", "sex"), "--set is 'sex'; expected COVARIATE=VALUE"),
        (("whatif", "run", "run", "--set", "sex=f"), "run is a folder or a large file"),
        (("effects", "run", "data.csv", "--interval", 2), "interval must lie between 0 and 1"),
        (("effects", "run", "data.csv", "--out", "e.doc"), "e.doc"),
        (("effects", "plain", "data.csv"), "effects are those of a GP prior, but plain holds a CVAE"),
    ],
)  # fmt: skip
def test_questions_about_effects_that_have_no_answer(home, monkeypatch, capsys, words, message):
    monkeypatch.chdir(home)
    fit = ("fit", "data.csv", "--schema", "s.toml", "--model", "cvae", "--out", "plain", *QUICK, "--quiet", "--force")
    assert "plain" not in words or shell(*fit) == 0
    assert shell(*words) == 1
    text = capsys.readouterr()
    assert message in text.err
    assert text.out == ""
    assert text.err.count("\n") == 1


def test_values_are_read_as_the_column_holds_them():
    from lacova.inference.what_if import from_text

    levels = {"grade": (1.0, 2.0), "code": ("1", "a"), "sick": (False, True)}
    encoder = types.SimpleNamespace(levels=levels)
    assert [from_text(encoder, name, text) for name, text in
            (("grade", "2"), ("code", "1"), ("sick", "True"), ("day", "3"), ("day", "x"), ("grade", "9"))] == [
        2.0, "1", True, 3.0, "x", "9"]  # fmt: skip


def test_scores_and_descriptions_for_people_and_programs(home, capsys):
    assert shell("score", home / "run", home / "data.csv") == 0
    text = capsys.readouterr().out
    head, alt = text.split("\n")[:2]
    assert head.split() == ["entries", "sd", "nll", "rmse", "crps", "coverage50", "coverage90", "coverage95"]
    assert alt.split()[0] == "alt"
    assert float(alt.split()[2]) == pytest.approx(visits()["alt"].std(), rel=1e-3)
    assert all(len(number.strip("-0.").replace(".", "")) <= 4 for number in alt.split()[2:])
    assert shell("score", home / "run", home / "data.csv", "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert set(scores) == {"overall", "measurements"}
    assert set(scores["measurements"]) == {"alt", "ast"}
    assert scores["overall"] == lacova.load(home / "run" / "model.lacova").score(visits())
    assert shell("describe", home / "run") == 0
    text = capsys.readouterr().out
    assert "gp(day) + gp(day):cat(sex) + cat(id) + gp(day):cat(id)" in text
    assert shell("describe", home / "run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["model"] == "GPPriorVAE"


def test_long_numbers_are_shownshort():
    assert [short(value) for value in (1141.0752, 0.43681, 13862.5, -2e5)] == ["1141", "0.4368", "13862", "-200000"]
    assert short(float("nan")) == "nan"


def test_a_forgotten_instance_is_remarked_upon(home, tmp_path, capsys):
    words = ("schema", home / "data.csv", "--time", "day")
    assert shell(*words) == 0
    remark = "rows count as independent; if 'id' names the patient, add --instance id."
    assert remark in capsys.readouterr().err
    assert shell(*words, "--exclude", "id") == 0
    assert shell(*words, "--quiet") == 0
    assert shell(*words, "--instance", "id") == 0
    write_table(visits().drop_duplicates("id"), tmp_path / "once.csv")
    assert shell("schema", tmp_path / "once.csv") == 0
    assert capsys.readouterr().err == ""


def test_what_was_filled_and_what_was_not_looked_at(home, tmp_path, capsys):
    words = (home / "run", home / "data.csv", "--out", tmp_path / "a.csv")
    assert shell("impute", *words) == 0
    gaps = visits().isna().sum()
    want = f"Gaps filled: day {gaps.day}, sex {gaps.sex}, alt {gaps.alt}, ast {gaps.ast}.\n"
    assert capsys.readouterr().err.endswith(want)
    assert shell("impute", home / "run", tmp_path / "a.csv", "--out", tmp_path / "b.csv") == 0
    assert "Gaps filled: none, as there are none." in capsys.readouterr().err
    assert shell("predict", *words) == 0
    assert "(alt, ast) are predicted, not looked at; visits whose measurements should count go into --history" in (
        capsys.readouterr().err
    )
    write_table(visits()[["id", "day", "sex"]], tmp_path / "x.csv")
    assert shell("predict", home / "run", tmp_path / "x.csv", "--out", tmp_path / "y.csv") == 0
    assert "looked at" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("schema", "data.csv", "--time", "days"), "'sex', 'alt', 'ast'. Did you mean 'day'?"),
        (("schema", "data.csv", "--instance", "ID"), "Did you mean 'id'?"),
        (("fit", "data.csv", "--schema", "t.toml", "--out", "new"), "no file t.toml; `lacova schema data.csv --out t"),
        (("fit", "data.csv", "--schema", "typo.toml", "--out", "new"), "Did you mean 'alt'? Add them"),
        (("impute", "data.csv", "run"), "data.csv is a table; first name the folder that `lacova fit"),
        (("predict", "run", "x.csv", "--history", "other.csv"), "and their history together: static column"),
        (("predict", "run", "x.csv", "--history", "x.csv"), "history: column(s) 'alt', 'ast' are in"),
    ],
)  # fmt: skip
def test_natural_mistakes(home, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(home)
    text = (home / "s.toml").read_text(encoding="utf-8")
    (home / "typo.toml").write_text(text.replace("alt = ", "allt = "), encoding="utf-8")
    write_table(pd.DataFrame({"id": ["p01"], "day": [200.0], "sex": ["f"]}), home / "x.csv")
    write_table(visits(missing=0).replace({"sex": {"f": "m"}}), home / "other.csv")
    assert shell(*words) == 1
    assert message in capsys.readouterr().err


def predictions(run):
    return lacova.load(run / "model.lacova").predict(visits())


def test_fit_reports_and_seeds_reproduce(home, tmp_path, capsys):
    words = ["fit", home / "data.csv", "--schema", home / "s.toml", *QUICK]
    assert shell(*words, "--out", tmp_path / "a", "--json") == 0
    text = capsys.readouterr()
    assert json.loads(text.out)["epoch"] == 2.0
    assert "Learning a GPPriorVAE from 108 rows, 12 more to stop early on." in text.err
    first = predictions(home / "run")
    assert predictions(tmp_path / "a").equals(first)
    assert shell(*words, "--out", tmp_path / "a", "--seed", 1) == 1
    assert "add --force" in capsys.readouterr().err
    assert shell(*words, "--out", tmp_path / "a", "--seed", 1, "--force", "--quiet") == 0
    assert capsys.readouterr().err == ""
    assert not predictions(tmp_path / "a").equals(first)
    assert os.listdir(tmp_path) == ["a"]


def test_models_and_validation_can_be_chosen(home, tmp_path, capsys):
    words = ["fit", home / "data.csv", "--schema", home / "s.toml", *QUICK, "--quiet"]
    assert shell(*words, "--model", "cvae", "--out", tmp_path / "a", "--validation", home / "data.csv") == 0
    assert type(lacova.load(tmp_path / "a" / "model.lacova")) is lacova.CVAE
    assert shell(*words, "--prior", "gp(day) + cat(sex)", "--out", tmp_path / "b", "--validation-share", 0) == 0
    loaded = lacova.load(tmp_path / "b" / "model.lacova")
    assert loaded.formula == "gp(day) + cat(sex)"
    assert "validation" not in loaded.training
    assert shell(*words, "--model", "cvae", "--prior", "gp(day)", "--out", tmp_path / "c") == 1
    assert "add --model gp" in capsys.readouterr().err
    assert shell(*words, "--validation-share", 1.5, "--out", tmp_path / "c") == 1
    assert "expected a share" in capsys.readouterr().err


def test_any_model_and_any_of_its_settings_can_be_named(home, tmp_path, capsys):
    words = ["fit", home / "data.csv", "--schema", home / "s.toml", *QUICK, "--quiet", "--out", tmp_path / "a"]
    assert shell(*words, "--set", "scaling=normal", "--set", "patient-effects=false", "--set", "importance=2") == 0
    loaded = lacova.load(tmp_path / "a" / "model.lacova")
    assert type(loaded) is lacova.GPPriorVAE
    assert (loaded.scaling, loaded.patient_effects, loaded._options.importance) == ("normal", False, 2)
    assert shell(*words, "--force", "--model", "lvae") == 0
    assert type(lacova.load(tmp_path / "a" / "model.lacova")) is lacova.LVAE
    for wrong, said in (
        (["--set", "scaling"], "--set is 'scaling'; expected NAME=VALUE"),
        (["--set", "scaling=odd"], "scaling is 'odd'"), (["--set", "scale=2"], "GPPriorVAE: a setting is unknown"),
        (["--set", "samples=2", "--set", "samples=3"], "--set gives samples twice"),
        (["--set", "latent_dim=2"], "says again what --latent-dim says"),
        (["--set", "max_epochs=2"], "says again what --epochs says"), (["--model", "xvae"], "no model 'xvae'"),
    ):  # fmt: skip
        assert shell(*words, "--force", *wrong) == 1
        assert said in capsys.readouterr().err


def test_a_fit_interrupted_before_or_after_training(home, tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    words = ("fit", home / "data.csv", "--schema", home / "s.toml", "--out", tmp_path / "a", *QUICK)
    with monkeypatch.context() as patch:
        patch.setattr(lacova.GPPriorVAE, "_assemble", interrupt)
        assert shell(*words) == 130
    assert "interrupted; nothing was written" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
    with monkeypatch.context() as patch:
        patch.setattr(lacova.GPPriorVAE, "save", interrupt)
        assert shell(*words, "--checkpoint-every", 0) == 130
        assert "interrupted; nothing was written" in capsys.readouterr().err
        assert os.listdir(tmp_path) == []
        assert shell(*words) == 130
    assert "no model was written. The same command with --resume goes on." in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["a.checkpoint"]  # training is not lost
    assert shell(*words, "--resume") == 0
    assert predictions(tmp_path / "a").equals(predictions(home / "run"))
    assert os.listdir(tmp_path) == ["a"]


def test_the_module_is_the_same_command(home):
    words = [sys.executable, "-m", "lacova"]
    assert subprocess.run([*words, "--version"], capture_output=True, text=True, check=True).stdout == "0.1.0\n"
    text = subprocess.run([*words, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(name in text for name in ("schema", "fit", "impute", "predict", "score", "describe", "demo"))
    done = subprocess.run([*words, "score", home / "none", home / "data.csv"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("lacova: there is no model in")
