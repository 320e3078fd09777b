"""No command replaces a file that it reads, by whatever spelling or link it is named."""

import inspect
import os
import shutil
from pathlib import Path
from typing import get_type_hints

import pytest

from lacova.cli import COMMANDS
from lacova.cli.paths import RUN_WRITTEN, WRITTEN
from lacova.data.io.files import write_table
from tests.cli.cases import QUICK, refused, shell, visits


@pytest.fixture
def work(home, tmp_path):
    """A folder with a run, a table as CSV and as Parquet, and links to both; restored after each command."""
    shutil.copytree(home / "run", tmp_path / "run")
    shutil.copy(home / "s.toml", tmp_path)
    (tmp_path / "parts").mkdir()
    for path in ("data.csv", "data.parquet", "parts/a.parquet"):
        write_table(visits(missing=0.1), tmp_path / path)
    for suffix in ("csv", "parquet"):
        (tmp_path / f"link.{suffix}").symlink_to(f"data.{suffix}")
        os.link(tmp_path / f"data.{suffix}", tmp_path / f"hard.{suffix}")
    return tmp_path


COMMAND_LINES = (
    ("impute", "run", "IN"), ("impute", "run", "IN", "--draws", "3"), ("predict", "run", "IN"),
    ("predict", "run", "s.toml", "--history", "IN"), ("filter", "run", "IN"), ("effects", "run", "IN"),
    ("whatif", "run", "IN", "--set", "sex=m"), ("schema", "IN"), ("pool", "IN", "--formula", "alt ~ ast"),
    ("shift", "IN", "s.toml", "--add", "alt=1"), ("shift", "s.toml", "IN", "--add", "alt=1"),
    ("compare", "IN", "--schema", "s.toml", "--models", "CVAE"), ("permute", "run", "IN", "--covariate", "sex"),
)  # fmt: skip


def everything(folder):
    return {path: (path.is_symlink(), path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("line", COMMAND_LINES, ids=" ".join)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_an_output_that_is_an_input_is_refused(line, suffix, work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    before = everything(work)
    words = [f"data.{suffix}" if word == "IN" else word for word in line]
    for out in (
        f"data.{suffix}",
        f"./run/../data.{suffix}",
        f"link.{suffix}",
        f"hard.{suffix}",
        work / f"data.{suffix}",
    ):
        refused(capsys, (*words, "--out", out), "which it would replace; name another file")
    assert everything(work) == before


def test_streams_too(work, monkeypatch, capsys):
    import lacova

    monkeypatch.chdir(work)
    before = everything(work)
    for command in ("impute", "predict"):
        refused(capsys, (command, "run", "data.parquet", "--stream", "--out", "link.parquet"), "the same file as")
        refused(
            capsys,
            (command, "run", "parts", "--out", "parts/a.parquet"),
            "in the folder DATA, all of which is read"
            if command == "impute"
            else "in the folder X, all of which is read",
        )
        refused(capsys, (command, "run", "parts", "--out", "parts/b.parquet"), "name a file elsewhere")
    model = lacova.load("run/model.lacova")
    for out in ("hard.parquet", work / "data.parquet"):
        with pytest.raises(lacova.DataError, match=r"out is .*, the same file as the data, which it would replace"):
            model.impute("data.parquet", out=out)
    with pytest.raises(lacova.DataError, match="in the folder the data"):
        model.log_likelihood("parts", out="parts/c.parquet")
    assert everything(work) == before


def test_other_files_that_are_read_or_written(work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    write_table(visits(missing=0), work / "page.html.csv")
    before = everything(work)
    for words, message in (
        (("impute", "run", "data.csv", "--out", "run/training.csv"), "the same file as RUN/training.csv"),
        (("report", "run", "--data", "data.csv", "--out", "page.html", "--truth", "page.html"), "same file as --truth"),
        (("predict", "run", "data.csv", "--history", "hard.csv", "--out", "link.csv"), "the same file as X, "),
        (("whatif", "run", "parts/a.parquet", "--set", "sex=m", "--out", "o.csv", "--draws-out", "./o.csv"),
         "--out and --draws-out are both"),
        (("whatif", "run", "data.csv", "--set", "sex=m", "--draws-out", "data.csv"), "--draws-out is data.csv, the"),
        (("compare", "data.csv", "--schema", "s.toml", "--models", "CVAE", "--resume", "hard.csv"), "file as DATA"),
        (("schema", "data.csv", "--out", "data.csv"), "the same file as DATA"),
        (("fit", "parts", "--schema", "s.toml", "--out", "parts/run", *QUICK), "in the folder DATA, all of which"),
        (("fit", "run/training.csv", "--schema", "s.toml", "--out", "run", "--force", *QUICK), "the same file as DATA"),
        (("fit", "data.csv", "--schema", "s.toml", "--validation", "run/training.csv", "--out", "run", "--force"),
         "RUN/training.csv is run/training.csv, the same file as --validation"),
    ):  # fmt: skip
        refused(capsys, words, message)
    assert everything(work) == before


def test_a_link_is_followed(work, monkeypatch):
    monkeypatch.chdir(work)
    (work / "far").mkdir()
    (work / "far" / "out.csv").write_text("old")
    (work / "out.csv").symlink_to(Path("far") / "out.csv")
    (work / "new.toml").symlink_to(Path("far") / "new.toml")
    assert shell("impute", "run", "data.csv", "--out", "out.csv", "--quiet") == 0
    assert shell("schema", "data.csv", "--out", "new.toml", "--quiet") == 0
    assert (work / "out.csv").is_symlink()
    assert (work / "new.toml").is_symlink()
    assert sorted(os.listdir(work / "far")) == ["new.toml", "out.csv"]
    assert (work / "far" / "out.csv").read_text() != "old"


def test_a_table_inside_the_run_is_fine(work, monkeypatch):
    monkeypatch.chdir(work)
    assert shell("impute", "run", "data.csv", "--out", "run/done.csv", "--quiet") == 0
    assert shell("impute", "run", "run/done.csv", "--out", "run/again.csv", "--quiet") == 0


def test_every_option_that_names_an_output_is_marked():
    marked = {
        (name, argument)
        for name, command in COMMANDS.items()
        for argument, hint in get_type_hints(command, include_extras=True).items()
        if {WRITTEN, RUN_WRITTEN} & set(getattr(hint, "__metadata__", ()) or ())
    }
    outputs = {
        (name, argument)
        for name, command in COMMANDS.items()
        for argument, parameter in inspect.signature(command).parameters.items()
        if "Path" in str(parameter.annotation) or "options" in str(parameter.annotation)
        if argument in ("out", "draws_out") or (argument, name) in (("schema", "study"), ("resume", "compare"))
    }
    assert marked - {("permute", "resume")} == outputs - {("demo", "out")}  # a folder, and nothing is read
