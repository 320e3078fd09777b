"""Networks started from training rows: the covariate prior, stated or learnt."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from lacova import CVAE, FitOptions, GPPriorVAE, Schema
from lacova.covariates.masked_loss import masking_rate
from lacova.models.builder import build, build_blank
from lacova.training.loader import TableLoader
from tests.models.cases import every_model, numbered_visits, small_cvae
from tests.tables import VISITS, visits

STATED = {"age": (170, 10), "sex": {"f": 0.1, "m": 0.9}}


def unknown_patient(frame):
    """Return a visit of a new patient, without any value."""
    return frame[:1].assign(id="new", day=np.nan, age=np.nan, sex=None, alt=np.nan, ast=np.nan)


@every_model
def test_a_stated_prior_is_in_own_units(make):
    model = make(VISITS, covariates="factorised", covariate_prior=STATED).fit(numbered_visits(), max_epochs=2)
    shift, scale = model.encoder.x_shift[0], model.encoder.x_scale[0]
    prior = model.vae.covariate_prior
    assert prior.mean[0].item() * scale + shift == pytest.approx(170, rel=1e-5)
    assert math.sqrt(prior.var[0].item()) * scale == pytest.approx(10, rel=1e-5)
    assert prior.log_prob[1].exp().tolist() == pytest.approx([0.1, 0.9], rel=1e-5)


@every_model
def test_a_stated_prior_fills_a_row_without_values(make):
    model = make(VISITS, covariates="factorised", covariate_prior=STATED).fit(numbered_visits(), max_epochs=2)
    done = model.impute(pd.concat([numbered_visits(), unknown_patient(numbered_visits())]), interval=0.9)[-1:]
    assert done["age"].item() == pytest.approx(170, rel=1e-5)
    assert done["sex"].item() == "m"
    # Quantiles of 400 draws, standard error about 1.06.
    assert done["age_lower"].item() == pytest.approx(170 - 16.45, abs=4)
    assert done["age_upper"].item() == pytest.approx(170 + 16.45, abs=4)


@every_model
def test_otherwise_the_observed_moments_fill_such_a_row(make):
    frame = numbered_visits()
    model = make(VISITS, covariates="factorised").fit(frame, max_epochs=2, prior_every=0)
    done = model.impute(unknown_patient(frame))
    # Of the visits once static values are filled in: each patient counts once.
    assert done["age"].item() == pytest.approx(frame.groupby("id")["age"].first().mean(), rel=1e-5)
    assert done["day"].item() == pytest.approx(frame["day"].mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"height": (170, 10)}, "covariate_prior names 'height', which is not a covariate (age, sex, day)."),
        ({"alt": (30, 10)}, "covariate_prior names 'alt', which is not a covariate (age, sex, day)."),
        ({"age": 50}, "covariate_prior['age'] is 50; a continuous covariate needs (mean, sd)."),
        ({"age": (50, 1, 2)}, "covariate_prior['age'] is (50, 1, 2); a continuous covariate needs (mean, sd)."),
        ({"age": {"f": 1.0}}, "covariate_prior['age'] is {'f': 1.0}; a continuous covariate needs (mean, sd)."),
        ({"age": (50, 0)}, "covariate_prior['age'] is (50, 0); mean and sd must be finite numbers, and sd positive."),
        (
            {"age": (50, -2)},
            "covariate_prior['age'] is (50, -2); mean and sd must be finite numbers, and sd positive.",
        ),
        (
            {"sex": (0.5, 0.5)},
            "covariate_prior['sex'] is (0.5, 0.5); a categorical covariate needs a probability for each of ['f', 'm'].",
        ),
        (
            {"sex": {"f": 1.0}},
            "covariate_prior['sex'] is {'f': 1.0}; a categorical covariate needs a probability for each of ['f', 'm'].",
        ),
        (
            {"sex": {"f": 0.4, "m": 0.5}},
            "covariate_prior['sex'] must hold positive probabilities that sum to 1, got {'f': 0.4, 'm': 0.5}.",
        ),
        (
            {"sex": {"f": 1.0, "m": 0.0}},
            "covariate_prior['sex'] must hold positive probabilities that sum to 1, got {'f': 1.0, 'm': 0.0}.",
        ),
    ],
)
def test_a_bad_stated_prior_is_refused(stated, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        CVAE(VISITS, covariates="factorised", covariate_prior=stated).fit(numbered_visits())
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [(float("nan"), 1.0), (0.0, float("inf")), ("tall", 1.0)])
def test_a_stated_prior_that_is_no_number_is_refused_by_name(value):
    with pytest.raises(ValueError, match=r"covariate_prior\['age'\]"):
        small_cvae(VISITS, covariates="paper", covariate_prior={"age": value}).fit(numbered_visits())


@every_model
def test_the_covariate_prior_is_updated_unless_told_otherwise(make):
    train, validation = numbered_visits(0, gaps=0.2), numbered_visits(1, gaps=0.2)
    for every in (None, 0, 2):
        model = make(VISITS).fit(train, validation, max_epochs=5, prior_every=every)
        assert np.isfinite(model.training.to_numpy()).all()
        model = make(VISITS).fit(train, max_epochs=5, prior_every=every)  # no early epoch is restored
        fresh = build(make(VISITS), model.encoder, model.encoder.encode(train), 0).covariate_prior.state_dict()
        final = model.vae.covariate_prior.state_dict()
        assert all(torch.equal(value, fresh[name]) for name, value in final.items()) == (every == 0)
    with pytest.raises(ValueError, match="prior_every must be a whole number"):
        make(VISITS).fit(train, prior_every=-1)


@pytest.mark.parametrize("count", [1, 4], ids=["rows", "visits"])
def test_updates_undo_the_bias_of_observed_covariates_where_gaps_depend_on_y(count):
    """x has mean 0 and slope 0.7 on y; where y is high it is mostly missing, and what is observed has mean −0.35."""
    rng = np.random.default_rng(3)
    patient = np.repeat(np.arange(600 // count), count)
    x = rng.normal(size=600)
    table = pd.DataFrame({"id": patient, "x": x, "y": 0.7 * x + 0.7 * rng.normal(size=600)})
    table.loc[rng.random(600) < 1 / (1 + np.exp(-3 * table.y)), "x"] = np.nan
    table["arm"] = np.where(patient % 3 == 0, "a", "b")
    table.loc[patient % 5 == 0, "arm"] = None
    repeated = {"instance": "id", "static": ["arm"]} if count > 1 else {}
    covariates = {"x": "continuous"} | ({"arm": "categorical"} if count > 1 else {})
    schema, means = Schema(["y"], covariates, **repeated), []
    make = partial(GPPriorVAE, inducing=10) if count > 1 else CVAE
    row = pd.DataFrame({"id": [-1], "x": [np.nan], "y": [np.nan], "arm": ["b"]})
    for every in (0, None):
        model = make(schema, latent_dim=1).fit(table, max_epochs=25, prior_every=every, device="cpu")
        means.append(model.prior_covariates(row, draws=4000)["x"].mean())
    assert means[0] < -0.25
    assert abs(means[1]) < 0.4 * abs(means[0])


def test_visit_constant_gaps_stay_gaps_where_a_regression_tells_them():
    """It leans on the prior, which would confirm itself."""
    table = visits(patients=40, gaps=0.3)
    table.loc[table["id"].isin(table["id"].unique()[:10]), "sex"] = None
    model = GPPriorVAE(VISITS, latent_dim=1).fit(table, max_epochs=1, device="cpu")
    assert model.vae.covariate_posterior.static_regression is not None
    static = np.array(model.encoder.space.static)
    assert (model.vae.completed_for_prior.numpy() == ~static).all()
    encoded = model.encode(table)
    loader = TableLoader(encoded, masking_rate(encoded), FitOptions().resolved(40, False), torch.device("cpu"))
    loader.condition(model.vae)
    completed = loader.complete(model.vae, torch.Generator().manual_seed(0))
    assert completed.x_mask[:, ~static].all()
    assert torch.equal(completed.x_mask[:, static], loader.host.x_mask[:, static])
    assert not completed.x_mask[:, static].all()


@every_model
def test_blank_networks_have_the_parts_and_shapes_of_built_ones(make):
    model = make(VISITS).fit(numbered_visits(), max_epochs=1)
    vae = model.vae
    sizes = {"inducing": vae.prior.inducing_count, "covariate prior": vae.covariate_prior.sizes()}
    sizes["regressed visits"] = vae.covariate_posterior.visit_regression is not None
    linear = vae.covariate_posterior.linear_posterior or vae.covariate_posterior.dependence
    sizes["linear factors"] = None if linear is None else linear.factors
    blank = build_blank(make(VISITS), model.encoder, sizes)
    shapes = [{name: value.shape for name, value in one.state_dict().items()} for one in (vae, blank)]
    assert shapes[0] == shapes[1]
