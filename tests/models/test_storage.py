"""Saved models: every kind comes back the same to the last bit, and no file does harm."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

from lacova import CVAE, Conv, Dense, GPPriorVAE, NotFittedError, Schema, StorageError, load
from lacova.data.io.archive import read, write
from lacova.models.snapshot import _is_small, take_apart
from tests.data.io.test_archive import put, seal, split

SMALL = {"latent_dim": 2, "networks": Dense((4,), (4,))}
KINDS = {"age": "continuous", "sex": "categorical", "grade": "categorical"}
VISITS = Schema(["alt", "ast"], KINDS, instance="id", time="day", static=["age", "sex"])
NO_TIME = Schema(["alt", "ast"], KINDS, instance="id", static=["sex"])
ROWS = Schema(["alt", "ast"], KINDS)
NUMBERS = Schema(["alt", "ast"], {"age": "continuous", "day": "continuous"}, time="day")
MIXED = Schema(
    {"alt": "lognormal", "ast": "student", "grade": "ordinal", "day": "censored"},
    {"age": "continuous", "sex": "categorical"}, instance="id", static=["age", "sex"], limits={"day": (0.5, None)},
)  # fmt: skip
PIXELS = Schema([f"p{k}" for k in range(144)], {"age": "continuous"})


def visits(patients=6, times=4, gaps=0.2):
    """Patients of static age and sex, a grade (1, 2, or 3) that changes, gaps anywhere but in the instance."""
    rng = np.random.default_rng(0)
    who = np.tile(np.arange(patients), times)
    frame = pd.DataFrame(
        {"day": np.repeat(np.arange(float(times)), patients), "age": rng.normal(50, 10, patients)[who]}
    )
    frame["sex"] = np.array(["f", "m"], dtype=object)[who % 2]
    frame["grade"] = pd.Series(rng.integers(1, 4, len(who)).tolist(), dtype=object)
    frame["alt"] = 30 + 0.4 * (frame["age"] - 50) + 2 * frame["day"] + rng.normal(0, 1, len(who))
    frame["ast"] = 20 - 3.0 * (frame["sex"] == "m") + rng.normal(0, 1, len(who))
    frame = frame.mask(rng.random(frame.shape) < gaps)
    return frame.assign(id=np.array([f"p{k}" for k in range(patients)], dtype=object)[who])


def images(rows=12):
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.random((rows, 144)), columns=list(PIXELS.measurements)).assign(age=rng.normal(50, 10, rows))


KNOWN = {"age": (60, 5.5), "sex": {"f": 0.3, "m": 0.7}, "grade": {1: 0.2, 2: 0.3, 3: 0.5}}
CASES = {
    "cvae": lambda: CVAE(ROWS, **SMALL),
    "conditional": lambda: CVAE(VISITS, latent_prior="conditional", scaling="minmax", **SMALL),
    "no-time": lambda: CVAE(NO_TIME, scaling="none", noise_floor=0.01, **SMALL),
    "clinical": lambda: CVAE(ROWS, latent_dim=3),
    "conv": lambda: CVAE(PIXELS, latent_dim=2, networks=Conv((12, 12), (2, 3), (3, 2), (4,), (5,))),
    "gp": lambda: GPPriorVAE(VISITS, inducing=4, **SMALL),
    "gp-exact": lambda: GPPriorVAE(VISITS, prior="gp(day) + gp(age):cat(sex) + gp(day):cat(id)", inducing=3,
                                   expectation="exact", **SMALL),
    "gp-rows": lambda: GPPriorVAE(NUMBERS, prior="temporal", inducing=50, expectation="exact", **SMALL),
    "gp-own": lambda: GPPriorVAE(NO_TIME, prior="cat(id) + gp(age):cat(id)", **SMALL),
    "kinds": lambda: CVAE(MIXED, scaling="normal", **SMALL),
    "factorised": lambda: GPPriorVAE(VISITS, inducing=4, covariates="factorised", **SMALL),
    "paper": lambda: CVAE(VISITS, covariates="paper", covariate_prior=KNOWN, **SMALL),
    **{way: lambda way=way: CVAE(VISITS, covariates=way, **SMALL) for way in ("mean", "knn", "iterative", "zero")},
    "oracle": lambda: GPPriorVAE(ROWS, inducing=4, covariates="oracle", **SMALL),
}  # fmt: skip


def table(name):
    return images() if name == "conv" else visits(gaps=0.0 if name == "oracle" else 0.2)


def answers(model, name):
    """What a model says of a table, in all digits."""
    frame = table(name)
    found = [model.predict(frame, draws=3, interval=0.9), model.impute(frame), model.sample(frame, draws=2)]
    if "alt" in frame:
        found.append(model.impute(frame.assign(alt=np.nan), draws=2))
    if model.schema.instance:
        found.append(model.predict(frame[18:], history=frame[:18], draws=3))
    density = model.log_likelihood(frame, draws=3).to_list()
    return repr([*(part.to_dict("list") for part in found), density, model.score(frame, draws=3), model.elbo(frame)])


class Saved(NamedTuple):
    model: CVAE | GPPriorVAE
    path: Path
    answers: str


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Every case, fitted and saved."""
    folder, made = tmp_path_factory.mktemp("saved"), {}
    for name, make in CASES.items():
        more = {"prior_every": 1} if name == "no-time" else {}
        model = make().fit(table(name), max_epochs=2, batch_size=4, seed=3, **more)
        made[name] = Saved(model, folder / f"{name}.lacova", answers(model, name))
        model.save(made[name].path)
    return made


def types(values):
    return [(type(value), value) for value in values]


@pytest.mark.parametrize("name", CASES)
def test_every_model_comes_back_the_same(saved, name):
    again = load(saved[name].path)
    assert type(again) is type(saved[name].model)
    assert answers(again, name) == saved[name].answers


@pytest.mark.parametrize("name", CASES)
def test_all_that_a_model_knows_comes_back(saved, name):
    model, path, _ = saved[name]
    again = load(path)
    assert again.schema == model.schema
    plain = ("latent_dim", "networks", "scaling", "covariates", "covariate_prior", "noise_floor")
    own = ("latent_prior",) if isinstance(model, CVAE) else ("formula", "components", "inducing", "expectation")
    assert {k: getattr(again, k) for k in plain + own} == {k: getattr(model, k) for k in plain + own}
    assert again._options == model._options
    assert (again._options.batch_size, again._options.seed) == (4, 3)
    assert again._trained == model._trained
    pd.testing.assert_frame_equal(again.training, model.training, check_exact=True)
    assert {k: types(v) for k, v in again._encoder.levels.items()} == {
        k: types(v) for k, v in model._encoder.levels.items()
    }
    ours, theirs = model._vae.state_dict(), again._vae.state_dict()
    assert list(theirs) == list(ours)
    for key, value in ours.items():
        assert theirs[key].numpy().tobytes() == value.numpy().tobytes()
        # Sums and solves may round otherwise where memory is laid out otherwise.
        assert theirs[key].stride() == value.stride()
    assert [p.requires_grad for p in again._vae.parameters()] == [p.requires_grad for p in model._vae.parameters()]
    assert not again._vae.training


def test_the_same_in_another_process(saved):
    names = ["conditional", "gp", "paper", "knn", "iterative"]
    program = (
        "import sys, lacova; from tests.models.test_storage import answers\n"
        "for name, path in zip(sys.argv[1::2], sys.argv[2::2]): print(answers(lacova.load(path), name))"
    )
    arguments = [str(part) for name in names for part in (name, saved[name].path)]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [saved[name].answers for name in names]


def test_a_small_model_is_loaded_and_asked_without_the_compiler(saved):
    """Which takes ten times as long as the rest, at the start of every command; its sympy takes another second."""
    program = (
        "import sys, lacova; from tests.models.test_storage import answers\n"
        "answers(lacova.load(sys.argv[1]), 'gp'); print({'torch._dynamo', 'sympy'} & set(sys.modules))"
    )
    arguments = [sys.executable, "-c", program, str(saved["gp"].path)]
    assert subprocess.run(arguments, capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("name", ["knn", "iterative"])
def test_an_imputer_fitted_again_fills_the_same(saved, name):
    model, path, _ = saved[name]
    again = load(path)
    rng = np.random.default_rng(1)
    other = visits(gaps=0.4).sample(frac=1.0, random_state=2).assign(age=lambda f: f["age"] + rng.normal(0, 1))
    encoded = model._encoder.encode(other)
    assert not encoded.x_mask.all()
    assert torch.equal(again._fill(encoded).x, model._fill(encoded).x)
    assert not torch.equal(again._fill(encoded).x, saved["mean"].model._fill(encoded).x)


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


def test_a_model_of_a_class_of_the_users_own_is_not_saved(tmp_path):
    class Mine(CVAE):
        pass

    model = Mine(ROWS, **SMALL).fit(visits(), max_epochs=1)
    with pytest.raises(StorageError, match="a Mine cannot be saved"):
        model.save(tmp_path / "x")


def test_devices(saved):
    path = saved["cvae"].path
    assert next(load(path)._vae.parameters()).device.type == "cpu"
    assert next(load(path, device="auto")._vae.parameters()).device.type == "cpu"
    assert next(load(path, "meta")._vae.parameters()).device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CASES)
def test_a_model_from_a_gpu(name, tmp_path):
    model = CASES[name]().fit(table(name), max_epochs=2, device="cuda")
    model.save(tmp_path / "x.lacova")
    assert all(tensor.device.type == "cpu" for tensor in read(tmp_path / "x.lacova")[1].values())
    again = load(tmp_path / "x.lacova", device="cuda")
    assert answers(again, name) == answers(model, name)
    host = load(tmp_path / "x.lacova")
    model._vae.cpu()
    assert answers(host, name) == answers(model, name)


# Labels and names of every kind.


def labelled(**columns):
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
    model, frame = labelled(**{role: pd.Series(labels, dtype=object)})
    model.save(tmp_path / "x")
    again = load(tmp_path / "x")
    plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
    if role == "c":
        assert sorted(map(repr, again._encoder.levels["c"])) == sorted(set(map(repr, plain)))
        frame.loc[2, "c"] = None
        pd.testing.assert_frame_equal(again.impute(frame), model.impute(frame), check_exact=True)
    else:
        assert sorted(map(repr, again._trained)) == sorted(set(map(repr, plain)))
        assert all(label in again._trained for label in labels)


@pytest.mark.parametrize("role", ["c", "id"])
def test_labels_that_a_file_cannot_hold_are_refused_by_name(tmp_path, role):
    model, _ = labelled(**{role: pd.cut(pd.Series(np.arange(6.0)), 3)})
    what = {"c": "levels of column 'c'", "id": "labels of the instance column 'id'"}[role]
    with pytest.raises(StorageError, match=rf"{what}: a file cannot hold Interval.* Use one of those, and fit again"):
        model.save(tmp_path / "x")
    assert os.listdir(tmp_path) == []


def test_strange_column_names(tmp_path):
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


# What a file must not do.


@pytest.fixture(scope="module")
def small(saved):
    """The bytes of four small files of different kinds."""
    return {name: saved[name].path.read_bytes() for name in ("gp", "paper", "knn", "kinds")}


def attempt(path, data=None):
    """A model, or None where the file, or what is to be its content, is refused as it should be."""
    if data is not None:
        put(path, data)
    try:
        return load(path)
    except StorageError as error:
        message = str(error)
        assert message.startswith(f"{path} ")
        assert message.endswith(".")
        assert message.isprintable()
        return None


def edited(data, *place, value):
    """A file with one field of the document changed and a checksum that fits."""
    header, document, body = split(data)
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return seal(header, document, body)


def test_an_edit_that_changes_nothing_loads(small, saved, tmp_path):
    for name, data in small.items():
        assert answers(attempt(tmp_path / "x", seal(*split(data))), name) == saved[name].answers


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["model"], "Pipeline", "its model is 'Pipeline'; expected CVAE or GPPriorVAE"),
        (["schema", "colour"], "red", r"'colour' in its schema is unknown to lacova \S+; install lacova \S+, which"),
        (["options", "momentum"], 1, "'momentum' in its options is unknown"),
        (["settings", "attention"], True, "'attention' in its settings is unknown"),
        (["settings"], [], "its settings cannot be read"),
        (["schema", "measurements"], [["alt"], "ast"], "a column is named by something other than text"),
        (["settings", "noise_floor"], {"float": "inf"}, "noise_floor is not finite"),
        (["settings", "prior"], "*".join(f"gp(x{k})" for k in range(40)), "its formula is no plain sum of products"),
        (["settings", "prior"], ":".join(["(gp(day) + gp(age))"] * 60), "its formula is no plain sum of products"),
        (["settings", "prior"], " + ".join(["gp(day)"] * 9000), "its formula is no plain sum of products"),
        (["settings", "prior"], "gp(day) + gp(age)", r"its tensor vae\.\S+ has the shape"),
        (["settings", "prior"], "gp(sex)", "write cat"),
        (["settings", "networks"], {"map": [["kind", "Dense"], ["encoder", [1] * 10**5]]}, "more than 1000 layers"),
        (["settings", "networks"], {"map": [["kind", "Dense"], ["encoder", [-1]]]}, "sizes is not a whole number"),
        (["settings", "networks"], {"map": [["kind", "os.system"]]}, "its parts do not fit together"),
        (["settings", "inducing"], 0, "inducing must be a whole number"),
        (["sizes", "inducing"], -1, "sizes is not a whole number"),
        (["sizes", "mixture"], True, "sizes is not a whole number"),
        (["sizes", "mixture"], 3, r"its tensor vae\.covariate_prior\.\S+ has the shape"),
        (["levels"], {"map": []}, "its levels are not those of the categorical columns"),
        (["levels", "map", 0, 1], ["f", "f"], "its levels are not all different"),
        (["levels", "map", 0, 1], ["f"], "has the shape"),
        (["levels", "map", 0, 1], ["f", None], "labels are not all text"),
        (["levels", "map", 0, 1], ["f", {"map": []}], "labels are not all text"),
        (["trained"], [["p0"]], "labels are not all text"),
        (["options", "batch_size"], 0, "batch_size must be a whole number"),
        (["training"], ["epoch"], "its tensor training has the shape"),
    ],
)  # fmt: skip
def test_a_document_that_does_not_fit_is_refused(small, tmp_path, place, value, words):
    put(tmp_path / "x", edited(small["gp"], *place, value=value))
    with pytest.raises(StorageError, match=rf"x cannot be loaded: .*{words}"):
        load(tmp_path / "x")


@pytest.mark.parametrize("value", [{"map": [["age", [1]]]}, {"map": [["no", 1]]}, {"map": [["sex", 5]]}, 7])
def test_domain_knowledge_that_makes_no_sense_is_refused(small, tmp_path, value):
    assert attempt(tmp_path / "x", edited(small["paper"], "settings", "covariate_prior", value=value)) is None


@pytest.mark.parametrize(
    ("name", "tensor", "change", "words"),
    [
        ("gp", "encoder.y_scale", lambda t: 0 * t, "not positive"),
        ("gp", "encoder.x_shift", lambda t: t + torch.nan, "not finite"),
        ("gp", "encoder.x_shift", lambda t: t.float(), "missing or of another kind"),
        ("gp", "encoder.x_shift", lambda t: t[:-1], "has the shape"),
        ("gp", "vae.prior.raw_noise", lambda t: None, "missing"),
        ("gp", "vae.prior.raw_noise", lambda t: t[:, None], "of another kind"),
        ("gp", "vae.more", lambda _: torch.ones(1), r"it holds 1 tensor\(s\) that the model does not have"),
        ("kinds", "encoder.knots", lambda t: t.flip(0), "not increasing maps"),
        ("kinds", "encoder.knots", lambda t: t[:1], "not increasing maps"),
        ("kinds", "encoder.knots", lambda t: t + torch.tensor([1.0, 0.0, 0.0, 0.0]).double(), "not increasing maps"),
        ("kinds", "encoder.knots", lambda t: t + torch.tensor([0.0, 0.0, 0.0, 0.5]).double(), "steps in an order"),
        ("kinds", "encoder.knots", lambda t: t * torch.nan, "normal scores are not finite"),
        ("kinds", "encoder.knots", lambda t: None, "missing"),
        ("kinds", "encoder.y_spread", lambda t: -t, "not positive"),
        ("kinds", "encoder.y_spread", lambda t: None, "missing"),
        ("knn", "fill.features", lambda t: t + torch.inf, "infinite"),
        ("knn", "fill.features", lambda t: torch.full_like(t, torch.nan), "empty column"),
        ("knn", "fill.features", lambda t: t[:0], "empty column"),
        ("knn", "fill.features", lambda t: t[:, 1:], "has the shape"),
        ("knn", "fill.mean", lambda t: None, "missing"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(saved, tmp_path, name, tensor, change, words):
    document, tensors = take_apart(saved[name].model)
    new = change(tensors.get(tensor))
    write(tmp_path / "x", document, {k: v for k, v in {**tensors, tensor: new}.items() if v is not None})
    with pytest.raises(StorageError, match=rf"x cannot be loaded: .*{words}"):
        load(tmp_path / "x")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["settings", "latent_dim"], 10**12),
        (["settings", "latent_dim"], 10**30),
        (["settings", "networks"], {"map": [["kind", "Dense"], ["encoder", [2**30, 2**30]], ["decoder", [4]]]}),
        (["sizes", "inducing"], 2**30),
        (["sizes", "inducing"], 1_500),  # each of these alone is no more than a model may have, but for its square
        (["sizes", "mixture"], 50_000),
        (["settings", "latent_dim"], 2_100),
        (["settings", "networks"], {"map": [["kind", "Dense"], ["encoder", 990 * [512]], ["decoder", [4]]]}),
        (["levels", "map", 0, 1], [f"level {k}" for k in range(513)]),
        (["sizes", "mixture"], 2**30),
    ],
)
def test_absurd_sizes_are_refused_without_memory(small, tmp_path, monkeypatch, place, value):
    where, real = [], GPPriorVAE._blank
    monkeypatch.setattr(GPPriorVAE, "_blank", lambda *a: (where.append(torch.empty(0).device.type), real(*a))[1])
    assert attempt(tmp_path / "x", edited(small["gp"], *place, value=value)) is None
    assert where == ["meta"]


def test_sizes_are_not_set_off_against_other_numbers(saved):
    model = saved["gp"].model
    document, _ = take_apart(model)
    assert _is_small(model, model._encoder, document)
    for number in (-1e18, float("nan")):
        document["settings"]["covariate_prior"] = {"map": [["age", [number, 1.0]]]}
        assert not _is_small(model, model._encoder, document)


VALUES = [
    None, True, False, 0, -1, 1, 2, 3, 2**31, 2**63, 10**40, 0.5, 1e308, -0.0, "", "x", "lacova", "joint", "knn",
    "paper", "oracle", "day", "sex", "gp(age)*gp(day)", "__import__('os')", "\x1b[31m\n", 500 * "y", [], {}, [[]],
    [1, 2], {"map": []}, {"map": [["a", 1]]}, {"float": "nan"}, {"float": "inf"}, {"timestamp": [0, "s"]},
    {"timestamp": [-(2**63), "ns"]}, {"kind": "Conv"}, ["f", "m"], 200 * [[1]],
]  # fmt: skip


def places(value, way=()):
    """Every place within a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*way, key)
        yield from places(part, (*way, key))


def edit_document(rng, data):
    header, document, body = split(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        *way, key = rng.choice(list(places(document)))
        inner = document
        for step in way:
            inner = inner[step]
        kind = rng.choice(["set", "set", "set", "delete", "copy", "wrap", "number"])
        if kind == "delete":
            del inner[key]
        elif kind == "copy" and isinstance(inner, list):
            inner.insert(rng.randrange(len(inner) + 1), inner[key])
        elif kind == "wrap":
            inner[key] = rng.choice([[inner[key]], {"map": inner[key]}, {"map": [[inner[key], 1]]}, str(inner[key])])
        elif kind == "number" and type(inner[key]) in (int, float):
            inner[key] = inner[key] * rng.choice([-1, 0, 2, 0.5, 1000]) + rng.choice([-1, 0, 1])
        else:
            inner[key] = json.loads(json.dumps(rng.choice(VALUES)))
    return seal(header, document, body)


def edit_header(rng, data):
    header, document, body = split(data)
    name = rng.choice([name for name in header if name != "__metadata__"])
    entry, other = header[name], header[rng.choice([n for n in header if n not in ("__metadata__", name)])]
    number = rng.choice([0, 1, 2, -1, 7, 2**40, 2**62, 2**64, 0.5, None, "1"])
    match rng.randrange(8):
        case 0:
            header[name] = rng.choice(VALUES)
        case 1:
            entry["dtype"] = rng.choice(["F64", "F32", "F16", "I64", "BOOL", "F4", "C64", "", None, 5])
        case 2:
            entry["shape"] = rng.choice([[number], [*entry["shape"], number], entry["shape"][:-1], number, [0, 2**62]])
        case 3:
            entry["data_offsets"] = rng.choice([other["data_offsets"], [number, number], [0], number])
        case 4:
            header[name], header["vae." + name] = other, entry
        case 5:
            del header[name]
        case 6:
            body = flip(rng, body)
        case 7:
            body = body[: rng.randrange(len(body))] + body[rng.randrange(len(body)) :]
    return seal(header, document, body)


def flip(rng, data):
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 30])):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def insert(rng, data):
    place = rng.randrange(len(data))
    return data[:place] + rng.randbytes(rng.choice([1, 1, 8, 100])) + data[place:]


def delete(rng, data):
    place = rng.randrange(len(data))
    return data[:place] + data[place + rng.choice([1, 1, 8, 100]) :]


def truncate(rng, data):
    return data[: rng.randrange(len(data))]


def repeat(rng, data):
    start = rng.randrange(len(data))
    block = data[start : start + rng.choice([1, 16, 4096])]
    place = rng.randrange(len(data))
    return data[:place] + block + data[place + rng.choice([0, len(block)]) :]


def resize(rng, data):
    length = int.from_bytes(data[:8], "little")
    claim = rng.choice(
        [0, 1, length - 1, length + 1, length + 8, len(data), 2**32, 2**63, 2**64 - 1, rng.getrandbits(64)]
    )
    return claim.to_bytes(8, "little") + data[8:]


UNSEALED = [flip, insert, delete, truncate, repeat, resize]
FORBIDDEN = {"exec", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "marshal.loads"}
watched: list[str] | None = None


def watch(event, arguments):
    if watched is not None and (event in FORBIDDEN or (event == "open" and arguments[1] not in ("rb", "r", None))):
        watched.append(f"{event} {arguments}"[:200])


def test_two_thousand_mutations(small, tmp_path):
    global watched
    sys.addaudithook(watch)  # cannot be taken out again; outside this test it looks away
    rng = random.Random(20240229)
    loaded = {"unsealed": 0, "sealed": 0}
    for data in small.values():
        assert attempt(tmp_path / "x", data) is not None  # and imports what it needs, before code is watched for
    for k in range(2000):
        name = rng.choice(list(small))
        if k % 2:
            kind, data = "unsealed", rng.choice(UNSEALED)(rng, small[name])
        else:
            kind, data = "sealed", rng.choice([edit_document, edit_document, edit_header])(rng, small[name])
        if data == small[name]:
            continue
        put(tmp_path / "x", data)
        watched = []
        try:
            model = attempt(tmp_path / "x")
        finally:
            seen, watched = watched, None
        assert seen == [], (k, name)
        loaded[kind] += model is not None
    assert loaded["unsealed"] == 0
    assert loaded["sealed"] > 50  # changes that make sense, such as another label
