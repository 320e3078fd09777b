"""Settings of a model as JSON and back: plain values, and registered parts by name with their configuration."""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar, cast

import pandas as pd
import torch
from torch import nn

from lacova import __version__
from lacova.covariates.single_imputation import Fill
from lacova.data.holdout import HeldOut
from lacova.data.io.archive import StorageError, digest, pack, unpack, written_by
from lacova.data.labels import Fingerprints
from lacova.data.levels import Unseen
from lacova.data.registry import PARTS, configured, factory, lookup, name_of, registered
from lacova.data.schema import Schema
from lacova.data.statistics import Scaling
from lacova.data.table_encoder import TableEncoder
from lacova.inference.vae import ConditionalVAE
from lacova.models.builder import Blueprint
from lacova.models.findings import Findings
from lacova.nn.networks import Networks
from lacova.training.options import FitOptions

LABEL = str | int | float | pd.Timestamp  # a bool is an int
MAX_SIZE, MAX_LAYERS, MAX_KERNELS = 2**31, 1_000, 5_000
# A formula as a model prints it: a sum of products of calls. Brackets and operators that multiply terms out, with which
# a short line can ask for 2^40 terms, are not in it.
CALL = r"\w+\((?:`[^`]+`|[^`()])*\)"
TERM = rf"{CALL}(?::{CALL})*"
FORMULA = re.compile(rf"{TERM}(?: \+ {TERM})*")
# Settings that may be registered parts of one's own, with what kind of part they are.
OWN_PARTS = {"covariates": "covariate prior", "latent_prior": "latent prior"}


class Storable(Blueprint, Protocol):
    """What is needed of a model to take it apart and to put it together."""

    networks: Networks
    scaling: Any
    training: pd.DataFrame | None
    settled: ClassVar[tuple[str, ...]]
    encoder: TableEncoder | None
    fill: Fill | None
    vae: ConditionalVAE | None
    members: tuple[ConditionalVAE, ...]
    training_instances: frozenset[Any] | Fingerprints
    held_out: HeldOut
    findings: Findings
    noise_floor: float
    options: FitOptions
    unseen: Unseen

    def __init__(self, schema: Schema, **settings: Any) -> None: ...
    @property
    def column_scaling(self) -> Scaling: ...
    def fitted(self) -> tuple[TableEncoder, ConditionalVAE]: ...


M = TypeVar("M", bound=Storable)


def identity(model: Storable) -> dict[str, Any]:
    """Return what the unfitted model is, by name, as JSON: its settings and the roles of columns."""
    kernels = getattr(model, "kernels", {})
    digests = {name: [repr(kernel), digest(kernel.state_dict())] for name, kernel in kernels.items()}
    schema = {f"{f.name} of the schema": pack(getattr(model.schema, f.name), "schema") for f in fields(model.schema)}
    settings = packed_settings(model, without="kernels", to_save=False)
    return {"model": type(model).__name__, **settings, "kernels": digests, **schema}


def arguments(model: Storable) -> dict[str, Any]:
    """Return the keyword arguments that make the unfitted model; of a GP prior, its formula."""
    names = {name: "formula" if name == "prior" else name for name in setting_names(type(model))}
    lost = [name for name, attribute in names.items() if not hasattr(model, attribute)]
    if lost:
        raise StorageError(
            f"the setting {lost[0]!r} of {type(model).__name__} is not kept: set self.{lost[0]} in its constructor, or "
            "name it in `settled`."
        )
    return {name: getattr(model, attribute) for name, attribute in names.items()}


def setting_names(cls: type[Storable]) -> list[str]:
    """Return the keyword arguments of a model's class and of its bases, but for those that the class settles itself."""
    inits = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]
    keywords = [p for init in inits for p in inspect.signature(init).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return list(dict.fromkeys(p.name for p in keywords if p.name not in cls.settled))


def packed_settings(model: Storable, without: str | None = None, to_save: bool = True) -> dict[str, Any]:
    """Return the settings as JSON; where they are to be saved, refuse networks that are not registered."""
    values = {name: value for name, value in arguments(model).items() if name != without}
    if "networks" in values:
        networks = values["networks"]
        name = _networks_name(networks) if to_save else type(networks).__qualname__
        values["networks"] = {"name": name, "configuration": asdict(cast(Any, networks))}
    for name, kind in OWN_PARTS.items():
        if name in values and not isinstance(values[name], str):
            part, configuration = configured(kind, values[name]) or (None, {})
            values[name] = {"name": part, "configuration": configuration}
    if "kernels" in values:
        values["kernels"] = [_kernel_name(model, name, kernel) for name, kernel in values["kernels"].items()]
    return {name: pack(value, f"setting {name}") for name, value in values.items()}


def parts_of_others(model: Storable) -> list[list[str]]:
    """Return kind, name and module of the registered parts of a model that are not lacova's own."""
    used: list[tuple[str, Any]] = [("model", type(model))]
    if "networks" in setting_names(type(model)):
        used.append(("networks", type(model.networks)))
    families = set(model.schema.kinds.values()) & set(registered("family"))
    used += [("family", lookup("family", kind)) for kind in families]
    for setting, kind in OWN_PARTS.items():
        value = getattr(model, setting, "")
        if not isinstance(value, str):
            used.append((kind, value.func if isinstance(value, partial) else value))
    used += [("kernel", lookup("kernel", name)) for name in getattr(model, "kernels", {})]
    others = [(kind, name_of(kind, part), str(part.__module__)) for kind, part in used]
    return sorted([kind, str(name), module] for kind, name, module in others if module.split(".")[0] != "lacova")


def check_registered(document: Mapping[str, Any]) -> None:
    """Refuse a file with a part that is not registered, and say what to import."""
    listed = document.get("registered", [])
    if not isinstance(listed, list) or not all(_is_part(entry) for entry in listed):
        raise StorageError("its registered parts cannot be read")
    for kind, name, module in listed:
        if name not in registered(kind):
            raise StorageError(
                f"its {kind} {name!r} is not registered: import the module that registers it, which was {module!r}, "
                "and load it again"
            )


def _is_part(entry: Any) -> bool:
    texts = isinstance(entry, list) and len(entry) == 3 and all(isinstance(text, str) for text in entry)
    return texts and entry[0] in PARTS


def unpacked_schema(document: Mapping[str, Any]) -> Schema:
    """Return the schema of a document."""
    schema = Schema(**known_values(document, "schema", [field.name for field in fields(Schema)]))
    strange = [name for name in schema.columns if not isinstance(name, LABEL)]
    if strange:
        raise StorageError(f"a column is named by something other than text or a number, {strange[0]!r}")
    return schema


def unfitted(cls: type[M], schema: Schema, document: Mapping[str, Any]) -> M:
    """Return the model before it was fitted."""
    settings = known_values(document, "settings", setting_names(cls))
    if "networks" in settings:
        settings["networks"] = _networks(settings["networks"])
    formula = settings.get("prior")
    if formula is not None and not (FORMULA.fullmatch(formula) and formula.count("(") <= MAX_KERNELS):
        raise StorageError(
            f"its formula is no plain sum of products of kernels, has more than {MAX_KERNELS:,} of them, or names a "
            "column with a backtick"
        )
    if not math.isfinite(settings.get("noise_floor", 1.0)):
        raise StorageError("its noise_floor is not finite")
    for name, kind in OWN_PARTS.items():
        if isinstance(settings.get(name), dict):
            settings[name] = factory(kind, settings[name]["name"], settings[name]["configuration"])
    if "kernels" in settings:
        names = settings["kernels"]
        if not isinstance(names, tuple) or len(names) > len(set(names)):
            raise StorageError("its kernels are not all different")
        settings["kernels"] = {name: lookup("kernel", name)() for name in names}
    return cls(schema, **settings)


def known_values(document: Mapping[str, Any], part: str, names: list[str]) -> dict[str, Any]:
    """Return a part of the document whose names are known; what is not there has its default."""
    if not isinstance(document[part], dict):
        raise StorageError(f"its {part} cannot be read")
    strange = [name for name in document[part] if name not in names]
    if strange:
        writer = written_by(document)
        raise StorageError(
            f"{strange[0]!r} in its {part} is unknown to lacova {__version__}; install lacova {writer}, which wrote it"
        )
    return {name: unpack(value) for name, value in document[part].items()}


def whole_size(value: object, least: int) -> int:
    """Return a size in a file, which must be a whole number in range."""
    if type(value) is not int or not least <= value < MAX_SIZE:
        raise StorageError("one of its sizes is not a whole number in range")
    return value


def _networks_name(networks: Networks) -> str:
    name = name_of("networks", type(networks))
    if name is None:
        kind = type(networks).__name__
        raise StorageError(
            f"networks {kind} cannot be saved, because their class has no name to be loaded by: "
            f"put @lacova.register({kind!r}) above it."
        )
    return name


def _kernel_name(model: Any, name: str, kernel: nn.Module) -> str:
    """Return the name of a kernel; refuse one that the registered factory would not make again."""
    make = registered("kernel").get(name)
    if make is None:
        raise StorageError(
            f"kernel {name!r} cannot be saved, because it has no name to be loaded by: "
            f"put @lacova.register({name!r}) above a function that returns it."
        )
    factors = (factor for component in model.components for factor in component.factors if factor.kernel == name)
    columns = len(next(factors).columns)
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    try:
        again = copy.deepcopy(make()).double()
        again.load_state_dict(kernel.state_dict())
        same = torch.equal(again(x, x).to_dense(), copy.deepcopy(kernel).double()(x, x).to_dense())
    except (RuntimeError, ValueError, TypeError, AttributeError):  # another kernel may have other parameters or columns
        same = False
    if not same:
        raise StorageError(f"kernel {name!r} cannot be saved: the kernel registered under that name is another one.")
    return name


def _networks(stored: dict[str, Any]) -> Networks:
    kind, configuration = lookup("networks", stored["name"]), dict(stored["configuration"])
    if str(kind.__module__).split(".")[0] != "lacova":
        return cast(Networks, kind(**configuration))
    flags = {name: configuration.pop(name) for name in ("linear",) if type(configuration.get(name)) is bool}
    shape: dict[str, Any] = {name: tuple(whole_size(n, 1) for n in widths) for name, widths in configuration.items()}
    if sum(map(len, shape.values())) > MAX_LAYERS:
        raise StorageError(f"its networks have more than {MAX_LAYERS} layers")
    return cast(Networks, kind(**shape, **flags))
