"""Figures over repetitions: bias, spread, width, coverage, and whether they are what they must be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom
from scipy.stats import t as student

from reproduction.inference.world import Aim
from reproduction.inference.worlds import WORLDS

KEY = ("world", "size", "method", "repetition")
CHANCE = 0.025  # what is less probable is not chance


class Line(NamedTuple):
    """One figure of one world, size and method.

    Attributes:
        world, size, method, figure: of what.
        aim: what it must be.
        count: repetitions with this figure.
        failed: repetitions without an answer.
        mean, sd: of the estimates; NaN where there are none.
        width: mean width of the intervals; NaN where there are none.
        coverage: the share of intervals that hold the truth; NaN where there are none.
        seconds: mean per repetition.
    """

    world: str
    size: int
    method: str
    figure: str
    aim: Aim
    count: int
    failed: int
    mean: float
    sd: float
    width: float
    coverage: float
    seconds: float

    @property
    def bias(self) -> float:
        return self.mean - self.aim.truth

    @property
    def error(self) -> float:
        """The Monte-Carlo error of the mean; NaN with a single repetition."""
        return self.sd / self.count**0.5

    @property
    def coverage_error(self) -> float:
        """The binomial error of the coverage, as if one more interval had held the truth and one more had not."""
        share = (self.coverage * self.count + 1) / (self.count + 2)
        return float(np.sqrt(share * (1 - share) / self.count))

    @property
    def verdict(self) -> str:
        """Whether the figure is what it must be.

        "yes": mean and coverage are in their ranges. "no": one is outside, and so far that chance has a probability
        below 2.5% at the end of the range, by a t test or a binomial one. "unclear": outside by less. Blank where
        anything is right.
        """
        if not self.count:
            return "no"
        chances = []
        if self.aim.mean is not None:
            chances.append(self._chance_of_mean(self.aim.mean))
        if self.aim.coverage is not None and not np.isnan(self.coverage):
            chances.append(self._chance_of_coverage(self.aim.coverage))
        if not chances:
            return ""
        least = min(chances)
        return "yes" if least == 1.0 else "unclear" if least >= CHANCE else "no"

    def _chance_of_mean(self, ends: tuple[float, float]) -> float:
        """Return the probability of a mean as far outside; 1 inside."""
        apart = max(ends[0] - self.mean, self.mean - ends[1])
        if apart <= 0:
            return 1.0
        if self.count == 1:
            return 0.5  # one repetition decides nothing
        return float(student.sf(apart / self.error, self.count - 1)) if self.error > 0 else 0.0

    def _chance_of_coverage(self, ends: tuple[float, float]) -> float:
        """Return the probability of a share of intervals as far outside; 1 inside."""
        held = round(self.coverage * self.count)
        if self.coverage < ends[0]:
            return float(binom.cdf(held, self.count, ends[0]))
        return float(binom.sf(held - 1, self.count, ends[1])) if self.coverage > ends[1] else 1.0


def summary(lines: Iterable[dict[str, Any]]) -> list[Line]:
    """Return a line per world, size, method and figure with results, in the order of the worlds.

    Of several lines of one repetition, the last counts: a failure that was tried again.
    """
    last = {tuple(line[name] for name in KEY): line for line in lines}
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for (world, size, method, _), line in last.items():
        groups.setdefault((world, size, method), []).append(line)
    return [
        _of(world.name, size, method, name, aim, groups[world.name, size, method])
        for world in WORLDS.values()
        for name, aim in world.aims.items()
        for size in world.sizes
        for method in world.methods
        if _has(groups.get((world.name, size, method), []), name)
    ]


def signed(truth: float) -> str:
    """Return a truth in three digits, with a minus sign where it is negative."""
    return f"{truth:.3g}".replace("-", "−")


def _has(lines: Sequence[dict[str, Any]], figure: str) -> bool:
    """Return whether some line has the figure, or none has any."""
    return any(figure in line.get("figures", {}) for line in lines) or (
        bool(lines) and all("error" in line for line in lines)
    )


def _of(world: str, size: int, method: str, figure: str, aim: Aim, lines: Sequence[dict[str, Any]]) -> Line:
    answered = [line for line in lines if figure in line.get("figures", {})]
    values = [line["figures"][figure] for line in answered]
    estimates = np.array([value[0] for value in values])
    ends = np.array([value[1:] for value in values if len(value) == 3]).reshape(-1, 2)
    return Line(
        world, size, method, figure, aim, len(values), sum("error" in line for line in lines),
        _mean(estimates), float(estimates.std(ddof=1)) if len(values) > 1 else np.nan,
        _mean(ends[:, 1] - ends[:, 0]), _mean((ends[:, 0] <= aim.truth) & (aim.truth <= ends[:, 1])),
        _mean([line["seconds"] for line in answered]),
    )  # fmt: skip


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else np.nan


def plain(lines: Iterable[Line]) -> str:
    """Return the figures as text."""
    texts = [f"{'world':20} {'size':>5} {'method':24} {'figure':18} {'reps':>5} {'truth':>6} {'mean':>7} {'± mc':>6} "
             f"{'sd':>6} {'width':>6} {'cover':>6} {'s':>6}  right"]  # fmt: skip
    for line in lines:
        shown = (line.mean, line.error, line.sd, line.width, line.coverage)
        numbers = [f"{value:.3f}" if np.isfinite(value) else "" for value in shown]
        texts.append(
            f"{line.world:20} {line.size:5} {line.method:24} {line.figure:18} {line.count:5} {line.aim.truth:6.3f} "
            f"{numbers[0]:>7} {numbers[1]:>6} {numbers[2]:>6} {numbers[3]:>6} {numbers[4]:>6} {line.seconds:6.1f}  "
            f"{line.verdict}" + (f" ({line.failed} failed)" if line.failed else "")
        )
    return "\n".join(texts)
