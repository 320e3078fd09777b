"""`lacova predict`: predict measurements from covariates."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lacova.cli import options
from lacova.cli.common import deliver, load_model_and_data, read_history, remark, require_out


def predict(
    run: options.Run,
    x: Annotated[Path, typer.Argument(help="a table of covariates, gaps allowed", metavar="X", show_default=False)],
    history: options.History = None,
    out: options.Out = None,
    draws: options.Draws = None,
    interval: options.Interval = None,
    probabilities: options.Probabilities = False,
    stream: options.Stream = False,
    unseen: options.Unseen = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Predict measurements from covariates; the output holds the covariates too."""
    import pandas as pd

    model, table = load_model_and_data(run, x, out, device, stream, unseen)
    past = read_history(history)
    method: Callable[..., Any] = functools.partial(model.predict, interval=interval, probabilities=probabilities)
    if draws is not None:
        if interval is not None:
            raise ValueError("give --draws or --interval, not both: an interval is a summary of draws.")
        if probabilities:
            raise ValueError("give --draws or --probabilities, not both: draws leave the summary to you.")
        method = functools.partial(model.sample, draws=draws)
    if isinstance(table, Path):
        method(table, past, seed=seed, out=require_out(out))
        remark(f"Written to {out}.", quiet)
        return
    predicted: pd.DataFrame = method(table, past, seed=seed)
    covariates = table.drop(columns=[name for name in predicted.columns if name in table.columns])
    draw_number = predicted.columns[:1].tolist() if draws is not None else []
    parts = [predicted[draw_number], covariates.loc[predicted.index], predicted.drop(columns=draw_number)]
    deliver(pd.concat(parts, axis=1), out, quiet)
    unused = [name for name in model.schema.measurements if name in table and table[name].notna().any()]
    if unused:
        remark(f"The measurements in {x} ({', '.join(unused[:3])}{', ...' if len(unused) > 3 else ''}) are predicted, "
               "not looked at; visits whose measurements should count go into --history.", quiet)  # fmt: skip
