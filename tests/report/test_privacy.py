"""Reports without single patients: no label, no value, and no figure that rests on few patients."""

import re

import pandas as pd
import pytest

from lacova import report
from lacova.data.errors import DataError
from lacova.report import facts
from lacova.report.facts import ReportOptions
from tests.report.cases import LAB, facts_of, lines_of, visits


def numbers_of(page):
    text = page.split('id="facts">')[1].split("</script>")[0]
    return {float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", text)}


def test_without_patients_no_label_and_no_single_value_is_left(model, table, page, tmp_path):
    bare = report.write(model, table, tmp_path / "r.html", patients=False, draws=20).read_text(encoding="utf-8")
    assert "patient-" in page
    assert "patient-" not in bare
    values = {float(f"{value:.4g}") for value in table[LAB].dropna()}
    assert values <= numbers_of(page)
    assert not values & numbers_of(bare)
    assert "98,765" in page  # the largest value, in the summary
    assert "98,765" not in bare
    assert set(facts_of(bare)) == {"gaps", "training", "calibration", "effects"}
    assert not any("scatter" in c for c in facts_of(bare)["calibration"]["columns"])
    assert "cat(id)" not in facts_of(bare)["effects"]["lines"]
    assert all(row.startswith("visit ") for row in facts_of(bare)["gaps"]["rows"])
    assert "Left out, as requested" in bare


def test_without_patients_rare_levels_and_few_values_are_not_shown(model):
    frame = visits(30, 2).assign(arm=["rare"] * 9 + ["usual"] * 51)
    frame.loc[12:, "ast"] = None
    summaries = {c["name"]: c["summary"] for c in facts.columns(frame, model.schema, ReportOptions(10, 0, False))}
    assert summaries["arm"] == "usual 85%, ..."
    assert summaries["ast"] == "few values"
    assert "from" not in summaries[LAB]
    rare = facts.columns(frame.assign(arm=frame["id"]), model.schema, ReportOptions(10, 0, False))
    assert next(c["summary"] for c in rare if c["name"] == "arm") == "rare levels only"


def test_without_patients_every_figure_rests_on_ten(model, table, tmp_path):
    """Enough values, but of five patients: no error, no coverage and no width of a distribution is shown for them."""
    few = table.assign(ast=table["ast"].where(table["id"].isin(table["id"].unique()[:5])))
    few = pd.concat([few.assign(day=few["day"] + 3 * k) for k in range(5)], ignore_index=True)
    pages = [
        report.write(model, few, tmp_path / "r.html", patients=shown, draws=10, share=0.5).read_text(encoding="utf-8")
        for shown in (True, False)
    ]
    caption = "Imputed against true values"
    names = [lines_of(page, caption)[0] for page in pages]
    assert "ast" in names[0]
    assert "ast" not in names[1]
    assert len(names[1]) == len(names[0]) - 1
    assert "fewer than 10 patients are left out: 1 of" in pages[1]
    assert [c["name"] for c in facts_of(pages[0])["calibration"]["columns"]].count("ast") == 1
    assert "ast" not in [c["name"] for c in facts_of(pages[1])["calibration"]["columns"]]
    gains = [lines_of(page, "Gaps in covariates")[1] for page in pages]
    assert "as wide as the prior" in gains[0]
    assert "as wide as the prior" not in gains[1]  # age is missing of a single patient
    assert "not shown for fewer than 10 patients" in gains[1]
    with pytest.raises(DataError, match=r"have 9 patient\(s\).* every figure rests on 10 at least"):
        report.write(model, table[table["id"].isin(table["id"].unique()[:9])], tmp_path / "r.html", patients=False)
