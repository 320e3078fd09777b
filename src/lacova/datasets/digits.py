"""Rotated digits: one digit image, rotated, shifted and dimmed according to its covariates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from lacova.data.schema import Schema
from lacova.datasets.sources import by_class, embedded

Floats = npt.NDArray[np.float64]
SIDE = 36
PIXELS = tuple(f"pixel{k}" for k in range(SIDE * SIDE))
NOISE_SD = 0.05


def rotated_digits(
    dataset: int | str = 1, rows: int = 1000, seed: int = 0, images: Mapping[int, Floats] | None = None
) -> tuple[pd.DataFrame, Schema]:
    """Return a complete table of 36×36 images (pixel0 … pixel1295) with their covariates, and its schema.

    Args:
        dataset: 1 (independent covariates), 2 (dependent), 3 (driven by time), or "3-discrete" (3 with the digit's
            class, 3 or 6, as a further covariate).
        rows: the number of images.
        seed: seed of all random numbers.
        images: a square image in [0, 1] for class 3 (and 6), such as `digit_images()` of MNIST. By default, the first
            ones of scikit-learn's 8×8 digits, enlarged.

    Examples:
        >>> table, schema = rotated_digits(1, rows=5)
        >>> table.shape, list(schema.covariates)
        ((5, 1299), ['rotation', 'shift', 'contrast'])
    """
    rng = np.random.default_rng(seed)
    x = draw_covariates(dataset, rows, rng)
    digit = x["digit"].to_numpy() if "digit" in x else np.full(rows, 3)
    chosen = images if images is not None else {k: group[0] / 255.0 for k, group in by_class(*embedded()).items()}
    pictures = {int(k): frame(chosen[int(k)]) for k in np.unique(digit)}
    base = np.stack([pictures[int(k)] for k in digit])
    y = transform(base, *x[["rotation", "shift", "contrast"]].to_numpy().T.copy())
    y = y + NOISE_SD * rng.standard_normal(y.shape)
    table = pd.concat([x, pd.DataFrame(y.reshape(rows, -1), columns=list(PIXELS))], axis=1)
    kinds = {c: "categorical" if c == "digit" else "continuous" for c in x.columns}
    return table, Schema(PIXELS, kinds, time="time" if "time" in x else None)  # type: ignore[arg-type]  # kinds are literals


def draw_covariates(dataset: int | str, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Draw the covariates of one of the rotated-digits sets."""
    if dataset not in (1, 2, 3, "3-discrete"):
        raise ValueError(f"dataset is {dataset!r}; expected 1, 2, 3 or '3-discrete'.")
    e = rng.standard_normal((3, rows))
    driver = rng.uniform(0, 1, rows)
    mean, sd = covariate_moments(dataset, driver)
    x = pd.DataFrame(mean + sd * e, index=["rotation", "shift", "contrast"]).T
    if dataset in (3, "3-discrete"):
        x.insert(0, "time", driver)
    if dataset == "3-discrete":
        x["digit"] = np.where(rng.uniform(size=rows) < 0.1 + 0.36 * driver, 6, 3)
    return x


def covariate_moments(dataset: int | str, driver: Floats) -> tuple[Floats, Floats]:
    """Return mean (3×n) and sd (3×1) of rotation, shift and contrast given their driver, uniform on (0, 1).

    Given the driver, the three are independent: an angle over 2π in set 2, time in set 3. Set 1 does not depend on it.
    """
    u = np.asarray(driver)
    if dataset == 1:
        return np.stack([0.0 * u, 0.0 * u, 0.7 + 0.0 * u]), np.array([[40.0], [2.5], [0.15]])
    sd = np.array([[8.0], [0.5], [0.04]])
    if dataset == 2:
        angle = 2 * np.pi * u
        return np.stack([60 * np.sin(angle), 3.5 * np.cos(angle), 0.7 + 0.15 * np.sin(2 * angle)]), sd
    bump = 0.6 + 0.25 * np.exp(-((u - 0.5) ** 2) / 0.05)
    return np.stack([80 * np.sin(2 * np.pi * u), 4 * (2 * u - 1) ** 3, bump]), sd


def transform(images: Floats, rotation: Floats, shift: Floats, contrast: Floats) -> Floats:
    """Rotate by `rotation` degrees, move by `shift` pixels along the diagonal, and multiply by the contrast.

    The rotation is clockwise about the centre; the shift is shift/√2 pixels to the right and as many down; the contrast
    is clipped to [0.15, 1].
    """
    import torch  # slow to import
    from torch.nn import functional

    angle = torch.as_tensor(np.deg2rad(rotation))
    step = torch.as_tensor(shift) / np.sqrt(2.0) * 2.0 / SIDE  # pixels per axis, in grid units
    cos, sin = angle.cos(), angle.sin()
    # grid_sample takes the source of each output pixel: first undo the shift, then the rotation.
    theta = torch.stack([cos, sin, -(cos + sin) * step, -sin, cos, -(cos - sin) * step], dim=1).view(-1, 2, 3)
    source = torch.as_tensor(images)[:, None]
    grid = functional.affine_grid(theta, list(source.shape), align_corners=False)
    moved = functional.grid_sample(source, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return np.asarray(moved[:, 0].numpy() * np.clip(contrast, 0.15, 1.0)[:, None, None])


def frame(image: Floats) -> Floats:
    """Zero-pad a square image to SIDE×SIDE."""
    if image.ndim != 2 or image.shape[0] != image.shape[1] or image.shape[0] > SIDE:
        raise ValueError(f"a digit must be a square image of at most {SIDE}×{SIDE} pixels, got shape {image.shape}.")
    before = (SIDE - image.shape[0]) // 2
    after = SIDE - image.shape[0] - before
    return np.pad(np.asarray(image, dtype=np.float64), (before, after))
