"""Property tests draw new examples on every run at a desk, and the same ones in continuous integration."""

import os

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(autouse=True, scope="session")
def without_a_gpu():
    """The device "auto" is the CPU in every test, also where there is a GPU; tests of that one name it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lacova.models.base._best_device", lambda: "cpu")
        yield
