"""Several models on one table: folds, hidden entries, scores, resuming."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import lacova
from lacova import Schema
from lacova.analysis import comparison
from lacova.analysis.folds import assign_folds, make_fold
from tests.analysis.cases import PAIR, QUICK, VISITS, visits


def test_all_models_are_scored_on_the_same_folds(monkeypatch):
    parts = []

    def scores(entry, part, *rest):
        parts.append(part)
        return {"parameters": 1}

    monkeypatch.setattr(comparison, "_fitted_scores", scores)
    lacova.compare(visits(40), VISITS, ["CVAE", "VAE"], folds=4)
    assert len(parts) == 8
    assert all(one is other for one, other in zip(parts[::2], parts[1::2], strict=True))
    assert sorted(pd.concat([part.test for part in parts[::2]])["alt"]) == sorted(visits(40)["alt"])
    assert all(0.1 < part.hidden["alt"].isna().mean() < 0.35 for part in parts)


def test_the_same_seed_gives_the_same_table_and_another_does_not():
    one, two, other = (lacova.compare(visits(), VISITS, PAIR, seed=seed, **QUICK) for seed in (0, 0, 1))
    fixed = [name for name in one if not name.startswith("seconds")]
    pd.testing.assert_frame_equal(one[fixed], two[fixed])
    assert not np.isclose(one["crps"], other["crps"]).any()


def test_scores_are_those_of_the_models_themselves():
    """One fold done by hand."""
    table = visits()
    scores = lacova.compare(table, VISITS, {"m": ("CVAE", {"latent_dim": 1})}, validation_share=0.0, **QUICK)
    number, by_hand = assign_folds(table, VISITS, 2, 0), []
    for k in range(2):
        part = make_fold(table, VISITS, number, k, 0.2, 0.0, 0)
        model = lacova.CVAE(VISITS, latent_dim=1).fit(part.train, seed=k, max_epochs=2, device="cpu")
        drawn = model.impute(part.hidden, draws=20, seed=k)
        line = {"predict": model.score(part.test, draws=20, seed=k)}
        total, entries, inside = 0.0, 0, 0
        for name in ("alt", "ast"):
            hidden = part.hidden[name].isna().to_numpy()
            imputed = drawn[name].to_numpy().reshape(20, -1)[:, hidden] / part.train[name].std(ddof=0)
            truth = part.test[name].to_numpy()[hidden] / part.train[name].std(ddof=0)
            gaps = np.abs(imputed[:, None] - imputed[None]).sum((0, 1)) / (20 * 19)
            total += (np.abs(imputed - truth).mean(0) - gaps / 2).sum()
            low, high = np.quantile(imputed, [0.05, 0.95], axis=0, method="weibull")
            inside += ((truth >= low) & (truth <= high)).sum()
            entries += hidden.sum()
        once = ~part.test["id"].duplicated() & part.hidden["sex"].isna()
        guess = pd.concat([part["sex"] for _, part in drawn.reset_index().groupby("draw")], axis=1, ignore_index=True)
        share = (drawn["sex"] == "m").to_numpy().reshape(20, -1).mean(0)
        assert guess.shape[1] == 20
        right = np.where(share > 0.5, "m", "f") == part.test["sex"]
        line |= {"crps": total / entries, "inside": inside / entries, "sex": right[once].mean()}
        line["likelihood"] = model.log_likelihood(part.test, draws=20, seed=k).mean()
        by_hand.append(line)
    means = pd.DataFrame(by_hand)
    row = scores.loc["m"]
    assert row["crps"] == pytest.approx(means["crps"].mean(), rel=1e-4)
    assert row["crps_se"] == pytest.approx(means["crps"].std() / 2**0.5, rel=1e-3)
    assert row["coverage90"] == pytest.approx(means["inside"].mean())
    assert row["x_accuracy"] == pytest.approx(means["sex"].mean())
    assert row["log_likelihood"] == pytest.approx(means["likelihood"].mean(), rel=1e-5)
    assert row["predict_crps"] == pytest.approx(np.mean([scores["crps"] for scores in means["predict"]]), rel=1e-4)
    assert row["parameters"] == sum(p.numel() for p in model.vae.parameters())


def test_where_covariates_explain_measurements_a_conditional_model_wins():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = x @ rng.normal(size=(2, 3)) + rng.normal(0, 0.1, (300, 3))
    table = pd.DataFrame(np.hstack([x, y]), columns=["x1", "x2", "a", "b", "c"])
    schema = Schema(["a", "b", "c"], {"x1": "continuous", "x2": "continuous"})
    scores = lacova.compare(
        table, schema, {name: (name, {"latent_dim": 1}) for name in ("VAE", "CVAE")}, folds=2, max_epochs=40,
        device="cpu", learning_rate=5e-3, schedule="constant", start="random", latent_weight=100.0,
    )  # fmt: skip
    vae, cvae = scores.loc["VAE"], scores.loc["CVAE"]
    for name in ("nll", "crps", "rmse", "predict_nll", "predict_rmse"):
        assert cvae[name] < vae[name] - 2 * (cvae[f"{name}_se"] + vae[f"{name}_se"]), name
    assert cvae["log_likelihood"] > vae["log_likelihood"]
    assert vae["predict_rmse"] > 0.9  # in standard deviations: a VAE has nothing to predict a row from
    assert cvae["x_rmse"] < 0.9
    assert np.isnan(vae["x_rmse"])


class Killed(Exception):
    pass


@pytest.mark.parametrize("torn", [False, True])
def test_a_killed_comparison_goes_on_where_it_was(tmp_path, monkeypatch, torn):
    uninterrupted = lacova.compare(visits(), VISITS, PAIR, **QUICK)
    real, calls = comparison._fitted_scores, []

    def dying(entry, *rest):
        calls.append(entry.label)
        if len(calls) == 3:
            raise Killed
        return real(entry, *rest)

    monkeypatch.setattr(comparison, "_fitted_scores", dying)
    with pytest.raises(Killed):
        lacova.compare(visits(), VISITS, PAIR, checkpoint=tmp_path, **QUICK)
    file = tmp_path / "comparison.jsonl"
    lines = file.read_bytes()
    assert lines.count(b"\n") == 2
    if torn:
        file.write_bytes(lines + lines.split(b"\n")[0][:50])
    again = lacova.compare(visits(), VISITS, PAIR, checkpoint=file, **QUICK)
    assert calls == ["VAE", "CVAE", "VAE", "VAE", "CVAE"]
    assert file.read_bytes().startswith(lines)
    assert all(json.loads(line) for line in file.read_text().splitlines())
    fixed = [name for name in uninterrupted if not name.startswith("seconds")]
    pd.testing.assert_frame_equal(again[fixed], uninterrupted[fixed])

    monkeypatch.setattr(comparison, "_fitted_scores", lambda *rest: pytest.fail("computed again"))
    pd.testing.assert_frame_equal(lacova.compare(visits(), VISITS, PAIR, checkpoint=file, **QUICK), again)
    for other in ({"seed": 1}, {"hide": 0.3}, {"max_epochs": 3}, {"draws": 21}):
        with pytest.raises(pytest.fail.Exception):
            lacova.compare(visits(), VISITS, PAIR, checkpoint=file, **{**QUICK, **other})
    with pytest.raises(pytest.fail.Exception):
        lacova.compare(visits().assign(alt=1.0), VISITS, PAIR, checkpoint=file, **QUICK)
    with pytest.raises(pytest.fail.Exception):
        lacova.compare(visits(), VISITS, {"VAE": ("VAE", {"latent_dim": 2})}, checkpoint=file, **QUICK)


def test_ctrl_c_ends_the_comparison_and_not_just_a_fit(monkeypatch, tmp_path):
    fit = lacova.VAE.fit

    def interrupted(self, *rest, **options):
        fit(self, *rest, **options)
        self.interrupted = True
        return self

    monkeypatch.setattr(lacova.VAE, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lacova.compare(visits(), VISITS, ["VAE"], checkpoint=tmp_path, **QUICK)
    assert not list(tmp_path.iterdir())


def test_models_of_ones_own_polars_and_rare_levels():
    table = visits()
    table["sex"] = table["sex"].where(table["id"] != 3, "other")  # never in two folds
    mine = lacova.CVAE(VISITS, latent_dim=1)
    models = {"mine": mine, "weighted": ("CVAE", {"latent_dim": 1, "importance": 3}), "gp": "gppriorvae"}
    scores = lacova.compare(pl.from_pandas(table), VISITS, models, **QUICK)
    assert scores.index.tolist() == ["mine", "weighted", "gp"]
    assert np.isfinite(scores["crps"]).all()
    assert scores.loc["mine", "crps"] != scores.loc["weighted", "crps"]
    assert mine.vae is None  # copies were fitted
    assert "accuracy" not in scores
    assert "x_rmse" not in scores


def test_an_oracle_sees_the_covariates_and_kinds_have_accuracies():
    rng = np.random.default_rng(1)
    table = visits().assign(event=rng.random(36) < 0.4, age=rng.normal(size=36))
    schema = Schema({"alt": "gaussian", "event": "bernoulli"}, {"age": "continuous", "sex": "categorical"})
    models = {"oracle": ("CVAE", {"covariates": "oracle"}), "NotMIWAE": lacova.NotMIWAE(Schema(["alt"], {}))}
    with pytest.raises(lacova.SchemaError, match="NotMIWAE is a model of alt"):
        lacova.compare(table, schema, models, **QUICK)
    scores = lacova.compare(table, schema, {"oracle": models["oracle"]}, **QUICK).loc["oracle"]
    assert 0 <= scores["accuracy"] <= 1
    assert "x_rmse" not in scores.index
    plain = lacova.compare(table, replace(schema, measurements=("alt",), kinds={}), ["NotMIWAE", "CVAE"], **QUICK)
    assert np.isnan(plain.loc["NotMIWAE", "log_likelihood"])
    assert np.isfinite(plain.loc["NotMIWAE", "nll"])
    assert np.isfinite(plain.loc["CVAE", ["x_rmse", "x_accuracy", "log_likelihood"]].astype(float)).all()


BAD = [
    ({"models": []}, ValueError, "models is empty"),
    ({"models": "VAE"}, ValueError, r"\['VAE', 'CVAE'\]"),
    ({"models": ["CVEA"]}, ValueError, "no model 'CVEA'.*Did you mean 'CVAE'"),
    ({"models": ["VAE", "vae"]}, ValueError, "two models are called 'VAE'"),
    ({"models": {"a": ("VAE", 3)}}, ValueError, "a name and its settings"),
    ({"models": {"a": ("VAE", {"latent": 3})}}, ValueError, "VAE: a setting is unknown.*latent"),
    ({"models": {"a": ("VAE", {"max_epochs": 0})}}, ValueError, "max_epochs must be"),
    ({"models": [lacova.VAE(Schema(["crp"], {}))]}, lacova.SchemaError, "VAE is a model of crp"),
    ({"models": [lacova.CVAE(Schema(["alt", "ast"], {"dose": "continuous"}))]}, lacova.SchemaError, "looks at 'dose'"),
    ({"folds": 1}, ValueError, "folds is 1; expected from 2 to 12, the number of different 'id'"),
    ({"folds": 13}, ValueError, "folds is 13"),
    ({"hide": 0.0}, ValueError, "hide is 0.0"),
    ({"hide": 1.0}, ValueError, "hide is 1.0"),
    ({"validation_share": 1.0}, ValueError, "validation_share"),
    ({"draws": 1}, ValueError, "draws is 1"),
    ({"max_epoch": 3}, ValueError, "'max_epoch' is none of training.*Did you mean 'max_epochs'"),
    ({"schema": {"alt": "y"}}, lacova.SchemaError, "lacova.Schema"),
    ({"data": visits().drop(columns="alt")}, lacova.DataError, "alt"),
    ({"data": "file.parquet"}, ValueError, "compare takes a table in memory"),
    ({"data": visits().replace({"id": {3: None}})}, lacova.DataError, "every row must name its instance"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "kind", "text"), BAD)
def test_bad_input_is_refused_before_anything_is_fitted(changes, kind, text, monkeypatch):
    monkeypatch.setattr(comparison, "_fitted_scores", lambda *rest: pytest.fail("fitted"))
    with pytest.raises(kind, match=text):
        lacova.compare(**{"data": visits(), "schema": VISITS, "models": ["VAE", "CVAE"], "folds": 2, **changes})


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "no lines", '{"key": 1}\n[]\n'])
def test_a_file_that_is_no_comparison_is_left_alone(tmp_path, content):
    (tmp_path / "other").write_text(content)
    with pytest.raises(lacova.DataError, match="is no line of a comparison"):
        lacova.compare(visits(), VISITS, ["VAE"], checkpoint=tmp_path / "other", **QUICK)
    assert (tmp_path / "other").read_text() == content
    with pytest.raises(lacova.DataError, match="there is no folder"):
        lacova.compare(visits(), VISITS, ["VAE"], checkpoint=tmp_path / "none" / "file", **QUICK)


def test_an_error_in_a_fit_names_the_model():
    table = visits()
    table.loc[table["id"] == 3, "sex"] = None
    with pytest.raises(lacova.DataError, match=r"^strict: .*sex"):
        lacova.compare(table, VISITS, {"strict": ("CVAE", {"covariates": "oracle"})}, **QUICK)


def test_the_table_of_real_data_shows_means_over_folds(tmp_path):
    from reproduction.models import compare as program

    lines = [
        {"key": f"{name}{k}", "model": name, "fold": k, "rmse": k + 1.0} for name in ("CVAE", "VAE") for k in (0, 1)
    ]
    (tmp_path / "pbc.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = program.table("pbc", tmp_path)
    assert table.index.tolist() == ["VAE", "CVAE"]
    assert table["rmse"].tolist() == ["1.500 ± 0.500"] * 2
    assert program.markdown(table).split("\n")[2] == "| `VAE` | 1.500 ± 0.500 | 2 |"


def test_the_page_shows_the_tables_of_what_was_run():
    from reproduction.models import compare as program

    page = (Path(program.__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    run = [name for name in program.DATASETS if program.file(name, program.FOLDER).exists()]
    assert run
    for name in run:
        assert program.markdown(program.table(name, program.FOLDER)) in page, name
