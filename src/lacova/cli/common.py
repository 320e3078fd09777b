"""What the commands share: reading tables and models, writing answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import typer

from lacova.cli.run_folder import MODEL

if TYPE_CHECKING:
    import pandas as pd

    from lacova.data.levels import Unseen
    from lacova.data.schema import Schema
    from lacova.models.base import Model

STREAM_BYTES = 500_000_000  # a Parquet file of this size or more is streamed


def remark(text: str, quiet: bool) -> None:
    """Print a remark on stderr, unless `quiet`."""
    if not quiet:
        typer.echo(text, err=True)


def merge_settings(assignments: list[str] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the settings from --set with those that have options of their own.

    Args:
        assignments: NAME=VALUE, with VALUE in TOML or else plain text.
        options: settings from other options; None where the option was not given.
    """
    import tomllib

    given = {name: value for name, value in options.items() if value is not None}
    settings: dict[str, Any] = {}
    for text in assignments or ():
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            raise ValueError(f"--set is {text!r}; expected NAME=VALUE, such as --set scaling=normal.")
        if name in settings:
            raise ValueError(f"--set gives {name} twice; once is enough.")
        if name in given:
            option = name.removeprefix("max_").replace("_", "-")
            raise ValueError(f"--set {name}=… says again what --{option} says; leave one out.")
        try:
            settings[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[name] = value.strip()
    return given | settings


def short(value: float) -> str:
    """Format a number with four significant digits; larger numbers lose only their decimals."""
    return f"{value:.4g}" if abs(value) < 10_000 or value != value else f"{value:.0f}"


def print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2))


def finite(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Replace NaN and infinite numbers, which JSON does not have, by None."""
    return {str(name): None if value != value or value in (inf, -inf) else value for name, value in values.items()}


def by_row(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the rows of a table as dicts for JSON, by their index."""
    return {str(name): finite(row.to_dict()) for name, row in table.iterrows()}


def load_run(run: Path, device: str, unseen: str | None = None) -> Model:
    """Load the model from the folder that `fit` wrote; `unseen` says what becomes of levels it does not know."""
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
    model: Model = load(file, device=device)
    if unseen is not None:
        model.unseen = cast("Unseen", unseen)  # which is checked there
    return model


def load_model_and_data(
    run: Path, data: Path, out: Path | None, device: str, stream: bool, unseen: str | None = None
) -> tuple[Model, pd.DataFrame | Path]:
    """Return the model and the table, or the path of a table to stream, once it is clear that `out` can be written."""
    check_out(out)
    return load_run(run, device, unseen), read_or_stream(data, stream)


def load_model_and_table(
    run: Path, data: Path, out: Path | None, device: str, unseen: str | None = None
) -> tuple[Model, pd.DataFrame]:
    """Do the same for a command that does not stream."""
    check_out(out)
    return load_run(run, device, unseen), read_in_memory(data)


def read_or_stream(data: Path, stream: bool) -> pd.DataFrame | Path:
    """Return the table, or its path if it is to be streamed."""
    from lacova.data.io.files import read_table

    parquet = data.suffix.lower() == ".parquet" and data.exists()
    if data.is_dir() or (parquet and (stream or data.stat().st_size >= STREAM_BYTES)):
        return data
    if stream and not parquet:
        raise ValueError(f"--stream reads a Parquet file or a folder of them, but DATA is {data}.")
    return read_table(data)


def read_in_memory(data: Path, reader: str = "this command") -> pd.DataFrame:
    """Return the table; refuse one that would be streamed. `reader` is what the message says cannot stream."""
    table = read_or_stream(data, False)
    if isinstance(table, Path):
        raise ValueError(
            f"{table} is a folder or a large file; {reader} reads tables whole: give it a part of the rows."
        )
    return table


def read_level(table: pd.DataFrame, column: str, text: str) -> Any:
    """Return the level of a column that the text names, in the column's own type."""
    from lacova.data.columns import level_from_text

    return level_from_text(table[column].dropna().unique().tolist(), text) if column in table else text


def read_history(history: Path | None) -> pd.DataFrame | None:
    from lacova.data.io.files import read_table

    return None if history is None else read_table(history)


def read_schema(schema: Path, data: Path) -> Schema:
    """Read the roles of the columns of `data`."""
    from lacova.data.errors import DataError
    from lacova.data.schema import Schema

    if not schema.exists():
        raise DataError(f"there is no file {schema}; `lacova schema {data} --out {schema}` proposes one.")
    if schema.is_dir():
        raise DataError(f"{schema} is a folder; --schema names a TOML file with the roles of the columns.")
    return Schema.from_toml(schema)


def check_out(out: Path | None) -> None:
    """Refuse an output file that cannot be written, before any work is done."""
    from lacova.data.io.files import check_output

    if out is not None:
        check_output(out)


def require_out(out: Path | None) -> Path:
    """Return the output file; refuse to go on without one."""
    if out is None:
        raise ValueError("the answer to a stream goes to a file: give --out FILE.parquet.")
    return out


def deliver(table: pd.DataFrame, out: Path | None, quiet: bool) -> None:
    """Write a table to a file, or to stdout as CSV."""
    from lacova.data.io.files import write_table

    if out is None:
        table.to_csv(sys.stdout, index=False)
        return
    write_table(table, out)
    remark(f"{len(table)} rows written to {out}.", quiet)


def read_share(share: float | None) -> float | Literal[False] | None:
    """Return what `fit` holds out: a share, False for none, or None for what it does by default."""
    if share is not None and not 0.0 <= share < 1.0:
        raise ValueError(f"--validation-share is {share}; expected a share of at least 0 and below 1.")
    return False if share == 0.0 else share
