"""Every snippet in the documentation runs as it stands, in Python and in the shell.

Two things differ from a reader's terminal: fits are short, and the recipes for several machines run on this one.
"""

import doctest
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from tools import notebooks

import lacova.comparison
import lacova.datasets.digits
import lacova.datasets.health
import lacova.datasets.sources
import lacova.datasets.sparse
import lacova.datasets.trial
import lacova.datasets.truth
import lacova.family
import lacova.masks
import lacova.models
import lacova.pooling
import lacova.regression
import lacova.schema
import lacova.sensitivity
import lacova.sklearn
import lacova.unconditional
from lacova.cli import main
from lacova.schema import Schema

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "tutorials" / "clinical.md"  # whose snippets belong together and need data
SESSIONS = [ROOT / "docs" / "index.md", *(page for page in notebooks.PAGES if page != TUTORIAL)]  # one after another
SNIPPETS = [
    pytest.param(code, id=f"{path.name}-{k}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    if path != TUTORIAL and path not in SESSIONS
    for k, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.S))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {})


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_session(page, tmp_path, monkeypatch):
    """The cells of a notebook, or the blocks of a page, in one namespace; fits are short.

    Commands that a page has in common with the pages on scaling and interruption are run by the tests of those.
    """
    elsewhere = {code.strip("\n") for code in (*shell_of("scaling.md"), *shell_of("interruption.md"))}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    known, run = {}, 0
    for kind, source in notebooks.cells(page):
        if kind != "code":
            continue
        if source.startswith("%%bash\n"):
            command = source.removeprefix("%%bash\n")
            if command not in elsewhere:
                in_bash([command], tmp_path)
        else:
            exec(compile(re.sub(r"max_epochs=\d+", "max_epochs=2", source), page.name, "exec"), known)
        run += 1
    assert run == len(re.findall(r"^```(?:python|sh)$", page.read_text(encoding="utf-8"), flags=re.M)) > 1


@pytest.mark.parametrize("page", notebooks.PAGES, ids=lambda page: page.stem)
def test_notebooks_are_those_of_the_pages(page):
    text = (notebooks.FOLDER / f"{page.stem}.ipynb").read_text(encoding="utf-8")
    assert text == notebooks.notebook(page), "run `python tools/notebooks.py`"
    for target in re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", "".join(
        line for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown" for line in cell["source"]
    )):  # fmt: skip
        assert (notebooks.FOLDER / target).exists(), target


def test_links_between_pages_lead_somewhere():
    """Where the pages lie in the repository; `make docs` asks the same of the site."""
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        for target in re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_navigation_lists_every_page_once():
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.M)
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("**/*.md")]
    assert sorted(listed) == sorted([*pages, "CONTRIBUTING.md", "CHANGELOG.md"])


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
        shorter = ["--epochs", "20"] if words[0] == "fit" else []
        assert main(words + shorter) == 0, capsys.readouterr().err
    done = pd.read_csv(tmp_path / "completed.csv")
    assert done.notna().all().all()
    assert {"alt_lower", "day_upper"} <= set(done)
    assert len(pd.read_csv(tmp_path / "predicted.csv")) == 200


# A fit of two epochs in the place of a long one, and a quiet pip: the environment is there already.
SHELL = """
set -eu
lacova() { if [ "$1" = fit ]; then command lacova "$@" --epochs 2; else command lacova "$@"; fi; }
torchrun() { command torchrun "$@" --epochs 2; }
pip() { :; }
srun() { shift; "$@"; }
"""
# What a recipe for several machines says of them, and what this machine has.
ONE_MACHINE = {"--nnodes 2": "--nnodes 1", "--nproc-per-node 4": "--nproc-per-node 2", "--devices 4": "--devices 2",
               "--nodes 2": "--nodes 1"}  # fmt: skip


def shell_of(page: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.S)


def in_bash(blocks: list[str], folder: Path) -> str:
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "\n".join([SHELL, *blocks])], cwd=folder, env=os.environ | {"PATH": tools}, text=True,
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def visits(folder: Path) -> None:
    """The small table of visits, as CSV and Parquet, that the pages on training speak of."""
    python = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)[0]
    lines = python.split("\n")
    until = next(k for k, line in enumerate(lines) if line.startswith("table.to_csv"))
    code = "\n".join(lines[: until + 1]).replace("visits.csv", str(folder / "visits.csv"))
    exec(compile(code, "README", "exec"), found := {})
    found["table"].to_parquet(folder / "visits.parquet")
    schema = Schema.infer(found["table"], instance="id", time="day")
    (folder / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")


def test_no_page_has_a_kind_of_snippet_that_is_not_run():
    run = {"python", "sh", "text", "toml"}  # text is output, and TOML is read by the tests of the schema
    shell = {"README.md", "pbc.md", "sdtm.md", "interruption.md", "scaling.md", "reproduction.md", "report.md"}
    shell |= {"clinical-study.md", TUTORIAL.name, *(page.name for page in SESSIONS)}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        kinds = set(re.findall(r"^```(\S+)$", path.read_text(encoding="utf-8"), flags=re.M))
        assert kinds <= run, path.name
        assert "sh" not in kinds or path.name in shell, f"{path.name} has shell snippets that no test runs"


@pytest.mark.skipif("LACOVA_DATA" not in os.environ, reason="LACOVA_DATA is not set")
def test_the_session_with_a_real_table(tmp_path):
    shutil.copy(Path(os.environ["LACOVA_DATA"]) / "pbcseq.csv", tmp_path)
    printed = in_bash(shell_of("pbc.md"), tmp_path)
    assert "coverage90" in printed
    completed = pd.read_csv(tmp_path / "completed.csv")
    assert len(completed) == len(pd.read_csv(tmp_path / "pbcseq.csv"))
    assert len(pd.read_csv(tmp_path / "draws.csv")) == 20 * len(completed)
    assert (pd.read_csv(tmp_path / "forecast.csv")["id"] == 294).all()


@pytest.mark.skipif("LACOVA_DATA" not in os.environ, reason="LACOVA_DATA is not set")
def test_the_session_with_raw_domains(tmp_path):
    shutil.copytree(Path(os.environ["LACOVA_DATA"]) / "cdiscpilot01", tmp_path / "cdiscpilot01")
    page = (ROOT / "docs" / "sdtm.md").read_text(encoding="utf-8")
    assert in_bash(shell_of("sdtm.md"), tmp_path) == "".join(re.findall(r"```text\n(.*?)```", page, flags=re.S))
    assert (tmp_path / "run").is_dir()


# What makes the commands of the tutorial quick.
TINY = {"fit": ["--epochs", "1"], "effects": ["--draws", "2"], "whatif": ["--draws", "4"], "filter": ["--draws", "4"],
        "score": ["--draws", "4"]}  # fmt: skip


@pytest.mark.skipif("LACOVA_DATA" not in os.environ, reason="LACOVA_DATA is not set")
def test_the_clinical_tutorial(tmp_path, monkeypatch, capsys):
    (tmp_path / "cdiscpilot01").symlink_to(Path(os.environ["LACOVA_DATA"]) / "cdiscpilot01")
    monkeypatch.chdir(tmp_path)
    used = set()
    for kind, block in re.findall(r"```(python|sh)\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), flags=re.S):
        if kind == "python":
            exec(compile(block, TUTORIAL.name, "exec"), {})
            continue
        for line in block.replace("\\\n", " ").strip().split("\n"):
            command, *words = shlex.split(line)
            if command != "lacova":
                subprocess.run([command, *words], check=True)
                continue
            assert main([*words, *TINY.get(words[0], [])]) == 0, capsys.readouterr().err
            used.add(words[0])
    assert used == {
        "study", "fit", "score", "filter", "impute", "shift", "pool", "predict", "effects", "whatif",
    }  # fmt: skip
    assert "patients have no visit in weeks 22 to 28" in capsys.readouterr().out
    forecast, asked = pd.read_csv("forecast.csv"), pd.read_csv("future.csv")
    assert forecast["patient"].tolist() == asked["patient"].tolist()
    assert (forecast["ALT_lower"] < forecast["ALT_upper"]).all()
    assert not pd.read_csv("ahead.csv")["ALT"].equals(pd.read_csv("ahead.aspirin.csv")["ALT"])
    assert pd.read_csv("completed.csv").notna().all().all()


def test_the_shell_of_the_page_on_interruption(tmp_path):
    visits(tmp_path)
    first, resumed = shell_of("interruption.md")[0].strip().split("\n")
    in_bash([f"timeout --signal KILL 3 {first.split('#')[0]} --epochs 100000 || true", resumed], tmp_path)
    assert (tmp_path / "run").is_dir()


def test_the_shell_of_the_page_on_the_report(tmp_path, monkeypatch):
    visits(tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in shell_of("report.md")[0].strip().split("\n"):
        command, *words = shlex.split(line)
        assert command == "lacova"
        assert main([*words, *({"fit": ["--epochs", "1"], "report": ["--draws", "10"]}[words[0]])]) == 0
    assert "Left out, as asked" in (tmp_path / "summary.html").read_text(encoding="utf-8")
    assert "Left out, as asked" not in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", range(3))
def test_the_shell_of_the_page_on_scaling(block, tmp_path):
    visits(tmp_path)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    code = shell_of("scaling.md")[block]
    for machines, here in ({"FIRST:29500": f"localhost:{port}"} | ONE_MACHINE).items():
        code = code.replace(machines, here)
    in_bash([code], tmp_path)
    assert (tmp_path / "run").is_dir()


@pytest.mark.parametrize(
    "module",
    [
        lacova.schema,
        lacova.family,
        lacova.models,
        lacova.comparison,
        lacova.unconditional,
        lacova.pooling,
        lacova.regression,
        lacova.sensitivity,
        lacova.sklearn,
        lacova.datasets.digits,
        lacova.datasets.health,
        lacova.masks,
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
