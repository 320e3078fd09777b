"""The analyses and imputations of the inference study, each against a slow or closed-form reference."""

import numpy as np
import pytest
from reproduction.inference.answers import by_least_squares
from reproduction.inference.multiple import TABLES, chained, multilevel
from reproduction.inference.regressions import Sums, design, interval, least_squares, mixed_model, pooled
from reproduction.inference.worlds import WORLDS
from scipy.optimize import minimize
from scipy.stats import norm
from scipy.stats import t as student

from lacova import pool
from lacova.analysis.pooling import MonteCarloWarning
from reproduction.inference import regressions


def unbalanced(rng, patients=15):
    """Return y, x, the patient and z of patients with 1 to 5 visits, in a random order."""
    who = rng.permutation(np.repeat(np.arange(patients), rng.integers(1, 6, patients)))
    x, z = design(rng.normal(size=len(who)), who % 2), design(rng.normal(size=len(who)))
    b = rng.normal(size=(patients, 2)) @ np.array([[1.0, 0.3], [0.0, 0.5]])
    return x @ [1.0, 0.5, -0.5] + (z * b[who]).sum(1) + rng.normal(size=len(who)), x, who, z


def dense(y, x, who, z, root):
    """Return −2 log restricted likelihood at V = I + z L Lᵀ zᵀ within patients, β, and xᵀV⁻¹x, with N×N matrices."""
    v = np.eye(len(y)) + (who[:, None] == who) * (z @ root @ root.T @ z.T)
    inverse = np.linalg.inv(v)
    information = x.T @ inverse @ x
    beta = np.linalg.solve(information, x.T @ inverse @ y)
    rss = (y - x @ beta) @ inverse @ (y - x @ beta)
    logs = np.linalg.slogdet(v)[1] + np.linalg.slogdet(information)[1]
    return (len(y) - x.shape[1]) * np.log(rss) + logs, beta, information, rss


@pytest.mark.parametrize("root", [[[0.0, 0.0], [0.0, 0.0]], [[1.2, 0.0], [-0.4, 0.7]]])
def test_the_restricted_likelihood_is_that_of_dense_matrices(root):
    y, x, who, z = unbalanced(np.random.default_rng(0))
    fast = regressions._profile(Sums.of(y, x, who, z), np.array(root), len(y) - x.shape[1])
    for one, other in zip(fast, dense(y, x, who, z, np.array(root)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8)


def test_the_mixed_model_is_that_of_another_optimiser_on_dense_matrices():
    y, x, who, z = unbalanced(np.random.default_rng(1), 40)

    def root(theta):
        return np.array([[theta[0], 0.0], [theta[1], theta[2]]])

    starts = ([1.0, 0.0, 1.0], [0.5, 0.5, 0.5])
    found = [minimize(lambda theta: dense(y, x, who, z, root(theta))[0], start, method="BFGS") for start in starts]
    best = min(found, key=lambda one: one.fun)
    _, beta, information, rss = dense(y, x, who, z, root(best.x))
    fit = mixed_model(y, x, who, z, dof=38)
    noise = rss / (len(y) - 3)
    # Both optimisers stop at steps of about 1e-4.
    np.testing.assert_allclose(fit.coefficients, beta, rtol=1e-3)
    np.testing.assert_allclose(fit.covariance, noise * np.linalg.inv(information), rtol=1e-2, atol=1e-5)
    assert fit.noise == pytest.approx(noise, rel=1e-3)


def test_a_mixed_model_of_balanced_visits_compares_the_means_of_patients():
    rng = np.random.default_rng(2)
    who, day = np.repeat(np.arange(30), 4), np.tile(np.arange(4.0), 30)
    y = rng.normal(size=30)[who] + 0.2 * day + rng.normal(size=120)
    fit = mixed_model(y, design(who % 2, day), who, np.ones((120, 1)), dof=28)
    means = least_squares(y.reshape(30, 4).mean(1), design(np.arange(30) % 2))
    # The optimiser stops at a step of 1e-4.
    np.testing.assert_allclose(interval(fit, 1, 0.9), interval(means, 1, 0.9), rtol=1e-3)


def test_least_squares_and_its_intervals():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=20), rng.normal(size=20)
    slope, covariance = np.polyfit(x, y, 1, cov=True)
    fit = least_squares(y, design(x))
    np.testing.assert_allclose(fit.coefficients, slope[::-1], rtol=1e-8)
    np.testing.assert_allclose(fit.covariance, covariance[::-1, ::-1], rtol=1e-8)
    half = student.ppf(0.975, 18) * covariance[0, 0] ** 0.5
    np.testing.assert_allclose(interval(fit, 1, 0.95), [slope[0], slope[0] - half, slope[0] + half], rtol=1e-8)
    dummies = np.column_stack([x, np.repeat(np.eye(5), 4, axis=0)])  # centring by group is a mean for each
    centred = [v - np.repeat(v.reshape(5, 4).mean(1), 4) for v in (y, x)]
    within = least_squares(centred[0], centred[1][:, None], lost=5)
    np.testing.assert_allclose(interval(within, 0, 0.95), interval(least_squares(y, dummies), 0, 0.95), rtol=1e-8)


def test_one_table_has_the_interval_of_its_analysis_and_several_are_pooled():
    rng = np.random.default_rng(4)
    fits = [least_squares(rng.normal(size=30), design(rng.normal(size=30))) for _ in range(5)]
    assert pooled(fits[:1], {"slope": 1}, 0.9)["slope"] == interval(fits[0], 1, 0.9)
    variances = [fit.covariance[1, 1] for fit in fits]
    with pytest.warns(MonteCarloWarning):
        result = pool([fit.coefficients[1] for fit in fits], variances, dof=28, confidence=0.9).iloc[0]
    np.testing.assert_allclose(
        pooled(fits, {"slope": 1}, 0.9)["slope"], result[["estimate", "lower", "upper"]], rtol=1e-8
    )


def test_the_regression_of_the_variance_maximises_the_likelihood():
    rng = np.random.default_rng(5)
    x = design(rng.normal(size=400))
    y = x @ [0.0, 1.0] + np.exp(0.5 * x @ [0.2, 1.2]) * rng.normal(size=400)
    beta, gamma = regressions.variance_regression(y, x)

    def likelihood(beta, gamma):
        return norm.logpdf(y, x @ beta, np.exp(0.5 * x @ gamma)).sum()

    best = likelihood(beta, gamma)
    for step in np.vstack([np.eye(4), -np.eye(4)]) * 1e-3:
        assert likelihood(beta + step[:2], gamma + step[2:]) < best
    assert gamma == pytest.approx([0.2, 1.2], abs=0.3)


def test_predictions_of_least_squares_hold_nine_tenths_on_a_small_table():
    """The exact t interval; a normal one with the estimated noise would hold 86%."""
    world, held = WORLDS["small-tables"], []
    for repetition in range(150):
        study = world.study(14, repetition)
        answer = by_least_squares(study, 0, None)
        y = study.new["y"]
        held.append(((answer.lower <= y) & (y <= answer.upper)).mean())
    assert np.mean(held) == pytest.approx(0.9, abs=0.015)


def test_chained_equations_draw_from_the_posterior_predictive():
    """Of one incomplete column: a t distribution about least squares, whose scale includes that of the coefficients."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=25)
    y = np.where(np.arange(25) < 12, x + rng.normal(size=25), np.nan)
    fit = least_squares(y[:12], design(x[:12]))
    new = design(x[12:])
    for sweeps in (0, 2):
        drawn = np.stack([chained(np.column_stack([x, y]), rng, sweeps)[:, 1] for _ in range(2500)])
        assert (drawn[:, :12] == y[:12]).all()
        spread = fit.noise + np.einsum("ni,ij,nj->n", new, fit.covariance, new)
        assert drawn[:, 12:].mean(0) == pytest.approx(new @ fit.coefficients, abs=0.12)
        assert drawn[:, 12:].var(0) == pytest.approx(spread * 10 / 8, rel=0.15)  # t with 10 degrees: 10/8


def test_multilevel_imputation_knows_patients_and_partners():
    rng = np.random.default_rng(7)
    levels = rng.normal(size=(150, 1, 1))
    truth = levels + 0.5 * rng.normal(size=(150, 5, 1)) + np.array([0.0, 3.0]) + 0.2 * rng.normal(size=(150, 5, 2))
    gaps = rng.random(truth.shape) < 0.3
    drawn = np.stack(list(multilevel(np.where(gaps, np.nan, truth), rng, thin=5)))
    assert len(drawn) == TABLES
    assert (drawn[:, ~gaps] == truth[~gaps]).all()
    partner = gaps & ~gaps[:, :, ::-1]  # var of y given the level and the partner: (.29² − .25²) / .29
    both = gaps & gaps[:, :, ::-1]  # given the level: .29, and the level from the other visits
    for rows, noise in ((partner, 0.0745), (both, 0.29 * (1 + 1 / 3.5))):
        assert np.mean((drawn[:, rows].mean(0) - truth[rows]) ** 2) == pytest.approx(noise, rel=0.3)
        assert drawn[:, rows].var(0, ddof=1).mean() == pytest.approx(noise, rel=0.3)
    apart = (drawn - drawn.mean(0))[:, both.all(2)]
    assert np.corrcoef(apart.reshape(-1, 2).T)[0, 1] == pytest.approx(0.25 / 0.29, abs=0.06)
