"""Models by name: what comparisons, the command line and saved files have in the place of a class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any, cast

from lacova.data.errors import hint
from lacova.data.registry import registered
from lacova.data.schema import Schema
from lacova.models.base import Model
from lacova.training.options import FitOptions

OPTIONS = frozenset(field.name for field in fields(FitOptions)) - {"seed", "progress"}
# The modules that register lacova's own models.
BUILT_IN = ("cvae", "gp_prior_vae", "lvae", "gppvae", "gpvae", "hivae", "vae", "miwae")


def models() -> dict[str, type[Model]]:
    """Return all registered models by name, lacova's own first, in whatever order they were imported."""
    place = {import_module(f"lacova.models.{module}").__name__: k for k, module in enumerate(BUILT_IN)}
    known = cast(dict[str, type[Model]], registered("model"))
    return dict(sorted(known.items(), key=lambda item: place.get(item[1].__module__, len(place))))


def model_class(name: str) -> type[Model]:
    """Return the class of a model by its name, in upper or lower case."""
    known = models()
    matches = {key.lower(): cls for key, cls in known.items()}
    if name.lower() not in matches:
        raise ValueError(f"there is no model {name!r}; expected one of {', '.join(known)}.{hint([name], known)}")
    return matches[name.lower()]


def make_model(name: str, schema: Schema, settings: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
    """Return the unfitted model, and those of the settings that are options of its training."""
    cls = model_class(name)
    options = {key: value for key, value in settings.items() if key in OPTIONS}
    try:
        FitOptions(**options)
        return cls(schema, **{key: value for key, value in settings.items() if key not in OPTIONS}), options
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: a setting is unknown, or of the wrong kind ({error}).") from None
