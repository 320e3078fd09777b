"""Effects of components."""

import numpy as np
import pandas as pd

from lacova.report.effects import _lines, component_effects
from lacova.report.facts import ReportOptions
from tests.report.cases import LAB, visits


def test_effects_say_of_how_many_levels_they_are(arms, tmp_path):
    table, model = arms
    lines = component_effects(model, table, ["alt"], ReportOptions(10, 0, True))["lines"]
    assert "arm 11" in lines["cat(arm)"]["levels"]
    assert lines["cat(arm)"]["note"] == "6 of 12 levels of arm are shown, the most frequent."
    drawn = [band["name"] for band in lines["gp(dose):cat(arm)"]["measurements"][0]]
    assert "arm arm 11" in drawn
    assert lines["gp(dose):cat(arm)"]["note"].startswith(f"{len(drawn)} of 12 levels")


def test_without_patients_a_point_of_an_effect_rests_on_ten(model):
    """One patient with most of the rows cannot have points of its own."""
    rows = pd.concat([visits(30, 2), visits(1, 60).assign(day=1000.0 + np.arange(60))], ignore_index=True)
    effects = model.effects(rows, draws=2)
    shown = _lines(model, rows, effects, "gp(day)", [LAB], ReportOptions(10, 0, False))["measurements"][0][0]
    assert max(shown["at"]) < 900
    own = _lines(model, rows, effects, "gp(day)", [LAB], ReportOptions(10, 0, True))["measurements"][0][0]
    assert len(own["at"]) > len(shown["at"])
