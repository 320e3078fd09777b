"""`lacova whatif`: predict with some covariates set to other values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lacova.cli import options
from lacova.cli.common import by_row, check_out, deliver, load_model_and_table, print_json, read_history, short
from lacova.cli.paths import WRITTEN


def whatif(
    run: options.Run,
    data: options.Data,
    assignments: Annotated[
        list[str], typer.Option("--set", help="COVARIATE=VALUE, the same for all rows; repeat", show_default=False)
    ],
    history: options.History = None,
    out: options.Out = None,
    draws_out: Annotated[
        Path | None, typer.Option(help="file for the paired draws, a line per draw, row and measurement"), WRITTEN
    ] = None,
    draws: options.RowDraws = 400,
    interval: options.CentralInterval = 0.9,
    unseen: options.Unseen = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict with some covariates set to other values, next to the prediction as things are."""
    check_out(draws_out)
    model, table = load_model_and_table(run, data, out, device, unseen)
    invalid = [text for text in assignments if "=" not in text]
    if invalid:
        raise ValueError(f"--set is {invalid[0]!r}; expected COVARIATE=VALUE, such as --set arm=b.")
    pairs = [text.split("=", 1) for text in assignments]
    result = model.what_if(
        table, {name: model.read_value(name, text) for name, text in pairs}, read_history(history), draws=draws,
        interval=interval, seed=seed, keep_draws=draws_out is not None,
    )  # fmt: skip
    if out is not None:
        deliver(result.rows, out, quiet)
    if result.draws is not None:
        deliver(result.draws, draws_out, quiet)
    average = result.average.set_index("measurement")
    if as_json:
        print_json(by_row(average))
        return
    typer.echo(average.rename_axis(None).to_string(float_format=short))
    typer.echo("\nmeans over all rows, and what setting " + ", ".join(assignments) + " changes of them.")
