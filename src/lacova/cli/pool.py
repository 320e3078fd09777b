"""`lacova pool`: one regression from all completed tables."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from lacova.cli import options
from lacova.cli.common import by_row, check_out, deliver, print_json, read_in_memory, read_level, remark, short


def pool(
    completed: options.Completed,
    formula: Annotated[str, typer.Option(help="the regression, such as 'weight ~ baseline + arm'", show_default=False)],
    regression: Annotated[str, typer.Option(help="linear, or logistic for an outcome of two levels")] = "linear",
    where: Annotated[
        list[str] | None, typer.Option(help="COLUMN=VALUE that rows must have to count; repeat", show_default=False)
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="column of patients: standard errors are robust to any correlation of their visits", show_default=False
        ),
    ] = None,
    independent: Annotated[
        bool, typer.Option("--independent", help="take rows for independent, also several of a patient")
    ] = False,
    test: Annotated[
        list[str] | None,
        typer.Option(
            help="TERMS to test at once, such as arm or 'arm + arm:week', instead of single coefficients; "
            "repeat; all for each term",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="confidence of the intervals")] = 0.95,
    out: options.TableOut = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Fit a linear or logistic regression to each completed table, and pool the coefficients by Rubin's rules.

    Visits of a patient are no independent evidence: name the column of patients by --cluster, give each a random effect
    in the formula of a linear regression, 'alt ~ arm * week + (1 | patient)', or choose one row per patient by --where.
    """
    from lacova.analysis.regression import pool_regression, pool_terms
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
    if cluster is not None and independent:
        raise ValueError("--cluster and --independent contradict each other; give one of the two.")
    by = cluster or (None if independent else "auto")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # all are printed below, as remarks
        if test:
            chosen = None if test == ["all"] else test
            pooled = pool_terms(tables, formula, chosen, regression=regression, cluster=by)
        else:
            pooled = pool_regression(tables, formula, regression=regression, cluster=by, confidence=confidence)
    for warning in caught:
        remark(f"lacova: {warning.message}", quiet)
    if out is not None:
        deliver(pooled.rename_axis("terms" if test else "coefficient").reset_index(), out, quiet)
    if as_json:
        print_json(by_row(pooled))
        return
    typer.echo(pooled.to_string(float_format=short))
    count = tables["draw"].nunique()
    ending = "Wald tests of several coefficients (D1)." if test else f"{confidence:.0%} intervals."
    typer.echo(f"\n{pooled.attrs['analysis']}; {count} completed tables of {len(tables) // count} rows; {ending}")
