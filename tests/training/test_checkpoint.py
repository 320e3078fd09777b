"""Training that is killed, or whose checkpoint cannot be read or written."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lacova import CVAE, DataError, Dense, GPPriorVAE, Schema, StorageError, load
from lacova.cli import main
from lacova.data.io.archive import read, write
from lacova.data.io.files import write_table
from lacova.training import checkpoint
from lacova.training.step import Validator
from tests.training.cases import SMALL, STEPS, VISITS, Killed, fit_gp, kill, press_ctrl_c, same, visits

ROOT = Path(__file__).parents[2]


# Killed and resumed.


@pytest.fixture(scope="module")
def kills(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    command = [sys.executable, "-m", "tests.training.killed_fits", folder, "10", "0"]
    one_core = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | one_core, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout.split("\n")


@pytest.mark.parametrize("case", ["cvae", "gp"])
def test_a_fit_killed_ten_times_ends_as_one_that_was_not(kills, case):
    folder, lines = kills
    assert lines.count(f"{case} killed") == 10
    assert (folder / case / "killed.lacova").read_bytes() == (folder / case / "uninterrupted.lacova").read_bytes()
    assert [name for name in os.listdir(folder / case) if "checkpoint" in name] == []


@pytest.mark.parametrize("last", [1, STEPS, STEPS + 1, 2 * STEPS, 2 * STEPS + 1, 3 * STEPS - 1])
def test_a_fit_continues_from_any_step_of_an_epoch(uninterrupted, steps, tmp_path, last):
    path = tmp_path / "c"
    steps.hooks[last + 1] = kill
    with pytest.raises(Killed):
        fit_gp(checkpoint=path, checkpoint_every=1)
    state = read(path)[0]["state"]
    assert (state["epoch"], state["step"]) == divmod(last, STEPS)
    steps.taken = 0
    model = fit_gp(checkpoint=path, checkpoint_every=1)
    assert steps.taken == 3 * STEPS - last  # no step twice
    assert same(model, uninterrupted)
    assert os.listdir(tmp_path) == []


def test_checkpoints_come_as_often_as_asked(monkeypatch, tmp_path):
    written = []

    def record(path, document, tensors, *mode):
        written.append(document["state"])
        write(path, document, tensors, *mode)

    monkeypatch.setattr(checkpoint, "write", record)
    fit_gp(checkpoint=tmp_path / "c", checkpoint_every=7)
    assert [(state["epoch"], state["step"]) for state in written] == [(1, 2), (2, 4)]
    written.clear()
    fit_gp(checkpoint=tmp_path / "c", checkpoint_every=STEPS)
    assert [(state["epoch"], state["step"]) for state in written] == [(1, 0), (2, 0)]
    written.clear()
    fit_gp(max_epochs=2, checkpoint=tmp_path / "c")
    assert written == []


def test_a_kept_checkpoint_needs_no_further_step(uninterrupted, steps, tmp_path):
    path = tmp_path / "c"
    for taken in (3 * STEPS, 0):
        steps.taken = 0
        assert same(fit_gp(checkpoint=path, checkpoint_keep=True), uninterrupted)
        assert steps.taken == taken
    assert os.listdir(tmp_path) == ["c"]


def test_a_fit_with_kernels_of_other_libraries_continues(steps, tmp_path):
    gpytorch = pytest.importorskip("gpytorch")

    def fit(start=1.0, **options):
        kernel = gpytorch.kernels.RQKernel()
        kernel.lengthscale = start
        model = GPPriorVAE(VISITS, prior="rough(day) + cat(id)", kernels={"rough": kernel}, inducing=4, **SMALL)
        return model.fit(visits(), max_epochs=2, batch_size=4, device="cpu", **options)

    steps.hooks[2] = kill
    with pytest.raises(Killed):
        fit(checkpoint=tmp_path / "c", checkpoint_every=1)
    with pytest.raises(StorageError, match="it differs in kernels"):
        fit(start=2.0, checkpoint=tmp_path / "c")
    assert same(fit(checkpoint=tmp_path / "c"), fit())


# Files that are refused.


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return the checkpoint of a fit that was killed."""
    path = tmp_path_factory.mktemp("begun") / "c"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Validator, "__call__", kill)
        with pytest.raises(Killed):
            fit_gp(checkpoint=path, checkpoint_every=1)
    return path


def with_one_more_value(table):
    return table.assign(alt=table["alt"].where(table.index != 3, 31.0))


ROLES = {"measurements": VISITS.measurements, "covariates": VISITS.covariates, "instance": "id", "time": "day"}
OTHER_FITS = {
    "rows": ({"train": visits(gaps=0.1)}, r"it differs in the training rows"),
    "a value": ({"train": with_one_more_value(visits())}, r"it differs in the training rows"),
    "validation": ({"validation": False}, r"it differs in the validation rows\."),
    "seed": ({"seed": 1}, r"it differs in seed \(0 there, 1 here\)\. Fit as it was begun, or remove the file"),
    "options": (
        {"batch_size": 3, "masked_loss": 0.5},
        r"batch_size \(2 there, 3 here\), masked_loss \(1.0 there, 0.5 here\)\.",
    ),
    "epochs": ({"max_epochs": 4}, r"max_epochs \(3 there, 4 here\)"),
    "settings": ({"settings": {"latent_dim": 3}}, r"latent_dim \(2 there, 3 here\)"),
    "networks": ({"settings": {"networks": Dense((5,), (6,))}}, r"it differs in networks\."),
    "formula": ({"settings": {"prior": "cat(id)"}}, r"it differs in prior"),
    "roles": ({"schema": Schema(**ROLES, static=["sex"])}, r"it differs in static of the schema"),
    "bounds": ({"schema": Schema(**ROLES, static=["age", "sex"], bounds={"alt": (0, None)})}, r"bounds of the schema"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "pattern"), OTHER_FITS.values(), ids=OTHER_FITS)
def test_a_checkpoint_of_another_fit_is_refused(begun, steps, changes, pattern):
    before = begun.read_bytes()
    with pytest.raises(StorageError, match=r"the checkpoint .* belongs to another fit: .*" + pattern):
        fit_gp(checkpoint=begun, **changes)
    assert steps.taken == 0
    assert begun.read_bytes() == before


def test_another_model_or_version_is_refused(begun, monkeypatch):
    with pytest.raises(StorageError, match=r'it differs in model \("GPPriorVAE" there, "CVAE" here\)'):
        CVAE(VISITS, **SMALL).fit(visits(), device="cpu", checkpoint=begun)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "__version__", "9.9")
        with pytest.raises(StorageError, match=r'version of lacova \("[^"]+" there, "9.9" here\)'):
            fit_gp(checkpoint=begun)
    monkeypatch.setattr(torch, "__version__", "9.9.1+cpu")
    with pytest.raises(StorageError, match=r'version of torch \("[^"]+" there, "9.9.1" here\)'):
        fit_gp(checkpoint=begun)


def test_what_does_not_change_the_weights_may_change(uninterrupted, begun, tmp_path):
    path = shutil.copy(begun, tmp_path / "elsewhere")
    assert same(fit_gp(checkpoint=path, checkpoint_every=2, checkpoint_keep=True, progress=False), uninterrupted)


def test_damaged_and_foreign_files_are_refused(begun, tmp_path, uninterrupted):
    path, data = tmp_path / "c", bytearray(begun.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"is damaged: .* Without it, training starts again\."):
        fit_gp(checkpoint=path)
    path.write_text("not a checkpoint")
    with pytest.raises(StorageError, match="is not a lacova file"):
        fit_gp(checkpoint=path)
    uninterrupted.save(path)
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"c is no checkpoint; choose another name"):
        fit_gp(checkpoint=path)
    assert path.read_bytes() == before
    with pytest.raises(StorageError, match=r"c is a checkpoint, of training that has not ended"):
        load(begun)


def test_parts_that_do_not_fit_are_refused(begun, tmp_path):
    document, tensors = read(begun)
    about = {name: document[name] for name in ("checkpoint", "state")}
    name = next(name for name in tensors if name.startswith("vae."))
    for change in ({name: torch.zeros(77)}, {"records": torch.zeros(1, 1)}, {"optimiser.x.step": torch.zeros(())}):
        write(tmp_path / "c", about, tensors | change)
        with pytest.raises(StorageError, match=r"its parts do not fit together\. Remove it to start again"):
            fit_gp(checkpoint=tmp_path / "c")


# Places that cannot be written to.


def test_places_are_refused_before_training(steps, tmp_path):
    (tmp_path / "folder").mkdir()
    for path, pattern in (
        (tmp_path / "none" / "c", "there is no folder .*none to write into"),
        (tmp_path / "folder", "is a folder; name a file for the checkpoint"),
        (tmp_path / ("c" * 300), "cannot be written: File name too long"),
    ):
        with pytest.raises(DataError, match=pattern):
            fit_gp(checkpoint=path)
    for every in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="checkpoint_every must be a whole number of at least 1"):
            fit_gp(checkpoint=tmp_path / "c", checkpoint_every=every)
    assert steps.taken == 0
    assert os.listdir(tmp_path) == ["folder"]


def test_a_folder_that_is_not_writable_is_refused_before_training(steps, tmp_path, monkeypatch):
    if Path("/proc/self").is_dir():  # not even the superuser writes there
        with pytest.raises(DataError, match=r"the checkpoint /proc/c cannot be written: "):
            fit_gp(checkpoint="/proc/c")
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        tmp_path.chmod(0o500)
    with pytest.raises(DataError, match=r"the folder .* is not writable; choose another, or change its permissions"):
        fit_gp(checkpoint=tmp_path / "c")
    assert steps.taken == 0


def test_checkpoints_are_private_and_stay_as_the_user_made_them(steps, tmp_path):
    modes, path = [], tmp_path / "c"
    steps.hooks[3] = steps.hooks[5] = lambda: modes.append(path.stat().st_mode & 0o777)
    steps.hooks[4] = lambda: path.chmod(0o640)
    fit_gp(checkpoint=path, checkpoint_every=1)
    assert modes == [0o600, 0o640]


def test_a_full_disk_is_reported_before_training(steps, tmp_path, monkeypatch):
    needed = []
    real = shutil.disk_usage
    for free in (0, 10_000):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: real(path)._replace(free=free))
        with pytest.raises(
            DataError, match=rf"has {free:,} bytes left, but checkpoints there need about [\d,]+; make"
        ) as caught:
            fit_gp(checkpoint=tmp_path / "c")
        needed.append(int(re.findall(r"about ([\d,]+)", str(caught.value))[0].replace(",", "")))
    assert steps.taken == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=needed[0]))
    size = fit_gp(checkpoint=tmp_path / "c", checkpoint_keep=True) and (tmp_path / "c").stat().st_size
    assert needed[0] == needed[1]
    assert 2 * (size - 20_000) < needed[0] < 4 * size  # names take some 16 kB of so small a file


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_fills_up_does_not_end_training(uninterrupted, steps, tmp_path, monkeypatch):
    path = tmp_path / "c"
    steps.hooks[3] = lambda: monkeypatch.setattr(os, "replace", full_disk)
    steps.hooks[9] = kill
    with pytest.warns(UserWarning, match="checkpoint") as caught, pytest.raises(Killed):
        fit_gp(checkpoint=path, checkpoint_every=2)
    monkeypatch.undo()
    assert [str(w.message) for w in caught] == [
        f"the checkpoint {path} cannot be written (No space left on device); training goes on."
    ] * 3  # after steps 4, 6 and 8
    assert os.listdir(tmp_path) == ["c"]
    assert read(path)[0]["state"]["step"] == 2  # the last that could be written
    assert same(fit_gp(checkpoint=path), uninterrupted)


def test_a_crash_while_writing_leaves_the_old_one(uninterrupted, steps, tmp_path, monkeypatch):
    path, real = tmp_path / "c", Path.write_bytes

    def half(self, data):
        real(self, data[: len(data) // 2])
        real(self.with_name(f".lacova-c-{'x' * 8}"), b"left by a kill")
        raise Killed

    steps.hooks[3] = lambda: monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(Killed):
        fit_gp(checkpoint=path, checkpoint_every=2)
    monkeypatch.undo()
    assert read(path)[0]["state"]["step"] == 2
    (tmp_path / ".lacova-c-d-xxxxxxxx").touch()  # of another file, c-d
    assert same(fit_gp(checkpoint=path), uninterrupted)
    assert os.listdir(tmp_path) == [".lacova-c-d-xxxxxxxx"]


# The command.

TRAIN = ("--epochs", "3", "--latent-dim", "1", "--batch-size", "5", "--device", "cpu", "--quiet")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    write_table(visits(patients=20), folder / "data.csv")
    VISITS.to_toml(folder / "s.toml")
    return folder


def fit(home, *more):
    return main(["fit", str(home / "data.csv"), "--schema", str(home / "s.toml"), *TRAIN, *map(str, more)])


def test_the_command_is_interrupted_and_continues(home, steps, tmp_path, capsys):
    assert fit(home, "--out", tmp_path / "uninterrupted") == 0
    run, file = tmp_path / "run", tmp_path / "run.checkpoint"
    steps.hooks[steps.taken + 6] = press_ctrl_c
    assert fit(home, "--out", run) == 130
    text = capsys.readouterr()
    sentence = f"lacova: interrupted; the model with the best weights so far is in {run}."
    assert text.err == f"{sentence} The same command with --resume goes on.\n"
    assert len(load(run / "model.lacova").training) == 1
    assert fit(home, "--out", run) == 1
    assert f"{file} is the checkpoint of a fit that has not ended; add --resume" in capsys.readouterr().err
    assert fit(home, "--out", run, "--resume", "--force") == 1
    assert "not both" in capsys.readouterr().err
    assert fit(home, "--out", run, "--resume", "--checkpoint-every", 0) == 1
    assert "--checkpoint-every is 0" in capsys.readouterr().err
    assert fit(home, "--out", run, "--resume", "--seed", 1) == 1
    assert "it differs in seed (0 there, 1 here)" in capsys.readouterr().err
    steps.taken = 0
    assert fit(home, "--out", run, "--resume", "--json") == 0
    assert steps.taken == 3 * 4 - 6
    assert (run / "model.lacova").read_bytes() == (tmp_path / "uninterrupted" / "model.lacova").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["run", "uninterrupted"]
    assert fit(home, "--out", run, "--resume") == 1  # there is no checkpoint to continue from, and a model to lose
    assert "there is a model in" in capsys.readouterr().err


def test_the_command_starts_again_by_force(home, steps, tmp_path, capsys):
    steps.hooks[1] = press_ctrl_c
    assert fit(home, "--out", tmp_path / "run", "--json") == 130
    assert '"epoch"' not in capsys.readouterr().out
    steps.taken = 0
    assert fit(home, "--out", tmp_path / "run", "--force") == 0
    assert steps.taken == 12
    assert os.listdir(tmp_path) == ["run"]
    steps.hooks[13] = press_ctrl_c
    assert fit(home, "--out", tmp_path / "other", "--checkpoint-every", 0, "--resume") == 1
    assert fit(home, "--out", tmp_path / "other", "--checkpoint-every", 0) == 130
    assert "There is no checkpoint to go on from." in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["other", "run"]
    assert fit(home, "--out", tmp_path / "third", "--resume") == 0  # a script may always say --resume
    assert fit(home, "--out", tmp_path / "fourth", "--checkpoint-every", -1) == 2


CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from lacova.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_from_outside_ends_the_command(home, tmp_path):
    run = tmp_path / "run"
    words = ["fit", home / "data.csv", "--schema", home / "s.toml", *TRAIN, "--epochs", "1000000", "--out", run]
    command = [sys.executable, "-c", CHILD, *map(str, words), "--checkpoint-every", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        while not (tmp_path / "run.checkpoint").exists() and child.poll() is None:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        error = child.stderr.read()
    assert child.returncode == 130, error
    assert "The same command with --resume goes on." in error
    assert load(run / "model.lacova").predict(visits()).notna().all(axis=None)
    assert sorted(os.listdir(tmp_path)) == ["run", "run.checkpoint"]
