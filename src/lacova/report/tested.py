"""Which rows a report measures imputation on: rows that training did not use, where there are any."""

from __future__ import annotations

import pandas as pd

from lacova.data.labels import among
from lacova.models.base import Model

MIN_TESTED = 10  # rows or patients
GIVEN, HELD_OUT, NEW, SEEN = "given", "held out by fit", "patients not in training", "perhaps in training"
OUT_OF_TRAINING = (GIVEN, HELD_OUT, NEW)
# What the report says of them.
DESCRIBED = {
    GIVEN: "rows that were held out of training",
    HELD_OUT: "the rows that were held out of training when the model was fitted",
    NEW: "the rows of the data given, whose patients were not in training",
    SEEN: (
        "the rows of the data given, none of which are known to have been held out of training. If the model was "
        "fitted to them, training used the hidden values too"
    ),
}  # fmt: skip
FLATTERING = (
    "How well hidden values are imputed was measured on rows that the model was probably fitted to: on new rows it is "
    "worse, and much worse where the table is small. Fit with validation=0.2, or give rows that were not in training "
    "(held_out=, --held-out FILE)."
)


def choose_tested(
    model: Model, data: pd.DataFrame | None, held_out: pd.DataFrame | None
) -> tuple[pd.DataFrame | None, str]:
    """Return the rows to measure imputation on, and where they come from.

    Args:
        model: a fitted model.
        data: the rows to report on.
        held_out: rows to measure on, if given.
    """
    if held_out is not None:
        return held_out, GIVEN
    if data is None:
        return None, SEEN
    instance = model.schema.instance
    chosen = model.was_held_out(data)
    units = chosen.sum() if instance is None else data[instance][chosen].nunique()
    if units >= MIN_TESTED:
        return data[chosen].reset_index(drop=True), HELD_OUT
    if instance is not None and not among(data[instance].unique().tolist(), model.training_instances).any():
        return data, NEW
    return data, SEEN
