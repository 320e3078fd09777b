"""Every snippet in the documentation runs as it stands, in Python and in the shell.

What differs from a reader's terminal: fits are short, draws few, and recipes for several machines run on this one.
Most commands of lacova run in this process, for a new one takes seconds to start.
"""

import contextlib
import doctest
import io
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
from tools import notebooks, outputs

import lacova.analysis.comparison
import lacova.analysis.correlations
import lacova.analysis.permutation
import lacova.analysis.pooling
import lacova.analysis.recovery
import lacova.analysis.regression
import lacova.analysis.sensitivity
import lacova.analysis.wald
import lacova.data.masks
import lacova.data.registry
import lacova.data.schema.roles
import lacova.datasets.digits
import lacova.datasets.health
import lacova.datasets.sources
import lacova.datasets.sparse
import lacova.datasets.trial
import lacova.datasets.truth
import lacova.models.base
import lacova.models.cvae
import lacova.models.gppvae
import lacova.models.gpvae
import lacova.models.hivae
import lacova.models.lvae
import lacova.models.miwae
import lacova.models.vae
import lacova.sklearn
from lacova.cli import main
from lacova.data.schema import Schema
from lacova.training import options

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "tutorials" / "clinical.md"  # whose snippets belong together and need data
SESSIONS = [ROOT / "docs" / "index.md", *(page for page in notebooks.PAGES if page != TUTORIAL)]  # one after another
SNIPPETS = [
    pytest.param(code, id=f"{path.name}-{k}")
    for path in sorted((ROOT / "docs").glob("**/*.md"))
    if path != TUTORIAL and path not in SESSIONS
    for k, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.S))
]


@pytest.fixture
def short_fits(monkeypatch):
    """Fits without `max_epochs` take a tenth of their steps, and have two members."""
    monkeypatch.setattr(options, "CYCLE_STEPS", options.CYCLE_STEPS // 10)
    monkeypatch.setattr(options, "DEFAULT_MEMBERS", 2)


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet(code, tmp_path, monkeypatch, short_fits):
    monkeypatch.chdir(tmp_path)
    exec(compile(quick(code), "snippet", "exec"), {})


def quick(code: str) -> str:
    """Short fits, reports of few draws, and loops of the shell twice at most, for a command takes seconds to start."""
    code = re.sub(r"max_epochs=\d+", "max_epochs=2", code)
    code = re.sub(r"^(report\.write\(.*?)(?:, draws=\d+)?\)$", r"\1, draws=10)", code, flags=re.M)
    return re.sub(r"^(for \w+ in \S+ \S+)(?: \S+)+; do$", r"\1; do", code, flags=re.M)


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_session(page, tmp_path, monkeypatch):
    """The cells of a notebook, or the blocks of a page, in one namespace; fits are short, draws few.

    Commands that a page has in common with the pages on scaling and interruption are run by the tests of those.
    """
    elsewhere = {*shell_of("scaling.md"), *shell_of("interruption.md")}
    monkeypatch.setenv("MPLBACKEND", "agg")
    played = outputs.play(page, tmp_path, SHELL, quick, elsewhere.__contains__)
    run = [block.kind for block, _ in played]
    assert len(run) == len(re.findall(r"^```(?:python|sh)$", page.read_text(encoding="utf-8"), flags=re.M)) > 1


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a 1\n", "a 2  \nb 3\n", "a 2\nb 3\n"),
        ("id 1\n…\nALT 3 4\n…\n", "id 5\nALB 6 6\nALT 7 8\nAST 9 9\n", "id 5\n…\nALT 7 8\n…\n"),
        ("id 1\n…\n\nsum 3\n", "id 5\nALB 6 6\n\nsum 7\n", "id 5\n…\n\nsum 7\n"),
        ("id,x\n1,2.34…,5.67…\n", "id,x\n1,12.3456,0.9876\n", "id,x\n1,12.34…,0.98…\n"),
        ("prior   a + … + d\n", "prior   e + f + g + h\n", "prior   e + … + h\n"),
        ("prior a + …\n", "prior b + c + d\n", "prior b + …\n"),
        ("prior a + b … c + d\n", "prior b + c\n", "prior b + c\n"),
    ],
)
def test_what_a_page_shortens_stays_shortened(shown, printed, expected):
    assert outputs.shortened(printed, shown) == expected


def test_a_line_that_is_printed_no_longer_is_an_error():
    with pytest.raises(ValueError, match="no line like 'ALT 3 4' is printed any more"):
        outputs.shortened("id 5\nALB 6 6\n", "id 1\n…\nALT 3 4\n")


def test_output_is_renewed_where_it_stands(tmp_path):
    """Right below its block, or as a transcript; text below a paragraph is the author's. One namespace, one folder."""
    page, folder = tmp_path / "page.md", tmp_path / "folder"
    folder.mkdir()
    code = (
        "```python\nx = 3\nprint(x)\n```\n\n```text\n{}\n```\n```sh\necho y > f; echo {} >&2\n```\n```text\n{}\n```\n"
    )
    rest = "```python\nprint(x)\n```\nSee.\n```text\nkept\n```\n```text\n$ cat f; false\n{}\n```\n"
    page.write_text(code.format("2", "seen", "old") + rest.format("z"), encoding="utf-8")
    assert outputs.renewed(page, folder) == code.format("3", "seen", "seen") + rest.format("y")


def test_every_page_whose_output_is_renewed_has_some():
    for name in outputs.PAGES:
        found = outputs.blocks((ROOT / "docs" / name).read_text(encoding="utf-8"))
        assert [block for block in found if block.kind == "text" and (block.below or block.text.startswith("$ "))], name


@pytest.mark.parametrize("page", notebooks.PAGES, ids=lambda page: page.stem)
def test_notebooks_are_those_of_the_pages(page):
    text = (notebooks.FOLDER / f"{page.stem}.ipynb").read_text(encoding="utf-8")
    assert text == notebooks.notebook(page), "run `python -m tools.notebooks`"
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


def test_the_site_builds_without_a_warning(tmp_path):
    """A link to nowhere, a docstring that cannot be read or a fetch from another place is found here."""
    for needed in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(needed, reason="mkdocs is not installed: pip install '.[docs]'", exc_type=ImportError)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")], cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, text=True, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for listed in ("index.html", "reference/looking.html", "tutorials/table.html", "CHANGELOG.html"):
        assert (tmp_path / "site" / listed).is_file(), listed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p(Y_o | X_o)", "p(Y<sub>o</sub> | X<sub>o</sub>)"),
        ("E_{q(X_u)} KL", "E<sub>q(X<sub>u</sub>)</sub> KL"),
        ("p_λ(x), ℓ_r'², π_cj", "p<sub>λ</sub>(x), ℓ<sub>r</sub>'², π<sub>cj</sub>"),
        ("a_iᵀHa_i + K̃_ii", "a<sub>i</sub>ᵀHa<sub>i</sub> + K̃<sub>ii</sub>"),
        ("tr H a_pΣ̂_p⁻¹a_pᵀ", "tr H a<sub>p</sub>Σ̂<sub>p</sub>⁻¹a<sub>p</sub>ᵀ"),
        ("K_p^(R) + σ_z²I", "K<sub>p</sub><sup>(R)</sup> + σ<sub>z</sub>²I"),
        ("what_if, alk_phos, max_epochs, kl_x, tab:MSE_label", None),
        ("<code>x_u</code>, <pre><code>x_u</code> x_u</pre>, <a href='x_u.html' title=\"x_u\">", None),
        ("<code>x_u</code> x_u", "<code>x_u</code> x<sub>u</sub>"),
    ],
)
def test_formulas_are_set_on_the_site(text, expected):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")
    from tools.site import formulas

    assert formulas(text) == (text if expected is None else expected)


def test_the_first_example_in_python_and_in_the_shell(tmp_path, monkeypatch, capsys, short_fits):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    example = page.split("## First example")[1].split("\n## ")[0]
    python, shell, text = (
        re.findall(rf"```{kind}\n(.*?)```", example, flags=re.S)[0] for kind in ("python", "sh", "text")
    )
    assert page.count("```python") == 1
    assert len(re.findall(r"^\S", python, flags=re.M)) <= 10
    exec(compile(python, "README", "exec"), {})
    printed = [line.split() for line in capsys.readouterr().out.strip().split("\n")]
    shown = [line.split() for line in text.strip().split("\n")]
    assert printed[:5] == shown[:5]  # the table itself; what is filled in depends on the fit
    assert [len(line) for line in printed] == [len(line) for line in shown]
    assert printed[6] == shown[6]
    assert commands_in([shell]) == ["schema", "fit", "impute", "report"]
    in_this_process([shell])
    completed = pd.read_csv(tmp_path / "completed.csv")
    assert completed.notna().all().all()
    assert {"alt_lower", "day_upper"} <= set(completed)


# A fit of two epochs in the place of a long one, and few draws.
SHELL = f"""
{outputs.SHELL}
lacova() {{
  case "$1" in
    fit) command lacova "$@" --epochs 2 ;;
    report | score | filter) command lacova "$@" --draws 10 ;;
    *) command lacova "$@" ;;
  esac
}}
torchrun() {{ command torchrun "$@" --epochs 2; }}
"""
FEW = ["--draws", "10"]
SHORTER = {"fit": ["--epochs", "2"], "report": FEW, "score": FEW, "filter": FEW}
# What a recipe for several machines says of them, and what this machine has.
ONE_MACHINE = {"--nnodes 2": "--nnodes 1", "--nproc-per-node 4": "--nproc-per-node 2", "--devices 4": "--devices 2",
               "--nodes 2": "--nodes 1"}  # fmt: skip


def shell_of(page: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.S)


def in_bash(blocks: list[str], folder: Path) -> str:
    return outputs.in_bash("\n".join(blocks), folder, SHELL, errors=False)


def commands_in(blocks: list[str]) -> list[str]:
    """Return the commands of lacova, in order."""
    return [name for block in blocks for name in re.findall(r"^lacova (\w+)", block, flags=re.M)]


def in_this_process(blocks: list[str], shorter: dict[str, list[str]] = SHORTER) -> str:
    """Run commands in the current folder, those of lacova in this process, and return their output."""
    printed = []
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        command, *words = shlex.split(line, comments=True) or [":"]
        if command == "srun":
            command, *words = words[1:]
        if command != "lacova":
            printed.append(in_bash([line], Path()))
            continue
        words, file = (words[:-2], words[-1]) if ">" in words else (words, None)
        with contextlib.redirect_stdout(io.StringIO()) as text:
            assert main([*words, *shorter.get(words[0], [])]) == 0, line
        if file is None:
            printed.append(text.getvalue())
        else:
            Path(file).write_text(text.getvalue(), encoding="utf-8")
    return "".join(printed)


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
    shell |= {"clinical-study.md", "inference.md", TUTORIAL.name, *(page.name for page in SESSIONS)}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        kinds = set(re.findall(r"^```(\S+)$", path.read_text(encoding="utf-8"), flags=re.M))
        assert kinds <= run, path.name
        assert "sh" not in kinds or path.name in shell, f"{path.name} has shell snippets that no test runs"


@pytest.mark.skipif("LACOVA_DATA" not in os.environ, reason="LACOVA_DATA is not set")
def test_the_session_with_a_real_table(tmp_path, monkeypatch):
    shutil.copy(Path(os.environ["LACOVA_DATA"]) / "pbcseq.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "coverage90" in in_this_process(shell_of("pbc.md"))
    completed = pd.read_csv(tmp_path / "completed.csv")
    assert len(completed) == len(pd.read_csv(tmp_path / "pbcseq.csv"))
    assert len(pd.read_csv(tmp_path / "draws.csv")) == 20 * len(completed)
    assert (pd.read_csv(tmp_path / "forecast.csv")["id"] == 294).all()


@pytest.mark.skipif("LACOVA_DATA" not in os.environ, reason="LACOVA_DATA is not set")
def test_the_session_with_raw_domains(tmp_path, monkeypatch):
    shutil.copytree(Path(os.environ["LACOVA_DATA"]) / "cdiscpilot01", tmp_path / "cdiscpilot01")
    page = (ROOT / "docs" / "sdtm.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert in_this_process(shell_of("sdtm.md")) == "".join(re.findall(r"```text\n(.*?)```", page, flags=re.S))
    assert (tmp_path / "run").is_dir()


# What makes the commands of the tutorial quick.
TINY = {"fit": ["--epochs", "1"], "effects": ["--draws", "2"], "whatif": ["--draws", "4"], "filter": ["--draws", "4"],
        "score": ["--draws", "4"], "report": ["--draws", "10"]}  # fmt: skip


@pytest.mark.skipif("LACOVA_DATA" not in os.environ, reason="LACOVA_DATA is not set")
def test_the_clinical_tutorial(tmp_path, monkeypatch, capsys):
    (tmp_path / "cdiscpilot01").symlink_to(Path(os.environ["LACOVA_DATA"]) / "cdiscpilot01")
    monkeypatch.chdir(tmp_path)
    used = set()
    for kind, block in re.findall(r"```(python|sh)\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), flags=re.S):
        if kind == "python":
            exec(compile(block, TUTORIAL.name, "exec"), {})
            continue
        in_this_process([block], TINY)
        used.update(commands_in([block]))
    assert used == {
        "study", "fit", "score", "filter", "impute", "shift", "pool", "predict", "effects", "whatif", "report",
    }  # fmt: skip
    assert "patients have no visit in weeks 22 to 28" in capsys.readouterr().out
    forecast, asked = pd.read_csv("forecast.csv"), pd.read_csv("future.csv")
    assert forecast["patient"].tolist() == asked["patient"].tolist()
    assert (forecast["ALT_lower"] < forecast["ALT_upper"]).all()
    assert not pd.read_csv("ahead.csv")["ALT"].equals(pd.read_csv("ahead.aspirin.csv")["ALT"])
    assert pd.read_csv("completed.csv").notna().all().all()


def test_the_shell_of_the_page_on_interruption(tmp_path, monkeypatch):
    visits(tmp_path)
    monkeypatch.chdir(tmp_path)
    first, resumed = shell_of("interruption.md")[0].strip().split("\n")
    in_bash([f"timeout --signal KILL 3 {first.split('#')[0]} --epochs 100000 || true"], tmp_path)
    in_this_process([resumed])
    assert (tmp_path / "run").is_dir()


def test_the_shell_of_the_page_on_the_report(tmp_path, monkeypatch):
    visits(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert set(commands_in(shell_of("report.md")[:1])) == {"fit", "report"}
    in_this_process(shell_of("report.md")[:1])
    assert "Left out, as requested" in (tmp_path / "summary.html").read_text(encoding="utf-8")
    assert "Left out, as requested" not in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", range(3))
def test_the_shell_of_the_page_on_scaling(block, tmp_path, monkeypatch):
    visits(tmp_path)
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    code = shell_of("scaling.md")[block]
    for machines, here in ({"FIRST:29500": f"localhost:{port}"} | ONE_MACHINE).items():
        code = code.replace(machines, here)
    in_this_process([code])
    assert (tmp_path / "run").is_dir()


@pytest.mark.parametrize(
    "module",
    [
        lacova.data.registry,
        lacova.data.schema.roles,
        lacova.models.base,
        lacova.models.cvae,
        lacova.models.gppvae,
        lacova.models.gpvae,
        lacova.models.hivae,
        lacova.models.lvae,
        lacova.models.miwae,
        lacova.models.vae,
        lacova.analysis.comparison,
        lacova.analysis.correlations,
        lacova.analysis.pooling,
        lacova.analysis.recovery,
        lacova.analysis.regression,
        lacova.analysis.sensitivity,
        lacova.analysis.wald,
        lacova.sklearn,
        lacova.datasets.digits,
        lacova.datasets.health,
        lacova.data.masks,
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
