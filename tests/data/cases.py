"""Helpers of the tests of data."""

from lacova.data.io.parquet import Source, open_source
from tests.tables import RAGGED


def opened(path, schema=RAGGED):
    """Return the source of a Parquet file."""
    source = open_source(path, schema.instance, schema.columns)
    assert isinstance(source, Source)
    return source
