"""Models by name, and their settings apart from options of training."""

import pytest

import lacova
from lacova import Schema
from lacova.models.registry import make_model, model_class, models
from tests.tables import ROWS, VISITS

OWN = ["CVAE", "GPPriorVAE", "LVAE", "GPPVAE", "GPVAE", "HIVAE", "VAE", "MIWAE", "NotMIWAE"]


@lacova.register("ListedLast")
class ListedLast(lacova.VAE):
    """A model of another module, registered before some of lacova's own may be."""


def test_all_of_lacovas_models_are_registered_under_their_names():
    assert list(models())[: len(OWN)] == OWN
    assert models()["ListedLast"] is ListedLast
    for name in OWN:
        assert models()[name] is getattr(lacova, name)
        assert models()[name].__name__ == name


@pytest.mark.parametrize("name", ["GPPriorVAE", "gppriorvae", "GPPRIORVAE"])
def test_names_may_be_in_any_case(name):
    assert model_class(name) is lacova.GPPriorVAE


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"^there is no model 'CVEA'; expected one of CVAE, GPPriorVAE, .*CVAE"):
        model_class("CVEA")


def test_settings_and_options_of_training_are_told_apart():
    model, options = make_model("gpvae", VISITS, {"latent_dim": 3, "kernel": "se", "batch_size": 7, "patience": 2})
    assert isinstance(model, lacova.GPVAE)
    assert (model.latent_dim, model.kernel) == (3, "se")
    assert options == {"batch_size": 7, "patience": 2}


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValueError, match=r"^CVAE: a setting is unknown, or of the wrong kind \(.*'depth'"):
        make_model("CVAE", ROWS, {"depth": 3})


def test_a_bad_option_is_refused_before_anything_is_fitted():
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1, got 0"):
        make_model("VAE", Schema(["alt"], {}), {"batch_size": 0})
