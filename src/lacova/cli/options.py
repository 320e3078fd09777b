"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lacova.cli.paths import WRITTEN

Data = Annotated[
    Path,
    typer.Argument(
        help="a table: .csv, .csv.gz or .parquet, or a folder of Parquet files", metavar="DATA", show_default=False
    ),
]
Run = Annotated[Path, typer.Argument(help="the folder that `lacova fit` wrote", metavar="RUN", show_default=False)]
Completed = Annotated[
    Path, typer.Argument(help="what `lacova impute --draws` wrote", metavar="COMPLETED", show_default=False)
]
SchemaFile = Annotated[Path, typer.Option(help="TOML file with the roles of the columns", show_default=False)]
Out = Annotated[
    Path | None, typer.Option("--out", help="file to write, CSV or Parquet by suffix; else CSV on stdout"), WRITTEN
]
TableOut = Annotated[Path | None, typer.Option("--out", help="file for the table, CSV or Parquet by suffix"), WRITTEN]
Record = Annotated[
    Path | None,
    typer.Option(help="file that gains a line after each fit; the same command continues from it"), WRITTEN,
]  # fmt: skip
Seed = Annotated[int, typer.Option(help="seed of every random number")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, or any torch device")]
Stream = Annotated[bool, typer.Option("--stream", help="read Parquet bit by bit; folders and large files always are")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress and no remarks on stderr")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for a program to read")]
Draws = Annotated[int | None, typer.Option(help="draws of each row; without it, means and most probable levels")]
RowDraws = Annotated[int, typer.Option(help="draws of each row")]
Interval = Annotated[float | None, typer.Option(help="add central intervals, such as 0.9")]
CentralInterval = Annotated[float, typer.Option(help="central interval, such as 0.9")]
Probabilities = Annotated[bool, typer.Option("--probabilities", help="add the probability of each level")]
Unseen = Annotated[
    str | None,
    typer.Option(
        help="entries of levels that training does not know: warn, missing (the same without a warning), or error "
        "(as RUN was fitted; warn unless it was told otherwise)",
        show_default=False,
    ),
]
History = Annotated[Path | None, typer.Option(help="earlier visits of the same instances, with measurements")]
Epochs = Annotated[
    int | None,
    typer.Option(help="maximum number of passes over the rows; 200, or more for small tables", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", show_default=False,
        help="any other setting of the model or option of training, such as scaling=normal or importance=5; repeatable",
    ),
]  # fmt: skip
