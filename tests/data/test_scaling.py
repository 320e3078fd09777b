"""Normal scores: monotone maps that make any continuous column normal, and columns of few values."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lacova.data.scaling import Knots, knots_as_table, knots_of_table


def test_normal_scores_are_normal_and_monotone():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.gamma(0.5, 1, 4000), rng.normal(20, 1, 2000)])
    knots = Knots.learn(values)
    scores = knots.encode(values)
    assert abs(scores.mean()) < 0.02
    assert scores.std() == pytest.approx(1.0, abs=0.03)
    assert stats.kstest(scores, "norm").statistic < 0.02
    grid = np.linspace(-10, 40, 5001)
    encoded = knots.encode(grid)
    assert (np.diff(encoded) > 0).all()
    np.testing.assert_allclose(knots.decode(encoded), grid, atol=1e-6)
    slope = (knots.encode(grid + 1e-7) - knots.encode(grid - 1e-7)) / 2e-7
    near = np.abs(grid[:, None] - knots.own).min(1) > 1e-6
    np.testing.assert_allclose(np.exp(knots.log_slope(encoded))[near], slope[near], rtol=1e-3)
    assert len(knots.own) <= 100


def test_a_column_of_few_values_is_decoded_to_these():
    """Normal draws of the scores are decoded to the values in their observed shares."""
    rng = np.random.default_rng(0)
    values = rng.choice([0.0, 5.0, 5.5, 9.0], 4000, p=[0.9, 0.05, 0.03, 0.02])
    knots = Knots.learn(values)
    assert knots.steps
    np.testing.assert_array_equal(knots.decode(knots.encode(np.array([0.0, 5.0, 5.5, 9.0]))), [0.0, 5.0, 5.5, 9.0])
    drawn = pd.Series(knots.decode(rng.normal(size=200_000))).value_counts(normalize=True)
    seen = pd.Series(values).value_counts(normalize=True)
    pd.testing.assert_series_equal(drawn, seen, atol=0.004, check_names=False)
    assert knots_of_table(knots_as_table({2: knots}), [2])[2].steps
    assert not Knots.learn(np.round(rng.normal(size=300), 1)).steps  # few of each
    assert not knots_of_table(knots_as_table({0: Knots.learn(rng.normal(size=300))}), [0])[0].steps


def test_normal_scores_are_linear_beyond_the_ends_with_the_slope_of_the_outer_percents():
    values = np.random.default_rng(0).normal(0, 2, 5000)
    values[0], values[1] = 30.0, -30.0  # outliers do not decide the slope alone
    knots = Knots.learn(values)
    far = np.diff(knots.encode(np.array([50.0, 51.0, 52.0])))
    assert far[0] == pytest.approx(far[1])
    inner = np.searchsorted(knots.score, stats.norm.ppf(0.95), side="right") - 1
    assert far[0] == pytest.approx((knots.score[-1] - knots.score[inner]) / (30.0 - knots.own[inner]))


def test_ties_are_mapped_to_their_middle():
    values = np.array([0.0] * 6 + [1.0] * 3 + [2.0] * 1)
    knots = Knots.learn(values)
    assert knots.own.tolist() == [0.0, 1.0, 2.0]
    np.testing.assert_allclose(stats.norm.cdf(knots.encode(np.array([0.0, 1.0, 2.0]))), [0.3, 0.75, 0.95])
    assert Knots.learn(np.full(9, 3.0)) is None
