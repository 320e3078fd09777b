"""GPPVAE: a GPPriorVAE with one product kernel of objects and views."""

import pandas as pd
import pytest
import torch

from lacova import GPPVAE, GPPriorVAE, Schema, SchemaError
from tests.models.literature import NO_INSTANCE, SMALL
from tests.tables import VISITS, visits

FORMULAS = {"gppvae": "gp(day):cat(id)", "gppvae-features": "gp(day):gp(age):cat(sex)"}
every_formula = pytest.mark.parametrize(("name", "formula"), FORMULAS.items())


@every_formula
def test_it_describes_its_prior(name, formula, literature_models):
    text = literature_models[name].describe()
    assert text.split("prior of z")[1].split("\n")[0].strip() == formula
    assert text.split()[1] == "GPPVAE"


@every_formula
def test_the_loss_is_that_of_a_gp_prior_vae_with_the_same_formula_bit_for_bit(name, formula, literature_models):
    model, table = literature_models[name], visits()
    inducing = {} if name == "gppvae" else {"inducing": model.inducing}
    same = GPPriorVAE(VISITS, prior=formula, patient_effects=False, **inducing, **SMALL)
    same.fit(table, max_epochs=2, batch_size=4)
    pd.testing.assert_frame_equal(same.training, model.training, check_exact=True)
    assert same.elbo(table) == model.elbo(table)
    assert model.vae.prior.couples_rows == (name != "gppvae-features")  # D̂⁴, where a patient's rows belong together


def grid(objects, views):
    """Return every object under every view: age (scaled) and sex of the object, day of the view."""
    names = list(VISITS.covariates)
    x = torch.zeros(len(objects) * len(views), len(names), dtype=torch.float64)
    for i, (age, sex) in enumerate(objects):
        for j, day in enumerate(views):
            values = {"age": age, "sex": sex, "day": day}
            x[i * len(views) + j] = torch.tensor([values[n] for n in names])
    return x


def test_the_kernel_of_objects_and_views_is_a_kronecker_product_on_a_full_grid(literature_models):
    objects, views = [(0.1, 0), (-0.8, 1), (1.5, 1), (0.3, 0)], [-1.0, 0.2, 0.5, 2.0, 2.1]
    x = grid(objects, views)
    kernel = literature_models["gppvae-features"].vae.prior.kernel
    product = kernel(x, x, kernel.shared)
    scale = {column: value.exp() for column, value in kernel.scales(0)}
    day, age = (list(VISITS.covariates).index(name) for name in ("day", "age"))
    for l in range(2):  # noqa: E741
        ages, days = torch.tensor([a for a, _ in objects]).double(), torch.tensor(views).double()
        same_sex = torch.tensor([[float(s == t) for _, t in objects] for _, s in objects]).double()
        of_objects = torch.exp(-0.5 * ((ages[:, None] - ages) / scale[age][l]) ** 2) * same_sex
        of_views = torch.exp(-0.5 * ((days[:, None] - days) / scale[day][l]) ** 2)
        expected = kernel.log_variance[0, l].exp() * torch.kron(of_objects, of_views)
        torch.testing.assert_close(product[l], expected, rtol=1e-8, atol=1e-12)
    # Objects without features: the same kernel of views in every block, and zero between blocks.
    own = literature_models["gppvae"].vae.prior.kernel
    assert own.shared == ()
    scale = dict(own.scales(0))[day].exp()
    gap = (days[:, None] - days).square()
    block = own.log_variance[0].exp()[:, None, None] * torch.exp(-0.5 * gap / scale[:, None, None] ** 2)
    for i in range(len(objects)):
        torch.testing.assert_close(own(x[5 * i : 5 * i + 5], x[5 * i : 5 * i + 5], own.own), block, rtol=1e-8, atol=0)


def test_views_are_the_time_or_else_all_that_varies():
    assert GPPVAE(VISITS, objects=["age"]).formula == "gp(day):gp(age)"
    no_time = Schema(["alt"], {"angle": "continuous", "light": "categorical", "age": "continuous"}, instance="id",
                     static=["age"])  # fmt: skip
    assert GPPVAE(no_time).formula == "gp(angle):cat(light):cat(id)"
    with pytest.raises(ValueError, match="views are told apart by 'light', of which none is a number"):
        GPPVAE(no_time, views=["light"])
    assert GPPVAE(no_time, views=["light"], objects=["age"]).formula == "gp(age):cat(light)"
    faces = Schema(["alt"], {"angle": "continuous", "person": "categorical"})  # objects by a column of X
    assert GPPVAE(faces, objects=["person"]).formula == "gp(angle):cat(person)"


REFUSED = {
    "instance": (lambda: GPPVAE(NO_INSTANCE), r"GPPVAE needs an instance column.*or objects=\[...\]"),
    "views": (lambda: GPPVAE(VISITS, views="day"), r"views must be a list.*write \['day'\]"),
    "none": (lambda: GPPVAE(VISITS, views=[]), "views is empty"),
    "name": (lambda: GPPVAE(VISITS, objects=["alt"]), "objects names 'alt', which is no covariate"),
    "static": (lambda: GPPVAE(VISITS, objects=["day"]), "'day', which is not static"),
    "both": (lambda: GPPVAE(VISITS, views=["age"], objects=["age"]), "'age' is among views and objects"),
    "prior": (lambda: GPPVAE(VISITS, prior="gp(day)"), "prior is not for a GPPVAE"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_with_a_remedy(make, message):
    with pytest.raises((ValueError, SchemaError), match=message):
        make()
