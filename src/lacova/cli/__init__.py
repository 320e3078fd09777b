"""The command `lacova`: from a file to an answer without a line of Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from lacova.cli.answering import describe, impute, predict, score
from lacova.cli.common import sentences
from lacova.cli.comparing import compare
from lacova.cli.fitting import fit
from lacova.cli.pooling import pool, shift
from lacova.cli.preparing import schema, study
from lacova.cli.reporting import report
from lacova.cli.studying import effects, followed, whatif

app = typer.Typer(
    name="lacova", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Learn from tables with gaps in measurements and covariates; then impute, predict and score.",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 the data or a file will not do, 2 the command will not do."""
    try:
        app(args=arguments, prog_name="lacova")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def demo(
    out: Annotated[Path, typer.Option(help="folder for the picture and the scores")] = Path("demo"),
    epochs: Annotated[int, typer.Option(help="most passes over the training rows, per model")] = 40,
) -> None:
    """Fit, impute and predict rotated digits with gaps."""
    from lacova.cli import demo as demonstration

    demonstration.run(out, epochs)


def _version(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if version:
        import lacova

        typer.echo(lacova.__version__)
        raise typer.Exit(0)


app.callback(invoke_without_command=True)(_version)
COMMANDS: dict[str, Callable[..., None]] = {
    "study": study, "schema": schema, "fit": fit, "impute": impute, "shift": shift, "pool": pool, "predict": predict,
    "effects": effects, "whatif": whatif, "filter": followed, "score": score, "compare": compare, "describe": describe,
    "report": report, "demo": demo,
}  # fmt: skip
for name, command in COMMANDS.items():
    app.command(name)(sentences(command))
