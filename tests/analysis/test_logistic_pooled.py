"""Logistic regressions on completed tables, pooled: outcomes, clusters, terms and refusals."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import stats

import lacova
from lacova.analysis.design import orthogonal_basis
from lacova.analysis.logistic import clustered_logistic, logistic
from tests.analysis.cases import VISITS

pytestmark = [
    pytest.mark.filterwarnings("ignore::lacova.analysis.pooling.MonteCarloWarning"),  # few tables suffice here
    pytest.mark.filterwarnings("ignore:invalid value encountered in log"),
]
NAMES = ["Intercept", "arm[T.b]", "week"]


def completed(draws=3, patients=30):
    """Completed tables of visits, whose outcome was imputed in a fifth of the rows."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(patients), 4)
    base = pd.DataFrame({"patient": patient, "week": np.tile(np.arange(4.0), patients)})
    base["arm"] = np.where(patient % 2, "b", "a")
    known = rng.random(len(base)) < rng.beta(1, 1, patients)[patient]
    imputed = rng.random(len(base)) < 0.2
    events = [np.where(imputed, rng.random(len(base)) < 0.5, known) for _ in range(draws)]
    return pd.concat([base.assign(draw=k, well=event) for k, event in enumerate(events)], ignore_index=True)


def pool_logistic(table, formula="well ~ arm + week", **options):
    return lacova.pool_regression(table, formula, regression="logistic", **options)


@pytest.mark.parametrize("cluster", [None, "patient"])
def test_log_odds_are_pooled_by_rubins_rules(cluster):
    table, fits = completed(), []
    for _, rows in table.groupby("draw"):
        x = np.column_stack([np.ones(len(rows)), rows["arm"] == "b", rows["week"]]).astype(float)
        y, basis = rows["well"].to_numpy(float), orthogonal_basis(x, NAMES, 0)
        codes = rows["patient"].to_numpy()
        fits.append(clustered_logistic(y, basis, codes, NAMES, "patient") if cluster else logistic(y, basis, NAMES))
    dof = 1 / np.mean([1 / fit.dof for fit in fits], axis=0)
    estimates = [fit.coefficients for fit in fits]
    want = lacova.pool(estimates, [np.diag(fit.covariance) for fit in fits], dof=dof, confidence=0.9)
    pooled = pool_logistic(table, cluster=cluster, confidence=0.9)
    odds = ["odds_ratio", "odds_ratio_lower", "odds_ratio_upper"]
    np.testing.assert_allclose(pooled.drop(columns=odds), want, rtol=1e-8)
    np.testing.assert_allclose(pooled[odds], np.exp(want[["estimate", "lower", "upper"]]), rtol=1e-8)
    assert list(pooled.columns[3:8]) == ["lower", "upper", *odds]
    assert list(pooled.index) == NAMES
    how = "standard errors robust to clusters (30 values of 'patient')" if cluster else "rows independent"
    assert pooled.attrs["analysis"] == f"logistic regression of well = True (against False), {how}"


YES = {True: "yes", False: "no"}


@pytest.mark.parametrize(
    ("change", "formula", "event", "sign"),
    [
        (lambda well: well, "well", "well = True (against False)", 1),
        (lambda well: well.astype("boolean"), "well", "well = True (against False)", 1),
        (lambda well: well.astype(int), "well", "well = 1 (against 0)", 1),
        (lambda well: well.astype(float), "well", "well = 1 (against 0)", 1),
        (lambda well: well.astype("Int64"), "well", "well = 1 (against 0)", 1),
        (lambda well: 1 + well, "well", "well = 2 (against 1)", 1),
        (lambda well: well.map(YES), "well", "well = yes (against no)", 1),
        (lambda well: well.map(YES).astype("string"), "well", "well = yes (against no)", 1),
        (lambda well: well.map(YES).astype("category"), "well", "well = yes (against no)", 1),
        (
            lambda well: pd.Categorical(well.map(YES), ["yes", "no", "unknown"], ordered=True),
            "well", "well = no (against yes)", -1,
        ),
        (lambda well: well.map(YES), "I(well == 'no')", "I(well == 'no') = 1 (against 0)", -1),
        (lambda well: well.astype(int), "C(well)", "C(well) = 1 (against 0)", 1),
        (lambda well: 20.0 + well, "I(well > 20.5)", "I(well > 20.5) = 1 (against 0)", 1),
    ],
)  # fmt: skip
def test_the_event_is_the_second_level(change, formula, event, sign):
    table = completed()
    plain = pool_logistic(table, cluster="patient")
    pooled = pool_logistic(table.assign(well=change(table["well"])), f"{formula} ~ arm + week", cluster="patient")
    np.testing.assert_allclose(pooled["estimate"], sign * plain["estimate"], rtol=1e-8)
    np.testing.assert_allclose(pooled["std_error"], plain["std_error"], rtol=1e-8)
    assert f"logistic regression of {event}, standard errors" in pooled.attrs["analysis"]


def test_other_libraries_and_names():
    table = completed()
    other = pool_logistic(pl.from_pandas(table.assign(well=table["well"].map(YES))), cluster="patient")
    pd.testing.assert_frame_equal(other, pool_logistic(table, cluster="patient"))
    renamed = pool_logistic(table.rename(columns={"well": "is well"}), "`is well` ~ arm + week", cluster="patient")
    assert "of is well = True (against False)" in renamed.attrs["analysis"]


def test_the_instance_column_is_the_cluster():
    table = completed()
    assert "robust to clusters (30 values" in pool_logistic(table, cluster="patient").attrs["analysis"]
    with pytest.raises(ValueError, match=r"several rows share a value of 'patient'.*cluster='patient'"):
        pool_logistic(table)
    once = table[table["week"] == 3]
    assert "rows independent" in pool_logistic(once, "well ~ arm").attrs["analysis"]


def test_imputed_levels_are_an_outcome():
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"id": np.repeat(np.arange(12), 3), "day": np.tile([0.0, 30, 60], 12), "ast": 1.0})
    table["sex"], table["ast"] = np.where(table["id"] % 2, "f", "m"), rng.normal(20, 3, 36)
    table["alt"] = pd.Series(rng.random(36) < 0.5, dtype="boolean").mask(rng.random(36) < 0.2)
    schema = lacova.Schema({"alt": "bernoulli", "ast": "gaussian"}, {"sex": "categorical"}, instance="id",
                           time="day", static=VISITS.static)  # fmt: skip
    model = lacova.GPPriorVAE(schema, latent_dim=1).fit(table, max_epochs=1, device="cpu", progress=False)
    pooled = pool_logistic(model.impute(table, draws=3), "alt ~ sex")
    assert pooled.attrs["analysis"] == (
        "logistic regression of alt = True (against False), standard errors robust to clusters (12 values of 'id')"
    )


@pytest.mark.parametrize("cluster", [None, "patient"])
def test_terms_are_tested_as_a_whole(cluster):
    table = completed()
    table["site"] = np.array(["x", "y", "z"])[table["patient"] % 3]
    options = {"regression": "logistic", "cluster": cluster}
    tests = lacova.pool_terms(table, "well ~ arm + site", **options)
    single = pool_logistic(table, "well ~ arm + site", cluster=cluster)
    assert tests.loc["arm", "p_value"] == pytest.approx(single.loc["arm[T.b]", "p_value"], rel=1e-8)
    assert tests.loc["site", "df1"] == 2
    assert tests.attrs == single.attrs
    levels = table.assign(site=table["site"].map({"x": "z", "y": "x", "z": "y"}))
    other = lacova.pool_terms(levels, "well ~ arm + site", **options)
    np.testing.assert_allclose(other.loc["site"], tests.loc["site"], rtol=1e-7)


def test_the_wald_test_of_one_table_is_that_of_the_text_books():
    """Equal tables: nothing is missing. F of a factor is the Wald statistic, from counts by level."""
    counts = {"a": (12, 30), "b": (18, 30), "c": (21, 33)}
    rows = [(level, k < events) for level, (events, n) in counts.items() for k in range(n)]
    table = pd.DataFrame(rows, columns=["arm", "well"])
    twice = pd.concat([table.assign(draw=k) for k in range(3)])
    test = lacova.pool_terms(twice, "well ~ arm", regression="logistic").loc["arm"]
    logits = {level: np.log(e / (n - e)) for level, (e, n) in counts.items()}
    variance = {level: 1 / e + 1 / (n - e) for level, (e, n) in counts.items()}
    difference = np.array([logits["b"] - logits["a"], logits["c"] - logits["a"]])
    covariance = np.diag([variance["b"], variance["c"]]) + variance["a"]
    statistic = difference @ np.linalg.solve(covariance, difference) / 2
    assert test["F"] == pytest.approx(statistic, rel=1e-8)
    assert test["p_value"] == pytest.approx(stats.f.sf(statistic, 2, test["df2"]), rel=1e-8)


def test_columns_may_have_any_scale():
    table = completed()
    table["dose"] = np.sin(table["patient"])
    plain = pool_logistic(table, "well ~ dose + week", cluster="patient")
    units = table.assign(dose=1e9 * table["dose"], week=1e-9 * table["week"])
    scaled = pool_logistic(units, "well ~ dose + week", cluster="patient")
    columns = ["estimate", "std_error", "lower", "upper", "mc_estimate", "mc_std_error"]
    scaled.loc["dose", columns] *= 1e9
    scaled.loc["week", columns] *= 1e-9
    odds = ["odds_ratio", "odds_ratio_lower", "odds_ratio_upper"]  # per unit: 0, 1 or beyond all numbers
    np.testing.assert_allclose(scaled.drop(columns=odds), plain.drop(columns=odds), rtol=1e-8)


@pytest.mark.parametrize(
    ("change", "formula", "message"),
    [
        (
            lambda t: t.assign(well=np.arange(len(t)) % 7 / 7), "well ~ arm",
            r"the outcome 'well' has 7 levels in the completed tables, 0.0, .*: cut the number, such as I\(well",
        ),
        (
            lambda t: t.assign(well=t["well"] + 0.37 * (t.index % 9 == 0)), "well ~ arm",
            "where 0 and 1 were imputed as numbers, give the column the kind 'bernoulli' in the schema",
        ),
        (
            lambda t: t.assign(well=np.array(["iii", "iv", "v"])[t.index % 3]), "well ~ arm",
            r"has 3 levels .* 'iii', 'iv', 'v'; .* compare one with the others, such as I\(well == 'v'\)",
        ),
        (lambda t: t.assign(well=t.index % 4), "well ~ arm", r"has 4 levels .* 0, 1, 2, 3; .* such as I\(well > 2\)"),
        (lambda t: t.assign(well="no"), "well ~ arm", "'well' has 1 level in the completed tables, 'no'; .*expects 2"),
        (lambda t: t.assign(well=0), "well ~ arm", "'well' has 1 level in the completed tables, 0; "),
        (
            lambda t: t.assign(well=t["well"] & (t["draw"] != 1)), "well ~ arm",
            r"in table 1, outcome well = True \(against False\): all rows have the same level of the outcome",
        ),
        (
            lambda t: t.assign(well=t["well"] & ((t["draw"] != 2) | (t["arm"] == "a"))), "well ~ arm + week",
            r"in table 2, outcome well .*: the outcome is separated by 'arm\[T.b\]': .*Merge levels, take a term out",
        ),
        (lambda t: t, "well + week ~ arm", "left side of the formula has 2 terms, 'well', 'week'; expected one"),
        (lambda t: t, "well", "must have one outcome on its left and terms on its right"),
        (lambda t: t.assign(well=t["well"].where(t["week"] > 0)), "well ~ arm", r"column\(s\) 'well' have gaps"),
        (lambda t: t, "I(log(week - 1) > 0) ~ log(week - 1)", "not finite, such as the logarithm of 0"),
        (
            lambda t: t, "well ~ arm + (1 | patient)",
            r"random effects, which are those of a linear regression; .*cluster='patient' \(--cluster patient\)",
        ),
        (lambda t: t, "well ~ arm + week + I(2 * week)", "coefficients of 'week', .* cannot be told apart"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_outcomes_and_formulas_are_refused(change, formula, message):
    with pytest.raises(ValueError, match=message):
        pool_logistic(change(completed()), formula, cluster=None)


def test_an_arm_of_one_patient_is_refused():
    table = completed()
    table["arm"] = np.where(table["patient"] == 1, "b", "a")
    table["well"] = np.where(table["patient"] == 1, table["week"] > 1, table["well"])
    with pytest.raises(ValueError, match=r"in table 0, .*of 'arm\[T.b\]' rest on one 'patient' alone"):
        pool_logistic(table, "well ~ arm", cluster="patient")


@pytest.mark.parametrize("function", [lacova.pool_regression, lacova.pool_terms])
def test_other_regressions_are_refused(function):
    with pytest.raises(ValueError, match="regression must be 'linear' or 'logistic'; got 'binomial'"):
        function(completed(), "well ~ arm", regression="binomial")
