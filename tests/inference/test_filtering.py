"""Filtering: each visit is predicted from the visits before it, and from nothing else."""

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.data.table_encoder import TableEncoder
from lacova.inference.filtering import only_earlier_values, visit_numbers
from lacova.inference.predict import predictive_draws
from tests.inference.cases import TRIAL, gappy, trial
from tests.tables import VISITS, five_visits


def assert_equal_to_predictions(model, table):
    """Compare `filter` with `predict` at each visit, given the rows of the table before it as history."""
    filtered = model.filter(table, draws=20, seed=4, independent_noise=True)
    assert list(filtered)[:4] == ["row", "id", "day", "measurement"]
    for at, visit in table.iterrows():
        before = table[(table["id"] == visit["id"]) & (table["day"] < visit["day"])]
        history = before if len(before) else None
        predicted = model.predict(
            table.loc[[at]], history, draws=20, interval=0.9, seed=4, independent_noise=True
        ).loc[at]  # fmt: skip
        own = filtered[filtered["row"] == at].set_index("measurement")
        for name in TRIAL.measurements:
            assert own.loc[name, "mean"] == predicted[name]
            assert own.loc[name, "lower"] == predicted[f"{name}_lower"]
            assert own.loc[name, "upper"] == predicted[f"{name}_upper"]
    return filtered


def test_filtering_is_prediction_visit_by_visit(model):
    assert_equal_to_predictions(model, gappy(trial(3, 5, seed=9)).sample(frac=1.0, random_state=0))  # in any order


def test_a_static_value_is_unknown_before_the_visit_that_shows_it(model):
    """The arm is recorded at the third visit; before it, predictions are those of a patient of unknown arm."""
    table = gappy(trial(3, 5, seed=9)).sample(frac=1.0, random_state=0)
    number = visit_numbers(table, TRIAL)
    late = table.assign(arm=table["arm"].where(number == 2))
    filtered, options = assert_equal_to_predictions(model, late), {"draws": 20, "seed": 4, "independent_noise": True}
    known, never = model.filter(table, **options), model.filter(table.assign(arm=None), **options)
    first, last = (filtered["row"].isin(table.index[rows]).to_numpy() for rows in (number < 2, number >= 2))
    assert filtered["mean"][first].equals(never["mean"][first])
    response = (filtered["measurement"] == "response").to_numpy()
    assert (filtered["mean"] != known["mean"])[first & response].all()
    assert (filtered["mean"] != never["mean"])[last & response].all()
    np.testing.assert_array_equal(filtered["mean"][last], known["mean"][last])


def test_only_values_of_a_visit_and_of_earlier_ones_remain():
    """`five_visits`: b shows its age at its first visit and its sex at the second, a the other way round."""
    frame = five_visits()
    table, number = TableEncoder.learn(VISITS, frame).encode(frame), np.array([0, 1, 0, 1, 2])
    age, sex = (list(VISITS.covariates).index(name) for name in ("age", "sex"))
    rows = {0: [0, 2], 1: [1, 3, 0, 2], 2: [4, 2, 3]}
    for visit, expected in rows.items():
        part = only_earlier_values(table, frame, VISITS, number, visit)
        now = int((number == visit).sum())
        assert torch.equal(part.y_mask, table.y_mask[expected] & (torch.arange(len(expected)) >= now)[:, None])
        assert torch.equal(part.y, table.y[expected] * part.y_mask)
        assert torch.equal(part.x, table.x[expected] * part.x_mask)
        others = [q for q in range(table.x.shape[1]) if q not in (age, sex)]
        assert torch.equal(part.x_mask[:, others], table.x_mask[expected][:, others])
        assert [part.labels[p] for p in part.patient.tolist()] == frame["id"].iloc[expected].tolist()
        if visit == 0:
            assert part.x_mask[:, [age, sex]].tolist() == [[True, False], [False, True]]
        else:
            assert part.x_mask[:, [age, sex]].all()
    assert table.x_mask[:, [age, sex]].all()  # in the table itself, every row has them


def test_observed_values_lie_inside_or_not(model):
    table = gappy(trial(40, seed=11))
    filtered = model.filter(table, draws=100)
    observed = table[list(TRIAL.measurements)].to_numpy().reshape(-1)
    np.testing.assert_array_equal(filtered["observed"], observed)
    assert (filtered["inside"].isna() == np.isnan(observed)).all()
    lines = filtered.dropna(subset="observed")
    assert (lines["inside"] == lines["observed"].between(lines["lower"], lines["upper"])).all()
    assert 0.85 < lines["inside"].mean() < 0.99
    same_numbers = model.filter(table, draws=100, seed=3, independent_noise=True)
    width = (filtered["upper"] - filtered["lower"]).mean()
    assert (filtered["mean"] - same_numbers["mean"]).abs().mean() < 0.1 * width  # Monte Carlo error
    later = filtered[filtered["day"] > 3.5].pivot(index="row", columns="measurement", values="mean")["baseline"]
    without_history = model.predict(table)["baseline"].loc[later.index]
    truth = table["baseline"].loc[later.index]
    assert (later - truth).abs().mean() < 0.8 * (without_history - truth).abs().mean()


def test_the_model_is_called_once_per_visit_and_not_per_row(model, monkeypatch):
    calls = []

    def count_rows(vae, table, new, *rest):
        calls.append(int(new.sum()))
        return predictive_draws(vae, table, new, *rest)

    monkeypatch.setattr("lacova.models.inference.predictive_draws", count_rows)
    model.filter(trial(10, 4), draws=2)
    assert calls == [10, 10, 10, 10]


def test_the_order_of_visits():
    table = pd.DataFrame({"id": ["a", "b", "a", "a", "b"], "day": [3.0, 1.0, 1.0, 3.0, 0.0]})
    timed = lacova.Schema(["y"], {"day": "continuous"}, instance="id", time="day")
    assert visit_numbers(table, timed).tolist() == [1, 1, 0, 1, 0]
    untimed = lacova.Schema(["y"], {"day": "continuous"}, instance="id")
    assert visit_numbers(table, untimed).tolist() == [0, 0, 1, 2, 1]
    with pytest.raises(lacova.DataError, match=r"'day' is missing in 1 row\(s\)"):
        visit_numbers(table.assign(day=[3.0, None, 1.0, 3.0, 0.0]), timed)
    with pytest.raises(lacova.DataError, match="no instance column"):
        visit_numbers(table, lacova.Schema(["y"], {"day": "continuous"}))


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
    filtered = model.filter(table, draws=10, independent_noise=True)
    names = ["ill_p_no", "ill_p_yes", "alt", "grade_p_a", "grade_p_b", "grade_p_c"]
    assert filtered["measurement"].tolist() == names * 24
    lines = {name: filtered[filtered["measurement"] == name].set_index("row") for name in names}
    last = table[table["day"] == 2.0]
    predicted = model.predict(
        last, table[table["day"] < 2.0], draws=10, probabilities=True, interval=0.9, independent_noise=True
    )
    for name in names:
        np.testing.assert_array_equal(lines[name].loc[last.index, "mean"], predicted[name])
    np.testing.assert_array_equal(lines["alt"].loc[last.index, "upper"], predicted["alt_upper"])
    assert lines["alt"]["inside"].equals(
        lines["alt"]["observed"].between(lines["alt"]["lower"], lines["alt"]["upper"]).astype("boolean")
    )
    assert lines["ill_p_yes"]["observed"].tolist()[:2] == [1.0, 0.0]
    assert lines["ill_p_no"]["observed"].isna().equals(table["ill"].isna())
    levels = filtered[filtered["measurement"] != "alt"]
    assert levels[["lower", "upper", "inside"]].isna().all().all()
    np.testing.assert_allclose(levels[levels["measurement"].str.startswith("grade")].groupby("row")["mean"].sum(), 1.0)
