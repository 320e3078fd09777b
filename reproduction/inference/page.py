"""docs/inference.md and its appendix: which worlds lacova gets right, and all figures of all methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import fill

import numpy as np

from reproduction.inference.summary import Line, signed
from reproduction.inference.world import Aim, World
from reproduction.inference.worlds import WORLDS
from reproduction.markdown import WHOLE_WORDS, WIDTH, bullets, markdown

PAGE = Path(__file__).parents[2] / "docs" / "inference.md"
PROSE, APPENDIX_PROSE = Path(__file__).with_name("findings.md"), Path(__file__).with_name("appendix.md")
OURS = ("CVAE", "GPPriorVAE", "CVAE, noise by row", "GPPriorVAE, noise by row")
RIGHT = {"no": "**no**", "yes": "yes", "unclear": "*unclear*", "": ""}


def findings(lines: Sequence[Line], beside: str, without: str, name: str = PAGE.name) -> str:
    """Return the page of findings, which links to the appendix of the same name.

    Args:
        lines: all figures.
        beside: table of differences from methods that are right.
        without: table of what parts do.
        name: of the page.
    """
    ours = [line for line in lines if line.method in OURS]
    text = PROSE.read_text(encoding="utf-8").replace("appendix/inference.md", f"appendix/{name}")
    text = text.replace("<!-- findings -->\n", bullets([_repetitions(lines), *_counts(lines)]))
    return (
        text.replace("<!-- overview -->\n", _overview(ours))
        .replace("<!-- beside -->\n", beside)
        .replace("<!-- without -->\n", without)
    )


def _repetitions(lines: Sequence[Line]) -> str:
    """Say how many repetitions the figures come from."""

    def of(some: Iterable[Line]) -> str:
        counts = [line.count for line in some]
        if not counts:
            return "none yet"
        few, many = min(counts), max(counts)
        return f"{few}" if few == many else f"{few} to {many}"

    ours = of(line for line in lines if line.method in OURS)
    others = of(line for line in lines if line.method not in OURS)
    return f"Repetitions of each world: {ours} with lacova, {others} with the other methods."


def _counts(lines: Sequence[Line]) -> Iterable[str]:
    """Count, for each method of lacova and for the others together, the figures that are as they must be."""
    for name in (*OURS, None):
        own = [line for line in lines if (line.method == name if name else line.method not in OURS) and line.verdict]
        if own:
            yes, unclear, no = (sum(line.verdict == verdict for line in own) for verdict in ("yes", "unclear", "no"))
            yield (
                f"{f'`{name}`' if name else 'The other methods together'}: of {len(own)} figures, {yes} are right, "
                f"{unclear} unclear, and {no} wrong." + ("" if name else " Some are there because they are wrong: "
                "complete cases, for one.")
            )  # fmt: skip


def _overview(ours: Sequence[Line]) -> str:
    """Return a table of all figures of lacova."""
    rows = [
        [
            f"{WORLDS[line.world].letter}. {WORLDS[line.world].title}", f"{line.size} {WORLDS[line.world].unit}",
            line.method, line.figure, signed(line.aim.truth), _with_error(line.mean, line.error), _coverage(line),
            RIGHT[line.verdict],
        ]
        for line in ours
    ]  # fmt: skip
    return markdown(["world", "size", "model", "figure", "truth", "mean", "coverage", "right"], rows)


def appendix(lines: Sequence[Line]) -> str:
    """Return the page with all figures, world by world."""
    parts = [APPENDIX_PROSE.read_text(encoding="utf-8")]
    for name, own in groupby(lines, key=lambda line: line.world):
        world = WORLDS[name]
        sizes = " or ".join(f"{size:,}" for size in world.sizes)
        says = fill(f"`{name}`, {sizes} {world.unit}. {world.says}", WIDTH, **WHOLE_WORDS)
        parts.append(f"\n## {world.letter}. {world.title}\n\n{says}\n")
        parts += [_table(world, list(rows)) for _, rows in groupby(own, key=lambda line: line.figure)]
    return "".join(parts)


def _table(world: World, lines: Sequence[Line]) -> str:
    """Return the table of one figure, with a line per size and method."""
    first = lines[0]
    columns = {
        world.unit: [str(line.size) if len(world.sizes) > 1 else "" for line in lines],
        "method": [line.method for line in lines],
        "repetitions": [str(line.count) for line in lines],
        "failed": [str(line.failed or "") for line in lines],
        "mean": [_number(line.mean) for line in lines],
        "bias": [_with_error(line.bias, line.error, sign=True) for line in lines],
        "sd": [_number(line.sd) for line in lines],
        "width": [_number(line.width) for line in lines],
        "coverage": [_coverage(line) for line in lines],
        "rejected": [f"{1 - line.coverage:.1%}" if first.aim.truth == 0 and line.count else "" for line in lines],
        "seconds": [f"{line.seconds:.1f}" if line.count else "" for line in lines],
        "right": [RIGHT[line.verdict] for line in lines],
    }
    shown = {head: cells for head, cells in columns.items() if any(cells)}
    table = markdown(list(shown), zip(*shown.values(), strict=True))
    return f"\n**{first.figure}**{_ranges(first.aim)}.\n\n{table}"


def _ranges(aim: Aim) -> str:
    """Say what the figure must be."""
    parts = [f": truth {aim.truth:.3g}"]
    if aim.mean is not None:
        parts.append(f"mean {_range(aim.mean)}")
    if aim.coverage is not None:
        parts.append(f"coverage of {aim.confidence:.0%} intervals {_shares(aim.coverage)}")
    return ", ".join(parts)


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.3f}".replace("-", "−")


def _with_error(value: float, error: float, sign: bool = False) -> str:
    if np.isnan(value):
        return ""
    text = f"{value:+.3f}" if sign else f"{value:.3f}"
    return (text if np.isnan(error) else f"{text} ± {error:.3f}").replace("-", "−")


def _coverage(line: Line) -> str:
    return "" if np.isnan(line.coverage) else f"{line.coverage:.1%} ± {100 * line.coverage_error:.1f}"


def _range(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.3g} to {ends[1]:.3g}".replace("-", "−")


def _shares(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.0%} to {ends[1]:.0%}"
