"""Instance labels as 64-bit fingerprints: 8 bytes a patient, whatever the labels are."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Prints = npt.NDArray[np.uint64]

WORD = 2**64
GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # the increment of splitmix64
FLOAT_SALT, DATE_SALT = GOLDEN_GAMMA, 0xD1B54A32D192ED03  # keep 0.5 and a date apart from whole numbers


def fingerprints(labels: pd.Series[Any]) -> Prints:
    """Return the fingerprint of each label; labels that are equal in Python (1, 1.0, True) have equal ones.

    Different whole numbers have different fingerprints. Among a million texts, two collide with probability 3e-8.
    """
    if isinstance(labels.dtype, pd.CategoricalDtype):
        return fingerprints(pd.Series(labels.cat.categories))[labels.cat.codes.to_numpy()]
    kind = labels.dtype.kind
    if kind in "iub":
        values = labels.to_numpy()
        return splitmix64(values.astype(np.uint64 if kind == "u" else np.int64).view(np.uint64))
    if kind == "f":
        return _of_floats(labels.to_numpy(dtype=np.float64))
    if kind == "M":
        utc = labels.dt.tz_convert(None) if isinstance(labels.dtype, pd.DatetimeTZDtype) else labels
        return splitmix64(utc.to_numpy().astype("datetime64[ns]").view(np.uint64) ^ np.uint64(DATE_SALT))
    items = labels.to_numpy(dtype=object)
    if pd.api.types.infer_dtype(items) == "string":
        return np.asarray(pd.util.hash_array(items), dtype=np.uint64)
    return np.array([_of_object(item) for item in items], dtype=np.uint64)


def _of_floats(values: npt.NDArray[np.float64]) -> Prints:
    prints = splitmix64(values.view(np.uint64) ^ np.uint64(FLOAT_SALT))
    whole = (np.abs(values) < 2.0**63) & (values == np.rint(values))
    prints[whole] = splitmix64(values[whole].astype(np.int64).view(np.uint64))
    return prints


def _of_object(label: object) -> int:
    """Return the fingerprint of a label in a column of mixed types."""
    if isinstance(label, int | np.integer | np.bool_):
        return int(splitmix64(np.array([int(label) % WORD], dtype=np.uint64))[0])
    if isinstance(label, str | float | pd.Timestamp):
        return int(fingerprints(pd.Series([label]))[0])
    return int(fingerprints(pd.Series([f"{type(label).__name__} {label!r}"]))[0])


def splitmix64(words: Prints) -> Prints:
    """Map 64-bit words one-to-one to words that look random, by the finaliser of splitmix64."""
    words = words + np.uint64(GOLDEN_GAMMA)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def random_words(prints: Prints, seed: int) -> Prints:
    """Return a random 64-bit word per fingerprint, uniform, and the same for the same seed."""
    return splitmix64(prints ^ splitmix64(np.array([seed % WORD], dtype=np.uint64)))


class Fingerprints:
    """A set of labels that stores only their fingerprints."""

    def __init__(self, prints: Prints) -> None:
        self.sorted = np.unique(prints)

    def __len__(self) -> int:
        return len(self.sorted)

    def __contains__(self, label: object) -> bool:
        return bool(self.holds([label])[0])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprints) and np.array_equal(self.sorted, other.sorted)

    __hash__ = None  # type: ignore[assignment]

    def holds(self, labels: Sequence[Any]) -> npt.NDArray[np.bool_]:
        """Return which of the labels are in the set."""
        if len(labels) == 0:
            return np.zeros(0, dtype=bool)
        prints = fingerprints(pd.Series(list(labels)))
        place = np.searchsorted(self.sorted, prints).clip(max=max(len(self.sorted) - 1, 0))
        return np.asarray(self.sorted[place] == prints) if len(self.sorted) else np.zeros(len(prints), dtype=bool)


def among(labels: Sequence[Any], known: Container[Any]) -> npt.NDArray[np.bool_]:
    """Return which of the labels are known."""
    if isinstance(known, Fingerprints):
        return known.holds(labels)
    return np.array([label in known for label in labels], dtype=bool)
