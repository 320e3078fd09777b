"""`lacova describe`."""

import json

from tests.cli.cases import shell


def test_descriptions_for_people_and_programs(home, capsys):
    assert shell("describe", home / "run") == 0
    text = capsys.readouterr().out
    assert "gp(day) + gp(day):cat(sex) + cat(id) + gp(day):cat(id)" in text
    assert shell("describe", home / "run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["model"] == "GPPriorVAE"
