"""The folder of a run: only what lacova wrote is replaced, file by file, and a model is always there."""

import datetime
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lacova
from lacova.cli.run_folder import check_run, write_run
from lacova.data.io.files import write_table
from lacova.training.trainer import Trainer
from tests.cli.cases import QUICK, refused, shell, visits

ONE = (*QUICK, "--set", "members=1", "--quiet")


@pytest.fixture
def work(home, tmp_path):
    """A folder with data, schema and a run, in which a user keeps other files."""
    for name in ("data.csv", "s.toml"):
        shutil.copy(home / name, tmp_path)
    shutil.copytree(home / "run", tmp_path / "run")
    shutil.copy(home / "data.csv", tmp_path / "run" / "mine.csv")
    (tmp_path / "run" / "notes").mkdir()
    (tmp_path / "run" / "notes" / "a.txt").write_text("keep")
    return tmp_path


def words(work, out="run"):
    return ("fit", work / "data.csv", "--schema", work / "s.toml", "--out", work / out, *ONE)


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def others(folder):
    """Return what is in the folder of a run beside the files of the run."""
    own = {"model.lacova", "schema.toml", "training.csv"}
    return {path: data for path, data in content(folder).items() if str(path) not in own}


def seed_of(folder):
    return lacova.load(folder / "model.lacova").options.seed


def test_force_replaces_the_files_of_a_run_and_no_others(work):
    kept = others(work / "run")
    assert len(kept) == 2
    data = work / "run" / "mine.csv"  # the training rows lie beside the model
    assert shell("fit", data, *words(work)[2:], "--force", "--seed", 3) == 0
    assert seed_of(work / "run") == 3
    assert others(work / "run") == kept
    assert sorted(os.listdir(work)) == ["data.csv", "run", "s.toml"]


def test_resuming_leaves_other_files_alone(work, monkeypatch, capsys):
    kept = others(work / "run")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lacova.GPPriorVAE, "save", interrupt)
        assert shell(*words(work), "--force", "--seed", 3) == 130
    assert "no model was written. The same command with --resume goes on." in capsys.readouterr().err
    assert seed_of(work / "run") == 0
    assert shell(*words(work), "--resume", "--seed", 3) == 0
    assert seed_of(work / "run") == 3
    assert others(work / "run") == kept


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("step", ["open", "fsync", "replace", "mkdir"])
def test_an_interrupt_at_any_step_leaves_the_old_model_or_the_new_one(work, home, monkeypatch, step, there):
    old, new = lacova.load(home / "run" / "model.lacova"), lacova.load(home / "run" / "model.lacova")
    new.training = old.training.iloc[:1]  # so that the two differ
    run, real, number, done = work / "run", getattr(os, step), 0, False
    if not there:
        shutil.rmtree(run)
    kept = others(run)
    while not done:
        number, calls = number + 1, []

        def interrupted(*args, number=number, calls=calls, **options):
            calls.append(1)
            if len(calls) == number:
                raise KeyboardInterrupt
            return real(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, step, interrupted)
            try:
                write_run(new, run, work / "s.toml")
                done = True
            except KeyboardInterrupt:
                pass
        if there or (run / "model.lacova").exists():
            assert len(lacova.load(run / "model.lacova").training) in (1, 2)
            assert others(run) == kept
        else:
            assert not run.exists()
        if there and not done:
            old.save(run / "model.lacova")
        elif not done:
            shutil.rmtree(run, ignore_errors=True)
    assert number > {"open": 3, "fsync": 3, "replace": 3, "mkdir": not there}[step]
    assert len(lacova.load(run / "model.lacova").training) == 1
    assert sorted(path.name for path in run.iterdir() if path.is_file() and path.name != "mine.csv") == [
        "model.lacova", "schema.toml", "training.csv",
    ]  # fmt: skip


def test_an_interrupt_between_the_files_says_that_the_model_is_the_new_one(work, monkeypatch, capsys):
    real = os.replace

    def interrupted(source, target):
        real(source, target)
        if target == work / "run" / "model.lacova":
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    assert shell(*words(work), "--force", "--seed", 3) == 130
    assert f"the new model is in {work / 'run'}, but not all of the files beside it" in capsys.readouterr().err
    assert seed_of(work / "run") == 3


def test_a_kill_at_any_moment_leaves_the_old_model_or_the_new_one(work):
    words = [sys.executable, "-m", "tests.cli.killed_runs", str(work), "12", "1"]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "killed" in done.stdout
    assert sorted(os.listdir(work / "run")) == ["mine.csv", "model.lacova", "notes", "schema.toml", "training.csv"]


def test_what_a_killed_fit_left_is_in_nobodys_way(work, home):
    shutil.rmtree(work / "run")
    (work / "run").mkdir()
    for name in (".lacova-model.lacova-12345678", ".lacova-.lacova-model.lacova-12345678-abcdefab"):
        (work / "run" / name).touch()
    check_run(work / "run", force=False)
    write_run(lacova.load(home / "run" / "model.lacova"), work / "run", work / "s.toml")
    assert sorted(os.listdir(work / "run")) == ["model.lacova", "schema.toml", "training.csv"]


def test_the_schema_of_the_run_stays_as_it_is_where_the_fit_reads_it(work):
    schema = work / "run" / "schema.toml"
    schema.write_text("# edited by hand\n" + schema.read_text())
    before = schema.read_text()
    assert shell("fit", work / "data.csv", "--schema", schema, *words(work)[4:], "--force") == 0
    assert schema.read_text() == before
    assert shell(*words(work), "--force") == 0
    assert schema.read_text() != before


def test_modes(work):
    run = work / "run"
    for file in (run, *run.iterdir()):
        file.chmod(0o700 if file.is_dir() else 0o600)
    old = os.umask(0o027)
    try:
        assert shell(*words(work), "--force") == 0
        assert shell(*words(work, "new")) == 0
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in run.iterdir() if path.is_file()} == {0o600}
    assert run.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (work / "new").iterdir()} == {0o640}
    assert (work / "new").stat().st_mode & 0o777 == 0o750


def test_a_run_may_be_a_link_or_hold_links(work):
    (work / "run").rename(work / "far")
    (work / "run").symlink_to("far")
    (work / "disk").mkdir()
    (work / "far" / "model.lacova").rename(work / "disk" / "m")
    (work / "far" / "model.lacova").symlink_to(work / "disk" / "m")
    assert shell(*words(work), "--force", "--seed", 3) == 0
    assert (work / "run").is_symlink()
    assert (work / "far" / "model.lacova").is_symlink()
    assert seed_of(work / "far") == 3
    assert os.listdir(work / "disk") == ["m"]


def test_the_current_folder_can_be_a_run_if_it_is_empty(work, monkeypatch, capsys):
    (work / "empty").mkdir()
    monkeypatch.chdir(work / "empty")
    assert shell(*words(work)[:5], ".", *ONE) == 0
    assert sorted(os.listdir()) == ["model.lacova", "schema.toml", "training.csv"]
    monkeypatch.chdir(work)
    refused(capsys, (*words(work)[:5], ".", *ONE), "holds other things; choose another for --out")
    assert sorted(os.listdir()) == ["data.csv", "empty", "run", "s.toml"]


def test_what_cannot_become_a_run_is_refused_before_training(work, monkeypatch, capsys):
    def fit(*_, **__):
        raise AssertionError("training was begun")

    monkeypatch.setattr(lacova.GPPriorVAE, "fit", fit)
    (work / "dangling").symlink_to("nowhere")
    (work / "odd").mkdir()
    (work / "odd" / "model.lacova").mkdir()
    for out, message in (
        ("data.csv", "is a file; --out names a folder for the model"),
        ("dangling", "is a link to a folder that is not there"),
        ("none/run", "there is no folder"),
        ("/", "cannot hold a model; name a folder in it"),
        ("x" * 300, "cannot be used: File name too long"),
    ):
        refused(capsys, words(work, out), message)
    refused(capsys, (*words(work, "odd"), "--force"), "model.lacova is a folder; name a file to write")
    (work / "new").mkdir()
    monkeypatch.setattr(os, "access", lambda _, how: how != os.W_OK)
    for out in ("new", "another"):
        refused(capsys, words(work, out), "is not writable; choose another, or change its permissions")
    assert others(work / "new") == {}


def test_labels_that_no_file_holds_are_refused_before_training(work, monkeypatch, capsys):
    monkeypatch.delattr(Trainer, "run")
    table = visits()
    table["id"] = [datetime.date(2020, 1, 1 + int(name[1:])) for name in table["id"]]
    write_table(table, work / "dates.parquet")
    refused(
        capsys, ("fit", work / "dates.parquet", *words(work, "new")[2:]),
        "labels of the instance column 'id': a file cannot hold datetime.date",
    )  # fmt: skip
    assert not (work / "new").exists()
    assert not (work / "new.checkpoint").exists()
