"""Logistic regression of one table, against sums and matrices written out in full."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from lacova.analysis.design import orthogonal_basis
from lacova.analysis.logistic import clustered_logistic, logistic, maximum

NAMES = ["one", "arm", "week", "age"]


def visits(seed=0, patients=20, treated=8):
    """Outcome, design matrix and patients with 2 to 5 visits; each patient has log-odds of their own."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(patients), rng.integers(2, 6, patients))
    week = np.concatenate([np.arange(count) for count in np.bincount(codes)]).astype(float)
    x = np.column_stack([np.ones(len(codes)), codes < treated, week, rng.normal(50, 9, patients)[codes]])
    eta = -3 + 0.06 * x[:, 3] + 0.4 * x[:, 1] + rng.normal(size=patients)[codes]
    order = rng.permutation(len(codes))
    return (rng.random(len(codes)) < 1 / (1 + np.exp(-eta)))[order].astype(float), x[order], codes[order]


def chances(x, beta):
    return 1 / (1 + np.exp(-x @ beta))


def log_likelihood(y, x, beta):
    return sum(np.log(p if event else 1 - p) for p, event in zip(chances(x, beta), y, strict=True))


def derivative(f, at, step):
    """Central differences of a function, with Richardson's extrapolation."""

    def differences(h):
        return np.array([(f(at + h * e) - f(at - h * e)) / 2 for e in np.diag(step)]) / (h * step)[:, None]

    return (4 * differences(0.5) - differences(1.0)) / 3


@pytest.mark.parametrize("seed", [0, 1])
def test_the_maximum_of_the_likelihood(seed):
    y, x, _ = visits(seed)
    fit = logistic(y, orthogonal_basis(x, NAMES, 0), NAMES)
    beta, step = fit.coefficients, 1e-3 * np.sqrt(np.diag(fit.covariance))

    def gradient(at):
        return x.T @ (y - chances(x, at))

    np.testing.assert_allclose(gradient(beta) * 1e3 * step, 0.0, atol=1e-10)  # per standard error
    away = beta + np.array([0.3, -0.2, 0.1, 0.01])
    numerical = derivative(lambda at: np.array([log_likelihood(y, x, at)]), away, step)[:, 0]
    np.testing.assert_allclose(numerical, gradient(away), rtol=1e-7)  # differences of sums lose digits
    hessian = derivative(gradient, beta, step)
    np.testing.assert_allclose(fit.covariance, np.linalg.inv(-hessian), rtol=1e-8)
    for change in np.vstack([np.diag(step), -np.diag(step)]):
        assert log_likelihood(y, x, beta + change) < log_likelihood(y, x, beta)
    np.testing.assert_array_equal(fit.dof, len(y) - 4)


def test_a_table_of_counts_has_its_log_odds_ratio():
    """8 of 20 against 15 of 25: log-odds and their variances, Σ 1/n, are known."""
    arm = np.repeat([0.0, 1.0], [20, 25])
    y = np.concatenate([np.arange(20) < 8, np.arange(25) < 15]).astype(float)
    x = np.column_stack([np.ones(45), arm])
    fit = logistic(y, orthogonal_basis(x, ["one", "arm"], 0), ["one", "arm"])
    np.testing.assert_allclose(fit.coefficients, [np.log(8 / 12), np.log(15 / 10 * 12 / 8)], rtol=1e-8)
    np.testing.assert_allclose(np.diag(fit.covariance), [1 / 8 + 1 / 12, 1 / 8 + 1 / 12 + 1 / 15 + 1 / 10], rtol=1e-8)


def test_scikit_learn_agrees():
    y, x, _ = visits(2)
    fit = logistic(y, orthogonal_basis(x, NAMES, 0), NAMES)
    other = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(x[:, 1:], y)
    np.testing.assert_allclose(fit.coefficients, [*other.intercept_, *other.coef_[0]], rtol=1e-6)  # of its optimiser


def test_statsmodels_agrees():
    statsmodels = pytest.importorskip("statsmodels.api", reason="statsmodels is not installed: '.[peers]'")
    y, x, _ = visits(3)
    fit = logistic(y, orthogonal_basis(x, NAMES, 0), NAMES)
    other = statsmodels.Logit(y, x).fit(disp=0, tol=1e-14)
    np.testing.assert_allclose(fit.coefficients, other.params, rtol=1e-8)
    np.testing.assert_allclose(fit.covariance, other.cov_params(), rtol=1e-8)


def inverse_root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(values**-0.5) @ vectors.T


@pytest.mark.parametrize("seed", [0, 1])
def test_the_sandwich_by_hand(seed):
    """Σ_g X_gᵀ W_g^½ (I − H_gg)^(−1/2) e_g between two inverse informations; ν from each cluster's map of e."""
    y, x, codes = visits(seed)
    fit = clustered_logistic(y, orthogonal_basis(x, NAMES, 0), codes, NAMES, "id")
    mu = chances(x, fit.coefficients)
    w = mu * (1 - mu)
    root = np.sqrt(w)[:, None] * x
    pearson = (y - mu) / np.sqrt(w)
    bread = np.linalg.inv(root.T @ root)
    hat = np.eye(len(y)) - root @ bread @ root.T
    meat, maps = np.zeros((4, 4)), []
    for g in np.unique(codes):
        own = codes == g
        adjust = inverse_root(hat[np.ix_(own, own)])
        score = root[own].T @ adjust @ pearson[own]
        meat += np.outer(score, score)
        maps.append(bread @ root[own].T @ adjust @ hat[own])
    np.testing.assert_allclose(fit.covariance, bread @ meat @ bread, rtol=1e-8)
    for j in range(4):
        rows = np.array([part[j] for part in maps])
        inner = rows @ rows.T  # covariances of the clusters' parts, were Pearson's residuals independent
        assert fit.dof[j] == pytest.approx(np.trace(inner) ** 2 / np.square(inner).sum(), rel=1e-8)
    independent = logistic(y, orthogonal_basis(x, NAMES, 0), NAMES)
    np.testing.assert_array_equal(fit.coefficients, independent.coefficients)
    covariance, dof = fit.joint([1, 2])
    np.testing.assert_allclose(covariance, fit.covariance[1:3, 1:3] * fit.wishart([1, 2]) / dof, rtol=1e-8)


def test_columns_of_any_scale():
    y, x, codes = visits(4)
    units = np.array([1.0, 1e9, 1e-9, 1e-30])
    plain, other = (
        [logistic(y, basis, NAMES), clustered_logistic(y, basis, codes, NAMES, "id")]
        for basis in (orthogonal_basis(x, NAMES, 0), orthogonal_basis(x * units, NAMES, 0))
    )
    for k in range(2):
        np.testing.assert_allclose(other[k].coefficients * units, plain[k].coefficients, rtol=1e-8)
        np.testing.assert_allclose(other[k].covariance * np.outer(units, units), plain[k].covariance, rtol=1e-8)
        np.testing.assert_allclose(other[k].dof, plain[k].dof, rtol=1e-8)


def test_a_shift_of_a_column_moves_the_intercept_alone():
    y, x, _ = visits(5)
    shift = np.array([0.0, 0.0, 2005.0, 0.0])
    plain, other = (logistic(y, orthogonal_basis(rows, NAMES, 0), NAMES) for rows in (x, x + shift))
    np.testing.assert_allclose(other.coefficients[1:], plain.coefficients[1:], rtol=1e-8)
    np.testing.assert_allclose(other.covariance[1:, 1:], plain.covariance[1:, 1:], rtol=1e-8)


def test_the_other_level_has_the_opposite_coefficients():
    y, x, codes = visits(6)
    basis = orthogonal_basis(x, NAMES, 0)
    plain, other = (clustered_logistic(event, basis, codes, NAMES, "id") for event in (y, 1 - y))
    np.testing.assert_allclose(other.coefficients, -plain.coefficients, rtol=1e-8)
    np.testing.assert_allclose(other.covariance, plain.covariance, rtol=1e-8)


def test_extreme_rows_have_a_maximum():
    """Log-odds far beyond those at which a probability rounds to 1; a rare event."""
    rng = np.random.default_rng(7)
    age = np.append(rng.normal(size=300), [1e3, -1e3])
    y = np.append(rng.random(300) < chances(age[:300, None], [2.0]), [True, False]).astype(float)
    x = np.column_stack([np.ones(302), age])
    best = maximum(y, orthogonal_basis(x, ["one", "age"], 0), ["one", "age"])
    assert np.isfinite(best.residuals).all()
    without = maximum(y[:300], orthogonal_basis(x[:300], ["one", "age"], 0), ["one", "age"])
    np.testing.assert_allclose(best.coefficients, without.coefficients, rtol=1e-8)  # the two rows say nothing
    rare = (np.arange(10_000) < 2).astype(float)
    fit = logistic(rare, orthogonal_basis(np.ones((10_000, 1)), ["one"], 0), ["one"])
    assert fit.coefficients[0] == pytest.approx(np.log(2 / 9998), rel=1e-8)


def separated(kind):
    rng = np.random.default_rng(8)
    n = 80
    arm, age, x = rng.integers(0, 3, n), rng.normal(60, 9, n), rng.normal(size=n)
    y = rng.random(n) < 0.5
    if kind == "level":  # nobody in the third arm has the event
        y &= arm != 2
    elif kind == "threshold":  # all beyond an age have it, no one else
        y = age > 62
    elif kind == "sum":  # two columns together
        y = (age - 60) / 9 + x > 0
    elif kind == "reference":  # nobody in the first arm has the event
        y &= arm != 0
    columns = [np.ones(n), arm == 1, arm == 2, age, x]
    return y.astype(float), np.column_stack(columns).astype(float), ["Intercept", "arm[b]", "arm[c]", "age", "x"]


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("level", r"'arm\[c\]'"), ("threshold", "'age'"), ("sum", "'age', 'x'"),
        ("reference", r"'arm\[b\]', 'arm\[c\]'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("scale", [1.0, 1e9, 1e-9])
def test_separation_names_the_terms_and_says_what_to_do(kind, named, scale):
    y, x, names = separated(kind)
    basis = orthogonal_basis(x * [1, 1, 1, scale, 1], names, 0)
    message = f"the outcome is separated by {named}: .* no finite estimate. Merge levels, take a term out, or give"
    with pytest.raises(ValueError, match=message):
        logistic(y, basis, names)
    with pytest.raises(ValueError, match="is separated by"):
        logistic(1 - y, basis, names)


def test_rows_on_the_border_do_not_hide_separation():
    """Of whole numbers, many rows lie where the separating log-odds are 0; rounding there must not stop the climb."""
    rng, found = np.random.default_rng(9), 0
    for _ in range(300):
        n = int(rng.integers(8, 60))
        level = rng.integers(0, 3, n).astype(float)
        x = np.column_stack([np.ones(n), level])
        y = np.where(level > 0, 1.0, rng.random(n) < 0.5)
        if np.ptp(y[level == 0]) and np.ptp(level):
            found += 1
            with pytest.raises(ValueError, match="is separated by 'x'"):
                logistic(y, orthogonal_basis(x, ["one", "x"], 0), ["one", "x"])
    assert found > 200


def test_overlap_in_one_row_is_no_separation():
    y, x, names = separated("level")
    row = np.flatnonzero(x[:, 2] == 1)[0]
    y[row] = 1.0
    fit = logistic(y, orthogonal_basis(x, names, 0), names)
    assert np.isfinite(fit.coefficients).all()
    assert abs(fit.coefficients[2]) < 10


def test_a_single_level_is_refused():
    _, x, _ = visits()
    with pytest.raises(ValueError, match=r"all rows have the same level of the outcome; .* use more rows"):
        logistic(np.zeros(len(x)), orthogonal_basis(x, NAMES, 0), NAMES)


def test_without_a_maximum_nothing_is_returned(monkeypatch):
    y, x, _ = visits()
    monkeypatch.setattr("lacova.analysis.logistic.STEPS", 1)
    with pytest.raises(ValueError, match="found no maximum in 1 steps; look for extreme values"):
        logistic(y, orthogonal_basis(x, NAMES, 0), NAMES)


@pytest.mark.parametrize(("patients", "treated"), [(30, 15), (60, 9)])
def test_type_one_error(patients, treated):
    """An arm without an effect, 4 visits of each patient with a chance of their own; 5% tests."""
    from scipy.special import stdtr

    rng, rejected, tests = np.random.default_rng(patients), np.zeros(2), 600
    codes = np.repeat(np.arange(patients), 4)
    x = np.column_stack([np.ones(len(codes)), codes < treated]).astype(float)
    basis = orthogonal_basis(x, NAMES[:2], 0)
    for _ in range(tests):
        y = (rng.random(len(codes)) < rng.beta(1, 1.4, patients)[codes]).astype(float)
        fits = logistic(y, basis, NAMES[:2]), clustered_logistic(y, basis, codes, NAMES[:2], "id")
        for k, fit in enumerate(fits):
            rejected[k] += 2 * stdtr(fit.dof[1], -abs(fit.coefficients[1]) / np.sqrt(fit.covariance[1, 1])) < 0.05
    assert rejected[0] / tests > 0.12  # the visits taken for independent
    assert 0.02 < rejected[1] / tests < 0.072  # 5%, or somewhat less often; 3 binomial standard errors
