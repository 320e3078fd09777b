"""A model by its name: what a comparison and the command line are given in the place of a class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lacova.data.errors import meant
from lacova.data.schema import Schema
from lacova.models.base import Model
from lacova.models.storage import CLASSES
from lacova.training.options import FitOptions

OPTIONS = frozenset(field.name for field in fields(FitOptions)) - {"seed", "progress"}


def class_of(name: str) -> type[Model]:
    """Of a name in any case."""
    found = {known.lower(): cls for known, cls in CLASSES.items()}.get(name.lower())
    if found is None:
        raise ValueError(f"there is no model {name!r}; expected one of {', '.join(CLASSES)}.{meant([name], CLASSES)}")
    return found


def made(name: str, schema: Schema, settings: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
    """The unfitted model, and those of the settings that are options of its training."""
    cls = class_of(name)
    options = {key: value for key, value in settings.items() if key in OPTIONS}
    try:
        FitOptions(**options)
        return cls(schema, **{key: value for key, value in settings.items() if key not in OPTIONS}), options
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: a setting is unknown, or of the wrong kind ({error}).") from None
