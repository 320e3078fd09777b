"""The clinical study: scores that do not depend on the number of draws, peers that use what is observed, and pages."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from reproduction.clinical import peers, study, tasks
from reproduction.clinical.appendix import appendix
from reproduction.clinical.findings import PAGE, findings
from reproduction.clinical.tasks import Task, scores
from reproduction.markdown import appendix_of

from lacova import Schema
from reproduction import results

SCHEMA = Schema(["alt"], {"age": "continuous", "arm": "categorical"}, instance="id", time="day", static=["arm"])


def visits(patients, seed):
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), 4)
    table = pd.DataFrame({"id": who, "day": np.tile(np.arange(4.0), patients), "age": rng.normal(size=len(who))})
    table["arm"] = np.array(["a", "b"])[who % 2]
    table["alt"] = 3.0 * (who % 2) + table["age"] + rng.normal(0, 0.3, len(who))
    return table


def prediction(kind="predict"):
    """Return the task of all measurements of test patients, given covariates alone."""
    train, validation, test = visits(60, 0), visits(20, 1), visits(20, 2)
    truth = test[["alt"]].to_numpy(dtype=float)
    hidden = test.assign(alt=np.nan)
    wanted = np.ones(truth.shape, dtype=bool)
    return Task(kind, SCHEMA, train, validation, hidden, ["alt"], {}, wanted, truth, np.ones(1))


def task_with_truth(names, levels, truth):
    """Return a task of which only the truth matters."""
    few = visits(2, 0)
    return Task("covariates", SCHEMA, few, few, few, names, levels, truth == truth, truth, np.ones(len(names)))


def test_scores_of_calibrated_draws_do_not_depend_on_how_many_there_are():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(20_000, 1))
    task = replace(task_with_truth(["alt"], {}, truth), kind="predict")
    for count in (19, 100):
        result = scores(task, rng.normal(size=(count, *truth.shape)))
        assert result["rmse"] == pytest.approx(1.0, abs=0.02)
        assert result["crps"] == pytest.approx(1 / np.sqrt(np.pi), abs=0.01)
        assert result["coverage90"] == pytest.approx(0.9, abs=0.01)
    point = scores(task, np.zeros((1, *truth.shape)))
    assert point["rmse"] == pytest.approx(1.0, abs=0.02)
    assert point["coverage90"] is None


def test_scores_of_levels_do_not_depend_on_how_many_draws_there_are():
    """A level of 1 in 4, drawn as often as it comes: it is never guessed, and the Brier score is 2 p (1 - p)."""
    rng = np.random.default_rng(0)
    truth = (rng.random((20_000, 1)) < 0.25).astype(float)
    task = task_with_truth(["event"], {"event": ["no", "yes"]}, truth)
    for count in (20, 100):
        result = scores(task, (rng.random((count, *truth.shape)) < 0.25).astype(float))
        assert result["varying_brier"] == pytest.approx(2 * 0.25 * 0.75, abs=0.01)
        assert result["varying_accuracy"] == pytest.approx(0.75, abs=0.02)
        assert result["varying_balanced"] == pytest.approx(0.5, abs=0.02)
    result = scores(task, truth[None])
    assert (result["varying_brier"], result["varying_accuracy"], result["varying_balanced"]) == (0.0, 1.0, 1.0)
    assert result["columns"]["event"]["rarest"] == int(truth.sum())


def test_numbers_and_levels_are_scored_separately():
    truth = np.array([[1.0, 0.0, 1.0], [3.0, 1.0, 0.0]])
    task = task_with_truth(["age", "arm", "event"], {"arm": ["a", "b"], "event": ["no", "yes"]}, truth)
    result = scores(task, np.array([[[2.0, 0.0, 0.0], [3.0, 1.0, 0.0]]]))  # arm does not change with visits
    assert result["rmse"] == pytest.approx(0.5**0.5, abs=1e-5)
    assert result["coverage90"] is None
    assert (result["static_accuracy"], result["varying_accuracy"], result["varying_brier"]) == (1.0, 0.5, 1.0)


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


def test_a_column_that_does_not_change_is_wanted_once_per_patient(covariates):
    first = ~covariates.test["id"].duplicated().to_numpy()
    assert covariates.names == ["age", "arm", "event"]
    for column in range(2):
        assert covariates.wanted[:, column].any()
        assert not covariates.wanted[~first, column].any()
    assert covariates.wanted[~first, 2].any()
    assert covariates.test.loc[covariates.wanted[:, 2], "event"].isna().all()


@pytest.mark.parametrize("name", ["extra trees", "boosted trees"])
def test_peers_predict_covariates_from_measurements(covariates, name):
    result = scores(covariates, peers.PEERS[name](covariates, 0))
    assert result["rmse"] < 0.5
    assert result["static_accuracy"] > 0.65  # a third of them by chance
    if name == "boosted trees":  # sees the visits before and after
        assert result["varying_accuracy"] > 0.75


@pytest.mark.parametrize("name", ["locf", "mean", "knn"])
def test_other_peers_return_levels_and_units(covariates, name):
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
    for completions in (draws, prior):
        assert completions.shape == (peers.DRAWS, *covariates.truth.shape)
        assert (completions[:, known] == covariates.truth[known]).all()
        assert set(np.unique(completions[:, :, 1])) == {0.0, 1.0, 2.0}
        assert (completions.std(0)[covariates.wanted] > 0).mean() > 0.5
    assert scores(covariates, prior)["varying_accuracy"] > 0.75  # from the visits before and after


@pytest.mark.parametrize("name", ["age", "arm"])
def test_a_covariate_that_does_not_change_is_wanted_for_every_patient(covariates, tmp_path, name):
    task = tasks.task(name, "made up", 0.3, 0, tmp_path)
    assert task.names == [name]
    assert task.test[name].isna().all()
    np.testing.assert_array_equal(task.wanted[:, 0], ~task.test["id"].duplicated())
    for part in ("train", "validation"):
        pd.testing.assert_frame_equal(getattr(task, part), getattr(covariates, part))
    pd.testing.assert_frame_equal(task.test.drop(columns=name), covariates.test.drop(columns=name))
    by_trees, by_mean = (scores(task, peers.PEERS[peer](task, 0)) for peer in ("boosted trees", "mean"))
    if name == "age":
        assert by_trees["rmse"] < 0.5 * by_mean["rmse"]
    else:
        assert by_trees["balanced"] > 0.65 > by_mean["balanced"]


def test_boosted_trees_use_the_other_covariates_in_every_task(covariates, tmp_path):
    """Here only they identify the arm: `age` is its number, and measurements carry no information."""
    task = tasks.task("arm", "made up", 0.0, 0, tmp_path)
    parts = {part: getattr(task, part) for part in ("train", "validation", "test")}
    changed = {part: rows.assign(alt=0.0, ast=0.0, age=rows["id"] % 3.0) for part, rows in parts.items()}
    assert scores(task, peers.PEERS["boosted trees"](replace(task, **changed), 0))["accuracy"] > 0.95


def test_methods_are_applied_to_the_tasks_that_they_can_do():
    assert not study.applies("mixed model", "covariates")
    assert not study.applies("mixed model", "age")
    assert study.applies("prior alone", "sex")
    assert study.applies("mixed model", "forecast")
    assert study.applies("prior alone", "covariates")
    assert not study.applies("prior alone", "impute")


def unwrapped(text):
    """Join the lines of a page, which wraps its sentences."""
    return " ".join(text.split())


def made_up():
    """Return results of three methods and two seeds, in which lacova is the worst in RMSE and the best in accuracy."""
    lines = []
    for seed, (method, value) in itertools.product((0, 1), (("knn", 0.5), ("locf", 0.7), ("lacova", 0.8))):
        key = {"dataset": "pbc", "missing": 0.2, "seed": seed, "method": method}
        lines.append(key | {"task": "impute", "rmse": value, "crps": value, "coverage90": 0.9, "width90": 1.0})
        column = {"accuracy": value, "balanced": value, "brier": value, "entries": 20, "rarest": 5}
        groups = {f"varying_{name}": value for name in ("accuracy", "balanced", "brier")}
        own = {"rmse": value, "crps": value, "coverage90": 0.9, "columns": {"event": column}}
        lines.append(key | {"task": "covariates"} | groups | own)
        lines.append(key | {"task": "sex", "accuracy": value, "balanced": value, "brier": value})
    once = {"dataset": "pbc", "task": "impute", "missing": 0.2, "seed": 0, "method": "mean"}
    lines.append(
        once | {"rmse": 0.1, "crps": 0.1, "coverage90": 0.9, "width90": 1.0}
    )  # it lacks a seed that lacova has
    return lines


PEERS = ["knn", "locf", "mean"]


def test_the_appendix_sets_lacova_beside_the_best_peer():
    """The best accuracy is the largest; the best of the other scores is the smallest."""
    text = appendix(made_up(), PEERS, [*PEERS, "lacova"])
    assert (
        "| PBC | impute | 20% | 2 | 0.800 ± 0.000 | +0.300 ± 0.000 (knn) | 0.800 ± 0.000 | +0.300 ± 0.000 (knn) | 90% |"
        in text
    )
    assert "| PBC | covariates | 20% | 2 | 0.800 ± 0.000 | +0.100 ± 0.000 (locf) |" in text
    beside = ("+0.100 ± 0.000 (locf)", "+0.100 ± 0.000 (locf)", "+0.300 ± 0.000 (knn)")
    assert f"| PBC | sex | 20% | 2 | {' | '.join(f'0.800 ± 0.000 | {one}' for one in beside)} |\n" in text
    assert "### PBC: sex\n\n|  | accuracy, 20% | balanced accuracy, 20% | Brier score, 20% |\n" in text
    assert "| PBC | 20% | `event` | 40 | 10 |  | 0.800 ± 0.000 | +0.100 ± 0.000 (locf) |" in text


def test_the_findings_count_who_is_ahead_and_name_the_peers():
    text = unwrapped(findings(made_up(), PEERS))
    assert "lacova is ahead of the best peer in 0 of 3 comparisons, by more than two standard errors in 0." in text
    assert "The best peer is ahead in 3, by more than two standard errors in 3." in text
    assert "RMSE of measurements and of age is lower than the best peer's in 0 of 2 comparisons" in text
    assert "lacova's 90% intervals of measurements cover 90% to 90%." in text
    assert "in 6 of 10 comparisons over all scores: PBC, impute at 20%, RMSE (+0.300 ± 0.000, knn);" in text
    assert "| PBC | impute measurements | CRPS | 0.800 ± 0.000 | +0.300 ± 0.000 (knn) |" in text
    assert "accuracy (" not in text  # there, lacova is ahead


def test_the_report_writes_a_page_and_its_appendix(monkeypatch, tmp_path):
    results.append(tmp_path / "results.jsonl", made_up())
    page = tmp_path / "page.md"
    words = ["study", "report", "--results", str(tmp_path / "results.jsonl"), "--out", str(page)]
    monkeypatch.setattr("sys.argv", words)
    assert study.main() == 0
    assert "| PBC | impute measurements | CRPS |" in page.read_text(encoding="utf-8")
    assert "](appendix/page.md#what-to-make-of-it)" in page.read_text(encoding="utf-8")
    tables = appendix(made_up(), list(peers.PEERS), study.METHODS)
    assert (tmp_path / "appendix" / "page.md").read_text(encoding="utf-8") == tables


def test_the_pages_of_the_repository_are_those_of_its_results():
    lines = results.read(study.RESULTS, study.KEY)
    assert PAGE.read_text(encoding="utf-8") == findings(lines, list(peers.PEERS))
    assert appendix_of(PAGE).read_text(encoding="utf-8") == appendix(lines, list(peers.PEERS), study.METHODS)


@pytest.mark.parametrize("name", ["ridge", "boosted trees", "mixed model"])
def test_peers_that_see_covariates_use_numbers_and_categories(name):
    if name == "mixed model":
        pytest.importorskip("statsmodels")
    task = prediction()
    draws = peers.PEERS[name](task, 0)
    assert draws.shape == (peers.DRAWS, *task.truth.shape)
    result, mean = scores(task, draws), scores(task, peers.PEERS["mean"](task, 0))
    assert mean["rmse"] > 1.5
    assert result["rmse"] < 0.7
    assert 0.8 < result["coverage90"] < 0.99


@pytest.mark.parametrize("name", ["knn", "extra trees", "locf"])
def test_peers_without_draws_give_one_point(name):
    task = prediction()
    assert peers.PEERS[name](task, 0).shape == (1, *task.truth.shape)


def test_runs_with_other_options_are_not_put_among_the_results(monkeypatch, tmp_path):
    words = ["study", "run", "--data", str(tmp_path), "--fit", '{"max_epochs": 1}']
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit, match="name another file for it, --results"):
        study.main()
