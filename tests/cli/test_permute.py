"""`lacova permute`."""

import json

from lacova.data.io.files import read_table
from tests.cli.cases import refused, shell


def test_arms_are_permuted(home, tmp_path, capsys):
    words = ("permute", home / "run", home / "data.csv", "--covariate", "sex", "--permutations", 19, "--epochs", 1)
    words = (*words, "--draws", 20, "--set", "start=random", "--device", "cpu", "--quiet")
    words = (*words, "--resume", tmp_path / "done.jsonl")
    data = read_table(home / "data.csv")
    known = data[data.groupby("id")["sex"].transform("count") > 0]
    known.to_csv(tmp_path / "known.csv", index=False)
    refused(capsys, words, "'sex' is missing for")
    words = (*words[:2], tmp_path / "known.csv", *words[3:])
    assert shell(*words, "--out", tmp_path / "fits.csv") == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split() == ["alt", "ast"]
    assert "sex set from f to m" in text
    assert len(read_table(tmp_path / "fits.csv")) == 40
    done = (tmp_path / "done.jsonl").read_bytes()
    assert shell(*words, "--json", "--value", "m", "--versus", "f") == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"alt", "ast"}
    assert answer["alt"]["permutations"] == 19
    assert 0.05 <= answer["alt"]["p_value"] <= 1.0
    assert (tmp_path / "done.jsonl").read_bytes() == done
    refused(capsys, (*words, "--value", "x", "--versus", "f"), "'x' is none of them")
    refused(capsys, (*words, "--validation-share", 2), "--validation-share is 2.0; expected a share")
    refused(capsys, (*words, "--set", "validation=true"), "validation is True; expected a share")
    assert shell(*words, "--validation-share", 0) == 0  # RUN left it to `fit`
    assert (tmp_path / "done.jsonl").read_bytes().count(b"\n") == 2 * done.count(b"\n")
