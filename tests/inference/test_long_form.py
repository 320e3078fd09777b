import numpy as np
import pandas as pd
import pytest
import torch

from lacova import DataError, Schema
from lacova.inference.long_form import gather, long_form, summary

SCHEMA = Schema(["y"], {"day": "continuous"}, instance="id", time="day")
FRAME = pd.DataFrame({"id": ["a", "b"], "day": [0.0, 3.0]}, index=[7, 5])


def test_the_last_names_change_fastest():
    values = {"mean": np.arange(12.0).reshape(2, 3, 2)}
    within = {"component": ("r", "s", "t"), "measurement": ("x", "y")}
    lines = long_form(FRAME, SCHEMA, within, values, ("day",))
    assert list(lines) == ["row", "id", "day", "component", "measurement", "mean"]
    assert lines["row"].tolist() == [7] * 6 + [5] * 6
    assert lines["id"].tolist() == ["a"] * 6 + ["b"] * 6
    assert lines["day"].tolist() == [0.0] * 6 + [3.0] * 6
    assert lines["component"].tolist() == ["r", "r", "s", "s", "t", "t"] * 2
    assert lines["measurement"].tolist() == ["x", "y"] * 6
    assert lines["mean"].tolist() == list(range(12))


def test_columns_of_the_same_name_are_refused():
    with pytest.raises(DataError, match="a column 'day' of its own; rename"):
        long_form(FRAME, SCHEMA, {"measurement": ("y",)}, {"day": np.zeros((2, 1))}, ("day",))


def test_parts_are_gathered_in_the_order_of_rows():
    parts = [(torch.tensor([2, 0]), {"mean": torch.tensor([20.0, 0.0])}), (torch.tensor([1]), {"mean": torch.ones(1)})]
    assert gather(parts)["mean"].tolist() == [0.0, 1.0, 20.0]


def test_summary_has_the_mean_and_a_central_interval():
    draws = torch.arange(19.0)[torch.randperm(19, generator=torch.Generator().manual_seed(0))]
    ends = summary(draws[:, None], 0.8)
    assert [float(ends[name]) for name in ("mean", "lower", "upper")] == pytest.approx([9.0, 1.0, 17.0])
