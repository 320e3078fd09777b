"""Every Python snippet in the documentation runs as it stands."""

import doctest
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

import lacova.datasets.digits
import lacova.datasets.health
import lacova.datasets.masks
import lacova.datasets.sources
import lacova.datasets.sparse
import lacova.datasets.trial
import lacova.datasets.truth
import lacova.models
import lacova.pooling
import lacova.schema
import lacova.sklearn
from lacova.cli import main

ROOT = Path(__file__).parents[1]
SNIPPETS = [
    pytest.param(code, id=f"{path.name}-{k}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    for k, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.S))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {})


def test_the_first_example_in_python_and_in_the_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## First example")[1].split("\n## ")[0]
    python, shell = (re.findall(rf"```{kind}\n(.*?)```", text, flags=re.S)[0] for kind in ("python", "sh"))
    assert len(python.strip().split("\n")) <= 15
    assert len(shell.strip().split("\n")) <= 15
    exec(compile(python, "README", "exec"), {})
    for line in shell.strip().split("\n"):
        command, *words = shlex.split(line)
        assert command == "lacova"
        assert main(words) == 0, capsys.readouterr().err
    done = pd.read_csv(tmp_path / "completed.csv")
    assert done.notna().all().all()
    assert {"alt_lower", "day_upper"} <= set(done)
    assert len(pd.read_csv(tmp_path / "predicted.csv")) == 200


@pytest.mark.parametrize(
    "module",
    [
        lacova.schema,
        lacova.models,
        lacova.pooling,
        lacova.sklearn,
        lacova.datasets.digits,
        lacova.datasets.health,
        lacova.datasets.masks,
        lacova.datasets.sources,
        lacova.datasets.sparse,
        lacova.datasets.trial,
        lacova.datasets.truth,
    ],
)
def test_docstring_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0
