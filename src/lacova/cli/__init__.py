"""The command `lacova`: from a file to an answer without a line of Python. Each command has a module of its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from lacova.cli import (
    compare,
    demo,
    describe,
    effects,
    fit,
    impute,
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
from lacova.cli.common import report_errors

app = typer.Typer(
    name="lacova", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Learn from tables with gaps in measurements and covariates; then impute, predict and score.",
)  # fmt: skip
COMMANDS: dict[str, Callable[..., None]] = {
    "study": study.study, "schema": schema.schema, "fit": fit.fit, "impute": impute.impute, "shift": shift.shift,
    "pool": pool.pool, "predict": predict.predict, "effects": effects.effects, "whatif": whatif.whatif,
    "filter": filter_visits.filter_visits, "score": score.score, "compare": compare.compare,
    "describe": describe.describe, "report": report.report, "demo": demo.demo,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 refused data or files, 2 a command that cannot be read."""
    try:
        app(args=arguments, prog_name="lacova")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _version(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if version:
        import lacova

        typer.echo(lacova.__version__)
        raise typer.Exit(0)


app.callback(invoke_without_command=True)(_version)
for name, command in COMMANDS.items():
    app.command(name)(report_errors(command))
