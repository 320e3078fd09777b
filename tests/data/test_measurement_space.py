import math

import pytest
import torch

from lacova.data.measurement_space import NO_LIMITS, MeasurementSpace


def test_features_are_numbers_logs_of_counts_and_one_hot_levels_with_the_mask():
    space = MeasurementSpace(
        ("categorical", "gaussian", "poisson", "bernoulli", "ordinal"), (3, 0, 0, 2, 2), (NO_LIMITS,) * 5
    )
    y = torch.tensor([[2.0, -1.5, 7.0, 1.0, 0.0], [1.0, 3.0, 2.0, 1.0, 1.0]])
    mask = torch.tensor([[True] * 5, [False] * 5])
    features = space.features(torch.where(mask, y, -1e30), mask)
    assert features.shape == (2, space.width)
    assert features[0].tolist() == pytest.approx([-1.5, math.log(8), 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, *[1.0] * 5])
    assert (features[1] == 0).all()
    plain = MeasurementSpace.of(2)
    assert plain.features(y[:, :2], mask[:, :2]).tolist() == [[2.0, -1.5, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    assert plain.plain
    assert plain.width == 4
