"""Effects of components, on small trials whose effects are known."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import lacova
from lacova.data.batches import Batches
from lacova.inference.effects import _random_effects, _RowVariance
from tests.inference.cases import TRIAL, gappy, generator, mixed_trial, trial
from tests.tables import VISITS, visits

# Variance by component: 2 sin(day), 2·arm, dose; patients' random effects; noise.
KNOWN = {
    "trend": {"gp(day)": 2.0, "patient effect": 0.09, "noise": 0.09},
    "response": {"cat(arm)": 1.0, "gp(dose)": 1 / 3, "patient effect": 0.09, "noise": 0.09},
    "baseline": {"patient effect": 4.0, "noise": 1.0},
}
# Differences between the arms of `mixed_trial`.
DIFFERENCES = {
    "crp": np.exp(2.5 + 0.3 / 2 + 0.09 / 2) - np.exp(2.0 + 0.3 / 2 + 0.09 / 2), "falls": 4.0, "ill_p_yes": 0.5,
}  # fmt: skip


@pytest.fixture(scope="module")
def effects(model):
    return model.effects(gappy(trial()), draws=60, seed=1)


def of(effects, component, measurement):
    """Return the lines of one component and measurement, by row."""
    rows = effects.rows
    return rows[(rows["component"] == component) & (rows["measurement"] == measurement)].set_index("row")


def test_shares_of_variance_are_the_known_ones(effects):
    shares = effects.shares.set_index("component")
    assert list(shares.index) == [
        "gp(day)", "gp(dose)", "cat(arm)", "cat(id)", "patient effect", "visit", "noise",
    ]  # fmt: skip
    np.testing.assert_allclose(shares.sum(), 1.0)
    for measurement, known in KNOWN.items():
        truth = pd.Series(known) / sum(known.values())
        share = shares[measurement]
        assert share.nlargest(1).index[0] == truth.idxmax()
        np.testing.assert_allclose(share.reindex(truth.index), truth, atol=0.12)
        assert share.drop(truth.index).max() < 0.1
    assert list(shares["response"].nlargest(2).index) == ["cat(arm)", "gp(dose)"]


def test_what_is_known_of_a_share(effects):
    shares, known = (table.set_index("component") for table in (effects.shares, effects.known))
    assert list(known.index) == list(shares.index)[:-2]  # not of visit and noise
    assert (known <= shares.loc[known.index] + 0.01).all().all()
    for component, measurement in (("gp(day)", "trend"), ("cat(arm)", "response"), ("patient effect", "baseline")):
        assert known.loc[component, measurement] > 0.85 * shares.loc[component, measurement]
    absent = known.loc[["gp(day)", "gp(dose)", "cat(arm)", "cat(id)"], "baseline"]
    assert absent.max() < 0.02
    absent = absent.drop("cat(arm)")  # the arms of 80 patients differ by chance
    assert absent.sum() < 0.6 * shares.loc[absent.index, "baseline"].sum()  # much of it is posterior uncertainty
    arm = of(effects, "cat(arm)", "baseline").join(trial()["arm"]).groupby("arm")[["mean", "sd"]].mean()
    assert abs(arm["mean"].diff().iloc[1]) < 2 * arm["sd"].pow(2).sum() ** 0.5


def test_the_variance_of_the_posterior_mean_is_the_covariance_of_two_draws():
    draws, rows = 5, 30
    effects = torch.randn(draws, rows, 2, 3, dtype=torch.float64) + torch.randn(rows, 2, 3, dtype=torch.float64)
    variance = _RowVariance()
    for part in effects.split(11, dim=1):
        variance.add(part)
    of_mean, within = variance.of_mean(), variance.within_draws()
    for r in range(2):
        for d in range(3):
            covariance = np.cov(effects[:, :, r, d].numpy())
            assert float(within[r, d]) == pytest.approx(np.trace(covariance) / draws, rel=1e-8)
            pairs = (covariance.sum() - np.trace(covariance)) / (draws * (draws - 1))
            assert float(of_mean[r, d]) == pytest.approx(max(pairs, 0.0), rel=1e-8)
    single = _RowVariance()
    single.add(effects[:1])
    assert single.of_mean().isnan().all()


def test_effects_have_the_shape_and_size_of_the_truth(effects):
    table = trial()
    day, dose = of(effects, "gp(day)", "trend"), of(effects, "gp(dose)", "response")
    assert np.corrcoef(day["mean"], np.sin(table["day"]))[0, 1] > 0.97
    assert np.polyfit(2 * np.sin(table["day"]), day["mean"], 1)[0] == pytest.approx(1.0, abs=0.15)
    observed = gappy(table)["dose"].notna()
    assert np.polyfit(table["dose"][observed], dose["mean"][observed], 1)[0] == pytest.approx(1.0, abs=0.3)
    arm = of(effects, "cat(arm)", "response").groupby("id", sort=False)["mean"].mean()
    by_arm = arm.groupby(table.groupby("id", sort=False)["arm"].first()).mean()
    assert by_arm["b"] - by_arm["a"] == pytest.approx(2.0, abs=0.3)
    for rows in (day, dose):
        assert ((rows["lower"] < rows["mean"]) & (rows["mean"] < rows["upper"])).all()
        assert (rows["sd"] > 0).all()
    patient = of(effects, "patient effect", "baseline")
    own = table.groupby("id")["baseline"].mean()
    assert np.corrcoef(patient.groupby("id")["mean"].mean(), own)[0, 1] > 0.97
    assert patient.groupby("id")["mean"].std().max() < 1e-5  # rounding: sums over draws


def test_a_grid_without_measurements(model):
    grid = pd.DataFrame({"id": "nobody", "day": np.linspace(0, 5, 30), "dose": 0.0, "arm": "a"})
    effects = model.effects(grid, draws=100)
    curve = of(effects, "gp(day)", "trend")["mean"]
    assert np.corrcoef(curve, np.sin(grid["day"]))[0, 1] > 0.97
    encoder, vae = model.fitted()
    batch = Batches(model.encode(grid, measurements=False)).batch(torch.arange(1))
    sd = float(vae.random_effects.variance(batch).detach()[:, 2].sqrt().mean()) * encoder.y_scale[2]
    assert of(effects, "patient effect", "baseline")["sd"].mean() == pytest.approx(sd, rel=0.2)
    assert np.isnan(model.effects(grid.head(1), draws=2).shares.drop(columns="component")).all().all()


def test_with_a_linear_decoder_effects_add_up_to_the_prediction():
    linear = lacova.GPPriorVAE(
        TRIAL, prior="gp(day) + cat(arm) + cat(id)", latent_dim=2, inducing=8, networks=lacova.Dense((8,), ())
    )
    table, draws = gappy(trial(12)), 400
    encoder, vae = linear.fit(table, max_epochs=20, learning_rate=0.02, device="cpu").fitted()
    lines = linear.effects(table, draws=draws).rows.groupby(["row", "measurement"])
    added, error = (lines[name].sum().unstack()[list(TRIAL.measurements)] for name in ("mean", "sd"))
    at_zero = encoder.decode_measurements(vae.decode(torch.zeros(1, 2), torch.zeros(1, 3)))[0]
    x = table.drop(columns=list(TRIAL.measurements))
    predicted = linear.predict(x, history=table, draws=draws, seed=1)
    gap = (added + at_zero - predicted).abs()
    assert (gap < 5 * error * (2 / draws) ** 0.5).all().all()
    assert added.std().min() > 5 * gap.stack().quantile(0.5)  # effects are not all near 0


def test_results_are_in_the_callers_library_and_reproducible(model):
    table = gappy(trial(6))
    polars, pandas = model.effects(pl.from_pandas(table), draws=4, seed=5), model.effects(table, draws=4, seed=5)
    assert isinstance(polars.rows, pl.DataFrame)
    assert isinstance(polars.shares, pl.DataFrame)
    assert isinstance(polars.known, pl.DataFrame)
    np.testing.assert_array_equal(polars.rows["mean"].to_numpy(), pandas.rows["mean"].to_numpy())
    assert list(pandas.rows) == ["row", "id", "component", "measurement", "mean", "sd", "lower", "upper"]
    assert len(pandas.rows) == len(table) * 5 * 3
    assert not pandas.rows["mean"].equals(model.effects(table, draws=4, seed=6).rows["mean"])


def test_batches_of_few_rows_change_nothing_but_random_numbers(model, monkeypatch):
    """Variances are added up part by part."""
    table = gappy(trial(20))
    at_once = model.effects(table, draws=60, seed=0)
    assert len(list(Batches(model.encode(table)).in_order())) == 1
    monkeypatch.setattr("lacova.inference.draws.CHUNK", 100_000)
    parts = model.effects(table, draws=60, seed=0)
    np.testing.assert_allclose(
        at_once.shares.drop(columns="component"), parts.shares.drop(columns="component"), atol=0.03
    )
    assert np.corrcoef(at_once.rows["mean"], parts.rows["mean"])[0, 1] > 0.98


def test_bad_arguments_are_refused(model, tmp_path):
    table = trial(4)
    for call in (model.effects, model.filter, lambda data, **k: model.what_if(data, {"arm": "b"}, **k)):
        with pytest.raises(ValueError, match="interval must lie between 0 and 1"):
            call(table, interval=90)
        with pytest.raises(ValueError, match="got None"):
            call(table, interval=None)
        with pytest.raises(ValueError, match="draws must be a whole number"):
            call(table, draws=0)
        with pytest.raises(ValueError, match="takes a table in memory"):
            call(tmp_path)
    named = lacova.Schema(["trend"], {"day": "continuous"}, instance="component")
    other = lacova.GPPriorVAE(named, latent_dim=1, inducing=4, networks=lacova.Dense((4,), (4,)))
    renamed = table.rename(columns={"id": "component"})
    other.fit(renamed, max_epochs=1, device="cpu")
    with pytest.raises(lacova.DataError, match="a column 'component' of its own; rename"):
        other.effects(renamed, draws=2)


def test_effects_find_known_differences_of_every_kind(mixed_model):
    table = mixed_trial()
    effects = mixed_model.effects(table, draws=60)
    rows = effects.rows[effects.rows["component"] == "cat(arm)"]
    arm = table["arm"].loc[rows["row"]].to_numpy()
    by_arm = rows.groupby(["measurement", arm])["mean"].mean().unstack()
    # An effect is the change without the component, at one arm's values of the others: not all of the difference.
    for name, truth in DIFFERENCES.items():
        assert by_arm.loc[name, "b"] - by_arm.loc[name, "a"] == pytest.approx(truth, rel=0.35), name
    shares = effects.shares.set_index("component")
    np.testing.assert_allclose(shares.sum(), 1.0)
    assert shares.loc["noise", "ill_p_yes"] == pytest.approx(0.75, abs=0.08)  # p(1 − p) of p = ¼, ¾, of ¼ in all
    assert shares.loc["noise", "falls"] == pytest.approx(0.5, abs=0.1)  # mean 4, and variance 4 between arms
    assert shares.loc["patient effect", ["falls", "ill_p_yes"]].max() == 0.0
    patient = effects.rows.query("component == 'patient effect' and measurement == 'crp'")["mean"].to_numpy()
    own = np.log(table["crp"]) - np.where(table["arm"] == "b", 2.5, 2.0)
    assert np.corrcoef(patient, own.groupby(table["id"]).transform("mean"))[0, 1] > 0.9


def test_the_fixed_part_is_split_between_components():
    """With two covariates in one product, or one in two components, each coefficient belongs to one component."""
    for prior, components in (
        ("gp(day) + gp(age):cat(sex) + cat(id)", {1}),
        ("gp(day):cat(sex) + gp(age):cat(sex) + cat(sex) + cat(id)", {1, 2}),
    ):
        table = visits(10)
        fitted = lacova.GPPriorVAE(VISITS, prior=prior, latent_dim=1, inducing=4).fit(table, max_epochs=1)
        _, vae = fitted.fitted()
        fixed_effects, g = vae.random_effects.fixed_effects, generator(1)
        with torch.no_grad():
            fixed_effects.mean.normal_(generator=generator())
            rows = Batches(fitted.encode(table)).batch(torch.arange(10))
            x, w = vae.draw_covariates(rows, 5, g), vae.draw_coefficients(5, g)
            _, fixed = _random_effects(vae, rows, x, w, g)
            assert set(fixed) == components
            torch.testing.assert_close(sum(fixed.values()), fixed_effects.at(x, rows, w).mean)
