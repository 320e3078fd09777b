"""Ctrl-C as in a terminal, steps that are counted, and a fit that nothing interrupts."""

import signal
from types import SimpleNamespace

import pytest

from lacova.training.step import Step
from tests.training.cases import fit_gp, hooked_step


@pytest.fixture(autouse=True)
def _python_handler():
    """Handle Ctrl-C as in a terminal, wherever the tests run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def steps(monkeypatch):
    """Count the steps that are `taken`; `hooks[n]` is called after the n-th."""
    counter = SimpleNamespace(taken=0, hooks={})

    def count():
        counter.taken += 1
        counter.hooks.pop(counter.taken, lambda: None)()

    monkeypatch.setattr(Step, "__init__", hooked_step(count))
    return counter


@pytest.fixture(scope="session")
def uninterrupted():
    return fit_gp()
