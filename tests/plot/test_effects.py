"""Effects along a covariate, by level and by patient."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
from matplotlib.collections import PolyCollection

from lacova import plot
from lacova.plot.effects import binned
from tests.plot.cases import legend, visits


def test_effects_along_a_covariate_by_level_and_by_patient(model, table, effects):
    by_sex = plot.effects(model, table, "gp(age):cat(sex)", "alt", computed=effects)
    assert legend(by_sex) == ["sex f", "sex m"]
    assert (by_sex.get_xlabel(), by_sex.get_ylabel()) == ("age (years)", "effect on alt (U/L)")
    assert sum(isinstance(c, PolyCollection) for c in by_sex.collections) == 2
    levels = plot.effects(model, table, "cat(arm)", "ast", computed=effects)
    assert [t.get_text() for t in levels.get_xticklabels()] == ["a", "b", "c"]
    patients = plot.effects(model, table, "cat(id)", "ast", computed=effects)
    means = patients.containers[0].lines[0].get_ydata()
    assert len(means) == 24
    assert (np.diff(means) >= 0).all()
    crossed = plot.effects(model, table, "cat(id)", "ast", by="day", computed=effects)
    assert crossed.get_xlabel() == "day (days)"


def test_of_many_levels_the_most_frequent_have_a_line_and_the_legend_says_so(model, table):
    sexes = [f"s{min(k % 16, 11):02d}" for k in range(len(table))]  # the last by name is the most frequent
    rows = pd.DataFrame({"component": "gp(age):cat(sex)", "measurement": "alt", "mean": np.zeros(len(table))})
    rows, data = rows.assign(lower=0.0, upper=1.0), table.assign(sex=sexes, age=50.0)
    ax = plot.effects(model, data, "gp(age):cat(sex)", "alt", computed=SimpleNamespace(rows=rows))
    assert len(legend(ax)) == 6
    assert "sex s11" in legend(ax)
    assert ax.get_legend().get_title().get_text() == "6 of 12 levels, the most frequent"


def test_rows_with_equal_values_share_a_group():
    along = np.array([0.0] * 30 + [1.0] * 3 + [2.0] * 30 + [3.0] * 2)
    line = binned(pd.DataFrame({"mean": along, "lower": along, "upper": along}), along, max_bins=10, min_size=5)
    assert line["n"].tolist() == [30, 35]  # three and two rows alone would be too few
    np.testing.assert_allclose(line["at"], line["mean"])
    patients = np.r_[np.zeros(30), np.arange(1, 36)]  # the first thirty rows belong to one patient
    by_patient = binned(pd.DataFrame({"mean": along, "lower": along, "upper": along}), along, 10, 5, patients)
    assert by_patient["n"].tolist() == [65]


def test_effects_of_500_patients_are_a_band(model):
    data = visits(500, 2)
    rows = pd.DataFrame(
        {"component": "cat(id)", "measurement": "alt", "mean": np.arange(1000.0), "lower": 0.0, "upper": 1.0}
    )
    ax = plot.effects(model, data, "cat(id)", "alt", computed=SimpleNamespace(rows=rows))
    assert ax.get_xlabel() == "500 patients, by size of the effect"
    assert len(ax.lines) == 2
