"""Training that is killed, interrupted or cannot be written down."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import lacova.training.checkpoint
from lacova import CVAE, DataError, Dense, GPPriorVAE, Schema, StorageError, load
from lacova.cli import main
from lacova.data.io.archive import digest, read
from lacova.data.io.files import write_table
from lacova.priors.gp.inducing import InducingPoints
from lacova.training.interrupt import InterruptedWarning, deferred_interrupt
from lacova.training.step import Step, Validator
from tests.training.killed_fits import SMALL, VISITS, cvae, gp, visits

ROOT = Path(__file__).parents[2]
STEPS = 5  # an epoch of `gp`


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the package catches it."""


def killed(*_):
    raise Killed


def ctrl_c(*_):
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def usual_handler():
    """Ctrl-C as in a terminal, wherever the tests run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def steps(monkeypatch):
    """Counts the steps that are `taken`; `hooks[n]` is called after the n-th."""
    counter, take = SimpleNamespace(taken=0, hooks={}), Step.__call__

    def step(*args):
        found = take(*args)
        counter.taken += 1
        counter.hooks.pop(counter.taken, lambda: None)()
        return found

    monkeypatch.setattr(Step, "__call__", step)
    return counter


def same(one, other):
    """Bit for bit, the record of training included."""
    weights, others = one._vae.state_dict(), other._vae.state_dict()
    return digest(weights) == digest(others) and one.training.equals(other.training)


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
def test_a_fit_killed_ten_times_ends_as_one_left_alone(kills, case):
    folder, ends = kills
    assert ends.count(f"{case} killed") == 10
    assert (folder / case / "killed.lacova").read_bytes() == (folder / case / "alone.lacova").read_bytes()
    assert [name for name in os.listdir(folder / case) if "checkpoint" in name] == []


@pytest.fixture(scope="module")
def alone():
    return gp(max_epochs=3)


@pytest.mark.parametrize("last", [1, STEPS, STEPS + 1, 2 * STEPS, 2 * STEPS + 1, 3 * STEPS - 1])
def test_a_fit_goes_on_from_any_place_in_an_epoch(alone, steps, tmp_path, last):
    path = tmp_path / "c"
    steps.hooks[last + 1] = killed
    with pytest.raises(Killed):
        gp(max_epochs=3, checkpoint=path, checkpoint_every=1)
    state = read(path)[0]["state"]
    assert (state["epoch"], state["step"]) == divmod(last, STEPS)
    steps.taken = 0
    model = gp(max_epochs=3, checkpoint=path, checkpoint_every=1)
    assert steps.taken == 3 * STEPS - last  # no step twice
    assert same(model, alone)
    assert os.listdir(tmp_path) == []


def test_checkpoints_come_as_often_as_asked(monkeypatch, tmp_path):
    written = []
    write = lacova.training.checkpoint.write

    def note(path, document, tensors):
        written.append(document["state"])
        write(path, document, tensors)

    monkeypatch.setattr(lacova.training.checkpoint, "write", note)
    gp(max_epochs=3, checkpoint=tmp_path / "c", checkpoint_every=7)
    assert [(state["epoch"], state["step"]) for state in written] == [(1, 2), (2, 4)]
    written.clear()
    gp(max_epochs=3, checkpoint=tmp_path / "c", checkpoint_every=STEPS)
    assert [(state["epoch"], state["step"]) for state in written] == [(1, 0), (2, 0)]
    written.clear()
    gp(max_epochs=2, checkpoint=tmp_path / "c")
    assert written == []


def test_a_kept_checkpoint_needs_no_further_step(alone, steps, tmp_path):
    path = tmp_path / "c"
    for taken in (3 * STEPS, 0):
        steps.taken = 0
        assert same(gp(max_epochs=3, checkpoint=path, checkpoint_keep=True), alone)
        assert steps.taken == taken
    assert os.listdir(tmp_path) == ["c"]


def test_kernels_of_other_libraries_go_on_too(steps, tmp_path):
    gpytorch = pytest.importorskip("gpytorch")

    def fit(start=1.0, **options):
        kernel = gpytorch.kernels.RQKernel()
        kernel.lengthscale = start
        model = GPPriorVAE(VISITS, prior="rough(day) + cat(id)", kernels={"rough": kernel}, inducing=4, **SMALL)
        return model.fit(visits(), max_epochs=2, batch_size=4, device="cpu", **options)

    steps.hooks[2] = killed
    with pytest.raises(Killed):
        fit(checkpoint=tmp_path / "c", checkpoint_every=1)
    with pytest.raises(StorageError, match="it differs in kernels"):
        fit(start=2.0, checkpoint=tmp_path / "c")
    assert same(fit(checkpoint=tmp_path / "c"), fit())


# Files that will not do.


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The checkpoint of a fit that was killed."""
    path = tmp_path_factory.mktemp("begun") / "c"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Validator, "__call__", killed)
        with pytest.raises(Killed):
            gp(max_epochs=3, checkpoint=path, checkpoint_every=1)
    return path


def again(path, schema=VISITS, train=None, validation=True, settings=None, **options):
    options = {"max_epochs": 3, "batch_size": 2, "prior_every": 2, "device": "cpu", "checkpoint": path, **options}
    model = GPPriorVAE(schema, **{"inducing": 4, **SMALL, **(settings or {})})
    return model.fit(visits() if train is None else train, visits(1, 4) if validation else None, **options)


def one_value_more(table):
    return table.assign(alt=table["alt"].where(table.index != 3, 31.0))


ROLES = {"measurements": VISITS.measurements, "covariates": VISITS.covariates, "instance": "id", "time": "day"}
OTHERS = {
    "rows": ({"train": visits(gaps=0.1)}, r"it differs in the training rows"),
    "a value": ({"train": one_value_more(visits())}, r"it differs in the training rows"),
    "validation": ({"validation": False}, r"it differs in the validation rows\."),
    "seed": ({"seed": 1}, r"it differs in seed \(0 there, 1 here\)\. Fit as it was begun, or remove the file"),
    "options": ({"batch_size": 3, "masked_loss": 0.5}, r"batch_size \(2 there, 3 here\), masked_loss \(1.0 there, 0.5 here\)\."),
    "epochs": ({"max_epochs": 4}, r"max_epochs \(3 there, 4 here\)"),
    "settings": ({"settings": {"latent_dim": 3}}, r"latent_dim \(2 there, 3 here\)"),
    "networks": ({"settings": {"networks": Dense((5,), (6,))}}, r"it differs in networks\."),
    "formula": ({"settings": {"prior": "cat(id)"}}, r"it differs in prior"),
    "roles": ({"schema": Schema(**ROLES, static=["sex"])}, r"it differs in static of the schema"),
    "bounds": ({"schema": Schema(**ROLES, static=["age", "sex"], bounds={"alt": (0, None)})}, r"bounds of the schema"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "pattern"), OTHERS.values(), ids=OTHERS)
def test_a_checkpoint_of_another_fit_is_refused(begun, steps, changes, pattern):
    before = begun.read_bytes()
    with pytest.raises(StorageError, match=r"the checkpoint .* belongs to another fit: .*" + pattern):
        again(begun, **changes)
    assert steps.taken == 0
    assert begun.read_bytes() == before


def test_another_model_or_version_is_refused(begun, monkeypatch):
    with pytest.raises(StorageError, match=r'it differs in model \("GPPriorVAE" there, "CVAE" here\)'):
        CVAE(VISITS, **SMALL).fit(visits(), device="cpu", checkpoint=begun)
    with monkeypatch.context() as patch:
        patch.setattr(lacova.training.checkpoint, "__version__", "9.9")
        with pytest.raises(StorageError, match=r'version of lacova \("[^"]+" there, "9.9" here\)'):
            again(begun)
    monkeypatch.setattr(torch, "__version__", "9.9.1+cpu")
    with pytest.raises(StorageError, match=r'version of torch \("[^"]+" there, "9.9.1" here\)'):
        again(begun)


def test_what_does_not_change_the_weights_may_change(alone, begun, tmp_path):
    path = shutil.copy(begun, tmp_path / "elsewhere")
    assert same(again(path, checkpoint_every=2, checkpoint_keep=True, progress=False), alone)


def test_damaged_and_foreign_files_are_refused(begun, tmp_path, alone):
    path, data = tmp_path / "c", bytearray(begun.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"is damaged: .* Without it, training starts again\."):
        again(path)
    path.write_text("not a checkpoint")
    with pytest.raises(StorageError, match="is not a lacova file"):
        again(path)
    alone.save(path)
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"c is no checkpoint; choose another name"):
        again(path)
    assert path.read_bytes() == before
    with pytest.raises(StorageError, match=r"c is a checkpoint, of training that has not ended"):
        load(begun)


def test_parts_that_do_not_fit_are_refused(begun, tmp_path):
    document, tensors = read(begun)
    about = {name: document[name] for name in ("checkpoint", "state")}
    name = next(name for name in tensors if name.startswith("vae."))
    for change in ({name: torch.zeros(77)}, {"records": torch.zeros(1, 1)}, {"optimiser.x.step": torch.zeros(())}):
        lacova.training.checkpoint.write(tmp_path / "c", about, tensors | change)
        with pytest.raises(StorageError, match=r"its parts do not fit together\. Remove it to start again"):
            again(tmp_path / "c")


# Places that will not do.


def test_places_are_refused_before_training(steps, tmp_path):
    (tmp_path / "folder").mkdir()
    for path, pattern in (
        (tmp_path / "none" / "c", "there is no folder .*none to write into"),
        (tmp_path / "folder", "is a folder; name a file for the checkpoint"),
        (tmp_path / ("c" * 300), "cannot be written: File name too long"),
    ):
        with pytest.raises(DataError, match=pattern):
            again(path)
    for every in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="checkpoint_every must be a whole number of at least 1"):
            again(tmp_path / "c", checkpoint_every=every)
    assert steps.taken == 0
    assert os.listdir(tmp_path) == ["folder"]


def test_a_folder_that_is_not_writable_is_refused_before_training(steps, tmp_path, monkeypatch):
    if Path("/proc/self").is_dir():  # not even the superuser writes there
        with pytest.raises(DataError, match=r"the checkpoint /proc/c cannot be written: "):
            again("/proc/c")
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        tmp_path.chmod(0o500)
    with pytest.raises(DataError, match=r"the folder .* is not writable; choose another, or change its permissions"):
        again(tmp_path / "c")
    assert steps.taken == 0


def test_a_full_disk_is_reported_before_training(steps, tmp_path, monkeypatch):
    needed = []
    real = shutil.disk_usage
    for free in (0, 10_000):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: real(path)._replace(free=free))
        with pytest.raises(
            DataError, match=rf"has {free:,} bytes left, but checkpoints there need about [\d,]+; make"
        ) as e:
            again(tmp_path / "c")
        needed.append(int(re.findall(r"about ([\d,]+)", str(e.value))[0].replace(",", "")))
    assert steps.taken == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=needed[0]))
    size = again(tmp_path / "c", checkpoint_keep=True) and (tmp_path / "c").stat().st_size
    assert needed[0] == needed[1]
    assert 2 * (size - 20_000) < needed[0] < 4 * size  # names take some 16 kB of so small a file


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_fills_up_does_not_end_training(alone, steps, tmp_path, monkeypatch):
    path = tmp_path / "c"
    steps.hooks[3] = lambda: monkeypatch.setattr(os, "replace", full_disk)
    steps.hooks[9] = killed
    with pytest.warns(UserWarning, match="checkpoint") as told, pytest.raises(Killed):
        again(path, checkpoint_every=2)
    monkeypatch.undo()
    assert [str(w.message) for w in told] == [
        f"the checkpoint {path} cannot be written (No space left on device); training goes on."
    ] * 3  # after steps 4, 6 and 8
    assert os.listdir(tmp_path) == ["c"]
    assert read(path)[0]["state"]["step"] == 2  # the last that could be written
    assert same(again(path), alone)


def test_a_crash_while_writing_leaves_the_old_one(alone, steps, tmp_path, monkeypatch):
    path, real = tmp_path / "c", Path.write_bytes

    def half(self, data):
        real(self, data[: len(data) // 2])
        real(self.with_name(f".lacova-c-{'x' * 8}"), b"what a kill leaves")
        raise Killed

    steps.hooks[3] = lambda: monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(Killed):
        again(path, checkpoint_every=2)
    monkeypatch.undo()
    assert read(path)[0]["state"]["step"] == 2
    (tmp_path / ".lacova-c-d-xxxxxxxx").touch()  # of another file, c-d
    assert same(again(path), alone)
    assert os.listdir(tmp_path) == [".lacova-c-d-xxxxxxxx"]


# Ctrl-C.


def natural_interrupt(monkeypatch, count):
    """Ctrl-C between the optimiser's step and the natural gradient's, in the step of that number."""
    take, calls = InducingPoints.natural_step, []

    def natural_step(*args):
        calls.append(1)
        if len(calls) == count:
            ctrl_c()
        take(*args)

    monkeypatch.setattr(InducingPoints, "natural_step", natural_step)


def test_ctrl_c_lets_the_step_end_and_keeps_the_last_weights(monkeypatch, steps, tmp_path):
    left_alone = again(None, validation=False, max_epochs=2, checkpoint=None)
    steps.taken = 0
    natural_interrupt(monkeypatch, 2 * STEPS)
    with pytest.warns(
        InterruptedWarning, match="interrupted after 2 of 9 epochs; the model has the last weights. To go on"
    ):
        model = again(tmp_path / "c", validation=False, max_epochs=9)
    assert steps.taken == 2 * STEPS
    assert same(model, left_alone)
    assert model.interrupted
    assert not left_alone.interrupted
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert same(again(tmp_path / "c", validation=False, max_epochs=9), again(None, validation=False, max_epochs=9))


def test_ctrl_c_restores_the_best_weights_and_training_can_go_on(steps, tmp_path, monkeypatch):
    path, scores = tmp_path / "c", iter([1.0, 1.0, 0.0, 0.5])
    monkeypatch.setattr(Validator, "__call__", lambda _: (next(scores), 0.0))
    first = again(None, max_epochs=1)
    steps.hooks[steps.taken + 2 * STEPS + 2] = ctrl_c
    with pytest.warns(
        InterruptedWarning, match=r"after 2 of 3 epochs; the model has the best weights so far, of epoch 1\."
    ):
        model = again(path)
    assert digest(model._vae.state_dict()) == digest(first._vae.state_dict())
    assert model.training["epoch"].tolist() == [1.0, 2.0]  # the third was not whole
    assert model.impute(visits()).notna().all(axis=None)
    state = read(path)[0]["state"]
    assert (state["epoch"], state["step"]) == (2, 2)  # brought up to date, though it was not time
    steps.taken = 0
    done = again(path)
    assert steps.taken == STEPS - 2
    assert done.training["validation"].tolist() == [1.0, 0.0, 0.5]
    assert digest(done._vae.state_dict()) == digest(first._vae.state_dict())  # still the best
    assert not done.interrupted
    assert os.listdir(tmp_path) == []


def test_ctrl_c_in_the_first_epoch_leaves_a_model_too(steps, tmp_path):
    steps.hooks[1] = ctrl_c
    with pytest.warns(InterruptedWarning, match=r"after 0 of 3 epochs; the model has the last weights\.$"):
        model = again(None)
    assert len(model.training) == 0
    assert "less than an epoch" in model.describe()
    model.save(tmp_path / "m")
    found = load(tmp_path / "m")
    assert found.predict(visits()).equals(model.predict(visits()))
    assert list(found.training) == ["epoch"]


def test_ctrl_c_before_the_first_step_raises(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(GPPriorVAE, "_assemble", ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            again(tmp_path / "c")
    monkeypatch.setattr(lacova.training.loop, "progress", lambda *_: (ctrl_c(), nullcontext())[1])
    with pytest.raises(KeyboardInterrupt):
        again(tmp_path / "c")
    assert os.listdir(tmp_path) == []


def test_a_second_ctrl_c_raises_at_once(steps, monkeypatch, tmp_path):
    def twice(*_):
        ctrl_c()
        ctrl_c()

    steps.hooks[3] = lambda: monkeypatch.setattr(InducingPoints, "natural_step", twice)
    with pytest.raises(KeyboardInterrupt):
        again(tmp_path / "c", checkpoint_every=2)
    assert steps.taken == 3
    assert read(tmp_path / "c")[0]["state"]["step"] == 2  # nothing was written from the torn step
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_after_the_last_step_is_no_interruption(alone, steps):
    steps.hooks[3 * STEPS] = ctrl_c
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(again(None), alone)


def test_handlers_of_others_are_left_alone():
    heard = []
    for theirs in (lambda *_: heard.append(1), signal.SIG_IGN):
        signal.signal(signal.SIGINT, theirs)
        with deferred_interrupt() as interrupt:
            ctrl_c()
        assert signal.getsignal(signal.SIGINT) is theirs
        assert not interrupt.requested
    assert heard == [1]


def test_a_fit_in_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(cvae(max_epochs=2)))
    thread.start()
    thread.join()
    assert len(found[0].training) == 2


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


def test_the_command_is_interrupted_and_goes_on(home, steps, tmp_path, capsys):
    assert fit(home, "--out", tmp_path / "independent_noise") == 0
    run, file = tmp_path / "run", tmp_path / "run.checkpoint"
    steps.hooks[steps.taken + 6] = ctrl_c
    assert fit(home, "--out", run) == 130
    text = capsys.readouterr()
    told = f"lacova: interrupted; the model with the best weights so far is in {run}."
    assert text.err == f"{told} The same command with --resume goes on.\n"
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
    assert (run / "model.lacova").read_bytes() == (tmp_path / "independent_noise" / "model.lacova").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["independent_noise", "run"]
    assert fit(home, "--out", run, "--resume") == 1  # there is nothing to go on from, and a model to lose
    assert "there is a model in" in capsys.readouterr().err


def test_the_command_starts_again_by_force(home, steps, tmp_path, capsys):
    steps.hooks[1] = ctrl_c
    assert fit(home, "--out", tmp_path / "run", "--json") == 130
    assert '"epoch"' not in capsys.readouterr().out
    steps.taken = 0
    assert fit(home, "--out", tmp_path / "run", "--force") == 0
    assert steps.taken == 12
    assert os.listdir(tmp_path) == ["run"]
    steps.hooks[13] = ctrl_c
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


def test_ctrl_c_from_outside(home, tmp_path):
    words = [
        "fit",
        home / "data.csv",
        "--schema",
        home / "s.toml",
        *TRAIN,
        "--epochs",
        "1000000",
        "--out",
        tmp_path / "run",
    ]
    command = [sys.executable, "-c", CHILD, *map(str, words), "--checkpoint-every", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        while not (tmp_path / "run.checkpoint").exists() and child.poll() is None:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        error = child.stderr.read()
    assert child.returncode == 130, error
    assert "The same command with --resume goes on." in error
    assert load(tmp_path / "run" / "model.lacova").predict(visits()).notna().all(axis=None)
    assert sorted(os.listdir(tmp_path)) == ["run", "run.checkpoint"]
