"""Effects of components, what-if questions and filtering, on a small trial whose effects are known."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import lacova
from lacova.data.batches import Batches
from lacova.inference.long_form import summary
from lacova.inference.predict import paired_draws

SCHEMA = lacova.Schema(
    ["trend", "response", "level"], {"day": "continuous", "dose": "continuous", "arm": "categorical"}, instance="id",
    time="day", static=["arm"],
)  # fmt: skip
# Variance by component: 2 sin(day), 2·arm, dose; patients' own levels; noise.
KNOWN = {
    "trend": {"gp(day)": 2.0, "patient effect": 0.09, "noise": 0.09},
    "response": {"cat(arm)": 1.0, "gp(dose)": 1 / 3, "patient effect": 0.09, "noise": 0.09},
    "level": {"patient effect": 4.0, "noise": 1.0},
}


def trial(patients=80, visits=6, seed=0):
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), visits)
    n = len(patient)
    own = rng.normal(size=(patients, 3))[patient]
    table = pd.DataFrame({
        "id": [f"p{p}" for p in patient],
        "day": np.tile(np.arange(visits, dtype=float), patients) + rng.uniform(-0.3, 0.3, n),
        "dose": rng.uniform(-1, 1, n),
        "arm": np.where(patient % 2, "a", "b"),
    })  # fmt: skip
    table["trend"] = 2 * np.sin(table["day"]) + 0.3 * own[:, 0] + rng.normal(0, 0.3, n)
    table["response"] = 2.0 * (table["arm"] == "b") + table["dose"] + 0.3 * own[:, 1] + rng.normal(0, 0.3, n)
    table["level"] = 2.0 * own[:, 2] + rng.normal(0, 1.0, n)
    return table


def gappy(table, share=0.15, seed=3):
    rng = np.random.default_rng(seed)
    columns = ["dose", *SCHEMA.measurements]
    holes = pd.DataFrame(rng.random((len(table), len(columns))) < share, table.index, columns)
    return table.assign(**{c: table[c].mask(holes[c]) for c in columns})


@pytest.fixture(scope="module")
def model():
    prior = "gp(day) + gp(dose) + cat(arm) + cat(id)"
    fitted = lacova.GPPriorVAE(SCHEMA, prior=prior, latent_dim=3, inducing=20, patient_effects="intercept")
    return fitted.fit(gappy(trial()), max_epochs=100, learning_rate=0.02, device="cpu")


@pytest.fixture(scope="module")
def effects(model):
    return model.effects(gappy(trial()), draws=60, seed=1)


def of(effects, component, measurement):
    rows = effects.rows
    return rows[(rows["component"] == component) & (rows["measurement"] == measurement)].set_index("row")


def test_what_explains_what_comes_out(effects):
    shares = effects.shares.set_index("component")
    assert list(shares.index) == [
        "gp(day)", "gp(dose)", "cat(arm)", "cat(id)", "patient effect", "visit", "noise",
    ]  # fmt: skip
    np.testing.assert_allclose(shares.sum(), 1.0)
    for measurement, known in KNOWN.items():
        truth = pd.Series(known) / sum(known.values())
        found = shares[measurement]
        assert found.nlargest(1).index[0] == truth.idxmax()
        np.testing.assert_allclose(found.reindex(truth.index), truth, atol=0.12)
        assert found.drop(truth.index).max() < 0.1
    assert list(shares["response"].nlargest(2).index) == ["cat(arm)", "gp(dose)"]


def test_what_is_known_of_a_share(effects):
    shares, known = (each.set_index("component") for each in (effects.shares, effects.known))
    assert list(known.index) == list(shares.index)[:-2]  # not of visit and noise
    assert (known <= shares.loc[known.index] + 0.01).all().all()
    for component, measurement in (("gp(day)", "trend"), ("cat(arm)", "response"), ("patient effect", "level")):
        assert known.loc[component, measurement] > 0.85 * shares.loc[component, measurement]
    nothing = known.loc[["gp(day)", "gp(dose)", "cat(arm)", "cat(id)"], "level"]
    assert nothing.max() < 0.02
    nothing = nothing.drop("cat(arm)")  # the arms of 80 patients differ by chance
    assert nothing.sum() < 0.5 * shares.loc[nothing.index, "level"].sum()  # most of which is what is not known
    arm = of(effects, "cat(arm)", "level").join(trial()["arm"]).groupby("arm")[["mean", "sd"]].mean()
    assert abs(arm["mean"].diff().iloc[1]) < 2 * arm["sd"].pow(2).sum() ** 0.5


def test_the_variance_of_the_posterior_mean_is_the_covariance_of_two_draws():
    from lacova.inference.effects import _Spread

    draws, rows = 5, 30
    effects = torch.randn(draws, rows, 2, 3, dtype=torch.float64) + torch.randn(rows, 2, 3, dtype=torch.float64)
    spread = _Spread()
    for part in effects.split(11, dim=1):
        spread.add(part)
    found, within = spread.known(), spread.variance()
    for r in range(2):
        for d in range(3):
            each = np.cov(effects[:, :, r, d].numpy())
            assert float(within[r, d]) == pytest.approx(np.trace(each) / draws, rel=1e-8)
            pairs = (each.sum() - np.trace(each)) / (draws * (draws - 1))
            assert float(found[r, d]) == pytest.approx(max(pairs, 0.0), rel=1e-8)
    one = _Spread()
    one.add(effects[:1])
    assert one.known().isnan().all()


def test_effects_have_the_shape_and_size_of_the_truth(effects):
    table = trial()
    day, dose = of(effects, "gp(day)", "trend"), of(effects, "gp(dose)", "response")
    assert np.corrcoef(day["mean"], np.sin(table["day"]))[0, 1] > 0.97
    assert np.polyfit(2 * np.sin(table["day"]), day["mean"], 1)[0] == pytest.approx(1.0, abs=0.15)
    seen = gappy(table)["dose"].notna()
    assert np.polyfit(table["dose"][seen], dose["mean"][seen], 1)[0] == pytest.approx(1.0, abs=0.3)
    arm = of(effects, "cat(arm)", "response").groupby("id", sort=False)["mean"].mean()
    by_arm = arm.groupby(table.groupby("id", sort=False)["arm"].first()).mean()
    assert by_arm["b"] - by_arm["a"] == pytest.approx(2.0, abs=0.3)
    for rows in (day, dose):
        assert ((rows["lower"] < rows["mean"]) & (rows["mean"] < rows["upper"])).all()
        assert (rows["sd"] > 0).all()
    level = of(effects, "patient effect", "level")
    own = table.groupby("id")["level"].mean()
    assert np.corrcoef(level.groupby("id")["mean"].mean(), own)[0, 1] > 0.97
    assert level.groupby("id")["mean"].std().max() < 1e-5  # rounding: sums over draws


def test_a_grid_without_measurements(model):
    grid = pd.DataFrame({"id": "nobody", "day": np.linspace(0, 5, 30), "dose": 0.0, "arm": "a"})
    found = model.effects(grid, draws=100)
    curve = of(found, "gp(day)", "trend")["mean"]
    assert np.corrcoef(curve, np.sin(grid["day"]))[0, 1] > 0.97
    own = of(found, "patient effect", "level")
    encoder, vae = model._fitted()
    assert own["sd"].mean() == pytest.approx(
        float(vae.random_effects.var[2].detach().sqrt()) * encoder.y_scale[2], rel=0.2
    )
    assert np.isnan(model.effects(grid.head(1), draws=2).shares.drop(columns="component")).all().all()


def test_with_a_linear_decoder_effects_add_up_to_the_prediction():
    straight = lacova.GPPriorVAE(
        SCHEMA, prior="gp(day) + cat(arm) + cat(id)", latent_dim=2, inducing=8, networks=lacova.Dense((8,), ())
    )
    table, draws = gappy(trial(12)), 400
    encoder, vae = straight.fit(table, max_epochs=20, learning_rate=0.02, device="cpu")._fitted()
    found = straight.effects(table, draws=draws).rows.groupby(["row", "measurement"])
    added, error = (found[name].sum().unstack()[list(SCHEMA.measurements)] for name in ("mean", "sd"))
    nothing = encoder.decode_measurements(vae.decode(torch.zeros(1, 2), torch.zeros(1, 3)))[0]
    x = table.drop(columns=list(SCHEMA.measurements))
    want = straight.predict(x, history=table, draws=draws, seed=1)
    gap = (added + nothing - want).abs()
    assert (gap < 5 * error * (2 / draws) ** 0.5).all().all()
    assert added.std().min() > 5 * gap.stack().quantile(0.5)  # not for want of effects


def test_results_are_in_the_callers_library_and_reproducible(model):
    table = gappy(trial(6))
    found = model.effects(pl.from_pandas(table), draws=4, seed=5)
    again = model.effects(table, draws=4, seed=5)
    assert isinstance(found.rows, pl.DataFrame)
    assert isinstance(found.shares, pl.DataFrame)
    assert isinstance(found.known, pl.DataFrame)
    np.testing.assert_array_equal(found.rows["mean"].to_numpy(), again.rows["mean"].to_numpy())
    assert list(again.rows) == ["row", "id", "component", "measurement", "mean", "sd", "lower", "upper"]
    assert len(again.rows) == len(table) * 5 * 3
    assert not again.rows["mean"].equals(model.effects(table, draws=4, seed=6).rows["mean"])


# What if.


@pytest.fixture(scope="module")
def cut():
    table = trial(30, seed=7)
    return table[table["day"] > 3.5], gappy(table[table["day"] <= 3.5])


def test_setting_what_is_already_so_changes_nothing_at_all(model, cut):
    x, history = cut
    found = model.what_if(x, {"arm": "b"}, history, draws=20, seed=2)
    rows = found.rows.merge(x[["arm"]], left_on="row", right_index=True)
    already = rows["arm"] == "b"
    for end in ("", "_lower", "_upper"):
        assert (rows.loc[already, f"difference{end}"] == 0.0).all()
        assert (rows.loc[already, f"as_is{end}"] == rows.loc[already, f"what_if{end}"]).all()
    assert (rows.loc[~already, "difference"] != 0.0).all()


def test_the_known_effect_comes_out_on_average(model, cut):
    x, history = cut
    found = model.what_if(x[x["arm"] == "a"], {"arm": "b"}, history, seed=2)
    mean = found.average.set_index("measurement")
    assert mean.loc["response", "difference"] == pytest.approx(2.0, abs=0.25)
    assert abs(mean.loc["trend", "difference"]) < 0.25
    response = found.rows[found.rows["measurement"] == "response"]
    assert (response["what_if"] - response["as_is"]).mean() == pytest.approx(response["difference"].mean(), rel=1e-4)
    assert mean.loc["response", "difference"] == pytest.approx(response["difference"].mean(), rel=1e-4)
    assert response["difference_lower"].lt(response["difference_upper"]).all()
    plain = model.predict(x[x["arm"] == "a"], history, draws=400, seed=2)
    np.testing.assert_allclose(response["as_is"], plain["response"], atol=0.15)


def test_kept_draws_are_what_the_summaries_are_made_of(model, cut, monkeypatch):
    x, history = cut
    assert model.what_if(x, {"arm": "b"}, history, draws=10, seed=2).draws is None
    monkeypatch.setattr("lacova.inference.predict.CHUNK", 3 * 40 * 20)  # some patients at a time
    found = model.what_if(x, {"arm": "b"}, history, draws=40, seed=2, interval=0.5, keep_draws=True)
    drawn = found.draws
    assert list(drawn) == [
        "draw", "row", "id", "measurement", "as_is", "what_if", "difference", "as_is_drawn", "what_if_drawn",
    ]  # fmt: skip
    assert drawn["draw"].tolist() == np.repeat(range(40), 3 * len(x)).tolist()
    assert drawn["row"].tolist() == np.tile(np.repeat(x.index, 3), 40).tolist()
    np.testing.assert_allclose(drawn["what_if"] - drawn["as_is"], drawn["difference"], atol=1e-9)
    by_row = drawn.groupby(["row", "measurement"], sort=False)
    for column, source in (("as_is", "as_is"), ("what_if", "what_if"), ("difference", "difference")):
        np.testing.assert_allclose(by_row[source].mean(), found.rows[column], rtol=1e-6, atol=1e-9)
    for column in ("as_is", "what_if"):  # noise is in the values, and in the intervals of a prediction
        within = drawn[f"{column}_drawn"].between(*(
            np.tile(found.rows[f"{column}_{end}"], 40) for end in ("lower", "upper")
        ))  # fmt: skip
        assert within.mean() == pytest.approx(0.5, abs=0.05)
    assert (
        drawn.groupby("measurement")["as_is_drawn"].std()["level"]
        > drawn.groupby("measurement")["as_is"].std()["level"]
    )
    # What all rows share stays together within a draw, so that averages have the right spread.
    average = drawn.groupby(["draw", "measurement"], sort=False)["difference"].mean().unstack()
    ends = summary(torch.tensor(average[list(SCHEMA.measurements)].to_numpy()), 0.5)
    for end, column in (("mean", "difference"), ("lower", "difference_lower"), ("upper", "difference_upper")):
        np.testing.assert_allclose(ends[end], found.average[column], rtol=1e-6, atol=1e-9)
    there = model.what_if(pl.from_pandas(x), {"arm": "b"}, pl.from_pandas(history), draws=3, keep_draws=True)
    assert isinstance(there.draws, pl.DataFrame)


def draws_of(model, x, history, setting, seed, draws=200):
    _, vae = model._fitted()
    table, marked = model._with_history(x, history)
    generator = torch.Generator().manual_seed(seed)
    return list(paired_draws(vae, table, marked, setting, draws, generator, model._trained))


def test_paired_differences_have_much_less_spread_than_unpaired(model, cut):
    x, history = cut
    setting = {2: 1.0}  # arm b
    ((here, there),) = draws_of(model, x, history, setting, 0)
    ((_, other),) = draws_of(model, x, history, setting, 1)
    changed = torch.tensor((x["arm"] == "a").tolist())
    paired, unpaired = (there.y - here.y)[:, changed], (other.y - here.y)[:, changed]
    assert (paired.std(0).mean((0,)) < 0.4 * unpaired.std(0).mean((0,))).all()
    torch.testing.assert_close(there.y - here.y, there.location - here.location, atol=1e-4, rtol=1e-4)


def test_the_average_is_as_uncertain_as_what_all_patients_share(model, cut):
    """v is the same for all patients in a draw: doubling the rows must not narrow the average."""
    x, _ = cut
    a = x[x["arm"] == "a"]
    once = model.what_if(a, {"arm": "b"}, seed=3).average
    many = pd.concat([a.assign(id=a["id"] + f"_{k}") for k in range(8)])
    often = model.what_if(many, {"arm": "b"}, seed=3).average
    width = [(found["difference_upper"] - found["difference_lower"])[1] for found in (once, often)]
    assert width[1] == pytest.approx(width[0], rel=0.25)


def test_other_gaps_and_other_models(cut):
    x, history = cut
    wide = gappy(x)
    plain = lacova.CVAE(SCHEMA, latent_dim=2, networks=lacova.Dense((8,), (8,)))
    plain.fit(gappy(trial(20)), max_epochs=3, device="cpu")
    found = plain.what_if(pl.from_pandas(wide.reset_index(drop=True)), {"dose": 0.5, "arm": "a"}, draws=5)
    assert isinstance(found.average, pl.DataFrame)
    assert found.rows.null_count().to_numpy().sum() == 0
    zero = plain.what_if(x.assign(dose=0.25), {"dose": 0.25}, history, draws=5).rows
    assert (zero["difference"] == 0.0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arm": "c"}, "column 'arm' holds 'c', never seen in training; known levels are 'a', 'b'"),
        ({"amr": "b"}, "'amr' cannot be set: the covariates are 'day', 'dose', 'arm'. Did you mean 'arm'"),
        ({"trend": 1.0}, "'trend' cannot be set"),
        ({"dose": "much"}, "column 'dose' must be numeric, but holds 'much'"),
        ({"arm": None}, "covariate 'arm' is set to None; expected one value"),
        ({"dose": [1.0, 2.0]}, "expected one value, the same for all rows"),
        ({"dose": np.inf}, "column 'dose' holds 1 infinite value"),
        ({}, "say which covariates to set"),
        ("arm=b", "say which covariates to set"),
    ],
)
def test_what_cannot_be_set(model, cut, changes, message):
    with pytest.raises(lacova.DataError, match=message.replace("(", r"\(")):
        model.what_if(cut[0], changes)


def test_settings_that_will_not_do(model, tmp_path):
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


# Filtering.


def test_filtering_is_prediction_visit_by_visit(model):
    table = gappy(trial(3, 5, seed=9)).sample(frac=1.0, random_state=0)  # rows in any order
    found = model.filter(table, draws=20, seed=4, independent_noise=True)
    assert list(found)[:4] == ["row", "id", "day", "measurement"]
    for at, visit in table.iterrows():
        before = table[(table["id"] == visit["id"]) & (table["day"] < visit["day"])]
        one = table.loc[[at]]
        want = model.predict(
            one, before if len(before) else None, draws=20, interval=0.9, seed=4, independent_noise=True
        )
        mine = found[found["row"] == at].set_index("measurement")
        for name in SCHEMA.measurements:
            assert mine.loc[name, "mean"] == want.loc[at, name]
            assert mine.loc[name, "lower"] == want.loc[at, f"{name}_lower"]
            assert mine.loc[name, "upper"] == want.loc[at, f"{name}_upper"]


def test_what_was_observed_lies_inside_or_not(model):
    table = gappy(trial(40, seed=11))
    found = model.filter(table, draws=100)
    observed = table[list(SCHEMA.measurements)].to_numpy().reshape(-1)
    np.testing.assert_array_equal(found["observed"], observed)
    assert (found["inside"].isna() == np.isnan(observed)).all()
    seen = found.dropna(subset="observed")
    assert (seen["inside"] == seen["observed"].between(seen["lower"], seen["upper"])).all()
    assert 0.85 < seen["inside"].mean() < 0.99
    alone = model.filter(table, draws=100, seed=3, independent_noise=True)
    spread = (found["upper"] - found["lower"]).mean()
    assert (found["mean"] - alone["mean"]).abs().mean() < 0.1 * spread  # Monte Carlo error
    later = found[found["day"] > 3.5].pivot(index="row", columns="measurement", values="mean")["level"]
    prior_proposal = model.predict(table)["level"].loc[later.index]
    truth = table["level"].loc[later.index]
    assert (later - truth).abs().mean() < 0.8 * (prior_proposal - truth).abs().mean()


def test_one_call_of_the_model_per_visit_and_not_per_row(model, monkeypatch):
    calls = []
    real = lacova.GPPriorVAE._predict_draws
    monkeypatch.setattr(
        lacova.GPPriorVAE, "_predict_draws", lambda self, x, *rest: calls.append(len(x)) or real(self, x, *rest)
    )
    model.filter(trial(10, 4), draws=2)
    assert calls == [10, 10, 10, 10]


def test_the_order_of_visits():
    from lacova.inference.filtering import visit_numbers

    table = pd.DataFrame({"id": ["a", "b", "a", "a", "b"], "day": [3.0, 1.0, 1.0, 3.0, 0.0]})
    timed = lacova.Schema(["y"], {"day": "continuous"}, instance="id", time="day")
    assert visit_numbers(table, timed).tolist() == [1, 1, 0, 1, 0]
    untimed = lacova.Schema(["y"], {"day": "continuous"}, instance="id")
    assert visit_numbers(table, untimed).tolist() == [0, 0, 1, 2, 1]
    with pytest.raises(lacova.DataError, match=r"'day' is missing in 1 row\(s\)"):
        visit_numbers(table.assign(day=[3.0, None, 1.0, 3.0, 0.0]), timed)
    with pytest.raises(lacova.DataError, match="no instance column"):
        visit_numbers(table, lacova.Schema(["y"], {"day": "continuous"}))


def test_batches_of_few_rows_change_nothing_but_noise(model, monkeypatch):
    """Shares are gathered part by part."""
    table = gappy(trial(20))
    whole = model.effects(table, draws=60, seed=0)
    assert len(list(Batches(model._encode(table)).in_order())) == 1
    monkeypatch.setattr("lacova.inference.predict.CHUNK", 100_000)
    parts = model.effects(table, draws=60, seed=0)
    np.testing.assert_allclose(
        whole.shares.drop(columns="component"), parts.shares.drop(columns="component"), atol=0.03
    )
    assert np.corrcoef(whole.rows["mean"], parts.rows["mean"])[0, 1] > 0.98


def test_filtering_gives_the_probabilities_of_categories_beside_numbers():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"id": np.repeat(range(8), 3), "day": np.tile([0.0, 1.0, 2.0], 8)})
    table["ill"] = ["yes", "no", None] * 8
    table["alt"] = rng.normal(size=24)
    table["grade"] = rng.choice(["a", "b", "c"], 24)
    schema = lacova.Schema(
        {"ill": "bernoulli", "alt": "gaussian", "grade": "categorical"}, {"day": "continuous"}, instance="id",
        time="day",
    )  # fmt: skip
    model = lacova.GPPriorVAE(schema, latent_dim=1, inducing=3).fit(table, max_epochs=1)
    found = model.filter(table, draws=10, independent_noise=True)
    names = ["ill_p_no", "ill_p_yes", "alt", "grade_p_a", "grade_p_b", "grade_p_c"]
    assert found["measurement"].tolist() == names * 24
    wide = {name: found[found["measurement"] == name].set_index("row") for name in names}
    last = table[table["day"] == 2.0]
    want = model.predict(
        last, table[table["day"] < 2.0], draws=10, probabilities=True, interval=0.9, independent_noise=True
    )
    for name in names:
        np.testing.assert_array_equal(wide[name].loc[last.index, "mean"], want[name])
    np.testing.assert_array_equal(wide["alt"].loc[last.index, "upper"], want["alt_upper"])
    assert wide["alt"]["inside"].equals(
        wide["alt"]["observed"].between(wide["alt"]["lower"], wide["alt"]["upper"]).astype("boolean")
    )
    assert wide["ill_p_yes"]["observed"].tolist()[:2] == [1.0, 0.0]
    assert wide["ill_p_no"]["observed"].isna().equals(table["ill"].isna())
    levels = found[found["measurement"] != "alt"]
    assert levels[["lower", "upper", "inside"]].isna().all().all()
    np.testing.assert_allclose(levels[levels["measurement"].str.startswith("grade")].groupby("row")["mean"].sum(), 1.0)
