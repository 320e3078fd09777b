"""`lacova effects`: the effect of each component of the GP prior on each measurement."""

from __future__ import annotations

from typing import Annotated

import typer

from lacova.cli import options
from lacova.cli.common import by_row, deliver, load_model_and_table, print_json


def effects(
    run: options.Run,
    data: options.Data,
    out: options.Out = None,
    draws: options.RowDraws = 100,
    interval: Annotated[float, typer.Option(help="central interval of each effect")] = 0.9,
    unseen: options.Unseen = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Show which part of the prior explains which measurement; with --out, write its effect at every row too."""
    from lacova.models.gp_prior_vae import GPPriorVAE

    model, table = load_model_and_table(run, data, out, device, unseen)
    if not isinstance(model, GPPriorVAE):
        raise ValueError(f"effects are those of a GP prior, but {run} holds a {type(model).__name__}; fit --model gp.")
    result = model.effects(table, draws=draws, interval=interval, seed=seed)
    if out is not None:
        deliver(result.rows, out, quiet)
    shares, known = result.shares.set_index("component"), result.known.set_index("component")
    if as_json:
        print_json({**by_row(shares), "known": by_row(known)})
        return
    typer.echo(shares.T.to_string(float_format=lambda share: f"{share:.3f}"))
    typer.echo("\nshare of each measurement's variance; of these, known (the share of the posterior mean):\n")
    typer.echo(known.T.to_string(float_format=lambda share: f"{share:.3f}"))
