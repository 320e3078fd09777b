"""The clinical study's parts: scores that do not depend on the number of draws, and peers that use what there is."""

import numpy as np
import pandas as pd
import pytest
from reproduction.clinical import peers, study
from reproduction.clinical.tasks import Task, scores

from lacova import Schema

SCHEMA = Schema(["alt"], {"age": "continuous", "arm": "categorical"}, instance="id", time="day", static=["arm"])


def visits(patients, seed):
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), 4)
    table = pd.DataFrame({"id": who, "day": np.tile(np.arange(4.0), patients), "age": rng.normal(size=len(who))})
    table["arm"] = np.array(["a", "b"])[who % 2]
    table["alt"] = 3.0 * (who % 2) + table["age"] + rng.normal(0, 0.3, len(who))
    return table


def question(kind="predict"):
    """All measurements of unseen patients, given covariates alone."""
    train, validation, test = visits(60, 0), visits(20, 1), visits(20, 2)
    truth = test[["alt"]].to_numpy(dtype=float)
    hidden = test.assign(alt=np.nan)
    return Task(kind, SCHEMA, train, validation, hidden, np.ones(truth.shape, dtype=bool), truth, np.ones(1))


def test_scores_of_calibrated_draws_do_not_depend_on_how_many_there_are():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(20_000, 1))
    asked = Task("predict", SCHEMA, visits(2, 0), visits(2, 0), visits(2, 0), truth == truth, truth, np.ones(1))
    for count in (19, 100):
        found = scores(asked, rng.normal(size=(count, *truth.shape)))
        assert found["rmse"] == pytest.approx(1.0, abs=0.02)
        assert found["crps"] == pytest.approx(1 / np.sqrt(np.pi), abs=0.01)
        assert found["coverage90"] == pytest.approx(0.9, abs=0.01)
    point = scores(asked, np.zeros((1, *truth.shape)))
    assert point["rmse"] == pytest.approx(1.0, abs=0.02)
    assert point["coverage90"] is None


@pytest.mark.parametrize("name", ["ridge", "boosted trees", "mixed model"])
def test_peers_that_see_covariates_use_numbers_and_categories(name):
    if name == "mixed model":
        pytest.importorskip("statsmodels")
    asked = question()
    draws = peers.PEERS[name](asked, 0)
    assert draws.shape == (peers.DRAWS, *asked.truth.shape)
    found, mean = scores(asked, draws), scores(asked, peers.PEERS["mean"](asked, 0))
    assert mean["rmse"] > 1.5
    assert found["rmse"] < 0.7
    assert 0.8 < found["coverage90"] < 0.99


@pytest.mark.parametrize("name", ["knn", "extra trees", "locf"])
def test_peers_without_draws_give_one_point(name):
    asked = question()
    assert peers.PEERS[name](asked, 0).shape == (1, *asked.truth.shape)


def test_what_is_trained_otherwise_is_not_put_among_the_results(monkeypatch, tmp_path):
    words = ["study", "run", "--data", str(tmp_path), "--fit", '{"max_epochs": 1}']
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit, match="name another file for it, --results"):
        study.main()
