import ast
import importlib
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pandas as pd
import pytest

import lacova

ROOT = Path(lacova.__file__).parent

# The one order of the package: a module imports from those above it only.
ORDER = [
    "version",
    "errors",
    "masks",
    "atomic",
    "archive",
    "dataframes",
    "schema_infer",
    "schema_show",
    "schema_toml",
    "schema",
    "files",
    "labels",
    "scales",
    "columns",
    "parquet",
    "linalg",
    "covariates",
    "covariates.law",
    "covariates.space",
    "measurements",
    "survey",
    "table",
    "batches",
    "latents",
    "networks",
    "structured",
    "families",
    "likelihoods",
    "slopes",
    "intercepts",
    "missingness",
    "covariates.belief",
    "covariates.mixture",
    "covariates.em",
    "covariates.expectation",
    "covariates.prior",
    "covariates.longitudinal",
    "covariates.fill",
    "covariates.reading",
    "covariates.posterior",
    "covariates.recall",
    "gp",
    "gp.formula",
    "gp.factors",
    "gp.kernels",
    "gp.inducing",
    "gp.bounds",
    "gp.uncertain",
    "gp.predict",
    "gp.components",
    "priors",
    "series",
    "clusters",
    "vae",
    "weights",
    "objective",
    "options",
    "progress",
    "interrupt",
    "distributed",
    "rows",
    "stream",
    "capture",
    "step",
    "checkpoint",
    "fit",
    "predict",
    "impute",
    "metrics",
    "score",
    "frames",
    "longform",
    "moments",
    "effects",
    "whatif",
    "filtering",
    "snapshot",
    "answers",
    "model",
    "models",
    "unconditional",
    "family",
    "storage",
    "named",
    "pooling",
    "regression",
    "sensitivity",
    "comparison",
    "",  # lacova itself
    "sklearn",
    "datasets*",  # may import from one another
    "recovery",
    "plot.style",
    "plot.calibration",
    "plot.covariates",
    "plot.effects",
    "plot.fit",
    "plot.gaps",
    "plot.images",
    "plot.patients",
    "plot",
    "report.facts",
    "report.warnings",
    "report.page",
    "report",
    "demo",
    "cli.common",
    "cli.preparing",
    "cli.fitting",
    "cli.answering",
    "cli.studying",
    "cli.pooling",
    "cli.comparing",
    "cli.reporting",
    "cli",
    "__main__",
]


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def rank(module):
    return next((k for k, entry in enumerate(ORDER) if fnmatch(module, entry)), None)


def imports(module, source, package=False):
    """Modules of lacova that the source imports, anywhere in it, by their names without `lacova.`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = ["lacova", *module.split(".")] if module else ["lacova"]
                here = here[: len(here) - node.level + package]
                base = ".".join([*here, base] if base else here)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if rank(inner.removeprefix("lacova.")) is not None else base)
    return {name.removeprefix("lacova").removeprefix(".") for name in found if name.split(".")[0] == "lacova"}


def violations(module, source, package=False):
    mine = rank(module)
    bad = []
    for target in sorted(imports(module, source, package)):
        theirs = rank(target)
        among_themselves = theirs == mine and ORDER[mine].endswith("*")
        if theirs is None or (theirs >= mine and not among_themselves):
            bad.append(target)
    return bad


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def test_every_module_has_its_place():
    assert [name for name in MODULES if rank(name) is None] == []


def test_every_place_has_its_module():
    may_be_absent = {"datasets*", "demo", "cli", "__main__"}
    assert [e for e in ORDER if e not in may_be_absent and not any(fnmatch(name, e) for name in MODULES)] == []


@pytest.mark.parametrize("module", [name for name in MODULES if rank(name) is not None])
def test_imports_point_downward(module):
    path = MODULES[module]
    assert violations(module, path.read_text(), path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source", "bad"),
    [
        ("table", "from lacova.schema import Schema", []),
        ("table", "from lacova.batches import Batch", ["batches"]),
        ("table", "import lacova.fit", ["fit"]),
        ("table", "import lacova", [""]),
        ("table", "from lacova import Schema", [""]),
        ("table", "from lacova import models", ["models"]),
        ("table", "from lacova.table import Table", ["table"]),
        ("table", "def f():\n    from lacova.gp.bounds import blocks", ["gp.bounds"]),
        ("table", "from .fit import fit", ["fit"]),
        ("gp.bounds", "from .predict import History", ["gp.predict"]),
        ("gp.bounds", "from ..models import CVAE", ["models"]),
        ("gp.bounds", "from .inducing import Whitened\nfrom ..linalg import cholesky", []),
        ("objective", "from lacova.covariates import belief as beliefs", []),
        ("covariates.space", "from lacova.covariates import belief", ["covariates.belief"]),
        ("models", "from lacova.elsewhere import x", ["elsewhere"]),
        ("datasets.digits", "from lacova.datasets.other import x", []),
        ("", "from .models import CVAE", []),
        ("schema", "import torch, pandas.core", []),
    ],
)
def test_the_check_itself(module, source, bad):
    assert violations(module, source, package=module == "") == bad


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
    assert lacova.CVAE is importlib.import_module("lacova.models").CVAE
    with pytest.raises(AttributeError, match="no attribute 'CVEA'"):
        lacova.CVEA  # noqa: B018
