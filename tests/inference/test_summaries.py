"""Summaries of draws as tables: bounds of columns, probabilities of levels, and completed tables."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

from lacova import CVAE, DataError, Dense, GPPriorVAE, Schema

SMALL = Dense((8,), (8,))
SCHEMA = Schema(
    ["stay", "lab"], {"dose": "continuous", "arm": "categorical", "grade": "categorical"}, "id", "day", ["arm"],
    bounds={"lab": (0, None), "dose": (0, 3), "day": (0, 30), "stay": (0.5, None)}, integers=["stay", "day"],
)  # fmt: skip


def visits(patients=12, seed=0):
    """Return visits with values that crowd at their bounds, so that normal draws would pass them."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), 4)
    n = len(who)
    frame = pd.DataFrame(
        {
            "id": who,
            "day": rng.integers(0, 31, n).astype(float),
            "dose": rng.choice([0.0, 3.0], n),
            "arm": np.array(["a", "b", "c"])[who % 3],
            "grade": rng.integers(1, 3, n),
            "stay": rng.geometric(0.5, n).astype(float),
            "lab": rng.exponential(0.1, n),
        }
    )
    frame["grade"] = frame["grade"].astype("Int64")
    gaps = pd.DataFrame(rng.random((n, 6)) < 0.3, columns=frame.columns[1:])
    for name in gaps:
        frame[name] = frame[name].mask(gaps[name])
    frame.loc[frame["id"] == 0, "arm"] = None
    return frame


@pytest.fixture(scope="module", params=[CVAE, GPPriorVAE], ids=["cvae", "gp"])
def fitted(request):
    options = {"inducing": 5} if request.param is GPPriorVAE else {}
    return request.param(SCHEMA, latent_dim=2, networks=SMALL, **options).fit(visits(), max_epochs=2)


@pytest.fixture(scope="module")
def unbounded():
    plain = Schema(SCHEMA.measurements, SCHEMA.covariates, "id", "day", ["arm"])
    return CVAE(plain, latent_dim=2, networks=SMALL).fit(visits(), max_epochs=2)


def assert_within_bounds(values):
    """Assert that columns and ends of their intervals are whole where they should be, and within their bounds."""
    limits = {"lab": (0, np.inf), "dose": (0, 3), "day": (0, 30), "stay": (1, np.inf)}
    for name in values.columns:
        base = name.removesuffix("_lower").removesuffix("_upper")
        if base in limits:
            assert values[name].between(*limits[base]).all(), name
            assert base not in SCHEMA.integers or (values[name] % 1 == 0).all(), name


def test_everything_that_is_imputed_is_within_bounds(fitted):
    frame = visits()
    for table in (fitted.impute(frame), fitted.impute(frame, draws=20), fitted.impute(frame, interval=0.9)):
        assert_within_bounds(table)
        assert table["day"].dtype == float
    ends = fitted.impute(frame, interval=0.9)
    assert (ends["lab_lower"] == 0)[frame["lab"].isna()].any()  # the bound is reached


def test_everything_that_is_predicted_is_within_bounds(fitted):
    frame = visits()
    for table in (fitted.predict(frame), fitted.predict(frame, interval=0.9), fitted.sample(frame, draws=20)):
        assert_within_bounds(table)
    assert (fitted.sample(frame)["lab"] == 0).any()


def test_without_bounds_the_same_model_passes_them(unbounded):
    # So that the tests above can fail.
    draws = unbounded.impute(visits(), draws=20)
    assert (draws[["lab", "dose", "day"]].min() < 0).all()
    assert draws["dose"].max() > 3
    assert (draws["day"] % 1 != 0).any()
    assert (unbounded.sample(visits())["lab"] < 0).any()


def test_bounds_move_what_passes_them_and_nothing_else(unbounded):
    bounded = CVAE(SCHEMA, latent_dim=2, networks=SMALL).fit(visits(), max_epochs=2)
    within, free = bounded.impute(visits(), draws=5), unbounded.impute(visits(), draws=5)
    pd.testing.assert_series_equal(within["lab"], free["lab"].clip(lower=0), check_exact=True)
    pd.testing.assert_series_equal(within["dose"], free["dose"].clip(0, 3), check_exact=True)
    pd.testing.assert_series_equal(within["day"], free["day"].round().clip(0, 30), check_exact=True)


# Probabilities of levels.


def test_probabilities_of_levels(fitted):
    frame = visits()
    imputed = fitted.impute(frame, probabilities=True)
    new = ["arm_p_a", "arm_p_b", "arm_p_c", "grade_p_1", "grade_p_2"]
    assert list(imputed.columns) == [*frame.columns, *new]
    pd.testing.assert_frame_equal(imputed[list(frame.columns)], fitted.impute(frame), check_exact=True)
    for name in ("arm", "grade"):
        shares = imputed.filter(regex=f"^{name}_p_")
        np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-5)  # float32
        levels = np.array([column.removeprefix(f"{name}_p_") for column in shares])
        assert (levels[shares.to_numpy().argmax(1)] == imputed[name].astype(str)).all()
        observed = frame[name].notna()
        assert set(np.unique(shares[observed])) == {0.0, 1.0}
        assert (imputed["grade_p_1"].between(0, 1, inclusive="neither") == frame["grade"].isna()).all()


def test_probabilities_of_static_levels_are_those_of_the_patient(fitted):
    frame = visits()
    imputed = fitted.impute(frame, probabilities=True)
    unknown = imputed["arm_p_a"].between(0, 1, inclusive="neither")
    assert (unknown == (frame["id"] == 0)).all()  # the arm of every other patient is known from some visit
    assert imputed[unknown]["arm_p_a"].nunique() == 1


def test_probabilities_are_those_of_the_draws(fitted):
    frame = visits()
    share = fitted.impute(frame, draws=100).groupby(level=0)["grade"].agg(lambda values: (values == 1).mean())
    # Standard error of a share of 100 draws: at most 0.05.
    assert (fitted.impute(frame, probabilities=True)["grade_p_1"] - share).abs().max() < 0.25


def test_a_column_without_gaps_has_no_probabilities(fitted):
    frame = visits().assign(grade=1)
    imputed = fitted.impute(frame, probabilities=True, interval=0.5)
    assert [name for name in imputed.columns if "_p_" in name] == ["arm_p_a", "arm_p_b", "arm_p_c"]
    assert list(imputed.columns)[-3:] == ["arm_p_a", "arm_p_b", "arm_p_c"]


def test_probabilities_of_single_imputation_are_0_or_1():
    model = CVAE(SCHEMA, latent_dim=2, networks=SMALL, covariates="mean").fit(visits(), max_epochs=1)
    imputed = model.impute(visits(), probabilities=True)
    assert set(imputed["grade_p_1"]) == {0.0, 1.0}
    assert ((imputed["grade"] == 1) == (imputed["grade_p_1"] == 1)).all()


def test_probabilities_in_polars(fitted):
    frame = pl.from_pandas(visits())
    imputed = fitted.impute(frame, probabilities=True)
    assert imputed["grade"].dtype == pl.Int64
    assert imputed["grade_p_1"].to_list() == fitted.impute(visits(), probabilities=True)["grade_p_1"].tolist()


def test_probabilities_of_draws_are_refused(fitted):
    with pytest.raises(ValueError, match=r"^give draws or probabilities, not both"):
        fitted.impute(visits(), draws=2, probabilities=True)


def test_names_of_probabilities_must_be_free(fitted):
    with pytest.raises(DataError, match=r"^there are column\(s\) arm_p_b already"):
        fitted.impute(visits().assign(arm_p_b=1), probabilities=True)


def test_levels_that_read_alike_are_refused():
    frame = pd.DataFrame({"y": np.arange(6.0), "c": pd.Series([1, "1", 1, "1", None, 1], dtype=object)})
    model = CVAE(Schema(["y"], {"c": "categorical"}), latent_dim=1, networks=SMALL).fit(frame, max_epochs=1)
    with pytest.raises(DataError, match=r"^there are column\(s\) c_p_1 already"):
        model.impute(frame, probabilities=True)


def test_draws_of_a_wide_table_come_without_a_warning():
    rng = np.random.default_rng(0)
    names = [f"lab{k}" for k in range(120)]
    table = pd.DataFrame(rng.normal(size=(30, 120)), columns=names, index=pd.Index(range(7, 37)))
    table = table.mask(rng.random(table.shape) < 0.1).assign(age=rng.normal(size=30))
    model = CVAE(Schema(names, {"age": "continuous"}), latent_dim=1).fit(table, max_epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = model.impute(table, draws=3)
    assert list(drawn.columns) == ["draw", *names, "age"]
    assert drawn["draw"].tolist() == [0] * 30 + [1] * 30 + [2] * 30
    assert drawn.index.tolist() == [*range(7, 37)] * 3
    assert drawn.notna().all().all()
