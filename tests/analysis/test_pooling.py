import math
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lacova import pool
from lacova.analysis.pooling import MonteCarloWarning

pytestmark = pytest.mark.filterwarnings("ignore::lacova.analysis.pooling.MonteCarloWarning")  # few tables suffice here


def reference(estimates, variances, dof, confidence, jackknife=True):
    """Rubin (1987, eqs. 3.1.2 to 3.1.10) and Barnard and Rubin (1999, eq. 3), one parameter at a time."""
    m = len(estimates)
    mean = sum(estimates) / m
    within = sum(variances) / m
    between = sum((q - mean) ** 2 for q in estimates) / (m - 1)
    total = within + (1 + 1 / m) * between
    r = (1 + 1 / m) * between / within
    gamma = (1 + 1 / m) * between / total
    nu = (m - 1) * (1 + 1 / r) ** 2 if between > 0 else math.inf
    if dof is not None:
        observed = (dof + 1) / (dof + 3) * dof * (1 - gamma)
        nu = 1 / (1 / nu + 1 / observed)
    distribution = stats.norm() if math.isinf(nu) else stats.t(nu)
    error = math.sqrt(total)
    figures = {
        "estimate": mean,
        "std_error": error,
        "dof": nu,
        "lower": mean - distribution.ppf(0.5 + confidence / 2) * error,
        "upper": mean + distribution.ppf(0.5 + confidence / 2) * error,
        "t": mean / error,
        "p_value": 2 * distribution.sf(abs(mean / error)),
        "fmi": (r + 2 / (nu + 3)) / (r + 1),
        "riv": r,
    }
    if not jackknife:
        return figures
    parts = [
        reference(estimates[:k] + estimates[k + 1 :], variances[:k] + variances[k + 1 :], dof, confidence, False)
        for k in range(m)
    ] if m > 2 else []  # fmt: skip
    for name in ("estimate", "std_error", "p_value"):
        leave_one_out = [part[name] for part in parts] or [math.nan]
        centre = sum(leave_one_out) / len(leave_one_out)
        figures[f"mc_{name}"] = math.sqrt((m - 1) / m * sum((value - centre) ** 2 for value in leave_one_out))
    if m == 2:
        figures["mc_estimate"] = abs(estimates[0] - estimates[1]) / 2
    return figures


@settings(deadline=None)
@given(
    m=st.integers(2, 30), parameters=st.integers(1, 4), spread=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
    dof=st.sampled_from([None, 3.0, 57.0, 1e6]), confidence=st.sampled_from([0.5, 0.95]), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_pooling_follows_the_formulas(m, parameters, spread, dof, confidence, seed):
    rng = np.random.default_rng(seed)
    # Whole numbers are averaged without rounding, so that no spread stays none.
    estimates = rng.integers(-4, 5, parameters) + spread * rng.normal(size=(m, parameters))
    variances = rng.uniform(0.1, 2.0, (m, parameters))
    got = pool(estimates, variances, dof=dof, confidence=confidence)
    for k in range(parameters):
        expected = reference(estimates[:, k].tolist(), variances[:, k].tolist(), dof, confidence)
        assert list(got.columns) == list(expected)
        for name, value in expected.items():
            assert got.loc[k, name] == pytest.approx(value, rel=1e-8, abs=1e-12, nan_ok=True), name


def test_tables_that_agree_give_the_complete_data_interval():
    pooled = pool([2.0] * 5, [0.25] * 5).loc[0]
    assert (pooled["estimate"], pooled["std_error"], pooled["riv"]) == (2.0, 0.5, 0.0)
    assert pooled["dof"] == math.inf
    assert (pooled["lower"], pooled["upper"]) == pytest.approx(stats.norm(2.0, 0.5).interval(0.95))
    # Barnard and Rubin's own limit is (ν + 1)/(ν + 3) ν, a little less than ν.
    pooled = pool([2.0] * 5, [0.25] * 5, dof=60).loc[0]
    assert pooled["dof"] == pytest.approx(61 / 63 * 60)
    assert (pooled["lower"], pooled["upper"]) == pytest.approx(stats.t(60, 2.0, 0.5).interval(0.95), rel=1e-3)


def test_degrees_of_freedom_never_exceed_those_of_the_complete_table():
    estimates = np.linspace(0, 1, 6)
    for dof in (4, 50, 1000):
        assert pool(estimates, np.full(6, 0.3), dof=dof).loc[0, "dof"] < dof
    large = pool(estimates, np.full(6, 0.3)).loc[0, "dof"]
    assert pool(estimates, np.full(6, 0.3), dof=1e9).loc[0, "dof"] == pytest.approx(large, rel=1e-6)


def test_more_tables_approach_the_exact_total_variance():
    rng = np.random.default_rng(0)
    pooled = pool(rng.normal(3.0, 2.0, 100_000), np.full(100_000, 5.0)).loc[0]
    assert pooled["std_error"] == pytest.approx(3.0, rel=0.01)  # √(5 + 4)
    assert pooled["fmi"] == pytest.approx(4 / 9, abs=0.01)


@pytest.mark.parametrize(("m", "rows", "seen"), [(3, 40, 24), (20, 40, 24), (5, 20, 14)])
def test_intervals_cover_a_mean_as_often_as_they_say(m, rows, seen):
    # Normal samples with a share missing at random, and proper imputations: σ², μ and the gaps from their posterior.
    rng, repeats = np.random.default_rng(0), 4000
    y = rng.normal(1.0, 2.0, (repeats, seen))
    var = y.var(1, ddof=1) * (seen - 1) / rng.chisquare(seen - 1, (m, repeats))
    mu = y.mean(1) + np.sqrt(var / seen) * rng.normal(size=(m, repeats))
    gaps = mu[..., None] + np.sqrt(var)[..., None] * rng.normal(size=(m, repeats, rows - seen))
    full = np.concatenate([np.broadcast_to(y, (m, *y.shape)), gaps], axis=2)
    pooled = pool(full.mean(2), full.var(2, ddof=1) / rows, dof=rows - 1)
    covered = ((pooled["lower"] < 1.0) & (pooled["upper"] > 1.0)).mean()
    assert covered == pytest.approx(0.95, abs=0.012)  # binomial standard error 0.0034
    naive = stats.t(rows - 1).ppf(0.975) * np.sqrt(full.var(2, ddof=1).mean(0) / rows)
    assert (np.abs(full.mean((0, 2)) - 1.0) < naive).mean() < 0.91


def test_names_of_parameters():
    estimates = pd.DataFrame({"age": [1.0, 1.2], "sex": [0.0, 0.3]})
    variances = np.full((2, 2), 0.1)
    assert list(pool(estimates, variances).index) == ["age", "sex"]
    assert list(pool(estimates.to_numpy(), estimates + 0.1).index) == ["age", "sex"]
    assert list(pool(pd.Series([1.0, 2.0], name="age"), pd.Series([1.0, 1.0], name="age_var")).index) == ["age"]
    assert list(pool([row for _, row in estimates.iterrows()], variances.tolist()).index) == ["age", "sex"]
    assert list(pool(estimates.to_numpy(), variances).index) == [0, 1]


@pytest.mark.parametrize(
    ("estimates", "variances", "settings", "message"),
    [
        ([1.0], [1.0], {}, "at least 2 completed tables, got 1"),
        ([], [], {}, "at least 2"),
        ([1.0, 2.0], [1.0], {}, r"\(2, 1\) and variances \(1, 1\)"),
        (np.ones((3, 2)), np.ones((3, 1)), {}, r"\(3, 2\) and variances \(3, 1\)"),
        (np.ones((2, 2, 2)), np.ones((2, 2, 2)), {}, "one row per completed table"),
        ([1.0, 2.0], [1.0, -0.1], {}, "variances of 0 are negative"),
        (np.ones((2, 2)), [[1.0, 0.0], [1.0, 0.0]], {}, "variances of 1 are negative, or all zero"),
        ([1.0, math.nan], [1.0, 1.0], {}, r"estimates hold 1 value\(s\) that are missing"),
        ([1.0, 2.0], [1.0, math.inf], {}, "variances hold 1"),
        (["a", "b"], [1.0, 1.0], {}, "estimates must be numbers"),
        ([1.0, 2.0], [1.0, 1.0], {"dof": 0}, "dof must be positive"),
        ([1.0, 2.0], [1.0, 1.0], {"dof": math.nan}, "dof must be positive"),
        ([1.0, 2.0], [1.0, 1.0], {"confidence": 95}, "confidence must lie between 0 and 1"),
        (
            pd.DataFrame({"a": [1, 2], "b": [1, 2]}), pd.DataFrame({"b": [1, 2], "a": [1, 2]}), {},
            r"estimates are of \['a', 'b'\] but variances of \['b', 'a'\]",
        ),
    ],
)  # fmt: skip
def test_bad_estimates_are_refused(estimates, variances, settings, message):
    with pytest.raises(ValueError, match=message):
        pool(estimates, variances, **settings)


def test_degrees_of_freedom_may_differ_between_parameters():
    estimates, variances = np.array([[1.0, 5.0], [1.3, 5.5], [1.1, 5.1]]), np.full((3, 2), 0.2)
    both = pool(estimates, variances, dof=[7.0, 90.0])
    for k, dof in enumerate((7.0, 90.0)):
        np.testing.assert_allclose(both.loc[k], pool(estimates[:, k], variances[:, k], dof=dof).loc[0], rtol=1e-12)
    for wrong in ([7.0], [7.0, 0.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match="one number or one per parameter"):
            pool(estimates, variances, dof=wrong)


def test_monte_carlo_errors_are_the_spread_over_sets_of_tables():
    # 3,000 sets of m = 20 tables of the same gaps; what the jackknife reports is compared with what the sets show.
    rng, sets, m = np.random.default_rng(0), 3000, 20
    q, u = rng.normal(0.8, 0.3, (m, sets)), rng.gamma(50, 0.2 / 50, (m, sets))
    pooled = pool(q, u, dof=40)
    for name in ("estimate", "std_error", "p_value"):
        reported = np.sqrt(np.square(pooled[f"mc_{name}"]).mean())
        assert reported == pytest.approx(pooled[name].std(), rel=0.1), name  # the jackknife is biased upwards by 1/m


def test_too_few_tables_draw_a_warning_that_says_how_many_would_do():
    # With B = 0.02 and T = 1 + 1.2 B, √(B/5) is 6% of √T. With 16 B it is 21.5%, and 5 (21.5/10)² = 23.
    estimates = np.array([-2.0, -1.0, 0.0, 1.0, 2.0]) * np.sqrt(0.02 / 2.5)
    with pytest.warns(MonteCarloWarning, match="5 completed tables are few: .* of 'age' by 22% .* about 30 tables"):
        pool(pd.DataFrame({"sex": estimates, "age": 4 * estimates}), np.ones((5, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool(estimates, np.ones(5))
