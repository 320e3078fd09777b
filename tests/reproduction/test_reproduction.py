"""The study of the paper: its cells, its runs and how they resume, its scores, and its pages."""

import json
import math
import operator
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from reproduction.__main__ import main, parser
from reproduction.appendix import appendix
from reproduction.cell import compute
from reproduction.config import Choice, Job
from reproduction.data import Sources, study
from reproduction.findings import PAGE, findings
from reproduction.limit import DigitsConditional, TrialConditional
from reproduction.markdown import appendix_of
from reproduction.scores import covariate_scores, plugin_nll
from reproduction.summary import Figure, by_seed, checks, frame, gap_closed, published

import lacova
from lacova.analysis.workers import Outcome, work
from lacova.datasets import mask_at_random
from lacova.datasets.digits import draw_covariates
from reproduction import config, results

ROOT = Path(__file__).parents[2]
FIELDS = {
    "table", "dataset", "model", "networks", "covariates", "missing", "seed", "nll", "nll_plugin", "crps", "coverage90",
    "mse", "covariate_mse", "covariate_mse_all_rows", "covariate_accuracy", "epochs", "seconds", "device", "version",
}  # fmt: skip
TINY = """
title = "tiny"
model = "gp"
datasets = ["3-discrete"]
missing = [0.3]
methods = ["joint", "oracle"]
[rows]
train = 60
validation = 20
test = 30
[networks.dense]
preset = "dense-digits"
[settings]
latent_dim = 2
inducing = 8
scaling = "none"
[fit]
max_epochs = 1
batch_size = 20
patience = 5
[score]
draws = 10
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Write twenty random images each, labelled 3 and 6."""
    file = tmp_path_factory.mktemp("images") / "mnist.npz"
    images = np.random.default_rng(0).integers(0, 256, (40, 28, 28)).astype(np.uint8)
    np.savez(file, x=images, y=np.tile([3, 6], 20))
    return Sources(file)


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


@pytest.fixture
def command(tiny, sources):
    file = str(tiny / "results.jsonl")
    options = ["--tables-folder", str(tiny), "--images", str(sources.images), "--seeds", "0", "--results", file]
    return lambda *more: main(["run", "tiny", *options, *more])


def here(function, tasks, workers, going):
    """Run tasks in this process, in place of new ones, which take seconds to start."""
    for place, task in enumerate(tasks):
        try:
            yield Outcome(place, function(*task), None)
        except Exception as error:
            yield Outcome(place, None, str(error))


# --- Which cells ----------------------------------------------------------------------------------------------------


def test_every_cell_of_the_paper_has_a_job():
    """Three seeds; dense networks at all shares, convolutional ones on images at 20 and 40% missing."""
    jobs = config.jobs(config.NAMES)
    assert len(jobs) == 3 * 7 * (5 * (3 + 3 + 1 + 1 + 1 + 1) + 2 * (3 + 3 + 1 + 1))
    there = {results.key(job.base(method)) for job in jobs for method in job.scored_as}
    for _, line in published().query("metric == 'nll'").iterrows():
        dataset = int(line["dataset"]) if line["dataset"].isdigit() else line["dataset"]
        model = "cvae" if line["table"] == "cvae" else "gp"
        assert (line["table"], dataset, model, "dense", line["covariates"], line["missing"], 0) in there
    conv = {(job.table, job.missing) for job in jobs if job.networks == "conv"}
    assert conv == {(name, share) for name in ("cvae", "lvae", "discrete", "health") for share in (0.2, 0.4)}
    limits = {job.dataset for job in jobs if "limit" in job.scored_as}
    assert limits == {1, 2, 3, "3-discrete", "trial"}


def test_all_methods_of_a_cell_have_the_same_settings():
    for quick in (False, True):
        jobs = config.jobs(config.NAMES, quick=quick)
        settings = {}
        for job in jobs:
            settings.setdefault((job.table, job.networks), set()).add(job.digest())
        assert all(len(digests) == 1 for digests in settings.values())
    one = jobs[0]
    assert replace(one, draws=7).digest() != one.digest()
    assert one.digest("other images") != one.digest()


def test_the_most_informative_cells_come_first():
    jobs = config.jobs(["cvae", "lvae"])
    assert [job.seed for job in jobs] == sorted(job.seed for job in jobs)
    first = [job for job in jobs if job.seed == 0]
    shares = list(dict.fromkeys(job.missing for job in first))
    assert shares[:2] == [0.2, 0.4]
    assert {job.networks for job in first[:42]} == {"dense"}


def test_choices_and_their_refusals():
    some = config.jobs(["lvae"], Choice((5,), missing=[0.4], methods=["limit"], networks=["conv"], datasets=["2"]))
    assert [job.name for job in some] == ["lvae, set 2, conv, oracle, 40%, seed 5"]
    with pytest.raises(ValueError, match="got best"):
        config.jobs(["lvae"], Choice(methods=["best"]))
    with pytest.raises(ValueError, match="no table 'lave'; expected one of cdisc, cvae"):
        config.jobs(["lave"])


def test_a_word_that_means_nothing_is_refused(tiny):
    (tiny / "tiny.toml").write_text("epochs = 3\n" + TINY)
    with pytest.raises(ValueError, match="has epochs, which mean nothing here"):
        config.read("tiny", folder=tiny)


def test_the_command_line_says_what_is_wrong(command, capsys):
    assert command("--missing", "0.9") == 2
    assert "no cell" in capsys.readouterr().err


def test_other_settings_need_a_file_of_their_own(capsys):
    assert main(["run", "lvae", "--fit", '{"masked_loss": 0}']) == 2
    assert "--results FILE" in capsys.readouterr().err
    job = config.jobs(["lvae"])[0].varied({"expectation": "exact"}, {"masked_loss": 0})
    assert (job.settings["expectation"], job.settings["inducing"], job.fit["masked_loss"]) == ("exact", 60, 0)


def test_the_pilot_needs_its_files(tiny, capsys, monkeypatch):
    monkeypatch.delenv("LACOVA_DATA", raising=False)
    assert main(["run", "cdisc", "--results", str(tiny / "none.jsonl")]) == 2
    assert "--data, or LACOVA_DATA" in capsys.readouterr().err


# --- Runs -----------------------------------------------------------------------------------------------------------


def test_a_run_continues_where_it_stopped_and_computes_the_same_again(tiny, command, capsys, monkeypatch):
    """A second run fits nothing; a removed line and a line cut short are computed again to the last digit.

    The first run uses new processes.
    """
    file = tiny / "results.jsonl"
    assert command() == 0
    monkeypatch.setattr("reproduction.run.work", here)
    complete = file.read_text()
    lines = [json.loads(text) for text in complete.splitlines()]
    assert {line["covariates"] for line in lines} == {"joint", "oracle", "limit"}
    assert all(line.keys() >= FIELDS for line in lines)
    capsys.readouterr()
    assert command("--dry-run") == 0
    assert capsys.readouterr().out == ""
    assert command() == 0
    assert file.read_text() == complete

    texts = {json.loads(text)["covariates"]: text for text in complete.splitlines()}
    torn = texts["oracle"] + "\n" + texts["joint"][:90]  # limit is removed, joint was cut short by a kill
    file.write_text(torn)
    assert command("--dry-run") == 0
    assert sorted(capsys.readouterr().out.split("\n")) == [
        "", "tiny, set 3-discrete, dense, joint, 30%, seed 0", "tiny, set 3-discrete, dense, oracle, 30%, seed 0",
    ]  # fmt: skip
    assert command() == 0
    again = {line["covariates"]: line for line in map(json.loads, file.read_text().splitlines())}
    assert len(file.read_text().splitlines()) == 3  # the oracle's own line is not written twice
    for line in lines:
        recomputed = again[line["covariates"]]
        assert {k: v for k, v in recomputed.items() if k != "seconds"} == {
            k: v for k, v in line.items() if k != "seconds"
        }


def test_lines_from_other_settings_are_kept_and_reported(tiny, command, capsys):
    job = config.jobs(["tiny"], Choice((0,), methods=["joint"]), folder=tiny)[0]
    results.append(tiny / "results.jsonl", [job.base() | {"nll": 1.0, "settings": "00000000"}])
    assert command("--methods", "joint") == 0
    assert "1 of 1 lines come from other settings" in capsys.readouterr().err


def test_only_the_task_that_fails_or_whose_process_dies_is_lost():
    tasks = [(operator.truediv, 2, 2), (os._exit, 7), (operator.truediv, 5, 0), (operator.truediv, 8, 2)]
    outcomes = {outcome.place: outcome for outcome in work(operator.call, tasks, 2, lambda: True)}
    assert [outcomes[0].result, outcomes[3].result] == [1.0, 4.0]
    assert outcomes[1].error == "its process ended with exit code 7"
    assert "ZeroDivisionError" in outcomes[2].error
    assert outcomes[0].error is None


def test_no_task_is_begun_after_the_time_is_up():
    answers = iter([True, False, False, False])
    tasks = [(operator.truediv, 2, 2), (operator.truediv, 8, 2)]
    assert [outcome.place for outcome in work(operator.call, tasks, 1, lambda: next(answers))] == [0]


def test_a_cell_that_fails_is_named_and_the_exit_code_is_1(tiny, command, capsys, monkeypatch):
    monkeypatch.setattr("reproduction.run.work", here)
    text = TINY.replace('methods = ["joint", "oracle"]', 'methods = ["joint"]').replace(
        "latent_dim = 2", "latent_dim = 0"
    )
    (tiny / "tiny.toml").write_text(text)
    assert command() == 1
    errors = capsys.readouterr().err
    assert "failed: tiny, set 3-discrete, dense, joint, 30%, seed 0" in errors
    assert "latent_dim must be" in errors
    assert not (tiny / "results.jsonl").exists()


def test_the_results_file(tmp_path):
    file = tmp_path / "results.jsonl"
    line = {name: 0 for name in results.KEY}
    assert results.read(file) == []
    results.append(file, [line, line])
    file.write_text(file.read_text() + '{"table": 1')
    assert results.read(file) == [line, line]
    results.mend(file)
    results.append(file, [line])
    assert file.read_text() == 3 * (json.dumps(line) + "\n")
    file.write_text(json.dumps(line))  # a complete line without its line break
    results.mend(file)
    results.append(file, [line])
    assert results.read(file) == [line, line]
    file.write_text("{}\n" + json.dumps(line) + "\n")
    with pytest.raises(results.ResultsError, match="line 1 of"):
        results.read(file)
    with pytest.raises(ValueError, match="Out of range"):
        results.append(file, [line | {"nll": math.nan}])


# --- Data and true distributions ------------------------------------------------------------------------------------


def test_data_depend_on_the_cell_alone_and_gaps_are_nested(sources):
    rows = {"train": 30, "validation": 10, "test": 10}
    low, high = (study("3-discrete", rows, missing, 1, sources) for missing in (0.2, 0.4))
    assert low.complete["test"].equals(high.complete["test"])
    gaps = [data.masked["train"].isna().to_numpy() for data in (low, high)]
    assert gaps[0].mean() == pytest.approx(0.2, abs=0.01)
    assert (gaps[1] | ~gaps[0]).all()
    assert low.with_all_covariates("train")[low.x].notna().all().all()
    assert low.with_all_covariates("train")["pixel7"].equals(low.masked["train"]["pixel7"])


def test_patients_are_split_whole_and_visits_keep_their_time():
    data = study("trial", {"train": 14, "validation": 3, "test": 3}, 0.3, 0, Sources())
    labels = [set(part["id"]) for part in data.masked.values()]
    assert [len(part) for part in labels] == [14, 3, 3]
    assert len(set.union(*labels)) == 20
    train = data.masked["train"]
    assert train["day"].notna().all()
    assert train[data.x[3:]].isna().mean().mean() == pytest.approx(0.3, abs=0.03)
    share = train["sex"].notna().groupby(train["id"]).mean()
    assert set(share) == {0.0, 1.0}


def gapped(x, fraction, seed):
    return np.where(np.random.default_rng(seed).random(x.shape) < fraction, np.nan, x)


@pytest.mark.parametrize("dataset", [1, 2, 3, "3-discrete"])
def test_the_true_conditional_of_the_digits_is_that_of_the_generator(dataset):
    """Truth, draws that replace it, and the stated moments agree, also in products with anything observed."""
    frame = draw_covariates(dataset, 3000, np.random.default_rng(1))
    truth = frame.replace({"digit": {3: 0.0, 6: 1.0}}).to_numpy(float)
    x, conditional, nobody = gapped(truth, 0.4, 2), DigitsConditional(dataset), np.zeros(0, dtype=np.int64)
    drawn = conditional.draw(x, nobody, 30, np.random.default_rng(3))
    gaps = np.isnan(x)
    assert (drawn[:, ~gaps] == truth[~gaps]).all()
    mean, var, second = conditional.moments(x, nobody)
    for q, name in enumerate(frame.columns):
        at = gaps[:, q]
        stated = second[at, q] if name == "digit" else mean[at, q]
        own = drawn[:, at, q]
        spread = np.sqrt(second[at, q] * (1 - second[at, q]) if name == "digit" else var[at, q])
        assert abs(z_score((own.mean(0) - stated) / spread)) < 4
        beside = [
            np.ones(at.sum()),
            stated,
            *(np.nan_to_num(x[at, p] - np.nanmean(x[:, p])) for p in range(x.shape[1])),
        ]
        for other in beside:
            assert abs(z_score((truth[at, q] - stated) * other)) < 4
            assert abs(z_score((truth[at, q] - own[0]) * other)) < 4
        assert abs(z_score((truth[at, q] - stated) ** 2 - spread**2)) < 4


def z_score(values):
    return values.mean() / (values.std() / math.sqrt(len(values))) if values.std() > 0 else 0.0


def test_the_true_conditional_of_the_trial_is_that_of_the_generator():
    data = study("trial", {"train": 60, "validation": 1, "test": 1}, 0.4, 0, Sources())
    truth = data.complete["train"][data.x].to_numpy(float)
    x = data.masked["train"][data.x].to_numpy(float)
    patient = pd.factorize(data.masked["train"]["id"])[0]
    _, _, second = TrialConditional().moments(x, patient)
    gone = np.isnan(x)
    gone[:, :3] = False
    assert abs(z_score(truth[gone] - second[gone])) < 4
    assert abs(z_score((truth[gone] - second[gone]) * second[gone])) < 4
    assert ((truth[gone] == 1) == (second[gone] > 0.5)).mean() > 0.8  # it uses the other visits
    rounded = x * np.where(np.arange(x.shape[1]) == 0, 1.0 + 1e-7, 1.0)  # days that were scaled in single precision
    np.testing.assert_array_equal(TrialConditional().moments(rounded, patient).second, second)


# --- Scores ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def visits():
    """A small longitudinal model with numbers and categories, constant and not, and its table with gaps."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(30), 4)
    table = pd.DataFrame({"id": patient, "day": np.tile([0.0, 1, 2, 3], 30), "age": rng.normal(60, 9, 30)[patient]})
    table["sex"] = np.where(patient % 2, "f", "m")
    table["dose"] = rng.choice(["low", "mid", "high"], 120)
    table["alt"] = 30 + 5 * (table["sex"] == "m") + 2 * table["day"] + rng.normal(0, 1, 120)
    table["ast"] = 20 + 0.1 * table["age"] + rng.normal(0, 1, 120)
    kinds = {"day": "continuous", "age": "continuous", "sex": "categorical", "dose": "categorical"}
    schema = lacova.Schema(["alt", "ast"], kinds, instance="id", time="day", static=["age", "sex"])
    gaps = mask_at_random(table, ["age", "sex", "dose", "ast"], 0.3, 1, instance="id", static=["age", "sex"])
    model = lacova.GPPriorVAE(schema, latent_dim=2, inducing=8).fit(gaps, max_epochs=3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # a posterior far from its prior, so that using y makes a difference
        for weight in model.vae.covariate_posterior.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
        model.vae.prior.posterior_mean.normal_(generator=generator)  # and latent variables that depend on x
    return model, table, gaps


def test_covariate_errors_are_those_of_the_imputed_table(visits):
    """Compare with the public `impute`, by plain loops; a visit-constant column counts once per patient."""
    model, table, gaps = visits
    imputed = model.impute(gaps, probabilities=True)
    first = ~gaps["id"].duplicated()
    sd = dict(zip(model.schema.covariates, model.encoder.x_scale, strict=True))["age"]
    square = [((imputed["age"][i] - table["age"][i]) / sd) ** 2 for i in gaps.index[first & gaps["age"].isna()]]
    hits, brier = [], []
    for name, rows in (("sex", first & gaps["sex"].isna()), ("dose", gaps["dose"].isna())):
        for i in gaps.index[rows]:
            hits.append(imputed[name][i] == table[name][i])
            levels = sorted(table[name].unique())
            brier.append(sum((imputed[f"{name}_p_{k}"][i] - (k == table[name][i])) ** 2 for k in levels))
    scores = covariate_scores(model, gaps, table)
    assert len(square) > 3
    assert scores["covariate_mse"] == pytest.approx(np.mean(square), rel=1e-4)
    assert scores["covariate_mse_all_rows"] == pytest.approx(np.sum(square) / (len(table) + first.sum()), rel=1e-4)
    assert scores["covariate_accuracy"] == pytest.approx(np.mean(hits))
    assert scores["covariate_brier"] == pytest.approx(np.mean(brier), rel=1e-4)


def test_plug_in_nll_is_that_of_one_completion(visits):
    """Row by row: best guess of x without y, mean of z, noise alone; in the units of the measurements."""
    model, table, gaps = visits
    encoder, vae = model.fitted()
    without_y = gaps.assign(alt=np.nan, ast=np.nan)
    x = encoder.encode(model.impute(without_y)).x
    with torch.no_grad():
        z, _ = vae.prior.predict(x, torch.tensor(table["id"].tolist()))
        mean = encoder.decode_measurements(vae.decode(z, x))
        sd = np.sqrt(vae.likelihood.noise_variance.numpy()) * encoder.y_scale
    total = 0.0
    for i in table.index:
        for d, name in enumerate(("alt", "ast")):
            if not np.isnan(gaps[name][i]):
                total += 0.5 * ((gaps[name][i] - mean[i, d]) / sd[d]) ** 2 + math.log(sd[d] * math.sqrt(2 * math.pi))
    assert plugin_nll(model, gaps) == pytest.approx(total / len(table), rel=1e-4)


def test_the_oracle_of_a_covariate_that_some_do_not_have(sources):
    """Health MNIST: healthy patients have no onset. The oracle is fitted all the same, and has no scores of X."""
    job = Job("health", "health", "gp", "dense", "oracle", 0.2, 1, {"train": 6, "validation": 2, "test": 2},
              "dense-digits", {"latent_dim": 2, "inducing": 8, "scaling": "none"}, {"max_epochs": 1}, 5)  # fmt: skip
    (line,) = compute(job, ["oracle"], sources, "cpu")
    assert line["covariates"] == "oracle"
    assert line["covariate_mse"] is None
    assert math.isfinite(line["nll"])


# --- The pages --------------------------------------------------------------------------------------------------------


def unwrapped(text):
    """Join the lines of a page, which wraps its sentences."""
    return " ".join(text.split())


def made_up(nll, table="cvae", dataset=1, missing=0.2, networks="dense", seeds=3):
    model = "cvae" if table == "cvae" else "gp"
    base = {"table": table, "dataset": dataset, "model": model, "networks": networks, "missing": missing}
    rest = {"crps": 0.05, "coverage90": 0.9, "mse": 0.01, "covariate_mse": 0.5, "covariate_mse_all_rows": 0.1}
    rest |= {"covariate_accuracy": None, "epochs": 9, "seconds": 1.0, "device": "cpu", "version": "0"}
    return [
        base | {"covariates": method, "seed": seed, "nll": value + wobble * (seed - 1), "nll_plugin": value + 50} | rest
        for method, (value, wobble) in nll.items()
        for seed in range(seeds)
    ]


NLL = {"zero": (-900, 2), "mean": (-1000, 1), "knn": (-990, 1), "paper": (-1050, 5), "joint": (-1380, 2),
       "limit": (-1400, 1), "oracle": (-1800, 3)}  # fmt: skip


def test_differences_gaps_and_order():
    cell = frame(made_up(NLL))
    nll = by_seed(cell)
    assert gap_closed(nll, "joint").mean == pytest.approx(380 / 400, rel=1e-3)
    row = checks(cell).iloc[0]
    assert row["joint − paper"].mean == pytest.approx(-330)
    assert row["joint − paper"].error == pytest.approx(3 / math.sqrt(3))  # paired: 5 − 2 a seed, not both
    assert [row[f"{a} ≥ {b}"] for a, b in (("zero", "mean"), ("mean", "knn"), ("paper", "oracle"))] == [
        "yes", "no", "yes",
    ]  # fmt: skip
    assert Figure.of(pd.Series([1.0])).text(1) == "1.0"
    assert Figure.of(pd.Series([-1.0, -3.0])).text(1) == "−2.0 ± 1.0"


def test_the_appendix_shows_published_and_obtained_and_leaves_blanks():
    lines = made_up(NLL) + made_up({**NLL, "joint": (-1052, 2)}, missing=0.4)
    text = appendix(lines)
    assert "| joint |  |  | −1380 ± 1 |  | −1052 ± 1 |" in text
    assert "| paper | (110 ± 2) | (140 ± 3) | −1000 ± 0 (210 ± 5) | (410 ± 3) | −1000 ± 0 (420 ± 2) |" in text
    assert "| cvae | dense | 2 | 1 of 2 | 54% | 13% | 12% | 90.0% to 90.0% |" in text
    assert (
        "Exceptions, 1 of 2 cells:\n\n- cvae, Dataset 1 (independent covariates), dense, 40%: joint − paper is" in text
    )
    assert "nan" not in text
    assert "| mean ≥ knn | 0 | 0 | 2 |" in text
    assert "There are no results yet." in appendix([])


def test_every_published_figure_is_quoted():
    text, known = appendix([]), published()
    assert len(known) == 310
    for mean, sd in zip(known["mean"], known["sd"], strict=True):
        assert (f"({mean:g})" if math.isnan(sd) else f"({mean:g} ± {sd:g})") in text


def test_the_findings_take_their_figures_from_the_results():
    """One cell where joint is ahead, one where it is level with the paper's treatment, one where KNN is ahead."""
    lines = made_up(NLL) + made_up({**NLL, "joint": (-1052, 2)}, missing=0.4)
    pilot = {"mean": (50, 0.1), "knn": (40, 0.1), "paper": (46, 0.1), "joint": (45, 0.2), "oracle": (30, 0.1)}
    lines += made_up({**pilot, "zero": (51, 0.1)}, table="cdisc", dataset="cdisc")
    text = unwrapped(findings(lines))
    assert f"{len(lines)} runs in 3 cells, with 3 seeds." in text
    assert "each by more than two standard errors, in 1 of 2 cells. It closes 54% of the gap" in text
    assert "(13% in the worst cell); the paper's treatment closes 12%." in text
    assert "`joint` beats all three in none of 1 cells." in text
    assert "here: CDISC pilot, dense networks, 20% missing (`knn`, by 5.0 ± 0.1)." in text
    assert "KNN beats mean imputation in 1 (reverse: 2)" in text
    assert "| CVAE on rotated digits | 2 | 1 of 2 | 54% | 12% | 90% |" in text
    assert "| Longitudinal GP-prior VAE on the CDISC pilot trial | 1 | 0 of 1 | | | 90% |" in text
    assert "nan" not in text


def test_the_findings_of_one_seed_or_none_claim_no_standard_errors():
    text = unwrapped(findings(made_up(NLL, seeds=1)))
    assert f"{len(NLL)} runs in 1 cell, with 1 seed." in text
    assert "`joint` closes 95% of the gap" in text
    assert "two standard errors" not in text
    assert "nan" not in text
    assert "There are no results yet." in findings([])


def test_the_report_writes_a_page_and_its_appendix(tmp_path):
    results.append(tmp_path / "results.jsonl", made_up(NLL))
    page = tmp_path / "quick.md"
    assert main(["report", "--results", str(tmp_path / "results.jsonl"), "--out", str(page)]) == 0
    assert "closes 95% of the gap" in unwrapped(page.read_text(encoding="utf-8"))
    assert "](appendix/quick.md#what-differs-and-why)" in page.read_text(encoding="utf-8")
    assert (tmp_path / "appendix" / "quick.md").read_text(encoding="utf-8") == appendix(made_up(NLL))


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_commands_of_the_page_are_understood():
    """Those of make as make would run them; none is run, which takes from minutes to hours."""
    commands = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)[0].strip().split("\n")
    actions = []
    for command in commands:
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            dry_run = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=True)
            lines = [shlex.split(line) for line in dry_run.stdout.split("\n") if "-m reproduction" in line]
            assert len(lines) == 2
        else:
            lines = [words]
        for line in lines:
            options = parser().parse_args(line[line.index("reproduction") + 1 :])
            actions.append(options.action)
            if options.action == "run":
                assert config.jobs(options.tables, Choice(options.seeds or (0,)), options.quick) or not options.tables
    assert set(actions) == {"run", "report", "figures"}


def test_the_pages_of_the_repository_are_those_of_its_results():
    lines, tables = results.read(results.FILE), appendix_of(PAGE)
    assert PAGE.read_text(encoding="utf-8") == findings(lines)
    assert tables.read_text(encoding="utf-8") == appendix(lines)
    images = re.findall(r"\]\((\S+\.png)\)", tables.read_text(encoding="utf-8"))
    assert len(images) == 5
    assert all((tables.parent / image).exists() for image in images)
