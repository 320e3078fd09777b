"""Ctrl-C: training ends after the step, and the model can be used."""

import os
import signal
import threading
import warnings
from contextlib import nullcontext

import pytest

from lacova import load
from lacova.data.io.archive import digest, read
from lacova.models import fitting
from lacova.priors.gp.inducing import InducingPoints
from lacova.training import trainer
from lacova.training.interrupt import InterruptedWarning, deferred_interrupt
from lacova.training.step import Validator
from tests.training.cases import STEPS, fit_cvae, fit_gp, press_ctrl_c, same, visits


def interrupt_natural_step(monkeypatch, count):
    """Press Ctrl-C between the optimiser's step and the natural gradient's, in the step of that number."""
    take, calls = InducingPoints.natural_step, []

    def natural_step(*args):
        calls.append(1)
        if len(calls) == count:
            press_ctrl_c()
        take(*args)

    monkeypatch.setattr(InducingPoints, "natural_step", natural_step)


def test_ctrl_c_lets_the_step_end_and_keeps_the_last_weights(monkeypatch, steps, tmp_path):
    two_epochs = fit_gp(validation=False, max_epochs=2, schedule="constant")
    steps.taken = 0
    interrupt_natural_step(monkeypatch, 2 * STEPS)
    with pytest.warns(
        InterruptedWarning, match="interrupted after 2 of 9 epochs; the model has the last weights. To go on"
    ):
        model = fit_gp(checkpoint=tmp_path / "c", validation=False, max_epochs=9, schedule="constant")
    assert steps.taken == 2 * STEPS
    assert same(model, two_epochs)
    assert model.interrupted
    assert not two_epochs.interrupted
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = fit_gp(checkpoint=tmp_path / "c", validation=False, max_epochs=9, schedule="constant")
    assert same(resumed, fit_gp(validation=False, max_epochs=9, schedule="constant"))


def test_ctrl_c_restores_the_best_weights_and_training_can_continue(steps, tmp_path, monkeypatch):
    path, scores = tmp_path / "c", iter([1.0, 1.0, 0.0, 0.5])
    monkeypatch.setattr(Validator, "__call__", lambda _: (next(scores), 0.0))
    first = fit_gp(max_epochs=1, schedule="constant")
    steps.hooks[steps.taken + 2 * STEPS + 2] = press_ctrl_c
    with pytest.warns(
        InterruptedWarning, match=r"after 2 of 3 epochs; the model has the best weights so far, of epoch 1\."
    ):
        model = fit_gp(checkpoint=path, schedule="constant")
    assert digest(model.vae.state_dict()) == digest(first.vae.state_dict())
    assert model.training["epoch"].tolist() == [1.0, 2.0]  # the third was not complete
    assert model.impute(visits()).notna().all(axis=None)
    state = read(path)[0]["state"]
    assert (state["epoch"], state["step"]) == (2, 2)  # up to date, though the next one was not due
    steps.taken = 0
    done = fit_gp(checkpoint=path, schedule="constant")
    assert steps.taken == STEPS - 2
    assert done.training["validation"].tolist() == [1.0, 0.0, 0.5]
    assert digest(done.vae.state_dict()) == digest(first.vae.state_dict())  # still the best
    assert not done.interrupted
    assert os.listdir(tmp_path) == []


def test_ctrl_c_in_the_first_epoch_leaves_a_model_too(steps, tmp_path):
    steps.hooks[1] = press_ctrl_c
    with pytest.warns(InterruptedWarning, match=r"after 0 of 3 epochs; the model has the last weights\.$"):
        model = fit_gp()
    assert len(model.training) == 0
    assert "less than an epoch" in model.describe()
    model.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert loaded.predict(visits()).equals(model.predict(visits()))
    assert list(loaded.training) == ["epoch"]


def test_ctrl_c_before_the_first_step_raises(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "build", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            fit_gp(checkpoint=tmp_path / "c")
    monkeypatch.setattr(trainer, "progress", lambda *_: (press_ctrl_c(), nullcontext())[1])
    with pytest.raises(KeyboardInterrupt):
        fit_gp(checkpoint=tmp_path / "c")
    assert os.listdir(tmp_path) == []


def test_a_second_ctrl_c_raises_at_once(steps, monkeypatch, tmp_path):
    def twice(*_):
        press_ctrl_c()
        press_ctrl_c()

    steps.hooks[3] = lambda: monkeypatch.setattr(InducingPoints, "natural_step", twice)
    with pytest.raises(KeyboardInterrupt):
        fit_gp(checkpoint=tmp_path / "c", checkpoint_every=2)
    assert steps.taken == 3
    assert read(tmp_path / "c")[0]["state"]["step"] == 2  # nothing was written from the torn step
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_after_the_last_step_is_no_interruption(uninterrupted, steps):
    steps.hooks[3 * STEPS] = press_ctrl_c
    with warnings.catch_warnings():
        warnings.simplefilter("error", InterruptedWarning)
        assert same(fit_gp(), uninterrupted)


def test_handlers_of_others_are_left_alone():
    calls = []
    for handler in (lambda *_: calls.append(1), signal.SIG_IGN):
        signal.signal(signal.SIGINT, handler)
        with deferred_interrupt() as interrupt:
            press_ctrl_c()
        assert signal.getsignal(signal.SIGINT) is handler
        assert not interrupt.requested
    assert calls == [1]


def test_a_fit_runs_in_another_thread():
    models = []
    thread = threading.Thread(target=lambda: models.append(fit_cvae(max_epochs=2)))
    thread.start()
    thread.join()
    assert len(models[0].training) == 2
