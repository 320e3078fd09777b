"""What the worlds show without parts of lacova: which figures go wrong if a part is taken away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reproduction import results
from reproduction.inference.run import Cell, run
from reproduction.inference.summary import KEY, Line, signed, summary
from reproduction.inference.world import Ours
from reproduction.inference.worlds import WORLDS
from reproduction.markdown import markdown

FOLDER = Path(__file__).with_name("without")
MODELS = ("CVAE", "GPPriorVAE")


class Part(NamedTuple):
    """A part of lacova that a setting takes away.

    Attributes:
        name: of its results file.
        says: what it is.
        settings, fit: of a model without it.
        worlds: that show it, with their sizes.
    """

    name: str
    says: str
    settings: dict[str, Any]
    fit: dict[str, Any]
    worlds: tuple[tuple[str, int], ...]


PARTS = (
    Part("joint-posterior", "one joint posterior", {"joint_posterior": False}, {},
         (("pairs", 300), ("covariate-pairs", 300), ("pairs-in-patients", 80), ("lasting-covariate", 120))),
    Part("prior", "a prior of x that is learnt with q", {}, {"prior_every": 0}, (("missing-by-outcome", 300),)),
    Part("members", "members", {}, {"members": 1},
         (("small-tables", 50), ("arm-of-rows", 50), ("no-arm-of-rows", 50))),
    Part("fixed-effects", "fixed effects", {"fixed_effects": False}, {}, (("arm", 60),)),
    Part("patient-slopes", "slopes of patients", {"patient_slopes": False}, {}, (("permuted-arms", 50),)),
    Part("patient-factors", "factors of patients", {"patient_factors": 0}, {}, (("partners", 100),)),
)  # fmt: skip


def run_without(part: Part, repetitions: int, workers: int, device: str, verbose: bool, folder: Path = FOLDER) -> int:
    """Fit models without a part to its worlds; return how many fits failed."""
    cells: list[Cell] = [
        (world, size, method, repetition)
        for repetition in range(repetitions)
        for world, size in part.worlds
        for method in MODELS
        if method in WORLDS[world].methods
    ]
    return run(cells, Ours(part.settings, part.fit, device), folder / f"{part.name}.jsonl", workers, verbose)


def comparison(whole: Iterable[dict[str, Any]], folder: Path = FOLDER) -> str:
    """Return a table of figures with and without each part, in the same repetitions."""
    by_key = {tuple(line[name] for name in KEY): line for line in whole}
    rows = []
    for part in PARTS:
        without = results.read(folder / f"{part.name}.jsonl", KEY)
        keys = [tuple(line[name] for name in KEY) for line in without]
        pairs = _pairs(summary([by_key[key] for key in keys if key in by_key]), summary(without))
        rows += [
            [
                part.says, f"{WORLDS[own.world].letter}, `{own.world}`, {own.method}", own.figure,
                signed(own.aim.truth), _figure(own), _figure(less), str(less.count),
            ]
            for own, less in pairs
        ]  # fmt: skip
    return markdown(["without", "world", "figure", "truth", "lacova", "without it", "repetitions"], rows)


def _pairs(own: Sequence[Line], without: Sequence[Line]) -> list[tuple[Line, Line]]:
    """Return the lines of figures that must lie in a range, of models with and without a part."""
    found = {line[:4]: line for line in own}
    return [
        (found[line[:4]], line)
        for line in without
        if line[:4] in found and (line.aim.mean is not None or line.aim.coverage is not None)
    ]


def _figure(line: Line) -> str:
    text = f"{line.mean:.3f}".replace("-", "−")
    return text if np.isnan(line.coverage) else f"{text}, {line.coverage:.0%} hold it"
