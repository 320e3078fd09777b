"""What all models share: settings, seeds, `fit`, and how a model describes itself."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova import CVAE, VAE, Dense, FitOptions, GPPriorVAE, NotFittedError, Schema, TrainingError
from lacova.models.fitting import read_training_data
from lacova.training.distributed import SINGLE
from tests.models.cases import SMALL, every_model, numbered_visits, same_weights, small_cvae
from tests.tables import ROWS, VISITS, visits

# Seeds.


@every_model
def test_same_seed_gives_the_same_model_bit_for_bit(make):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002  # the global state must not matter
    one = make(VISITS).fit(numbered_visits(), max_epochs=3, batch_size=3, seed=5)
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    other = make(VISITS).fit(numbered_visits(), max_epochs=3, batch_size=3, seed=5)
    assert same_weights(one, other)
    pd.testing.assert_frame_equal(one.training, other.training, check_exact=True)
    pd.testing.assert_frame_equal(one.impute(numbered_visits()), other.impute(numbered_visits()), check_exact=True)
    pd.testing.assert_frame_equal(one.predict(numbered_visits()), other.predict(numbered_visits()), check_exact=True)


@every_model
def test_another_seed_gives_another_model(make):
    one, other = (make(VISITS).fit(numbered_visits(), max_epochs=1, seed=seed) for seed in (5, 6))
    assert not same_weights(one, other)
    assert (one.impute(numbered_visits())["alt"] != other.impute(numbered_visits())["alt"]).any()


@every_model
def test_global_random_state_is_untouched(make):
    torch.manual_seed(11)
    np.random.seed(11)  # noqa: NPY002
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    model = make(VISITS).fit(numbered_visits(), numbered_visits(1), max_epochs=1)
    model.impute(numbered_visits())
    model.predict(numbered_visits())
    model.sample(numbered_visits())
    model.log_likelihood(numbered_visits())
    model.elbo(numbered_visits())
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == before_numpy  # noqa: NPY002


# Settings and options.


@pytest.mark.parametrize("make", [CVAE, GPPriorVAE])
@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.impute(numbered_visits()),
        lambda m: m.predict(numbered_visits()),
        lambda m: m.sample(numbered_visits()),
        lambda m: m.log_likelihood(numbered_visits()),
        lambda m: m.elbo(numbered_visits()),
    ],
    ids=["impute", "predict", "sample", "log_likelihood", "elbo"],
)
def test_an_unfitted_model_is_refused(make, use):
    message = f"^this {make.__name__} has not been fitted; call fit\\(train\\) first\\.$"
    with pytest.raises(NotFittedError, match=message):
        use(make(VISITS))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CVAE(VISITS, latent_dim=0), "latent_dim must be a whole number of at least 1, got 0."),
        (lambda: CVAE(VISITS, latent_dim=2.0), "latent_dim must be a whole number of at least 1, got 2.0."),
        (lambda: GPPriorVAE(VISITS, latent_dim=True), "latent_dim must be a whole number of at least 1, got True."),
        (
            lambda: CVAE(VISITS, covariates="y"),
            "covariates is 'y'; expected one of joint, factorised, paper, mean, knn, iterative, zero, oracle, or a "
            "lacova.covariates.CovariatePrior with @lacova.register(...) above it, its configuration by keyword.",
        ),
        (
            lambda: CVAE(VISITS, covariate_prior={"age": (50, 10)}),
            "covariate_prior states independent columns, but covariates is 'joint'; use covariates=\"factorised\".",
        ),
        (
            lambda: GPPriorVAE(VISITS, networks="digits"),
            "networks is 'digits'; the presets are clinical, rotated-digits, dense-digits, or pass Dense(...) or "
            "Conv(...).",
        ),
        (
            lambda: CVAE(ROWS, scaling="robust").fit(numbered_visits()),
            "scaling is 'robust'; expected one of auto, standard, minmax, none, normal.",
        ),
        (lambda: CVAE(ROWS, noise_floor=-1.0).fit(numbered_visits()), "noise_floor must be positive, got -1.0."),
    ],
)
def test_bad_setting_is_refused(build, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the whole message is compared
        build()
    assert str(caught.value) == message


def test_unknown_fit_option_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'epochs'"):
        CVAE(VISITS).fit(numbered_visits(), epochs=3)


def test_fit_options_are_those_of_the_fit():
    model = small_cvae(VISITS).fit(numbered_visits(), max_epochs=2, seed=3, batch_size=4)
    expected = FitOptions(max_epochs=2, seed=3, masked_loss=1.0, batch_size=4, latent_weight=100.0)
    assert model.options == expected


def test_a_decoder_with_a_linear_path_needs_no_warm_up():
    assert CVAE(ROWS).latent_weight == 1.0
    assert CVAE(ROWS, networks=Dense()).latent_weight == 100.0


@pytest.mark.parametrize(
    ("schema", "options", "size"), [(VISITS, {}, 30), (VISITS, {"schedule": "constant"}, 10), (ROWS, {}, 100)]
)  # of 60 patients, two batches of about 25
def test_batches_suit_the_table_and_the_schedule(schema, options, size):
    table = visits(patients=60)
    data = read_training_data(small_cvae(schema), table, table, FitOptions(**options), torch.device("cpu"), SINGLE)
    assert data.options.batch == size
    assert data.train.batches.size == data.validation.batches.size == size


def test_an_updated_prior_would_unlearn_domain_knowledge():
    model = CVAE(ROWS, covariates="factorised", covariate_prior={"age": (50.0, 10.0)})
    with pytest.raises(ValueError, match=r"covariate_prior states what prior_every would unlearn"):
        model.fit(numbered_visits(), prior_every=1)


@pytest.mark.parametrize("name", ["abacus", "cuda:99"])
def test_a_device_that_cannot_be_used_is_refused(name):
    with pytest.raises(ValueError, match=f"device is '{name}', which cannot be used here"):
        small_cvae(ROWS).fit(numbered_visits(), max_epochs=1, device=name)


# Fits and descriptions.


def test_constant_column_warning_points_at_the_call_of_fit():
    with pytest.warns(UserWarning, match="measurement column\\(s\\) 'alt' are constant in training") as caught:
        small_cvae(ROWS).fit(numbered_visits().assign(alt=3.0), max_epochs=1)
    assert {w.filename for w in caught} == {__file__}


def test_failed_fit_leaves_the_former_fit_in_place():
    model = small_cvae(VISITS).fit(numbered_visits(), max_epochs=2)
    before = model.impute(numbered_visits())
    with pytest.raises(TrainingError):
        model.fit(numbered_visits(), max_epochs=50, learning_rate=1e6)
    pd.testing.assert_frame_equal(model.impute(numbered_visits()), before, check_exact=True)


@every_model
@pytest.mark.parametrize("scaling", ["standard", "minmax"])
def test_units_of_the_measurements_enter_densities_by_their_jacobian(make, scaling):
    # A factor of 4 changes no digit of the scaled table: the models are the same, the densities differ by log 4.
    frame = numbered_visits()
    large = frame.assign(alt=4 * frame["alt"])
    one, other = (make(VISITS, scaling=scaling).fit(f, max_epochs=2) for f in (frame, large))
    seen = frame["alt"].notna()
    np.testing.assert_allclose(
        other.log_likelihood(large), one.log_likelihood(frame) - seen * math.log(4), rtol=1e-9, atol=1e-9
    )
    a, b = one.elbo(frame), other.elbo(large)
    assert b["elbo"] == pytest.approx(a["elbo"] - seen.sum() * math.log(4), rel=1e-9)
    assert b["kl_latent"] == a["kl_latent"]
    np.testing.assert_allclose(other.predict(large)["alt"], 4 * one.predict(frame)["alt"], rtol=1e-12)


@every_model
def test_prediction_follows_a_covariate_that_matters(make):
    rng = np.random.default_rng(0)
    age = rng.normal(50, 10, 60)
    frame = pd.DataFrame({"age": age, "alt": 30 + 0.4 * (age - 50) + rng.normal(0, 1, 60)})
    frame = frame.mask(rng.random((60, 2)) < 0.1)
    model = make(Schema(["alt"], {"age": "continuous"})).fit(frame, max_epochs=200, learning_rate=0.01)
    young, old = model.predict(pd.DataFrame({"age": [35.0, 65.0]}))["alt"]
    # The truth is 24 and 36; a short training shrinks towards the mean.
    assert young == pytest.approx(24, abs=3)
    assert old == pytest.approx(36, abs=3)


@every_model
def test_describe_says_what_the_model_is(make):
    model = make(VISITS)
    assert model.facts()["trained"] == "no; call fit(train)"
    model.fit(numbered_visits(), numbered_visits(1), max_epochs=2, seed=5)
    facts = model.facts()
    assert facts["model"] == type(model).__name__
    assert facts["parameters"] == f"{sum(p.numel() for p in model.vae.parameters()):,}"
    assert facts["trained"].startswith("2 epochs, last validation bound ")
    assert facts["trained"].endswith("per row, seed 5")
    assert facts["instance"] == VISITS.instance
    assert facts["prior of z"] == (model.formula if isinstance(model, GPPriorVAE) else facts["prior of z"])
    assert [line.split("  ")[0] for line in model.describe().split("\n")] == list(facts)
    for name, value in facts.items():
        assert f"{name} " in model.describe()
        assert value in model.describe()


def test_fit_holds_out_a_share_and_remembers_it(tmp_path, capsys, caplog):
    table = visits(patients=30)
    model = small_cvae(VISITS).fit(table, 0.2, max_epochs=2, seed=3, progress=True)
    text = capsys.readouterr().err
    assert "6 different 'id' are held out to choose the best weights; validation=False trains on all." in text
    held_out = model.was_held_out(table)
    assert held_out.index.equals(table.index)
    assert table["id"][held_out].nunique() == 6
    assert set(table["id"][~held_out]) == set(model.training_instances)
    assert model.facts()["held out"] == "6 different id, chosen by fit"
    model.save(tmp_path / "m.lacova")
    again = lacova.load(tmp_path / "m.lacova")
    assert again.was_held_out(table).equals(held_out)
    assert again.facts()["held out"] == model.facts()["held out"]
    with caplog.at_level("INFO", "lacova"):
        small_cvae(VISITS).fit(table, 0.2, max_epochs=1, progress=False)
    assert "6 different 'id' are held out" in caplog.text
    assert capsys.readouterr().err == ""
    same = small_cvae(VISITS).fit(table[~held_out], table[held_out], max_epochs=2, seed=3)
    assert same.training.equals(model.training)
    assert same.facts()["held out"] == "6 different id, given as validation"
    assert same.was_held_out(table).equals(held_out)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_large_tables_hold_out_a_tenth_by_default(library):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(500, 2)), columns=["alt", "ast"])
    rows = table if library == "pandas" else pytest.importorskip("polars").from_pandas(table)
    schema = Schema(["alt", "ast"], {})
    model = VAE(schema, **SMALL).fit(rows, max_epochs=1)
    assert model.was_held_out(rows).sum() == 50
    assert type(model.was_held_out(rows)).__module__.split(".")[0] == library
    assert "validation" in model.training
    for fitted in (
        VAE(schema, **SMALL).fit(rows, False, max_epochs=1),
        VAE(schema, **SMALL).fit(rows[:499], max_epochs=1),
    ):
        assert "validation" not in fitted.training
        assert "held out" not in fitted.facts()
        assert not fitted.was_held_out(rows).any()
