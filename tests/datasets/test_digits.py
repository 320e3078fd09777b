import numpy as np
import pytest

from lacova.datasets import rotated_digits
from lacova.datasets.digits import NOISE_SD, SIDE, covariate_moments, transform
from lacova.datasets.sources import embedded


@pytest.mark.parametrize(("dataset", "columns"), [
    (1, ["rotation", "shift", "contrast"]),
    (2, ["rotation", "shift", "contrast"]),
    (3, ["time", "rotation", "shift", "contrast"]),
    ("3-discrete", ["time", "rotation", "shift", "contrast", "digit"]),
])  # fmt: skip
def test_table_and_schema(dataset, columns):
    table, schema = rotated_digits(dataset, 50, seed=1)
    assert list(schema.covariates) == columns
    assert table.shape == (50, len(columns) + SIDE * SIDE)
    again, _ = rotated_digits(dataset, 50, seed=1)
    assert table.equals(again)
    assert not table.equals(rotated_digits(dataset, 50, seed=2)[0])


def test_covariates_follow_their_stated_distributions():
    x, _ = rotated_digits(1, 4000)
    assert x["rotation"].std() == pytest.approx(40, rel=0.05)
    assert x["shift"].std() == pytest.approx(2.5, rel=0.05)
    assert x["contrast"].mean() == pytest.approx(0.7, abs=0.01)
    x, _ = rotated_digits("3-discrete", 4000)
    mean, sd = covariate_moments(3, x["time"].to_numpy())
    z = (x[["rotation", "shift", "contrast"]].to_numpy().T - mean) / sd
    assert np.abs(z.mean(1)).max() < 0.06
    assert np.abs(z.std(1) - 1).max() < 0.05
    late = x["time"] > 0.5
    assert (x.loc[late, "digit"] == 6).mean() == pytest.approx(0.1 + 0.36 * 0.75, abs=0.03)
    assert (x.loc[~late, "digit"] == 6).mean() == pytest.approx(0.1 + 0.36 * 0.25, abs=0.03)


def test_images_rotate_shift_and_dim():
    dot = np.zeros((1, SIDE, SIDE))
    dot[0, 17:19, 27:29] = 1.0  # right of the centre, 10 pixels away
    zero, one = np.zeros(1), np.ones(1)
    np.testing.assert_allclose(transform(dot, zero, zero, one), dot, atol=1e-12)
    turned = transform(dot, zero + 90, zero, one)[0]
    up_or_down = turned[7:9, 17:19].sum() + turned[27:29, 17:19].sum()
    assert up_or_down == pytest.approx(4.0, abs=1e-6)
    moved = transform(dot, zero, zero + 4 * np.sqrt(2), one)[0]
    np.testing.assert_allclose(moved[21:23, 31:33], 1.0, atol=1e-9)
    dimmed = transform(dot, zero, zero, np.array([0.05]))[0]
    assert dimmed.max() == pytest.approx(0.15)  # contrast is clipped


def test_pixel_noise_and_own_images():
    table, schema = rotated_digits(1, 300, images={3: np.zeros((28, 28))})
    assert table[list(schema.measurements)].to_numpy().std() == pytest.approx(NOISE_SD, rel=0.01)
    with pytest.raises(ValueError, match=r"square image of at most 36×36 pixels, got shape \(28, 40\)"):
        rotated_digits(1, 2, images={3: np.zeros((28, 40))})
    with pytest.raises(ValueError, match="dataset is 4; expected 1, 2, 3 or '3-discrete'"):
        rotated_digits(4)


def test_images_are_the_embedded_ones_by_default():
    images, labels = embedded()
    own = {digit: images[labels == digit][0] / 255.0 for digit in (3, 6)}
    assert rotated_digits("3-discrete", 40)[0].equals(rotated_digits("3-discrete", 40, images=own)[0])
    assert not rotated_digits(1, 4)[0].equals(rotated_digits(1, 4, images={3: own[6]})[0])
