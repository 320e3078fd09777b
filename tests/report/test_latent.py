"""The latent space."""

import pandas as pd

from lacova.report.facts import ReportOptions
from lacova.report.latent import latent_space


def test_observed_levels_beyond_those_told_apart_are_others_and_not_missing(arms):
    table, model = arms
    shown = next(c for c in latent_space(model, table, [], ReportOptions(10, 0, True))["colours"] if c["name"] == "arm")
    assert len(shown["levels"]) == 7
    assert shown["levels"][-2:] == ["arm 11", "others"]
    for value, code in zip(table["arm"], shown["values"], strict=True):
        assert (code is None) == pd.isna(value)
        assert code is None or shown["levels"][int(code)] == (value if value in shown["levels"] else "others")
    seven = latent_space(model, table[table["arm"] > "arm 04"], [], ReportOptions(10, 0, True))["colours"][0]
    assert seven["levels"] == [f"arm {k:02d}" for k in range(5, 12)]
