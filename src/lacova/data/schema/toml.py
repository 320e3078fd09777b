"""Schemas as TOML that a person can read and edit: from plain dictionaries to text and back."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lacova.data.errors import SchemaError
from lacova.data.io.atomic import replacing

# The keys of a document and the types of their values; [measurements] and [covariates] have a line per column.
TOP = {"instance": str, "time": str, "measurements": dict, "covariates": dict}
COLUMN = {"integer": bool, "lower": float, "upper": float, "unit": str, "levels": list}
MEASUREMENT = {"kind": str, **COLUMN, "lower_limit": float, "upper_limit": float}
COVARIATE = {"kind": str, "static": bool, **COLUMN}
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
WORDS = {
    str: "text in quotes",
    bool: "true or false",
    float: "a number",
    dict: "a table",
    list: 'a list such as ["I", "II"]',
}

HEAD = "# The role of each column. Edit, then: lacova fit --schema, or lacova.Schema.from_toml in Python.\n"
COMMENTS = {
    "instance": "# The column that names the patient, if rows repeat.\n",
    "time": "# The time column, if there is one; it stands among the covariates too.\n",
    "measurements": "# What is modelled. In the braces, if you like: integer = true, lower = 0, upper = 1,\n"
    '# unit = "mg/dL", and a kind other than "gaussian": see docs/observation.md. "censored" has\n'
    "# lower_limit or upper_limit. A kind with levels may declare them in order.\n",
    "covariates": '# What it depends on: kind = "continuous" or "categorical", static = true if constant within\n'
    "# an instance. A continuous one may also have integer, lower, upper and unit, a categorical one its\n"
    '# levels = ["I", "II"].\n',
}


def write(document: Mapping[str, Any], notes: Mapping[str, str], path: str | os.PathLike[str] | None = None) -> str:
    """Return a document as TOML, with notes behind the columns; columns without a role are listed at the end.

    With a path, write it there too; the file appears whole or not at all.
    """
    parts = [HEAD]
    for word in ("instance", "time"):
        name = document.get(word)
        line = f'# {word} = "..."' if name is None else f"{word} = {_text(name)}" + _note(notes.get(name))
        parts.append(f"{COMMENTS[word]}{line}\n")
    for word in ("measurements", "covariates"):
        lines = [f"{_key(n)} = {_inline(value)}{_note(notes.get(n))}\n" for n, value in document[word].items()]
        parts.append(f"{COMMENTS[word]}[{word}]\n{''.join(lines)}")
    placed = {document.get("instance"), document.get("time"), *document["measurements"], *document["covariates"]}
    rest = [f"# {_key(str(name))}:{_note(note)[3:]}\n" for name, note in notes.items() if name not in placed]
    if rest:
        parts.append("# Left out:\n" + "".join(rest))
    text = "\n".join(parts)
    if path is not None:
        with replacing(Path(path)) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
    return text


def read(source: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """Read a document from text or from a file, and check its keys and types; return it and the name of its source."""
    text, where = _load(source)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(_broken(text, where, str(error))) from error
    _check(document, TOP, where, "")
    for word, known in (("measurements", MEASUREMENT), ("covariates", COVARIATE)):
        for name, properties in document.setdefault(word, {}).items():
            place = f"{word}.{_key(name)}"
            if not isinstance(properties, dict):
                example = "{}" if word == "measurements" else '{ kind = "continuous" }'
                raise SchemaError(f"{where}: {place} is {properties!r}; expected braces, such as {example}.")
            _check(properties, known, where, f" of {place}")
            if word == "covariates" and "kind" not in properties:
                raise SchemaError(f'{where}: {place} has no kind; expected kind = "continuous" or "categorical".')
    return document, where


def _check(table: dict[str, Any], known: Mapping[str, type], where: str, owner: str) -> None:
    for key, value in table.items():
        if key not in known:
            raise SchemaError(f"{where}: unknown key {key!r}{owner}; the known ones are {', '.join(known)}.")
        expected = known[key]
        accepted = (int, float) if expected is float else (expected,)
        if not isinstance(value, accepted) or (expected is float and isinstance(value, bool)):
            raise SchemaError(f"{where}: {key}{owner} is {value!r}; expected {WORDS[expected]}.")


def _load(source: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the text and the name of its source; a string with a line break, or with "=" and no such file, is text."""
    if isinstance(source, str) and ("\n" in source or ("=" in source and not Path(source).exists())):
        return source, "schema"
    try:
        return Path(source).read_text(encoding="utf-8-sig"), os.fspath(source)
    except UnicodeDecodeError as error:
        raise SchemaError(f"{os.fspath(source)} is not UTF-8 text: {error}.") from error


def _broken(text: str, where: str, message: str) -> str:
    place = re.search(r"^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$", message, flags=re.S)
    if not place:
        return f"{where}: {message}."
    lines = text.split("\n")
    number = int(place[2]) if place[2] else len(lines)
    return (
        f"{where}, line {number}: {place[1]} in {lines[number - 1].strip()!r}. "
        'Expected lines such as alt = { lower = 0 } or sex = { kind = "categorical" }.'
    )


def _inline(properties: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in properties.items()) + " }" if properties else "{}"


def _value(value: str | bool | float | tuple[Any, ...]) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _key(name: str) -> str:
    return name if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
        raise SchemaError(f"column {value!r} has a name that is no text; rename it before writing the schema.")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + CONTROL.sub(lambda c: f"\\u{ord(c[0]):04x}", escaped) + '"'


def _note(note: str | None) -> str:
    return f"  # {note}" if note else ""
