"""Answers of a fitted model: tables in, tables out, and arguments that are refused."""

import math

import numpy as np
import pandas as pd
import pytest

from lacova import DataError, GPPriorVAE
from tests.models.cases import MODELS, assert_observed_entries_kept, numbered_visits, small_cvae
from tests.tables import ROWS, VISITS

# Imputation.


def test_impute_keeps_observed_entries_and_fills_the_rest(fitted):
    frame = numbered_visits()
    done = fitted.impute(frame)
    assert_observed_entries_kept(done, frame)
    assert not done.isna().any(axis=None)
    assert set(done["sex"]) == {"f", "m"}


def test_impute_of_a_table_without_gaps_is_the_table(fitted):
    frame = numbered_visits(gaps=0.0)
    pd.testing.assert_frame_equal(fitted.impute(frame), frame, check_exact=True)


def test_imputed_table_can_be_imputed_again():
    # Filled static values are rounded: they must still be one value per patient.
    model = small_cvae(VISITS).fit(numbered_visits(), max_epochs=1)
    done = model.impute(numbered_visits())
    pd.testing.assert_frame_equal(model.impute(done), done, check_exact=True)


def test_impute_follows_the_rows_in_any_order(fitted):
    # Best guesses of covariates have no randomness: they must move with their rows.
    frame = numbered_visits()
    mixed = frame.sample(frac=1.0, random_state=0)
    one, other = fitted.impute(frame), fitted.impute(mixed).loc[frame.index]
    assert one["day"][frame["day"].isna()].nunique() > 1
    np.testing.assert_allclose(other[["day", "age"]], one[["day", "age"]], rtol=1e-4)
    assert other["sex"].tolist() == one["sex"].tolist()


def test_unknown_static_value_is_one_per_patient(fitted):
    frame = numbered_visits()
    frame.loc[frame["id"] == "p3", ["age", "sex"]] = None
    done = fitted.impute(frame)
    assert done.groupby("id")["sex"].nunique().max() == 1
    assert done[done["id"] == "p3"]["age"].nunique() == 1
    long = fitted.impute(frame, draws=30)
    own = long[long["id"] == "p3"].groupby("draw")
    assert own["age"].nunique().max() == own["sex"].nunique().max() == 1
    assert own["age"].first().nunique() == 30
    assert set(own["sex"].first()) == {"f", "m"}


def test_impute_draws_are_tables_one_below_the_other(fitted):
    frame = numbered_visits()
    long = fitted.impute(frame, draws=3)
    assert list(long.columns) == ["draw", *frame.columns]
    assert long["draw"].tolist() == [0] * 32 + [1] * 32 + [2] * 32
    tables = [table.drop(columns="draw") for _, table in long.groupby("draw")]
    for table in tables:
        assert_observed_entries_kept(table, frame)
        assert not table.isna().any(axis=None)
    gaps = frame["alt"].isna()
    assert (tables[0]["alt"] != tables[1]["alt"])[gaps].all()


def test_impute_intervals(fitted):
    frame = numbered_visits()
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


def test_intervals_for_rows_without_any_measurement():
    # In a batch without an observed measurement, torch.quantile has no input.
    model = small_cvae(VISITS).fit(numbered_visits(), max_epochs=1)
    done = model.impute(numbered_visits().assign(alt=np.nan, ast=np.nan), interval=0.9)
    assert (done["alt_lower"] < done["alt_upper"]).all()


# Prediction, samples and scores.


def test_predict_intervals(fitted):
    frame = numbered_visits()
    wide, narrow = (fitted.predict(frame, interval=interval, draws=50) for interval in (0.9, 0.5))
    assert list(wide.columns) == ["alt", "ast", "alt_lower", "alt_upper", "ast_lower", "ast_upper"]
    pd.testing.assert_index_equal(wide.index, frame.index)
    for name in ("alt", "ast"):
        assert (wide[f"{name}_lower"] < narrow[f"{name}_lower"]).all()
        assert (narrow[f"{name}_lower"] < narrow[f"{name}_upper"]).all()
        assert (narrow[f"{name}_upper"] < wide[f"{name}_upper"]).all()


def test_predict_does_not_use_measurements(fitted):
    frame = numbered_visits()
    expected = fitted.predict(frame)
    pd.testing.assert_frame_equal(fitted.predict(frame.assign(alt=1e9, ast="?")), expected, check_exact=True)
    pd.testing.assert_frame_equal(fitted.predict(frame.drop(columns=["alt", "ast"])), expected, check_exact=True)


def test_sample_draws_are_tables_one_below_the_other(fitted):
    long = fitted.sample(numbered_visits(), draws=2)
    assert list(long.columns) == ["draw", "alt", "ast"]
    assert long["draw"].tolist() == [0] * 32 + [1] * 32
    assert long.index.tolist() == 2 * numbered_visits().index.tolist()
    assert np.isfinite(long.to_numpy()).all()


def test_sample_average_is_the_prediction(fitted):
    frame = numbered_visits()[:6]
    average = fitted.sample(frame, draws=1000).groupby(level=0)[["alt", "ast"]].mean()
    spread = fitted.encoder.y_scale * math.sqrt(2.0 / 1000)  # the noise of 1000 draws, generously
    assert ((average - fitted.predict(frame, draws=1000)).abs() < 6 * spread).to_numpy().all()


def test_with_independent_noise_answers_do_not_depend_on_other_patients(fitted):
    frame = numbered_visits()
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
    for answer, expected in pairs:
        # Equal but for the covariate prior, which is conditioned on all rows at once and rounds differently.
        pd.testing.assert_frame_equal(answer, expected, rtol=1e-5)
    assert not fitted.predict(one).equals(fitted.predict(frame).loc[one.index])


def test_history_of_other_patients_is_ignored(fitted):
    frame = numbered_visits()
    new = frame[frame["id"] == "p0"]
    others = frame[frame["id"] != "p0"]
    pd.testing.assert_frame_equal(fitted.predict(new, history=others), fitted.predict(new), check_exact=True)


def test_log_likelihood_follows_the_rows_in_any_order(fitted):
    frame = numbered_visits(gaps=0.0)
    frame.loc[117, "alt"] = 500.0
    assert fitted.log_likelihood(frame).idxmin() == 117
    assert fitted.log_likelihood(frame.sample(frac=1.0, random_state=0)).idxmin() == 117


def test_elbo_names_its_terms(fitted):
    terms = fitted.elbo(numbered_visits())
    assert set(terms) == {"reconstruction", "kl_latent", "kl_covariates", "kl_inducing", "elbo"}
    kl = terms["kl_latent"] + terms["kl_covariates"] + terms["kl_inducing"]
    assert terms["elbo"] == pytest.approx(terms["reconstruction"] - kl, rel=1e-12)
    assert terms["kl_covariates"] > 0
    assert (terms["kl_inducing"] > 0) == isinstance(fitted, GPPriorVAE)


# Arguments.


def test_draws_depend_on_their_seed(fitted):
    frame = numbered_visits()
    gaps = frame["alt"].isna()
    pd.testing.assert_frame_equal(fitted.impute(frame, draws=2, seed=3), fitted.impute(frame, draws=2, seed=3))
    assert (fitted.impute(frame, seed=3)["alt"] != fitted.impute(frame, seed=4)["alt"])[gaps].all()
    assert (fitted.predict(frame, seed=3) != fitted.predict(frame, seed=4)).to_numpy().all()
    assert (fitted.sample(frame, seed=3)["alt"].to_numpy() != fitted.sample(frame, seed=4)["alt"].to_numpy()).all()


@pytest.mark.parametrize("draws", [0, -1, True, 2.0])
@pytest.mark.parametrize("method", ["impute", "predict", "sample", "log_likelihood"])
def test_bad_number_of_draws_is_refused(fitted, method, draws):
    with pytest.raises(ValueError, match=f"^draws must be a whole number of at least 1, got {draws!r}\\.$"):
        getattr(fitted, method)(numbered_visits(), draws=draws)


@pytest.mark.parametrize("interval", [1.5, 1.0, 0.0, -0.9, 90])
@pytest.mark.parametrize("method", ["impute", "predict"])
def test_bad_interval_is_refused(fitted, method, interval):
    with pytest.raises(ValueError, match=f"^interval must lie between 0 and 1, such as 0.9; got {interval!r}\\.$"):
        getattr(fitted, method)(numbered_visits(), interval=interval)


def test_interval_beside_draws_is_refused():
    model = small_cvae(VISITS).fit(numbered_visits(), max_epochs=1)
    with pytest.raises(ValueError, match="interval"):
        model.impute(numbered_visits(), draws=2, interval=1.5)


@pytest.mark.parametrize("name", ["cvae", "gp"])
def test_elbo_with_zero_samples_is_refused(name):
    model = MODELS[name](VISITS).fit(numbered_visits(), max_epochs=1)
    with pytest.raises(ValueError, match="samples"):
        model.elbo(numbered_visits(), samples=0)


def test_history_without_instance_column_is_refused():
    model = small_cvae(ROWS).fit(numbered_visits(), max_epochs=1)
    message = r"^history belongs to instances, but the schema has no instance column: give Schema\(instance=\.\.\.\)\.$"
    with pytest.raises(DataError, match=message):
        model.predict(numbered_visits(), history=numbered_visits())


@pytest.mark.parametrize("column", ["id", "alt", "sex"])
def test_history_that_lacks_a_column_is_a_data_error(column):
    model = small_cvae(VISITS).fit(numbered_visits(), max_epochs=1)
    with pytest.raises(DataError, match=f"'{column}'"):
        model.predict(numbered_visits(), history=numbered_visits().drop(columns=column))


@pytest.mark.parametrize("method", ["impute", "predict", "log_likelihood", "elbo"])
def test_bad_table_is_refused_by_every_method(fitted, method):
    with pytest.raises(DataError, match=r"^column\(s\) 'sex' are in the schema but not in the table"):
        getattr(fitted, method)(numbered_visits().drop(columns="sex"))
    with pytest.raises(DataError, match=r"^expected a pandas or polars DataFrame or a pyarrow Table, got list"):
        getattr(fitted, method)([1])


def test_completed_tables_need_rows_drawn_independently(fitted):
    with pytest.raises(ValueError, match="independent_noise"):
        fitted.impute(numbered_visits(), draws=2, independent_noise=True)
