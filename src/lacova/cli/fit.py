"""`lacova fit`: learn a model from a table and write it into a folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lacova.cli import options
from lacova.cli.common import finite, merge_settings, print_json, read_or_stream, read_schema, read_share, remark
from lacova.cli.paths import RUN_WRITTEN
from lacova.cli.run_folder import MODEL, check_run, checkpoint_of, identity_of, named, write_run

if TYPE_CHECKING:
    from lacova.data.schema import Schema
    from lacova.models.base import Model

GO_ON = "The same command with --resume goes on."


def fit(
    data: options.Data,
    schema: options.SchemaFile,
    out: Annotated[Path, typer.Option(help="folder to write the model into", show_default=False), RUN_WRITTEN],
    validation: Annotated[
        Path | None, typer.Option(help="a table to choose the best weights by; else a share of DATA")
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(help="share of rows, or of instances, held out for that; 0 for none (a tenth of large tables)"),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="cvae, gp, or another by its name, such as lvae; auto: gp where there is an instance or a time column"
        ),
    ] = "auto",
    prior: Annotated[str | None, typer.Option(help="formula of the GP prior, such as 'gp(day) + cat(sex)'")] = None,
    latent_dim: Annotated[int | None, typer.Option(help="dimensions of z; the model decides if left out")] = None,
    covariates: Annotated[str | None, typer.Option(help="how to treat gaps in covariates; joint unless given")] = None,
    settings: options.Settings = None,
    epochs: options.Epochs = None,
    batch_size: Annotated[int | None, typer.Option(help="rows, or instances, per step (by the table)")] = None,
    stream: options.Stream = False,
    checkpoint_every: Annotated[
        int, typer.Option(help="write the file RUN.checkpoint every so many steps; 0 for none", min=0)
    ] = 1000,
    resume: Annotated[bool, typer.Option("--resume", help="continue from RUN.checkpoint, if there is one")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="replace an existing model or checkpoint and start again")
    ] = False,
    devices: Annotated[
        int, typer.Option(help="processes that share each batch, each with its own GPU if there is one", min=1)
    ] = 1,
    nodes: Annotated[
        int, typer.Option(help="number of machines, under torchrun or srun; see docs/scaling.md", min=1)
    ] = 1,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Learn a model from a table with gaps."""
    from lacova.training.checkpoint import remove_checkpoints
    from lacova.training.distributed import writes

    writer = devices * nodes == 1 or writes()
    quiet = quiet or not writer
    out = named(out)
    checkpoint = checkpoint_of(out)
    resuming = _check_checkpoint(checkpoint, checkpoint_every, resume, force)
    check_run(out, force or resuming)
    roles = read_schema(schema, data)
    given = {
        "latent_dim": latent_dim, "prior": prior, "covariates": covariates, "batch_size": batch_size,
        "max_epochs": epochs,
    }  # fmt: skip
    learner, training = _learner(roles, model, merge_settings(settings, given))
    table = read_or_stream(data, stream)
    held_out = read_share(validation_share) if validation is None else read_or_stream(validation, stream)
    remark(f"Learning a {type(learner).__name__} from {_row_counts(data, table, held_out)}.", quiet)
    if checkpoint_every:
        training |= {"checkpoint": checkpoint, "checkpoint_every": checkpoint_every, "checkpoint_keep": True}
    if devices * nodes > 1:
        training |= {"devices": devices, "nodes": nodes}
    if not resuming and writer:
        remove_checkpoints(checkpoint)
    training |= {"seed": seed, "device": device, "progress": False if quiet else None}
    with _interruptible(out, checkpoint):
        _learn(learner, table, held_out, training)
        if writer:
            write_run(learner, out, schema)
    if not writer:
        return
    if as_json:
        assert learner.training is not None
        last = learner.training.tail(1).to_dict("records") or [{}]
        found = list(learner.findings.concerns.values())
        print_json({"run": str(out), "model": type(learner).__name__, **finite(last[0]), "warnings": found})
    else:
        remark(
            f"{learner.describe()}\nWritten to {out}. To fill the gaps:\n  lacova impute {out} {data} --out FILE", quiet
        )
    if learner.interrupted:
        hint = GO_ON if checkpoint.exists() else "There is no checkpoint to go on from."
        typer.echo(f"lacova: interrupted; the model with the best weights so far is in {out}. {hint}", err=True)
        raise typer.Exit(130)
    remove_checkpoints(checkpoint)


def _learn(learner: Model, table: Any, held_out: Any, training: Mapping[str, Any]) -> None:
    """Fit the model, and leave what it warns of to the lines that are printed afterwards."""
    from lacova.data.errors import FitWarning
    from lacova.training.interrupt import InterruptedWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InterruptedWarning)  # said after the model is written
        warnings.simplefilter("ignore", FitWarning)  # as lines of `describe`
        learner.fit(table, held_out, **training)


@contextmanager
def _interruptible(out: Path, checkpoint: Path) -> Iterator[None]:
    """Say what there is if Ctrl-C ends training or writing at once."""
    before = identity_of(out / MODEL)
    try:
        yield
    except KeyboardInterrupt:
        if identity_of(out / MODEL) != before:
            typer.echo(f"lacova: interrupted; the new model is in {out}, but not all of the files beside it.", err=True)
        elif checkpoint.exists():
            typer.echo(f"lacova: interrupted; no model was written. {GO_ON}", err=True)
        else:
            raise
        raise typer.Exit(130) from None


def _row_counts(data: Path, table: Any, held_out: Any) -> str:
    import pandas as pd

    rows = f"{len(table)} rows" if isinstance(table, pd.DataFrame) else str(data)
    return f"{rows}, {len(held_out)} more to choose the best weights by" if isinstance(held_out, pd.DataFrame) else rows


def _learner(roles: Schema, name: str, settings: dict[str, Any]) -> tuple[Model, dict[str, Any]]:
    """Return the model of that name, or one that suits the schema for "auto", and the options of its training."""
    from lacova.models.gp_prior_vae import GPPriorVAE
    from lacova.models.registry import make_model, model_class

    if name == "auto":
        name = "cvae" if roles.instance is None and roles.time is None else "gp"
    name = {"gp": "GPPriorVAE"}.get(name.lower(), name)
    if "prior" in settings and not issubclass(model_class(name), GPPriorVAE):
        raise ValueError("--prior is a formula for the GP prior; add --model gp.")
    return make_model(name, roles, settings)


def _check_checkpoint(checkpoint: Path, every: int, resume: bool, force: bool) -> bool:
    """Return whether to continue from a checkpoint; refuse to use or to lose an existing one without being told."""
    from lacova.data.errors import DataError

    if resume and force:
        raise ValueError("give --resume to go on or --force to start again, not both.")
    if resume and not every:
        raise ValueError("--resume goes on with checkpoints, but --checkpoint-every is 0; leave that out.")
    if checkpoint.exists() and not (resume or force):
        raise DataError(
            f"{checkpoint} is the checkpoint of a fit that has not ended; add --resume to go on, or --force to start "
            "again."
        )
    return resume and checkpoint.exists()
