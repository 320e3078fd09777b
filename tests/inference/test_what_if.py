"""What-if comparisons, on small trials whose effects are known."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import lacova
from lacova.inference.long_form import summary
from tests.inference.cases import TRIAL, gappy, mixed_trial, trial

# Differences between the arms of `mixed_trial`.
DIFFERENCES = {
    "crp": np.exp(2.5 + 0.3 / 2 + 0.09 / 2) - np.exp(2.0 + 0.3 / 2 + 0.09 / 2), "falls": 4.0, "ill_p_yes": 0.5,
}  # fmt: skip


def test_setting_what_is_already_so_changes_nothing_at_all(model, forecast):
    x, history = forecast
    rows = model.what_if(x, {"arm": "b"}, history, draws=20, seed=2).rows
    rows = rows.merge(x[["arm"]], left_on="row", right_index=True)
    already = rows["arm"] == "b"
    for end in ("", "_lower", "_upper"):
        assert (rows.loc[already, f"difference{end}"] == 0.0).all()
        assert (rows.loc[already, f"as_is{end}"] == rows.loc[already, f"what_if{end}"]).all()
    assert (rows.loc[~already, "difference"] != 0.0).all()


def test_the_average_difference_is_the_known_effect(model, forecast):
    x, history = forecast
    comparison = model.what_if(x[x["arm"] == "a"], {"arm": "b"}, history, seed=2)
    mean = comparison.average.set_index("measurement")
    assert mean.loc["response", "difference"] == pytest.approx(2.0, abs=0.25)
    assert abs(mean.loc["trend", "difference"]) < 0.25
    response = comparison.rows[comparison.rows["measurement"] == "response"]
    assert (response["what_if"] - response["as_is"]).mean() == pytest.approx(response["difference"].mean(), rel=1e-4)
    assert mean.loc["response", "difference"] == pytest.approx(response["difference"].mean(), rel=1e-4)
    assert response["difference_lower"].lt(response["difference_upper"]).all()
    predicted = model.predict(x[x["arm"] == "a"], history, draws=400, seed=2)
    np.testing.assert_allclose(response["as_is"], predicted["response"], atol=0.15)


def test_summaries_are_those_of_the_draws(model, forecast, monkeypatch):
    x, history = forecast
    assert model.what_if(x, {"arm": "b"}, history, draws=10, seed=2).draws is None
    monkeypatch.setattr("lacova.inference.draws.CHUNK", 3 * 40 * 20)  # some patients at a time
    comparison = model.what_if(x, {"arm": "b"}, history, draws=40, seed=2, interval=0.5, keep_draws=True)
    drawn = comparison.draws
    assert list(drawn) == [
        "draw", "row", "id", "measurement", "as_is", "what_if", "difference", "as_is_drawn", "what_if_drawn",
    ]  # fmt: skip
    assert drawn["draw"].tolist() == np.repeat(range(40), 3 * len(x)).tolist()
    assert drawn["row"].tolist() == np.tile(np.repeat(x.index, 3), 40).tolist()
    np.testing.assert_allclose(drawn["what_if"] - drawn["as_is"], drawn["difference"], atol=1e-9)
    by_row = drawn.groupby(["row", "measurement"], sort=False)
    for column, source in (("as_is", "as_is"), ("what_if", "what_if"), ("difference", "difference")):
        np.testing.assert_allclose(by_row[source].mean(), comparison.rows[column], rtol=1e-6, atol=1e-9)
    for column in ("as_is", "what_if"):  # noise is in the values, and in the intervals of a prediction
        within = drawn[f"{column}_drawn"].between(*(
            np.tile(comparison.rows[f"{column}_{end}"], 40) for end in ("lower", "upper")
        ))  # fmt: skip
        assert within.mean() == pytest.approx(0.5, abs=0.05)
    sd = drawn.groupby("measurement")[["as_is_drawn", "as_is"]].std().loc["baseline"]
    assert sd["as_is_drawn"] > sd["as_is"]
    # Rows share what is unknown of the model within a draw, so that averages have the right variance.
    average = drawn.groupby(["draw", "measurement"], sort=False)["difference"].mean().unstack()
    ends = summary(torch.tensor(average[list(TRIAL.measurements)].to_numpy()), 0.5)
    for end, column in (("mean", "difference"), ("lower", "difference_lower"), ("upper", "difference_upper")):
        np.testing.assert_allclose(ends[end], comparison.average[column], rtol=1e-6, atol=1e-9)
    polars = model.what_if(pl.from_pandas(x), {"arm": "b"}, pl.from_pandas(history), draws=3, keep_draws=True)
    assert isinstance(polars.draws, pl.DataFrame)


def test_the_average_is_as_uncertain_as_what_all_patients_share(model, forecast):
    """v is the same for all patients in a draw: more rows must not narrow the interval of the average."""
    x, _ = forecast
    a = x[x["arm"] == "a"]
    repeated = pd.concat([a.assign(id=a["id"] + f"_{k}") for k in range(8)])
    averages = [model.what_if(rows, {"arm": "b"}, seed=3).average for rows in (a, repeated)]
    width = [(average["difference_upper"] - average["difference_lower"])[1] for average in averages]
    assert width[1] == pytest.approx(width[0], rel=0.25)


def test_other_gaps_and_other_models(forecast):
    x, history = forecast
    cvae = lacova.CVAE(TRIAL, latent_dim=2, networks=lacova.Dense((8,), (8,)))
    cvae.fit(gappy(trial(20)), max_epochs=3, device="cpu")
    gaps = pl.from_pandas(gappy(x).reset_index(drop=True))
    comparison = cvae.what_if(gaps, {"dose": 0.5, "arm": "a"}, draws=5)
    assert isinstance(comparison.average, pl.DataFrame)
    assert comparison.rows.null_count().to_numpy().sum() == 0
    unchanged = cvae.what_if(x.assign(dose=0.25), {"dose": 0.25}, history, draws=5).rows
    assert (unchanged["difference"] == 0.0).all()


def test_with_members_answers_keep_their_bounds_and_the_estimate_is_the_mean_of_members():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=60), "arm": rng.choice(["a", "b"], 60)})
    table["rare"] = np.where(np.arange(60) % 20 == 0, "yes", "no")
    table["grade"] = rng.choice(["i", "ii", "iii"], 60, p=[0.8, 0.15, 0.05])
    table["falls"] = rng.poisson(0.3, 60).astype(float)
    table["crp"], table["g"] = np.exp(1 + rng.normal(size=60)), table["x"] + rng.normal(size=60)
    kinds = {"rare": "categorical", "grade": "categorical", "falls": "poisson", "crp": "lognormal", "g": "gaussian"}
    model = lacova.CVAE(lacova.Schema(kinds, {"x": "continuous", "arm": "categorical"}), latent_dim=1)
    model.fit(table, max_epochs=20, members=5, device="cpu")
    answer = model.what_if(table, {"arm": "b"}, draws=100, keep_draws=True)
    drawn, rows = answer.draws, answer.rows.set_index("measurement")
    ends = ["as_is", "as_is_lower", "as_is_upper", "what_if", "what_if_lower", "what_if_upper"]
    assert (drawn[~drawn["measurement"].eq("g")][["as_is", "what_if"]] > 0.0).all(axis=None)
    levels = drawn[drawn["measurement"].str.contains("_p_")]
    assert (levels["as_is"] == levels["as_is_drawn"]).all()  # with the doubt that draws of numbers have as noise
    np.testing.assert_allclose(levels.groupby(["draw", "row"])["what_if"].sum(), 2.0)  # of two measurements
    assert rows.loc[levels["measurement"].unique(), ends].stack().between(0.0, 1.0).all()
    yes = levels[levels["measurement"] == "rare_p_yes"]["as_is"].to_numpy().reshape(100, 60)
    np.testing.assert_allclose(
        rows.loc["rare_p_yes", "as_is_upper"], summary(torch.tensor(yes), 0.9)["upper"], rtol=1e-9
    )
    members, each = [], {}
    for k, member in enumerate(model.members):
        model.members = (member,)
        each[k] = model.what_if(table, {"arm": "b"}, draws=20, seed=1_000_003 * k).average.set_index("measurement")
        members.append(each[k]["difference"])
    average = answer.average.set_index("measurement")
    np.testing.assert_allclose(average["difference"], np.mean(members, 0), rtol=1e-5, atol=1e-7)  # float32
    np.testing.assert_allclose(average["what_if"] - average["as_is"], average["difference"], rtol=1e-6, atol=1e-9)
    of_draws = drawn[drawn["measurement"] == "g"]["difference"].mean()
    assert of_draws == pytest.approx(average.loc["g", "difference"], rel=1e-8)


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
def test_what_cannot_be_set(model, forecast, changes, message):
    with pytest.raises(lacova.DataError, match=message.replace("(", r"\(")):
        model.what_if(forecast[0], changes)


def test_what_if_finds_known_differences_of_every_kind(mixed_model):
    untreated = mixed_trial(seed=1).query("arm == 'a'")
    comparison = mixed_model.what_if(untreated, {"arm": "b"}, draws=200)
    average = comparison.average.set_index("measurement")
    assert list(average.index) == ["crp", "falls", "ill_p_no", "ill_p_yes"]
    for name, truth in DIFFERENCES.items():
        assert average.loc[name, "difference"] == pytest.approx(truth, rel=0.2), name
    assert average.loc["ill_p_no", "difference"] == pytest.approx(-average.loc["ill_p_yes", "difference"], rel=1e-9)
    np.testing.assert_allclose(average["what_if"] - average["as_is"], average["difference"], rtol=1e-6)
    rows = comparison.rows.set_index("measurement")
    assert (rows.loc["crp", "as_is_lower"] > 0).all()
    assert rows.loc["ill_p_yes", ["as_is_lower", "as_is_upper"]].stack().between(0, 1).all()
    predicted = mixed_model.predict(untreated, draws=400, probabilities=True)
    assert rows.loc["crp", "as_is"].mean() == pytest.approx(predicted["crp"].mean(), rel=0.04)  # Monte Carlo error
    np.testing.assert_allclose(rows.loc["ill_p_yes", "as_is"], predicted["ill_p_yes"], atol=0.05)
    same = mixed_model.what_if(untreated, {"arm": "a"}, draws=20).rows
    assert (same["difference"] == 0.0).all()
