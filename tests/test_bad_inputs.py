"""Everything that may be wrong with a table, a file or an option, through the API and the command line.

The same table is in docs/bad-inputs.md: run this file as a program to write it.
"""

import errno
import gzip
import os
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import lacova
from lacova.cli import main
from lacova.data.io.files import read_table, write_table

SCHEMA = lacova.Schema(
    ["alt", "ast"], {"age": "continuous", "sex": "categorical", "drug": "categorical"}, instance="id", time="day",
    static=["age", "sex"],
)  # fmt: skip
PAGE = Path(__file__).parents[1] / "docs" / "bad-inputs.md"
SMALL = {"latent_dim": 1, "networks": lacova.Dense((4,), (4,)), "inducing": 5}


def visits(patients=6, count=3, seed=0):
    rng = np.random.default_rng(seed)
    n = patients * count
    patient = np.repeat(np.arange(patients), count)
    return pd.DataFrame({
        "id": [f"p{p}" for p in patient],
        "day": np.tile(np.arange(count) * 10.0, patients) + rng.normal(size=n).round(1),
        "age": (40.0 + patient),
        "sex": np.where(patient % 2, "f", "m"),
        "drug": np.resize(["none", "low", "high"], n),
        "alt": rng.normal(30.0, 5.0, n).round(1),
        "ast": rng.normal(25.0, 4.0, n).round(1),
    })  # fmt: skip


def put(column, value, row=0):
    def damage(table):
        table = table.astype({column: object}) if isinstance(value, str) else table.copy()
        table.loc[row, column] = value
        return table

    return damage


@dataclass(frozen=True)
class Case:
    """One thing that may be wrong.

    Attributes:
        what: a description in words.
        damage: a function that damages the table.
        outcome: None if the input is handled, else a pattern of the message.
        says: how the input is handled, or what the message says.
        training: whether the table is used for training, or given to a trained model.
        file: the suffix of the file for the command line.
        warns: a pattern of a warning.
        levels: that the schema declares.
        unseen: what becomes of unseen levels, if that is said.
    """

    what: str
    damage: Callable[[pd.DataFrame], pd.DataFrame]
    outcome: str | None
    says: str
    training: bool = True
    file: str = "parquet"
    warns: str | None = None
    levels: dict | None = None
    unseen: str | None = None


def same(table):
    return table


TABLES = [
    Case("a column of the schema is not in the table", lambda t: t.drop(columns="ast"), "'ast' are in the schema but not in the table", "names the column and the columns of the table"),
    Case("text in a numeric column", put("alt", "high"), "'alt' must be numeric, but holds 'high'", "names the column and the values", file="csv"),
    Case("numbers as text", lambda t: t.assign(alt=t["alt"].astype(str)), None, "read as numbers"),
    Case("decimal commas", lambda t: t.assign(alt=t["alt"].astype(str).str.replace(".", ",")), "'alt' must be numeric, but holds '3", "names the column and the values"),
    Case("dates as text in the time column", lambda t: t.assign(day="2024-05-01"), "'day' must be numeric, but holds '2024-05-01'", "names the column and the values"),
    Case("dates in the time column", lambda t: t.assign(day=pd.Timestamp("2024-05-01")), "'day' must be numeric, but holds datetime64", "says to count days"),
    Case("infinite values", put("alt", np.inf), "'alt' holds 1 infinite value", "names the column"),
    Case("infinite covariates", put("age", -np.inf), "'age' holds 1 infinite value", "names the column"),
    Case("an instance is missing", put("id", None), "instance column 'id' is missing in 1 row", "says to give a label or drop the row"),
    Case("one row per patient", lambda t: t.drop_duplicates("id"), None, "fitted"),
    Case("one patient", lambda t: t[t["id"] == "p0"], None, "fitted", warns="constant in training"),
    Case("one row", lambda t: t.head(1), None, "fitted, poorly", warns="constant in training"),
    Case("all measurements missing in a row", lambda t: t.assign(alt=t["alt"].mask(t.index == 1), ast=t["ast"].mask(t.index == 1)), None, "the row is predicted from its covariates"),
    Case("all covariates missing in a row", lambda t: t.mask(pd.DataFrame({c: (t.index == 1) & (c in ("day", "drug")) for c in t})), None, "integrated out"),
    Case("all measurements missing in a patient", lambda t: t.assign(alt=t["alt"].mask(t["id"] == "p1"), ast=t["ast"].mask(t["id"] == "p1")), None, "predicted"),
    Case("a measurement is empty in training", lambda t: t.assign(alt=np.nan), "'alt' have no observed value in training", "says to remove it from the schema"),
    Case("a covariate is empty in training", lambda t: t.assign(age=np.nan), "'age' have no observed value in training", "says to remove it from the schema"),
    Case("a category is empty in training", lambda t: t.assign(drug=pd.Series([None] * len(t), dtype=object)), "'drug' have no observed value in training", "says to remove it from the schema"),
    Case("duplicated index", lambda t: t.set_index(pd.Index([0] * len(t))), None, "the index is returned unchanged"),
    Case("two rows of one patient at one time", lambda t: pd.concat([t, t.head(2)], ignore_index=True), None, "both count"),
    Case("values of 1e12", lambda t: t.assign(alt=t["alt"] * 1e12), None, "scaled"),
    Case("values of 1e-12", lambda t: t.assign(alt=t["alt"] * 1e-12), None, "scaled"),
    Case("negative values", lambda t: t.assign(alt=-t["alt"]), None, "accepted"),
    Case("booleans as a category", lambda t: t.assign(drug=t["alt"] > 30.0), None, "two levels"),
    Case("booleans as a measurement", lambda t: t.assign(alt=t["alt"] > 30.0), None, "0 and 1"),
    Case("nullable integers", lambda t: t.assign(alt=t["alt"].round().astype("Int64").mask(t.index == 2)), None, "imputed values are whole numbers"),
    Case("integers as a category", lambda t: t.assign(drug=t["alt"].round().astype(int) % 3), None, "levels are integers"),
    Case("pandas categories with unused levels", lambda t: t.assign(drug=pd.Categorical(t["drug"], ["none", "low", "high", "never"])), None, "all are levels; the dtype is preserved"),
    Case("declared levels that do not occur", same, None, "levels of small probability", levels={"drug": ["none", "low", "high", "never"]}),
    Case("a level that the schema does not declare", same, "'drug' holds 'high', but the schema declares the levels 'none', 'low'", "names the level, the column and the declared levels", levels={"drug": ["none", "low"]}),
    Case("a category with one level", lambda t: t.assign(drug="none"), None, "carries no information"),
    Case("a category with a different level in each row", lambda t: t.assign(drug=[f"d{k}" for k in range(len(t))]), None, "fitted, poorly"),
    Case("a constant measurement", lambda t: t.assign(alt=3.0), None, "a warning", warns="measurement column\\(s\\) 'alt' are constant"),
    Case("a constant covariate", lambda t: t.assign(age=50.0), None, "a warning", warns="covariate column\\(s\\) 'age' are constant"),
    Case("a static column changes within a patient", put("sex", "f", 1), "static column 'sex' takes more than one value within instance", "names the patients"),
    Case("a static value is given at one visit only", lambda t: t.assign(age=t["age"].where(~t["id"].duplicated())), None, "used at all visits"),
    Case("columns outside the schema", lambda t: t.assign(note="x"), None, "ignored and returned"),
    Case("no rows", lambda t: t.head(0), "no rows", "says so"),
    Case("a category never seen in training", put("drug", "huge"), None, "treated as missing, with a warning; it is returned unchanged", training=False, warns="1 entry holds a level never seen in training, treated as missing: 1 of 'drug' \\('huge'\\)"),
    Case("a category never seen in training, with `unseen=\"missing\"`", put("drug", "huge"), None, "the same, without a warning", training=False, unseen="missing"),
    Case("a category never seen in training, with `unseen=\"error\"`", put("drug", "huge"), "'drug' holds 'huge', never seen in training; known levels are", "lists the known levels", training=False, unseen="error"),
    Case("text in a numeric column of new data", put("age", "old"), "'age' must be numeric, but holds 'old'", "names the column and the values", training=False, file="csv"),
    Case("infinite values in new data", put("ast", np.inf), "'ast' holds 1 infinite value", "names the column", training=False),
    Case("a measurement is empty in new data", lambda t: t.assign(alt=np.nan), None, "imputed", training=False),
    Case("a covariate is empty in new data", lambda t: t.assign(age=np.nan, drug=pd.Series([None] * len(t), dtype=object)), None, "imputed", training=False),
    Case("a column is not in new data", lambda t: t.drop(columns="age"), "'age' are in the schema but not in the table", "says to add it as an empty column", training=False),
    Case("patients never seen in training", lambda t: t.assign(id="new " + t["id"]), None, "imputed", training=False),
    Case("one row of new data", lambda t: t.head(1), None, "imputed", training=False),
    Case("no measurements at all in new data", lambda t: t.assign(alt=np.nan, ast=np.nan), None, "predicted from the covariates", training=False),
    Case("nothing missing", same, None, "the table is returned unchanged", training=False),
]  # fmt: skip


def model(levels=None):
    return lacova.GPPriorVAE(replace(SCHEMA, levels=levels), **SMALL)


@pytest.fixture(scope="module")
def fitted():
    return model().fit(gappy(visits()), max_epochs=1)


def gappy(table):
    rng = np.random.default_rng(1)
    holes = pd.DataFrame(rng.random(table.shape) < 0.15, columns=table.columns, index=table.index)
    holes["id"] = False
    holes[["age", "sex"]] = holes[["age", "sex"]].to_numpy()[::3].repeat(3, 0)[: len(table)]
    return table.mask(holes)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model fitted from the shell."""
    folder = tmp_path_factory.mktemp("run")
    write_table(gappy(visits()), folder / "train.csv")
    SCHEMA.to_toml(folder / "schema.toml")
    code = shell("fit", folder / "train.csv", "--schema", folder / "schema.toml", "--out", folder / "run", *QUICK)
    assert code == 0
    return folder / "run"


QUICK = ("--epochs", 1, "--latent-dim", 1, "--quiet", "--device", "cpu")


def shell(*words):
    return main([str(word) for word in words])


def one_sentence(text):
    """Assert that a text is a single sentence without a traceback."""
    lines = [line for line in text.strip().split("\n") if not re.match(r"\S+\.py:\d+: \w*Warning|  ", line)]
    assert len(lines) == 1, text
    assert lines[0].startswith("lacova: ")
    assert lines[0].endswith(".")


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case.what)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tables_through_the_api(case, fitted, monkeypatch):
    table = case.damage(visits())
    monkeypatch.setattr(fitted, "unseen", case.unseen or "warn")
    if case.outcome is not None:
        with pytest.raises(lacova.DataError, match=case.outcome):
            model(case.levels).fit(table, max_epochs=1) if case.training else fitted.impute(table)
        return
    with warnings.catch_warnings(record=True, action="always") as told:
        learner = model(case.levels).fit(table, max_epochs=1) if case.training else fitted
        filled = learner.impute(table)
    assert case.warns is None or any(re.search(case.warns, str(warning.message)) for warning in told)
    assert case.warns is not None or not any(issubclass(w.category, lacova.UnseenLevelWarning) for w in told)
    assert filled.index.equals(table.index)
    assert list(filled.columns) == list(table.columns)
    assert filled[list(SCHEMA.columns)].notna().all().all()
    seen = table.notna()
    assert filled.where(seen).astype(object).equals(table.where(seen).astype(object)) or case.what.startswith(
        "a static"
    )
    predicted = learner.predict(table.drop(columns=list(SCHEMA.measurements)))
    assert np.isfinite(predicted.to_numpy()).all()


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case.what)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tables_through_the_command_line(case, run, tmp_path, capsys):
    data, out = tmp_path / f"data.{case.file}", tmp_path / "out.csv"
    write_table(case.damage(visits()), data) if case.file == "csv" else case.damage(visits()).to_parquet(data)
    before = sorted(os.listdir(tmp_path))
    if case.training:
        replace(SCHEMA, levels=case.levels).to_toml(tmp_path / "schema.toml")
        code = shell("fit", data, "--schema", tmp_path / "schema.toml", "--out", tmp_path / "fit", *QUICK)
        before = sorted([*before, "schema.toml"])
        model_of = tmp_path / "fit"
    else:
        code, model_of = 0, run
    if code == 0:
        words = () if case.unseen is None else ("--unseen", case.unseen)
        code = shell("impute", model_of, data, "--out", out, "--quiet", "--device", "cpu", *words)
    text = capsys.readouterr()
    if case.outcome is None:
        assert code == 0, text.err
        if not case.training:
            assert (case.warns is None) == (text.err == "")
            assert case.warns is None or re.match(f"lacova: {case.warns}", text.err)
        assert out.exists()
        assert read_table(out)[list(SCHEMA.columns)].notna().all().all()
    else:
        assert code == 1
        one_sentence(text.err)
        assert re.search(case.outcome, text.err)
        assert sorted(os.listdir(tmp_path)) == before


FILES = [
    ("an empty file", "a.csv", b"", "is empty"),
    ("a header and no rows", "a.csv", b"id,day\n", "has a header but no rows"),
    ("another delimiter", "a.csv", b"id;day\np1;3\n", "separated by semicolons"),
    ("lines of different lengths", "a.csv", b"id,day\np1,3\np1,3,4\n", "cannot be read as CSV"),
    ("another encoding", "a.csv", "id,größe\n1,2\n".encode("latin-1"), "is not text in UTF-8"),
    ("a column twice", "a.csv", b"id,day,day\np1,3,4\n", "more than one column named 'day'"),
    ("an invalid Parquet file", "a.parquet", b"PAR1 and more", "is no Parquet file"),
    ("another kind of file", "a.xlsx", b"PK", "expected one of .csv, .csv.gz, .parquet"),
    ("a compressed file that is cut off", "a.csv.gz", gzip.compress(b"id,day\np1,3\n" * 99)[:40], "is damaged"),
    ("no such file", "a.csv", None, "there is no file"),
]


@pytest.mark.parametrize(("what", "name", "content", "message"), FILES, ids=[f[0] for f in FILES])
def test_files(what, name, content, message, run, tmp_path, capsys):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(lacova.DataError, match=message):
        read_table(path)
    SCHEMA.to_toml(tmp_path / "schema.toml")
    before = sorted(os.listdir(tmp_path))
    for words in (
        ("schema", path),
        ("fit", path, "--schema", tmp_path / "schema.toml", "--out", tmp_path / "fit", *QUICK),
        ("impute", run, path, "--out", tmp_path / "out.csv"),
        ("predict", run, path, "--out", tmp_path / "out.csv"),
        ("score", run, path),
    ):
        assert shell(*words) == 1
        text = capsys.readouterr()
        one_sentence(text.err)
        assert re.search(message, text.err)
        assert text.out == ""
    assert sorted(os.listdir(tmp_path)) == before


OPTIONS = [
    ("zero draws", lambda m, t: m.impute(t, draws=0), ("impute", "--draws", 0), "draws must be a whole number of at least 1, got 0"),
    ("negative draws", lambda m, t: m.sample(t, draws=-1), ("predict", "--draws", -1), "draws must be a whole number of at least 1, got -1"),
    ("more draws than the memory holds", lambda m, t: m.impute(t, draws=10**15), ("impute", "--draws", 10**15), "GB; ask for fewer draws"),
    ("an interval of 1.5", lambda m, t: m.predict(t, interval=1.5), ("predict", "--interval", 1.5), "interval must lie between 0 and 1"),
    ("draws and an interval", lambda m, t: m.impute(t, draws=2, interval=0.9), ("impute", "--draws", 2, "--interval", 0.9), "draws or .*interval, not both"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "call", "words", "message"), OPTIONS, ids=[o[0] for o in OPTIONS])
def test_options(what, call, words, message, fitted, run, tmp_path, capsys):
    with pytest.raises(ValueError, match=message):
        call(fitted, visits())
    write_table(visits(), tmp_path / "data.csv")
    assert shell(words[0], run, tmp_path / "data.csv", *words[1:], "--out", tmp_path / "out.csv") == 1
    text = capsys.readouterr()
    one_sentence(text.err)
    assert re.search(message, text.err)
    assert os.listdir(tmp_path) == ["data.csv"]


SETTINGS = [
    ("no epochs", lambda: model().fit(visits(), max_epochs=0), ("--epochs", 0), "max_epochs must be a whole number of at least 1"),
    ("no latent dimension", lambda: lacova.GPPriorVAE(SCHEMA, latent_dim=0), ("--latent-dim", 0), "latent_dim must be a whole number of at least 1"),
    ("a formula with an unknown column", lambda: lacova.GPPriorVAE(SCHEMA, prior="gp(week)"), ("--prior", "gp(week)"), "unknown column 'week' in term 'gp\\(week\\)'"),
    ("a formula with an unknown kernel", lambda: lacova.GPPriorVAE(SCHEMA, prior="magic(day)"), ("--prior", "magic(day)"), "unknown kernel 'magic'"),
    ("an invalid formula", lambda: lacova.GPPriorVAE(SCHEMA, prior="gp(day"), ("--prior", "gp(day"), "cannot read the formula"),
    ("an unknown treatment of gaps", lambda: lacova.CVAE(SCHEMA, covariates="magic"), ("--covariates", "magic"), "is 'magic'; expected one of joint"),
    ("an unknown device", lambda: model().fit(visits(), device="abacus"), ("--device", "abacus"), "device is 'abacus'"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "call", "words", "message"), SETTINGS, ids=[s[0] for s in SETTINGS])
def test_settings(what, call, words, message, tmp_path, capsys):
    with pytest.raises(ValueError, match=message):
        call()
    write_table(visits(), tmp_path / "data.csv")
    SCHEMA.to_toml(tmp_path / "schema.toml")
    command = ["fit", tmp_path / "data.csv", "--schema", tmp_path / "schema.toml", "--out", tmp_path / "run", *QUICK]
    assert shell(*command, *words) == 1
    text = capsys.readouterr()
    one_sentence(text.err)
    assert re.search(message, text.err)
    assert sorted(os.listdir(tmp_path)) == ["data.csv", "schema.toml"]


SCHEMAS = [
    ("invalid TOML", "instance = [", "schema.toml"),
    ("an unknown word in the schema", 'colour = "red"\n[measurements]\nalt = {}\n', "colour"),
    (
        "a column with two roles",
        'instance = "alt"\n[measurements]\nalt = {}\n[covariates]\nage = {kind = "continuous"}\n',
        "one role",
    ),
    ("no measurements", "[measurements]\n", "measurements is empty"),
]


@pytest.mark.parametrize(("what", "text", "message"), SCHEMAS, ids=[s[0] for s in SCHEMAS])
def test_schemas(what, text, message, tmp_path, capsys):
    write_table(visits(), tmp_path / "data.csv")
    path = tmp_path / "schema.toml"
    path.write_text(text)
    with pytest.raises(lacova.SchemaError, match=message):
        lacova.Schema.from_toml(path)
    assert shell("fit", tmp_path / "data.csv", "--schema", path, "--out", tmp_path / "run", *QUICK) == 1
    text = capsys.readouterr().err
    one_sentence(text)
    assert re.search(message, text)


def test_a_folder_that_is_not_there_and_one_that_holds_other_things(run, tmp_path, capsys):
    write_table(visits(), tmp_path / "data.csv")
    SCHEMA.to_toml(tmp_path / "schema.toml")
    for out, message in (
        (tmp_path / "none" / "run", "there is no folder"),
        (tmp_path, "holds other things"),
        (run, "there is a model in"),
        (tmp_path / "data.csv", "is a file; --out names a folder"),
    ):
        assert shell("fit", tmp_path / "data.csv", "--schema", tmp_path / "schema.toml", "--out", out, *QUICK) == 1
        text = capsys.readouterr().err
        one_sentence(text)
        assert re.search(message, text)
    for out, message in (
        (tmp_path / "none" / "a.csv", "there is no folder"),
        (tmp_path, "expected one of .csv"),
        (tmp_path / "a.txt", "expected one of .csv"),
        (tmp_path / "data.csv", "the same file as DATA, which it would replace"),
    ):
        assert shell("impute", run, tmp_path / "data.csv", "--out", out) == 1
        text = capsys.readouterr().err
        one_sentence(text)
        assert re.search(message, text)
    assert sorted(os.listdir(tmp_path)) == ["data.csv", "schema.toml"]


@pytest.mark.parametrize("command", ["fit", "impute"])
def test_a_full_disk(command, run, tmp_path, capsys, monkeypatch):
    write_table(visits(), tmp_path / "data.csv")
    SCHEMA.to_toml(tmp_path / "schema.toml")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    if command == "fit":
        words = ("--schema", tmp_path / "schema.toml", "--out", tmp_path / "run", *QUICK)
        code = shell("fit", tmp_path / "data.csv", *words, "--checkpoint-every", 0)  # a checkpoint would only warn
    else:
        code = shell("impute", run, tmp_path / "data.csv", "--out", tmp_path / "out.csv", "--quiet")
    assert code == 1
    text = capsys.readouterr().err
    one_sentence(text)
    assert "No space left on device" in text
    assert sorted(os.listdir(tmp_path)) == ["data.csv", "schema.toml"]


def test_damaged_models(run, tmp_path, capsys):
    write_table(visits(), tmp_path / "data.csv")
    intact = (run / "model.lacova").read_bytes()
    rng = np.random.default_rng(0)
    damaged = {f"truncated at {k}": intact[:k] for k in [0, 1, 7, 8, 9, *rng.integers(10, len(intact), 10)]}
    damaged |= {"foreign": b"id,day\n1,2\n" * 50, "zeros": bytes(1000)}
    for what, content in damaged.items():
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "model.lacova").write_bytes(content)
        with pytest.raises(lacova.StorageError):
            lacova.load(folder / "model.lacova")
        assert shell("impute", folder, tmp_path / "data.csv", "--out", tmp_path / "out.csv") == 1, what
        one_sentence(capsys.readouterr().err)
        shutil.rmtree(folder)
    assert shell("describe", tmp_path) == 1
    assert "there is no model in" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["data.csv"]


def test_bad_words_on_the_command_line_are_not_bad_data(run, capsys):
    for words in (["impute"], ["magic"], ["impute", run, "a.csv", "--draws", "many"], ["score", run]):
        assert shell(*words) == 2
        assert "Traceback" not in capsys.readouterr().err


def page():
    """docs/bad-inputs.md."""
    lines = [
        "# What happens to bad input", "",
        "Every line of this table is a test, through the Python interface and through the command line.", "",
        "In Python, refused input raises `lacova.DataError`, `SchemaError`, `FormulaError`, `StorageError` or `ValueError`. The",
        "command prints the same sentence to stderr and exits with code 1, or with code 2 if the command itself cannot be parsed.",
        "It leaves nothing half-written.", "",
        "| input | outcome |", "|---|---|",
    ]  # fmt: skip
    for case in TABLES:
        lines.append(f"| {case.what} | {'refused: ' if case.outcome else ''}{case.says} |")
    for what, _, _, message in FILES:
        lines.append(f"| {what} | refused: “{plain(message)}” |")
    for what, _, _, message in (*OPTIONS, *SETTINGS):
        lines.append(f"| {what} | refused: “{plain(message)}” |")
    for what, _, message in SCHEMAS:
        lines.append(f"| {what} | refused: “{plain(message)}” |")
    for what in (
        "an output folder that does not exist, or an output of another kind",
        "an output that is one of the inputs, by whatever name or link",
        "a folder for the model that holds other things, or another model",
        "a full disk",
        "a model file that is truncated, damaged, foreign, or of a newer version",
    ):
        lines.append(f"| {what} | refused; nothing is left behind |")
    return "\n".join(lines) + "\n"


def plain(pattern):
    return pattern.replace("\\", "").replace(".*", "… ")


def test_the_page_says_the_same():
    assert PAGE.read_text() == page()
    assert page().count("\n| ") > 40


if __name__ == "__main__":
    PAGE.write_text(page())
