"""Mixed models by REML, against the likelihood with matrices written out in full."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.optimize import minimize, minimize_scalar

from lacova.analysis.design import orthogonal_basis
from lacova.analysis.mixed import criterion, mixed, reduce_rows
from tests.analysis.test_least_squares import NAMES, visits


def basis(x):
    return orthogonal_basis(x, [str(j) for j in range(x.shape[1])], 0)


def restricted(parameters, y, x, z, codes):
    """−2 log restricted likelihood, less a constant, in log σ and the entries of the root of Σ."""
    root = np.zeros((z.shape[1],) * 2)
    root[np.tril_indices(len(root))] = parameters[1:]
    same = codes[:, None] == codes
    v = np.exp(2 * parameters[0]) * np.eye(len(y)) + same * (z @ root @ root.T @ z.T)
    inverse = np.linalg.inv(v)
    information = x.T @ inverse @ x
    beta = np.linalg.solve(information, x.T @ inverse @ y)
    value = np.linalg.slogdet(v)[1] + np.linalg.slogdet(information)[1] + (y - x @ beta) @ inverse @ (y - x @ beta)
    return value, beta, np.linalg.inv(information)


def reference(y, x, z, codes):
    """Coefficients, covariance and Satterthwaite's degrees of freedom at the maximum, with numerical derivatives."""
    width, same = z.shape[1], codes[:, None] == codes
    count = width * (width + 1) // 2
    start = np.concatenate([[0.0], np.eye(width)[np.tril_indices(width)]])
    for _ in range(3):
        found = minimize(lambda p: restricted(p, y, x, z, codes)[0], start, method="BFGS", options={"gtol": 1e-9})
        start = found.x
    _, beta, covariance = restricted(found.x, y, x, z, codes)
    root = np.zeros((width, width))
    root[np.tril_indices(width)] = found.x[1:]
    units = []
    for i, j in zip(*np.tril_indices(width), strict=True):
        unit = np.zeros((width, width))
        unit[i, j] = unit[j, i] = 1.0
        units.append(same * (z @ unit @ z.T))
    units.append(np.eye(len(y)))
    v = np.exp(2 * found.x[0]) * np.eye(len(y)) + same * (z @ root @ root.T @ z.T)
    inverse = np.linalg.inv(v)
    p = inverse - inverse @ x @ covariance @ x.T @ inverse
    information = [[0.5 * np.trace(p @ a @ p @ b) for a in units] for b in units]
    step = 1e-5 * np.exp(2 * found.x[0])
    gradient = []
    for unit in units:
        ends = [np.diag(np.linalg.inv(x.T @ np.linalg.inv(v + s * step * unit) @ x)) for s in (1, -1)]
        gradient.append((ends[0] - ends[1]) / (2 * step))
    gradient = np.array(gradient)
    assert len(gradient) == count + 1
    spread = np.einsum("ki,kl,li->i", gradient, np.linalg.inv(information), gradient)
    return beta, covariance, 2 * np.diag(covariance) ** 2 / spread


@pytest.mark.parametrize("slope", [False, True, "alone"])
def test_the_fit_maximises_the_restricted_likelihood(slope):
    rng = np.random.default_rng(1)
    y, x, codes = visits(rng, patients=15, treated=7, most=5)
    y += x[:, 2] * rng.normal(size=15)[codes] + 3.0 * x[:, 3]
    z = x[:, [2]] if slope == "alone" else x[:, [0, 2]] if slope else x[:, [0]]
    fit = mixed(y, basis(x), z, codes, "id")
    beta, covariance, dof = reference(y, x, z, codes)
    # An optimum is found to the root of the precision of its value.
    np.testing.assert_allclose(fit.coefficients, beta, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fit.covariance, covariance, rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(fit.dof, dof, rtol=2e-4)  # numerical derivatives there


def test_the_criterion_is_the_restricted_likelihood_of_all_rows():
    rng = np.random.default_rng(2)
    y, x, codes = visits(rng, patients=9, treated=4, most=4)
    y, x, codes = y[codes > 0], x[codes > 0], codes[codes > 0] - 1
    one = np.flatnonzero(codes == 3)[1:]  # a patient with fewer visits than random effects
    y, x, codes = np.delete(y, one), np.delete(x, one, 0), np.delete(codes, one)
    z, q = x[:, [0, 2]], basis(x).q
    reduced, differences = reduce_rows(y, q, z, codes, "id"), []
    for root in (np.zeros((2, 2)), np.eye(2), np.array([[0.5, 0], [-0.3, 2.0]]), np.array([[1e3, 0], [0, 0.0]])):
        lower = root[np.tril_indices(2)]
        best = minimize_scalar(lambda s, lower=lower: restricted([s, *np.exp(s) * lower], y, q, z, codes)[0])
        differences.append(best.fun - criterion(reduced, root))
    np.testing.assert_allclose(np.diff(differences), 0.0, atol=1e-7)


def test_a_balanced_arm_is_the_t_test_of_the_patients_means():
    """An arm and nothing else, equal visits: exact, with two degrees of freedom less than patients."""
    y, x, codes = visits(np.random.default_rng(3), patients=20, treated=10, visits=4)
    means = np.array([y[codes == g].mean() for g in range(20)])
    test = stats.ttest_ind(means[:10], means[10:])
    fit = mixed(y, basis(x[:, :2]), x[:, [0]], codes, "id")
    assert fit.coefficients[1] / np.sqrt(fit.covariance[1, 1]) == pytest.approx(test.statistic, rel=1e-6)
    assert fit.dof[1] == pytest.approx(18, rel=1e-5)


def test_without_differences_between_patients_it_is_least_squares():
    rng = np.random.default_rng(4)
    y, x, codes = visits(rng, patients=20, treated=10, visits=4, own=0.0)
    y -= np.array([y[codes == g].mean() for g in range(20)])[codes]  # even fewer than by chance
    fit, q = mixed(y, basis(x), x[:, [0]], codes, "id"), x @ np.linalg.inv(np.linalg.cholesky(x.T @ x)).T
    residual = y - q @ (q.T @ y)
    np.testing.assert_allclose(fit.coefficients, np.linalg.lstsq(x, y)[0], atol=1e-10)
    want = residual @ residual / (len(y) - 4) * np.diag(np.linalg.inv(x.T @ x))
    np.testing.assert_allclose(np.diag(fit.covariance), want, rtol=1e-8)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_units_do_not_matter(scale):
    y, x, codes = visits(np.random.default_rng(5))
    z = x[:, [0, 2]]
    units = np.array([1.0, 1.0, scale, scale])
    plain = mixed(y, basis(x), z, codes, "id")
    other = mixed(scale * y, basis(x * units), z * units[[0, 2]], codes, "id")
    np.testing.assert_allclose(other.coefficients * units / scale, plain.coefficients, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(other.dof, plain.dof, rtol=1e-4)  # both are optima found by iteration


def test_statsmodels_agrees():
    formulas = pytest.importorskip("statsmodels.formula.api", reason="statsmodels is not installed: '.[peers]'")
    y, x, codes = visits(np.random.default_rng(6), patients=30, treated=12)
    table = pd.DataFrame({"y": y, "arm": x[:, 1], "week": x[:, 2], "id": codes})
    fit = mixed(y, basis(x), x[:, [0]], codes, "id")
    other = formulas.mixedlm("y ~ arm * week", table, groups="id").fit(reml=True)
    np.testing.assert_allclose(fit.coefficients, other.fe_params, rtol=1e-5, atol=1e-6)
    covariance = np.linalg.inv(sum(part for part in _information(other, x, codes)))
    np.testing.assert_allclose(fit.covariance, covariance, rtol=1e-3)  # both at optima of their own


def _information(other, x, codes):
    """Xᵀ V⁻¹ X of each patient, at the variances that statsmodels found."""
    for g in np.unique(codes):
        own = x[codes == g]
        v = other.scale * np.eye(len(own)) + other.cov_re.to_numpy()[0, 0]
        yield own.T @ np.linalg.inv(v) @ own


@pytest.mark.parametrize(("patients", "treated"), [(30, 15), (30, 5)])
def test_type_one_error(patients, treated):
    """An arm without an effect, 1 to 6 visits of each patient with a random intercept; 5% tests."""
    rng, rejected, tests = np.random.default_rng(patients + treated), 0, 500
    for _ in range(tests):
        y, x, codes = visits(rng, patients, treated)
        fit = mixed(y, orthogonal_basis(x[:, :3], NAMES[:3], 0), x[:, [0]], codes, "id")
        t = fit.coefficients[1] / np.sqrt(fit.covariance[1, 1])
        rejected += 2 * stats.t.sf(abs(t), fit.dof[1]) < 0.05
    assert rejected / tests == pytest.approx(0.05, abs=0.029)  # 3 binomial standard errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y, x, z, codes: (y, x, z, np.arange(len(y))), "every 'id' has one row"),
        (lambda y, x, z, codes: (x[:, 1], x[:, :1], z[:, :1], codes), "leaves nothing of the outcome"),
        (lambda y, x, z, codes: (y, x, np.ones_like(z), codes), "a slope's column is constant; take it out"),
    ],
)
def test_models_that_cannot_be_fitted_are_refused(change, message):
    y, x, codes = visits(np.random.default_rng(7))
    y, x, z, codes = change(y, x, x[:, [0, 2]], codes)
    with pytest.raises(ValueError, match=message):
        mixed(y, basis(x), z, codes, "id")
