"""`lacova demo`."""

import io

import pandas as pd
from rich.console import Console

from lacova import cli
from lacova.cli import demo


def test_demo_leaves_scores_and_a_picture_and_prints_the_table(tmp_path):
    page = io.StringIO()
    sizes = {"train": 60, "validation": 20, "test": 20}
    scores = demo.run(tmp_path / "out", epochs=1, rows=sizes, console=Console(file=page, width=100))
    assert scores["method"].tolist() == list(demo.METHODS)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "out" / "scores.csv"), scores)
    assert (tmp_path / "out" / "digits.png").read_bytes().startswith(b"\x89PNG")
    assert "report.html" in page.getvalue().strip().split("\n")[-1]
    assert (tmp_path / "out" / "report.html").stat().st_size < 8e6
    for word in ("mean imputation", "lacova", "oracle", "NLL"):
        assert word in page.getvalue()


def test_command_passes_its_options_on(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(demo, "run", lambda *arguments: calls.append(arguments))
    assert cli.main(["demo", "--out", str(tmp_path), "--epochs", "3"]) == 0
    assert calls == [(tmp_path, 3)]
