"""Checks of arguments that several methods of models share."""

from __future__ import annotations

import numpy as np

from lacova.data.io.dataframes import Frame
from lacova.data.io.parquet import is_stream


def whole_number(value: int, name: str = "draws", least: int = 1) -> int:
    """Return a number that must be whole and at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    return int(value)


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
