"""`lacova study`: prepare a clinical trial."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lacova.cli import options
from lacova.cli.common import print_json
from lacova.cli.paths import WRITTEN


class Scaling(StrEnum):
    none = "none"
    minmax = "minmax"
    standard = "standard"


class Kinds(StrEnum):
    infer = "infer"
    gaussian = "gaussian"


def study(
    folder: Annotated[
        Path,
        typer.Argument(
            help="folder with the SDTM domains DM, LB, VS, AE, CM", metavar="SDTM_FOLDER", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(help="table to write, CSV or Parquet by suffix", show_default=False), WRITTEN],
    schema: Annotated[Path, typer.Option(help="TOML file to write the roles into", show_default=False), WRITTEN],
    min_column: Annotated[float, typer.Option(help="minimum share of the visits at which a test is observed")] = 0.1,
    min_row: Annotated[float, typer.Option(help="minimum share of these tests observed at a visit")] = 0.5,
    min_visits: Annotated[int, typer.Option(help="minimum number of these visits of a patient")] = 5,
    events: Annotated[int, typer.Option(help="number of adverse events that become covariates, commonest first")] = 10,
    medications: Annotated[int, typer.Option(help="number of medications that become covariates")] = 10,
    event_term: Annotated[str, typer.Option(help="column of AE that names the event")] = "AEDECOD",
    medication_term: Annotated[str, typer.Option(help="column of CM that names the drug")] = "CMTRT",
    known_dates: Annotated[
        bool, typer.Option("--known-dates", help="count only events and drugs with complete start and end dates")
    ] = False,
    arms: Annotated[list[str] | None, typer.Option("--arm", help="code of an arm to keep; repeat; default all")] = None,
    planned_arm: Annotated[bool, typer.Option("--planned-arm", help="use ARMCD as the arm, not ACTARMCD")] = False,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="treat vital signs lying and standing as separate tests")
    ] = False,
    exclude: Annotated[list[str] | None, typer.Option(help="a test to leave out; repeat")] = None,
    scaling: Annotated[
        Scaling, typer.Option(help="scaling of measurements; models scale by themselves")
    ] = Scaling.none,
    kinds: Annotated[
        Kinds, typer.Option(help="kinds of measurements: as their values suggest, or all Gaussian")
    ] = Kinds.infer,
    validation_share: Annotated[float, typer.Option(help="share of the patients to write to a validation file")] = 0.0,
    test_share: Annotated[float, typer.Option(help="share of the patients to write to a test file")] = 0.0,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Prepare a clinical trial: turn its SDTM domains into a table of visits."""
    from lacova.data.io.files import check_output
    from lacova.datasets import sdtm

    check_output(out)
    check_output(schema, None)
    trial = sdtm.study(
        folder, min_column=min_column, min_row=min_row, min_visits=min_visits, events=events, medications=medications,
        event_term=event_term, medication_term=medication_term, known_dates=known_dates, arms=arms or None,
        planned_arm=planned_arm, by_position=by_position, exclude=exclude or (), scaling=scaling.value,
        kinds=kinds.value, validation_share=validation_share, test_share=test_share, seed=seed,
    )  # fmt: skip
    written = [str(path) for path in trial.save(out, schema)]
    if as_json:
        print_json({"written": written, "steps": trial.steps.to_dict("index"), "notes": list(trial.notes)})
    elif not quiet:
        typer.echo(f"{trial.describe()}\n\nWritten: {', '.join(written)}. To learn from it:")
        typer.echo(f"  lacova fit {written[0]} --schema {schema} --out RUN")
