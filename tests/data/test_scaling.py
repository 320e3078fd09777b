"""Normal scores: monotone maps that make any continuous column normal, and columns of few values."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lacova import CVAE, VAE, Dense, GPPriorVAE, NotMIWAE, Schema, load
from lacova.data.scaling import Knots, knots_as_table, knots_of_table, suits_scores
from lacova.data.table_encoder import TableEncoder


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


RNG = np.random.default_rng(5)
SHAPES = {
    "normal": (RNG.normal(5, 2, 2000), False),
    "even": (RNG.uniform(50, 200, 2000), False),
    "two groups": (np.concatenate([RNG.normal(0, 1, 900), RNG.normal(9, 1, 1100)]), False),
    "log-normal": (RNG.lognormal(0, 1, 2000), True),
    "heavy on both sides": (RNG.standard_t(3, 2000), True),
    "few values": (RNG.integers(0, 5, 2000).astype(float), True),
    "mostly zero": (np.where(RNG.random(2000) < 0.8, 0.0, RNG.lognormal(0, 1, 2000)), False),
    "too few to tell": (RNG.lognormal(0, 1, 40), False),
    "constant": (np.full(2000, 3.0), False),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_which_columns_suit_normal_scores(shape):
    values, suits = SHAPES[shape]
    assert suits_scores(values) is suits
    assert suits_scores(np.append(values, np.nan)) is suits
    for unit in (1e-150, 1e150):  # in any unit
        assert suits_scores(values * unit) is suits


def test_columns_have_scores_by_default_where_they_suit_them():
    table = pd.DataFrame(
        {name.replace(" ", "_"): values for name, (values, _) in SHAPES.items() if len(values) == 2000}
    )
    table = table.drop(columns="constant").assign(student=SHAPES["log-normal"][0])
    names = list(table)
    schema = Schema({name: "student" if name == "student" else "gaussian" for name in names}, {})
    auto, normal, standard = (TableEncoder.learn(schema, table, s) for s in ("auto", "normal", "standard"))
    scored = [names[d] for d in auto.scales.knots]
    assert scored == ["log-normal", "heavy_on_both_sides", "few_values"]  # a Student measurement has its own tails
    assert len(normal.scales.knots) == len(names)
    assert not standard.scales.knots
    encoded = auto.encode(table).y
    assert np.allclose(encoded[:, 0], standard.encode(table).y[:, 0])


@pytest.mark.parametrize(
    ("model", "scaling"),
    [
        (lambda schema: VAE(schema), "auto"),
        (lambda schema: VAE(schema, networks=Dense()), "standard"),  # no linear path, as of images
        (lambda schema: VAE(schema, networks=Dense(), scaling="normal"), "normal"),
        (lambda schema: VAE(schema, noise="row"), "standard"),  # which explains heavy tails itself
        (lambda schema: NotMIWAE(schema), "standard"),  # log-odds of gaps are linear in a column's own units
        (lambda schema: NotMIWAE(schema, scaling="minmax"), "minmax"),
    ],
)
def test_the_default_scaling_depends_on_the_model(model, scaling):
    assert model(Schema(["a", "b"], {})).column_scaling == scaling


def test_a_model_with_some_scores_comes_back_from_its_file(tmp_path):
    table = pd.DataFrame({"a": SHAPES["log-normal"][0], "b": SHAPES["normal"][0], "x": SHAPES["even"][0]})[:300]
    table["a"] = table["a"].mask(RNG.random(300) < 0.2)
    model = CVAE(Schema(["a", "b"], {"x": "continuous"}), latent_dim=1).fit(table, max_epochs=1)
    assert list(model.encoder.scales.knots) == [0]
    model.save(tmp_path / "model.lacova")
    again = load(tmp_path / "model.lacova")
    pd.testing.assert_frame_equal(again.impute(table, seed=1), model.impute(table, seed=1))
    assert again.scaling == "auto"


def test_a_growth_study_is_not_bent():
    """A course over time spreads values evenly: it stays on its own scale."""
    day = np.tile(np.arange(8.0), 20)
    table = pd.DataFrame(
        {"id": np.repeat(np.arange(20), 8), "day": day, "y": 50.0 + 10.0 * day + RNG.normal(0, 3, 160)}
    )
    model = GPPriorVAE(Schema(["y"], {"day": "continuous"}, instance="id", time="day")).fit(table, max_epochs=1)
    assert not model.encoder.scales.knots
