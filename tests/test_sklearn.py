import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from lacova import CVAE, Dense, GPPriorVAE, UnseenLevelWarning
from lacova.sklearn import LacovaImputer, LacovaRegressor

SMALL = {
    "networks": Dense((8,), (8,)), "latent_dim": 1, "max_epochs": 3, "batch_size": 20, "learning_rate": 0.05,
    "device": "cpu", "random_state": 0,
}  # fmt: skip


def factor(rows=40, gaps=0.2, seed=0):
    """Return four columns that follow one hidden number, complete and with gaps."""
    rng = np.random.default_rng(seed)
    full = rng.normal(size=(rows, 1)) * [1.0, -2.0, 3.0, 4.0] + rng.normal(size=(rows, 4)) * 0.3 + [0.0, 5.0, -5.0, 9.0]
    return full, np.where(rng.random(full.shape) < gaps, np.nan, full)


def mixed(rows=40, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "weight": rng.normal(70, 10, rows).astype("float32"),
            "visits": pd.array(rng.integers(0, 9, rows), dtype="Int64"),
            "sex": rng.choice(["f", "m"], rows),
            "stage": pd.Categorical(rng.choice(["i", "ii", "iii"], rows), ["i", "ii", "iii"], ordered=True),
            "smoker": (rng.random(rows) < 0.5).astype(object),
            "height": rng.normal(1.7, 0.1, rows),
        },
        index=pd.Index(np.arange(100, 100 + rows)),
    )
    return frame.mask(rng.random(frame.shape) < 0.2).astype({"weight": "float32"})


# scikit-learn's own checks, without expected failures.


@parametrize_with_checks([LacovaImputer(**SMALL, covariates="mean"), LacovaRegressor(**SMALL, covariates="mean")])
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")  # the checks themselves mix tables and arrays
@pytest.mark.parametrize(
    "check",
    [
        "check_transformer_get_feature_names_out",
        "check_transformer_get_feature_names_out_pandas",
        "check_set_output_transform",
        "check_set_output_transform_pandas",
        "check_set_output_transform_polars",
        "check_global_output_transform_pandas",
        "check_global_set_output_transform_polars",
    ],
)
@pytest.mark.filterwarnings("ignore:X has feature names")  # these checks fit on arrays and transform tables
def test_scikit_learn_transformers(check):
    if check.endswith("polars"):
        pytest.importorskip("polars")
    getattr(estimator_checks, check)("LacovaImputer", LacovaImputer(**SMALL))


@pytest.mark.parametrize("make", [LacovaImputer, LacovaRegressor])
def test_scikit_learn_column_names(make):
    estimator_checks.check_dataframe_column_names_consistency(make.__name__, make(**SMALL, covariates="mean"))


# The imputer.


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_gap_is_filled_and_nothing_else_changes(dtype):
    x = factor()[1].astype(dtype)
    x[3] = np.nan  # a row without any value
    before = x.copy()
    done = LacovaImputer(**SMALL).fit_transform(x)
    np.testing.assert_array_equal(x, before)
    assert done.dtype == dtype
    assert np.isfinite(done).all()
    np.testing.assert_array_equal(done[~np.isnan(x)], x[~np.isnan(x)])


@pytest.mark.parametrize("settings", [{}, {"covariate_columns": [0]}, {"covariate_columns": range(4)}])
def test_imputing_by_the_hidden_factor_beats_the_mean(settings):
    full, x = factor(200)
    gaps = np.isnan(x)
    done = LacovaImputer(**{**SMALL, "max_epochs": 40, "batch_size": 50}, **settings).fit_transform(x)
    error = np.abs(done - full)[gaps].mean() / np.abs(SimpleImputer().fit_transform(x) - full)[gaps].mean()
    assert error < 0.6


def test_imputation_of_a_row_does_not_depend_on_other_rows():
    x = factor()[1]
    imputer = LacovaImputer(**SMALL, covariate_columns=[3]).fit(x)
    done = imputer.transform(x)
    for k in np.flatnonzero(np.isnan(x).any(axis=1)):
        np.testing.assert_array_equal(imputer.transform(x[[k]])[0], done[k])


def test_random_state():
    x = factor()[1]
    first, again, other = (LacovaImputer(**{**SMALL, "random_state": s}).fit_transform(x) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("polars", [False, True])
def test_table_with_categories(polars):
    frame = given = mixed()
    if polars:
        given = pytest.importorskip("polars").from_pandas(frame)
    imputer = LacovaImputer(**SMALL).fit(given)
    assert dict(imputer.model_.schema.covariates) == dict.fromkeys(["sex", "stage", "smoker"], "categorical")
    assert imputer.model_.schema.measurements == ("weight", "visits", "height")
    done = imputer.transform(given)
    assert not done.isna().any(axis=None)
    if polars:
        assert type(imputer.set_output(transform="polars").transform(given)) is type(given)
        return
    assert list(done.columns) == list(frame.columns)
    pd.testing.assert_index_equal(done.index, frame.index)
    for name in frame:
        seen = frame[name].notna()
        pd.testing.assert_series_equal(done[name][seen], frame[name][seen], check_exact=True)
    assert set(done["sex"]) == {"f", "m"}


def test_categories_alone_are_filled_by_their_joint_distribution():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.choice(["u", "v", "w"], 120)})
    frame["b"] = frame["a"].str.upper()
    gaps = rng.random(120) < 0.2
    done = LacovaImputer(**SMALL).fit_transform(frame.assign(b=frame["b"].mask(gaps)))
    assert (done["b"] == frame["b"]).all()


def test_columns_by_name_or_index():
    x = factor()[1]
    frame = pd.DataFrame(x, columns=["a", "b", "c", "d"])
    by_name = LacovaImputer(**SMALL, covariate_columns=["b", "d"]).fit(frame)
    by_index = LacovaImputer(**SMALL, covariate_columns=[1, -1]).fit(x)
    assert list(by_name.model_.schema.covariates) == ["b", "d"]
    np.testing.assert_array_equal(by_name.transform(frame), by_index.transform(x))
    for wrong in (["e"], [4], "b"):
        with pytest.raises(ValueError, match="covariate_columns"):
            LacovaImputer(**SMALL, covariate_columns=wrong).fit(frame)


def test_numbers_that_are_categories():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=60), rng.choice([10.0, 20.0, 40.0], 60)])
    x[:20, 1] = np.nan
    done = LacovaImputer(**SMALL, categorical_features=[1]).fit_transform(x)
    assert set(done[:20, 1]) <= {10.0, 20.0, 40.0}
    imputer = LacovaImputer(**SMALL, categorical_features=[1]).fit(x)
    with pytest.warns(UnseenLevelWarning, match=r"^1 entry .*: 1 of 'x1' \(30.0\)"):
        done = imputer.transform([[np.nan, 30.0], [1.0, 10.0]])
    assert np.isfinite(done[0, 0])
    assert done[0, 1] == 30.0


def test_columns_with_one_value_or_none():
    x = factor()[1]
    x[:, 1], x[:, 2] = np.where(np.isnan(x[:, 1]), np.nan, 7.0), np.nan
    with pytest.warns(UserWarning, match=r"Skipping.*\['x2'\].*keep_empty_features"):
        dropped = LacovaImputer(**SMALL).fit(x)
    zeroed = LacovaImputer(**SMALL, keep_empty_features=True).fit(x)
    assert list(dropped.get_feature_names_out()) == ["x0", "x1", "x3"]
    assert list(zeroed.get_feature_names_out()) == ["x0", "x1", "x2", "x3"]
    assert (dropped.transform(x)[:, 1] == 7.0).all()
    np.testing.assert_array_equal(zeroed.transform(x)[:, [0, 1, 3]], dropped.transform(x))
    assert (zeroed.transform(x)[:, 2] == 0.0).all()
    assert zeroed.transform([[1.0, 2.0, 3.0, np.nan]])[0, :3].tolist() == [1.0, 2.0, 3.0]


def test_nothing_to_model():
    imputer = LacovaImputer(**SMALL).fit([[1.0, 2.0], [np.nan, 2.0]])
    assert imputer.model_ is None
    assert imputer.transform([[np.nan, np.nan]]).tolist() == [[1.0, 2.0]]


def test_indicator_is_that_of_scikit_learn():
    x = factor()[1]
    x[:, 0] = np.arange(40.0)  # no gap, no indicator
    done = LacovaImputer(**SMALL, add_indicator=True).fit(x)
    theirs = SimpleImputer(add_indicator=True).fit(x)
    np.testing.assert_array_equal(done.transform(x)[:, 4:], theirs.transform(x)[:, 4:])
    assert list(done.get_feature_names_out()) == list(theirs.get_feature_names_out())
    frame = mixed()
    shown = LacovaImputer(**SMALL, add_indicator=True).fit_transform(frame)
    assert (shown["missingindicator_sex"] == frame["sex"].isna()).all()


def test_validation_rows_leave_every_level_and_range_to_training():
    frame = mixed(60)
    frame.loc[frame.index[7], "sex"] = "x"  # the only one
    for seed in range(3):
        imputer = LacovaImputer(**{**SMALL, "random_state": seed}, validation_fraction=0.5).fit(frame)
        assert "validation" in imputer.model_.training
        assert not imputer.transform(frame).isna().any(axis=None)
    assert "validation" not in LacovaImputer(**SMALL).fit(frame).model_.training


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": "gan"}, "model is 'gan'"),
        ({"validation_fraction": 1.5}, "validation_fraction must lie"),
        ({"validation_fraction": 0.001}, "leaves none to stop on"),
        ({"max_epochs": 0}, "max_epochs"),
        ({"categorical_features": ["zz"]}, "categorical_features holds 'zz'"),
    ],
)
def test_bad_parameters_are_refused_by_fit(wrong, message):
    with pytest.raises(ValueError, match=message):
        LacovaImputer(**{**SMALL, **wrong}).fit(factor()[1])


def test_empty_table_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        LacovaImputer(**SMALL).fit(pd.DataFrame({"a": []}))


# The regressor.


def test_regression_through_gaps():
    rng = np.random.default_rng(0)
    full = rng.normal(size=(300, 2))
    y = 2 * full[:, 0] - full[:, 1] + rng.normal(0, 0.5, 300)
    x = np.where(rng.random(full.shape) < 0.1, np.nan, full)
    y_gaps = np.where(rng.random(300) < 0.2, np.nan, y)
    model = LacovaRegressor(**{**SMALL, "max_epochs": 20, "batch_size": 50}).fit(x, y_gaps)
    complete = ~np.isnan(x).any(axis=1)
    assert model.score(x[complete], y[complete]) > 0.85  # 0.95 is possible
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == (300,)
    draws = model.model_.sample(pd.DataFrame(x[:3], columns=["x0", "x1"]), draws=2000, seed=1)
    np.testing.assert_allclose(std[:3], draws.groupby(level=0)["y0"].std(), rtol=0.12)  # 400 draws: 3.5% error
    assert np.median(std[~complete]) > 1.3 * np.median(std[complete])


def test_prediction_of_a_row_does_not_depend_on_other_rows():
    x = factor()[1]
    model = LacovaRegressor(**SMALL).fit(x, np.arange(40.0))
    mean, std = model.predict(x, return_std=True)
    for k in (0, 17, 39):
        one_mean, one_std = model.predict(x[[k]], return_std=True)
        # Bit for bit except for the joint distribution of the covariates, whose batched algebra rounds differently.
        np.testing.assert_allclose(one_mean, mean[[k]], rtol=1e-5)
        np.testing.assert_allclose(one_std, std[[k]], rtol=1e-5)


def test_a_regressor_warns_once_of_categories_it_has_not_seen():
    frame = pd.DataFrame({"a": ["u", "v"] * 20, "b": np.arange(40.0)})
    model = LacovaRegressor(**SMALL).fit(frame, frame["b"])
    new = pd.DataFrame({"a": ["u", "w"], "b": [1.0, 2.0]})
    with pytest.warns(UnseenLevelWarning, match="^1 entry") as caught:
        given = model.predict(new, return_std=True)
    assert len(caught) == 1
    for one, other in zip(given, model.predict(new.assign(a=["u", None]), return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)


def test_several_targets():
    x = factor()[1]
    y = np.column_stack([np.arange(40.0), np.full(40, 3.0), np.arange(40.0) ** 2])
    y[5:9, 0] = np.nan
    mean, std = LacovaRegressor(**SMALL).fit(x, y).predict(x, return_std=True)
    assert mean.shape == std.shape == (40, 3)
    assert (mean[:, 1] == 3.0).all()
    assert (std[:, 1] == 0.0).all()
    assert (std[:, [0, 2]] > 0.0).all()
    assert LacovaRegressor(**SMALL).fit(x, y[:, [2]]).predict(x).shape == (40, 1)
    assert (LacovaRegressor(**SMALL).fit(x, y[:, 1]).predict(x) == 3.0).all()
    with pytest.raises(ValueError, match="NaN only in 1 of its 2 column"):
        LacovaRegressor(**SMALL).fit(x, np.column_stack([y[:, 0], np.full(40, np.nan)]))


def test_features_without_information_are_left_out():
    x = factor()[1]
    x[:, 1], x[:, 2] = 7.0, np.nan
    model = LacovaRegressor(**SMALL).fit(x, np.arange(40.0))
    assert list(model.model_.schema.covariates) == ["x0", "x3"]
    assert np.isfinite(model.predict(x)).all()
    uninformed = LacovaRegressor(**SMALL).fit(x[:, 1:3], np.arange(40.0)).predict(x[:, 1:3])
    assert np.ptp(uninformed) == 0.0


def test_regression_on_a_table_with_categories():
    frame = mixed(60)
    y = np.where(frame["sex"] == "m", 5.0, -5.0) + np.random.default_rng(0).normal(size=60)
    model = LacovaRegressor(**{**SMALL, "max_epochs": 20}).fit(frame, y)
    seen = frame["sex"].notna()
    assert model.score(frame[seen], y[seen]) > 0.5


@pytest.mark.parametrize(("name", "kind"), [("cvae", CVAE), ("gp", GPPriorVAE)])
def test_model_by_name(name, kind):
    frame = mixed()
    imputer = LacovaImputer(**SMALL, model=name).fit(frame)
    assert type(imputer.model_) is kind
    assert not imputer.transform(frame).isna().any(axis=None)
    regressor = LacovaRegressor(**SMALL, model=name).fit(frame, np.arange(40.0))
    assert type(regressor.model_) is kind
    copy = pickle.loads(pickle.dumps(regressor))
    np.testing.assert_array_equal(copy.predict(frame), regressor.predict(frame))


# Among other estimators.


def test_parameters_are_those_of_the_model():
    settings = {**SMALL, "covariates": "factorised", "latent_dim": 2}
    for estimator in (LacovaImputer(**settings), LacovaRegressor(**settings)):
        assert settings.items() <= clone(estimator).get_params().items()
        estimator.fit(factor()[1], np.arange(40.0))
        model, options = estimator.model_, estimator.model_.options
        assert (model.covariates, model.latent_dim, model.networks) == ("factorised", 2, SMALL["networks"])
        assert (options.max_epochs, options.batch_size, options.learning_rate) == (3, 20, 0.05)
        assert len(estimator.set_params(max_epochs=2).fit(factor()[1], np.arange(40.0)).model_.training) == 2


def test_grid_search_over_a_pipeline():
    full, x = factor(60)
    pipeline = make_pipeline(LacovaImputer(**SMALL), LinearRegression())
    search = GridSearchCV(pipeline, {"lacovaimputer__max_epochs": np.array([1, 2])}, cv=2).fit(x, full[:, 0])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(x).shape == (60,)


def test_column_transformer_with_names():
    frame = mixed()
    columns = make_column_transformer(
        (LacovaImputer(**SMALL), make_column_selector(dtype_include="number")),
        (make_pipeline(LacovaImputer(**SMALL), OneHotEncoder(sparse_output=False)), ["sex", "stage"]),
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    done = columns.fit_transform(frame)
    assert list(done.columns) == ["weight", "visits", "height", "sex_f", "sex_m", "stage_i", "stage_ii", "stage_iii"]
    pd.testing.assert_index_equal(done.index, frame.index)
    assert not done.isna().any(axis=None)
