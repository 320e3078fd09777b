"""`lacova score`."""

import json

import pytest

import lacova
from tests.cli.cases import shell, visits


def test_scores_for_people_and_programs(home, capsys):
    assert shell("score", home / "run", home / "data.csv") == 0
    text = capsys.readouterr().out
    head, alt = text.split("\n")[:2]
    assert head.split() == ["entries", "sd", "nll", "rmse", "crps", "coverage50", "coverage90", "coverage95"]
    assert alt.split()[0] == "alt"
    assert float(alt.split()[2]) == pytest.approx(visits()["alt"].std(), rel=1e-3)
    assert all(len(number.strip("-0.").replace(".", "")) <= 4 for number in alt.split()[2:])
    last = text.rstrip().split("\n")[-1].split()
    assert last[::2] == ["energy", "variogram", "course_energy", "course_variogram"]
    assert all(0 < float(value) < 3 for value in last[1::2])
    assert shell("score", home / "run", home / "data.csv", "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert set(scores) == {"overall", "measurements"}
    assert set(scores["measurements"]) == {"alt", "ast"}
    assert scores["overall"] == lacova.load(home / "run" / "model.lacova").score(visits())
