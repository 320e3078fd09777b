"""The role of each column: the schema, proposed from data, printed as a table, and stored as TOML."""

from lacova.data.kinds import Kind, Measure
from lacova.data.schema.roles import Schema

__all__ = ["Kind", "Measure", "Schema"]
