"""The command `lacova`: from a file to an answer without a line of Python."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, get_args

import typer

if TYPE_CHECKING:
    import pandas as pd

    from lacova.models import Model
    from lacova.schema import Schema

app = typer.Typer(
    name="lacova", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Learn from tables with gaps in measurements and covariates; then impute, predict and score.",
)  # fmt: skip

P = ParamSpec("P")
MODEL, SCHEMA, TRAINING = "model.lacova", "schema.toml", "training.csv"
GO_ON = "The same command with --resume goes on."
LEAST_UNITS = 20  # rows or instances below which none are held out

STREAM_BYTES = 500_000_000  # of a Parquet file from which on it is not read whole

Data = Annotated[
    Path,
    typer.Argument(
        help="a table: .csv, .csv.gz or .parquet, or a folder of Parquet files", metavar="DATA", show_default=False
    ),
]
Run = Annotated[Path, typer.Argument(help="the folder that `lacova fit` wrote", metavar="RUN", show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", help="file to write, CSV or Parquet by suffix; else CSV on stdout")]
Seed = Annotated[int, typer.Option(help="of every random number")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, or any torch device")]
Stream = Annotated[bool, typer.Option("--stream", help="read Parquet bit by bit; folders and large files always are")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress and no remarks on stderr")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for a program to read")]
Draws = Annotated[int | None, typer.Option(help="draws of each row; without it, means and most probable levels")]
Interval = Annotated[float | None, typer.Option(help="add central intervals, such as 0.9")]


class ModelName(StrEnum):
    auto = "auto"
    gp = "gp"
    cvae = "cvae"


class Scaling(StrEnum):
    none = "none"
    minmax = "minmax"
    standard = "standard"


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 the data or a file will not do, 2 the command will not do."""
    try:
        app(args=arguments, prog_name="lacova")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _sentences(command: Callable[P, None]) -> Callable[P, None]:
    """Bad input ends a command with one sentence on stderr and exit code 1."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from lacova.options import TrainingError

        try:
            command(*args, **kwargs)
        except (ValueError, TrainingError, FileNotFoundError, PermissionError) as error:
            typer.echo(f"lacova: {error}", err=True)
            raise typer.Exit(1) from None
        except BrokenPipeError:  # the reader of stdout has gone
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("lacova: interrupted; nothing was written.", err=True)
            raise typer.Exit(130) from None

    return run


@app.command()
@_sentences
def study(
    folder: Annotated[
        Path, typer.Argument(help="has the SDTM domains DM, LB, VS, AE, CM", metavar="SDTM_FOLDER", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="table to write, CSV or Parquet by suffix", show_default=False)],
    schema: Annotated[Path, typer.Option(help="TOML file to write the roles into", show_default=False)],
    min_column: Annotated[float, typer.Option(help="least share of the visits that a test is observed at")] = 0.1,
    min_row: Annotated[float, typer.Option(help="least share of these tests observed at a visit")] = 0.5,
    min_visits: Annotated[int, typer.Option(help="least number of these visits of a patient")] = 5,
    events: Annotated[int, typer.Option(help="adverse events that become covariates, commonest first")] = 10,
    medications: Annotated[int, typer.Option(help="medications that do")] = 10,
    event_term: Annotated[str, typer.Option(help="column of AE that names the event")] = "AEDECOD",
    medication_term: Annotated[str, typer.Option(help="column of CM that names the drug")] = "CMTRT",
    known_dates: Annotated[
        bool, typer.Option("--known-dates", help="only events and drugs with whole start and end dates count")
    ] = False,
    arms: Annotated[list[str] | None, typer.Option("--arm", help="code of an arm to keep; repeat; else all")] = None,
    planned_arm: Annotated[bool, typer.Option("--planned-arm", help="ARMCD is the arm, not ACTARMCD")] = False,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="vital signs lying and standing are tests of their own")
    ] = False,
    exclude: Annotated[list[str] | None, typer.Option(help="a test to leave out; repeat")] = None,
    scaling: Annotated[Scaling, typer.Option(help="of measurements; models scale by themselves")] = Scaling.none,
    validation_share: Annotated[float, typer.Option(help="share of the patients for a file of their own")] = 0.0,
    test_share: Annotated[float, typer.Option(help="share of the patients for another")] = 0.0,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Prepare a clinical trial: from its SDTM domains to a table of visits."""
    from lacova.datasets import sdtm
    from lacova.files import check_folder, check_output

    check_output(out)
    check_folder(schema.parent)
    if schema.is_dir() or schema == out:
        raise ValueError(f"--schema is {schema}; name a file of its own for the roles, such as study.toml.")
    found = sdtm.study(
        folder, min_column=min_column, min_row=min_row, min_visits=min_visits, events=events, medications=medications,
        event_term=event_term, medication_term=medication_term, known_dates=known_dates, arms=arms or None,
        planned_arm=planned_arm, by_position=by_position, exclude=exclude or (), scaling=scaling.value,
        validation_share=validation_share, test_share=test_share, seed=seed,
    )  # fmt: skip
    written = [str(path) for path in found.save(out, schema)]
    if as_json:
        _print_json({"written": written, "steps": found.steps.to_dict("index"), "notes": list(found.notes)})
    elif not quiet:
        typer.echo(f"{found.describe()}\n\nWritten: {', '.join(written)}. To learn from it:")
        typer.echo(f"  lacova fit {written[0]} --schema {schema} --out RUN")


@app.command()
@_sentences
def schema(
    data: Data,
    measurements: Annotated[
        list[str] | None, typer.Option("--measurement", "-m", help="a column to model; repeat")
    ] = None,
    instance: Annotated[str | None, typer.Option(help="the column that names the patient")] = None,
    time: Annotated[str | None, typer.Option(help="the time column")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="a column to leave out; repeat")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="TOML file to write; else TOML on stdout")] = None,
    quiet: Quiet = False,
) -> None:
    """Propose the roles of a table's columns, to be checked and edited."""
    from lacova.files import check_folder, read_table
    from lacova.schema import Schema

    if out is not None:
        check_folder(out.parent)
    table = read_table(data)
    found = Schema.infer(table, measurements=measurements or None, instance=instance, time=time, exclude=exclude or ())
    names = [n.column for n in found.notes if n.reason.startswith("named like") and table[n.column].duplicated().any()]
    if instance is None and names:
        _say(f"No --instance is given, so rows count as independent; if {names[0]!r} names the patient, "
             f"add --instance {shlex.quote(names[0])}.", quiet)  # fmt: skip
    if out is None:
        typer.echo(found.to_toml(), nl=False)
        return
    found.to_toml(out)
    _say(f"{found.describe()}\nWritten to {out}: check the roles, edit them if need be, then\n"
         f"  lacova fit {data} --schema {out} --out RUN", quiet)  # fmt: skip


@app.command()
@_sentences
def fit(
    data: Data,
    schema: Annotated[Path, typer.Option(help="TOML file with the roles of the columns", show_default=False)],
    out: Annotated[Path, typer.Option(help="folder to write the model into", show_default=False)],
    validation: Annotated[Path | None, typer.Option(help="a table to stop early on; else a share of DATA")] = None,
    validation_share: Annotated[float, typer.Option(help="share of rows, or of instances, held out for that")] = 0.1,
    model: Annotated[
        ModelName, typer.Option(help="auto: gp where there is an instance or a time column")
    ] = ModelName.auto,
    prior: Annotated[str | None, typer.Option(help="formula of the GP prior, such as 'gp(day) + cat(sex)'")] = None,
    latent_dim: Annotated[int, typer.Option(help="dimensions of z")] = 8,
    covariates: Annotated[str, typer.Option(help="how to treat gaps in covariates")] = "joint",
    epochs: Annotated[
        int | None, typer.Option(help="most passes over the rows; 200, or more for small tables", show_default=False)
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="rows (100), or instances (20), per step")] = None,
    stream: Stream = False,
    checkpoint_every: Annotated[
        int, typer.Option(help="steps after which the file RUN.checkpoint is written anew; 0 for none", min=0)
    ] = 1000,
    resume: Annotated[bool, typer.Option("--resume", help="go on from RUN.checkpoint, if it is there")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace a model that is there, start again")] = False,
    devices: Annotated[int, typer.Option(help="processes that share each batch, each with a GPU if any", min=1)] = 1,
    nodes: Annotated[int, typer.Option(help="machines, under torchrun or srun; see docs/scaling.md", min=1)] = 1,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Learn a model from a table with gaps."""
    import pandas as pd

    from lacova.distributed import writes
    from lacova.files import check_folder, write_table
    from lacova.interrupt import InterruptedWarning
    from lacova.schema import DataError, Schema

    main = devices * nodes == 1 or writes()
    quiet = quiet or not main
    checkpoint = out.parent / f"{out.name}.checkpoint"
    going_on = _check_checkpoint(checkpoint, checkpoint_every, resume, force)
    _check_run(out, force or going_on)
    check_folder(out.parent)
    if not schema.exists():
        raise DataError(f"there is no file {schema}; `lacova schema {data} --out {schema}` proposes one.")
    roles = Schema.from_toml(schema)
    learner = _learner(roles, model, prior, latent_dim, covariates)
    table, held_out = _table(data, stream), None
    if validation is not None:
        held_out = _table(validation, stream)
    else:
        table, held_out = _split(table, roles, validation_share, seed)
    rows = f"{len(table)} rows" if isinstance(table, pd.DataFrame) else str(data)
    if isinstance(held_out, pd.DataFrame):
        rows += f", {len(held_out)} more to stop early on"
    _say(f"Learning a {type(learner).__name__} from {rows}.", quiet)
    more: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    if checkpoint_every:
        more |= {"checkpoint": checkpoint, "checkpoint_every": checkpoint_every, "checkpoint_keep": True}
    if devices * nodes > 1:
        more |= {"devices": devices, "nodes": nodes}
    if not going_on and main:
        checkpoint.unlink(missing_ok=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InterruptedWarning)
            learner.fit(
                table, held_out, max_epochs=epochs, seed=seed, device=device, progress=False if quiet else None, **more
            )
        if not main:
            return
        assert learner.training is not None
        with _new_folder(out) as folder:
            learner.save(folder / MODEL)
            roles.to_toml(folder / SCHEMA)
            write_table(learner.training, folder / TRAINING)
    except KeyboardInterrupt:
        if not checkpoint.exists():
            raise
        typer.echo(f"lacova: interrupted; no model was written. {GO_ON}", err=True)
        raise typer.Exit(130) from None
    if as_json:
        last = learner.training.tail(1).to_dict("records") or [{}]
        _print_json({"run": str(out), "model": type(learner).__name__, **_finite(last[0])})
    else:
        _say(
            f"{learner.describe()}\nWritten to {out}. To fill the gaps:\n  lacova impute {out} {data} --out FILE", quiet
        )
    if learner.interrupted:
        way = GO_ON if checkpoint.exists() else "There is no checkpoint to go on from."
        typer.echo(f"lacova: interrupted; the model with the best weights so far is in {out}. {way}", err=True)
        raise typer.Exit(130)
    checkpoint.unlink(missing_ok=True)


@app.command()
@_sentences
def impute(
    run: Run,
    data: Data,
    out: Out = None,
    draws: Draws = None,
    interval: Interval = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="add the probability of each level")] = False,
    stream: Stream = False,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Fill the gaps of a table, in measurements and covariates."""
    model, table = _prepare(run, data, out, device, stream)
    settings: dict[str, Any] = {"interval": interval, "probabilities": probabilities, "seed": seed}
    if isinstance(table, Path):
        model.impute(table, draws, out=_needed(out), **settings)
        _say(f"Written to {out}.", quiet)
        return
    _deliver(model.impute(table, draws, **settings), out, quiet)
    if out is not None:
        gaps = {name: int(table[name].isna().sum()) for name in model.schema.columns if name in table}
        filled_in = ", ".join(f"{name} {count}" for name, count in gaps.items() if count)
        _say(f"Gaps filled: {filled_in or 'none, as there are none'}.", quiet)


@app.command()
@_sentences
def predict(
    run: Run,
    x: Annotated[Path, typer.Argument(help="a table of covariates, gaps allowed", metavar="X", show_default=False)],
    history: Annotated[
        Path | None, typer.Option(help="earlier visits of the same instances, with measurements")
    ] = None,
    out: Out = None,
    draws: Draws = None,
    interval: Interval = None,
    stream: Stream = False,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Predict measurements from covariates; beside them stand the covariates themselves."""
    import pandas as pd

    from lacova.files import read_table

    model, table = _prepare(run, x, out, device, stream)
    past = None if history is None else read_table(history)
    answer: Callable[..., Any] = functools.partial(model.predict, interval=interval)
    if draws is not None:
        if interval is not None:
            raise ValueError("give --draws or --interval, not both: an interval is a summary of draws.")
        answer = functools.partial(model.sample, draws=draws)
    if isinstance(table, Path):
        answer(table, past, seed=seed, out=_needed(out))
        _say(f"Written to {out}.", quiet)
        return
    found: pd.DataFrame = answer(table, past, seed=seed)
    beside = table.drop(columns=[c for c in found.columns if c in table.columns])
    first = found.columns[:1].tolist() if draws is not None else []
    whole = pd.concat([found[first], beside.loc[found.index], found.drop(columns=first)], axis=1)
    _deliver(whole, out, quiet)
    given = [name for name in model.schema.measurements if name in table and table[name].notna().any()]
    if given:
        _say(f"The measurements in {x} ({', '.join(given[:3])}{', ...' if len(given) > 3 else ''}) are predicted, not "
             "looked at; visits whose measurements should count go into --history.", quiet)  # fmt: skip


@app.command()
@_sentences
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
    from lacova.models import GPPriorVAE

    model, table = _prepare_whole(run, data, out, device)
    if not isinstance(model, GPPriorVAE):
        raise ValueError(f"effects are those of a GP prior, but {run} holds a {type(model).__name__}; fit --model gp.")
    found = model.effects(table, draws=draws, interval=interval, seed=seed)
    if out is not None:
        _deliver(found.rows, out, quiet)
    shares = found.shares.set_index("component")
    if as_json:
        _print_json({str(name): _finite(row.to_dict()) for name, row in shares.iterrows()})
        return
    typer.echo(shares.T.to_string(float_format=lambda share: f"{share:.3f}"))
    typer.echo("\nshare of each measurement's variance.")


@app.command()
@_sentences
def whatif(
    run: Run,
    data: Data,
    changes: Annotated[
        list[str], typer.Option("--set", help="COVARIATE=VALUE, the same for all rows; repeat", show_default=False)
    ],
    history: Annotated[
        Path | None, typer.Option(help="earlier visits of the same instances, with measurements")
    ] = None,
    out: Out = None,
    draws: Annotated[int, typer.Option(help="draws of each row")] = 400,
    interval: Annotated[float, typer.Option(help="central interval, such as 0.9")] = 0.9,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Predict with some covariates set to other values, beside the prediction as things are."""
    from lacova.files import read_table

    model, table = _prepare_whole(run, data, out, device)
    strange = [text for text in changes if "=" not in text]
    if strange:
        raise ValueError(f"--set is {strange[0]!r}; expected COVARIATE=VALUE, such as --set arm=b.")
    setting = {name: model.read_value(name, text) for name, _, text in (each.partition("=") for each in changes)}
    past = None if history is None else read_table(history)
    found = model.what_if(table, setting, past, draws=draws, interval=interval, seed=seed)
    if out is not None:
        _deliver(found.rows, out, quiet)
    average = found.average.set_index("measurement")
    if as_json:
        _print_json({str(name): _finite(row.to_dict()) for name, row in average.iterrows()})
        return
    typer.echo(average.rename_axis(None).to_string(float_format=_short))
    typer.echo("\nmeans over all rows, and what setting " + ", ".join(changes) + " changes of them.")


@app.command()
@_sentences
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
    model, table = _prepare(run, data, None, device, stream)
    by_column, whole = model.scores(table, draws=draws, seed=seed)
    if as_json:
        columns = {name: _finite(row.to_dict()) for name, row in by_column.iterrows()}
        _print_json({"overall": _finite(whole), "measurements": columns})
        return
    remark = "nll, rmse, crps: less is better."
    if not isinstance(table, Path):  # of a stream, it would take another pass
        by_column.insert(1, "sd", table[by_column.index].std(numeric_only=True))
        remark = f"sd: of the measurements there are, which rmse is to be compared with; {remark}"
    typer.echo(by_column.rename_axis(None).to_string(float_format=_short))
    typer.echo(f"\n{remark}")
    typer.echo("over all measurements (nll per row; rmse and crps in units of each column's sd in training):")
    typer.echo("  ".join(f"{name} {value:.4g}" for name, value in whole.items()))


@app.command()
@_sentences
def describe(run: Run, as_json: AsJson = False) -> None:
    """Say what a fitted model is."""
    model = _load(run, "cpu")
    if as_json:
        _print_json(model.facts())
    else:
        typer.echo(model.describe())


@app.command()
@_sentences
def demo(
    out: Annotated[Path, typer.Option(help="folder for the picture and the scores")] = Path("demo"),
    epochs: Annotated[int, typer.Option(help="most passes over the training rows, per model")] = 40,
) -> None:
    """Fit, impute and predict rotated digits with gaps."""
    from lacova import demo as demonstration

    demonstration.run(out, epochs)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if version:
        import lacova

        typer.echo(lacova.__version__)
        raise typer.Exit(0)


def _learner(roles: Schema, name: ModelName, prior: str | None, latent_dim: int, covariates: str) -> Model:
    """The model that was asked for, or that suits the schema."""
    from lacova.models import CVAE, Covariates, GPPriorVAE

    if covariates not in get_args(Covariates):
        raise ValueError(f"--covariates is {covariates!r}; expected one of {', '.join(get_args(Covariates))}.")
    settings: dict[str, Any] = {"latent_dim": latent_dim, "covariates": covariates}
    longitudinal = roles.instance is not None or roles.time is not None
    if name == ModelName.gp or (name == ModelName.auto and longitudinal):
        return GPPriorVAE(roles, prior=prior, **settings)
    if prior is not None:
        raise ValueError("--prior is a formula for the GP prior; add --model gp.")
    return CVAE(roles, **settings)


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(text, err=True)


def _short(value: float) -> str:
    """Four significant digits, and whole numbers beyond those."""
    return f"{value:.4g}" if abs(value) < 10_000 or value != value else f"{value:.0f}"


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2))


def _finite(values: Mapping[Any, Any]) -> dict[str, Any]:
    """JSON has no NaN: null in its place."""
    return {str(name): None if value != value else value for name, value in values.items()}


def _check_run(out: Path, force: bool) -> None:
    """Refuse to write over what is no model of ours, or over one that nobody agreed to lose."""
    from lacova.schema import DataError

    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; --out names a folder for the model.")
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / MODEL).exists():
        raise DataError(f"the folder {out} holds other things; choose another for --out.")
    if not force:
        raise DataError(f"there is a model in {out} already; choose another folder, or add --force to replace it.")


def _check_checkpoint(checkpoint: Path, every: int, resume: bool, force: bool) -> bool:
    """Whether to go on from a checkpoint; one that is there is neither used nor lost unless somebody said so."""
    from lacova.schema import DataError

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


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its place if all goes well, and vanishes otherwise."""
    from lacova.schema import DataError

    temporary = Path(tempfile.mkdtemp(prefix=".lacova-", dir=out.parent))
    old = temporary.with_name(f"{temporary.name}-old")
    try:
        yield temporary
        temporary.chmod(0o755)
        if out.exists():
            out.rename(old)
        temporary.rename(out)
    except OSError as error:
        if old.exists() and not out.exists():
            old.rename(out)
        raise DataError(f"{out} cannot be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _split(table: Any, roles: Schema, share: float, seed: int) -> tuple[Any, Any]:
    """Training rows, and a random share of the rows or of the instances to stop early on, if there are enough.

    Of a stream, both are shares of it, by a random number of each row or instance.
    """
    import numpy as np
    import pandas as pd

    from lacova.parquet import Source, open_source

    if not 0.0 <= share < 1.0:
        raise ValueError(f"--validation-share is {share}; expected a share of at least 0 and below 1.")
    if isinstance(table, Path):
        source = open_source(table, roles.instance, roles.columns)
        assert isinstance(source, Source)
        enough = share * len(source) >= 10 * LEAST_UNITS
        return (source.share(share, 1.0, seed), source.share(0.0, share, seed)) if enough else (source, None)
    instance = roles.instance
    if instance in table:
        unit, names = pd.factorize(table[instance])
        count = len(names)
    else:
        unit, count = np.arange(len(table)), len(table)
    if count < LEAST_UNITS or round(share * count) == 0:
        return table, None
    chosen = np.random.default_rng(seed).choice(count, round(share * count), replace=False)
    held_out = np.isin(unit, chosen)
    return table[~held_out], table[held_out]


def _load(run: Path, device: str) -> Model:
    from lacova.files import SUFFIXES
    from lacova.schema import DataError
    from lacova.storage import load

    if run.is_file() and run.name.lower().endswith(SUFFIXES):
        raise DataError(
            f"{run} is a table; first name the folder that `lacova fit ... --out RUN` wrote, then the table."
        )
    file = run / MODEL if run.is_dir() else run
    if not file.exists():
        raise DataError(f"there is no model in {run}; name the folder that `lacova fit ... --out RUN` wrote.")
    return load(file, device=device)


def _prepare(run: Path, data: Path, out: Path | None, device: str, stream: bool) -> tuple[Model, pd.DataFrame | Path]:
    """Model and table, once it is known that the output can be written."""
    from lacova.files import check_output

    if out is not None:
        check_output(out)
    return _load(run, device), _table(data, stream)


def _prepare_whole(run: Path, data: Path, out: Path | None, device: str) -> tuple[Model, pd.DataFrame]:
    """The same for commands that cannot read bit by bit."""
    model, table = _prepare(run, data, out, device, False)
    if isinstance(table, Path):
        raise ValueError(
            f"{data} is a folder or a large file; this command reads tables whole: give it a part of the rows."
        )
    return model, table


def _table(data: Path, stream: bool) -> pd.DataFrame | Path:
    """A table, or its path where it is to be read bit by bit."""
    from lacova.files import read_table

    parquet = data.suffix.lower() == ".parquet" and data.exists()
    if data.is_dir() or (parquet and (stream or data.stat().st_size >= STREAM_BYTES)):
        return data
    if stream and not parquet:
        raise ValueError(f"--stream reads a Parquet file or a folder of them, but DATA is {data}.")
    return read_table(data)


def _needed(out: Path | None) -> Path:
    if out is None:
        raise ValueError("the answer to a stream goes to a file: give --out FILE.parquet.")
    return out


def _deliver(frame: pd.DataFrame, out: Path | None, quiet: bool) -> None:
    from lacova.files import write_table

    if out is None:
        frame.to_csv(sys.stdout, index=False)
        return
    write_table(frame, out)
    _say(f"{len(frame)} rows written to {out}.", quiet)
