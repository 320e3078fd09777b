"""The clinical study's parts: scores that do not depend on the number of draws, and peers that use what there is."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from reproduction.clinical import peers, study, tasks
from reproduction.clinical.page import page
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
    wanted = np.ones(truth.shape, dtype=bool)
    return Task(kind, SCHEMA, train, validation, hidden, ["alt"], {}, wanted, truth, np.ones(1))


def about(names, levels, truth):
    """A question of which only the answer counts."""
    few = visits(2, 0)
    return Task("covariates", SCHEMA, few, few, few, names, levels, truth == truth, truth, np.ones(len(names)))


def test_scores_of_calibrated_draws_do_not_depend_on_how_many_there_are():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(20_000, 1))
    asked = replace(about(["alt"], {}, truth), kind="predict")
    for count in (19, 100):
        found = scores(asked, rng.normal(size=(count, *truth.shape)))
        assert found["rmse"] == pytest.approx(1.0, abs=0.02)
        assert found["crps"] == pytest.approx(1 / np.sqrt(np.pi), abs=0.01)
        assert found["coverage90"] == pytest.approx(0.9, abs=0.01)
    point = scores(asked, np.zeros((1, *truth.shape)))
    assert point["rmse"] == pytest.approx(1.0, abs=0.02)
    assert point["coverage90"] is None


def test_scores_of_levels_do_not_depend_on_how_many_draws_there_are():
    """A level of 1 in 4, drawn as often as it comes: it is never guessed, and the Brier score is 2 p (1 - p)."""
    rng = np.random.default_rng(0)
    truth = (rng.random((20_000, 1)) < 0.25).astype(float)
    asked = about(["event"], {"event": ["no", "yes"]}, truth)
    for count in (20, 100):
        found = scores(asked, (rng.random((count, *truth.shape)) < 0.25).astype(float))
        assert found["varying_brier"] == pytest.approx(2 * 0.25 * 0.75, abs=0.01)
        assert found["varying_accuracy"] == pytest.approx(0.75, abs=0.02)
        assert found["varying_balanced"] == pytest.approx(0.5, abs=0.02)
    found = scores(asked, truth[None])
    assert (found["varying_brier"], found["varying_accuracy"], found["varying_balanced"]) == (0.0, 1.0, 1.0)
    assert found["columns"]["event"]["rarest"] == int(truth.sum())


def test_numbers_and_levels_are_scored_apart():
    truth = np.array([[1.0, 0.0, 1.0], [3.0, 1.0, 0.0]])
    asked = about(["age", "arm", "event"], {"arm": ["a", "b"], "event": ["no", "yes"]}, truth)
    found = scores(asked, np.array([[[2.0, 0.0, 0.0], [3.0, 1.0, 0.0]]]))  # arm does not change with visits
    assert found["rmse"] == pytest.approx(0.5**0.5, abs=1e-5)
    assert found["coverage90"] is None
    assert (found["static_accuracy"], found["varying_accuracy"], found["varying_brier"]) == (1.0, 0.5, 1.0)


@pytest.fixture
def covariates(monkeypatch, tmp_path):
    """Missing covariates of patients whose arm shows in `alt`, and whose event lasts."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(400), 6)
    rows = pd.DataFrame({"id": who, "day": np.tile(np.arange(6.0), 400), "age": rng.normal(50, 10, 400)[who]})
    rows["arm"] = np.array(["a", "b", "c"])[who % 3]
    rows["event"] = np.where(np.tile(np.arange(6), 400) >= rng.integers(0, 7, 400)[who], "yes", "no")
    rows["alt"] = 10.0 * (who % 3) + rng.normal(0, 1, len(who))
    rows["ast"] = rows["age"] + rng.normal(0, 1, len(who))
    kinds = {"age": "continuous", "arm": "categorical", "event": "categorical"}
    schema = Schema(["alt", "ast"], kinds, instance="id", time="day", static=["arm", "age"])
    monkeypatch.setitem(tasks.TABLES, "made up", lambda folder: (rows, schema))
    tasks.table.cache_clear()
    return tasks.task("covariates", "made up", 0.3, 0, tmp_path)


def test_what_does_not_change_is_asked_for_once(covariates):
    first = ~covariates.test["id"].duplicated().to_numpy()
    assert covariates.names == ["age", "arm", "event"]
    for column in range(2):
        assert covariates.wanted[:, column].any()
        assert not covariates.wanted[~first, column].any()
    assert covariates.wanted[~first, 2].any()
    assert covariates.test.loc[covariates.wanted[:, 2], "event"].isna().all()


@pytest.mark.parametrize("name", ["extra trees", "boosted trees"])
def test_peers_read_covariates_from_measurements(covariates, name):
    found = scores(covariates, peers.PEERS[name](covariates, 0))
    assert found["rmse"] < 0.5
    assert found["static_accuracy"] > 0.65  # a third of them by chance
    if name == "boosted trees":  # sees the visits before and after
        assert found["varying_accuracy"] > 0.75


@pytest.mark.parametrize("name", ["locf", "mean", "knn"])
def test_other_peers_answer_in_levels_and_units(covariates, name):
    draws = peers.PEERS[name](covariates, 0)
    assert set(np.unique(draws[:, :, 1])) <= {0.0, 1.0, 2.0}
    assert set(np.unique(draws[:, :, 2])) <= {0.0, 1.0}
    assert 45 < draws[:, :, 0].mean() < 55
    if name == "locf":
        seen = covariates.test.groupby("id")["event"].ffill().map({"no": 0.0, "yes": 1.0})
        assert (draws[0, seen.notna(), 2] == seen.dropna()).all()


def test_lacova_fills_covariates_and_keeps_what_is_known(covariates):
    (draws,) = study.by_lacova([covariates], 0, "cpu", {"latent_dim": 1, "inducing": 4}, {"max_epochs": 1})
    (prior,) = study.by_prior([covariates], 0)
    known = covariates.test[covariates.names].notna().to_numpy()
    for found in (draws, prior):
        assert found.shape == (peers.DRAWS, *covariates.truth.shape)
        assert (found[:, known] == covariates.truth[known]).all()
        assert set(np.unique(found[:, :, 1])) == {0.0, 1.0, 2.0}
        assert (found.std(0)[covariates.wanted] > 0).mean() > 0.5
    assert scores(covariates, prior)["varying_accuracy"] > 0.75  # visits before and after say it


@pytest.mark.parametrize("name", ["age", "arm"])
def test_a_covariate_that_does_not_change_is_asked_of_every_patient(covariates, tmp_path, name):
    asked = tasks.task(name, "made up", 0.3, 0, tmp_path)
    assert asked.names == [name]
    assert asked.test[name].isna().all()
    np.testing.assert_array_equal(asked.wanted[:, 0], ~asked.test["id"].duplicated())
    for part in ("train", "validation"):
        pd.testing.assert_frame_equal(getattr(asked, part), getattr(covariates, part))
    pd.testing.assert_frame_equal(asked.test.drop(columns=name), covariates.test.drop(columns=name))
    by_trees, by_mean = (scores(asked, peers.PEERS[peer](asked, 0)) for peer in ("boosted trees", "mean"))
    if name == "age":
        assert by_trees["rmse"] < 0.5 * by_mean["rmse"]
    else:
        assert by_trees["balanced"] > 0.65 > by_mean["balanced"]


def test_boosted_trees_see_the_other_covariates_whatever_is_asked(covariates, tmp_path):
    """Here they alone tell the arm: `age` is its number, and measurements say nothing."""
    asked = tasks.task("arm", "made up", 0.0, 0, tmp_path)
    parts = {part: getattr(asked, part) for part in ("train", "validation", "test")}
    told = {part: rows.assign(alt=0.0, ast=0.0, age=rows["id"] % 3.0) for part, rows in parts.items()}
    assert scores(asked, peers.PEERS["boosted trees"](replace(asked, **told), 0))["accuracy"] > 0.95


def test_methods_are_asked_what_they_can_answer():
    assert not study.answers("mixed model", "covariates")
    assert not study.answers("mixed model", "age")
    assert study.answers("prior alone", "sex")
    assert study.answers("mixed model", "forecast")
    assert study.answers("prior alone", "covariates")
    assert not study.answers("prior alone", "impute")


def test_the_page_sets_lacova_beside_the_best_peer():
    """The best of accuracies is the largest, and of the rest the least."""
    lines = []
    for seed, (method, value) in itertools.product((0, 1), (("knn", 0.5), ("locf", 0.7), ("lacova", 0.8))):
        key = {"dataset": "pbc", "missing": 0.2, "seed": seed, "method": method}
        lines.append(key | {"task": "impute", "rmse": value, "crps": value, "coverage90": 0.9, "width90": 1.0})
        told = {"accuracy": value, "balanced": value, "brier": value, "entries": 20, "rarest": 5}
        groups = {f"varying_{name}": value for name in ("accuracy", "balanced", "brier")}
        own = {"rmse": value, "crps": value, "coverage90": 0.9, "columns": {"event": told}}
        lines.append(key | {"task": "covariates"} | groups | own)
        lines.append(key | {"task": "sex", "accuracy": value, "balanced": value, "brier": value})
    once = {"dataset": "pbc", "task": "impute", "missing": 0.2, "seed": 0, "method": "mean"}
    lines.append(once | {"rmse": 0.1, "crps": 0.1, "coverage90": 0.9, "width90": 1.0})  # not asked all that lacova was
    text = page(lines, ["knn", "locf", "mean"], ["knn", "locf", "mean", "lacova"])
    assert (
        "| PBC | impute | 20% | 2 | 0.800 ± 0.000 | +0.300 ± 0.000 (knn) | 0.800 ± 0.000 | +0.300 ± 0.000 (knn) | 90% |"
        in text
    )
    assert "| PBC | covariates | 20% | 2 | 0.800 ± 0.000 | +0.100 ± 0.000 (locf) |" in text
    beside = ("+0.100 ± 0.000 (locf)", "+0.100 ± 0.000 (locf)", "+0.300 ± 0.000 (knn)")
    assert f"| PBC | sex | 20% | 2 | {' | '.join(f'0.800 ± 0.000 | {one}' for one in beside)} |\n" in text
    assert "### PBC: sex\n\n|  | accuracy, 20% | balanced accuracy, 20% | Brier score, 20% |\n" in text
    assert "| PBC | 20% | `event` | 40 | 10 |  | 0.800 ± 0.000 | +0.100 ± 0.000 (locf) |" in text


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
