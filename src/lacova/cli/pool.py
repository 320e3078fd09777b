"""`lacova pool`: one regression from all completed tables."""

from __future__ import annotations

from typing import Annotated

import typer

from lacova.cli import options
from lacova.cli.common import by_row, check_out, deliver, print_json, read_in_memory, read_level, short


def pool(
    completed: options.Completed,
    formula: Annotated[str, typer.Option(help="the regression, such as 'weight ~ baseline + arm'", show_default=False)],
    where: Annotated[
        list[str] | None, typer.Option(help="COLUMN=VALUE that rows must have to count; repeat", show_default=False)
    ] = None,
    confidence: Annotated[float, typer.Option(help="confidence of the intervals")] = 0.95,
    out: options.TableOut = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Fit a linear regression to each completed table, and pool the coefficients by Rubin's rules.

    Rows count as independent: choose one row per patient by --where.
    """
    from lacova.analysis.regression import pool_regression
    from lacova.data.errors import DataError, hint, listed

    check_out(out)
    tables = read_in_memory(completed)
    for text in where or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--where is {text!r}; expected COLUMN=VALUE, such as --where visit=end.")
        if name not in tables:
            columns = list(map(str, tables.columns))
            raise DataError(f"there is no column {name!r} to choose rows by in {completed}.{hint([name], columns)}")
        present = tables[name].dropna().unique().tolist()
        tables = tables[tables[name] == read_level(tables, name, value)]
        if tables.empty:
            raise DataError(f"no row has {text} in {completed}; {name!r} holds {listed(present)}.")
    pooled = pool_regression(tables, formula, confidence=confidence)
    if out is not None:
        deliver(pooled.rename_axis("coefficient").reset_index(), out, quiet)
    if as_json:
        print_json(by_row(pooled))
        return
    typer.echo(pooled.to_string(float_format=short))
    count = tables["draw"].nunique()
    typer.echo(
        f"\nleast squares on {count} completed tables of {len(tables) // count} rows; {confidence:.0%} intervals."
    )
