import ast
import importlib
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pandas as pd
import pytest

import lacova

ROOT = Path(lacova.__file__).parent

# The rooms of the house, lowest first: a package imports from itself and from those before it.
ROOMS = [
    "data", "nn", "likelihoods", "covariates", "priors", "inference", "training", "models", "analysis", "sklearn",
    "datasets", "testing", "plot", "report", "cli",
]  # fmt: skip


def imported(source):
    """The rooms that a source imports from, anywhere in it."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    assert not any(node.level for node in froms), "imports are absolute, so that this rule sees them"
    names += [f"{node.module}.{alias.name}" for node in froms for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("lacova.")} & set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room):
    paths = [*(ROOT / room).rglob("*.py"), *ROOT.glob(f"{room}.py")]
    rooms = set().union(*(imported(path.read_text(encoding="utf-8")) for path in paths))
    assert rooms <= set(ROOMS[: ROOMS.index(room) + 1]), f"{room} imports {rooms}"


def test_every_room_has_its_place():
    assert {path.stem for path in ROOT.iterdir() if path.name[0] not in "_."} - {"py"} == set(ROOMS)


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("import lacova.models.base", {"models"}),
        ("from lacova.priors.gp import formula", {"priors"}),
        ("from lacova import training", {"training"}),
        ("def f():\n    from lacova.nn.linalg import cholesky", {"nn"}),
        ("from lacova import __version__\nimport torch, pandas.core", set()),
    ],
)
def test_the_check_itself(source, rooms):
    assert imported(source) == rooms


def test_a_relative_import_is_refused():
    with pytest.raises(AssertionError, match="absolute"):
        imported("from ..models import base")


IMPORT = """
import logging, sys
import lacova
assert "torch" not in sys.modules, "torch takes seconds"
import torch
before = torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state().tolist(), torch.is_grad_enabled()
handlers = list(logging.getLogger().handlers)
from lacova import *
assert (
    torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state().tolist(), torch.is_grad_enabled()
) == before, "torch settings"
assert logging.getLogger().handlers == handlers, "log handlers"
unwanted = {"matplotlib", "formulaic", "gpytorch", "lightning_fabric", "plotly", "polars", "sklearn"}
loaded = unwanted & {name.split(".")[0] for name in sys.modules}
assert not loaded, loaded
assert not {"lacova.sklearn", "scipy.optimize", "scipy.stats"} & set(sys.modules)
"""


def test_import_is_quiet_light_and_without_side_effects():
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


LIGHT = """
import sys
import traceback
import lacova.datasets.sdtm  # what `study` calls
from lacova.cli import main
for command in sys.argv[1:]:
    assert main(command.split()) == 0, command
    assert "torch" not in sys.modules, command
"""


def test_commands_that_do_not_need_torch_do_not_wait_for_it(tmp_path):
    gaps = pd.DataFrame({"age": range(9), "hb": [None, *range(8)]})
    gaps.to_csv(tmp_path / "gaps.csv", index=False)
    completed = pd.concat([gaps.fillna(3.0), gaps.fillna(5.0)], keys=[0, 1], names=["draw", "row"])
    completed.to_csv(tmp_path / "long.csv")
    commands = [
        "--version",
        "fit --help",
        "schema gaps.csv",
        "shift long.csv gaps.csv --add hb=1 --out shifted.csv",
        "pool shifted.csv --formula hb~age",
    ]
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, *commands], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_names_come_from_where_they_live_when_asked_for():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    told = next(node for node in tree.body if isinstance(node, ast.If)).body  # to type checkers
    homes = {node.module: [part.name for part in node.names] for node in told if isinstance(node, ast.ImportFrom)}
    assert homes == {f"lacova.{home}": names for home, names in lacova._HOMES.items()}
    named = {name for names in lacova._HOMES.values() for name in names}
    assert {*named, "__version__"} == set(lacova.__all__) <= set(dir(lacova))
    assert lacova.CVAE is importlib.import_module("lacova.models.cvae").CVAE
    with pytest.raises(AttributeError, match="no attribute 'CVEA'"):
        lacova.CVEA  # noqa: B018


def test_the_page_states_the_true_frames_from_fit_to_the_bound(monkeypatch):
    from lacova.priors.gp import prior

    stacks = []
    row_bound = prior.row_bound

    def recorded(*arguments):
        stacks.append(traceback.extract_stack()[:-1])
        return row_bound(*arguments)

    monkeypatch.setattr(prior, "row_bound", recorded)
    table = pd.DataFrame({"age": range(9), "hb": range(9)})
    schema = lacova.Schema(["hb"], {"age": "continuous"})
    lacova.GPPriorVAE(schema, latent_dim=1, inducing=3).fit(table, max_epochs=1, device="cpu")
    frames = [(Path(f.filename), f.name) for f in stacks[0] if ROOT in Path(f.filename).parents]
    frames = [(path.relative_to(ROOT).as_posix(), name) for path, name in frames]
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^([\w/]+\.py) +(\w+)$", page, flags=re.M)
    assert [*frames, ("priors/gp/bounds.py", "row_bound")] == listed
    assert len(listed) <= 8


def private(tree):
    """The private names that a source uses of other objects, or imports from lacova."""
    nodes = list(ast.walk(tree))
    used = {n.attr for n in nodes if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") not in ("self", "cls")}
    froms = [n for n in nodes if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("lacova")]
    used |= {alias.name for n in froms for alias in n.names}
    return {name for name in used if name.startswith("_") and not name.startswith("__")}


def test_tests_touch_private_parts_of_their_own_module_only():
    tests = ROOT.parents[1] / "tests"
    sources = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    everything = "\n".join(sources.values())
    foreign = []
    for path in tests.rglob("test_*.py"):
        own = path.relative_to(tests).with_name(path.name.removeprefix("test_"))
        text = sources.get(own, "") + sources.get(own.with_suffix("") / "__init__.py", "")
        names = private(ast.parse(path.read_text(encoding="utf-8"))) - {"_replace", "_exit"}  # of Python itself
        foreign += [f"{path.name}: {n}" for n in names if re.search(rf"\b{n}\b", everything) and n not in text]
    assert foreign == ["test_architecture.py: _HOMES"]
