"""`lacova describe`: describe a fitted model."""

from __future__ import annotations

import typer

from lacova.cli.common import AsJson, Run, load_run, print_json


def describe(run: Run, as_json: AsJson = False) -> None:
    """Describe a fitted model."""
    model = load_run(run, "cpu")
    if as_json:
        print_json(model.facts())
    else:
        typer.echo(model.describe())
