"""Columns of a DataFrame as numbers."""

import numpy as np
import pandas as pd
import pytest

from lacova import Schema
from lacova.data.columns import level_from_text, numbers, within_bounds
from lacova.data.errors import DataError


@pytest.mark.parametrize("dtype", ["float64", "float32", "Float64", "object", "string"])
def test_numbers_do_not_depend_on_the_type_of_the_column(dtype):
    frame = pd.DataFrame({"a": pd.Series([1.5, None, -2.0], dtype=dtype)})
    values = numbers(frame, "a")
    np.testing.assert_array_equal(values, [1.5, np.nan, -2.0])
    assert values.dtype == np.float64
    frame.loc[0, "a"] = "inf" if dtype == "string" else np.inf
    with pytest.raises(DataError, match="1 infinite value"):
        numbers(frame, "a")


def test_bounds_of_whole_numbers_are_whole_numbers():
    schema = Schema(["y"], {"x": "continuous"}, bounds={"y": (0.5, 4.5), "x": (None, 5)}, integers=["y"])
    assert within_bounds(np.array([-3.0, 1.4, 2.6, 9.0]), "y", schema).tolist() == [1.0, 1.0, 3.0, 4.0]
    assert within_bounds(np.array([-100.0, 4.75, 5.25]), "x", schema).tolist() == [-100.0, 4.75, 5.0]


@pytest.mark.parametrize(
    ("levels", "text", "level"),
    [
        (("f", "m"), "m", "m"),
        ((1, 2), "2", 2),
        ((1.0, 2.5), "1", 1.0),
        ((False, True), "True", True),
        (("f",), "x", "x"),
    ],
)
def test_a_level_is_recognised_as_text_or_as_a_number(levels, text, level):
    result = level_from_text(levels, text)
    assert result == level
    assert type(result) is type(level)
