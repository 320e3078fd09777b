"""Regressions on completed tables, pooled."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import lacova
from lacova.analysis.design import orthogonal_basis
from lacova.analysis.least_squares import clustered
from lacova.analysis.mixed import mixed

pytestmark = pytest.mark.filterwarnings("ignore::lacova.analysis.pooling.MonteCarloWarning")  # few tables suffice here


def completed(draws=3, n=40):
    rng = np.random.default_rng(0)
    base = pd.DataFrame({"arm": rng.choice(["a", "b", "c"], n), "x": rng.normal(size=n)})
    tables = []
    for k in range(draws):
        y = np.exp(1.0 + 0.5 * base["x"] + (base["arm"] == "b") + rng.normal(0, 0.3, n))
        tables.append(base.assign(y=y, draw=k))
    return pd.concat(tables)


def test_regressions_of_completed_tables_are_pooled():
    table = completed()
    pooled = lacova.pool_regression(table, "log(y) ~ x + arm", confidence=0.9)
    estimates, variances = [], []
    for _, rows in table.groupby("draw"):
        x = np.column_stack([np.ones(len(rows)), rows["x"], rows["arm"] == "b", rows["arm"] == "c"])
        y = np.log(rows["y"])
        inverse = np.linalg.inv(x.T @ x)
        b = inverse @ x.T @ y
        estimates.append(b)
        variances.append(((y - x @ b) ** 2).sum() / (len(rows) - 4) * np.diag(inverse))
    want = lacova.pool(estimates, variances, dof=36, confidence=0.9)
    np.testing.assert_allclose(pooled, want, rtol=1e-8)
    assert list(pooled.index) == ["Intercept", "x", "arm[T.b]", "arm[T.c]"]
    other = lacova.pool_regression(pl.from_pandas(table), "log(y) ~ x + arm", confidence=0.9)
    pd.testing.assert_frame_equal(other, pooled)


def visits(draws=3, patients=14):
    """Completed tables of visits, some weights of which were imputed; patients come one after another."""
    rng = np.random.default_rng(1)
    patient = np.repeat(np.arange(patients), 4)
    base = pd.DataFrame({"patient": patient, "week": np.tile(np.arange(4.0), patients)})
    base["arm"] = np.where(patient % 2, "b", "a")
    base["weight"] = 70 + rng.normal(size=patients)[patient] + 0.3 * rng.normal(size=len(base))
    imputed = rng.random(len(base)) < 0.2
    weights = [base["weight"] + imputed * rng.normal(size=len(base)) for _ in range(draws)]
    return pd.concat([base.assign(draw=k, weight=weight) for k, weight in enumerate(weights)])


def by_hand(table, analysis):
    """Estimates, variances and mean degrees of freedom of an analysis of each table."""
    fits = []
    for _, rows in table.groupby("draw"):
        x = np.column_stack([np.ones(len(rows)), rows["arm"] == "b", rows["week"]]).astype(float)
        fits.append(analysis(rows["weight"].to_numpy(), orthogonal_basis(x, ["1", "b", "week"], 0), rows, x))
    dof = 1 / np.mean([1 / fit.dof for fit in fits], axis=0)
    return [fit.coefficients for fit in fits], [np.diag(fit.covariance) for fit in fits], dof


def test_visits_are_clustered_by_patient():
    table = visits()
    estimates, variances, dof = by_hand(
        table, lambda y, basis, rows, x: clustered(y, basis, rows["patient"].to_numpy(), ["1", "b", "week"], "patient")
    )
    pooled = lacova.pool_regression(table, "weight ~ arm + week", cluster="patient")
    np.testing.assert_allclose(pooled, lacova.pool(estimates, variances, dof=dof), rtol=1e-8)
    assert pooled.attrs["analysis"] == "least squares, standard errors robust to clusters (14 values of 'patient')"
    shuffled = table.assign(patient=table["patient"].map("p{}".format)).sample(frac=1, random_state=0)
    other = lacova.pool_regression(shuffled, "weight ~ arm + week", cluster="patient")
    np.testing.assert_allclose(other, pooled, rtol=1e-7)
    naive = lacova.pool_regression(table, "weight ~ arm + week", cluster=None)
    assert naive.attrs["analysis"] == "least squares, rows independent"
    assert naive.loc["arm[T.b]", "std_error"] < 0.7 * pooled.loc["arm[T.b]", "std_error"]
    assert pooled.loc["arm[T.b]", "dof"] < 12 < naive.loc["arm[T.b]", "dof"]


@pytest.mark.parametrize(
    ("formula", "columns"),
    [
        ("weight ~ arm + week + (1 | patient)", [0]), ("weight ~ (1|patient) + arm + week", [0]),
        ("weight ~ arm + (week | patient) + week", [0, 2]), ("weight ~ arm + week + (0 + week | `patient`)", [2]),
    ],
)  # fmt: skip
def test_random_effects_are_those_of_the_formula(formula, columns):
    table = visits()
    estimates, variances, dof = by_hand(
        table, lambda y, basis, rows, x: mixed(y, basis, x[:, columns], rows["patient"].to_numpy(), "patient")
    )
    pooled = lacova.pool_regression(table, formula)
    np.testing.assert_allclose(pooled, lacova.pool(estimates, variances, dof=dof), rtol=1e-6)
    assert list(pooled.index) == ["Intercept", "arm[T.b]", "week"]
    assert pooled.attrs["analysis"] == "mixed model by REML, random effects of 14 values of 'patient'"


def test_a_formula_without_an_intercept_or_fixed_terms_keeps_its_meaning():
    assert list(lacova.pool_regression(visits(), "weight ~ 0 + week + (1 | patient)").index) == ["week"]
    assert list(lacova.pool_regression(visits(), "weight ~ (1 | patient)").index) == ["Intercept"]


@pytest.mark.parametrize("cluster", ["patient", None])
def test_terms_are_tested_as_a_whole(cluster):
    table = visits()
    table["site"] = np.array(["x", "y", "z"])[table["patient"] % 3]
    table["age"] = np.sin(table["patient"])
    tests = lacova.pool_terms(table, "weight ~ arm * week + site + age", cluster=cluster)
    assert set(tests.index) == {"arm", "week", "site", "age", "arm:week"}
    single = lacova.pool_regression(table, "weight ~ arm * week + site + age", cluster=cluster)
    for term, name in (("arm", "arm[T.b]"), ("age", "age"), ("arm:week", "arm[T.b]:week")):
        assert tests.loc[term, "F"] == pytest.approx(single.loc[name, "t"] ** 2, rel=1e-8)
        assert tests.loc[term, "p_value"] == pytest.approx(single.loc[name, "p_value"], rel=1e-8)
        assert tests.loc[term, "mc_p_value"] == pytest.approx(single.loc[name, "mc_p_value"], rel=1e-6)
    assert tests.loc["site", "df1"] == 2
    chosen = lacova.pool_terms(table, "weight ~ arm*week + site + age", ["week:arm + arm", "site"], cluster=cluster)
    assert list(chosen.index) == ["week:arm + arm", "site"]
    assert chosen["df1"].tolist() == [2, 2]
    np.testing.assert_allclose(chosen.loc["site"], tests.loc["site"], rtol=1e-8)
    assert chosen.attrs == single.attrs


def test_the_test_of_a_term_does_not_depend_on_its_contrasts():
    table, levels = completed(), {"a": "c", "b": "a", "c": "b"}
    want = lacova.pool_terms(table, "log(y) ~ x + arm").loc["arm"]
    other = lacova.pool_terms(table.assign(arm=table["arm"].map(levels)), "log(y) ~ x + arm").loc["arm"]
    np.testing.assert_allclose(other, want, rtol=1e-7)


@pytest.mark.parametrize("terms", [["x + site"], ["y"], ["x +"], [""], ["1"]])
def test_unknown_terms_are_refused(terms):
    with pytest.raises(ValueError, match=r"names no terms of the formula, which has 'x', 'arm'; join several"):
        lacova.pool_terms(completed(), "y ~ x + arm", terms)


def test_columns_may_have_any_scale():
    table = completed()
    plain = lacova.pool_regression(table, "log(y) ~ x + I(x**2)")
    units = table.assign(x=1e9 * table["x"], w=1e-9 * table["x"] ** 2)
    scaled = lacova.pool_regression(units, "log(y) ~ x + w")
    columns = ["estimate", "std_error", "lower", "upper", "mc_estimate", "mc_std_error"]
    scaled.loc["x", columns] *= 1e9
    scaled.loc["w", columns] *= 1e-9
    np.testing.assert_allclose(scaled, plain, rtol=1e-8)


def test_a_cubic_in_the_calendar_year():
    """The same curve as in years since 2005, whose sums need no more digits than there are."""
    rng = np.random.default_rng(0)
    year = np.tile(np.arange(1995.0, 2016.0), 3)
    tables = pd.concat([pd.DataFrame({"draw": k, "year": year, "y": rng.normal(size=63)}) for k in range(3)])
    centred = lacova.pool_regression(tables.assign(year=tables.year - 2005), "y ~ year + I(year**2) + I(year**3)")
    pooled = lacova.pool_regression(tables, "y ~ year + I(year**2) + I(year**3)")
    # The last coefficient is the same; year³ differs from a parabola by 1e-8 of its length, so 8 digits are lost.
    np.testing.assert_allclose(pooled.loc["I(year ** 3)"], centred.loc["I(year ** 3)"], rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "formula", "message"),
    [
        (lambda t: t.drop(columns="draw"), "y ~ x", "no column 'draw' that numbers completed tables"),
        (lambda t: t[t["draw"] == 0], "y ~ x", "at least 2 completed tables, got 1"),
        (lambda t: t, "y ~ z", "no column or function 'z'; the columns are 'arm', 'x', 'y', 'draw'"),
        (lambda t: t.assign(x=np.nan), "y ~ x", r"column\(s\) 'x' have gaps; the regression takes completed tables"),
        (lambda t: t, "y ~~ x", "'y ~~ x' cannot be read: Operator `~` is incorrectly used. Expected one such as"),
        (lambda t: t, "y ~ foo(x)", "no column or function 'foo'"),
        (lambda t: t, "y", "must have one number on its left"),
        (lambda t: t, "arm ~ x", "must have one number on its left"),
        (
            lambda t: t,
            "arm ~ x",
            r"For an outcome of two levels, choose regression='logistic' \(--regression logistic\)",
        ),
        (lambda t: t, "y ~ 0", "terms on its right"),
        (lambda t: t.assign(y=0.0), "log(y) ~ x", "not finite, such as the logarithm of 0"),
        (lambda t: t, "log(x) ~ y", "not finite, such as the logarithm of 0"),  # formulaic leaves out half of the rows
        (
            lambda t: t,
            "y ~ x + arm + I(2 * x)",
            r"in table 0 the coefficients of 'x', 'I\(2 \* x\)' cannot be told apart",
        ),
        (lambda t: t.assign(w=1e9 * t["x"]), "y ~ x + arm + w", "coefficients of 'x', 'w' cannot be told apart"),
        (lambda t: t.assign(w=1 - t["x"] / 3), "y ~ x + arm + w", "coefficients of 'Intercept', 'x', 'w' cannot"),
        (lambda t: t.assign(w=0.0), "y ~ x + w", "coefficients of 'w' cannot"),
        (lambda t: t, "y ~ x + (1 | patient)", "no column 'patient' of clusters"),
        (lambda t: t, "y ~ x + (1 | arm) + (1 | x)", "2 terms of random effects; expected one"),
        (lambda t: t, "y ~ x + (arm | arm)", "have 3 columns; expected an intercept, and at most one slope"),
        (lambda t: t, "y ~ x + (z | arm)", "no column or function 'z'"),
        (lambda t: t.groupby("draw").head(3), "y ~ x + arm", "table 0 has 3 rows for"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value encountered in log")
def test_bad_formulas_and_tables_are_refused(change, formula, message):
    with pytest.raises(ValueError, match=message):
        lacova.pool_regression(change(completed()), formula)


def test_random_effects_and_another_cluster_are_refused():
    with pytest.raises(ValueError, match="random effects of 'patient', and cluster is 'arm'; give one of the two"):
        lacova.pool_regression(visits(), "weight ~ week + (1 | patient)", cluster="arm")
