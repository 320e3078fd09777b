"""Checks of arguments that several methods of models share."""

from __future__ import annotations

import os

import numpy as np

from lacova.data.io.dataframes import Frame
from lacova.data.io.parquet import is_stream
from lacova.data.table import Table


def whole_number(value: int, name: str = "draws", least: int = 1) -> int:
    """Return a number that must be whole and at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    return int(value)


def check_memory(draws: int, table: Table, kept: int = 0) -> None:
    """Refuse draws that the memory of this machine cannot hold.

    Args:
        draws: how many of each row.
        table: the rows. Draws of y, their means and covariates are held at least for one row, or patient, at a time.
        kept: numbers per draw that are held until the end, over all rows.
    """
    together = 1 if table.patient is None else -(-len(table) // len(table.labels))
    at_once = together * (2 * table.y.shape[1] + table.x.shape[1]) * table.y.element_size()
    needed, there = draws * (at_once + kept * 8), memory()
    if there is not None and needed > there:
        raise ValueError(
            f"draws is {draws:,}, for which {len(table):,} row(s) need at least {needed / 1e9:,.1f} GB of memory, but "
            f"this machine has {there / 1e9:,.1f} GB; ask for fewer draws, or give fewer rows at a time."
        )


def memory() -> int | None:
    """Return the size of the memory of this machine in bytes; None if the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def check_interval(interval: float) -> float:
    """Return the probability of a central interval, which must lie between 0 and 1."""
    if interval is None or not 0.0 < interval < 1.0:
        raise ValueError(f"interval must lie between 0 and 1, such as 0.9; got {interval!r}.")
    return interval


def in_memory(data: Frame, method: str) -> Frame:
    """Return a table that must not be a path or a dataset."""
    if is_stream(data):
        raise ValueError(f"{method} takes a table in memory, such as a DataFrame, but got {data!r}; read it first.")
    return data


def history_in_memory(history: object) -> object:
    if is_stream(history):
        raise ValueError("history must be a table in memory, such as a DataFrame; a path or dataset can only be x.")
    return history


def no_output_file(out: object) -> None:
    if out is not None:
        raise ValueError("out is for the answer to a path or a dataset; the answer to a table comes back as a table.")
