"""Which column plays which part: the schema, proposed from data, shown to people, and kept as TOML."""

from lacova.data.schema.infer import Kind, Measure
from lacova.data.schema.roles import Schema

__all__ = ["Kind", "Measure", "Schema"]
