"""Joint scores and correlations in a report, as text."""

import html

import numpy as np
import pandas as pd
import pytest

from lacova import report
from lacova.analysis.correlations import COLUMNS
from lacova.analysis.hidden_jointly import JOINT_COLUMNS
from lacova.analysis.recovery import Recovery
from lacova.cli import main
from lacova.report.facts import ReportOptions
from lacova.report.joint import MAX_LINES, joint_facts
from lacova.report.warnings import loses_correlations
from tests.report.cases import LAB, lines_of


def recovery(model, table, pairs=3, lost=(), units=40):
    """Two rows and a course that were hidden, and some correlations, those numbered in `lost` lost."""
    joint = pd.DataFrame(
        [("row", 0, "", 2, 0.4, 0.1, 0.5, 0.2), ("row", 4, "", 2, 0.6, 0.3, 0.7, 0.4),
         ("course", 8, "ast", 3, 0.8, 0.5, 0.9, 0.6)],
        columns=list(JOINT_COLUMNS),
    )  # fmt: skip
    lines = [
        ("course" if k == 0 else "pair", f"c{k}", f"c{k}" if k == 0 else "ast", 0.9 - k / 100, 200, 0.3, 50, units,
         -1.2, 0.15, k in lost)
        for k in range(pairs)
    ]  # fmt: skip
    nothing = pd.DataFrame()
    return Recovery(model.schema, 0.1, 0, table, nothing, nothing, joint, pd.DataFrame(lines, columns=list(COLUMNS)))


def test_lines_of_scores_and_correlations(model, table):
    scores, correlations = joint_facts(recovery(model, table, lost=[2]), ReportOptions(10, 0, True))
    assert scores["lines"] == [["rows", "2", "0.5", "0.6", "0.2", "0.3"],
                               ["courses of ast", "1", "0.8", "0.9", "0.5", "0.6"]]  # fmt: skip
    assert correlations["lines"] == [
        ["c2 and ast", "200, 50", "0.88", "0.30", "-1.20", "0.15", "yes"],
        ["c0 from visit to visit", "200, 50", "0.90", "0.30", "-1.20", "0.15", ""],
        ["c1 and ast", "200, 50", "0.89", "0.30", "-1.20", "0.15", ""],
    ]
    assert (
        "3 were compared. Lost, of 0.2 at least, weaker by 0.1 at least, and beyond chance: 1." in correlations["about"]
    )
    assert all(len(line) == len(part["head"]) for part in (scores, correlations) for line in part["lines"])
    (_, many) = joint_facts(recovery(model, table, pairs=30, lost=[29]), ReportOptions(10, 0, True))
    assert len(many["lines"]) == MAX_LINES
    assert many["lines"][0][0] == "c29 and ast"
    assert "Listed are the 20 strongest, lost ones first" in many["about"]


def test_without_patients_every_line_rests_on_ten(model, table):
    bare = ReportOptions(10, 0, False)
    assert joint_facts(recovery(model, table, units=9), bare) == []
    (correlations,) = joint_facts(recovery(model, table, units=10), bare)
    assert len(correlations["lines"]) == 3


def test_lost_correlations_are_a_warning(model, table):
    assert loses_correlations(recovery(model, table)) == []
    (sentence,) = loses_correlations(recovery(model, table, pairs=9, lost=range(9)))
    assert sentence.startswith(
        "Imputed values lose correlations that observed values have: c0 from visit to visit (0.90 observed, 0.30 "
        "imputed), c1 and ast (0.89 observed"
    )
    assert "and 3 more. Figures that join several values" in sentence
    assert loses_correlations(recovery(model, table, lost=[1], units=9), 10) == []
    assert loses_correlations(Recovery(model.schema, 0.1, 0, table, *[pd.DataFrame()] * 2)) == []


def test_the_page_shows_both_tables(model, table, tmp_path):
    text = report.write(model, table, tmp_path / "r.html", share=0.4, draws=20).read_text(encoding="utf-8")
    names, _ = lines_of(text, "Joint scores of hidden values")
    assert [html.unescape(name) for name in names] == ["rows", f"courses of {LAB}", "courses of ast"]
    names, part = lines_of(text, "Correlations of observed and of imputed values")
    assert html.escape(f"{LAB} and ast") in names
    assert "<script" not in part
    alone = report.write(model, None, tmp_path / "a.html").read_text(encoding="utf-8")
    assert "Not shown: no data were given." in alone[alone.index('id="joint"') :][:300]


def test_the_command_prints_the_warnings(tmp_path, capsys):
    import lacova

    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(300, 1)) + 0.3 * rng.normal(size=(300, 3)), columns=list("abc"))
    model = lacova.VAE(lacova.Schema(list("abc"), {}), latent_dim=1).fit(table, max_epochs=5, device="cpu")
    torch_noise = model.vae.likelihood.families["gaussian"].raw
    torch_noise.data.fill_(5.0)  # noise drowns what the model knows of other columns
    model.save(tmp_path / "model.lacova")
    table.to_csv(tmp_path / "data.csv", index=False)
    words = ["report", str(tmp_path), "--data", str(tmp_path / "data.csv"), "--draws", "20", "--out"]
    assert main([*words, str(tmp_path / "r.html")]) == 0
    printed = capsys.readouterr().err
    assert "Warning: Imputed values lose correlations that observed values have: " in printed
    assert main([*words, str(tmp_path / "r.html"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_contents_are_those_of_the_page(model, table):
    content = report.contents(model, table, draws=10)
    assert {"warnings", "joint", "recovery"} <= set(content)
    with pytest.raises(ValueError, match="draws is 1"):
        report.contents(model, table, draws=1)
