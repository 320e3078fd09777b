"""Parts from a module outside the package: those of docs/bring-your-own.md, fitted, saved, and loaded elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import gpytorch
import numpy as np
import pandas as pd
import pytest

import lacova
from lacova.cli import main
from lacova.likelihoods import Family
from lacova.nn import Networks

PAGE = Path(__file__).parents[1] / "docs" / "bring-your-own.md"
FIT = """
import sys
from functools import partial
import numpy as np, pandas as pd, lacova
import own_parts

table = pd.read_csv("table.csv")
schema = lacova.Schema({"days": "weibull", "chol": "gaussian"}, {"age": "continuous", "sex": "categorical"})
common = {"networks": own_parts.Tanh(8), "latent_dim": 2}
models = {
    "cvae": lacova.CVAE(
        schema, covariates=partial(own_parts.Widened, factor=3.0),
        latent_prior=partial(own_parts.Laplace, scale=0.5), **common,
    ),
    "gp": lacova.GPPriorVAE(schema, prior="rough(age) + cat(sex)", inducing=5, **common),
    "own": own_parts.SmallCVAE(schema, width=8, latent_dim=2),
}
for name, model in models.items():
    model.fit(table, max_epochs=2, batch_size=20, device="cpu").save(f"{name}.lacova")
    model.impute(table, interval=0.9, probabilities=True).to_csv(f"{name}.csv", index=False)
"""
LOAD = """
import pandas as pd, lacova, own_parts
table = pd.read_csv("table.csv")
for name in ("cvae", "gp", "own"):
    model = lacova.load(f"{name}.lacova")
    answer = model.impute(table, interval=0.9, probabilities=True)
    answer.to_csv(f"{name}-again.csv", index=False)
    assert model.describe()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's parts as a module, a table with gaps, and models that another process saved."""
    folder = tmp_path_factory.mktemp("outside")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    parts = [re.split(r"^(?:from lacova import testing|table = )", block, flags=re.M)[0] for block in blocks]
    assert len(parts) == 6
    (folder / "own_parts.py").write_text("\n".join(parts), encoding="utf-8")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({
        "age": rng.normal(60, 8, 60), "sex": rng.choice(["f", "m"], 60), "days": rng.weibull(1.5, 60) * 200,
        "chol": rng.normal(5, 1, 60),
    })  # fmt: skip
    table.mask(rng.random(table.shape) < 0.2).to_csv(folder / "table.csv", index=False)
    run(FIT, folder)
    return folder


def run(code, folder):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_models_with_parts_of_others_load_in_a_new_process_and_give_the_same_answers(folder):
    run(LOAD, folder)
    for name in ("cvae", "gp", "own"):
        assert (folder / f"{name}-again.csv").read_bytes() == (folder / f"{name}.csv").read_bytes()
        assert not pd.read_csv(folder / f"{name}.csv").isna().any().any()


@pytest.mark.parametrize(
    ("file", "part"),
    [("cvae", r"covariate prior 'widened'|family 'weibull'|latent prior 'laplace'|networks 'Tanh'"),
     ("gp", r"kernel 'rough'|family 'weibull'|networks 'Tanh'"), ("own", r"family 'weibull'|model 'SmallCVAE'")],
)  # fmt: skip
def test_without_its_module_a_file_is_refused_with_what_to_import(folder, file, part):
    with pytest.raises(
        lacova.StorageError, match=rf"its ({part}) is not registered: import the module .* 'own_parts', and load it"
    ):
        lacova.load(folder / f"{file}.lacova")


def test_a_file_holds_names_and_configuration_and_no_code(folder):
    from lacova.data.io.archive import read

    document, _ = read(folder / "cvae.lacova")
    assert document["registered"] == [
        ["covariate prior", "widened", "own_parts"],
        ["family", "weibull", "own_parts"],
        ["latent prior", "laplace", "own_parts"],
        ["networks", "Tanh", "own_parts"],
    ]
    assert document["settings"]["latent_prior"] == {
        "map": [["name", "laplace"], ["configuration", {"map": [["scale", 0.5]]}]]
    }
    assert document["settings"]["networks"] == {"map": [["name", "Tanh"], ["configuration", {"map": [["width", 8]]}]]}


def test_what_is_not_registered_cannot_be_saved(tmp_path):
    class Nameless(lacova.CVAE):
        pass

    table = pd.DataFrame({"age": np.linspace(30, 60, 40), "chol": np.linspace(4, 6, 40)})
    model = Nameless(lacova.Schema(["chol"], {"age": "continuous"}), latent_dim=1).fit(table, max_epochs=1)
    with pytest.raises(lacova.StorageError, match=r"put @lacova\.register\('Nameless'\) above it"):
        model.save(tmp_path / "model.lacova")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "two words", "1st", 3])
def test_a_name_must_be_plain(name):
    with pytest.raises(ValueError, match="expected a plain name"):
        lacova.register(name)


class First(lacova.CVAE):
    pass


class Second(lacova.CVAE):
    pass


def test_a_name_of_another_part_is_refused_and_the_same_part_is_replaced():
    assert lacova.register("First")(First) is First
    assert lacova.register("First")(First) is First
    with pytest.raises(ValueError, match=r"the model 'First' is registered already, as tests\.\S+\.First; choose"):
        lacova.register("First")(Second)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("cvae", Second),
        ("gp", lambda: None),
        ("student", type("Own", (Family,), {})),
        ("Dense", type("Own", (Networks,), {})),
    ],
)
def test_names_of_lacovas_own_parts_cannot_be_taken(name, part):
    with pytest.raises(ValueError, match=rf"{name!r} is a \w+ of lacova's own; choose another name"):
        lacova.register(name)(part)


@pytest.mark.parametrize("part", [3, int, gpytorch.kernels.RBFKernel()])
def test_what_is_no_part_is_refused(part):
    with pytest.raises(TypeError, match="takes a class of one of lacova's protocols"):
        lacova.register("strange")(part)


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"values": "positve"}, "values of Wrong is 'positve'; expected"),
        ({"outputs": None}, "outputs of Wrong is None"),
    ],
)
def test_a_family_says_what_its_values_are(attributes, sentence):
    with pytest.raises(TypeError, match=sentence):
        type("Wrong", (Family,), attributes)


@lacova.register("bent")
def bent():
    return gpytorch.kernels.MaternKernel(nu=2.5)


def test_a_kernel_that_would_come_back_as_another_one_is_not_saved(tmp_path):
    """Its parameters have the same names and shapes, and GPyTorch prints both alike."""
    table = pd.DataFrame({"age": np.linspace(30, 60, 40), "chol": np.linspace(4, 6, 40)})
    schema = lacova.Schema(["chol"], {"age": "continuous"})
    for nu, same in ((2.5, True), (0.5, False)):
        kernels = {"bent": gpytorch.kernels.MaternKernel(nu=nu)}
        model = lacova.GPPriorVAE(schema, prior="bent(age)", kernels=kernels, latent_dim=1, inducing=4)
        model.fit(table, max_epochs=1)
        if same:
            model.save(tmp_path / "model.lacova")
            assert lacova.load(tmp_path / "model.lacova").predict(table).equals(model.predict(table))
        else:
            with pytest.raises(lacova.StorageError, match="kernel 'bent' cannot be saved: the kernel registered under"):
                model.save(tmp_path / "other.lacova")


def test_a_column_that_is_called_like_a_kernel_is_no_kernel():
    schema = lacova.Schema(["chol"], {"bent (x)": "continuous"})
    assert lacova.GPPriorVAE(schema, prior="gp(`bent (x)`)").kernels == {}


def test_a_setting_that_is_not_kept_is_named(tmp_path):
    table = pd.DataFrame({"age": np.linspace(30, 60, 40), "chol": np.linspace(4, 6, 40)})
    model = Forgetful(lacova.Schema(["chol"], {"age": "continuous"}), latent_dim=1).fit(table, max_epochs=1)
    with pytest.raises(lacova.StorageError, match=r"the setting 'width' of Forgetful is not kept: set self\.width"):
        model.save(tmp_path / "model.lacova")


@lacova.register("Forgetful")
class Forgetful(lacova.CVAE):
    def __init__(self, schema, *, width=8, **settings):
        super().__init__(schema, networks=lacova.Dense((width,), (width,)), **settings)


def test_the_shell_imports_what_it_is_told(folder, monkeypatch, capsys):
    words = ["impute", "cvae.lacova", "table.csv", "--out", "shell.csv"]
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    assert main(words) == 1
    run(f"import sys; from lacova.cli import main; sys.exit(main({['--import', 'own_parts', *words]}))", folder)
    assert main(["--import", "no_such_module", *words]) == 2
    assert "no_such_module" in capsys.readouterr().err
    assert not pd.read_csv(folder / "shell.csv").isna().any().any()
