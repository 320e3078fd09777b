"""`lacova compare`: cross-validate several models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lacova.cli import options
from lacova.cli.common import by_row, check_out, deliver, merge_settings, print_json, read_in_memory, read_schema, short

if TYPE_CHECKING:
    import pandas as pd


def compare(
    data: options.Data,
    schema: options.SchemaFile,
    models: Annotated[
        str,
        typer.Option(
            help="names, separated by commas: VAE,CVAE,LVAE; CVAE:mean imputes gaps in covariates by the mean",
            show_default=False,
        ),
    ],
    folds: Annotated[
        int, typer.Option(help="number of parts; each is held out once, with all rows of an instance in one part")
    ] = 5,
    hide: Annotated[float, typer.Option(help="share of the held-out entries to hide and impute")] = 0.2,
    out: options.TableOut = None,
    resume: options.Record = None,
    latent_dim: Annotated[
        int | None,
        typer.Option(help="dimensions of z in all models; the model decides if left out"),
    ] = None,
    epochs: options.Epochs = None,
    draws: Annotated[int, typer.Option(help="draws of each held-out row")] = 100,
    settings: options.Settings = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Cross-validate several models on the same hidden entries."""
    from lacova.analysis.comparison import compare as run

    check_out(out)
    roles, table = read_schema(schema, data), read_in_memory(data)
    names = [name.strip() for name in models.split(",") if name.strip()]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"--models names {twice[0]} twice; once is enough.")
    common = merge_settings(settings, {"latent_dim": latent_dim, "max_epochs": epochs})
    entries = {}
    for label in names:
        name, _, covariates = label.partition(":")
        entries[label] = name, common | ({"covariates": covariates} if covariates else {})
    scores = run(
        table, roles, entries, folds=folds, hide=hide, draws=draws, seed=seed, device=device, checkpoint=resume,
        progress=False if quiet else None,
    )  # fmt: skip
    if out is not None:
        deliver(scores.reset_index(), out, quiet)
    if as_json:
        print_json(by_row(scores))
        return
    typer.echo(_side_by_side(scores).to_string())
    typer.echo(
        f"\nmeans over {folds} folds ± standard errors. nll, crps, rmse, coverage90, accuracy: of hidden measurements; "
        "energy, variogram: of those of a row jointly; course_: of one measurement over the visits of an instance "
        "jointly; x_: of hidden covariates; predict_: of measurements from covariates alone. All but nll are in "
        "standard deviations of the training rows."
    )


def _side_by_side(scores: pd.DataFrame) -> pd.DataFrame:
    """Return a table with one column per model and one line per score: its mean and standard error."""
    import pandas as pd

    names = [name for name in scores.columns if not name.endswith("_se")]

    def cell(model: Any, name: str) -> str:
        value = scores.loc[model, name]
        if value != value:
            return ""
        return short(value) + (f" ± {scores.loc[model, f'{name}_se']:.2g}" if f"{name}_se" in scores else "")

    return pd.DataFrame({model: [cell(model, name) for name in names] for model in scores.index}, index=names)
