"""Statistics of the training rows, gathered part by part."""

import numpy as np
import pandas as pd
import pytest

from lacova import Schema
from lacova.data.statistics import ColumnMoments, ColumnStatistics
from lacova.data.table_encoder import TableEncoder

SCHEMA = Schema(["a", "b"], {"x": "continuous", "c": "categorical", "d": "categorical"})


def table(n=300, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": 1e9 + rng.normal(size=n), "b": rng.lognormal(0, 2, n), "x": rng.normal(-5, 1e-3, n)})
    frame = frame.mask(rng.random(frame.shape) < 0.3)
    frame["c"] = rng.choice(["v", "u", None], n)
    return frame.assign(d=pd.Categorical(rng.choice(["low", "high"], n), ["low", "mid", "high"]))


@pytest.mark.parametrize("scaling", ["standard", "minmax", "none"])
@pytest.mark.parametrize("cuts", [[], [150], [1, 2, 3, 299], [10, 10, 250]])
def test_statistics_of_parts_are_those_of_the_whole(scaling, cuts):
    frame, statistics = table(), ColumnStatistics(SCHEMA)
    frame.iloc[:3, 1] = np.nan  # a part without an observed value
    for start, stop in zip([0, *cuts], [*cuts, len(frame)], strict=True):
        if stop > start:
            statistics.add(frame.iloc[start:stop])
    whole, parts = TableEncoder.learn(SCHEMA, frame, scaling), TableEncoder.from_statistics(statistics, scaling)
    for name in ("y_shift", "y_scale", "x_shift", "x_scale"):
        # The mean of numbers about 1e9 has ten digits after the point, and so has their spread.
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-8)
    assert parts.levels == whole.levels == {"c": ("u", "v"), "d": ("low", "mid", "high")}


def test_statistics_of_one_part_are_exactly_those_of_numpy():
    frame, statistics = table(), ColumnStatistics(SCHEMA)
    statistics.add(frame)
    encoder = TableEncoder.from_statistics(statistics)
    y = np.stack([frame["a"], frame["b"]], axis=1)
    assert encoder.y_shift.tolist() == np.nanmean(y, axis=0).tolist()
    assert encoder.y_scale.tolist() == np.nanstd(y, axis=0).tolist()
    assert encoder.x_scale[0] == np.nanstd(frame[["x"]].to_numpy(), axis=0)[0]


def test_moments_of_a_column_far_from_zero_keep_their_digits():
    values = 1e8 + np.random.default_rng(0).normal(size=(1000, 1))
    moments = ColumnMoments(1)
    for part in np.split(values, 20):
        moments.add(part)
    np.testing.assert_allclose(moments.var, np.var(values - 1e8, axis=0), rtol=1e-6)  # float64 at 1e8 has 8 digits left
    assert (moments.low, moments.high) == (values.min(), values.max())
