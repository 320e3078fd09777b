"""Scores of several entries jointly: the measurements of a row, or one measurement over the visits of a patient.

Scores of single entries do not depend on how the entries of a draw go together. These do: the energy score (Gneiting
and Raftery, 2007) and the variogram score with p = ½ (Scheuerer and Hamill, 2015). Both are proper.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lacova.data.scaling import Floats
from lacova.data.table_encoder import TableEncoder

CHUNK = 400_000  # numbers held at a time; larger arrays are new to the processor each time, and take thrice as long
BLOCKS = 8  # in which distances between draws are computed, each with itself and those after it
MAX_PAIRS = 2000  # of the entries of a unit that the variogram score compares; 64 entries have 2016
NAMES = ("energy", "variogram", "course_energy", "course_variogram")


def energy_score(draws: Tensor, y: Tensor) -> Tensor:
    """Return the energy score of each unit divided by the square root of its number of entries d.

    E‖Y − y‖ − ½E‖Y − Y'‖, over √d: with one entry, the CRPS. The second expectation is over pairs of different draws,
    so that the score is unbiased for any number of draws.

    Args:
        draws: joint draws of each unit (units×draws×d), at least two.
        y: true values (units×d).
    """
    count, entries = draws.shape[1:]
    error = (draws - y[:, None]).square().sum(-1).sqrt().mean(1)
    total = torch.zeros_like(error)
    size = max(1, min(CHUNK // (len(draws) * count), -(-count // BLOCKS)))
    for first in range(0, count, size):
        block, later = draws[:, first : first + size], draws[:, first:]
        distance = torch.cdist(block, later, compute_mode="donot_use_mm_for_euclid_dist")  # exact, unlike a product
        total += 2.0 * distance.sum((1, 2)) - distance[:, :, : block.shape[1]].sum((1, 2))
    return (error - 0.5 * total / (count * (count - 1))) / math.sqrt(entries)


def variogram_score(draws: Tensor, y: Tensor) -> Tensor:
    """Return the variogram score of each unit, the mean over pairs of its entries.

    Mean over pairs i < j of (|y_i − y_j|^½ − E|Y_i − Y_j|^½)². The square of the expectation is unbiased for any number
    of draws: what the variance of the mean over draws adds to it is subtracted. Units with more than `MAX_PAIRS` pairs
    are scored on so many of them, chosen at random, the same for all units of the size.

    Args:
        draws: joint draws of each unit (units×draws×d), at least two.
        y: true values (units×d).
    """
    count = draws.shape[1]
    first, second = _pairs(draws.shape[2], draws.device)
    by_entry = draws.transpose(1, 2).contiguous()  # whole runs of draws are then read, in a fifth of the time
    gaps = (by_entry[:, first] - by_entry[:, second]).abs_()
    square = gaps.mean(2)
    mean = gaps.sqrt_().mean(2)
    error = (y[:, first] - y[:, second]).abs().sqrt() - mean
    return (error.square() - (square - mean.square()) / (count - 1)).mean(1)


@lru_cache(maxsize=16)
def _pairs(entries: int, device: torch.device) -> Tensor:
    """Return the pairs of entries to compare (2×pairs), which depend on the number of entries alone; cached."""
    pairs = torch.triu_indices(entries, entries, offset=1)
    if pairs.shape[1] > MAX_PAIRS:
        chosen = torch.randperm(pairs.shape[1], generator=torch.Generator().manual_seed(entries))[:MAX_PAIRS]
        pairs = pairs[:, chosen]
    return pairs.to(device)


class UnitScores(NamedTuple):
    """Joint scores of the units with at least two entries, in ascending order of their codes (units,)."""

    unit: Tensor
    entries: Tensor
    energy: Tensor
    variogram: Tensor


def score_units(draws: Tensor, y: Tensor, unit: Tensor) -> UnitScores:
    """Score units of any number of entries each; those of fewer than two are left out.

    Units of one size are scored together, in parts of about CHUNK numbers; no unit's score depends on another unit.

    Args:
        draws: draws of each entry (draws×E); the k-th draws of all entries of a unit are one joint draw.
        y: true values (E,).
        unit: code of the unit that each entry belongs to (E,).
    """
    if len(draws) < 2:
        raise ValueError(f"draws is {len(draws)}; expected at least 2, as joint scores compare draws with each other.")
    order = unit.argsort(stable=True)
    codes, sizes = torch.unique_consecutive(unit[order], return_counts=True)
    start = sizes.cumsum(0) - sizes
    by_entry = draws.T.contiguous()
    energy, variogram = (torch.empty(len(codes), dtype=torch.float64, device=y.device) for _ in range(2))
    for size in sizes[sizes > 1].unique().tolist():
        alike = (sizes == size).nonzero()[:, 0]
        numbers = len(draws) * max(len(draws), min(size * (size - 1) // 2, MAX_PAIRS), size)
        for part in alike.split(max(1, CHUNK // numbers)):
            entries = order[start[part, None] + torch.arange(size, device=y.device)]
            drawn, truth = by_entry[entries].double().transpose(1, 2), y[entries].double()
            energy[part], variogram[part] = energy_score(drawn, truth), variogram_score(drawn, truth)
    several = sizes > 1
    return UnitScores(codes[several], sizes[several], energy[several], variogram[several])


class _Entries(NamedTuple):
    """Entries of courses that are held back: draws (draws×E), true values, codes of courses and rows (E,)."""

    draws: Tensor
    y: Tensor
    course: Tensor
    row: Tensor


class JointScores:
    """Means of joint scores over rows, and over courses where rows belong to patients, from draws part by part.

    Categories have no place on a common scale with numbers and are left out. Measurements are compared with each other
    by the variogram score, so they need a common location too.

    Args:
        encoder: names and encodes the measurements.
        location, scale: of each measurement in own units (D,), which become 0 and 1; by default those of `encoder`.
        hold: keep courses back until `means`, because the rows of a patient may come in several parts.
    """

    def __init__(
        self, encoder: TableEncoder, location: Floats | None = None, scale: Floats | None = None, hold: bool = False
    ) -> None:
        schema = encoder.schema
        location = middle(encoder) if location is None else location
        scale = encoder.scales.spread if scale is None else scale
        self._numbers = [d for d, name in enumerate(schema.measurements) if name not in encoder.levels]
        self._own = tuple(torch.as_tensor(values) for values in (1.0 / scale, -location / scale))
        self._encoded = tuple(
            torch.as_tensor(values) for values in (encoder.y_scale / scale, (encoder.y_shift - location) / scale)
        )
        self._hold = hold
        self._held: list[_Entries] = []
        self._sums: dict[str, list[float]] = {}  # per prefix of the names: units, energy, variogram

    def add(
        self, draws: Tensor, y: Tensor, mask: Tensor, rows: Tensor, patient: Tensor | None, own_units: bool = True
    ) -> None:  # fmt: skip
        """Add some rows.

        Args:
            draws: draws (draws×n×D).
            y: true values (n×D).
            mask: which entries count (n×D).
            rows: numbers of the rows in their table (n,).
            patient: codes of their patients (n,), or None.
            own_units: whether draws and true values are in own units, or else encoded, all on linear scales.
        """
        if not self._numbers:
            return
        mask, rows = mask.to(y.device), rows.to(y.device)
        row, column = mask[:, self._numbers].nonzero(as_tuple=True)
        column = torch.as_tensor(self._numbers, device=y.device)[column]
        slope, start = (values.to(y)[column] for values in (self._own if own_units else self._encoded))
        drawn, truth = draws[:, row, column] * slope + start, y[row, column] * slope + start
        if len(self._numbers) > 1:
            self._score("", drawn, truth, row)
        if patient is not None:
            course = patient.to(y.device)[row] * y.shape[1] + column
            self._held.append(_Entries(drawn.float() if self._hold else drawn, truth, course, rows[row]))
            if not self._hold:
                self._score_held()

    def means(self) -> dict[str, float]:
        """Return the mean scores of rows, `energy` and `variogram`, and of courses, with `course_` before the name.

        Rows of a single number have no joint score, and tables without patients no courses: these are left out. NaN
        where no unit has two entries.
        """
        self._score_held()
        return {
            f"{prefix}{name}": total / units if units else math.nan
            for prefix, (units, *totals) in self._sums.items()
            for name, total in zip(("energy", "variogram"), totals, strict=True)
        }

    def _score_held(self) -> None:
        if self._held:
            draws = torch.cat([part.draws for part in self._held], dim=1)
            y, course, row = (torch.cat([part[k] for part in self._held]) for k in (1, 2, 3))
            order = row.argsort(stable=True)
            self._score("course_", draws[:, order], y[order], course[order])
            self._held = []

    def _score(self, prefix: str, draws: Tensor, y: Tensor, unit: Tensor) -> None:
        scores = score_units(draws, y, unit)
        new = (len(scores.unit), float(scores.energy.sum()), float(scores.variogram.sum()))
        self._sums[prefix] = [a + b for a, b in zip(self._sums.get(prefix, (0, 0.0, 0.0)), new, strict=True)]


def middle(encoder: TableEncoder) -> Floats:
    """Return the location of each measurement in own units (D,): what is encoded as 0, and 0 itself for counts."""
    return encoder.in_own_units(torch.zeros(len(encoder.measurements)))


def shuffled(draws: Floats, seed: int) -> Floats:
    """Return draws (draws×E) with those of each entry in a random order of its own: only their marginals are left."""
    return np.random.default_rng(seed).permuted(draws, axis=0)
