"""The finished table: patients split into training, validation and test, and measurements scaled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from lacova.data.errors import DataError

Scaling = Literal["minmax", "standard"]


def split_patients(
    table: pd.DataFrame, validation: float = 0.1, test: float = 0.1, seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Split whole patients into "train", "validation" and "test"; a part of share 0 is left out."""
    names = table["patient"].unique()
    counts = {"validation": round(validation * len(names)), "test": round(test * len(names))}
    for part, share in (("validation", validation), ("test", test)):
        if not 0.0 <= share < 1.0:
            raise ValueError(f"the share for {part} is {share}; expected one of at least 0 and below 1.")
        if share and not counts[part]:
            raise DataError(
                f"{len(names)} patients are too few to deal a share of {share} to {part}; take a larger one."
            )
    if sum(counts.values()) >= len(names):
        raise DataError(
            f"shares of {validation} and {test} of {len(names)} patients leave none to train on; lower them."
        )
    order = np.random.default_rng(seed).permutation(len(names))
    ends = np.cumsum([0, *counts.values(), len(names) - sum(counts.values())])
    split = {
        part: table[table["patient"].isin(names[order[ends[k] : ends[k + 1]]])]
        for k, part in enumerate((*counts, "train"))
    }
    return {part: split[part] for part in ("train", *counts) if len(split[part])}


def scales(table: pd.DataFrame, measurements: Sequence[str], how: Scaling) -> pd.DataFrame:
    """Return centre and width of each measurement in these rows; scaled values are (value - centre) / width.

    A width of 0 (all values equal) counts as 1; a measurement without values is not scaled.
    """
    values = table[list(measurements)]
    if how == "minmax":
        centre, width = values.min(), values.max() - values.min()
    else:
        centre, width = values.mean(), values.std(ddof=0)
        width = width.mask(values.min() == values.max(), 0.0)  # a constant may have an sd of rounding error
    widths = pd.DataFrame({"centre": centre, "width": width}).fillna({"centre": 0.0, "width": 1.0})
    return widths.replace({"width": 0.0}, 1.0).rename_axis("measurement")


def scale(table: pd.DataFrame, scales: pd.DataFrame) -> pd.DataFrame:
    """Return a copy with measurements scaled."""
    names = scales.index.tolist()
    return table.assign(**((table[names] - scales["centre"]) / scales["width"]))
