"""`lacova permute`: what a model finds once the arm has been given out anew at random."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from lacova.cli import options
from lacova.cli.common import (
    by_row,
    deliver,
    load_model_and_table,
    merge_settings,
    print_json,
    read_in_memory,
    read_level,
    read_share,
    remark,
    short,
)


def permute(
    run: options.Run,
    data: options.Data,
    covariate: Annotated[
        str, typer.Option(help="the covariate to permute between patients, such as arm", show_default=False)
    ],
    value: Annotated[
        str | None, typer.Option(help="what it is set to; needed if the column holds more than two values")
    ] = None,
    versus: Annotated[str | None, typer.Option(help="what that is compared with")] = None,
    rows: Annotated[
        Path | None, typer.Option(help="rows whose average difference is the effect, such as last visits; else DATA")
    ] = None,
    permutations: Annotated[int, typer.Option(help="how often to permute; each takes a fit")] = 200,
    strata: Annotated[
        list[str] | None, typer.Option(help="column within whose values to permute; repeatable", show_default=False)
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(help="share of rows, or of instances, that each fit holds out; 0 for none (as RUN was trained)"),
    ] = None,
    workers: Annotated[int, typer.Option(help="processes that fit at the same time")] = 1,
    resume: options.Record = None,
    out: options.TableOut = None,
    epochs: options.Epochs = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", show_default=False,
            help="an option of training, instead of that with which RUN was trained; repeatable",
        ),
    ] = None,
    draws: options.RowDraws = 400,
    interval: options.CentralInterval = 0.9,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Fit the model of RUN anew to permuted arms, and count the intervals of the effect that exclude 0."""
    from lacova.analysis.permutation import permutation_test

    model, table = load_model_and_table(run, data, out, device)
    ends = [None if text is None else read_level(table, covariate, text) for text in (value, versus)]
    with warnings.catch_warnings(record=True) as told:
        test = permutation_test(
            table, model, covariate, value=ends[0], versus=ends[1], rows=None if rows is None else read_in_memory(rows),
            permutations=permutations, strata=strata, interval=interval, draws=draws, seed=seed, device=device,
            workers=workers, checkpoint=resume, progress=False if quiet else None,
            **merge_settings(settings, {"max_epochs": epochs, "validation": read_share(validation_share)}),
        )  # fmt: skip
    for warning in told:
        remark(f"lacova: {warning.message}", quiet)
    if out is not None:
        deliver(test.fits, out, quiet)
    summary = test.summary.set_index("measurement")
    if as_json:
        print_json(by_row(summary))
        return
    typer.echo(summary.drop(columns="permutations").T.rename_axis(columns=None).to_string(float_format=short))
    typer.echo(
        f"\nof {covariate} set from {test.versus} to {test.value}, on average over rows; exclude_0: the share of "
        f"intervals that exclude 0 in {permutations} fits to permuted values, where there is no effect."
    )
