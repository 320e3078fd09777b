"""The paper, reproduced: every cell of its tables, and pages that compare published and obtained figures.

    python -m reproduction run cvae lvae --seeds 0 1 2 --device cuda --workers 12 --images mnist.npz
    python -m reproduction report
    python -m reproduction figures --images mnist.npz

`run` fits what is not in the results file and appends a line per run; it can be stopped at any moment and continues
from there. `report` writes docs/reproduction.md and docs/appendix/reproduction.md from the results, and `figures` draws
the pictures of the appendix.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from reproduction import config, results
from reproduction.data import Sources
from reproduction.run import run


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    commands = argparse.ArgumentParser(
        prog="python -m reproduction", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = commands.add_subparsers(dest="action", required=True)
    running = actions.add_parser("run", help="fit what is not in the results file")
    running.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(config.NAMES)}; all but cdisc "
                         "without --data")  # fmt: skip
    running.add_argument("--seeds", type=int, nargs="+", default=None, help="0 1 2 unless you say otherwise")
    running.add_argument("--missing", type=float, nargs="+", help="fractions of those in the tables")
    running.add_argument("--methods", nargs="+", help="of those in the tables; limit comes with oracle")
    running.add_argument("--networks", nargs="+", choices=("dense", "conv"))
    running.add_argument("--datasets", nargs="+", help="of those in the tables")
    running.add_argument(
        "--quick", action="store_true", help="20 and 40%% missing, one seed, dense networks, fewer rows"
    )
    running.add_argument("--device", default="cpu")
    running.add_argument("--workers", type=int, default=1, help="processes; on a GPU, they share it")
    running.add_argument("--data", type=Path, default=os.environ.get("LACOVA_DATA"),
                         help="folder of the clinical tables, or LACOVA_DATA")  # fmt: skip
    running.add_argument("--settings", type=json.loads, default={}, help="other settings of the model, as JSON")
    running.add_argument("--fit", type=json.loads, default={}, help="other options of fit, as JSON")
    running.add_argument("--minutes", type=float, help="begin no cell after so many")
    running.add_argument("--dry-run", action="store_true", help="list what would be fitted")
    running.add_argument("--tables-folder", type=Path, default=config.FOLDER, help=argparse.SUPPRESS)
    reporting = actions.add_parser("report", help="write docs/reproduction.md and its appendix")
    reporting.add_argument("--out", type=Path, help="another file for the page; its appendix goes to appendix/ there")
    drawing = actions.add_parser("figures", help="draw the figures of the appendix; one needs a small fit")
    drawing.add_argument("--out", type=Path, help="another folder")
    drawing.add_argument("--device", default="cpu")
    for action in (running, drawing):
        action.add_argument("--images", type=Path, help="MNIST: an .npz with x and y, or a folder of IDX files")
    for action in (running, reporting, drawing):
        action.add_argument("--results", type=Path, help="another results file")
    return commands


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return {"run": start, "report": report, "figures": draw}[options.action](options)
    except KeyboardInterrupt:
        return 130
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


def start(options: argparse.Namespace) -> int:
    data = None if options.data is None else Path(options.data)
    tables = options.tables or [name for name in config.NAMES if name != "cdisc" or data is not None]
    defaults = config.QUICK if options.quick else {"seeds": (0, 1, 2), "missing": None, "networks": None}
    chosen = {name: getattr(options, name) or defaults[name] for name in defaults}
    choice = config.Choice(**chosen, methods=options.methods, datasets=options.datasets)
    jobs = config.jobs(tables, choice, options.quick, options.tables_folder)
    if options.settings or options.fit:
        if options.results is None:
            raise ValueError("runs with other --settings or --fit need a file of their own: --results FILE.")
        jobs = [job.varied(options.settings, options.fit) for job in jobs]
    file = options.results or (Path("runs/quick.jsonl") if options.quick else results.FILE)
    if options.workers < 1:
        raise ValueError(f"--workers is {options.workers}; expected 1 or more.")
    if not jobs:
        raise ValueError("no cell of these tables fits all of --missing, --methods, --networks and --datasets.")
    if options.dry_run:
        for job in results.left(jobs, results.read(file)):
            print(job.name)
        return 0
    if "cdisc" in tables and data is None:
        raise ValueError("the CDISC pilot is not part of lacova: name its folder by --data, or LACOVA_DATA.")
    failed = run(jobs, file, Sources(options.images, data), options.device, options.workers, options.minutes)
    return 1 if failed else 0


def report(options: argparse.Namespace) -> int:
    from reproduction.appendix import appendix
    from reproduction.findings import PAGE, findings
    from reproduction.markdown import write

    page, lines = options.out or PAGE, results.read(options.results or results.FILE)
    write(page, findings(lines, page.name), appendix(lines))
    return 0


def draw(options: argparse.Namespace) -> int:
    from reproduction.figures import FOLDER, draw_all

    draw_all(
        results.read(options.results or results.FILE), Sources(options.images), options.device, options.out or FOLDER
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
