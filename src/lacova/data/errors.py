"""What can be wrong with a schema or a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class SchemaError(ValueError):
    """The roles contradict each other."""


class DataError(ValueError):
    """A table does not fit its schema, or a value in it cannot be used."""


def meant(absent: Iterable[object], present: Iterable[object]) -> str:
    """A question that names the columns most like the absent ones, with a space before it; empty if none is."""
    names = {str(name).lower(): name for name in reversed(list(present))}
    near = [get_close_matches(str(name).lower(), names, n=1) for name in absent]
    found = list(dict.fromkeys(repr(names[match[0]]) for match in near if match))
    return f" Did you mean {', '.join(found)}?" if found else ""


@contextmanager
def about(what: str) -> Iterator[None]:
    """Say which table it is that an error within is about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
