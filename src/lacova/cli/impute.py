"""`lacova impute`: fill the gaps of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lacova.cli import options
from lacova.cli.common import deliver, load_model_and_data, remark, require_out


def impute(
    run: options.Run,
    data: options.Data,
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
    """Fill the gaps of a table, in measurements and covariates."""
    model, table = load_model_and_data(run, data, out, device, stream, unseen)
    settings: dict[str, Any] = {"interval": interval, "probabilities": probabilities, "seed": seed}
    if isinstance(table, Path):
        model.impute(table, draws, out=require_out(out), **settings)
        remark(f"Written to {out}.", quiet)
        return
    deliver(model.impute(table, draws, **settings), out, quiet)
    if out is not None:
        gaps = {name: int(table[name].isna().sum()) for name in model.schema.columns if name in table}
        filled = ", ".join(f"{name} {count}" for name, count in gaps.items() if count)
        remark(f"Gaps filled: {filled or 'none, as there are none'}.", quiet)
