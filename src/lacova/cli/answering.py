"""What a fitted model fills in and foresees: `impute`, `predict`, `score`; and what it is: `describe`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lacova.cli.common import (
    AsJson,
    Data,
    Device,
    Draws,
    History,
    Interval,
    Out,
    Probabilities,
    Quiet,
    Run,
    Seed,
    Stream,
    deliver,
    finite,
    load_run,
    needed,
    prepare,
    print_json,
    read_history,
    say,
    short,
)  # fmt: skip


def impute(
    run: Run,
    data: Data,
    out: Out = None,
    draws: Draws = None,
    interval: Interval = None,
    probabilities: Probabilities = False,
    stream: Stream = False,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Fill the gaps of a table, in measurements and covariates."""
    model, table = prepare(run, data, out, device, stream)
    settings: dict[str, Any] = {"interval": interval, "probabilities": probabilities, "seed": seed}
    if isinstance(table, Path):
        model.impute(table, draws, out=needed(out), **settings)
        say(f"Written to {out}.", quiet)
        return
    deliver(model.impute(table, draws, **settings), out, quiet)
    if out is not None:
        gaps = {name: int(table[name].isna().sum()) for name in model.schema.columns if name in table}
        filled_in = ", ".join(f"{name} {count}" for name, count in gaps.items() if count)
        say(f"Gaps filled: {filled_in or 'none, as there are none'}.", quiet)


def predict(
    run: Run,
    x: Annotated[Path, typer.Argument(help="a table of covariates, gaps allowed", metavar="X", show_default=False)],
    history: History = None,
    out: Out = None,
    draws: Draws = None,
    interval: Interval = None,
    probabilities: Probabilities = False,
    stream: Stream = False,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Predict measurements from covariates; beside them stand the covariates themselves."""
    import pandas as pd

    model, table = prepare(run, x, out, device, stream)
    past = read_history(history)
    answer: Callable[..., Any] = functools.partial(model.predict, interval=interval, probabilities=probabilities)
    if draws is not None:
        if interval is not None:
            raise ValueError("give --draws or --interval, not both: an interval is a summary of draws.")
        if probabilities:
            raise ValueError("give --draws or --probabilities, not both: draws leave the summary to you.")
        answer = functools.partial(model.sample, draws=draws)
    if isinstance(table, Path):
        answer(table, past, seed=seed, out=needed(out))
        say(f"Written to {out}.", quiet)
        return
    found: pd.DataFrame = answer(table, past, seed=seed)
    beside = table.drop(columns=[c for c in found.columns if c in table.columns])
    first = found.columns[:1].tolist() if draws is not None else []
    whole = pd.concat([found[first], beside.loc[found.index], found.drop(columns=first)], axis=1)
    deliver(whole, out, quiet)
    given = [name for name in model.schema.measurements if name in table and table[name].notna().any()]
    if given:
        say(f"The measurements in {x} ({', '.join(given[:3])}{', ...' if len(given) > 3 else ''}) are predicted, not "
             "looked at; visits whose measurements should count go into --history.", quiet)  # fmt: skip


def score(
    run: Run,
    data: Data,
    draws: Annotated[int, typer.Option(help="draws of each row")] = 100,
    stream: Stream = False,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare predictions from the covariates alone with the measurements that are there."""
    model, table = prepare(run, data, None, device, stream)
    by_column, whole = model.scores(table, draws=draws, seed=seed)
    if as_json:
        columns = {name: finite(row.to_dict()) for name, row in by_column.iterrows()}
        print_json({"overall": finite(whole), "measurements": columns})
        return
    remark = "nll, rmse, crps: less is better."
    if not isinstance(table, Path):  # of a stream, it would take another pass
        by_column.insert(1, "sd", table[by_column.index].std(numeric_only=True))
        remark = f"sd: of the measurements there are, which rmse is to be compared with; {remark}"
    typer.echo(by_column.rename_axis(None).to_string(float_format=short))
    typer.echo(f"\n{remark}")
    typer.echo("over all measurements (nll per row; rmse and crps in units of each column's sd in training):")
    typer.echo("  ".join(f"{name} {value:.4g}" for name, value in whole.items()))


def describe(run: Run, as_json: AsJson = False) -> None:
    """Say what a fitted model is."""
    model = load_run(run, "cpu")
    if as_json:
        print_json(model.facts())
    else:
        typer.echo(model.describe())
