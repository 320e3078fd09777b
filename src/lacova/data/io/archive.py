"""One file of tensors and a JSON document, written whole or not at all, and checked when it is read.

It is a safetensors file whose metadata hold the document. docs/storage.md states the format.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Never

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from torch import Tensor

from lacova import __version__
from lacova.data.io.atomic import PUBLIC, replacing

FORMAT = "lacova"
FORMAT_VERSION = 2
MAX_HEADER = 100_000_000  # bytes; safetensors reads no longer header
MAX_FILE = 2**36
DIGEST = re.compile(rb'\\"sha256\\": \\"([0-9a-f]{64})\\"')  # as written in the header: JSON within JSON


class StorageError(ValueError):
    """A file that cannot be loaded, or a model that a file cannot hold."""


def write(
    path: str | os.PathLike[str], document: Mapping[str, Any], tensors: Mapping[str, Tensor], mode: int = PUBLIC
) -> None:
    """Write a document and tensors, on any device, to `path`; a new file has `mode`, less the umask."""
    about = {"format": FORMAT, "format_version": FORMAT_VERSION, "lacova_version": __version__, "sha256": "0" * 64}
    text = json.dumps({**about, **document}, allow_nan=False)
    copies = {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}
    data = bytearray(safetensors.torch.save(copies, {FORMAT: text}))
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER or len(data) > MAX_FILE:
        raise StorageError(
            f"the model is too large for a file: {length:,} bytes of names and labels (at most {MAX_HEADER:,}), "
            f"{len(data):,} in all (at most {MAX_FILE:,})."
        )
    start, end = _digest_place(data, length)
    data[start:end] = hashlib.sha256(data).hexdigest().encode()
    _replace(Path(path), data, mode)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the document and the tensors, on the host, of a file written by `write`; refuse any other file."""
    name = os.fspath(path)
    if not os.path.exists(name):
        raise FileNotFoundError(f"{name} does not exist.")
    if not stat.S_ISREG(os.stat(name).st_mode):
        raise StorageError(f"{name} is not a file.")
    with open(name, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(64)
        length = int.from_bytes(start[:8], "little")
        if f'"{FORMAT}"'.encode() not in start[8:]:
            raise StorageError(f"{name} is not a lacova file.")
        if not length <= min(MAX_HEADER, size - 8) or size > MAX_FILE:
            raise StorageError(f"{name} is damaged: it is shorter or longer than it says; take another copy of it.")
        document = _document(start + file.read(max(0, 8 + length - len(start))), length, name)
        file.seek(0)
        data = file.read(size)
    if document["sha256"] != _digest(data, length):
        raise StorageError(f"{name} is damaged: its checksum does not fit its content; take another copy of it.")
    try:
        return document, safetensors.torch.load(data)
    except Exception as error:
        raise StorageError(f"{name} is damaged: its tensors cannot be read.") from error


def digest(tensors: Mapping[str, Tensor | None]) -> str:
    """Return the SHA-256 of tensors, with their names, types and shapes."""
    sha = hashlib.sha256()
    for name, value in tensors.items():
        sha.update(f"{name}:{None if value is None else (value.dtype, *value.shape)};".encode())
        if value is not None:
            flat = value.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)  # of stride 1
            sha.update(flat.view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _document(start: bytes, length: int, name: str) -> dict[str, Any]:
    """Return the document of a header; refuse one that is damaged or of a newer format."""
    try:
        header = json.loads(start[8 : 8 + length].decode())
        text = header["__metadata__"][FORMAT]
        document: dict[str, Any] = json.loads(text, parse_constant=_no_constant)
        known, version = document["format"] == FORMAT, document["format_version"]
        if not known or type(version) is not int or version < 1 or type(document["sha256"]) is not str:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"{name} is damaged: its header cannot be read; take another copy of it.") from error
    if version > FORMAT_VERSION:
        writer = written_by(document)
        raise StorageError(
            f"{name} was written by a newer version of lacova, in format {version}, but lacova {__version__} reads "
            f"formats up to {FORMAT_VERSION}; install lacova {writer} or newer."
        )
    return document


def written_by(document: Mapping[str, Any]) -> str:
    """Return the version of lacova that wrote a document, "(unknown)" if it names none."""
    version = document.get("lacova_version")
    return version if isinstance(version, str) and re.fullmatch(r"[0-9][0-9A-Za-z.+]{0,30}", version) else "(unknown)"


def _no_constant(text: str) -> Never:
    raise ValueError(text)


def _digest_place(data: bytes | bytearray, length: int) -> tuple[int, int]:
    places = [match.span(1) for match in DIGEST.finditer(data, 8, 8 + length)]
    if len(places) != 1:
        raise ValueError(f"{len(places)} checksums")
    return places[0]


def _digest(data: bytes, length: int) -> str | None:
    """Return the SHA-256 of the file with zeros in place of the checksum; None if it has no single checksum."""
    try:
        start, end = _digest_place(data, length)
    except ValueError:
        return None
    view = memoryview(data)
    sha = hashlib.sha256(view[:start])
    sha.update(b"0" * 64)
    sha.update(view[end:])
    return sha.hexdigest()


def _replace(path: Path, data: bytearray, mode: int) -> None:
    """Write `data` to `path` in one step: until then the old file stays, and no temporary file is left behind."""
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {folder} does not exist; create it first.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file in it.")
    with replacing(path, mode) as temporary:
        temporary.write_bytes(data)


def pack(value: object, what: str) -> Any:
    """Return a value as JSON that preserves its type; `what` names its owner in an error."""
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64):
        value = value.item()
    if value is None or type(value) in (str, bool, int):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, pd.Timestamp) and value.tz is None:
        return {"timestamp": [int(value.to_datetime64().astype(np.int64)), value.unit]}
    if isinstance(value, Mapping):
        return {"map": [[pack(k, what), pack(v, what)] for k, v in value.items()]}
    if isinstance(value, set | frozenset):
        return sorted((pack(v, what) for v in value), key=json.dumps)
    if isinstance(value, tuple | list):
        return [pack(v, what) for v in value]
    raise _cannot_hold(value, what)


def pack_labels(labels: Collection[object], what: str) -> list[Any]:
    """Return labels as JSON; unlike other values, each is a single one: no tuple, set or mapping, which is refused."""
    for label in labels:
        if isinstance(label, Collection) and not isinstance(label, str | bytes):
            raise _cannot_hold(label, what)
    return [pack(label, what) for label in labels]


def _cannot_hold(value: object, what: str) -> StorageError:
    shown = " ".join(repr(value).split())[:80]
    return StorageError(
        f"{what}: a file cannot hold {shown} of type {type(value).__name__}; it takes text, numbers, True, False and "
        "timestamps without a time zone. Use one of those, and fit again."
    )


def unpack(value: Any) -> Any:
    """Undo `pack`; sequences and sets become tuples."""
    if isinstance(value, list):
        return tuple(unpack(v) for v in value)
    if not isinstance(value, dict):
        return value
    if len(value) > 1:
        raise ValueError("a value in it is of two types")
    match value:
        case {"float": "inf" | "-inf" | "nan" as text}:
            return float(text)
        case {"timestamp": [int(count), "s" | "ms" | "us" | "ns" as unit]}:
            return pd.Timestamp(np.int64(count).view(f"datetime64[{unit}]"))
        case {"map": [*pairs]} if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return {unpack(k): unpack(v) for k, v in pairs}
    raise ValueError("a value in it is of no known type")
