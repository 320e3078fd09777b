"""The command `lacova study`."""

import json
import os
from pathlib import Path

import pytest

import lacova
from lacova.data.io.files import read_table
from lacova.datasets import sdtm
from tests.datasets.sdtm.cases import domains, many, shell, write


def test_the_command_writes_table_and_schema_and_prints_the_steps(tmp_path, capsys, plain):
    words = ("study", tmp_path / "sdtm", "--out", tmp_path / "s.parquet", "--schema", tmp_path / "s.toml")
    assert shell(*words) == 0
    text = capsys.readouterr()
    assert text.out.startswith(plain.describe())
    assert f"lacova fit {tmp_path / 's.parquet'} --schema {tmp_path / 's.toml'} --out RUN" in text.out
    assert text.err == ""
    assert read_table(tmp_path / "s.parquet").equals(plain.table.astype(read_table(tmp_path / "s.parquet").dtypes))
    assert lacova.Schema.from_toml(tmp_path / "s.toml") == plain.schema
    assert shell(*words, "--quiet") == 0
    assert capsys.readouterr().out == ""
    assert shell(*words, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["steps"]["raw"] == {"patients": 4, "rows": 20, "tests": 4, "observed": 1.0}
    assert printed["notes"] == list(plain.notes)


def test_parts_and_scales_have_files_that_a_model_can_be_fitted_to(tmp_path, capsys):
    write(tmp_path / "sdtm", many())
    out = ("--out", tmp_path / "s.parquet", "--schema", tmp_path / "s.toml")
    assert shell(
        "study", tmp_path / "sdtm", *out, "--scaling", "minmax", "--validation-share", 0.1, "--test-share", 0.1,
        "--arm", "A", "--exclude", "PH", "--events", 1, "--medications", 1, "--quiet",
    ) == 0  # fmt: skip
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "s.scales.csv", "s.test.parquet", "s.toml", "s.train.parquet", "s.validation.parquet", "sdtm",
    ]  # fmt: skip
    assert read_table(tmp_path / "s.scales.csv")["measurement"].tolist() == ["ALT", "AST", "SYSBP"]
    train, validation = tmp_path / "s.train.parquet", tmp_path / "s.validation.parquet"
    words = ("fit", train, "--validation", validation, "--schema", tmp_path / "s.toml", "--out", tmp_path / "run")
    with pytest.warns(UserWarning, match="constant"):
        code = shell(*words, "--epochs", 1, "--latent-dim", 1, "--device", "cpu", "--quiet")
    assert code == 0


def test_the_shell_has_the_defaults_of_the_function():
    import inspect

    from lacova.cli.study import study

    here = {name: parameter.default for name, parameter in inspect.signature(study).parameters.items()}
    for name, parameter in inspect.signature(sdtm.study).parameters.items():
        if name != "folder":
            assert (here[name] or None) == (parameter.default or None), name


def broken(tables, name, **changes):
    return {**tables, name: tables[name].assign(**changes)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "VS"}, "there is no domain VS in {}; expected vs with one of"),
        (lambda t: {**t, "LB": t["LB"].drop(columns="LBSTRESN").assign(LBSTRES=1)},
         "lb.csv has no column LBSTRESN, which the domain LB needs. Did you mean 'LBSTRES"),
        (lambda t: broken(t, "AE", AESTDTC="01/02/2014"), "AESTDTC has the date '01/02/2014'; expected ISO 8601"),
        (lambda t: broken(t, "CM", CMENDTC="2014-02-31"), "CMENDTC has the date '2014-02-31'; expected ISO 8601"),
        (lambda t: broken(t, "DM", RFSTDTC="2014-01"), "RFSTDTC of DM is '2014-01' for a patient; days need the whole"),
        (lambda t: broken(t, "DM", RFSTDTC=None), "no patient of DM has an arm and a first dose"),
        (lambda t: broken(t, "DM", USUBJID="001"), "DM has more or less than one row for the patient '001'"),
        (lambda t: broken(t, "LB", LBSTRESN="high"), "has 'high' in the column LBSTRESN; expected numbers there"),
        (lambda t: broken(t, "DM", USUBJID=list("uvwxyz")), "LB and VS have no result that is a number"),
        (lambda t: broken(broken(t, "LB", LBDY=None, LBDTC=None), "VS", VSDY=None), "no result has a day (LBDY, VSDY)"),
        (lambda t: {**t, "AE": t["AE"].iloc[:0]}, "ae.csv has a header but no rows."),
        (lambda t: {**t, "VS": t["VS"].iloc[:5], "LB": t["LB"].iloc[:8]}, "no patient has 5 visits left"),
    ],
)  # fmt: skip
def test_an_error_is_one_sentence_and_nothing_is_written(tmp_path, capsys, change, words):
    folder = write(tmp_path / "sdtm", change(domains()))
    assert shell("study", folder, "--out", tmp_path / "s.parquet", "--schema", tmp_path / "s.toml") == 1
    text = capsys.readouterr()
    assert words.format(folder) in text.err
    assert len(text.err.strip().split("\n")) == 1
    assert text.out == ""
    assert os.listdir(tmp_path) == ["sdtm"]


def test_invalid_folders_and_files_are_refused(tmp_path, capsys):
    folder, out = (
        write(tmp_path / "sdtm", domains()),
        ("--out", tmp_path / "s.parquet", "--schema", tmp_path / "s.toml"),
    )
    for words, message in (
        (("nowhere", *out), "nowhere is not there; expected a folder with the SDTM domains"),
        ((folder / "dm.csv", *out), "dm.csv is a file; expected a folder"),
        ((folder, *out[:3], tmp_path / "none" / "s.toml"), "there is no folder"),
        ((folder, *out[:3], tmp_path), "is a folder; name a file to write"),
        ((folder, "--out", tmp_path / "a.csv", "--schema", tmp_path / "." / "a.csv"), "name a file for each"),
        ((folder, *out[:3], folder / "s.toml"), "all of which is read; name a file elsewhere"),
        ((folder, "--out", tmp_path / "s.txt", *out[2:]), "ends in '.txt'; expected one of"),
    ):
        assert shell("study", *words) == 1
        assert message in capsys.readouterr().err
    (folder / "DM.xpt").write_bytes(b"nothing of the kind" * 20)
    assert shell("study", folder, *out) == 1
    assert "has the domain DM more than once, as DM.xpt and dm.csv; keep one" in capsys.readouterr().err
    (folder / "dm.csv").unlink()
    assert shell("study", folder, *out) == 1
    assert "DM.xpt is no SAS file: Header record is not an XPORT file." in capsys.readouterr().err
    (folder / "DM.xpt").rename(folder / "dm.parquet")
    assert shell("study", folder, *out) == 1
    assert "dm.parquet is no Parquet file" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["sdtm"]


def test_all_files_are_written_or_none(tmp_path, monkeypatch, capsys):
    folder = write(tmp_path / "sdtm", domains())

    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)  # the schema comes after the table
    assert shell("study", folder, "--out", tmp_path / "s.parquet", "--schema", tmp_path / "s.toml") == 1
    assert "s.toml cannot be written: No space left on device." in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["sdtm"]
