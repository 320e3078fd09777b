"""Several parameters tested at once."""

import math

import numpy as np
import pytest
from scipy import stats

from lacova import pool, pool_wald
from lacova.analysis.wald import d1, denominator_dof

FEW = pytest.mark.filterwarnings("ignore::lacova.analysis.pooling.MonteCarloWarning")


def tables(m, k, seed, spread=0.4):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(k, k)) + 2 * np.eye(k)
    covariances = [root @ root.T * rng.uniform(0.8, 1.2) for _ in range(m)]
    return rng.normal(size=k) + spread * rng.normal(size=(m, k)) @ root.T, np.array(covariances)


def reference(q, u, dof):
    """Li, Raghunathan and Rubin (1991, section 2), and the degrees of freedom of Reiter (2007, eqs. 1 and 2)."""
    m, k = q.shape
    mean, within = q.mean(0), u.mean(0)
    between = sum(np.outer(row - mean, row - mean) for row in q) / (m - 1)
    r = (1 + 1 / m) * np.trace(between @ np.linalg.inv(within)) / k
    d = mean @ np.linalg.inv(within) @ mean / (k * (1 + r))
    t = k * (m - 1)
    if dof is None:
        return d, 4 + (t - 4) * (1 + (1 - 2 / t) / r) ** 2, r
    star, a = dof * (dof + 1) / (dof + 3), r * t / (t - 2)
    c0, c1, c2 = 1 / (t - 4), star - 2 * (1 + a), star - 4 * (1 + a)
    z = 1 / c2 + c0 * a**2 * c1 / ((1 + a) ** 2 * c2) + c0 * 8 * a**2 * c1 / ((1 + a) * c2**2)
    z += c0 * 4 * a**2 / ((1 + a) * c2) + c0 * 4 * a**2 / (c2 * c1) + c0 * 16 * a**2 * c1 / c2**3
    return d, 4 + 1 / (z + c0 * 8 * a**2 / c2**2), r


@pytest.mark.parametrize(("m", "k", "dof"), [(5, 2, None), (20, 3, None), (5, 3, 60.0), (30, 2, 25.0), (4, 4, 500.0)])
def test_the_statistic_follows_the_formulas(m, k, dof):
    q, u = tables(m, k, seed=m + k)
    got = pool_wald(q, u, dof=dof)
    d, df2, r = reference(q, u, dof)
    assert got[["F", "df1", "df2", "riv"]].tolist() == pytest.approx([d, k, df2, r], rel=1e-8)
    assert got["p_value"] == pytest.approx(stats.f(k, df2).sf(d), rel=1e-8)
    parts = [pool_wald(np.delete(q, j, 0), np.delete(u, j, 0), dof=dof)["p_value"] for j in range(m)]
    assert got["mc_p_value"] == pytest.approx(math.sqrt((m - 1) / m * ((parts - np.mean(parts)) ** 2).sum()), rel=1e-8)


@FEW
@pytest.mark.parametrize("dof", [None, 12.0, 400.0])
def test_one_parameter_is_the_t_test(dof):
    q, u = tables(6, 1, seed=3)
    one = pool(q, u[:, :, 0], dof=dof).loc[0]
    got = pool_wald(q, u, dof=dof)
    assert got["F"] == pytest.approx(one["t"] ** 2, rel=1e-8)
    assert got["df2"] == pytest.approx(one["dof"], rel=1e-8)
    assert got["p_value"] == pytest.approx(one["p_value"], rel=1e-8)
    assert got["mc_p_value"] == pytest.approx(one["mc_p_value"], rel=1e-8)


def test_the_parameters_may_be_measured_in_any_units():
    q, u = tables(8, 3, seed=1)
    mix = np.array([[1e9, 0, 0], [0, 1e-9, 0], [0, 2e-9, 1e-3]])
    mixed = pool_wald(q @ mix.T, mix @ u @ mix.T, dof=40)
    np.testing.assert_allclose(mixed, pool_wald(q, u, dof=40), rtol=1e-7)  # of numbers that differ by 18 digits


def test_degrees_of_freedom_between_their_limits():
    assert denominator_dof(0.0, 3, 20) == math.inf
    assert denominator_dof(1e-9, 3, 20, 60.0) == pytest.approx(61 / 63 * 60, rel=1e-6)
    assert denominator_dof(0.5, 3, 20, 1e9) == pytest.approx(denominator_dof(0.5, 3, 20), rel=0.1)  # t/(t − 2) aside
    for r in (0.01, 0.5, 5.0, 100.0):
        for dof in (0.5, 3.0, 8.0, 40.0):
            for m, k in ((2, 2), (3, 2), (20, 6)):
                assert 0 < denominator_dof(r, k, m, dof) <= max(dof, 4.0)


@pytest.mark.parametrize(("m", "rows", "seen"), [(10, 60, 36), (20, 60, 36), (20, 30, 20)])
def test_d1_holds_its_size(m, rows, seen):
    """Three means of normal samples with a share missing at random, and proper imputations; all means are 0."""
    rng, repeats, k = np.random.default_rng(m), 3000, 3
    rejected = 0
    for _ in range(repeats):
        y = rng.normal(size=(seen, k))
        variance = y.var(0, ddof=1) * (seen - 1) / rng.chisquare(seen - 1, (m, k))
        mean = y.mean(0) + np.sqrt(variance / seen) * rng.normal(size=(m, k))
        gaps = mean[:, None] + np.sqrt(variance)[:, None] * rng.normal(size=(m, rows - seen, k))
        full = np.concatenate([np.broadcast_to(y, (m, seen, k)), gaps], axis=1)
        u = full.var(1, ddof=1)[:, :, None] * np.eye(k) / rows
        rejected += d1(full.mean(1), u, rows - 1.0)[2] < 0.05
    assert rejected / repeats == pytest.approx(0.05, abs=0.012)  # binomial standard error 0.004


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, u: (q[:1], u[:1], None), r"shape \(1, 2\); expected a row per completed table"),
        (lambda q, u: (q[:, 0], u, None), r"shape \(5,\)"),
        (lambda q, u: (q, u[:, 0], None), r"covariances have shape \(5, 2\); expected a 2×2 matrix per table"),
        (lambda q, u: (q * np.nan, u, None), "have gaps"),
        (lambda q, u: (q, u * 0 + 1, None), "singular, so they cannot be tested together"),
        (lambda q, u: (q, u, 0.0), "dof must be positive"),
    ],
)
def test_bad_estimates_are_refused(change, message):
    q, u, dof = change(*tables(5, 2, seed=0))
    with pytest.raises(ValueError, match=message):
        pool_wald(q, u, dof=dof)
