"""What commands share: their options, how they end, tables and models in, answers out."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

if TYPE_CHECKING:
    import pandas as pd

    from lacova.models.base import Model

P = ParamSpec("P")
MODEL = "model.lacova"
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
History = Annotated[Path | None, typer.Option(help="earlier visits of the same instances, with measurements")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", show_default=False,
        help="any other setting of the model or option of training, such as scaling=normal or importance=5; repeatable",
    ),
]  # fmt: skip
Probabilities = Annotated[bool, typer.Option("--probabilities", help="add the probability of each level")]


def sentences(command: Callable[P, None]) -> Callable[P, None]:
    """Bad input ends a command with one sentence on stderr and exit code 1."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from lacova.training.options import TrainingError

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


def say(text: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(text, err=True)


def settings_of(given: list[str] | None, told: Mapping[str, Any]) -> dict[str, Any]:
    """What --set says, values as TOML has them and else as words, beside what other options have told."""
    import tomllib

    known = {name: value for name, value in told.items() if value is not None}
    found: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            raise ValueError(f"--set is {text!r}; expected NAME=VALUE, such as --set scaling=normal.")
        if name in found:
            raise ValueError(f"--set gives {name} twice; once is enough.")
        if name in known:
            option = name.removeprefix("max_").replace("_", "-")
            raise ValueError(f"--set {name}=… says again what --{option} says; leave one out.")
        try:
            found[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name] = value.strip()
    return known | found


def short(value: float) -> str:
    """Four significant digits, and whole numbers beyond those."""
    return f"{value:.4g}" if abs(value) < 10_000 or value != value else f"{value:.0f}"


def print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2))


def finite(values: Mapping[Any, Any]) -> dict[str, Any]:
    """JSON has no NaN: null in its place."""
    return {str(name): None if value != value else value for name, value in values.items()}


def load_run(run: Path, device: str) -> Model:
    from lacova.data.errors import DataError
    from lacova.data.io.files import SUFFIXES
    from lacova.models.storage import load

    if run.is_file() and run.name.lower().endswith(SUFFIXES):
        raise DataError(
            f"{run} is a table; first name the folder that `lacova fit ... --out RUN` wrote, then the table."
        )
    file = run / MODEL if run.is_dir() else run
    if not file.exists():
        raise DataError(f"there is no model in {run}; name the folder that `lacova fit ... --out RUN` wrote.")
    return load(file, device=device)


def prepare(run: Path, data: Path, out: Path | None, device: str, stream: bool) -> tuple[Model, pd.DataFrame | Path]:
    """Model and table, once it is known that the output can be written."""
    from lacova.data.io.files import check_output

    if out is not None:
        check_output(out)
    return load_run(run, device), read(data, stream)


def prepare_whole(run: Path, data: Path, out: Path | None, device: str) -> tuple[Model, pd.DataFrame]:
    """The same for commands that cannot read bit by bit."""
    model, table = prepare(run, data, out, device, False)
    return model, _in_memory(table)


def read_whole(data: Path) -> pd.DataFrame:
    """A table, where it cannot be read bit by bit."""
    return _in_memory(read(data, False))


def _in_memory(table: pd.DataFrame | Path) -> pd.DataFrame:
    if isinstance(table, Path):
        raise ValueError(
            f"{table} is a folder or a large file; this command reads tables whole: give it a part of the rows."
        )
    return table


def read(data: Path, stream: bool) -> pd.DataFrame | Path:
    """A table, or its path where it is to be read bit by bit."""
    from lacova.data.io.files import read_table

    parquet = data.suffix.lower() == ".parquet" and data.exists()
    if data.is_dir() or (parquet and (stream or data.stat().st_size >= STREAM_BYTES)):
        return data
    if stream and not parquet:
        raise ValueError(f"--stream reads a Parquet file or a folder of them, but DATA is {data}.")
    return read_table(data)


def read_history(history: Path | None) -> pd.DataFrame | None:
    from lacova.data.io.files import read_table

    return None if history is None else read_table(history)


def needed(out: Path | None) -> Path:
    if out is None:
        raise ValueError("the answer to a stream goes to a file: give --out FILE.parquet.")
    return out


def deliver(frame: pd.DataFrame, out: Path | None, quiet: bool) -> None:
    from lacova.data.io.files import write_table

    if out is None:
        frame.to_csv(sys.stdout, index=False)
        return
    write_table(frame, out)
    say(f"{len(frame)} rows written to {out}.", quiet)
