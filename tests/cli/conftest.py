"""A model fitted from the shell."""

import pytest

from lacova.data.io.files import write_table
from tests.cli.cases import QUICK, shell, visits


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """Return a folder with a table, its schema and a model, all written from the shell."""
    folder = tmp_path_factory.mktemp("home")
    write_table(visits(), folder / "data.csv")
    roles = ("--instance", "id", "--time", "day", "-m", "alt", "-m", "ast")
    assert shell("schema", folder / "data.csv", *roles, "--out", folder / "s.toml", "--quiet") == 0
    words = ("fit", folder / "data.csv", "--schema", folder / "s.toml", "--out", folder / "run", *QUICK, "--quiet")
    assert shell(*words) == 0
    return folder
