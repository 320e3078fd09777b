"""The GP-prior VAE: any gaps, histories, divergence, and what it refuses."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lacova import GPPriorVAE, Schema, TrainingError
from tests.models.cases import SMALL, numbered_visits, small_gp
from tests.models.random_tables import TREATMENTS, check_no_gap_is_left, few_examples, tables
from tests.tables import VISITS


@few_examples
@given(table=tables(), covariates=st.sampled_from(TREATMENTS), scaling=st.sampled_from(["standard", "minmax"]))
def test_gp_prior_vae_takes_any_gaps(table, covariates, scaling):
    model = GPPriorVAE(table[0], **SMALL, inducing=4, covariates=covariates, scaling=scaling)
    check_no_gap_is_left(model, *table)


def test_history_moves_the_prediction_of_its_patient():
    train = numbered_visits(gaps=0.0)
    train["alt"] += 20 * np.random.default_rng(0).normal(size=train["id"].nunique())[pd.factorize(train["id"])[0]]
    frame = train.assign(id="new" + train["id"])
    model = small_gp(VISITS).fit(train, max_epochs=150, learning_rate=0.01)
    new, past = frame[frame["day"] == 3], frame[frame["day"] < 3]
    low, high = (model.predict(new, history=past.assign(alt=past["alt"] + shift)) for shift in (-10, 10))
    assert (high["alt"] > low["alt"]).all()


def test_diverging_kernel_is_a_training_error():
    # A Cholesky factorisation fails before the loss is checked.
    with pytest.raises(TrainingError, match="learning_rate"):
        small_gp(VISITS).fit(numbered_visits(), max_epochs=50, fast_learning_rate=1e3)


@pytest.mark.parametrize("inducing", [0, 6.5])
def test_a_bad_number_of_inducing_inputs_is_refused(inducing):
    with pytest.raises(ValueError, match=f"^inducing must be a whole number of at least 1, got {inducing}.$"):
        GPPriorVAE(VISITS, inducing=inducing)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("expectation", "mean", "expectation is 'mean'; expected 'sample' or 'exact'."),
        ("patient_effects", "level", "patient_effects is 'level'; expected True, False or 'intercept'."),
        ("patient_slopes", "day", "patient_slopes is 'day'; expected True, False or None."),
        ("fixed_effects", 1, "fixed_effects is 1; expected True or False."),
    ],
)
def test_other_bad_settings_are_refused(setting, value, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the whole message is compared
        GPPriorVAE(VISITS, **{setting: value})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("roles", "settings", "text"),
    [
        ({}, {"patient_effects": "intercept"}, "patient_slopes is True, but patient_effects is 'intercept'; slopes"),
        ({}, {"patient_effects": False}, "patient_effects is False; slopes"),
        ({"time": None}, {}, "the schema has no time; slopes"),
        ({"instance": None, "time": None, "static": ()}, {}, "the schema has no instance; slopes"),
        ({"measurements": [f"y{k}" for k in range(201)]}, {}, "there are 201 measurements, more than 200; slopes"),
        ({}, {"patient_slopes": None, "patient_factors": 3, "patient_effects": False},
         "patient_factors is 3, .* but patient_effects is False; leave it out"),
        ({"instance": None, "time": None, "static": ()}, {"patient_slopes": None, "patient_factors": 3},
         "patient_factors is 3, .* but the schema has no instance"),
    ],
)  # fmt: skip
def test_settings_of_random_effects_that_there_are_none_of_are_refused(roles, settings, text):
    known = {"measurements": ["alt"], "covariates": {"age": "continuous"}, "instance": "id", "time": "day",
             "static": ("age",)}  # fmt: skip
    schema = Schema(**known | roles)
    with pytest.raises(ValueError, match=text):
        GPPriorVAE(schema, **{"patient_slopes": True} | settings)
    for fine in ({"patient_slopes": False}, {"patient_factors": 0}):
        GPPriorVAE(schema, **fine, patient_effects=False)
