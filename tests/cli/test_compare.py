"""`lacova compare`."""

import json

import pytest

import lacova
from lacova.data.io.files import read_table
from tests.analysis.cases import PAIR, QUICK, VISITS, visits
from tests.cli.cases import shell


def test_models_are_compared(tmp_path, capsys):
    visits().to_csv(tmp_path / "data.csv", index=False)
    VISITS.to_toml(tmp_path / "s.toml")
    words = ["compare", tmp_path / "data.csv", "--schema", tmp_path / "s.toml", "--models", "VAE, CVAE", "--folds", 2]
    words += ["--epochs", 2, "--latent-dim", 1, "--draws", 20, "--device", "cpu", "--resume", tmp_path / "done.jsonl"]
    words = [str(word) for word in words]
    assert shell(*words, "--out", str(tmp_path / "t.csv"), "--quiet") == 0
    text = capsys.readouterr().out
    assert text.split("\n")[0].split() == ["VAE", "CVAE"]
    assert text.split("\n")[1].split()[0] == "nll"
    assert "±" in text
    written = read_table(tmp_path / "t.csv").set_index("model")
    results = (tmp_path / "done.jsonl").read_bytes()
    assert shell(*words, "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert (tmp_path / "done.jsonl").read_bytes() == results
    assert scores["CVAE"]["crps"] == pytest.approx(written.loc["CVAE", "crps"])
    assert scores["VAE"]["x_accuracy"] is None
    expected = lacova.compare(visits(), VISITS, PAIR, **QUICK)
    assert scores["VAE"]["crps"] == pytest.approx(expected.loc["VAE", "crps"])
    others = [*words[:5], "CVAE:mean,CVAE", *words[6:], "--set", "learning_rate=0.01", "--json"]
    assert shell(*others) == 0
    scores = json.loads(capsys.readouterr().out)
    same = {name: ("CVAE", {"latent_dim": 1, "covariates": name, "learning_rate": 0.01}) for name in ("mean", "joint")}
    expected = lacova.compare(visits(), VISITS, same, **QUICK)
    assert [scores[name]["crps"] for name in ("CVAE:mean", "CVAE")] == pytest.approx(expected["crps"].tolist())
    for wrong, message in (
        (["--models", "VAE,VAE"], "names VAE twice"), (["--models", "XAE"], "no model 'XAE'"),
        (["--schema", str(tmp_path / "none.toml")], "there is no file"), (["--folds", "40"], "folds is 40"),
        (["--set", "latent_dim=2"], "says again what --latent-dim says"),
    ):  # fmt: skip
        assert shell(*words, *wrong) == 1
        assert message in capsys.readouterr().err
