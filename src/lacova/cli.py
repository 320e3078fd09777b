"""The command `lacova`."""

from __future__ import annotations

import argparse
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="lacova", description="Learn from tables with gaps in measurements and covariates."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="fit, impute and predict rotated digits with gaps")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for the picture and the scores")
    demo.add_argument("--epochs", type=int, default=40, help="most passes over the training rows, per model")
    options = parser.parse_args(arguments)

    from lacova import demo as demonstration

    demonstration.run(options.out, options.epochs)
    return 0
