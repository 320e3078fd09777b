"""Before a model: `study` and `schema`."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lacova.cli.common import AsJson, Data, Quiet, Seed, print_json, say


class Scaling(StrEnum):
    none = "none"
    minmax = "minmax"
    standard = "standard"


class Kinds(StrEnum):
    infer = "infer"
    gaussian = "gaussian"


def study(
    folder: Annotated[
        Path, typer.Argument(help="has the SDTM domains DM, LB, VS, AE, CM", metavar="SDTM_FOLDER", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="table to write, CSV or Parquet by suffix", show_default=False)],
    schema: Annotated[Path, typer.Option(help="TOML file to write the roles into", show_default=False)],
    min_column: Annotated[float, typer.Option(help="least share of the visits that a test is observed at")] = 0.1,
    min_row: Annotated[float, typer.Option(help="least share of these tests observed at a visit")] = 0.5,
    min_visits: Annotated[int, typer.Option(help="least number of these visits of a patient")] = 5,
    events: Annotated[int, typer.Option(help="adverse events that become covariates, commonest first")] = 10,
    medications: Annotated[int, typer.Option(help="medications that do")] = 10,
    event_term: Annotated[str, typer.Option(help="column of AE that names the event")] = "AEDECOD",
    medication_term: Annotated[str, typer.Option(help="column of CM that names the drug")] = "CMTRT",
    known_dates: Annotated[
        bool, typer.Option("--known-dates", help="only events and drugs with whole start and end dates count")
    ] = False,
    arms: Annotated[list[str] | None, typer.Option("--arm", help="code of an arm to keep; repeat; else all")] = None,
    planned_arm: Annotated[bool, typer.Option("--planned-arm", help="ARMCD is the arm, not ACTARMCD")] = False,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="vital signs lying and standing are tests of their own")
    ] = False,
    exclude: Annotated[list[str] | None, typer.Option(help="a test to leave out; repeat")] = None,
    scaling: Annotated[Scaling, typer.Option(help="of measurements; models scale by themselves")] = Scaling.none,
    kinds: Annotated[Kinds, typer.Option(help="of measurements: as their values suggest, or all alike")] = Kinds.infer,
    validation_share: Annotated[float, typer.Option(help="share of the patients for a file of their own")] = 0.0,
    test_share: Annotated[float, typer.Option(help="share of the patients for another")] = 0.0,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Prepare a clinical trial: from its SDTM domains to a table of visits."""
    from lacova.data.io.files import check_folder, check_output
    from lacova.datasets import sdtm

    check_output(out)
    check_folder(schema.parent)
    if schema.is_dir() or schema == out:
        raise ValueError(f"--schema is {schema}; name a file of its own for the roles, such as study.toml.")
    found = sdtm.study(
        folder, min_column=min_column, min_row=min_row, min_visits=min_visits, events=events, medications=medications,
        event_term=event_term, medication_term=medication_term, known_dates=known_dates, arms=arms or None,
        planned_arm=planned_arm, by_position=by_position, exclude=exclude or (), scaling=scaling.value,
        kinds=kinds.value, validation_share=validation_share, test_share=test_share, seed=seed,
    )  # fmt: skip
    written = [str(path) for path in found.save(out, schema)]
    if as_json:
        print_json({"written": written, "steps": found.steps.to_dict("index"), "notes": list(found.notes)})
    elif not quiet:
        typer.echo(f"{found.describe()}\n\nWritten: {', '.join(written)}. To learn from it:")
        typer.echo(f"  lacova fit {written[0]} --schema {schema} --out RUN")


def schema(
    data: Data,
    measurements: Annotated[
        list[str] | None, typer.Option("--measurement", "-m", help="a column to model; repeat")
    ] = None,
    instance: Annotated[str | None, typer.Option(help="the column that names the patient")] = None,
    time: Annotated[str | None, typer.Option(help="the time column")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="a column to leave out; repeat")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="TOML file to write; else TOML on stdout")] = None,
    quiet: Quiet = False,
) -> None:
    """Propose the roles of a table's columns, to be checked and edited."""
    from lacova.data.io.files import check_folder, read_table
    from lacova.data.schema import Schema

    if out is not None:
        check_folder(out.parent)
    table = read_table(data)
    found = Schema.infer(table, measurements=measurements or None, instance=instance, time=time, exclude=exclude or ())
    names = [n.column for n in found.notes if n.reason.startswith("named like") and table[n.column].duplicated().any()]
    if instance is None and names:
        say(f"No --instance is given, so rows count as independent; if {names[0]!r} names the patient, "
             f"add --instance {shlex.quote(names[0])}.", quiet)  # fmt: skip
    if out is None:
        typer.echo(found.to_toml(), nl=False)
        return
    found.to_toml(out)
    say(f"{found.describe()}\nWritten to {out}: check the roles, edit them if need be, then\n"
         f"  lacova fit {data} --schema {out} --out RUN", quiet)  # fmt: skip
