"""What can be wrong with a schema or a table."""

from __future__ import annotations


class SchemaError(ValueError):
    """The roles contradict each other."""


class DataError(ValueError):
    """A table does not fit its schema, or a value in it cannot be used."""
