"""Health MNIST: patients whose digit rotates with their disease and moves with their age."""

from __future__ import annotations

from os import PathLike

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit

from lacova.data.schema import Schema
from lacova.datasets.digits import PIXELS, Floats, frame, transform
from lacova.datasets.sources import CLASSES, Bytes, by_class, mnist

VISITS = 20
ONSET = 9  # the visit at which the digit of a sick patient has made half of its rotation
SICK_ROTATION, HEALTHY_ROTATION, ROTATION_SD = 45.0, 5.0, 2.0  # degrees; of the sick in the end


def health_mnist(
    patients: int = 200, seed: int = 0, missing: float = 0.25, source: str | PathLike[str] | None = None
) -> tuple[pd.DataFrame, Schema]:
    """Return 20 visits of each patient: age, time since onset, sex, disease, location, and a 36×36 image with gaps.

    A patient is one image of a 3 or a 6; the digit is the sex. Sex, disease and location are fair coins. At visit
    k = 0 … 19 the age is k and t = k − 9. The image is rotated clockwise by N(0, 2²) degrees, plus 45·sigmoid(t) if the
    patient is sick and 5 if not, and moved k/10 pixels to the right and as many down. The time since onset is t; it is
    missing for healthy patients.

    Args:
        patients: the number of patients. No two have the same image, as long as there are enough images.
        seed: seed of all random numbers.
        missing: the share of pixels that are missing, completely at random. The underlying images do not depend on it:
            `missing=0` returns the complete ones.
        source: source of the digits, as in `mnist`.

    Examples:
        >>> table, schema = health_mnist(patients=3)
        >>> table.shape, list(schema.covariates), schema.static
        ((60, 1302), ['age', 'onset', 'sex', 'disease', 'location'], ('sex', 'disease', 'location'))
    """
    if patients < 1:
        raise ValueError(f"patients is {patients}; expected 1 or more.")
    if not 0 <= missing <= 1:
        raise ValueError(f"missing is {missing}; expected a share from 0 to 1.")
    rng = np.random.default_rng(seed)
    sex = rng.choice(CLASSES, patients)
    disease, location = rng.integers(0, 2, (2, patients))
    pictures = np.stack([frame(image / 255.0) for image in _own_images(sex, rng, source)])
    visit: Floats = np.tile(np.arange(VISITS, dtype=np.float64), patients)
    patient = np.repeat(np.arange(patients), VISITS)
    t, sick = np.asarray(visit - ONSET), disease[patient] == 1
    x = pd.DataFrame({
        "id": patient, "age": visit, "onset": np.where(sick, t, np.nan),
        "sex": sex[patient], "disease": disease[patient], "location": location[patient],
    })  # fmt: skip
    rotation = mean_rotation(t, sick) + ROTATION_SD * rng.standard_normal(len(x))
    diagonal = np.sqrt(2.0) * visit / 10
    y = transform(pictures[patient], rotation, diagonal, np.ones(len(x))).reshape(len(x), -1)
    y[rng.random(y.shape) < missing] = np.nan
    kinds = {"age": "continuous", "onset": "continuous", **dict.fromkeys(("sex", "disease", "location"), "categorical")}
    schema = Schema(PIXELS, kinds, instance="id", time="age", static=("sex", "disease", "location"))  # type: ignore[arg-type]  # kinds are literals
    return pd.concat([x, pd.DataFrame(y, columns=list(PIXELS))], axis=1), schema


def mean_rotation(t: Floats, sick: npt.NDArray[np.bool_]) -> Floats:
    """Return the expected rotation, in degrees, at time t since onset."""
    return np.asarray(np.where(sick, SICK_ROTATION * expit(t), HEALTHY_ROTATION))


def _own_images(sex: npt.NDArray[np.int64], rng: np.random.Generator, source: str | PathLike[str] | None) -> Bytes:
    """Return an image for each patient; if there are fewer images than patients, they are reused."""
    chosen = np.empty((len(sex), 28, 28), dtype=np.uint8)
    for digit, images in by_class(*mnist(source), source).items():
        patients, order = np.flatnonzero(sex == digit), rng.permutation(len(images))
        chosen[patients] = images[order[np.arange(len(patients)) % len(order)]]
    return chosen
