"""Worlds with known truth, which judge what people do with the answers: lacova's defaults beside methods known right.

    python -m reproduction.inference run --workers 2 --repetitions 200
    python -m reproduction.inference run --worlds F J --fit '{"members": 5}' --results members.jsonl
    python -m reproduction.inference table --results members.jsonl
    python -m reproduction.inference without --repetitions 8
    python -m reproduction.inference report

`run` appends one line per world, size, method and repetition to results.jsonl and skips the lines that exist; what
failed is tried again. Each repetition is its own seed. `without` does the same for models that lack a part of lacova,
in the worlds that show it. `table` prints the figures of a results file, and `report` writes docs/inference.md and its
appendix.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from reproduction import results
from reproduction.inference.beside import differences
from reproduction.inference.page import PAGE, appendix, findings
from reproduction.inference.parts import PARTS, comparison, run_without
from reproduction.inference.run import Cell, run
from reproduction.inference.summary import KEY, plain, summary
from reproduction.inference.world import Ours
from reproduction.inference.worlds import WORLDS, chosen
from reproduction.markdown import write

RESULTS = Path(__file__).with_name("results.jsonl")
METHODS = list(dict.fromkeys(method for world in WORLDS.values() for method in world.methods))


def cells(options: argparse.Namespace) -> list[Cell]:
    """Return what was asked for, repetition by repetition, so that all worlds advance together."""
    return [
        (world.name, size, method, repetition)
        for repetition in range(options.first, options.first + options.repetitions)
        for world in chosen(options.worlds)
        for size in world.sizes
        if options.sizes is None or size in options.sizes
        for method in world.methods
        if method in options.methods
    ]


def parser() -> argparse.ArgumentParser:
    commands = argparse.ArgumentParser(
        prog="python -m reproduction.inference", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    letters = sorted({world.letter for world in WORLDS.values()})
    commands.add_argument("action", choices=("run", "without", "table", "report"))
    commands.add_argument(
        "--worlds",
        nargs="+",
        choices=[*WORLDS, *letters],
        default=list(WORLDS),
        metavar="WORLD",
        help=f"by name or letter: {', '.join(f'{w.name} ({w.letter})' for w in WORLDS.values())}",
    )
    commands.add_argument("--sizes", nargs="+", type=int, help="rows or patients, of those of the worlds")
    commands.add_argument(
        "--methods", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD", help=f"of {', '.join(METHODS)}"
    )
    commands.add_argument("--repetitions", type=int, default=200)
    commands.add_argument("--first", type=int, default=0, help="number of the first repetition, which is its seed")
    commands.add_argument("--settings", type=json.loads, default={}, help="settings of lacova's models, as JSON")
    commands.add_argument("--fit", type=json.loads, default={}, help="options of fit, as JSON")
    commands.add_argument("--device", default="cpu")
    commands.add_argument("--workers", type=int, default=1)
    commands.add_argument("--verbose", action="store_true", help="print each line as it is computed")
    commands.add_argument("--results", type=Path, default=RESULTS)
    commands.add_argument("--out", type=Path, default=PAGE, help="another page; its appendix goes to appendix/ there")
    return commands


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.action == "run":
        if (options.fit or options.settings) and options.results == RESULTS:
            raise SystemExit("--fit and --settings differ from the defaults: name another file for them, --results.")
        ours = Ours(options.settings, options.fit, options.device)
        return 1 if run(cells(options), ours, options.results, options.workers, options.verbose) else 0
    if options.action == "without":
        failed = sum(
            run_without(part, options.repetitions, options.workers, options.device, options.verbose) for part in PARTS
        )
        return 1 if failed else 0
    whole = results.read(options.results, KEY)
    lines = summary(whole)
    if options.action == "table":
        names = [world.name for world in chosen(options.worlds)]
        print(plain([line for line in lines if line.world in names]))
    else:
        write(options.out, findings(lines, differences(whole), comparison(whole), options.out.name), appendix(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
