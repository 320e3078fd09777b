"""`lacova describe`: describe a fitted model."""

from __future__ import annotations

import typer

from lacova.cli import options
from lacova.cli.common import load_run, print_json


def describe(run: options.Run, as_json: options.AsJson = False) -> None:
    """Describe a fitted model."""
    model = load_run(run, "cpu")
    if as_json:
        print_json(model.facts())
    else:
        typer.echo(model.describe())
