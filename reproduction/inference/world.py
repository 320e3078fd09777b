"""What a world is: tables of known truth, methods that answer, and what the answers must be."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

NOMINAL = (0.93, 0.97)  # coverage of 95% intervals
HELD_RANGE = (0.86, 0.94)  # and of 90% intervals
Figures = dict[str, list[float]]  # an estimate by name, alone or with the ends of its interval


class Study(NamedTuple):
    """One simulated study.

    Attributes:
        complete: the table without gaps.
        gappy: the table that methods see.
        schema: the arguments of `lacova.Schema`.
        new: further rows to predict, with their truth, where a world has any.
    """

    complete: pd.DataFrame
    gappy: pd.DataFrame
    schema: dict[str, Any]
    new: pd.DataFrame | None = None


class Ours(NamedTuple):
    """How lacova's models are built and fitted: by their defaults, unless options say otherwise."""

    settings: Mapping[str, Any]
    fit: Mapping[str, Any]
    device: str

    def model(self, kind: str, study: Study, seed: int) -> Any:
        """Return a fitted model of a class of lacova."""
        import torch

        import lacova

        torch.set_num_threads(1)
        model = getattr(lacova, kind)(lacova.Schema(**study.schema), **self.settings)
        return model.fit(study.gappy, **{"seed": seed, "device": self.device, "progress": False, **self.fit})


Method = Callable[[Study, int, Ours], Figures]


@dataclass(frozen=True)
class Aim:
    """What a figure must be.

    Attributes:
        truth: the value that an estimate is compared with.
        mean: the range of the estimate's mean over repetitions; None where any is right.
        coverage: the range of the share of intervals that hold the truth; None for figures without an interval.
        confidence: of the intervals.
    """

    truth: float
    mean: tuple[float, float] | None = None
    coverage: tuple[float, float] | None = None
    confidence: float = 0.95


@dataclass(frozen=True)
class World:
    """A world with known truth.

    Attributes:
        name: by which it is chosen and stored.
        letter: of the question that it is about; several worlds may share one.
        title: its heading.
        draw: makes a study of so many rows or patients.
        unit: what the size counts.
        sizes: how many, each a row of its own in the results.
        aims: its figures.
        methods: lacova's own models are those in capitals.
    """

    name: str
    letter: str
    title: str
    draw: Callable[[np.random.Generator, int], Study]
    unit: str
    sizes: tuple[int, ...]
    aims: dict[str, Aim]
    methods: dict[str, Method] = field(repr=False)

    def study(self, size: int, repetition: int) -> Study:
        """Return the study of one repetition, which is its own seed."""
        seed = [zlib.crc32(self.name.encode()), size, repetition]
        return self.draw(np.random.default_rng(seed), size)

    @property
    def says(self) -> str:
        """What the world consists of."""
        return " ".join((self.draw.__doc__ or "").split())


def about(value: float, error: float) -> tuple[float, float]:
    """Return a range."""
    return value - error, value + error
