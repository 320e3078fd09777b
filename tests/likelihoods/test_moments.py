"""Means and variances of measurements in their own units, against draws; and known effects on them."""

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.data.encoder import TableEncoder
from lacova.data.statistics import ColumnStatistics
from lacova.likelihoods.mixed import learn
from lacova.likelihoods.moments import Moments

KINDS = {
    "gau": "gaussian", "log": "lognormal", "stu": "student", "poi": "poisson", "neg": "negative_binomial",
    "ber": "bernoulli", "cat": "categorical", "ord": "ordinal",
}  # fmt: skip


def measured(rows=400):
    rng = np.random.default_rng(0)
    return pd.DataFrame({
        "day": rng.normal(size=rows),
        "gau": rng.normal(50, 7, rows),
        "log": np.exp(rng.normal(2, 0.6, rows)),
        "stu": rng.standard_t(8, rows) + 3,
        "poi": rng.poisson(3.0, rows).astype(float),
        "neg": rng.negative_binomial(2, 0.3, rows).astype(float),
        "ber": rng.choice(["no", "yes"], rows, p=[0.7, 0.3]),
        "cat": rng.choice(["a", "b", "c"], rows),
        "ord": rng.integers(0, 4, rows).astype(float),
    })  # fmt: skip


def made(kinds, scaling="standard"):
    schema, table = lacova.Schema(kinds, {"day": "continuous"}), measured()
    statistics = ColumnStatistics(schema)
    statistics.add(table)
    encoder = TableEncoder.from_statistics(statistics, scaling, table)
    return encoder, learn(encoder.measurements, encoder.encode(table))


@pytest.mark.parametrize(
    ("kinds", "scaling"),
    [(KINDS, "standard"), ({"gau": "gaussian", "log": "gaussian"}, "standard"),
     ({"gau": "gaussian", "log": "gaussian"}, "normal"), ({"log": "gaussian", "poi": "poisson"}, "normal")],
)  # fmt: skip
def test_moments_are_those_of_draws(kinds, scaling):
    encoder, likelihood = made(kinds, scaling)
    generator = torch.Generator().manual_seed(1)
    outputs = 0.5 * torch.randn(6, encoder.measurements.output_width, generator=generator)
    moments = Moments(encoder, likelihood)
    mean, var = moments(outputs)
    with torch.no_grad():
        y = likelihood.sample(outputs.expand(100_000, -1, -1), generator)
    own = encoder.in_own_units(y)
    columns = []
    for d, name in enumerate(kinds):
        levels = encoder.levels.get(name)
        columns += [own[..., d]] if levels is None else [own[..., d] == k for k in range(len(levels))]
    drawn = np.stack(columns, -1).astype(float)
    error = drawn.std(0) / len(drawn) ** 0.5 + (0.004 * drawn.std(0) if scaling == "normal" else 0.0)  # of quadrature
    assert moments.names[0] == next(iter(kinds))
    np.testing.assert_array_less(np.abs(drawn.mean(0) - mean.numpy()), 5 * error)
    np.testing.assert_allclose(var.numpy(), drawn.var(0), rtol=0.06)  # of 100,000 draws, of heavy tails too


def test_levels_have_a_name_each():
    encoder, likelihood = made(KINDS)
    names = Moments(encoder, likelihood).names
    assert names[:5] == ("gau", "log", "stu", "poi", "neg")
    assert names[5:10] == ("ber_p_no", "ber_p_yes", "cat_p_a", "cat_p_b", "cat_p_c")
    assert len(names) == 14


def test_variance_beside_the_noise_raises_the_mean_of_a_logarithm_alone():
    encoder, likelihood = made({"gau": "gaussian", "log": "lognormal"})
    moments, outputs = Moments(encoder, likelihood), torch.zeros(1, 2)
    once, more = moments(outputs)[0], moments(outputs, likelihood.var + 1.0)[0]
    assert more[0, 0] == once[0, 0]
    assert float(more[0, 1] / once[0, 1]) == pytest.approx(np.exp(encoder.y_scale[1] ** 2 / 2), rel=1e-6)


# Known effects of an arm, half of the patients in each.

TRUTH = {"crp": np.exp(2.5 + 0.3 / 2 + 0.09 / 2) - np.exp(2.0 + 0.3 / 2 + 0.09 / 2), "falls": 4.0, "ill_p_yes": 0.5}


def trial(patients=150, visits=3, seed=0):
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), visits)
    table = pd.DataFrame({"id": who, "day": np.tile(np.arange(float(visits)), patients)})
    treated = who % 2 == 1
    table["arm"] = np.where(treated, "b", "a")
    own = rng.normal(0, np.sqrt(0.3), patients)[who]
    table["crp"] = np.exp(2.0 + 0.5 * treated + own + rng.normal(0, 0.3, len(who)))
    table["falls"] = rng.poisson(2.0 + 4.0 * treated).astype(float)
    table["ill"] = np.where(rng.random(len(who)) < np.where(treated, 0.75, 0.25), "yes", "no")
    return table


@pytest.fixture(scope="module")
def model():
    kinds = {"crp": "lognormal", "falls": "poisson", "ill": "bernoulli"}
    schema = lacova.Schema(
        kinds, {"day": "continuous", "arm": "categorical"}, instance="id", time="day", static=["arm"]
    )
    networks = lacova.Dense((16,), ())
    parts = {"prior": "gp(day) + cat(arm)", "networks": networks, "patient_effects": "level"}
    fitted = lacova.GPPriorVAE(schema, latent_dim=2, inducing=8, **parts)
    return fitted.fit(trial(), max_epochs=50, batch_size=20, learning_rate=0.03, device="cpu")


def test_what_if_finds_known_differences_of_every_kind(model):
    untreated = trial(seed=1).query("arm == 'a'")
    found = model.what_if(untreated, {"arm": "b"}, draws=200)
    average = found.average.set_index("measurement")
    assert list(average.index) == ["crp", "falls", "ill_p_no", "ill_p_yes"]
    for name, truth in TRUTH.items():
        assert average.loc[name, "difference"] == pytest.approx(truth, rel=0.2), name
    assert average.loc["ill_p_no", "difference"] == pytest.approx(-average.loc["ill_p_yes", "difference"], rel=1e-9)
    np.testing.assert_allclose(average["what_if"] - average["as_is"], average["difference"], rtol=1e-6)
    rows = found.rows.set_index("measurement")
    assert (rows.loc["crp", "as_is_lower"] > 0).all()
    assert rows.loc["ill_p_yes", ["as_is_lower", "as_is_upper"]].stack().between(0, 1).all()
    predicted = model.predict(untreated, draws=400, probabilities=True)
    assert rows.loc["crp", "as_is"].mean() == pytest.approx(predicted["crp"].mean(), rel=0.04)  # Monte Carlo error
    np.testing.assert_allclose(rows.loc["ill_p_yes", "as_is"], predicted["ill_p_yes"], atol=0.05)
    same = model.what_if(untreated, {"arm": "a"}, draws=20).rows
    assert (same["difference"] == 0.0).all()


def test_effects_find_known_differences_of_every_kind(model):
    table = trial()
    found = model.effects(table, draws=60)
    rows = found.rows[found.rows["component"] == "cat(arm)"]
    arm = table["arm"].loc[rows["row"]].to_numpy()
    by_arm = rows.groupby(["measurement", arm])["mean"].mean().unstack()
    # An effect is what its absence would change: at one arm's level of the other components, so not all of the truth.
    for name, truth in TRUTH.items():
        assert by_arm.loc[name, "b"] - by_arm.loc[name, "a"] == pytest.approx(truth, rel=0.35), name
    shares = found.shares.set_index("component")
    np.testing.assert_allclose(shares.sum(), 1.0)
    assert shares.loc["noise", "ill_p_yes"] == pytest.approx(0.75, abs=0.08)  # p(1 − p) of p = ¼, ¾, of ¼ in all
    assert shares.loc["noise", "falls"] == pytest.approx(0.5, abs=0.1)  # mean 4, and variance 4 between arms
    assert shares.loc["patient effect", ["falls", "ill_p_yes"]].max() == 0.0
    level = found.rows.query("component == 'patient level' and measurement == 'crp'")["mean"].to_numpy()
    own = np.log(table["crp"]) - np.where(table["arm"] == "b", 2.5, 2.0)
    assert np.corrcoef(level, own.groupby(table["id"]).transform("mean"))[0, 1] > 0.9
