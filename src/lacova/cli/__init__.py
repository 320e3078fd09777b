"""The command `lacova`: from a file to an answer without a line of Python. Each command has a module of its name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated

import typer

from lacova.cli import (
    compare,
    demo,
    describe,
    effects,
    fit,
    impute,
    permute,
    pool,
    predict,
    report,
    schema,
    score,
    shift,
    study,
    whatif,
)
from lacova.cli import filter as filter_visits
from lacova.cli.errors import report_errors

app = typer.Typer(
    name="lacova", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Learn from tables with gaps in measurements and covariates; then impute, predict and score.",
)  # fmt: skip
COMMANDS: dict[str, Callable[..., None]] = {
    "study": study.study, "schema": schema.schema, "fit": fit.fit, "impute": impute.impute, "shift": shift.shift,
    "pool": pool.pool, "predict": predict.predict, "effects": effects.effects, "whatif": whatif.whatif,
    "permute": permute.permute, "filter": filter_visits.filter_visits, "score": score.score, "compare": compare.compare,
    "describe": describe.describe, "report": report.report, "demo": demo.demo,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 refused data or files, 2 a command that cannot be read."""
    try:
        app(args=arguments, prog_name="lacova")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _before_any_command(
    version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import", metavar="MODULE", show_default=False,
            help="import a module that registers parts of your own, from here or installed; repeatable",
        ),
    ] = None,
) -> None:  # fmt: skip
    if version:
        import lacova

        typer.echo(lacova.__version__)
        raise typer.Exit(0)
    for name in modules or ():
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            import_module(name)
        except ImportError as error:
            typer.echo(f"lacova: --import {name} failed: {error}.", err=True)
            raise typer.Exit(2) from None


app.callback(invoke_without_command=True)(_before_any_command)
for name, command in COMMANDS.items():
    app.command(name)(report_errors(command))
