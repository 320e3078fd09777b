"""After `impute --draws`: `shift`, what if gaps hid other values, and `pool`, one answer from all completed tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lacova.cli.common import AsJson, Data, Out, Quiet, deliver, finite, print_json, read_whole, short

if TYPE_CHECKING:
    import pandas as pd

Completed = Annotated[
    Path, typer.Argument(help="what `lacova impute --draws` wrote", metavar="COMPLETED", show_default=False)
]


def shift(
    completed: Completed,
    data: Data,
    add: Annotated[
        list[str],
        typer.Option(
            help="COLUMN=AMOUNT, or with --by COLUMN=LEVEL:AMOUNT,LEVEL:AMOUNT for every level; repeat",
            show_default=False,
        ),
    ],
    by: Annotated[str | None, typer.Option(help="column whose levels have amounts of their own, such as arm")] = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Add stated amounts to imputed values, never to observed ones, of completed tables; DATA is the one with gaps."""
    from lacova.analysis.sensitivity import shift_imputed
    from lacova.data.io.files import check_output

    if out is not None:
        check_output(out)
    tables, gaps = read_whole(completed), read_whole(data)
    shifts: dict[str, Any] = {}
    for text in add:
        name, equals, amounts = text.partition("=")
        if not equals:
            raise ValueError(f"--add is {text!r}; expected COLUMN=AMOUNT, such as --add alt=5.")
        if name in shifts:
            raise ValueError(f"--add gives {name} twice; once is enough.")
        shifts[name] = _number(amounts, text) if by is None else {by: _by_level(tables, by, amounts, text)}
    deliver(shift_imputed(tables, gaps, shifts), out, quiet)


def _by_level(tables: pd.DataFrame, by: str, amounts: str, text: str) -> dict[Any, float]:
    pairs = re.findall(r"(.+?):([^:,]+)(?:,|$)", amounts)  # levels may hold commas and colons, amounts do not
    if not pairs or ",".join(map(":".join, pairs)) != amounts:
        raise ValueError(
            f"--add is {text!r}; with --by {by} expected COLUMN=LEVEL:AMOUNT,LEVEL:AMOUNT, such as --add alt=a:0,b:5."
        )
    return {_level(tables, by, level): _number(amount, text) for level, amount in pairs}


def _level(tables: pd.DataFrame, column: str, text: str) -> Any:
    from lacova.data.columns import reads_like

    return reads_like(tables[column].dropna().unique().tolist(), text) if column in tables else text


def _number(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--add is {whole!r}, but {text!r} is no number; levels of a column need --by.") from None


def pool(
    completed: Completed,
    formula: Annotated[str, typer.Option(help="the regression, such as 'weight ~ baseline + arm'", show_default=False)],
    where: Annotated[
        list[str] | None, typer.Option(help="COLUMN=VALUE that rows must have to count; repeat", show_default=False)
    ] = None,
    confidence: Annotated[float, typer.Option(help="of the intervals")] = 0.95,
    out: Annotated[Path | None, typer.Option("--out", help="file for the table, CSV or Parquet by suffix")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fit a linear regression to each completed table, and pool the coefficients by Rubin's rules.

    Rows count as independent: choose one row per patient by --where.
    """
    from lacova.analysis.regression import pool_regression
    from lacova.data.columns import some
    from lacova.data.errors import DataError, meant
    from lacova.data.io.files import check_output

    if out is not None:
        check_output(out)
    tables = read_whole(completed)
    for text in where or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--where is {text!r}; expected COLUMN=VALUE, such as --where visit=end.")
        if name not in tables:
            columns = list(map(str, tables.columns))
            raise DataError(f"there is no column {name!r} to choose rows by in {completed}.{meant([name], columns)}")
        present = tables[name].dropna().unique().tolist()
        tables = tables[tables[name] == _level(tables, name, value)]
        if tables.empty:
            raise DataError(f"no row has {text} in {completed}; {name!r} holds {some(present)}.")
    found = pool_regression(tables, formula, confidence=confidence)
    if out is not None:
        deliver(found.rename_axis("coefficient").reset_index(), out, quiet)
    if as_json:
        print_json({str(name): finite(row.to_dict()) for name, row in found.iterrows()})
        return
    typer.echo(found.to_string(float_format=short))
    count = tables["draw"].nunique()
    typer.echo(
        f"\nleast squares on {count} completed tables of {len(tables) // count} rows; {confidence:.0%} intervals."
    )
