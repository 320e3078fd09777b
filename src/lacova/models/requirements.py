"""What models require of a schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from lacova.data.errors import SchemaError
from lacova.data.schema import Schema


def require_covariates(model: object, schema: Schema) -> None:
    """Refuse a schema without covariates."""
    if not schema.covariates:
        raise ValueError(
            f"{type(model).__name__} conditions on covariates: name at least one in the schema, or use VAE or MIWAE."
        )


def require_roles(model: object, schema: Schema, *roles: Literal["instance", "time"], otherwise: str = "") -> None:
    """Refuse a schema without an instance or a time column."""
    for role in roles:
        if getattr(schema, role) is None:
            name, what = type(model).__name__, {"instance": "an instance", "time": "a time"}[role]
            raise SchemaError(
                f"{name} needs {what} column, but the schema has none: give Schema({role}=...){otherwise}."
            )


def require_noise(schema: Schema, noise: str) -> None:
    """Refuse an unknown kind of noise, and noise by row where no measurement can have it."""
    if noise not in ("column", "row"):
        raise ValueError(f"noise is {noise!r}; expected 'column' or 'row'.")
    kinds = [schema.kinds.get(name, "gaussian") for name in schema.measurements]
    if noise == "row" and not {"gaussian", "lognormal"} & set(kinds):
        raise ValueError(
            "noise='row' is for Gaussian and log-normal measurements, and the schema has none; use noise='column'."
        )


def check_covariates(schema: Schema, word: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return names that must be covariates, each once; `word` is the argument they were given as."""
    if isinstance(names, str):
        raise ValueError(f"{word} must be a list of covariates, got the string {names!r}; write [{names!r}].")
    chosen = tuple(dict.fromkeys(names))
    if not chosen:
        raise ValueError(f"{word} is empty: name at least one covariate of {', '.join(schema.covariates)}.")
    for name in chosen:
        if name not in schema.covariates:
            raise ValueError(f"{word} names {name!r}, which is no covariate; they are {', '.join(schema.covariates)}.")
        if word == "objects" and schema.instance is not None and name not in schema.static:
            raise ValueError(f"objects names {name!r}, which is not static; an object is the same under all views.")
    return chosen


def measurements_of(schema: Schema) -> Schema:
    """Return the schema of the measurements alone."""
    if not isinstance(schema, Schema):
        raise SchemaError(f"expected a lacova.Schema, got {schema!r}.")
    kept = set(schema.measurements)
    return Schema(
        schema.measurements, {}, kinds=schema.kinds, limits=schema.limits,
        bounds={name: ends for name, ends in schema.bounds.items() if name in kept},
        integers=[name for name in schema.integers if name in kept],
        levels={name: levels for name, levels in schema.levels.items() if name in kept},
    )  # fmt: skip
