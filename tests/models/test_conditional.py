import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lacova.training.loop
import lacova.training.step
from lacova import CVAE, DataError, Dense, FitOptions, GPPriorVAE, NotFittedError, Schema, TrainingError
from lacova.covariates.masked_loss import masking_rate
from lacova.inference.objective import Terms
from lacova.training.loader import TableLoader
from lacova.training.step import Validator

SMALL = Dense((8,), (8,))
MODELS = {
    "cvae": lambda schema, **k: CVAE(schema, **{"latent_dim": 2, "networks": SMALL, **k}),
    "conditional": lambda schema, **k: CVAE(
        schema, **{"latent_dim": 2, "networks": SMALL, "latent_prior": "conditional", **k}
    ),
    "gp": lambda schema, **k: GPPriorVAE(schema, **{"latent_dim": 2, "networks": SMALL, "inducing": 5, **k}),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
SCHEMA = Schema(
    ["alt", "ast"], {"age": "continuous", "sex": "categorical"}, instance="id", time="day", static=["age", "sex"]
)
ROWS = Schema(["alt", "ast"], {"age": "continuous", "sex": "categorical"})


def visits(seed=0, patients=8, visits=4, gaps=0.25):
    """Patients with static age and sex, some of it missing; their rows are interleaved, two measurements."""
    rng = np.random.default_rng(seed)
    who = np.tile(np.arange(patients), visits)
    age, sex = rng.normal(50, 10, patients)[who], np.array(["f", "m"])[who % 2]
    day = np.repeat(np.arange(float(visits)), patients)
    alt = 30 + 0.4 * (age - 50) + 2 * day + rng.normal(0, 1, len(who))
    ast = 20 - 3 * (sex == "m") + rng.normal(0, 1, len(who))
    ids = np.array([f"p{k}" for k in range(patients)])[who]
    frame = pd.DataFrame({"id": ids, "day": day, "age": age, "sex": sex, "alt": alt, "ast": ast})
    frame.index = pd.Index(np.arange(100, 100 + len(who)), name="visit")
    holes = rng.random((len(who), 5)) < gaps
    frame.iloc[:, 1:] = frame.iloc[:, 1:].mask(holes)
    return frame


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS.keys())
def fitted(request):
    return request.param(SCHEMA).fit(visits(), max_epochs=2)


def assert_observed_entries_kept(done, frame):
    assert list(done.columns) == list(frame.columns)
    pd.testing.assert_index_equal(done.index, frame.index)
    for name in frame.columns:
        seen = frame[name].notna().to_numpy()
        pd.testing.assert_series_equal(done[name][seen], frame[name][seen], check_exact=True)


# Random schemas and gaps.


@st.composite
def tables(draw):
    """A schema and a table that fits it: at least two distinct observed values per column, no gap in the instance."""
    measurements = [f"y{k}" for k in range(draw(st.integers(1, 3)))]
    kinds = draw(st.lists(st.sampled_from(["continuous", "categorical"]), min_size=1, max_size=3))
    covariates = {f"x{k}": kind for k, kind in enumerate(kinds)}
    instance = "id" if draw(st.booleans()) else None
    time = "t" if draw(st.booleans()) else None
    static = [name for name in covariates if instance and draw(st.booleans())]
    schema = Schema(measurements, covariates, instance, time, static)

    rows, rng = draw(st.integers(2, 10)), np.random.default_rng(draw(st.integers(0, 10**6)))
    who = np.array([0, 1, *draw(st.lists(st.integers(0, 3), min_size=rows - 2, max_size=rows - 2))])
    columns = {"extra": rng.random(rows)}
    if instance:
        columns["id"] = np.array(["b", "a", "c", "d"])[who]
    for name in (*schema.covariates, *measurements):
        units = who if name in static else np.arange(rows)
        gaps = np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
        # Units 0 and 1 differ; one row of each is observed.
        kept = [draw(st.sampled_from(np.flatnonzero(units == unit).tolist())) for unit in (0, 1)]
        gaps[kept] = False
        if schema.covariates.get(name) == "categorical":
            values = np.array(["u", "v", *rng.choice(["u", "v", "w"], 8)], dtype=object)[units]
        else:
            values = (rng.permutation(10) + rng.random(10))[units] * 10.0 ** draw(st.integers(-3, 4))
        columns[name] = pd.Series(values).mask(gaps)
    frame = pd.DataFrame(columns)[draw(st.permutations(list(columns)))]
    return schema, frame.iloc[draw(st.permutations(range(rows)))].set_axis(np.array(draw(st.permutations(range(rows)))))


def check_no_gap_comes_out(model, schema, frame):
    model.fit(frame, max_epochs=2, batch_size=3)
    before = frame.copy()
    done = model.impute(frame)
    assert_observed_entries_kept(done, frame)
    assert not done[list(schema.columns)].isna().any(axis=None)

    predicted = model.predict(frame, draws=7)
    assert list(predicted.columns) == list(schema.measurements)
    pd.testing.assert_index_equal(predicted.index, frame.index)
    assert np.isfinite(predicted.to_numpy()).all()
    if schema.instance:
        later = model.predict(frame[:2], history=frame[2:], draws=7) if len(frame) > 2 else predicted
        assert np.isfinite(later.to_numpy()).all()

    density = model.log_likelihood(frame, draws=7)
    pd.testing.assert_index_equal(density.index, frame.index)
    assert np.isfinite(density.to_numpy()).all()
    terms = model.elbo(frame)
    assert all(math.isfinite(value) for value in terms.values()), terms
    pd.testing.assert_frame_equal(frame, before, check_exact=True)


WAYS = ["joint", "factorised", "paper", "mean", "knn", "iterative", "zero"]


def property_test(examples):
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@property_test(12)
@given(table=tables(), latent=st.sampled_from(["normal", "conditional"]), covariates=st.sampled_from(WAYS))
def test_cvae_takes_any_gaps(table, latent, covariates):
    model = CVAE(table[0], latent_dim=2, networks=SMALL, latent_prior=latent, covariates=covariates)
    check_no_gap_comes_out(model, *table)


@property_test(12)
@given(table=tables(), covariates=st.sampled_from(WAYS), scaling=st.sampled_from(["standard", "minmax"]))
def test_gp_prior_vae_takes_any_gaps(table, covariates, scaling):
    model = GPPriorVAE(table[0], latent_dim=2, networks=SMALL, inducing=4, covariates=covariates, scaling=scaling)
    check_no_gap_comes_out(model, *table)


# Reproducibility.


def same_state(one, other):
    a, b = one._vae.state_dict(), other._vae.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@every_model
def test_same_seed_gives_the_same_model_bit_for_bit(make):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002  # the global state must not matter
    one = make(SCHEMA).fit(visits(), max_epochs=3, batch_size=3, seed=5)
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    other = make(SCHEMA).fit(visits(), max_epochs=3, batch_size=3, seed=5)
    assert same_state(one, other)
    pd.testing.assert_frame_equal(one.training, other.training, check_exact=True)
    pd.testing.assert_frame_equal(one.impute(visits()), other.impute(visits()), check_exact=True)
    pd.testing.assert_frame_equal(one.predict(visits()), other.predict(visits()), check_exact=True)


@every_model
def test_another_seed_gives_another_model(make):
    one, other = (make(SCHEMA).fit(visits(), max_epochs=1, seed=seed) for seed in (5, 6))
    assert not same_state(one, other)
    assert (one.impute(visits())["alt"] != other.impute(visits())["alt"]).any()


def test_draws_depend_on_their_seed(fitted):
    frame = visits()
    gaps = frame["alt"].isna()
    pd.testing.assert_frame_equal(fitted.impute(frame, draws=2, seed=3), fitted.impute(frame, draws=2, seed=3))
    assert (fitted.impute(frame, seed=3)["alt"] != fitted.impute(frame, seed=4)["alt"])[gaps].all()
    assert (fitted.predict(frame, seed=3) != fitted.predict(frame, seed=4)).to_numpy().all()
    assert (fitted.sample(frame, seed=3)["alt"].to_numpy() != fitted.sample(frame, seed=4)["alt"].to_numpy()).all()


@every_model
def test_global_random_state_is_untouched(make):
    torch.manual_seed(11)
    np.random.seed(11)  # noqa: NPY002
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    model = make(SCHEMA).fit(visits(), visits(1), max_epochs=1)
    model.impute(visits())
    model.predict(visits())
    model.sample(visits())
    model.log_likelihood(visits())
    model.elbo(visits())
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == before_numpy  # noqa: NPY002


# Arguments.


@pytest.mark.parametrize("make", [CVAE, GPPriorVAE])
@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.impute(visits()),
        lambda m: m.predict(visits()),
        lambda m: m.sample(visits()),
        lambda m: m.log_likelihood(visits()),
        lambda m: m.elbo(visits()),
    ],
    ids=["impute", "predict", "sample", "log_likelihood", "elbo"],
)
def test_unfitted_model_says_so(make, use):
    message = f"^this {make.__name__} has not been fitted; call fit\\(train\\) first\\.$"
    with pytest.raises(NotFittedError, match=message):
        use(make(SCHEMA))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CVAE(SCHEMA, latent_dim=0), "latent_dim must be a whole number of at least 1, got 0."),
        (lambda: CVAE(SCHEMA, latent_dim=2.0), "latent_dim must be a whole number of at least 1, got 2.0."),
        (lambda: GPPriorVAE(SCHEMA, latent_dim=True), "latent_dim must be a whole number of at least 1, got True."),
        (
            lambda: CVAE(SCHEMA, covariates="y"),
            "covariates is 'y'; expected one of joint, factorised, paper, mean, knn, iterative, zero, oracle.",
        ),
        (
            lambda: CVAE(SCHEMA, covariate_prior={"age": (50, 10)}),
            "covariate_prior states independent columns, but covariates is 'joint'; use covariates=\"factorised\".",
        ),
        (lambda: CVAE(SCHEMA, latent_prior="gp"), "latent_prior is 'gp'; expected 'normal' or 'conditional'."),
        (
            lambda: GPPriorVAE(SCHEMA, networks="digits"),
            "networks is 'digits'; the presets are clinical, rotated-digits, dense-digits, or pass Dense(...) or "
            "Conv(...).",
        ),
        (lambda: GPPriorVAE(SCHEMA, inducing=0), "inducing must be a whole number of at least 1, got 0."),
        (lambda: GPPriorVAE(SCHEMA, inducing=6.5), "inducing must be a whole number of at least 1, got 6.5."),
        (
            lambda: CVAE(Schema(["alt"], {})),
            "CVAE conditions on covariates: name at least one in the schema, or use VAE or MIWAE.",
        ),
        (
            lambda: CVAE(ROWS, scaling="robust").fit(visits()),
            "scaling is 'robust'; expected one of standard, minmax, none, normal.",
        ),
        (lambda: CVAE(ROWS, noise_floor=-1.0).fit(visits()), "noise_floor must be positive, got -1.0."),
    ],
)
def test_bad_setting_is_refused(build, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the whole message is compared
        build()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_epochs", 0, "max_epochs must be a whole number of at least 1, got 0."),
        ("batch_size", -5, "batch_size must be a whole number of at least 1, got -5."),
        ("patience", True, "patience must be a whole number of at least 1, got True."),
        ("samples", 1.5, "samples must be a whole number of at least 1, got 1.5."),
        ("cap", 0, "cap must be a whole number of at least 1, got 0."),
        ("learning_rate", 0.0, "learning_rate must be positive, got 0.0."),
        ("learning_rate", float("nan"), "learning_rate must be positive, got nan."),
        ("fast_learning_rate", -1e-3, "fast_learning_rate must be positive, got -0.001."),
        ("natural_rate", 0.0, "natural_rate must lie in (0, 1], got 0.0."),
        ("natural_rate", 1.5, "natural_rate must lie in (0, 1], got 1.5."),
    ],
)
def test_bad_fit_option_is_refused(option, value, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        CVAE(SCHEMA).fit(visits(), **{option: value})
    assert str(caught.value) == message


def test_unknown_fit_option_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'epochs'"):
        CVAE(SCHEMA).fit(visits(), epochs=3)


@pytest.mark.parametrize("draws", [0, -1, True, 2.0])
@pytest.mark.parametrize("method", ["impute", "predict", "sample", "log_likelihood"])
def test_bad_number_of_draws_is_refused(fitted, method, draws):
    with pytest.raises(ValueError, match=f"^draws must be a whole number of at least 1, got {draws!r}\\.$"):
        getattr(fitted, method)(visits(), draws=draws)


@pytest.mark.parametrize("interval", [1.5, 1.0, 0.0, -0.9, 90])
@pytest.mark.parametrize("method", ["impute", "predict"])
def test_bad_interval_is_refused(fitted, method, interval):
    with pytest.raises(ValueError, match=f"^interval must lie between 0 and 1, such as 0.9; got {interval!r}\\.$"):
        getattr(fitted, method)(visits(), interval=interval)


def test_history_without_instance_column_is_refused():
    model = MODELS["cvae"](ROWS).fit(visits(), max_epochs=1)
    message = r"^history belongs to instances, but the schema has no instance column: give Schema\(instance=\.\.\.\)\.$"
    with pytest.raises(DataError, match=message):
        model.predict(visits(), history=visits())


@pytest.mark.parametrize("method", ["impute", "predict", "log_likelihood", "elbo"])
def test_bad_table_is_refused_by_every_method(fitted, method):
    with pytest.raises(DataError, match=r"^column\(s\) 'sex' are in the schema but not in the table"):
        getattr(fitted, method)(visits().drop(columns="sex"))
    with pytest.raises(DataError, match=r"^expected a pandas or polars DataFrame or a pyarrow Table, got list"):
        getattr(fitted, method)([1])


def test_constant_column_warning_points_at_the_call_of_fit():
    with pytest.warns(UserWarning, match="measurement column\\(s\\) 'alt' are constant in training") as caught:
        MODELS["cvae"](ROWS).fit(visits().assign(alt=3.0), max_epochs=1)
    assert {w.filename for w in caught} == {__file__}


# Training.


@every_model
def test_early_stopping_restores_the_best_weights(make):
    # Validation rows whose measurements belong to other rows, and large steps: the bound peaks early.
    train, validation = visits(0, patients=4, gaps=0.1), visits(1, patients=12, gaps=0.1)
    validation[["alt", "ast"]] = validation[["alt", "ast"]].to_numpy()[::-1]
    model = make(SCHEMA).fit(
        train, validation, max_epochs=80, patience=4, learning_rate=0.1, batch_size=2, latent_weight=1.0
    )
    scores = model.training["validation"] + model.training["validation_masked_log_prob"]
    best = model.training.loc[scores.idxmax()]
    assert scores.idxmax() < len(scores) - 1
    share = masking_rate(model._encoder.encode(train))
    rows = TableLoader(model._encoder.encode(validation), share, model._options, torch.device("cpu"))
    rows.condition(model._vae)
    assert Validator(model._vae, model._options, rows)() == (best["validation"], best["validation_masked_log_prob"])


@every_model
def test_training_stops_after_patience_and_keeps_the_best_epoch(make, monkeypatch):
    scores, states = iter([1.0, 5.0, 3.0, 5.0, 4.0, 9.0]), []

    def judge(validator):
        states.append({name: value.clone() for name, value in validator.vae.state_dict().items()})
        return next(scores), 0.0

    monkeypatch.setattr(Validator, "__call__", judge)
    model = make(SCHEMA).fit(visits(), visits(1), max_epochs=6, patience=3, latent_weight=1.0)
    assert model.training["validation"].tolist() == [1.0, 5.0, 3.0, 5.0, 4.0]
    final, weights = model._vae.state_dict(), [name for name, _ in model._vae.named_parameters()]
    assert all(torch.equal(final[name], states[1][name]) for name in weights)
    assert not all(torch.equal(states[4][name], states[1][name]) for name in weights)


def test_latent_weight_falls_geometrically_to_one_and_delays_patience():
    options = FitOptions(max_epochs=90, latent_weight=100.0)
    assert [round(options.latent_weight_at(k), 6) for k in (0, 15, 30, 60)] == [100.0, 10.0, 1.0, 1.0]
    assert options.warm_up == 30
    assert FitOptions(max_epochs=90).warm_up == 0
    assert FitOptions(latent_weight=7.0, latent_epochs=2).weight(1) == pytest.approx(7.0**0.5)


@every_model
def test_without_validation_rows_all_epochs_are_run(make):
    model = make(SCHEMA).fit(visits(), max_epochs=3, patience=1)
    assert model.training["epoch"].tolist() == [1.0, 2.0, 3.0]
    assert "validation" not in model.training.columns


@every_model
def test_training_records_the_terms_per_row(make):
    training = make(SCHEMA).fit(visits(), max_epochs=2).training
    kl = training["kl_latent"] + training["kl_covariates"] + training["kl_inducing"]
    np.testing.assert_allclose(training["elbo"], training["reconstruction"] - kl, rtol=1e-5)
    assert (training["kl_covariates"] > 0).all()


@every_model
def test_training_improves_the_bound(make):
    training = make(SCHEMA).fit(visits(gaps=0.1), max_epochs=100, learning_rate=0.01).training
    assert training["elbo"][-5:].mean() > training["elbo"][:5].mean() + 0.5


@every_model
def test_diverging_training_is_stopped_with_advice(make):
    model = make(SCHEMA)
    message = r"^the loss became non-finite in epoch \d+ \(.*(elbo|matrix).*\)\. Try a smaller learning_rate, fast"
    with pytest.raises(TrainingError, match=message):
        model.fit(visits(), max_epochs=50, learning_rate=1e6)
    with pytest.raises(NotFittedError):
        model.impute(visits())


def test_training_error_names_the_broken_terms(monkeypatch):
    one, bad = torch.tensor(1.0), torch.tensor(float("nan"))
    monkeypatch.setattr(lacova.training.step, "bound", lambda *_: Terms(one.requires_grad_(), bad, one, one))
    with pytest.raises(TrainingError, match=r"^the loss became non-finite in epoch 1 \(kl_latent, elbo\)\. Try"):
        MODELS["cvae"](SCHEMA).fit(visits())


def test_failed_fit_leaves_the_former_fit_in_place():
    model = MODELS["cvae"](SCHEMA).fit(visits(), max_epochs=2)
    before = model.impute(visits())
    with pytest.raises(TrainingError):
        model.fit(visits(), max_epochs=50, learning_rate=1e6)
    pd.testing.assert_frame_equal(model.impute(visits()), before, check_exact=True)


def test_progress_is_silent_unless_asked_for(capfd):
    MODELS["cvae"](SCHEMA).fit(visits(), max_epochs=2)
    assert capfd.readouterr() == ("", "")
    MODELS["cvae"](SCHEMA).fit(visits(), max_epochs=2, progress=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "elbo -" in shown.err


# Prior knowledge of covariates.

KNOWLEDGE = {"age": (170, 10), "sex": {"f": 0.1, "m": 0.9}}


def blank(frame):
    """A patient of whom nothing is known."""
    return frame[:1].assign(id="new", day=np.nan, age=np.nan, sex=None, alt=np.nan, ast=np.nan)


@every_model
def test_covariate_prior_is_in_own_units(make):
    model = make(SCHEMA, covariates="factorised", covariate_prior=KNOWLEDGE).fit(visits(), max_epochs=2)
    shift, scale = model._encoder.x_shift[0], model._encoder.x_scale[0]
    prior = model._vae.covariate_prior
    assert prior.mean[0].item() * scale + shift == pytest.approx(170, rel=1e-5)
    assert math.sqrt(prior.var[0].item()) * scale == pytest.approx(10, rel=1e-5)
    assert prior.log_prob[1].exp().tolist() == pytest.approx([0.1, 0.9], rel=1e-5)


@every_model
def test_covariate_prior_fills_a_row_of_which_nothing_is_known(make):
    model = make(SCHEMA, covariates="factorised", covariate_prior=KNOWLEDGE).fit(visits(), max_epochs=2)
    done = model.impute(pd.concat([visits(), blank(visits())]), interval=0.9)[-1:]
    assert done["age"].item() == pytest.approx(170, rel=1e-5)
    assert done["sex"].item() == "m"
    # Quantiles of 400 draws, standard error about 1.06.
    assert done["age_lower"].item() == pytest.approx(170 - 16.45, abs=4)
    assert done["age_upper"].item() == pytest.approx(170 + 16.45, abs=4)


@every_model
def test_without_knowledge_the_observed_moments_fill_such_a_row(make):
    frame = visits()
    model = make(SCHEMA, covariates="factorised").fit(frame, max_epochs=2)
    done = model.impute(blank(frame))
    # Of the visits once static values are spread: each patient counts once.
    assert done["age"].item() == pytest.approx(frame.groupby("id")["age"].first().mean(), rel=1e-5)
    assert done["day"].item() == pytest.approx(frame["day"].mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("knowledge", "message"),
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
def test_bad_covariate_prior_is_refused(knowledge, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        CVAE(SCHEMA, covariates="factorised", covariate_prior=knowledge).fit(visits())
    assert str(caught.value) == message


# What comes out.


def test_impute_keeps_observed_entries_and_fills_the_rest(fitted):
    frame = visits()
    done = fitted.impute(frame)
    assert_observed_entries_kept(done, frame)
    assert not done.isna().any(axis=None)
    assert set(done["sex"]) == {"f", "m"}


def test_impute_of_a_table_without_gaps_is_the_table(fitted):
    frame = visits(gaps=0.0)
    pd.testing.assert_frame_equal(fitted.impute(frame), frame, check_exact=True)


def test_impute_follows_the_rows_wherever_they_stand(fitted):
    # Best guesses of covariates have no randomness: they must move with their rows.
    frame = visits()
    mixed = frame.sample(frac=1.0, random_state=0)
    one, other = fitted.impute(frame), fitted.impute(mixed).loc[frame.index]
    assert one["day"][frame["day"].isna()].nunique() > 1
    np.testing.assert_allclose(other[["day", "age"]], one[["day", "age"]], rtol=1e-4)
    assert other["sex"].tolist() == one["sex"].tolist()


def test_log_likelihood_follows_the_rows_wherever_they_stand(fitted):
    frame = visits(gaps=0.0)
    frame.loc[117, "alt"] = 500.0
    assert fitted.log_likelihood(frame).idxmin() == 117
    assert fitted.log_likelihood(frame.sample(frac=1.0, random_state=0)).idxmin() == 117


def test_unknown_static_value_is_one_per_patient(fitted):
    frame = visits()
    frame.loc[frame["id"] == "p3", ["age", "sex"]] = None
    done = fitted.impute(frame)
    assert done.groupby("id")["sex"].nunique().max() == 1
    assert done[done["id"] == "p3"]["age"].nunique() == 1
    long = fitted.impute(frame, draws=30)
    mine = long[long["id"] == "p3"].groupby("draw")
    assert mine["age"].nunique().max() == mine["sex"].nunique().max() == 1
    assert mine["age"].first().nunique() == 30
    assert set(mine["sex"].first()) == {"f", "m"}


def test_impute_draws_are_tables_one_below_the_other(fitted):
    frame = visits()
    long = fitted.impute(frame, draws=3)
    assert list(long.columns) == ["draw", *frame.columns]
    assert long["draw"].tolist() == [0] * 32 + [1] * 32 + [2] * 32
    tables = [table.drop(columns="draw") for _, table in long.groupby("draw")]
    for table in tables:
        assert_observed_entries_kept(table, frame)
        assert not table.isna().any(axis=None)
    gaps = frame["alt"].isna()
    assert (tables[0]["alt"] != tables[1]["alt"])[gaps].all()


def test_sample_draws_are_tables_one_below_the_other(fitted):
    long = fitted.sample(visits(), draws=2)
    assert list(long.columns) == ["draw", "alt", "ast"]
    assert long["draw"].tolist() == [0] * 32 + [1] * 32
    assert long.index.tolist() == 2 * visits().index.tolist()
    assert np.isfinite(long.to_numpy()).all()


def test_sample_average_is_the_prediction(fitted):
    frame = visits()[:6]
    average = fitted.sample(frame, draws=1000).groupby(level=0)[["alt", "ast"]].mean()
    spread = fitted._encoder.y_scale * math.sqrt(2.0 / 1000)  # the noise of 1000 draws, generously
    assert ((average - fitted.predict(frame, draws=1000)).abs() < 6 * spread).to_numpy().all()


def test_impute_intervals(fitted):
    frame = visits()
    done = fitted.impute(frame, interval=0.9)
    numeric = ["age", "day", "alt", "ast"]
    extra = [f"{c}_{side}" for c in numeric for side in ("lower", "upper")]
    assert list(done.columns) == [*frame.columns, *extra]
    assert_observed_entries_kept(done[list(frame.columns)], frame)
    for name in ("day", "alt", "ast"):
        gaps = frame[name].isna()
        assert (done[f"{name}_lower"] < done[f"{name}_upper"])[gaps].all()
        assert (done[f"{name}_lower"] == frame[name])[~gaps].all()
        assert (done[f"{name}_upper"] == frame[name])[~gaps].all()
    assert (done["age_lower"] <= done["age_upper"]).all()


def test_predict_intervals(fitted):
    frame = visits()
    wide, narrow = (fitted.predict(frame, interval=level, draws=50) for level in (0.9, 0.5))
    assert list(wide.columns) == ["alt", "ast", "alt_lower", "alt_upper", "ast_lower", "ast_upper"]
    pd.testing.assert_index_equal(wide.index, frame.index)
    for name in ("alt", "ast"):
        assert (wide[f"{name}_lower"] < narrow[f"{name}_lower"]).all()
        assert (narrow[f"{name}_lower"] < narrow[f"{name}_upper"]).all()
        assert (narrow[f"{name}_upper"] < wide[f"{name}_upper"]).all()


def test_predict_does_not_look_at_measurements(fitted):
    frame = visits()
    expected = fitted.predict(frame)
    pd.testing.assert_frame_equal(fitted.predict(frame.assign(alt=1e9, ast="?")), expected, check_exact=True)
    pd.testing.assert_frame_equal(fitted.predict(frame.drop(columns=["alt", "ast"])), expected, check_exact=True)


def test_a_patient_alone_gets_the_answer_it_gets_among_others(fitted):
    frame = visits()
    one = frame[frame["id"] == "p3"]
    draws = fitted.sample(frame, draws=3, independent_noise=True)
    pairs = [
        (
            fitted.predict(one, interval=0.9, independent_noise=True),
            fitted.predict(frame, interval=0.9, independent_noise=True).loc[one.index],
        ),
        (fitted.impute(one, independent_noise=True), fitted.impute(frame, independent_noise=True).loc[one.index]),
        (fitted.sample(one, draws=3, independent_noise=True), draws[draws.index.isin(one.index)]),
    ]
    for got, expected in pairs:
        # Equal but for the covariate prior, which is prepared for all rows at once and rounds differently.
        pd.testing.assert_frame_equal(got, expected, rtol=1e-5)
    assert not fitted.predict(one).equals(fitted.predict(frame).loc[one.index])


def test_completed_tables_need_rows_drawn_independently(fitted):
    with pytest.raises(ValueError, match="independent_noise"):
        fitted.impute(visits(), draws=2, independent_noise=True)


def test_history_of_other_patients_is_ignored(fitted):
    frame = visits()
    new = frame[frame["id"] == "p0"]
    others = frame[frame["id"] != "p0"]
    pd.testing.assert_frame_equal(fitted.predict(new, history=others), fitted.predict(new), check_exact=True)


def test_history_moves_the_prediction_of_its_patient():
    train = visits(gaps=0.0)
    train["alt"] += 20 * np.random.default_rng(0).normal(size=train["id"].nunique())[pd.factorize(train["id"])[0]]
    frame = train.assign(id="new" + train["id"])
    model = MODELS["gp"](SCHEMA).fit(train, max_epochs=150, learning_rate=0.01)
    new, past = frame[frame["day"] == 3], frame[frame["day"] < 3]
    low, high = (model.predict(new, history=past.assign(alt=past["alt"] + shift)) for shift in (-10, 10))
    assert (high["alt"] > low["alt"]).all()


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
@pytest.mark.parametrize("scaling", ["standard", "minmax"])
def test_units_of_the_measurements_enter_densities_by_their_jacobian(make, scaling):
    # A factor of 4 changes no digit of the scaled table: the models are the same, the densities differ by log 4.
    frame = visits()
    large = frame.assign(alt=4 * frame["alt"])
    one, other = (make(SCHEMA, scaling=scaling).fit(f, max_epochs=2) for f in (frame, large))
    seen = frame["alt"].notna()
    np.testing.assert_allclose(
        other.log_likelihood(large), one.log_likelihood(frame) - seen * math.log(4), rtol=1e-9, atol=1e-9
    )
    a, b = one.elbo(frame), other.elbo(large)
    assert b["elbo"] == pytest.approx(a["elbo"] - seen.sum() * math.log(4), rel=1e-9)
    assert b["kl_latent"] == a["kl_latent"]
    np.testing.assert_allclose(other.predict(large)["alt"], 4 * one.predict(frame)["alt"], rtol=1e-12)


def test_elbo_names_its_terms(fitted):
    terms = fitted.elbo(visits())
    assert set(terms) == {"reconstruction", "kl_latent", "kl_covariates", "kl_inducing", "elbo"}
    kl = terms["kl_latent"] + terms["kl_covariates"] + terms["kl_inducing"]
    assert terms["elbo"] == pytest.approx(terms["reconstruction"] - kl, rel=1e-12)
    assert terms["kl_covariates"] > 0
    assert (terms["kl_inducing"] > 0) == isinstance(fitted, GPPriorVAE)


def test_fit_options_are_those_of_the_fit():
    model = MODELS["cvae"](SCHEMA).fit(visits(), max_epochs=2, seed=3, batch_size=4)
    usual = {"learning_rate": 3e-3, "latent_weight": 100.0, "masked_loss": 1.0}
    assert model._options == FitOptions(max_epochs=2, seed=3, batch_size=4, **usual)


# Mended bugs.


def test_imputed_table_can_be_imputed_again():
    # Known static values come back rounded, so that they "take more than one value" within the patient.
    model = MODELS["cvae"](SCHEMA).fit(visits(), max_epochs=1)
    done = model.impute(visits())
    pd.testing.assert_frame_equal(model.impute(done), done, check_exact=True)


@pytest.mark.parametrize("column", ["id", "alt", "sex"])
def test_history_that_lacks_a_column_is_a_data_error(column):
    model = MODELS["cvae"](SCHEMA).fit(visits(), max_epochs=1)
    with pytest.raises(DataError, match=f"'{column}'"):
        model.predict(visits(), history=visits().drop(columns=column))


def test_intervals_for_rows_without_any_measurement():
    # A batch without an observed measurement is empty to torch.quantile.
    model = MODELS["cvae"](SCHEMA).fit(visits(), max_epochs=1)
    done = model.impute(visits().assign(alt=np.nan, ast=np.nan), interval=0.9)
    assert (done["alt_lower"] < done["alt_upper"]).all()


def test_progress_shows_the_epoch_in_80_columns(capfd):
    MODELS["cvae"](SCHEMA).fit(visits(), max_epochs=2, progress=True)
    assert "2/2" in capfd.readouterr().err


def test_interval_next_to_draws_is_dropped():
    model = MODELS["cvae"](SCHEMA).fit(visits(), max_epochs=1)
    with pytest.raises(ValueError, match="interval"):
        model.impute(visits(), draws=2, interval=1.5)


@pytest.mark.parametrize("name", ["cvae", "gp"])
def test_elbo_with_zero_samples_is_refused(name):
    model = MODELS[name](SCHEMA).fit(visits(), max_epochs=1)
    with pytest.raises(ValueError, match="samples"):
        model.elbo(visits(), samples=0)


def test_diverging_kernel_is_a_training_error():
    # A Cholesky factorisation fails before the loss is looked at.
    with pytest.raises(TrainingError, match="learning_rate"):
        MODELS["gp"](SCHEMA).fit(visits(), max_epochs=50, fast_learning_rate=1e3)


@pytest.mark.parametrize("name", ["cvae", "gp"])
def test_last_step_may_leave_a_model_that_predicts_nan(name):
    with pytest.raises(TrainingError, match="learning_rate"):
        MODELS[name](SCHEMA).fit(visits(), max_epochs=1, learning_rate=1e30)


@pytest.mark.parametrize("value", [(float("nan"), 1.0), (0.0, float("inf")), ("tall", 1.0)])
def test_covariate_prior_that_is_no_number_is_refused_by_name(value):
    with pytest.raises(ValueError, match=r"covariate_prior\['age'\]"):
        MODELS["cvae"](SCHEMA, covariates="paper", covariate_prior={"age": value}).fit(visits())


@every_model
def test_the_prior_moves_only_if_asked_to(make):
    train, validation = visits(0, gaps=0.2), visits(1, gaps=0.2)
    found = {}
    for every in (None, 2):
        model = make(SCHEMA).fit(train, validation, max_epochs=5, prior_every=every)
        assert np.isfinite(model.training.to_numpy()).all()
        model = make(SCHEMA).fit(train, max_epochs=5, prior_every=every)  # no early epoch is restored
        found[every] = {k: v.clone() for k, v in model._vae.covariate_prior.state_dict().items()}
        fresh = make(SCHEMA)._assemble(model._encoder, model._encoder.encode(train), 0).covariate_prior.state_dict()
        assert all(torch.equal(value, fresh[k]) for k, value in found[every].items()) == (every is None)
    with pytest.raises(ValueError, match="prior_every must be a whole number"):
        make(SCHEMA).fit(train, prior_every=0)


def test_an_updated_prior_would_unlearn_domain_knowledge():
    model = CVAE(ROWS, covariates="factorised", covariate_prior={"age": (50.0, 10.0)})
    with pytest.raises(ValueError, match=r"covariate_prior states what prior_every would unlearn"):
        model.fit(visits(), prior_every=1)


@every_model
def test_describe_says_what_the_model_is(make):
    model = make(SCHEMA)
    assert model.facts()["trained"] == "no; call fit(train)"
    model.fit(visits(), visits(1), max_epochs=2, seed=5)
    facts = model.facts()
    assert facts["model"] == type(model).__name__
    assert facts["parameters"] == f"{sum(p.numel() for p in model._vae.parameters()):,}"
    assert facts["trained"].startswith("2 epochs, last validation bound ")
    assert facts["trained"].endswith("per row, seed 5")
    assert facts["instance"] == SCHEMA.instance
    assert facts["prior of z"] == (model.formula if isinstance(model, GPPriorVAE) else facts["prior of z"])
    assert [line.split("  ")[0] for line in model.describe().split("\n")] == list(facts)
    for name, value in facts.items():
        assert f"{name} " in model.describe()
        assert value in model.describe()


def test_batches_of_patients_are_smaller_than_batches_of_rows():
    assert MODELS["cvae"](SCHEMA).fit(visits(), max_epochs=1)._options.batch_size == 10
    assert MODELS["cvae"](ROWS).fit(visits(), max_epochs=1)._options.batch_size == 100
    assert MODELS["cvae"](SCHEMA).fit(visits(), max_epochs=1, batch_size=3)._options.batch_size == 3


@pytest.mark.parametrize("name", ["abacus", "cuda:99"])
def test_a_device_that_cannot_be_used_is_refused(name):
    with pytest.raises(ValueError, match=f"device is '{name}', which cannot be used here"):
        MODELS["cvae"](ROWS).fit(visits(), max_epochs=1, device=name)
