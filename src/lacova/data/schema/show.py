"""A schema as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lacova.data.schema.infer import Note

DETECTION = {"lower_limit": "≤", "upper_limit": "≥"}
HEAD = ["column", "role", "kind", "static", "bounds", "integer"]


def show(document: Mapping[str, Any], notes: Sequence[Note]) -> str:
    """A line per column of the schema, or per note where there are notes: then with what was seen in the table."""
    measurements = {name: {"kind": "gaussian", **column} for name, column in document["measurements"].items()}
    columns = {**document["covariates"], **measurements}
    named = [] if document["instance"] is None else [document["instance"]]
    names = [note.column for note in notes] or [*named, *columns]
    lines = [[str(name), _role(name, document), *_properties(columns.get(name))] for name in names]
    head = HEAD
    if any("unit" in column for column in columns.values()):
        head = [*HEAD, "unit"]
        lines = [[*cells, columns.get(name, {}).get("unit", "")] for cells, name in zip(lines, names, strict=True)]
    if notes:
        head = [*head, "missing", "examples", "reason"]
        lines = [[*cells, share(n.missing), n.examples, n.reason] for cells, n in zip(lines, notes, strict=True)]
    widths = [max(map(len, cells)) for cells in zip(head, *lines, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(cells, widths, strict=True)] for cells in (head, *lines))
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def share(missing: float) -> str:
    if 0.0 < missing < 0.01 or 0.99 < missing < 1.0:
        return "<1%" if missing < 0.5 else ">99%"
    return f"{missing:.0%}"


def _role(name: str, document: Mapping[str, Any]) -> str:
    for word in ("instance", "time"):
        if name == document[word]:
            return word
    if name in document["measurements"]:
        return "measurement"
    return "covariate" if name in document["covariates"] else "left out"


def _properties(column: Mapping[str, Any] | None) -> list[str]:
    if column is None:
        return ["", "", "", ""]
    marks = {key: "yes" if column.get(key) else "" for key in ("static", "integer")}
    beyond = [f"{sign} {column[key]:g}" for key, sign in DETECTION.items() if key in column]
    return [" ".join([column["kind"], *beyond]), marks["static"], _limits(column), marks["integer"]]


def _limits(column: Mapping[str, Any]) -> str:
    lower, upper = column.get("lower"), column.get("upper")
    if lower is not None and upper is not None:
        return f"{lower:g} to {upper:g}"
    return f"≥ {lower:g}" if lower is not None else f"≤ {upper:g}" if upper is not None else ""
