"""Models of columns of every kind: fitted, asked, scored and saved; scales and their Jacobians; normal scores."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from lacova.likelihoods.mixed import MixedLikelihood
from scipy import stats

import lacova
from lacova import CVAE, DataError, Dense, GPPriorVAE, Schema
from lacova.data.batches import Batches
from lacova.data.scaling import Knots, knots_as_table, knots_of_table
from lacova.data.table_encoder import TableEncoder
from lacova.inference.objective import elbo
from lacova.likelihoods.random_effects import RandomIntercepts

KINDS = {
    "gau": "gaussian", "log": "lognormal", "stu": "student", "cen": "censored", "poi": "poisson",
    "neg": "negative_binomial", "ber": "bernoulli", "cat": "categorical", "ord": "ordinal",
}  # fmt: skip
LIMITS = {"cen": (-0.5, 2.0)}
SCHEMA = Schema(KINDS, {"sex": "categorical"}, "id", "day", ["sex"], limits=LIMITS)
NUMBERS = ["gau", "log", "stu", "cen", "poi", "neg"]
SMALL = {"latent_dim": 2, "networks": Dense((16,), (16,), linear=True)}


def visits(patients=50, times=5):
    """Nine measurements of one thing, each of its kind."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(patients), times)
    rows = len(who)
    day = np.tile(np.arange(float(times)), patients)
    level = np.sin(day) + rng.normal(0, 1, patients)[who]
    scores = np.stack([2 * level, 0 * level, -2 * level], 1) + rng.gumbel(size=(rows, 3))
    return pd.DataFrame(
        {
            "id": who, "day": day, "sex": np.array(["f", "m"], dtype=object)[who % 2],
            "gau": 3 + level + rng.normal(0, 0.3, rows),
            "log": np.exp(2 + 0.8 * level + rng.normal(0, 0.3, rows)),
            "stu": level + 0.3 * rng.standard_t(3, rows),
            "cen": np.clip(level + rng.normal(0, 0.3, rows), -0.5, 2.0),
            "poi": rng.poisson(np.exp(0.5 + 0.6 * level)).astype(float),
            "neg": rng.negative_binomial(2, 2 / (2 + np.exp(1 + 0.5 * level))).astype(float),
            "ber": np.where(rng.random(rows) < 1 / (1 + np.exp(-3 * level)), "yes", "no").astype(object),
            "cat": np.array(["a", "b", "c"], dtype=object)[scores.argmax(1)],
            "ord": np.digitize(level + rng.logistic(0, 0.3, rows), [-1, 0, 1]).astype(float),
        }
    )  # fmt: skip


def holed(frame, share=0.25):
    rng = np.random.default_rng(1)
    done = frame.copy()
    for name in KINDS:
        done[name] = done[name].mask(rng.random(len(frame)) < share)
    return done


@pytest.fixture(scope="module")
def model():
    return GPPriorVAE(SCHEMA, inducing=8, **SMALL).fit(holed(visits()), max_epochs=40, learning_rate=5e-3)


@pytest.fixture(scope="module")
def normal():
    return CVAE(SCHEMA, scaling="normal", **SMALL).fit(holed(visits()), max_epochs=8)


# Imputation.


def test_every_kind_is_imputed_better_than_by_a_constant(model):
    truth, given = visits(), holed(visits())
    done = model.impute(given)
    for name, kind in KINDS.items():
        gaps = given[name].isna()
        if name in NUMBERS:
            error = np.sqrt(((done[name] - truth[name])[gaps] ** 2).mean())
            assert error < 0.95 * truth[name][gaps].std() or kind == "negative_binomial", name
        else:
            hits = (done[name] == truth[name])[gaps].mean()
            assert hits > truth[name][gaps].value_counts(normalize=True).max() + 0.05, name


@pytest.mark.parametrize("draws", [None, 3])
def test_gaps_are_filled_by_values_of_the_columns_kind_and_nothing_else_changes(model, draws):
    given = holed(visits())
    done = model.impute(given, draws=draws)
    for _, one in done.groupby("draw") if draws else [(0, done)]:
        assert not one.isna().any().any()
        for name in KINDS:
            seen = given[name].notna()
            assert one[name][seen].tolist() == given[name][seen].tolist()
        assert (one["log"] > 0).all()
        for name in ("poi", "neg"):
            assert ((one[name] >= 0) & (one[name] % 1 == 0)).all()
        assert set(one["ber"]) == {"no", "yes"}
        assert set(one["cat"]) == {"a", "b", "c"}
        assert set(one["ord"]) <= {0.0, 1.0, 2.0, 3.0}


def test_probabilities_of_levels_are_shares_of_draws(model):
    given = holed(visits())
    done = model.impute(given, probabilities=True)
    drawn = model.impute(given, draws=150, seed=3)
    for name, levels in {"ber": ("no", "yes"), "cat": ("a", "b", "c"), "ord": (0.0, 1.0, 2.0, 3.0)}.items():
        level_probabilities = done[[f"{name}_p_{level}" for level in levels]].to_numpy()
        np.testing.assert_allclose(level_probabilities.sum(1), 1.0, atol=1e-5)
        gaps = given[name].isna().to_numpy()
        most = np.array(levels, dtype=object)[level_probabilities.argmax(1)]
        assert (most[gaps] == done[name][gaps]).all()
        assert (level_probabilities[~gaps].max(1) == 1.0).all()
        assert (most[~gaps] == given[name][~gaps]).all()
        for k, level in enumerate(levels):
            share = (drawn[name] == level).to_numpy().reshape(150, -1).mean(0)
            assert np.abs(share - level_probabilities[:, k])[gaps].max() < 0.3
            assert np.abs(share - level_probabilities[:, k])[gaps].mean() < 0.06
    assert "sex_p_f" not in done.columns


def test_intervals_are_of_numbers_in_their_own_units(model):
    given = holed(visits())
    done = model.impute(given, interval=0.9)
    assert not any(f"{name}_lower" in done.columns for name in ("ber", "cat", "ord"))
    for name in NUMBERS:
        gaps = given[name].isna()
        assert (done[f"{name}_lower"] <= done[f"{name}_upper"]).all()
        inside = (visits()[name] >= done[f"{name}_lower"]) & (visits()[name] <= done[f"{name}_upper"])
        assert inside[gaps].mean() > 0.75, name
    for name in ("poi", "neg"):
        assert (done[f"{name}_lower"] % 1 == 0).all()


# Prediction and scores.


def test_predictions_are_means_of_draws_or_the_most_probable_level(model):
    x = visits()[["id", "day", "sex"]].head(10)
    draws = model.sample(x, draws=1000, seed=1)
    told = model.predict(x, draws=1000, interval=0.8, probabilities=True)
    for name in NUMBERS:
        mine = draws[name].to_numpy().reshape(1000, -1)
        np.testing.assert_allclose(told[name], mine.mean(0), atol=6 * mine.std(0).max() / math.sqrt(1000))
        near = np.quantile(mine, 0.1, axis=0)
        assert np.abs(told[f"{name}_lower"] - near).max() < 0.25 * mine.std(0).max() + (name in ("poi", "neg"))
    for name, levels in {"ber": ("no", "yes"), "cat": ("a", "b", "c"), "ord": (0.0, 1.0, 2.0, 3.0)}.items():
        level_probabilities = told[[f"{name}_p_{level}" for level in levels]].to_numpy()
        shares = np.stack([(draws[name] == level).to_numpy().reshape(1000, -1).mean(0) for level in levels], 1)
        assert np.abs(level_probabilities - shares).max() < 0.08
        assert told[name].tolist() == [levels[k] for k in level_probabilities.argmax(1)]
    assert list(model.predict(x).columns) == list(KINDS)


def test_predictions_of_counts_are_means_and_draws_are_whole(model):
    x = visits()[["id", "day", "sex"]].head(10)
    assert (model.predict(x)["poi"] % 1 != 0).any()
    assert (model.sample(x)[["poi", "neg"]] % 1 == 0).all().all()


@pytest.mark.parametrize("which", ["model", "normal"])
def test_scores_are_what_the_draws_say(which, request):
    """Against draws taken through the public interface, scored by plain loops in own units."""
    fitted, frame = request.getfixturevalue(which), visits()
    got = fitted.score(frame, columns=True, draws=60, seed=4)
    draws, told = fitted.sample(frame, draws=60, seed=4), fitted.predict(frame, draws=60, seed=4, probabilities=True)
    for name in NUMBERS:
        mine, truth = draws[name].to_numpy().reshape(60, -1), frame[name].to_numpy()
        mean = told[name].to_numpy()
        if name == "cen":
            mine = np.clip(mine, *LIMITS["cen"])
            mean = mine.mean(0)
        assert got.loc[name, "rmse"] == pytest.approx(np.sqrt(np.mean((mean - truth) ** 2)), rel=1e-4)
        pairs = np.abs(mine[:, None] - mine[None]).sum((0, 1)) / (60 * 59)
        assert got.loc[name, "crps"] == pytest.approx(np.mean(np.abs(mine - truth).mean(0) - pairs / 2), rel=1e-3)
        low, high = np.quantile(mine, [0.05, 0.95], axis=0, method="weibull")
        slack = 1e-5
        assert got.loc[name, "coverage90"] == pytest.approx(
            np.mean((low <= truth + slack) & (truth - slack <= high)), abs=0.005
        )
    for name in ("ber", "cat", "ord"):
        levels = fitted._encoder.levels[name]
        level_probabilities = told[[f"{name}_p_{level}" for level in levels]].to_numpy()
        hit = np.stack([frame[name] == level for level in levels], 1)
        assert got.loc[name, "accuracy"] == pytest.approx((told[name] == frame[name]).mean())
        assert got.loc[name, "brier"] == pytest.approx(((level_probabilities - hit) ** 2).sum(1).mean(), rel=1e-4)
        assert got.loc[name, "nll"] == pytest.approx(-np.log(level_probabilities[hit]).mean(), rel=1e-4)
    assert got.loc[["ber", "cat", "ord"], ["rmse", "crps", "coverage90"]].isna().all().all()
    assert got.loc[NUMBERS, ["accuracy", "brier"]].isna().all().all()
    whole = fitted.score(frame, draws=60, seed=4)
    assert whole["nll"] == pytest.approx(got["nll"].sum())
    assert whole["accuracy"] == pytest.approx(got["accuracy"].mean())
    spread = fitted._encoder.scales.spread[:6]
    assert whole["crps"] == pytest.approx((got["crps"][:6] / spread).mean())


def test_nll_of_a_log_normal_column_is_in_its_own_units():
    """Noise alone, without anything learnt: the density of the data's own log-normal law."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(0, 1, 200), "y": np.exp(rng.normal(5, 2, 200)), "n": rng.poisson(4, 200)})
    fitted = CVAE(Schema({"y": "lognormal", "n": "poisson"}, {"x": "continuous"}), **SMALL).fit(frame, max_epochs=1)
    with torch.no_grad():
        for parameter in fitted._vae.decoder.parameters():
            parameter.zero_()
        logs = np.log(frame["y"])
        fitted._vae.likelihood.families["gaussian"].raw.fill_(math.log(1 - 1e-4))
    law = stats.lognorm(logs.std(ddof=0), scale=math.exp(logs.mean()))
    count = stats.poisson(frame["n"].mean())
    expected = {"y": -law.logpdf(frame["y"]).mean(), "n": -count.logpmf(frame["n"]).mean()}
    got = fitted.score(frame, columns=True, draws=5)["nll"]
    assert got["y"] == pytest.approx(expected["y"], rel=1e-4)
    assert got["n"] == pytest.approx(expected["n"], rel=1e-3)
    both = fitted.log_likelihood(frame, draws=500)  # q is not the prior after an epoch: few draws fall short
    assert both.mean() == pytest.approx(-expected["y"] - expected["n"], rel=1e-3)


# What is refused.


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("log", 0.0, "column 'log' holds 0.0, but its kind is lognormal, for positive numbers; correct the values, "),
        ("poi", 1.5, "column 'poi' holds 1.5, but its kind is poisson, for whole numbers from 0 on; correct"),
        ("neg", -1.0, "column 'neg' holds -1.0, but its kind is negative_binomial, for whole numbers from 0 on;"),
        ("cat", "d", "column 'cat' holds 'd', never seen in training; known levels are 'a', 'b', 'c'. Mark such"),
        ("ord", 4.0, "column 'ord' holds 4.0, never seen in training; known levels are 0.0, 1.0, 2.0, 3.0."),
    ],
)
def test_values_that_a_kind_does_not_have_are_refused(model, name, value, words):
    frame = visits()
    frame.loc[3, name] = value
    with pytest.raises(DataError) as caught:
        model.impute(frame)
    assert words in str(caught.value)


def test_training_columns_that_contradict_their_kind_are_refused():
    frame = pd.DataFrame({"x": np.arange(9.0), "y": list("abcabcabc"), "z": -np.arange(9.0)})
    for kinds, words in (
        ({"y": "bernoulli"}, "bernoulli measurement 'y' holds 'a', 'b', 'c'; expected two levels. Make its kind"),
        ({"y": "ordinal"}, "ordinal measurement 'y' holds text ('a', 'b', 'c'), which has no order of its own; make"),
        ({"z": "lognormal"}, "column 'z' holds -0.0, -1.0, -2.0, -3.0, -4.0 and 4 more, but its kind is lognormal"),
        ({"y": "gaussian"}, "column 'y' must be numeric, but holds 'a', 'b', 'c'."),
    ):
        with pytest.raises(DataError) as caught:
            CVAE(Schema(kinds, {"x": "continuous"}), **SMALL).fit(frame, max_epochs=1)
        assert words in str(caught.value)
    with pytest.raises(ValueError, match=r"Conv.* is for numbers, counts and bernoulli columns; categories need"):
        CVAE(Schema({"y": "categorical"}, {"x": "continuous"}), networks="rotated-digits").fit(frame, max_epochs=1)


def test_ordered_categories_keep_their_order():
    frame = pd.DataFrame({"x": np.arange(60.0)})
    frame["y"] = pd.Categorical(np.array(["low", "mid", "top"])[np.arange(60) // 20], ["low", "mid", "top"])
    fitted = CVAE(Schema({"y": "ordinal"}, {"x": "continuous"}), **SMALL).fit(frame, max_epochs=300)
    assert fitted._encoder.levels["y"] == ("low", "mid", "top")
    assert fitted.predict(frame.assign(y=None))["y"].iloc[[0, -1]].tolist() == ["low", "top"]


# Patients' levels, the bound, files and streams.


def test_patients_have_levels_of_gaussian_and_log_normal_columns(model):
    assert model._vae.random_effects.var.shape == (2,)
    only = Schema({"ber": "bernoulli"}, {}, "id", "day")
    fitted = GPPriorVAE(only, inducing=4, **SMALL).fit(holed(visits()), max_epochs=1)
    assert fitted._vae.random_effects is None
    later = visits().query("id == 0").tail(1)
    history = visits().query("id == 0").head(4)
    raised = history.assign(gau=history["gau"] + 5, log=history["log"] * 20)
    plain, moved = (model.predict(later, history=h, draws=400) for h in (history, raised))
    assert (moved["gau"] > plain["gau"] + 1).all()
    assert (moved["log"] > plain["log"] * 2).all()


def test_mixed_columns_that_are_all_gaussian_give_the_same_bound_and_answers():
    """The short way for Gaussian columns and the long one are the same computation."""
    frame = holed(visits())
    schema = Schema(["gau", "stu"], {"sex": "categorical"}, "id", "day", ["sex"])
    fitted = GPPriorVAE(schema, inducing=5, **SMALL).fit(frame, max_epochs=2)
    vae = fitted._vae
    table = fitted._encode(frame)
    batch = Batches(table).batch(torch.arange(len(table.labels)))

    def answers():
        generator = torch.Generator().manual_seed(0)
        terms = elbo(vae, batch, generator)
        location = torch.randn(3, len(table), 2, generator=generator)
        seen = vae.observe(location, batch, generator)
        return terms.elbo, terms.reconstruction, seen.mean, seen.var.expand(3, len(table), 2), seen.y

    with torch.no_grad():
        expected = answers()
        short, vae.likelihood = vae.likelihood, MixedLikelihood(vae.measurements)
        vae.likelihood.start_at(short.var)
        for a, b in zip(answers(), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_every_kind_comes_back_from_a_file(model, normal, tmp_path):
    for k, fitted in enumerate((model, normal)):
        fitted.save(tmp_path / f"{k}")
        again = lacova.load(tmp_path / f"{k}")
        assert again.schema == fitted.schema
        assert again.schema.kinds == {name: kind for name, kind in KINDS.items() if kind != "gaussian"}
        given = holed(visits())
        assert again.impute(given, interval=0.9).equals(fitted.impute(given, interval=0.9))
        assert again.score(given) == fitted.score(given)
        assert "log (lognormal)" in again.describe()


def test_a_stream_learns_the_same_as_the_table(tmp_path):
    frame = holed(visits())
    frame.to_parquet(tmp_path / "t.parquet")
    for scaling in ("standard", "normal"):
        model = CVAE(SCHEMA, scaling=scaling, **SMALL)
        streamed = CVAE(SCHEMA, scaling=scaling, **SMALL).fit(tmp_path / "t.parquet", max_epochs=2)
        assert streamed.predict(frame, draws=5).equals(model.fit(frame, max_epochs=2).predict(frame, draws=5))


# Scales.


@pytest.mark.parametrize("scaling", ["standard", "normal", "minmax"])
@pytest.mark.parametrize("name", NUMBERS[:4])
def test_densities_in_own_units_integrate_to_1(scaling, name):
    """With the Jacobian of the logarithm, of scaling and of normal scores; beyond limits, level_probabilities are added."""
    frame = visits()
    limits = {k: v for k, v in LIMITS.items() if k == name}
    encoder = TableEncoder.learn(Schema({name: KINDS[name], "poi": "poisson"}, {}, limits=limits), frame, scaling)
    law = MixedLikelihood(encoder.measurements).double()
    span = (1e-25, 1e25) if name == "log" else (-60.0, 60.0)
    grid = np.geomspace(*span, 200_001) if name == "log" else np.linspace(*span, 400_001)
    ends = [*limits.get(name, ())]
    inside = grid[(grid > ends[0]) & (grid < ends[1])] if ends else grid
    table = encoder.encode(pd.DataFrame({name: [*inside, *ends], "poi": np.nan}), dtype=torch.float64)
    with torch.no_grad():
        value = law.log_prob(torch.tensor([[0.3, 0.0]], dtype=torch.float64), table.y, table.y_mask)
    density = (value + encoder.log_jacobian(table.y, table.y_mask)).exp().numpy()
    total = np.trapezoid(density[: len(inside)], inside) + density[len(inside) :].sum()
    assert total == pytest.approx(1.0, abs=2e-3)
    np.testing.assert_allclose(encoder.in_own_units(table.y)[:, 0], [*inside, *ends], rtol=1e-9, atol=1e-12)


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
    """Draws from the normal law of the scores come back in the shares in which the values were seen."""
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


def test_normal_scores_go_on_straight_beyond_the_ends_with_the_slope_of_the_outer_percents():
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


def test_normal_scaling_helps_where_columns_are_not_normal():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(0, 1, 600)})
    frame["y"] = (frame["x"] + rng.normal(0, 0.5, 600)) ** 3
    schema = Schema(["y"], {"x": "continuous"})
    nll = {}
    for scaling in ("standard", "normal"):
        model = CVAE(schema, scaling=scaling, **SMALL).fit(frame.head(400), max_epochs=60)
        nll[scaling] = model.score(frame.tail(200))["nll"]
        predicted = model.predict(frame.tail(200), interval=0.9)
        inside = (predicted["y_lower"] <= frame["y"].tail(200)) & (frame["y"].tail(200) <= predicted["y_upper"])
        assert 0.8 < inside.mean() <= 1.0
    assert nll["normal"] < nll["standard"] - 0.3


def test_bounds_hold_for_bent_columns_too():
    frame = visits()[["day", "log", "poi", "gau"]]
    schema = Schema(
        {"log": "lognormal", "poi": "poisson", "gau": "gaussian"}, {"day": "continuous"},
        bounds={"log": (None, 500), "gau": (-2, 9)}, integers=["log"],
    )  # fmt: skip
    kept = frame.assign(log=np.rint(frame["log"]).clip(1, 500))
    model = CVAE(schema, scaling="normal", **SMALL).fit(kept, max_epochs=1)
    drawn = model.sample(kept, draws=40)
    assert drawn["log"].max() <= 500
    assert (drawn["log"] % 1 == 0).all()
    assert drawn["gau"].between(-2, 9).all()


def test_levels_of_intercepts_belong_to_gaussian_columns_only(model):
    """What is not Gaussian does not move a patient's level."""
    vae, table = model._vae, model._encode(visits())
    batch = Batches(table).batch(torch.arange(len(table.labels)))
    outputs = torch.zeros(1, len(table), vae.measurements.output_width)
    with torch.no_grad():
        before = vae.random_effects.expect(*vae.gaussian_part(outputs, batch))
        y = batch.y.clone()
        y[:, 2:] = 1.0
        after = vae.random_effects.expect(*vae.gaussian_part(outputs, replace(batch, y=y)))
    assert torch.equal(before, after)
    assert isinstance(vae.random_effects, RandomIntercepts)
