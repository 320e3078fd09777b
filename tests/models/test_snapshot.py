"""Files whose parts do not fit together: refused with a sentence, and without memory."""

import pytest
import torch

from lacova import StorageError, load
from lacova.data.io.archive import write
from lacova.models import snapshot
from lacova.models.builder import build_blank
from lacova.models.snapshot import _is_small, take_apart
from tests.data.io.test_archive import put, seal, split
from tests.models.saved_models import answers, attempt


def edited(data, *place, value):
    """Return a file with one field of the document changed and a checksum that fits."""
    header, document, body = split(data)
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return seal(header, document, body)


def test_an_edit_that_changes_nothing_loads(small, saved, tmp_path):
    for name, data in small.items():
        assert answers(attempt(tmp_path / "x", seal(*split(data))), name) == saved[name].answers


def networks(name, *configuration):
    """Return networks as a document has them."""
    return {"map": [["name", name], ["configuration", {"map": list(configuration)}]]}


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
        (["settings", "noise"], "rows", "noise is 'rows'; expected 'column' or 'row'"),
        (["settings", "noise"], "row", "patient effects cannot be combined"),
        (["settings", "prior"], "*".join(f"gp(x{k})" for k in range(40)), "its formula is no plain sum of products"),
        (["settings", "prior"], ":".join(["(gp(day) + gp(age))"] * 60), "its formula is no plain sum of products"),
        (["settings", "prior"], " + ".join(["gp(day)"] * 9000), "its formula is no plain sum of products"),
        (["settings", "prior"], "gp(day) + gp(age)", r"its tensor vae\.\S+ has the shape"),
        (["settings", "prior"], "gp(sex)", "write cat"),
        (["settings", "networks"], networks("Dense", ["encoder", [1] * 10**5]), "more than 1000 layers"),
        (["settings", "networks"], networks("Dense", ["encoder", [-1]]), "sizes is not a whole number"),
        (["settings", "networks"], networks("os.system"), "no networks is registered as 'os.system'"),
        (["settings", "inducing"], 0, "inducing must be a whole number"),
        (["sizes", "inducing"], -1, "sizes is not a whole number"),
        (["sizes", "covariate prior", "mixture"], True, "sizes is not a whole number"),
        (["sizes", "covariate prior", "mixture"], 3, r"its tensor vae\.covariate_prior\.\S+ has the shape"),
        (["regressed visits"], 1, "whether its covariates have a regression on visits cannot be read"),
        (["levels"], {"map": []}, "its levels are not those of the categorical columns"),
        (["levels", "map", 0, 1], ["f", "f"], "its levels are not all different"),
        (["levels", "map", 0, 1], ["f"], "has the shape"),
        (["schema", "levels"], {"map": [["sex", ["f", "m", 1]]]}, "its levels are not those that its schema declares"),
        (["settings", "unseen"], "never", "unseen is 'never'; expected one of warn, missing, error"),
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
def test_a_stated_prior_that_makes_no_sense_is_refused(small, tmp_path, value):
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
    changed = change(tensors.get(tensor))
    write(tmp_path / "x", document, {k: v for k, v in {**tensors, tensor: changed}.items() if v is not None})
    with pytest.raises(StorageError, match=rf"x cannot be loaded: .*{words}"):
        load(tmp_path / "x")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["settings", "latent_dim"], 10**12),
        (["settings", "latent_dim"], 10**30),
        (
            ["settings", "networks"],
            networks("Dense", ["encoder", [2**30, 2**30]], ["decoder", [4]]),
        ),
        (["sizes", "inducing"], 2**30),
        (["sizes", "inducing"], 1_500),  # alone no more than a model may have, but for its square
        (["sizes", "covariate prior", "mixture"], 50_000),
        (["settings", "latent_dim"], 2_100),
        (
            ["settings", "networks"],
            networks("Dense", ["encoder", 990 * [512]], ["decoder", [4]]),
        ),
        (["levels", "map", 0, 1], [f"level {k}" for k in range(513)]),
        (["sizes", "covariate prior", "mixture"], 2**30),
    ],
)
def test_absurd_sizes_are_refused_without_memory(small, tmp_path, monkeypatch, place, value):
    devices = []

    def recording(*arguments):
        devices.append(torch.empty(0).device.type)
        return build_blank(*arguments)

    monkeypatch.setattr(snapshot, "build_blank", recording)
    assert attempt(tmp_path / "x", edited(small["gp"], *place, value=value)) is None
    assert devices == ["meta"]


def test_sizes_are_not_set_off_against_other_numbers(saved):
    model = saved["gp"].model
    document, _ = take_apart(model)
    assert _is_small(model, model.encoder, document)
    for number in (-1e18, float("nan")):
        document["settings"]["covariate_prior"] = {"map": [["age", [number, 1.0]]]}
        assert not _is_small(model, model.encoder, document)
