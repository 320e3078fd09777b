"""Errors about schemas and tables, and the phrases they share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any


class SchemaError(ValueError):
    """The roles contradict each other."""


class DataError(ValueError):
    """A table does not fit its schema, or a value in it cannot be used."""


class FitWarning(UserWarning):
    """A fitted model has a property that makes some of its answers doubtful."""


class UnseenLevelWarning(UserWarning):
    """Entries of a table hold levels that training does not know; they are treated as missing.

    The warning says how many entries of which columns these are. `unseen="error"`, an argument and an attribute of
    every model, refuses such tables, and `unseen="missing"` gives no warning.

    Examples:
        >>> import warnings, numpy as np, pandas as pd, lacova
        >>> table = pd.DataFrame({"event": ["none", "rash"] * 20, "alt": np.linspace(20, 40, 40)})
        >>> schema = lacova.Schema(["alt"], {"event": "categorical"})
        >>> model = lacova.CVAE(schema, latent_dim=1).fit(table, max_epochs=1)
        >>> new = pd.DataFrame({"event": ["none", "fever"], "alt": [30.0, None]})
        >>> with warnings.catch_warnings(record=True, action="always") as caught:
        ...     print(model.impute(new)["event"].tolist())
        ['none', 'fever']
        >>> print(str(caught[-1].message).split(". ")[0])
        1 entry holds a level never seen in training, treated as missing: 1 of 'event' ('fever')
    """


def listed(items: Sequence[Any], most: int = 5) -> str:
    """Return the first items, quoted and separated by commas, and how many more there are."""
    shown = [repr(item) for item in list(items)[:most]]
    rest = len(items) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def hint(absent: Iterable[object], present: Iterable[object]) -> str:
    """Return " Did you mean ...?" with the present names closest to the absent ones; empty if none is close."""
    names = {str(name).lower(): name for name in reversed(list(present))}
    matches = [get_close_matches(str(name).lower(), names, n=1) for name in absent]
    closest = list(dict.fromkeys(repr(names[match[0]]) for match in matches if match))
    return f" Did you mean {', '.join(closest)}?" if closest else ""


@contextmanager
def about(what: str) -> Iterator[None]:
    """Prefix a DataError raised inside with `what`, the table that it is about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
