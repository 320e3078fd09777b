"""`lacova score`: compare predictions with the measurements."""

from __future__ import annotations

from pathlib import Path

import typer

from lacova.cli import options
from lacova.cli.common import by_row, finite, load_model_and_data, print_json, short


def score(
    run: options.Run,
    data: options.Data,
    draws: options.RowDraws = 100,
    stream: options.Stream = False,
    unseen: options.Unseen = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Compare predictions from the covariates alone with the observed measurements."""
    from lacova.inference.joint_scores import NAMES as JOINT

    model, table = load_model_and_data(run, data, None, device, stream, unseen)
    by_column, overall = model.scores(table, draws=draws, seed=seed)
    if as_json:
        print_json({"overall": finite(overall), "measurements": by_row(by_column)})
        return
    legend = "nll, rmse, crps: less is better."
    if not isinstance(table, Path):  # a stream would have to be read once more
        by_column.insert(1, "sd", table[by_column.index].std(numeric_only=True))
        legend = f"sd: standard deviation of the observed measurements, to compare rmse with; {legend}"
    typer.echo(by_column.rename_axis(None).to_string(float_format=short))
    typer.echo(f"\n{legend}")
    joint = {name: overall.pop(name) for name in JOINT if name in overall}
    typer.echo("over all measurements (nll per row; rmse and crps in units of each column's sd in training):")
    typer.echo("  ".join(f"{name} {value:.4g}" for name, value in overall.items()))
    if joint:
        typer.echo("jointly, of the numbers of a row, or of one over a patient's visits (course; in the same units):")
        typer.echo("  ".join(f"{name} {value:.4g}" for name, value in joint.items()))
