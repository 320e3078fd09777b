"""`lacova schema`: propose the roles of the columns."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from lacova.cli import options
from lacova.cli.common import remark
from lacova.cli.paths import WRITTEN


def schema(
    data: options.Data,
    measurements: Annotated[
        list[str] | None, typer.Option("--measurement", "-m", help="a column to model; repeat")
    ] = None,
    instance: Annotated[str | None, typer.Option(help="the column that names the patient")] = None,
    time: Annotated[str | None, typer.Option(help="the time column")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="a column to leave out; repeat")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="TOML file to write; else TOML on stdout"), WRITTEN] = None,
    quiet: options.Quiet = False,
) -> None:
    """Propose the roles of a table's columns, for you to check and edit."""
    from lacova.data.io.files import check_output, read_table
    from lacova.data.schema import Schema

    if out is not None:
        check_output(out, None)
    table = read_table(data)
    proposal = Schema.infer(
        table, measurements=measurements or None, instance=instance, time=time, exclude=exclude or ()
    )
    names = [
        note.column for note in proposal.notes
        if note.reason.startswith("named like") and table[note.column].duplicated().any()
    ]  # fmt: skip
    if instance is None and names:
        remark(f"No --instance is given, so rows count as independent; if {names[0]!r} names the patient, "
               f"add --instance {shlex.quote(names[0])}.", quiet)  # fmt: skip
    if out is None:
        typer.echo(proposal.to_toml(), nl=False)
        return
    proposal.to_toml(out)
    remark(f"{proposal.describe()}\nWritten to {out}: check the roles, edit them if need be, then\n"
           f"  lacova fit {data} --schema {out} --out RUN", quiet)  # fmt: skip
