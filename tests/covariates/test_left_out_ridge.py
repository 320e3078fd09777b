"""Ridge regression on visits: against refits without each patient, Bayes' theorem, and data without any information."""

import numpy as np
import pytest
from scipy.stats import norm

from lacova.covariates import left_out_ridge
from lacova.covariates.left_out_ridge import LeftOut, regress_number


def visits(patients=12, seed=0, effect=0.0):
    """Features h, values x, mean and variance of their prior, and patients with one to four visits each."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(patients), rng.integers(1, 5, patients))[rng.permutation(4)[0] :]
    group = rng.permutation(group) + 3
    n = len(group)
    h, var, mean = rng.normal(size=(n, 3)), rng.uniform(0.5, 2.0, n), rng.normal(size=n)
    return h, mean + effect * h[:, 0] + np.sqrt(var) * rng.normal(size=n), mean, var, group


def ridge(h, x, mean, var, precision, shrinkage):
    """Minimise Σ v(x/v − mean/var − aᵀh − b)² + shrinkage·a², weighted by the posterior variance v."""
    v = 1.0 / (1.0 / var + precision)
    full = np.c_[h, np.ones(len(h))]
    penalty = np.diag([shrinkage] * h.shape[1] + [0.0])
    coefficients = np.linalg.solve((full.T * v) @ full + penalty, full.T @ (x - v / var * mean))
    return coefficients[:-1], coefficients[-1]


def posterior(h, mean, var, a, b, precision):
    v = 1.0 / (1.0 / var + precision)
    return norm(v * (mean / var + h @ a + b), np.sqrt(v))


@pytest.mark.parametrize("longest", [4, 40], ids=["few visits", "a patient with more visits than features"])
def test_residuals_of_left_out_patients_equal_refits(longest):
    h, x, _, _, group = visits(patients=20)
    group[: longest - 4] = group[0]
    assert len(group) > 45
    full = np.c_[h, np.ones(len(h))]
    penalty = np.diag([0.7] * 3 + [0.0])
    root = full @ np.linalg.cholesky(np.linalg.inv(full.T @ full + penalty))  # W with WWᵀ the hat matrix
    residuals = LeftOut(group).residuals(x - root @ (root.T @ x), root)
    for patient in np.unique(group):
        others = group != patient
        fit = np.linalg.solve(full[others].T @ full[others] + penalty, full[others].T @ x[others])
        np.testing.assert_allclose(residuals[~others], (x - full @ fit)[~others], rtol=1e-4)  # 1e-6 on the diagonal


@pytest.mark.parametrize("seed", range(4))
def test_the_setting_that_foretells_left_out_patients_best_is_chosen(monkeypatch, seed):
    monkeypatch.setattr(left_out_ridge, "PRECISION_GRID", np.array([0.0, 0.3, 1.0]))
    monkeypatch.setattr(left_out_ridge, "SHRINKAGE_GRID", np.array([0.01, 0.1, 1.0]))
    h, x, mean, var, group = visits(seed=seed, effect=0.8)
    scores = {}
    for precision in left_out_ridge.PRECISION_GRID / var.mean():
        root = np.sqrt(1.0 / (1.0 / var + precision))
        intercept = root / np.linalg.norm(root)
        weighted = h * root[:, None]
        largest = np.linalg.svd(weighted - np.outer(intercept, intercept @ weighted))[1][0] ** 2
        for shrinkage in left_out_ridge.SHRINKAGE_GRID * largest:
            score = 0.0
            for patient in np.unique(group):
                own = group == patient
                a, b = ridge(h[~own], x[~own], mean[~own], var[~own], precision, shrinkage)
                score += posterior(h[own], mean[own], var[own], a, b, precision).logpdf(x[own]).sum()
            scores[precision, shrinkage] = score
    best = max(scores, key=scores.get)
    chosen = regress_number(h, x, mean, var, group)
    if scores[best] < norm(mean, np.sqrt(var)).logpdf(x).sum():
        assert chosen is None
        return
    assert (chosen.precision, chosen.shrinkage) == pytest.approx(best)
    expected = ridge(h, x, mean, var, *best)
    fit = chosen.fit(mean, var)
    np.testing.assert_allclose(fit.a[:, 0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(fit.b[0], expected[1], rtol=1e-5)


def test_a_sample_of_patients_is_their_rows_as_often_as_they_come():
    h, x, mean, var, group = visits(seed=1, effect=1.0)
    fitted = regress_number(h, x, mean, var, group)
    count = np.random.default_rng(0).integers(0, 3, group.max() + 1).astype(float)
    rows = np.repeat(np.arange(len(h)), count[group].astype(int))
    expected = ridge(h[rows], x[rows], mean[rows], var[rows], fitted.precision, fitted.shrinkage)
    fit = fitted.fit(mean, var, count)
    np.testing.assert_allclose(fit.a[:, 0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(fit.b[0], expected[1], rtol=1e-5)
    assert fit.precision == fitted.precision


def test_with_many_patients_it_approaches_bayes_theorem():
    """Two measurements of x with independent noise: the posterior is known."""
    rng = np.random.default_rng(1)
    mean, var, noise = 0.5, 1.5, np.array([0.5, 2.0])
    x = mean + np.sqrt(var) * rng.normal(size=4000)
    h = x[:, None] + np.sqrt(noise) * rng.normal(size=(4000, 2))
    means, variances = np.full(4000, mean), np.full(4000, var)
    fitted = regress_number(h, x, means, variances, np.arange(4000) // 2)
    fit = fitted.fit(means, variances)
    exact = 1.0 / (1.0 / var + (1.0 / noise).sum())
    new = np.array([[1.0, -1.0], [2.0, 3.0], [0.0, 0.0]])
    q = posterior(new, np.full(3, mean), np.full(3, var), fit.a[:, 0], fit.b[0], fitted.precision)
    np.testing.assert_allclose(q.mean(), exact * (mean / var + new @ (1.0 / noise)), atol=0.15)  # J is on a grid
    np.testing.assert_allclose(q.var(), exact, rtol=0.3)


def test_visits_that_repeat_each_other_do_not_count_as_evidence():
    """30 measurements that say nothing of a value that all 8 visits of a patient share: leaving out single visits, they
    would recognise the patient."""
    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(25), 8)
    h, x = rng.normal(size=(25, 30))[group], rng.normal(size=25)[group]
    prior = np.zeros(200), np.ones(200)
    chosen = regress_number(h, x, *prior, group)
    assert chosen is None or abs(posterior(h, *prior, *_fit(chosen, prior)).mean()).max() < 0.5
    alone = regress_number(h, x, *prior, np.arange(200))
    assert abs(posterior(h, *prior, *_fit(alone, prior)).mean()).max() > 1.0


def _fit(fitted, prior):
    fit = fitted.fit(*prior)
    return fit.a[:, 0], fit.b[0], fitted.precision
