"""Runs the cells that have no line yet, in several processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lacova.analysis.workers import work
from reproduction import results
from reproduction.inference.summary import KEY
from reproduction.inference.world import Figures, Ours
from reproduction.inference.worlds import WORLDS

Cell = tuple[str, int, str, int]


def compute(world: str, size: int, method: str, repetition: int, ours: Ours) -> dict[str, Any]:
    """Return the line of one world, size, method and repetition."""
    study = WORLDS[world].study(size, repetition)
    started = time.perf_counter()
    figures = WORLDS[world].methods[method](study, repetition, ours)
    seconds = round(time.perf_counter() - started, 2)
    line: dict[str, Any] = dict(zip(KEY, (world, size, method, repetition), strict=True))
    options = {name: dict(value) for name, value in (("settings", ours.settings), ("fit", ours.fit)) if value}
    return line | options | {"figures": _short(figures), "seconds": seconds}


def _short(figures: Figures) -> Figures:
    short = {name: [round(float(value), 5) for value in values] for name, values in figures.items()}
    strange = [name for name, values in short.items() if not np.isfinite(values).all()]
    if strange:
        raise ValueError(f"{', '.join(strange)} of the answer are not finite")
    return short


def left(asked: Sequence[Cell], file: Path) -> list[Cell]:
    """Return the cells without a line, or whose line is of a failure."""
    done = {tuple(line[name] for name in KEY) for line in results.read(file, KEY) if "error" not in line}
    return [cell for cell in asked if cell not in done]


def run(asked: Sequence[Cell], ours: Ours, file: Path, workers: int, verbose: bool) -> int:
    """Append a line for each cell that has none; return how many failed, which have a line with their error."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes, which have the cores to themselves one by one
    results.mend(file)
    todo, failed = left(asked, file), 0
    print(f"{len(todo)} to do, {len(asked) - len(todo)} done", file=sys.stderr, flush=True)
    outcomes = work(compute, [(*cell, ours) for cell in todo], workers, lambda: True)
    for number, (place, line, error) in enumerate(outcomes, 1):
        name = " ".join(map(str, todo[place]))
        if error is not None:
            failed += 1
            line = dict(zip(KEY, todo[place], strict=True)) | {"error": error.strip().splitlines()[-1][:300]}
            print(f"{name}: {error}", file=sys.stderr, flush=True)
        elif verbose:
            print(f"{number}/{len(todo)} {name}: {line['figures']} ({line['seconds']} s)", flush=True)
        results.append(file, [line])
    return failed
