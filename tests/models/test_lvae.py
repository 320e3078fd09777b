"""LVAE: a GPPriorVAE with components of each patient's own."""

import pandas as pd
import pytest

from lacova import LVAE, GPPriorVAE, SchemaError
from tests.models.literature import NO_INSTANCE, NO_TIME, SMALL
from tests.tables import VISITS, visits

FORMULA = "gp(age) + gp(day) + gp(day):cat(sex) + cat(id) + gp(day):cat(id)"


def test_it_describes_its_prior(literature_models):
    facts = literature_models["lvae"].facts()
    assert (facts["model"], facts["prior of z"]) == ("LVAE", FORMULA)
    text = literature_models["lvae"].describe()
    assert text.split("prior of z")[1].split("\n")[0].strip() == FORMULA
    assert text.split()[1] == "LVAE"


def test_the_loss_is_that_of_a_gp_prior_vae_with_the_same_formula_bit_for_bit(literature_models):
    model, table = literature_models["lvae"], visits()
    own = {"patient_effects": False, "lengthscales": "own", "inducing": model.inducing}
    same = GPPriorVAE(VISITS, prior=FORMULA, **own, **SMALL)
    same.fit(table, max_epochs=2, batch_size=4)
    pd.testing.assert_frame_equal(same.training, model.training, check_exact=True)
    assert same.elbo(table) == model.elbo(table)
    assert model.vae.prior.couples_rows  # D̂⁴, where a patient's rows belong together


REFUSED = {
    "time": (lambda: LVAE(NO_TIME), "LVAE needs a time column"),
    "instance": (lambda: LVAE(NO_INSTANCE), "LVAE needs an instance column"),
    "own": (lambda: LVAE(VISITS, prior="gp(day)"), r"'gp\(day\)' has none; add .* gp\(day\):cat\(id\)"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_with_a_remedy(make, message):
    with pytest.raises((ValueError, SchemaError), match=message):
        make()
