"""`lacova filter`: predict each visit from the earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lacova.cli import options
from lacova.cli.common import by_row, deliver, load_model_and_table, print_json, short

if TYPE_CHECKING:
    import pandas as pd


def filter_visits(
    run: options.Run,
    data: options.Data,
    out: options.Out = None,
    draws: options.RowDraws = 400,
    interval: options.CentralInterval = 0.9,
    unseen: options.Unseen = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict each visit from the earlier ones of the same instance; with --out, write all visits and predictions."""
    model, table = load_model_and_table(run, data, out, device, unseen)
    visits = model.filter(table, draws=draws, interval=interval, seed=seed)
    if out is not None:
        deliver(visits, out, quiet)
    summary = _summary(visits)
    if as_json:
        print_json(by_row(summary))
        return
    typer.echo(summary.rename_axis(None).to_string(float_format=short))
    typer.echo(f"\nn: visits at which it was observed; inside: share of these within the {interval:.0%} interval.")
    if summary["inside"].isna().any():
        typer.echo("NAME_p_LEVEL: of a category, the probability of a level beside 1 or 0, without an interval.")


def _summary(visits: pd.DataFrame) -> pd.DataFrame:
    """Compute by measurement, in the order of the schema: number observed, error of the means, share in intervals."""
    import pandas as pd

    observed = visits[visits["observed"].notna()]
    error = (observed["mean"] - observed["observed"]).groupby(observed["measurement"])
    within = observed["inside"].astype(float).groupby(observed["measurement"])
    summary = pd.DataFrame({"n": error.size(), "rmse": error.apply(_root_mean_square), "inside": within.mean()})
    return summary.reindex(visits["measurement"].unique()).fillna({"n": 0}).astype({"n": int})


def _root_mean_square(values: pd.Series[float]) -> float:
    return float(values.pow(2).mean() ** 0.5)
