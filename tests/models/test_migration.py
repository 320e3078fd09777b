"""Files of format 1, written by the version before names changed, with their predictions; files that lack a setting."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import lacova
from lacova.data.io.archive import read, write
from lacova.models.migration import migrated
from lacova.training.options import CONSTANT_PATIENTS, CONSTANT_ROWS
from tests import golden

FOLDER = Path(__file__).parent / "format1"
CASES = {"cvae-mixed": "cvae mixed", "gp-visits": "gp visits", "gpvae": "gpvae", "notmiwae": "notmiwae"}
every_file = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def tables():
    """Return the training rows of the cases by name."""
    return {case: train for case, _, train, _, _ in golden.cases()}


def assert_same_predictions(predicted, expected):
    """Compare with predictions of another machine, whose last digits differ."""
    assert list(predicted) == list(expected)
    for name in expected:
        if pd.api.types.is_numeric_dtype(expected[name]):
            np.testing.assert_allclose(predicted[name], expected[name], rtol=1e-4, atol=1e-6)
        else:
            assert predicted[name].tolist() == expected[name].tolist()


@every_file
def test_a_model_of_format_1_predicts_as_it_did(name, tables):
    model = lacova.load(FOLDER / f"{name}.lacova")
    expected = pd.read_csv(FOLDER / f"{name}.csv")
    assert_same_predictions(model.predict(tables[CASES[name]], draws=20), expected)


@every_file
def test_saving_again_writes_format_2_with_the_same_answers(name, tables, tmp_path):
    assert read(FOLDER / f"{name}.lacova")[0]["format_version"] == 1
    model, table = lacova.load(FOLDER / f"{name}.lacova"), tables[CASES[name]]
    model.save(tmp_path / "model.lacova")
    assert read(tmp_path / "model.lacova")[0]["format_version"] == 2
    loaded = lacova.load(tmp_path / "model.lacova")
    pd.testing.assert_frame_equal(loaded.predict(table, draws=20), model.predict(table, draws=20), check_exact=True)
    pd.testing.assert_frame_equal(loaded.training, model.training, check_exact=True)


@every_file
def test_a_file_of_format_1_has_the_parts_that_a_fit_saves_today(name, tmp_path):
    case = CASES[name]
    _, model, train, validation, options = next(one for one in golden.cases() if one[0] == case)
    if hasattr(model, "lengthscales"):
        model.lengthscales, model.patient_factors, model.patient_slopes = "own", 0, False  # as they were
    model.joint_posterior = False
    model.scaling = "standard" if model.scaling == "auto" else model.scaling
    before = {"schedule": "constant", "start": "random", "prior_every": 0, "members": 1}
    before |= CONSTANT_ROWS._asdict() if model.schema.instance is None else CONSTANT_PATIENTS._asdict()
    if isinstance(model, lacova.CVAE):
        before["latent_weight"] = 100.0
    model.fit(train, validation, seed=3, device="cpu", **{**before, **options}).save(tmp_path / "model.lacova")
    document, tensors = read(tmp_path / "model.lacova")
    old_document, old_tensors = migrated(*read(FOLDER / f"{name}.lacova"))
    assert old_tensors.pop("held_out").shape == (0,)  # was not kept
    tensors.pop("held_out")
    assert {key: value.shape for key, value in old_tensors.items()} == {k: v.shape for k, v in tensors.items()}
    for part in ("model", "settings", "schema", "levels", "sizes", "training", "trained", "registered"):
        assert old_document[part] == document[part]
    assert {name: document["options"][name] for name in old_document["options"]} == old_document["options"]


def test_a_present_file_is_left_as_it_is():
    document, tensors = {"format_version": 2, "settings": {"level_slopes": 1}}, {"codec.y_shift": None}
    assert migrated(document, tensors) == (document, tensors)


def test_old_words_are_renamed():
    document = {
        "format_version": 1,
        "settings": {"level_slopes": True, "patient_effects": "level", "kernels": {"map": []},
                     "networks": {"map": [["kind", "Dense"], ["linear", True]]}},
        "sizes": {"mixture": 3, "inducing": 4},
        "options": {"recall": 0.5, "seed": 1},
        "training": ["epoch", "recall", "validation_recall"],
    }  # fmt: skip
    names = [
        "codec.x_scale", "vae.likelihood.raw", "vae.intercepts.raw", "vae.intercepts.slopes.mean",
        "vae.covariate_posterior.reading.weight", "vae.decoder.network.0.weight",
    ]  # fmt: skip
    renamed, tensors = migrated(document, dict.fromkeys(names))
    assert renamed["settings"] == {
        "fixed_effects": True, "patient_effects": "intercept", "kernels": [],
        "networks": {"map": [["name", "Dense"], ["configuration", {"map": [["linear", True]]}]]},
    }  # fmt: skip
    assert renamed["sizes"] == {"inducing": 4, "covariate prior": {"mixture": 3}}
    before = {"schedule": "constant", "start": "random", "prior_every": 0, "members": 1}
    assert renamed["options"] == {"masked_loss": 0.5, "seed": 1} | before
    assert renamed["training"] == ["epoch", "masked_log_prob", "validation_masked_log_prob"]
    assert renamed["registered"] == []
    assert list(tensors) == [
        "encoder.x_scale", "vae.likelihood.families.gaussian.raw", "vae.random_effects.raw",
        "vae.random_effects.fixed_effects.mean", "vae.covariate_posterior.static_regression.weight",
        "vae.decoder.network.0.weight",
    ]  # fmt: skip


GP_MODELS = {
    "GPPriorVAE": (lacova.GPPriorVAE, {}, {"shared": [1, 1, 1, 0, 1], "own": [1, 1, 1, 1, 1, 0, 1]}),
    "LVAE": (lacova.LVAE, {}, {"shared": [1, 1, 1, 0, 1], "own": [1, 1, 1, 1, 1, 0, 1]}),
    "GPPVAE": (lacova.GPPVAE, {"objects": ["entry"]}, {"shared": [2], "own": [2]}),
}


def saved_gp(name, lengthscales, path):
    """Fit and save a model; return it, its training rows, and the size of each set of its length-scales."""
    cls, settings, sizes = GP_MODELS[name]
    model, table = cls(golden.VISITS, lengthscales=lengthscales, **settings, **golden.SMALL_GP), golden.visits()
    model.fit(table, seed=3, device="cpu", max_epochs=1, batch_size=5).save(path)
    return model, table, sizes[lengthscales]


def sizes_of(tensors):
    names = [name for name in tensors if name.startswith("vae.prior.kernel.log_lengthscale.")]
    return [len(tensors[name]) for name in sorted(names)]


def assert_same_model(loaded, model, table):
    assert type(loaded) is type(model)
    assert loaded.lengthscales == model.lengthscales
    pd.testing.assert_frame_equal(loaded.predict(table, draws=5), model.predict(table, draws=5), check_exact=True)


@pytest.mark.parametrize("lengthscales", ["shared", "own"])
@pytest.mark.parametrize("name", GP_MODELS)
def test_lengthscales_are_saved(name, lengthscales, tmp_path):
    model, table, sizes = saved_gp(name, lengthscales, tmp_path / "model.lacova")
    document, tensors = read(tmp_path / "model.lacova")
    assert document["settings"]["lengthscales"] == lengthscales
    assert sizes_of(tensors) == sizes
    assert migrated(document, tensors)[0] == document
    assert_same_model(lacova.load(tmp_path / "model.lacova"), model, table)


@pytest.mark.parametrize("name", GP_MODELS)
def test_a_file_without_the_setting_has_length_scales_of_each_component(name, tmp_path):
    model, table, _ = saved_gp(name, "own", tmp_path / "model.lacova")
    document, tensors = read(tmp_path / "model.lacova")
    without = {**document, "settings": dict(document["settings"])}
    del without["settings"]["lengthscales"], without["sha256"]
    write(tmp_path / "older.lacova", without, tensors)
    older = read(tmp_path / "older.lacova")[0]
    assert "lengthscales" not in older["settings"]
    assert older["format_version"] == 2
    assert migrated(older, tensors)[0]["settings"] == document["settings"]
    assert_same_model(lacova.load(tmp_path / "older.lacova"), model, table)


def test_a_file_without_dependence_has_independent_numbers(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"id": np.repeat(np.arange(20), 3), "day": np.tile(np.arange(3.0), 20)})
    table[["y", "a", "b"]] = rng.standard_normal((60, 3))
    table.loc[::4, ["a", "b"]] = np.nan
    schema = lacova.Schema(["y"], dict.fromkeys(("day", "a", "b"), "continuous"), instance="id", time="day")
    lacova.GPPriorVAE(schema, latent_dim=1).fit(table, max_epochs=1, progress=False).save(tmp_path / "model.lacova")
    document, tensors = read(tmp_path / "model.lacova")
    assert document["linear factors"] == 0
    del document["sha256"]
    write(tmp_path / "other.lacova", {**document, "linear factors": 2}, tensors)
    with pytest.raises(lacova.StorageError, match=r"covariate_posterior\.dependence\.loadings"):
        lacova.load(tmp_path / "other.lacova")
    del document["linear factors"]
    without = {name: value for name, value in tensors.items() if ".dependence." not in name}
    assert len(without) < len(tensors)
    write(tmp_path / "older.lacova", document, without)
    older = lacova.load(tmp_path / "older.lacova")
    assert older.vae.covariate_prior.dependence is None
    assert older.vae.covariate_posterior.dependence is None
    older.save(tmp_path / "again.lacova")
    again = lacova.load(tmp_path / "again.lacova")
    pd.testing.assert_frame_equal(again.impute(table, draws=3), older.impute(table, draws=3))


def test_a_model_of_format_1_has_length_scales_of_each_component():
    document, tensors = read(FOLDER / "gp-visits.lacova")
    assert "lengthscales" not in document["settings"]
    model = lacova.load(FOLDER / "gp-visits.lacova")
    assert model.lengthscales == "own"
    assert len(model.vae.prior.kernel.log_lengthscale) == len(model.components) == len(sizes_of(tensors))


@pytest.mark.parametrize("model", ["CVAE", "GPVAE", "NotRegistered"])
def test_models_without_a_setting_do_not_get_it(model):
    document = {"format_version": 2, "model": model, "settings": {"latent_dim": 2}}
    added = {} if model == "NotRegistered" else {"joint_posterior": False, "noise": "column", "unseen": "warn"}
    present, tensors = migrated(document, {})
    assert present["settings"] == {"latent_dim": 2} | added
    assert list(tensors) == ([] if model == "NotRegistered" else ["held_out"])  # nothing is known of that
