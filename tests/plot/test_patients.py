"""Trajectories and forecasts."""

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.container import ErrorbarContainer

from lacova import plot
from lacova.data.errors import DataError
from lacova.plot.patients import later_visits
from tests.plot.cases import legend


def test_trajectory(model, table):
    ax = plot.trajectory(model, table, 0, "alt", truth=table.fillna({"alt": 31.0}))
    rows = table[table["id"] == 0]
    marks = {line.get_label(): line for line in ax.lines}
    assert len(marks["observed"].get_xdata()) == rows["alt"].notna().sum()
    bars = [c for c in ax.containers if isinstance(c, ErrorbarContainer)]
    assert [len(c.lines[0].get_xdata()) for c in bars] == [rows["alt"].isna().sum()]
    assert set(marks["true value of a gap"].get_ydata()) == {31.0}
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("day (days)", "alt (U/L)", "id 0")


def test_a_missing_time_is_drawn_in_its_place_and_truth_belongs_to_its_row(model, table):
    data = table.copy()
    data.loc[[0, 2], "day"] = None
    data.loc[[0, 1, 2, 4], "alt"] = None
    truth = table.assign(alt=np.arange(len(table), dtype=float), day=table["day"].iloc[::-1].to_numpy())
    ax = plot.trajectory(model, data, 0, "alt", truth=truth)
    assert (np.diff(ax.lines[0].get_xdata()) >= 0).all()
    at = model.impute(data[data["id"] == 0])["day"]
    crosses = next(line for line in ax.lines if line.get_label() == "true value of a gap")
    assert dict(zip(crosses.get_ydata(), crosses.get_xdata(), strict=True)) == {k: at[k] for k in (0, 1, 2, 4)}


def test_later_visits_are_like_the_last_one_whose_time_is_known(model, table):
    past = table[table["id"] == 0].assign(arm=list("abcba"), day=[0.0, 90, 30, None, None])
    assert later_visits(past, model, [120, 150])["arm"].tolist() == ["b", "b"]
    assert later_visits(past, model, [120, 150])["day"].tolist() == [120, 150]


def test_forecast_has_a_fan_of_intervals(model, table):
    ax = plot.forecast(model, table, 3, "alt", [150, 180, 210], draws=50)
    fans = [c for c in ax.collections if isinstance(c, PolyCollection)]
    heights = [np.ptp(fan.get_paths()[0].vertices[:, 1]) for fan in fans]
    assert len(fans) == 3
    assert heights == sorted(heights, reverse=True)
    assert "history" in legend(ax)
    rows = table[table["id"] == 3].assign(day=[150.0, 160, 170, 180, 190])
    assert plot.forecast(model, table, 3, "alt", rows, intervals=[0.9], draws=20).get_xlabel() == "day (days)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: plot.trajectory(m, t, 0, "alt", truth=t[:3]), r"truth has 3 row\(s\), data \d+; expected"),
        (lambda m, t: plot.trajectory(m, t, 0, "alt", truth=t[::-1]), r"truth has other labels in 'id' than data"),
        (lambda m, t: plot.trajectory(m, t, 99, "alt"), r"no row has 'id' = 99; there are 0, 1, 2, 3"),
        (lambda m, t: plot.trajectory(m, t, 0, "altt"), r"no measurement 'altt'.*Did you mean 'alt'\?"),
        (lambda m, t: plot.forecast(m, t, 0, "alt", [150], intervals=[2]), r"intervals is \[2\]; expected numbers"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(model, table, call, message):
    with pytest.raises((DataError, ValueError), match=message):
        call(model, table)
