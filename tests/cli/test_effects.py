"""`lacova effects`."""

import json

import pytest

import lacova
from lacova.data.io.files import read_table
from tests.cli.cases import QUICK, refused, shell, visits


def test_shares_and_effects(home, tmp_path, capsys):
    model = lacova.load(home / "run" / "model.lacova")
    words = ("effects", home / "run", home / "data.csv", "--draws", 5)
    assert shell(*words, "--out", tmp_path / "e.csv") == 0
    text = capsys.readouterr()
    assert f"written to {tmp_path / 'e.csv'}" in text.err
    want = model.effects(visits(), draws=5)
    assert read_table(tmp_path / "e.csv")["mean"].to_numpy() == pytest.approx(want.rows["mean"].to_numpy(), rel=1e-9)
    assert text.out.split("\n")[1].split() == ["alt", *(f"{share:.3f}" for share in want.shares["alt"])]
    assert shell(*words, "--json") == 0
    assert text.out.rstrip().split("\n")[-2].split() == ["alt", *(f"{share:.3f}" for share in want.known["alt"])]
    printed = json.loads(capsys.readouterr().out)
    assert printed["noise"]["alt"] == pytest.approx(want.shares["alt"].iloc[-1])
    assert list(printed["known"]) == want.known["component"].tolist()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("effects", "run", "data.csv", "--interval", 2), "interval must lie between 0 and 1"),
        (("effects", "run", "data.csv", "--out", "e.doc"), "e.doc"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(home, monkeypatch, capsys, words, message):
    monkeypatch.chdir(home)
    refused(capsys, words, message)


def test_a_model_without_a_gp_prior_is_refused(home, tmp_path, capsys):
    words = ("fit", home / "data.csv", "--schema", home / "s.toml", "--model", "cvae", "--out", tmp_path / "plain")
    assert shell(*words, *QUICK, "--quiet") == 0
    words = ("effects", tmp_path / "plain", home / "data.csv")
    refused(capsys, words, f"effects are those of a GP prior, but {tmp_path / 'plain'} holds a CVAE")
