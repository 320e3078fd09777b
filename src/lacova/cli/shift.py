"""`lacova shift`: add stated amounts to imputed values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lacova.cli import options
from lacova.cli.common import check_out, deliver, read_in_memory, read_level

if TYPE_CHECKING:
    import pandas as pd


def shift(
    completed: options.Completed,
    data: options.Data,
    add: Annotated[
        list[str],
        typer.Option(
            help="COLUMN=AMOUNT, or with --by COLUMN=LEVEL:AMOUNT,LEVEL:AMOUNT for every level; repeat",
            show_default=False,
        ),
    ],
    by: Annotated[str | None, typer.Option(help="column whose levels have amounts of their own, such as arm")] = None,
    out: options.Out = None,
    quiet: options.Quiet = False,
) -> None:
    """Add stated amounts to the imputed values of completed tables; DATA is the table with its gaps."""
    from lacova.analysis.sensitivity import shift_imputed

    check_out(out)
    tables, gaps = read_in_memory(completed), read_in_memory(data)
    shifts: dict[str, Any] = {}
    for text in add:
        name, equals, amounts = text.partition("=")
        if not equals:
            raise ValueError(f"--add is {text!r}; expected COLUMN=AMOUNT, such as --add alt=5.")
        if name in shifts:
            raise ValueError(f"--add gives {name} twice; once is enough.")
        shifts[name] = _number(amounts, text) if by is None else {by: _amounts_by_level(tables, by, amounts, text)}
    deliver(shift_imputed(tables, gaps, shifts), out, quiet)


def _amounts_by_level(tables: pd.DataFrame, by: str, amounts: str, option: str) -> dict[Any, float]:
    """Read LEVEL:AMOUNT,LEVEL:AMOUNT; `option` is all that was given to --add."""
    pairs = re.findall(r"(.+?):([^:,]+)(?:,|$)", amounts)  # levels may hold commas and colons, amounts do not
    if not pairs or ",".join(map(":".join, pairs)) != amounts:
        raise ValueError(
            f"--add is {option!r}; with --by {by} expected COLUMN=LEVEL:AMOUNT,LEVEL:AMOUNT, such as --add alt=a:0,b:5."
        )
    return {read_level(tables, by, level): _number(amount, option) for level, amount in pairs}


def _number(amount: str, option: str) -> float:
    try:
        return float(amount)
    except ValueError:
        raise ValueError(f"--add is {option!r}, but {amount!r} is no number; levels of a column need --by.") from None
