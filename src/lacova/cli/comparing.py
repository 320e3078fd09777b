"""`compare`: several models on one table, one line each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lacova.cli.common import (
    AsJson,
    Data,
    Device,
    Quiet,
    Seed,
    Settings,
    deliver,
    finite,
    print_json,
    read_whole,
    settings_of,
    short,
)

if TYPE_CHECKING:
    import pandas as pd


def compare(
    data: Data,
    schema: Annotated[Path, typer.Option(help="TOML file with the roles of the columns", show_default=False)],
    models: Annotated[
        str,
        typer.Option(
            help="names, separated by commas: VAE,CVAE,LVAE; CVAE:mean treats gaps in covariates so", show_default=False
        ),
    ],
    folds: Annotated[int, typer.Option(help="parts of the instances, or rows, each of which is held out once")] = 5,
    hide: Annotated[float, typer.Option(help="share of the held-out entries to hide and impute")] = 0.2,
    out: Annotated[Path | None, typer.Option("--out", help="file for the table, CSV or Parquet by suffix")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="file that gains a line after each fit, and from which the same command goes on")
    ] = None,
    latent_dim: Annotated[int, typer.Option(help="dimensions of z, of all models")] = 8,
    epochs: Annotated[
        int | None, typer.Option(help="most passes over the rows; 200, or more for small tables", show_default=False)
    ] = None,
    draws: Annotated[int, typer.Option(help="draws of each held-out row")] = 100,
    settings: Settings = None,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Cross-validate several models on the same questions."""
    from lacova.analysis.comparison import compare as run
    from lacova.data.errors import DataError
    from lacova.data.io.files import check_output
    from lacova.data.schema import Schema

    if out is not None:
        check_output(out)
    if not schema.exists():
        raise DataError(f"there is no file {schema}; `lacova schema {data} --out {schema}` proposes one.")
    roles, table = Schema.from_toml(schema), read_whole(data)
    names = [name.strip() for name in models.split(",") if name.strip()]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"--models names {twice[0]} twice; once is enough.")
    common = settings_of(settings, {"latent_dim": latent_dim, "max_epochs": epochs})
    treated = {name: name.partition(":") for name in names}
    entries = {
        label: (name, common | ({"covariates": treatment} if treatment else {}))
        for label, (name, _, treatment) in treated.items()
    }
    found = run(
        table, roles, entries, folds=folds, hide=hide, draws=draws, seed=seed, device=device, checkpoint=resume,
        progress=False if quiet else None,
    )  # fmt: skip
    if out is not None:
        deliver(found.reset_index(), out, quiet)
    if as_json:
        print_json({str(name): finite(row.to_dict()) for name, row in found.iterrows()})
        return
    typer.echo(readable(found).to_string())
    typer.echo(
        f"\nmeans over {folds} folds ± standard errors. nll, crps, rmse, coverage90, accuracy: of hidden measurements; "
        "x_: of hidden covariates; predict_: of measurements from covariates alone. crps and rmse are in standard "
        "deviations of the training rows."
    )


def readable(found: pd.DataFrame) -> pd.DataFrame:
    """Models side by side, a line per score: the mean and its standard error."""
    import pandas as pd

    scores = [name for name in found.columns if not name.endswith("_se")]

    def cell(model: Any, name: str) -> str:
        value = found.loc[model, name]
        if value != value:
            return ""
        return short(value) + (f" ± {found.loc[model, f'{name}_se']:.2g}" if f"{name}_se" in found else "")

    return pd.DataFrame({model: [cell(model, name) for name in scores] for model in found.index}, index=scores)
