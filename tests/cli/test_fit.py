"""`lacova fit`."""

import json
import os

import lacova
from lacova.data.io.files import read_table
from tests.cli.cases import QUICK, shell, visits


def predictions(run):
    return lacova.load(run / "model.lacova").predict(visits())


def test_a_run_is_a_folder_with_model_schema_and_record(home):
    assert sorted(os.listdir(home / "run")) == ["model.lacova", "schema.toml", "training.csv"]
    assert lacova.Schema.from_toml(home / "run" / "schema.toml") == lacova.Schema.from_toml(home / "s.toml")
    record = read_table(home / "run" / "training.csv")
    assert record["epoch"].tolist() == [1.0, 2.0]
    assert "elbo" in set(record)
    assert "validation" not in record  # thirty patients are too few to hold any out


def test_fit_reports_and_seeds_reproduce(home, tmp_path, capsys):
    words = ["fit", home / "data.csv", "--schema", home / "s.toml", *QUICK]
    assert shell(*words, "--out", tmp_path / "a", "--json") == 0
    text = capsys.readouterr()
    assert json.loads(text.out)["epoch"] == 2.0
    assert json.loads(text.out)["warnings"] == []
    assert text.err == "Learning a GPPriorVAE from 120 rows.\n"
    first = predictions(home / "run")
    assert predictions(tmp_path / "a").equals(first)
    assert shell(*words, "--out", tmp_path / "a", "--seed", 1) == 1
    assert "add --force" in capsys.readouterr().err
    assert shell(*words, "--out", tmp_path / "a", "--seed", 1, "--force", "--quiet") == 0
    assert capsys.readouterr().err == ""
    assert not predictions(tmp_path / "a").equals(first)
    assert os.listdir(tmp_path) == ["a"]


def test_models_and_validation_can_be_chosen(home, tmp_path, capsys):
    words = ["fit", home / "data.csv", "--schema", home / "s.toml", *QUICK, "--quiet"]
    assert shell(*words, "--model", "cvae", "--out", tmp_path / "a", "--validation", home / "data.csv") == 0
    assert type(lacova.load(tmp_path / "a" / "model.lacova")) is lacova.CVAE
    assert shell(*words, "--prior", "gp(day) + cat(sex)", "--out", tmp_path / "b", "--validation-share", 0) == 0
    loaded = lacova.load(tmp_path / "b" / "model.lacova")
    assert loaded.formula == "gp(day) + cat(sex)"
    assert "validation" not in loaded.training
    assert shell(*words, "--model", "cvae", "--prior", "gp(day)", "--out", tmp_path / "c") == 1
    assert "add --model gp" in capsys.readouterr().err
    assert shell(*words, "--validation-share", 1.5, "--out", tmp_path / "c") == 1
    assert "expected a share" in capsys.readouterr().err


def test_any_model_and_any_of_its_settings_can_be_named(home, tmp_path, capsys):
    words = ["fit", home / "data.csv", "--schema", home / "s.toml", *QUICK, "--quiet", "--out", tmp_path / "a"]
    assert shell(*words, "--set", "scaling=normal", "--set", "patient-effects=false", "--set", "importance=2") == 0
    loaded = lacova.load(tmp_path / "a" / "model.lacova")
    assert type(loaded) is lacova.GPPriorVAE
    assert (loaded.scaling, loaded.patient_effects, loaded.options.importance) == ("normal", False, 2)
    assert shell(*words, "--force", "--model", "lvae") == 0
    assert type(lacova.load(tmp_path / "a" / "model.lacova")) is lacova.LVAE
    for wrong, message in (
        (["--set", "scaling"], "--set is 'scaling'; expected NAME=VALUE"),
        (["--set", "scaling=odd"], "scaling is 'odd'"), (["--set", "scale=2"], "GPPriorVAE: a setting is unknown"),
        (["--set", "samples=2", "--set", "samples=3"], "--set gives samples twice"),
        (["--set", "latent_dim=2"], "says again what --latent-dim says"),
        (["--set", "max_epochs=2"], "says again what --epochs says"), (["--model", "xvae"], "no model 'xvae'"),
    ):  # fmt: skip
        assert shell(*words, "--force", *wrong) == 1
        assert message in capsys.readouterr().err


def test_a_fit_interrupted_before_or_after_training(home, tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    words = ("fit", home / "data.csv", "--schema", home / "s.toml", "--out", tmp_path / "a", *QUICK)
    with monkeypatch.context() as patch:
        patch.setattr("lacova.models.fitting.build", interrupt)
        assert shell(*words) == 130
    assert "interrupted; nothing was written" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
    with monkeypatch.context() as patch:
        patch.setattr(lacova.GPPriorVAE, "save", interrupt)
        assert shell(*words, "--checkpoint-every", 0) == 130
        assert "interrupted; nothing was written" in capsys.readouterr().err
        assert os.listdir(tmp_path) == []
        assert shell(*words) == 130
    assert "no model was written. The same command with --resume goes on." in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["a.checkpoint"]  # training is not lost
    assert shell(*words, "--resume") == 0
    assert predictions(tmp_path / "a").equals(predictions(home / "run"))
    assert os.listdir(tmp_path) == ["a"]
