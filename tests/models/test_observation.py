"""Models of columns of every kind: imputation, prediction, scores, files, and scales with their Jacobians."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import lacova
from lacova import CVAE, DataError, Dense, GPPriorVAE, Schema
from lacova.data.batches import Batches
from lacova.data.table_encoder import TableEncoder
from lacova.inference.objective import elbo
from lacova.likelihoods.likelihood import Likelihood
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
    """Return visits with nine measurements of one quantity, one of each kind."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(patients), times)
    rows = len(patient)
    day = np.tile(np.arange(float(times)), patients)
    z = np.sin(day) + rng.normal(0, 1, patients)[patient]
    scores = np.stack([2 * z, 0 * z, -2 * z], 1) + rng.gumbel(size=(rows, 3))
    return pd.DataFrame(
        {
            "id": patient, "day": day, "sex": np.array(["f", "m"], dtype=object)[patient % 2],
            "gau": 3 + z + rng.normal(0, 0.3, rows),
            "log": np.exp(2 + 0.8 * z + rng.normal(0, 0.3, rows)),
            "stu": z + 0.3 * rng.standard_t(3, rows),
            "cen": np.clip(z + rng.normal(0, 0.3, rows), -0.5, 2.0),
            "poi": rng.poisson(np.exp(0.5 + 0.6 * z)).astype(float),
            "neg": rng.negative_binomial(2, 2 / (2 + np.exp(1 + 0.5 * z))).astype(float),
            "ber": np.where(rng.random(rows) < 1 / (1 + np.exp(-3 * z)), "yes", "no").astype(object),
            "cat": np.array(["a", "b", "c"], dtype=object)[scores.argmax(1)],
            "ord": np.digitize(z + rng.logistic(0, 0.3, rows), [-1, 0, 1]).astype(float),
        }
    )  # fmt: skip


def with_gaps(frame, share=0.25):
    """Remove a share of each measurement's entries."""
    rng = np.random.default_rng(1)
    table = frame.copy()
    for name in KINDS:
        table[name] = table[name].mask(rng.random(len(frame)) < share)
    return table


@pytest.fixture(scope="module")
def model():
    return GPPriorVAE(SCHEMA, inducing=8, **SMALL).fit(with_gaps(visits()), max_epochs=100)


@pytest.fixture(scope="module")
def normal():
    return CVAE(SCHEMA, scaling="normal", **SMALL).fit(with_gaps(visits()), max_epochs=8)


# Imputation.


def test_every_kind_is_imputed_better_than_by_a_constant(model):
    truth, given = visits(), with_gaps(visits())
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
    given = with_gaps(visits())
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
    given = with_gaps(visits())
    done = model.impute(given, probabilities=True)
    drawn = model.impute(given, draws=150, seed=3)
    for name, levels in {"ber": ("no", "yes"), "cat": ("a", "b", "c"), "ord": (0.0, 1.0, 2.0, 3.0)}.items():
        probs = done[[f"{name}_p_{level}" for level in levels]].to_numpy()
        np.testing.assert_allclose(probs.sum(1), 1.0, atol=1e-5)
        gaps = given[name].isna().to_numpy()
        most = np.array(levels, dtype=object)[probs.argmax(1)]
        assert (most[gaps] == done[name][gaps]).all()
        assert (probs[~gaps].max(1) == 1.0).all()
        assert (most[~gaps] == given[name][~gaps]).all()
        for k, level in enumerate(levels):
            share = (drawn[name] == level).to_numpy().reshape(150, -1).mean(0)
            assert np.abs(share - probs[:, k])[gaps].max() < 0.3
            assert np.abs(share - probs[:, k])[gaps].mean() < 0.06
    assert "sex_p_f" not in done.columns


def test_intervals_are_of_numbers_in_their_own_units(model):
    given = with_gaps(visits())
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
    predicted = model.predict(x, draws=1000, interval=0.8, probabilities=True)
    for name in NUMBERS:
        values = draws[name].to_numpy().reshape(1000, -1)
        np.testing.assert_allclose(predicted[name], values.mean(0), atol=6 * values.std(0).max() / math.sqrt(1000))
        near = np.quantile(values, 0.1, axis=0)
        assert np.abs(predicted[f"{name}_lower"] - near).max() < 0.25 * values.std(0).max() + (name in ("poi", "neg"))
    for name, levels in {"ber": ("no", "yes"), "cat": ("a", "b", "c"), "ord": (0.0, 1.0, 2.0, 3.0)}.items():
        probs = predicted[[f"{name}_p_{level}" for level in levels]].to_numpy()
        shares = np.stack([(draws[name] == level).to_numpy().reshape(1000, -1).mean(0) for level in levels], 1)
        assert np.abs(probs - shares).max() < 0.08
        assert predicted[name].tolist() == [levels[k] for k in probs.argmax(1)]
    assert list(model.predict(x).columns) == list(KINDS)


def test_predictions_of_counts_are_means_and_draws_are_whole(model):
    x = visits()[["id", "day", "sex"]].head(10)
    assert (model.predict(x)["poi"] % 1 != 0).any()
    assert (model.sample(x)[["poi", "neg"]] % 1 == 0).all().all()


@pytest.mark.parametrize("which", ["model", "normal"])
def test_scores_are_those_of_the_draws(which, request):
    """Draws of the public interface, scored by plain loops in own units, give the same scores."""
    fitted, frame = request.getfixturevalue(which), visits()
    scores = fitted.score(frame, columns=True, draws=60, seed=4)
    draws = fitted.sample(frame, draws=60, seed=4)
    predicted = fitted.predict(frame, draws=60, seed=4, probabilities=True)
    for name in NUMBERS:
        values, truth = draws[name].to_numpy().reshape(60, -1), frame[name].to_numpy()
        mean = predicted[name].to_numpy()
        if name == "cen":
            values = np.clip(values, *LIMITS["cen"])
            mean = values.mean(0)
        assert scores.loc[name, "rmse"] == pytest.approx(np.sqrt(np.mean((mean - truth) ** 2)), rel=1e-4)
        pairs = np.abs(values[:, None] - values[None]).sum((0, 1)) / (60 * 59)
        assert scores.loc[name, "crps"] == pytest.approx(np.mean(np.abs(values - truth).mean(0) - pairs / 2), rel=1e-3)
        low, high = np.quantile(values, [0.05, 0.95], axis=0, method="weibull")
        slack = 1e-5
        assert scores.loc[name, "coverage90"] == pytest.approx(
            np.mean((low <= truth + slack) & (truth - slack <= high)), abs=0.005
        )
    for name in ("ber", "cat", "ord"):
        levels = fitted.encoder.levels[name]
        probs = predicted[[f"{name}_p_{level}" for level in levels]].to_numpy()
        hit = np.stack([frame[name] == level for level in levels], 1)
        assert scores.loc[name, "accuracy"] == pytest.approx((predicted[name] == frame[name]).mean())
        assert scores.loc[name, "brier"] == pytest.approx(((probs - hit) ** 2).sum(1).mean(), rel=1e-4)
        assert scores.loc[name, "nll"] == pytest.approx(-np.log(probs[hit]).mean(), rel=1e-4)
    assert scores.loc[["ber", "cat", "ord"], ["rmse", "crps", "coverage90"]].isna().all().all()
    assert scores.loc[NUMBERS, ["accuracy", "brier"]].isna().all().all()
    overall = fitted.score(frame, draws=60, seed=4)
    assert overall["nll"] == pytest.approx(scores["nll"].sum())
    assert overall["accuracy"] == pytest.approx(scores["accuracy"].mean())
    spread = fitted.encoder.scales.spread[:6]
    assert overall["crps"] == pytest.approx((scores["crps"][:6] / spread).mean())


def test_nll_of_a_log_normal_column_is_in_its_own_units():
    """Without anything learnt, the density is that of a log-normal distribution with the moments of the data."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(0, 1, 200), "y": np.exp(rng.normal(5, 2, 200)), "n": rng.poisson(4, 200)})
    fitted = CVAE(Schema({"y": "lognormal", "n": "poisson"}, {"x": "continuous"}), **SMALL).fit(frame, max_epochs=1)
    with torch.no_grad():
        for parameter in fitted.vae.decoder.parameters():
            parameter.zero_()
        logs = np.log(frame["y"])
        fitted.vae.likelihood.families["gaussian"].raw.fill_(math.log(1 - 1e-4))
    lognormal = stats.lognorm(logs.std(ddof=0), scale=math.exp(logs.mean()))
    poisson = stats.poisson(frame["n"].mean())
    expected = {"y": -lognormal.logpdf(frame["y"]).mean(), "n": -poisson.logpmf(frame["n"]).mean()}
    nll = fitted.score(frame, columns=True, draws=5)["nll"]
    assert nll["y"] == pytest.approx(expected["y"], rel=1e-4)
    assert nll["n"] == pytest.approx(expected["n"], rel=1e-3)
    both = fitted.log_likelihood(frame, draws=500)  # q is not the prior after an epoch: few draws fall short
    assert both.mean() == pytest.approx(-expected["y"] - expected["n"], rel=1e-3)


# What is refused.


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("log", 0.0, "column 'log' holds 0.0, but its kind is lognormal, for positive numbers; correct the values, "),
        ("poi", 1.5, "column 'poi' holds 1.5, but its kind is poisson, for whole numbers from 0 on; correct"),
        ("neg", -1.0, "column 'neg' holds -1.0, but its kind is negative_binomial, for whole numbers from 0 on;"),
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
        (
            {"y": "ordinal"},
            "ordinal measurement 'y' holds text ('a', 'b', 'c'), which has no order of its own; give its",
        ),
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
    assert fitted.encoder.levels["y"] == ("low", "mid", "top")
    assert fitted.predict(frame.assign(y=None))["y"].iloc[[0, -1]].tolist() == ["low", "top"]


# Random effects, the bound, files and streams.


def test_patients_have_random_effects_on_gaussian_and_log_normal_columns(model):
    assert model.vae.random_effects.var.shape == (2,)
    only = Schema({"ber": "bernoulli"}, {}, "id", "day")
    fitted = GPPriorVAE(only, inducing=4, **SMALL).fit(with_gaps(visits()), max_epochs=1)
    assert fitted.vae.random_effects is None
    later = visits().query("id == 0").tail(1)
    history = visits().query("id == 0").head(4)
    raised = history.assign(gau=history["gau"] + 5, log=history["log"] * 20)
    plain, moved = (model.predict(later, history=h, draws=400) for h in (history, raised))
    assert (moved["gau"] > plain["gau"] + 1).all()
    assert (moved["log"] > plain["log"] * 2).all()


def test_mixed_columns_that_are_all_gaussian_give_the_same_bound_and_answers():
    """The shortcut for tables of Gaussian columns alone gives the results of the general way."""
    frame = with_gaps(visits())
    schema = Schema(["gau", "stu"], {"sex": "categorical"}, "id", "day", ["sex"])
    fitted = GPPriorVAE(schema, inducing=5, **SMALL).fit(frame, max_epochs=2)
    vae = fitted.vae
    table = fitted.encode(frame)
    batch = Batches(table).batch(torch.arange(len(table.labels)))

    def answers():
        generator = torch.Generator().manual_seed(0)
        terms = elbo(vae, batch, generator)
        location = torch.randn(3, len(table), 2, generator=generator)
        y = vae.observe(location, batch, generator)
        return terms.elbo, terms.reconstruction, y.mean, y.var.expand(3, len(table), 2), y.y

    with torch.no_grad():
        expected = answers()
        short, general = vae.likelihood, replace(vae.measurements)
        vars(general)["plain"] = False  # as if there were other families
        vae.likelihood = Likelihood(general)
        vae.likelihood.set_noise_variance(short.noise_variance)
        for a, b in zip(answers(), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_every_kind_comes_back_from_a_file(model, normal, tmp_path):
    for k, fitted in enumerate((model, normal)):
        fitted.save(tmp_path / f"{k}")
        again = lacova.load(tmp_path / f"{k}")
        assert again.schema == fitted.schema
        assert again.schema.kinds == {name: kind for name, kind in KINDS.items() if kind != "gaussian"}
        given = with_gaps(visits())
        assert again.impute(given, interval=0.9).equals(fitted.impute(given, interval=0.9))
        assert again.score(given) == fitted.score(given)
        assert "log (lognormal)" in again.describe()


def test_a_stream_learns_the_same_as_the_table(tmp_path):
    frame = with_gaps(visits())
    frame.to_parquet(tmp_path / "t.parquet")
    for scaling in ("standard", "normal"):
        model = CVAE(SCHEMA, scaling=scaling, **SMALL)
        streamed = CVAE(SCHEMA, scaling=scaling, **SMALL).fit(tmp_path / "t.parquet", max_epochs=2)
        assert streamed.predict(frame, draws=5).equals(model.fit(frame, max_epochs=2).predict(frame, draws=5))


# Scales.


@pytest.mark.parametrize("scaling", ["standard", "normal", "minmax"])
@pytest.mark.parametrize("name", NUMBERS[:4])
def test_densities_in_own_units_integrate_to_1(scaling, name):
    """With the Jacobian of the logarithm, of scaling and of normal scores, and the probabilities at limits."""
    frame = visits()
    limits = {k: v for k, v in LIMITS.items() if k == name}
    encoder = TableEncoder.learn(Schema({name: KINDS[name], "poi": "poisson"}, {}, limits=limits), frame, scaling)
    likelihood = Likelihood(encoder.measurements).double()
    span = (1e-25, 1e25) if name == "log" else (-60.0, 60.0)
    grid = np.geomspace(*span, 200_001) if name == "log" else np.linspace(*span, 400_001)
    ends = [*limits.get(name, ())]
    inside = grid[(grid > ends[0]) & (grid < ends[1])] if ends else grid
    table = encoder.encode(pd.DataFrame({name: [*inside, *ends], "poi": np.nan}), dtype=torch.float64)
    with torch.no_grad():
        value = likelihood.log_prob(torch.tensor([[0.3, 0.0]], dtype=torch.float64), table.y, table.y_mask)
    density = (value + encoder.log_jacobian(table.y, table.y_mask)).exp().numpy()
    total = np.trapezoid(density[: len(inside)], inside) + density[len(inside) :].sum()
    assert total == pytest.approx(1.0, abs=2e-3)
    np.testing.assert_allclose(encoder.in_own_units(table.y)[:, 0], [*inside, *ends], rtol=1e-9, atol=1e-12)


def test_normal_scaling_helps_where_columns_are_not_normal():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(0, 1, 600)})
    frame["y"] = (frame["x"] + rng.normal(0, 0.5, 600)) ** 3
    schema = Schema(["y"], {"x": "continuous"})
    nll = {}
    for scaling in ("standard", "normal"):
        model = CVAE(schema, scaling=scaling, **SMALL).fit(frame.head(400), max_epochs=30)
        nll[scaling] = model.score(frame.tail(200))["nll"]
        predicted = model.predict(frame.tail(200), interval=0.9)
        inside = (predicted["y_lower"] <= frame["y"].tail(200)) & (frame["y"].tail(200) <= predicted["y_upper"])
        assert 0.8 < inside.mean() <= 1.0
    assert nll["normal"] < nll["standard"] - 0.3


def test_bounds_hold_for_columns_with_normal_scores_too():
    frame = visits()[["day", "log", "poi", "gau"]]
    schema = Schema(
        {"log": "lognormal", "poi": "poisson", "gau": "gaussian"}, {"day": "continuous"},
        bounds={"log": (None, 500), "gau": (-2, 9)}, integers=["log"],
    )  # fmt: skip
    table = frame.assign(log=np.rint(frame["log"]).clip(1, 500))
    model = CVAE(schema, scaling="normal", **SMALL).fit(table, max_epochs=1)
    drawn = model.sample(table, draws=40)
    assert drawn["log"].max() <= 500
    assert (drawn["log"] % 1 == 0).all()
    assert drawn["gau"].between(-2, 9).all()


def test_random_effects_belong_to_gaussian_columns_only(model):
    """Columns that are not Gaussian do not move a patient's random effects."""
    vae, table = model.vae, model.encode(visits())
    batch = Batches(table).batch(torch.arange(len(table.labels)))
    outputs = torch.zeros(1, len(table), vae.measurements.output_width)
    with torch.no_grad():
        before = vae.random_effects.expect(*vae.likelihood.gaussian_part(outputs, batch))
        y = batch.y.clone()
        y[:, 2:] = 1.0
        after = vae.random_effects.expect(*vae.likelihood.gaussian_part(outputs, replace(batch, y=y)))
    assert torch.equal(before, after)
    assert isinstance(vae.random_effects, RandomIntercepts)
