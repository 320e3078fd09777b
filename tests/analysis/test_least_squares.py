"""Least squares of clusters: CR2 variances and their degrees of freedom, against matrices written out in full."""

import numpy as np
import pytest
from scipy import stats

from lacova.analysis.design import orthogonal_basis
from lacova.analysis.least_squares import clustered, least_squares

NAMES = ["one", "arm", "week", "arm:week"]


def visits(rng, patients=12, treated=4, most=6, own=1.0, visits=None):
    """Outcome, design matrix and patients, with random intercepts and no effects; the arm is that of the patient."""
    counts = rng.integers(2, most + 1, patients) if visits is None else np.full(patients, visits)
    codes = np.repeat(np.arange(patients), counts)
    week = np.concatenate([np.arange(count) for count in counts]).astype(float)
    arm = (codes < treated).astype(float)
    y = own * rng.normal(size=patients)[codes] + rng.normal(size=len(codes))
    order = rng.permutation(len(codes))
    return y[order], np.column_stack([np.ones(len(codes)), arm, week, arm * week])[order], codes[order]


def inverse_root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(np.where(values > 1e-9, 1 / np.sqrt(np.abs(values)), 0)) @ vectors.T


def reference(y, x, codes, contrasts):
    """CR2 and its degrees of freedom: every cluster's (I − H_gg)^(−1/2), and Var(D_st) from all pairs of clusters."""
    bread = np.linalg.inv(x.T @ x)
    hat = np.eye(len(y)) - x @ bread @ x.T
    beta = bread @ x.T @ y
    meat, maps = np.zeros((x.shape[1],) * 2), []
    for g in np.unique(codes):
        own = codes == g
        adjust = inverse_root(hat[np.ix_(own, own)])
        score = x[own].T @ adjust @ (y - x @ beta)[own]
        meat += np.outer(score, score)
        maps.append(contrasts @ bread @ x[own].T @ adjust @ hat[own])  # u_g of y
    mean = sum(part @ part.T for part in maps)
    scale = np.linalg.inv(np.linalg.cholesky(mean))
    maps = [scale @ part for part in maps]
    k = len(contrasts)
    return beta, bread @ meat @ bread, k * (k + 1) / variance_of(maps)


def variance_of(maps):
    """Σ_st Var(D_st) with D = Σ_g u_g u_gᵀ, entry by entry by Isserlis' theorem."""
    k, total = len(maps[0]), 0.0
    for s in range(k):
        for t in range(k):
            for first in maps:
                for second in maps:
                    total += (first[s] @ second[s]) * (first[t] @ second[t])
                    total += (first[s] @ second[t]) * (first[t] @ second[s])
    return total


@pytest.mark.parametrize("seed", [0, 1])
def test_variance_and_degrees_of_freedom_follow_the_formulas(seed):
    y, x, codes = visits(np.random.default_rng(seed))
    fit = clustered(y, orthogonal_basis(x, NAMES, 0), codes, NAMES, "id")
    for j in range(4):
        beta, covariance, dof = reference(y, x, codes, np.eye(4)[[j]])
        assert fit.dof[j] == pytest.approx(dof, rel=1e-8)
    np.testing.assert_allclose(fit.coefficients, beta, rtol=1e-8)
    np.testing.assert_allclose(fit.covariance, covariance, rtol=1e-8, atol=1e-12)
    for columns in ([1, 3], [0, 1, 2, 3]):
        eta = reference(y, x, codes, np.eye(4)[columns])[2]
        assert fit.wishart(columns) == pytest.approx(eta, rel=1e-8)
        scaled, rest = fit.joint(columns)
        assert rest == pytest.approx(eta - len(columns) + 1, rel=1e-8)
        np.testing.assert_allclose(scaled, fit.covariance[np.ix_(columns, columns)] * eta / rest, rtol=1e-8)


def test_the_variance_has_no_bias_where_rows_are_independent():
    rng = np.random.default_rng(0)
    _, x, codes = visits(rng)
    basis = orthogonal_basis(x, NAMES, 0)
    fits = [clustered(rng.normal(size=len(x)), basis, codes, NAMES, "id") for _ in range(3000)]
    truth = np.diag(np.linalg.inv(x.T @ x))
    variances = np.array([np.diag(fit.covariance) for fit in fits])
    np.testing.assert_allclose(variances.mean(0) / truth, 1.0, atol=0.06)  # 4 standard errors where dof is 3
    np.testing.assert_allclose(2 / (variances / truth).var(0), fits[0].dof, rtol=0.15)  # Var = 2/ν


def test_a_mean_by_cluster_is_the_t_test_of_the_means():
    """With equal visits, and with G − 1 degrees of freedom."""
    rng = np.random.default_rng(2)
    y, _, codes = visits(rng, visits=4)
    fit = clustered(y, orthogonal_basis(np.ones((len(y), 1)), ["one"], 0), codes, ["one"], "id")
    means = np.array([y[codes == g].mean() for g in range(12)])
    assert fit.coefficients[0] == pytest.approx(means.mean(), rel=1e-8)
    assert fit.covariance[0, 0] == pytest.approx(means.var(ddof=1) / 12, rel=1e-8)
    assert fit.dof[0] == pytest.approx(11, rel=1e-8)


def test_a_balanced_arm_has_two_degrees_of_freedom_less_than_patients():
    y, x, codes = visits(np.random.default_rng(3), patients=20, treated=10, visits=3)
    fit = clustered(y, orthogonal_basis(x[:, :2], NAMES[:2], 0), codes, NAMES[:2], "id")
    means = np.array([y[codes == g].mean() for g in range(20)])
    test = stats.ttest_ind(means[:10], means[10:])
    assert fit.dof[1] == pytest.approx(18, rel=1e-8)
    assert fit.coefficients[1] / np.sqrt(fit.covariance[1, 1]) == pytest.approx(test.statistic, rel=1e-8)


@pytest.mark.parametrize(("patients", "treated", "tests"), [(30, 15, 1000), (60, 9, 1000)])
def test_type_one_error(patients, treated, tests):
    """An arm without an effect, 4 visits of each patient with a random intercept; 5% tests."""
    rng, rejected = np.random.default_rng(patients), np.zeros(2)
    for _ in range(tests):
        y, x, codes = visits(rng, patients, treated, visits=4)
        basis = orthogonal_basis(x[:, :3], NAMES[:3], 0)
        for k, fit in enumerate((least_squares(y, basis), clustered(y, basis, codes, NAMES[:3], "id"))):
            t = fit.coefficients / np.sqrt(np.diag(fit.covariance))
            rejected[k] += 2 * stats.t.sf(abs(t[1]), fit.dof[1]) < 0.05
    assert rejected[0] / tests > 0.15  # the visits taken for independent
    assert rejected[1] / tests == pytest.approx(0.05, abs=0.021)  # 3 binomial standard errors


def test_a_level_of_one_patient_is_refused():
    y, x, codes = visits(np.random.default_rng(4), treated=1)
    with pytest.raises(ValueError, match=r"of 'arm', 'arm:week' rest on one 'id' alone.*\(1 \| id\)"):
        clustered(y, orthogonal_basis(x, NAMES, 0), codes, NAMES, "id")


def test_too_few_clusters_for_a_joint_test_are_refused():
    y, x, codes = visits(np.random.default_rng(5), patients=4, treated=2)
    fit = clustered(y, orthogonal_basis(x, NAMES, 0), codes, NAMES, "id")
    with pytest.raises(ValueError, match=r"too few clusters to test 4 coefficients together: .* test fewer"):
        fit.joint([0, 1, 2, 3])
