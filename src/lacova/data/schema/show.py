"""A schema as a printed table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lacova.data.schema.infer import Note

DETECTION = {"lower_limit": "≤", "upper_limit": "≥"}
HEAD = ["column", "role", "kind", "static", "bounds", "integer"]


def show(document: Mapping[str, Any], notes: Sequence[Note]) -> str:
    """Return a line per column of the schema, or, with notes, per column of the table with its note."""
    measurements = {name: {"kind": "gaussian", **column} for name, column in document["measurements"].items()}
    columns = {**document["covariates"], **measurements}
    instance = [] if document["instance"] is None else [document["instance"]]
    names = [note.column for note in notes] or [*instance, *columns]
    lines = [[str(name), _role(name, document), *_properties(columns.get(name))] for name in names]
    head = HEAD
    for word, text in (("unit", str), ("levels", _levels)):
        if any(word in column for column in columns.values()):
            head = [*head, word]
            cells_of = {name: text(column[word]) for name, column in columns.items() if word in column}
            lines = [[*cells, cells_of.get(name, "")] for cells, name in zip(lines, names, strict=True)]
    if notes:
        head = [*head, "missing", "examples", "reason"]
        lines = [[*cells, share(n.missing), n.examples, n.reason] for cells, n in zip(lines, notes, strict=True)]
    widths = [max(map(len, cells)) for cells in zip(head, *lines, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(cells, widths, strict=True)] for cells in (head, *lines))
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def share(missing: float) -> str:
    """Return a share as a percentage that is 0% or 100% only if it is exact."""
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
    limits = [f"{sign} {column[key]:g}" for key, sign in DETECTION.items() if key in column]
    return [" ".join([column["kind"], *limits]), marks["static"], _bounds(column), marks["integer"]]


def _levels(levels: Sequence[Any], most: int = 6) -> str:
    rest = len(levels) - most
    return ", ".join(map(str, levels[:most])) + (f" and {rest} more" if rest > 0 else "")


def _bounds(column: Mapping[str, Any]) -> str:
    lower, upper = column.get("lower"), column.get("upper")
    if lower is not None and upper is not None:
        return f"{lower:g} to {upper:g}"
    return f"≥ {lower:g}" if lower is not None else f"≤ {upper:g}" if upper is not None else ""
