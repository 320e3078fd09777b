"""Several models on one table: folds, questions, resuming, and the command."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import lacova
from lacova import Schema, comparison
from lacova.analysis.comparison import fold_of
from lacova.cli import main
from lacova.data.io.files import read_table

VISITS = Schema(["alt", "ast"], {"sex": "categorical"}, instance="id", time="day", static=["sex"])
QUICK = {"folds": 2, "max_epochs": 2, "device": "cpu", "draws": 20}
PAIR = {"VAE": ("VAE", {"latent_dim": 1}), "CVAE": ("CVAE", {"latent_dim": 1})}


def visits(patients=12, seed=0):
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), 3)
    n = len(patient)
    table = pd.DataFrame({
        "id": patient, "day": np.tile([0.0, 30.0, 60.0], patients), "sex": np.where(patient % 2, "f", "m"),
        "alt": 30 + 8 * (patient % 2) + rng.normal(size=n), "ast": rng.normal(20, 3, n), "note": "-",
    })  # fmt: skip
    return table.sample(frac=1, random_state=seed, ignore_index=True)


@pytest.mark.parametrize("folds", [2, 5, 12])
def test_folds_hold_whole_patients_and_are_of_one_size(folds):
    table = visits()
    number = fold_of(table, VISITS, folds, 3)
    assert (pd.Series(number).groupby(table["id"]).nunique() == 1).all()
    sizes = pd.Series(number).groupby(number).size() // 3
    assert len(sizes) == folds
    assert sizes.max() - sizes.min() <= 1
    assert not np.array_equal(number, fold_of(table, VISITS, folds, 4))


def test_without_an_instance_rows_are_split():
    number = fold_of(visits(), Schema(["alt"], {"sex": "categorical"}), 4, 0)
    assert np.bincount(number).tolist() == [9, 9, 9, 9]


def test_models_learn_from_other_patients_than_they_are_asked_about(monkeypatch):
    seen = []
    monkeypatch.setattr(comparison, "_fitted_scores", lambda entry, part, *rest: seen.append(part) or {"parameters": 1})
    table = visits(40)
    lacova.compare(table, VISITS, ["CVAE"], folds=4)
    assert len(seen) == 4
    for part in seen:
        groups = [set(rows["id"]) for rows in (part.train, part.validation, part.test)]
        assert [len(group) for group in groups] == [27, 3, 10]
        assert len(set.union(*groups)) == 40
    assert sorted(pd.concat([part.test for part in seen])["alt"]) == sorted(table["alt"])


def test_what_is_hidden_is_a_share_of_measurements_and_covariates_but_not_the_time(monkeypatch):
    seen = []
    monkeypatch.setattr(comparison, "_fitted_scores", lambda entry, part, *rest: seen.append(part) or {"parameters": 1})
    lacova.compare(visits(300), VISITS, ["CVAE", "VAE"], folds=2, hide=0.3)
    assert seen[0] is seen[1]  # the same questions to all models
    for part in seen:
        gone = part.hidden.isna().mean()
        assert (gone[["day", "id", "note"]] == 0).all()
        assert ((gone[["alt", "ast", "sex"]] - 0.3).abs() < 0.1).all()
        assert (part.hidden["sex"].isna().groupby(part.hidden["id"]).nunique() == 1).all()
        pd.testing.assert_frame_equal(part.open_x[["alt", "ast"]], part.hidden[["alt", "ast"]])
        assert part.open_x["sex"].notna().all()


def test_the_same_seed_gives_the_same_table_and_another_does_not():
    one, two, other = (lacova.compare(visits(), VISITS, PAIR, seed=seed, **QUICK) for seed in (0, 0, 1))
    fixed = [name for name in one if not name.startswith("seconds")]
    pd.testing.assert_frame_equal(one[fixed], two[fixed])
    assert not np.isclose(one["crps"], other["crps"]).any()


def test_scores_are_those_of_the_models_themselves():
    """One fold done by hand."""
    table = visits()
    found = lacova.compare(table, VISITS, {"m": ("CVAE", {"latent_dim": 1})}, validation_share=0.0, **QUICK)
    number, by_hand = fold_of(table, VISITS, 2, 0), []
    for k in range(2):
        part = comparison._fold(table, VISITS, number, k, 0.2, 0.0, 0)
        model = lacova.CVAE(VISITS, latent_dim=1).fit(part.train, seed=k, max_epochs=2, device="cpu")
        drawn = model.impute(part.hidden, draws=20, seed=k)
        line = {"predict": model.score(part.test, draws=20, seed=k)}
        total, entries, inside = 0.0, 0, 0
        for name in ("alt", "ast"):
            gone = part.hidden[name].isna().to_numpy()
            said = drawn[name].to_numpy().reshape(20, -1)[:, gone] / part.train[name].std(ddof=0)
            truth = part.test[name].to_numpy()[gone] / part.train[name].std(ddof=0)
            gaps = np.abs(said[:, None] - said[None]).sum((0, 1)) / (20 * 19)
            total += (np.abs(said - truth).mean(0) - gaps / 2).sum()
            low, high = np.quantile(said, [0.05, 0.95], axis=0, method="weibull")
            inside += ((truth >= low) & (truth <= high)).sum()
            entries += gone.sum()
        once = ~part.test["id"].duplicated() & part.hidden["sex"].isna()
        guess = pd.concat([part["sex"] for _, part in drawn.reset_index().groupby("draw")], axis=1, ignore_index=True)
        share = (drawn["sex"] == "m").to_numpy().reshape(20, -1).mean(0)
        assert guess.shape[1] == 20
        right = np.where(share > 0.5, "m", "f") == part.test["sex"]
        line |= {"crps": total / entries, "inside": inside / entries, "sex": right[once].mean()}
        line["likelihood"] = model.log_likelihood(part.test, draws=20, seed=k).mean()
        by_hand.append(line)
    means = pd.DataFrame(by_hand)
    row = found.loc["m"]
    assert row["crps"] == pytest.approx(means["crps"].mean(), rel=1e-4)
    assert row["crps_se"] == pytest.approx(means["crps"].std() / 2**0.5, rel=1e-3)
    assert row["coverage90"] == pytest.approx(means["inside"].mean())
    assert row["x_accuracy"] == pytest.approx(means["sex"].mean())
    assert row["log_likelihood"] == pytest.approx(means["likelihood"].mean(), rel=1e-5)
    assert row["predict_crps"] == pytest.approx(np.mean([each["crps"] for each in means["predict"]]), rel=1e-4)
    assert row["parameters"] == sum(p.numel() for p in model._vae.parameters())


def test_where_covariates_explain_measurements_a_conditional_model_wins():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = x @ rng.normal(size=(2, 3)) + rng.normal(0, 0.1, (300, 3))
    table = pd.DataFrame(np.hstack([x, y]), columns=["x1", "x2", "a", "b", "c"])
    schema = Schema(["a", "b", "c"], {"x1": "continuous", "x2": "continuous"})
    found = lacova.compare(
        table, schema, {name: (name, {"latent_dim": 1}) for name in ("VAE", "CVAE")}, folds=2, max_epochs=40,
        device="cpu", learning_rate=5e-3,
    )  # fmt: skip
    vae, cvae = found.loc["VAE"], found.loc["CVAE"]
    for name in ("nll", "crps", "rmse", "predict_nll", "predict_rmse"):
        assert cvae[name] < vae[name] - 2 * (cvae[f"{name}_se"] + vae[f"{name}_se"]), name
    assert cvae["log_likelihood"] > vae["log_likelihood"]
    assert vae["predict_rmse"] > 0.9  # in standard deviations: it knows nothing of a row
    assert cvae["x_rmse"] < 0.9
    assert np.isnan(vae["x_rmse"])


class Killed(Exception):
    pass


@pytest.mark.parametrize("torn", [False, True])
def test_a_killed_comparison_goes_on_where_it_was(tmp_path, monkeypatch, torn):
    whole = lacova.compare(visits(), VISITS, PAIR, **QUICK)
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
    fixed = [name for name in whole if not name.startswith("seconds")]
    pd.testing.assert_frame_equal(again[fixed], whole[fixed])

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
    found = lacova.compare(pl.from_pandas(table), VISITS, models, **QUICK)
    assert found.index.tolist() == ["mine", "weighted", "gp"]
    assert np.isfinite(found["crps"]).all()
    assert found.loc["mine", "crps"] != found.loc["weighted", "crps"]
    assert mine._vae is None  # fitted were copies
    assert "accuracy" not in found
    assert "x_rmse" not in found


def test_an_oracle_sees_the_covariates_and_kinds_have_accuracies():
    rng = np.random.default_rng(1)
    table = visits().assign(event=rng.random(36) < 0.4, age=rng.normal(size=36))
    schema = Schema({"alt": "gaussian", "event": "bernoulli"}, {"age": "continuous", "sex": "categorical"})
    models = {"oracle": ("CVAE", {"covariates": "oracle"}), "NotMIWAE": lacova.NotMIWAE(Schema(["alt"], {}))}
    with pytest.raises(lacova.SchemaError, match="NotMIWAE is a model of alt"):
        lacova.compare(table, schema, models, **QUICK)
    found = lacova.compare(table, schema, {"oracle": models["oracle"]}, **QUICK).loc["oracle"]
    assert 0 <= found["accuracy"] <= 1
    assert "x_rmse" not in found.index
    plain = lacova.compare(table, replace(schema, measurements=("alt",), kinds={}), ["NotMIWAE", "CVAE"], **QUICK)
    assert np.isnan(plain.loc["NotMIWAE", "log_likelihood"])
    assert np.isfinite(plain.loc["NotMIWAE", "nll"])
    assert np.isfinite(plain.loc["CVAE", ["x_rmse", "x_accuracy", "log_likelihood"]].astype(float)).all()


def test_the_noise_of_values_that_were_weighed_themselves_is_not_counted_twice():
    table, schema = visits()[["alt"]], Schema(["alt"], {})
    model = lacova.NotMIWAE(schema, latent_dim=1).fit(table, max_epochs=1, device="cpu")
    (part,) = model._imputation(model._encode(table.assign(alt=None).astype(float)), 50, 0)
    assert part.location.equal(part.y)
    assert not part.var.any()


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


@pytest.mark.parametrize(("conditional", "kind", "text"), BAD)
def test_bad_input_is_refused_before_anything_is_fitted(given, kind, text, monkeypatch):
    monkeypatch.setattr(comparison, "_fitted_scores", lambda *rest: pytest.fail("fitted"))
    with pytest.raises(kind, match=text):
        lacova.compare(**{"data": visits(), "schema": VISITS, "models": ["VAE", "CVAE"], "folds": 2, **given})


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


def test_from_the_shell(tmp_path, capsys):
    visits().to_csv(tmp_path / "data.csv", index=False)
    VISITS.to_toml(tmp_path / "s.toml")
    words = ["compare", tmp_path / "data.csv", "--schema", tmp_path / "s.toml", "--models", "VAE, CVAE", "--folds", 2]
    words += ["--epochs", 2, "--latent-dim", 1, "--draws", 20, "--device", "cpu", "--resume", tmp_path / "done.jsonl"]
    words = [str(word) for word in words]
    assert main([*words, "--out", str(tmp_path / "t.csv"), "--quiet"]) == 0
    text = capsys.readouterr().out
    assert text.split("\n")[0].split() == ["VAE", "CVAE"]
    assert text.split("\n")[1].split()[0] == "nll"
    assert "±" in text
    written = read_table(tmp_path / "t.csv").set_index("model")
    kept = (tmp_path / "done.jsonl").read_bytes()
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (tmp_path / "done.jsonl").read_bytes() == kept
    assert found["CVAE"]["crps"] == pytest.approx(written.loc["CVAE", "crps"])
    assert found["VAE"]["x_accuracy"] is None
    expected = lacova.compare(visits(), VISITS, PAIR, **QUICK)
    assert found["VAE"]["crps"] == pytest.approx(expected.loc["VAE", "crps"])
    others = [*words[:5], "CVAE:mean,CVAE", *words[6:], "--set", "learning_rate=0.01", "--json"]
    assert main(others) == 0
    found = json.loads(capsys.readouterr().out)
    same = {name: ("CVAE", {"latent_dim": 1, "covariates": name, "learning_rate": 0.01}) for name in ("mean", "joint")}
    expected = lacova.compare(visits(), VISITS, same, **QUICK)
    assert [found[name]["crps"] for name in ("CVAE:mean", "CVAE")] == pytest.approx(expected["crps"].tolist())
    for bad, said in (
        (["--models", "VAE,VAE"], "names VAE twice"), (["--models", "XAE"], "no model 'XAE'"),
        (["--schema", str(tmp_path / "none.toml")], "there is no file"), (["--folds", "40"], "folds is 40"),
        (["--set", "latent_dim=2"], "says again what --latent-dim says"),
    ):  # fmt: skip
        assert main([*words, *bad]) == 1
        assert said in capsys.readouterr().err


def test_the_table_of_real_data_shows_means_over_folds(tmp_path):
    from reproduction.models import compare as program

    lines = [
        {"key": f"{name}{k}", "model": name, "fold": k, "rmse": k + 1.0} for name in ("CVAE", "VAE") for k in (0, 1)
    ]
    (tmp_path / "pbc.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = program.table("pbc", tmp_path)
    assert found.index.tolist() == ["VAE", "CVAE"]
    assert found["rmse"].tolist() == ["1.500 ± 0.500"] * 2
    assert program.markdown(found).split("\n")[2] == "| `VAE` | 1.500 ± 0.500 | 2 |"


def test_the_page_shows_the_tables_of_what_was_run():
    from reproduction.models import compare as program

    page = (Path(program.__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    run = [name for name in program.DATASETS if program.file(name, program.FOLDER).exists()]
    assert run
    for name in run:
        assert program.markdown(program.table(name, program.FOLDER)) in page, name
