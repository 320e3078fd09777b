"""What the commands share: formats, mistakes and the program itself."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from lacova.cli.common import short
from lacova.data.io.files import read_table, write_table
from tests.cli.cases import shell, visits


def test_long_numbers_are_shortened():
    assert [short(value) for value in (1141.0752, 0.43681, 13862.5, -2e5)] == ["1141", "0.4368", "13862", "-200000"]
    assert short(float("nan")) == "nan"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("schema", "data.csv", "--time", "days"), "'sex', 'alt', 'ast'. Did you mean 'day'?"),
        (("schema", "data.csv", "--instance", "ID"), "Did you mean 'id'?"),
        (("fit", "data.csv", "--schema", "t.toml", "--out", "new"), "no file t.toml; `lacova schema data.csv --out t"),
        (("fit", "data.csv", "--schema", "typo.toml", "--out", "new"), "Did you mean 'alt'? Add them"),
        (("impute", "data.csv", "run"), "data.csv is a table; first name the folder that `lacova fit"),
        (("predict", "run", "x.csv", "--history", "other.csv"), "and their history together: static column"),
        (("predict", "run", "x.csv", "--history", "x.csv"), "history: column(s) 'alt', 'ast' are in"),
    ],
)  # fmt: skip
def test_natural_mistakes(home, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(home)
    text = (home / "s.toml").read_text(encoding="utf-8")
    (home / "typo.toml").write_text(text.replace("alt = ", "allt = "), encoding="utf-8")
    write_table(pd.DataFrame({"id": ["p01"], "day": [200.0], "sex": ["f"]}), home / "x.csv")
    write_table(visits(missing=0).replace({"sex": {"f": "m"}}), home / "other.csv")
    assert shell(*words) == 1
    assert message in capsys.readouterr().err


def test_the_module_is_the_same_command(home):
    words = [sys.executable, "-m", "lacova"]
    assert subprocess.run([*words, "--version"], capture_output=True, text=True, check=True).stdout == "0.1.0\n"
    text = subprocess.run([*words, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(name in text for name in ("schema", "fit", "impute", "predict", "score", "describe", "demo"))
    done = subprocess.run([*words, "score", home / "none", home / "data.csv"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("lacova: there is no model in")


COMMANDS = {
    "impute": (), "predict": (), "filter": ("--draws", 5), "score": ("--draws", 5), "effects": ("--draws", 5),
    "whatif": ("--set", "sex=f", "--draws", 5),
}  # fmt: skip


@pytest.mark.parametrize("command", [*COMMANDS, "report"])
def test_unseen_levels_are_one_sentence_or_none_or_refused(command, home, tmp_path, capsys):
    table = read_table(home / "data.csv")
    table["sex"], table["day"] = np.where(table["id"] == "p01", "x", table["sex"]), table["day"].fillna(0.0)
    write_table(table, tmp_path / "data.csv")
    words = (command, home / "run", tmp_path / "data.csv", *COMMANDS.get(command, ()))
    if command == "report":
        words = (command, home / "run", "--data", tmp_path / "data.csv", "--out", tmp_path / "a.html", "--draws", 10)
    assert shell(*words) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "never seen" in line]
    assert len(told) == 1
    assert told[0].startswith("lacova: 4 entries hold levels never seen in training, treated as missing: 4 of 'sex'")
    assert shell(*words, "--unseen", "missing") == 0
    assert "never seen" not in capsys.readouterr().err
    assert shell(*words, "--unseen", "error") == 1
    assert capsys.readouterr().err.startswith("lacova: column 'sex' holds 'x', never seen in training")
    assert shell(*words, "--unseen", "never") == 1
    assert "unseen is 'never'; expected one of warn, missing, error." in capsys.readouterr().err
