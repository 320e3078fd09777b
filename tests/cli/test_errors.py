"""Expected failures end with one sentence and exit code 1; an error of lacova itself keeps its traceback."""

import errno
import gzip
import os
import shutil

import numpy as np
import pytest
import torch
import typer

from lacova.cli.errors import report_errors, sentence_of
from lacova.models import checks
from tests.cli.cases import refused, visits


@pytest.mark.parametrize(
    "command",
    [("impute",), ("impute", "--draws"), ("predict",), ("whatif", "--set", "sex=m"), ("effects",), ("score",)],
    ids=" ".join,
)  # fmt: skip
def test_draws_that_no_memory_holds(command, home, tmp_path, monkeypatch, capsys):
    asked = 10**15
    words = [command[0], home / "run", home / "data.csv", *command[1:]]
    words += [asked] if command[-1] == "--draws" else ["--draws", asked]
    refused(capsys, words, f"draws is {asked:,}, for which 120 row(s) need at least ")
    monkeypatch.setattr(checks, "memory", lambda: 16 * 10**9)
    shutil.copy(home / "data.csv", tmp_path / "d.csv")
    refused(capsys, words, "this machine has 16.0 GB; ask for fewer draws, or give fewer rows at a time.\n")


def test_a_table_of_draws_counts_all_its_rows(home, monkeypatch):
    import lacova

    model = lacova.load(home / "run" / "model.lacova")
    monkeypatch.setattr(checks, "memory", lambda: 10**6)
    assert len(model.impute(visits(missing=0.1))) == 120
    for answer in (model.impute, model.sample, model.prior_covariates):
        with pytest.raises(ValueError, match=r"draws is 1,000, for which 120 row\(s\) need at least 0.\d+ GB"):
            answer(visits(missing=0.1), draws=1000)
    monkeypatch.setattr(checks, "memory", lambda: None)  # a system that does not say
    assert len(model.sample(visits(missing=0.1), draws=2)) == 240


def test_compressed_tables_that_are_cut_off_or_altered(home, tmp_path, capsys):
    data = gzip.compress((home / "data.csv").read_bytes())
    altered = bytearray(data)
    altered[len(data) // 2] ^= 0xFF
    for content in (data[: len(data) // 2], data[:20], bytes(altered)):
        (tmp_path / "d.csv.gz").write_bytes(content)
        refused(capsys, ("impute", home / "run", tmp_path / "d.csv.gz"), "d.csv.gz ")


def test_files_of_another_kind(home, tmp_path, capsys):
    data, roles, name = home / "data.csv", ("--schema", home / "s.toml"), "x" * 300
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    for words, message in (
        (("describe", tmp_path / "pipe"), "pipe is not a file"),
        (("describe", name), f"{'x' * 80}… cannot be used: File name too long."),
        (("impute", home / "run", f"{name}.csv"), "cannot be used: File name too long."),
        (("impute", home / "run", data, "--out", f"{name}.csv"), "cannot be used: File name too long."),
        (("impute", home / "run", tmp_path / "pipe.csv"), "is a device or a pipe, and tables are read more than once"),
        (("impute", home / "run", data, "--out", tmp_path / "pipe.csv"), "is a device or a pipe; name a file to write"),
        (("schema", data, "--out", "/dev/null"), "is a device or a pipe; name a file to write"),
        (("schema", data, "--out", tmp_path / "folder.csv"), "is a folder; name a file to write"),
        (("fit", data, "--schema", tmp_path / "folder.csv", "--out", tmp_path / "new"), "--schema names a TOML file"),
        (
            ("compare", data, *roles, "--models", "CVAE", "--resume", tmp_path / "pipe"),
            "name a file for the checkpoint",
        ),
        (("demo", "--out", data), "data.csv cannot be used: File exists."),
    ):
        refused(capsys, words, message)
    assert sorted(os.listdir(tmp_path)) == ["folder.csv", "pipe", "pipe.csv"]


def fail(error):
    def command():
        raise error

    return report_errors(command)


def test_allocators_and_files():
    with pytest.raises((RuntimeError, MemoryError)) as torch_error:
        torch.empty(2**45)
    with pytest.raises(MemoryError) as numpy_error:
        np.empty(2**60, dtype=np.uint8)
    assert "a single array would take 140,737.5 GB; ask for" in sentence_of(torch_error.value)
    assert "a single array would take 1 EiB; ask for fewer draws" in sentence_of(numpy_error.value)
    cuda = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of")
    assert "a single array would take 20 GiB; ask for" in sentence_of(cuda)
    assert sentence_of(MemoryError()).startswith("there is not enough memory; ask for")
    assert sentence_of(OSError(errno.EISDIR, "Is a directory", "a")) == "a cannot be used: Is a directory."
    assert sentence_of(OSError(errno.ENOSPC, "No space left")) == "a file cannot be used: No space left."
    assert sentence_of(RuntimeError("shapes do not match")) is None


def test_an_error_of_lacova_itself_keeps_its_traceback(capsys):
    for error in (RuntimeError("x"), KeyError("x"), AssertionError()):
        with pytest.raises(type(error)):
            fail(error)()
    for error, code in ((ValueError("A."), 1), (KeyboardInterrupt(), 130), (typer.Exit(3), 3)):
        with pytest.raises(typer.Exit) as end:
            fail(error)()
        assert end.value.exit_code == code
    assert "Traceback" not in capsys.readouterr().err
