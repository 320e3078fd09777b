"""Grids of images."""

import numpy as np
import pytest

from lacova import plot
from lacova.data.errors import DataError


def test_a_grid_of_images():
    rng = np.random.default_rng(0)
    true = rng.random((10, 12))
    masked = np.where(rng.random((10, 12)) < 0.3, np.nan, true)
    ax = plot.images({"true": true, "masked": masked, "imputed": true}, (3, 4), most=5)
    assert ax.images[0].get_array().shape == (3 * 4 - 1, 5 * 5 - 1)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["true", "masked", "imputed"]
    assert ax.images[1].get_array().count() == np.isnan(masked[:5]).sum()
    shades = ax.images[0].cmap(np.linspace(0, 1, 9))[:, :3], ax.images[1].cmap([0.5])[:, :3]
    light = [colours @ [0.299, 0.587, 0.114] for colours in shades]  # as a printer without colours has them
    assert light[1] - light[0].max() > 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: plot.images({"a": np.zeros((2, 5))}, (2, 2)), r"'a' has the shape \(2, 5\); expected images × 4"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(model, table, call, message):
    with pytest.raises((DataError, ValueError), match=message):
        call(model, table)
