"""Saved models: every kind comes back the same to the last bit, and registered classes can be saved."""

import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova import CVAE, Dense, GPPriorVAE, NotFittedError, Schema, StorageError, load
from lacova.data.io.archive import read
from lacova.nn import Networks
from lacova.training.trainer import Trainer
from tests.models.saved_models import CASES, ROWS, SMALL, answers, table, visits


def types(values):
    return [(type(value), value) for value in values]


@pytest.mark.parametrize("name", CASES)
def test_every_model_comes_back_the_same(saved, name):
    again = load(saved[name].path)
    assert type(again) is type(saved[name].model)
    assert answers(again, name) == saved[name].answers


@pytest.mark.parametrize("name", CASES)
def test_all_parts_of_a_model_come_back(saved, name):
    model, path, _ = saved[name]
    again = load(path)
    assert again.schema == model.schema
    plain = ("latent_dim", "networks", "scaling", "covariates", "covariate_prior", "noise_floor")
    own = ("latent_prior",) if isinstance(model, CVAE) else ("formula", "components", "inducing", "expectation")
    assert {k: getattr(again, k) for k in plain + own} == {k: getattr(model, k) for k in plain + own}
    assert again.options == model.options
    assert (again.options.batch_size, again.options.seed) == (4, 3)
    assert again.training_instances == model.training_instances
    pd.testing.assert_frame_equal(again.training, model.training, check_exact=True)
    assert {k: types(v) for k, v in again.encoder.levels.items()} == {
        k: types(v) for k, v in model.encoder.levels.items()
    }
    weights, loaded = model.vae.state_dict(), again.vae.state_dict()
    assert list(loaded) == list(weights)
    for key, value in weights.items():
        assert loaded[key].numpy().tobytes() == value.numpy().tobytes()
        # Sums and solves may round differently if memory is laid out differently.
        assert loaded[key].stride() == value.stride()
    assert [p.requires_grad for p in again.vae.parameters()] == [p.requires_grad for p in model.vae.parameters()]
    assert not again.vae.training


def test_a_model_answers_the_same_in_another_process(saved):
    names = ["conditional", "gp", "paper", "knn", "iterative"]
    program = (
        "import sys, lacova; from tests.models.saved_models import answers\n"
        "for name, path in zip(sys.argv[1::2], sys.argv[2::2]): print(answers(lacova.load(path), name))"
    )
    arguments = [str(part) for name in names for part in (name, saved[name].path)]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [saved[name].answers for name in names]


def test_a_small_model_is_loaded_and_answers_without_the_compiler(saved):
    """Importing the compiler takes ten times as long as the rest of a command; its sympy takes another second."""
    program = (
        "import sys, lacova; from tests.models.saved_models import answers\n"
        "answers(lacova.load(sys.argv[1]), 'gp'); print({'torch._dynamo', 'sympy'} & set(sys.modules))"
    )
    arguments = [sys.executable, "-c", program, str(saved["gp"].path)]
    assert subprocess.run(arguments, capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("name", ["knn", "iterative"])
def test_a_loaded_imputer_fills_the_same(saved, name):
    model, path, _ = saved[name]
    again = load(path)
    rng = np.random.default_rng(1)
    other = visits(gaps=0.4).sample(frac=1.0, random_state=2).assign(age=lambda f: f["age"] + rng.normal(0, 1))
    encoded = model.encoder.encode(other)
    assert not encoded.x_mask.all()
    assert torch.equal(again.fill(encoded).x, model.fill(encoded).x)
    assert not torch.equal(again.fill(encoded).x, saved["mean"].model.fill(encoded).x)


def test_a_loaded_model_can_be_saved_and_fitted_again(saved, tmp_path):
    for name in ("gp", "knn"):
        again = load(saved[name].path)
        again.save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == saved[name].path.read_bytes()
        again.fit(table(name), max_epochs=2, batch_size=4, seed=3)
        assert answers(again, name) == saved[name].answers


def test_saving_and_loading_leave_the_random_state_alone(saved, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for model, path, _ in saved.values():
        model.save(tmp_path / "x")
        load(path)
    assert torch.equal(torch.get_rng_state(), before)


def test_unfitted_models_are_not_saved(tmp_path):
    for make in CASES.values():
        with pytest.raises(NotFittedError, match="call fit"):
            make().save(tmp_path / "x.lacova")
    assert os.listdir(tmp_path) == []


def test_a_model_is_loaded_to_any_device(saved):
    path = saved["cvae"].path
    assert next(load(path).vae.parameters()).device.type == "cpu"
    assert next(load(path, device="auto").vae.parameters()).device.type == "cpu"
    assert next(load(path, "meta").vae.parameters()).device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CASES)
def test_a_model_from_a_gpu(name, tmp_path):
    model = CASES[name]().fit(table(name), max_epochs=2, device="cuda")
    model.save(tmp_path / "x.lacova")
    assert all(tensor.device.type == "cpu" for tensor in read(tmp_path / "x.lacova")[1].values())
    again = load(tmp_path / "x.lacova", device="cuda")
    assert answers(again, name) == answers(model, name)
    host = load(tmp_path / "x.lacova")
    model.vae.cpu()
    assert answers(host, name) == answers(model, name)


# Classes by name.


class Unregistered(CVAE):
    pass


@lacova.register("RegisteredForTests")
class Registered(CVAE):
    pass


@dataclass(frozen=True)
class UnregisteredNetworks(Networks):
    def build_encoder(self, measurements, features, latent_dim):
        return Dense((4,), ()).build_encoder(measurements, features, latent_dim)

    def build_decoder(self, inputs, outputs):
        return Dense((), (4,)).build_decoder(inputs, outputs)


def test_a_class_that_is_not_registered_is_not_saved(tmp_path):
    model = Unregistered(ROWS, **SMALL).fit(visits(), max_epochs=1)
    message = (
        r"^a Unregistered cannot be saved, because its class has no name to be loaded by: "
        r"put @lacova\.register\('Unregistered'\) above it\.$"
    )
    with pytest.raises(StorageError, match=message):
        model.save(tmp_path / "x")
    assert os.listdir(tmp_path) == []


def test_a_registered_class_is_saved_and_loaded_by_its_name(tmp_path):
    model = Registered(ROWS, **SMALL).fit(visits(), max_epochs=1)
    model.save(tmp_path / "x")
    document = read(tmp_path / "x")[0]
    assert document["model"] == "RegisteredForTests"
    assert document["registered"] == [["model", "RegisteredForTests", __name__]]
    loaded = load(tmp_path / "x")
    assert type(loaded) is Registered
    assert loaded.predict(visits()).equals(model.predict(visits()))


def test_a_file_with_an_unregistered_part_names_what_to_import(tmp_path):
    Registered(ROWS, **SMALL).fit(visits(), max_epochs=1).save(tmp_path / "x")
    program = "import sys, lacova; lacova.load(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        "its model 'RegisteredForTests' is not registered: import the module that registers it, which was "
        f"{__name__!r}, and load it again." in done.stderr
    )


def test_networks_that_are_not_registered_are_not_saved(tmp_path):
    model = CVAE(ROWS, latent_dim=2, networks=UnregisteredNetworks()).fit(visits(), max_epochs=1)
    with pytest.raises(StorageError, match="networks UnregisteredNetworks cannot be saved, because their class has no"):
        model.save(tmp_path / "x")
    assert os.listdir(tmp_path) == []


# Labels and names of every kind.


def fit_with(**columns):
    """Fit a small model to six rows with further columns; return it with its table."""
    frame = pd.DataFrame({"y": np.arange(6.0), "x": [1.0, 3.0, 2.0, 5.0, 4.0, 0.0]}).assign(**columns)
    kinds = {"x": "continuous", **({"c": "categorical"} if "c" in columns else {})}
    return CVAE(Schema(["y"], kinds, instance="id" if "id" in columns else None), **SMALL).fit(
        frame, max_epochs=1
    ), frame


LABELS = {
    "str": ["a", "b", 'c"', "d\n", "ü\0", ""],
    "int": [0, 1, -5, 2**62, 3, 4],
    "float": [0.1, -0.0, 1e300, float("inf"), 5.0, 1 / 3],
    "bool": [True, False] * 3,
    "mixed": ["1", 1, 1.5, False, "True", 2],
    "numpy": [np.int16(3), np.float32(0.1), np.str_("a"), np.bool_(False), np.int64(9), np.float64(0.2)],
    "dates": list(pd.date_range("2020-01-31", periods=6, freq="ME")),
}


@pytest.mark.filterwarnings("ignore:.*are constant in training")
@pytest.mark.parametrize("role", ["c", "id"])
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_keep_their_types(tmp_path, role, labels):
    model, frame = fit_with(**{role: pd.Series(labels, dtype=object)})
    model.save(tmp_path / "x")
    again = load(tmp_path / "x")
    plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
    if role == "c":
        assert sorted(map(repr, again.encoder.levels["c"])) == sorted(set(map(repr, plain)))
        frame.loc[2, "c"] = None
        pd.testing.assert_frame_equal(again.impute(frame), model.impute(frame), check_exact=True)
    else:
        assert sorted(map(repr, again.training_instances)) == sorted(set(map(repr, plain)))
        assert all(label in again.training_instances for label in labels)


NO_LABELS = {
    "Interval": pd.cut(pd.Series(np.arange(6.0)), 3),
    r"\(": pd.Series([("site", k // 2) for k in range(6)]),
    "frozenset": pd.Series([frozenset(f"{k // 2}") for k in range(6)]),
    "Timestamp": pd.Series(pd.date_range("2020-01-31", periods=6, freq="ME", tz="UTC")),
}


@pytest.mark.parametrize("role", ["c", "id"])
@pytest.mark.parametrize(("shown", "labels"), NO_LABELS.items(), ids=NO_LABELS)
def test_labels_that_a_file_cannot_hold_are_refused_by_name(tmp_path, monkeypatch, role, shown, labels):
    """By `save`, and before the first step by a fit that keeps a checkpoint."""
    model, frame = fit_with(**{role: labels})
    what = {"c": "levels of column 'c'", "id": "labels of the instance column 'id'"}[role]
    message = rf"{what}: a file cannot hold {shown}.* Use one of those, and fit again"
    with pytest.raises(StorageError, match=message):
        model.save(tmp_path / "x")
    monkeypatch.delattr(Trainer, "run")
    with pytest.raises(StorageError, match=message):
        model.fit(frame, checkpoint=tmp_path / "c")
    assert os.listdir(tmp_path) == []


def test_unusual_column_names_come_back(tmp_path):
    frame = pd.DataFrame(
        {"y": np.arange(6.0), "body mass (kg) + 1": [1.0, 3.0, 2.0, 5.0, 4.0, 0.0], "ü:*": list("ababab")}
    )
    kinds = {"body mass (kg) + 1": "continuous", "ü:*": "categorical"}
    model = GPPriorVAE(Schema(["y"], kinds), inducing=3, **SMALL).fit(frame, max_epochs=1)
    model.save(tmp_path / "x")
    assert load(tmp_path / "x").components == model.components
    numbered = CVAE(Schema([0], {1: "continuous", 2: "categorical"}), **SMALL)
    numbered.fit(frame.set_axis([0, 1, 2], axis=1), max_epochs=1).save(tmp_path / "x")
    assert load(tmp_path / "x").schema == numbered.schema
    quoted = GPPriorVAE(Schema(["y"], {"a`b": "continuous"}), inducing=3, **SMALL)
    quoted.fit(frame.set_axis(["y", "a`b", "c"], axis=1), max_epochs=1)
    with pytest.raises(StorageError, match=r"cannot be written down: its formula .* names a column with a backtick\."):
        quoted.save(tmp_path / "y")
