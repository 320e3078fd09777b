"""What is behind the answers: `effects`, `whatif`, `filter`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lacova.cli.common import (
    AsJson,
    Data,
    Device,
    History,
    Out,
    Quiet,
    Run,
    Seed,
    deliver,
    finite,
    prepare_whole,
    print_json,
    read_history,
    short,
)  # fmt: skip

if TYPE_CHECKING:
    import pandas as pd


def effects(
    run: Run,
    data: Data,
    out: Out = None,
    draws: Annotated[int, typer.Option(help="draws of each row")] = 100,
    interval: Annotated[float, typer.Option(help="central interval of each effect")] = 0.9,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Say which part of the prior explains which measurement; with --out, also its effect at every row."""
    from lacova.models.conditional import GPPriorVAE

    model, table = prepare_whole(run, data, out, device)
    if not isinstance(model, GPPriorVAE):
        raise ValueError(f"effects are those of a GP prior, but {run} holds a {type(model).__name__}; fit --model gp.")
    found = model.effects(table, draws=draws, interval=interval, seed=seed)
    if out is not None:
        deliver(found.rows, out, quiet)
    shares, known = (each.set_index("component") for each in (found.shares, found.known))
    if as_json:
        each, sure = ({str(name): finite(row.to_dict()) for name, row in t.iterrows()} for t in (shares, known))
        print_json({**each, "known": sure})
        return
    typer.echo(shares.T.to_string(float_format=lambda share: f"{share:.3f}"))
    typer.echo("\nshare of each measurement's variance; of these, known (the share of the posterior mean):\n")
    typer.echo(known.T.to_string(float_format=lambda share: f"{share:.3f}"))


def whatif(
    run: Run,
    data: Data,
    changes: Annotated[
        list[str], typer.Option("--set", help="COVARIATE=VALUE, the same for all rows; repeat", show_default=False)
    ],
    history: History = None,
    out: Out = None,
    draws_out: Annotated[
        Path | None, typer.Option(help="file for the paired draws, a line per draw, row and measurement")
    ] = None,
    draws: Annotated[int, typer.Option(help="draws of each row")] = 400,
    interval: Annotated[float, typer.Option(help="central interval, such as 0.9")] = 0.9,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Predict with some covariates set to other values, beside the prediction as things are."""
    from lacova.data.io.files import check_output

    if draws_out is not None:
        check_output(draws_out)
    if draws_out is not None and draws_out == out:
        raise ValueError(f"--out and --draws-out are both {out}; name a file for each.")
    model, table = prepare_whole(run, data, out, device)
    strange = [text for text in changes if "=" not in text]
    if strange:
        raise ValueError(f"--set is {strange[0]!r}; expected COVARIATE=VALUE, such as --set arm=b.")
    setting = {name: model.read_value(name, text) for name, _, text in (each.partition("=") for each in changes)}
    found = model.what_if(
        table, setting, read_history(history), draws=draws, interval=interval, seed=seed,
        keep_draws=draws_out is not None,
    )  # fmt: skip
    for frame, file in ((found.rows, out), (found.draws, draws_out)):
        if frame is not None and file is not None:
            deliver(frame, file, quiet)
    average = found.average.set_index("measurement")
    if as_json:
        print_json({str(name): finite(row.to_dict()) for name, row in average.iterrows()})
        return
    typer.echo(average.rename_axis(None).to_string(float_format=short))
    typer.echo("\nmeans over all rows, and what setting " + ", ".join(changes) + " changes of them.")


def followed(
    run: Run,
    data: Data,
    out: Out = None,
    draws: Annotated[int, typer.Option(help="draws of each row")] = 400,
    interval: Annotated[float, typer.Option(help="central interval, such as 0.9")] = 0.9,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Predict each visit from the earlier ones of the same instance; with --out, every visit beside its prediction."""
    model, table = prepare_whole(run, data, out, device)
    found = model.filter(table, draws=draws, interval=interval, seed=seed)
    if out is not None:
        deliver(found, out, quiet)
    summary = _foreseen(found)
    if as_json:
        print_json({str(name): finite(row.to_dict()) for name, row in summary.iterrows()})
        return
    typer.echo(summary.rename_axis(None).to_string(float_format=short))
    typer.echo(f"\nn: visits at which it was observed; inside: share of these within the {interval:.0%} interval.")
    if summary["inside"].isna().any():
        typer.echo("NAME_p_LEVEL: of a category, the probability of a level beside 1 or 0, without an interval.")


def _foreseen(found: pd.DataFrame) -> pd.DataFrame:
    """By measurement, in the order of the schema: how many were observed, how far off the means, how many inside."""
    import pandas as pd

    known = found[found["observed"].notna()]
    error = (known["mean"] - known["observed"]).groupby(known["measurement"])
    within = known["inside"].astype(float).groupby(known["measurement"])
    summary = pd.DataFrame({"n": error.size(), "rmse": error.apply(_root_mean_square), "inside": within.mean()})
    return summary.reindex(found["measurement"].unique()).fillna({"n": 0}).astype({"n": int})


def _root_mean_square(values: pd.Series[float]) -> float:
    return float(values.pow(2).mean() ** 0.5)
