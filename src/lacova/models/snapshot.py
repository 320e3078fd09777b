"""A fitted model as a JSON document and tensors, and back."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, fields
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lacova import __version__
from lacova.covariates.mixture import Mixture
from lacova.covariates.prior import FactorisedPrior
from lacova.covariates.single_imputation import FILLS, FITTED, Fill, width
from lacova.data.columns import NORMAL
from lacova.data.encoder import TableEncoder
from lacova.data.io.archive import StorageError, digest, pack, unpack, written_by
from lacova.data.labels import Fingerprints
from lacova.data.scaling import Scales, knots_as_table, knots_of_table
from lacova.data.schema import Schema
from lacova.inference.vae import ConditionalVAE
from lacova.nn.networks import Conv, Dense
from lacova.priors.gp.inducing import InducingPoints
from lacova.training.options import FitOptions

LABEL = str | int | float | pd.Timestamp  # a bool is an int
SCALES = ("y_shift", "y_scale", "x_shift", "x_scale")
NETWORKS: dict[str, type[Dense] | type[Conv]] = {"Dense": Dense, "Conv": Conv}
MAX_SIZE, MAX_LAYERS, MAX_KERNELS = 2**31, 1_000, 5_000
SMALL = 2**22  # numbers of a tensor that is made before the file is known to hold it
# A formula as a model prints it: a sum of products of calls. Brackets and operators that multiply terms out, with which
# a short line can ask for 2^40 terms, are not in it.
CALL = r"\w+\((?:`[^`]+`|[^`()])*\)"
TERM = rf"{CALL}(?::{CALL})*"
FORMULA = re.compile(rf"{TERM}(?: \+ {TERM})*")


class Storable(Protocol):
    """What is needed of a model to take it apart and to put it together."""

    schema: Schema
    latent_dim: int
    networks: Dense | Conv
    scaling: Any
    covariates: Any
    covariate_prior: dict[str, object]
    training: pd.DataFrame | None
    settled: ClassVar[tuple[str, ...]]
    _encoder: TableEncoder | None
    _fill: Fill | None
    _vae: ConditionalVAE | None
    _trained: frozenset[Any] | Fingerprints
    _options: FitOptions

    def __init__(self, schema: Schema, **settings: Any) -> None: ...
    def _fitted(self) -> tuple[TableEncoder, ConditionalVAE]: ...
    def _blank(self, encoder: TableEncoder, sizes: Mapping[str, int]) -> ConditionalVAE: ...


M = TypeVar("M", bound=Storable)


def take_apart(model: Storable) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The document and the tensors that make the model again; refuses what a file cannot hold."""
    encoder, vae = model._fitted()
    schema, fill = encoder.schema, model._fill
    training = pd.DataFrame() if model.training is None else model.training
    known = () if isinstance(model._trained, Fingerprints) else model._trained
    document = {
        "model": type(model).__name__,
        "settings": _settings(model),
        "schema": {field.name: pack(getattr(schema, field.name), "schema") for field in fields(schema)},
        "levels": {"map": [[pack(k, "schema"), pack(v, f"levels of column {k!r}")] for k, v in encoder.levels.items()]},
        "options": {k: pack(v, f"fit option {k}") for k, v in asdict(model._options).items()},
        "sizes": _sizes(vae),
        "training": pack(list(training.columns), "columns of training"),
        "trained": pack(known, f"labels of the instance column {schema.instance!r}"),
    }
    try:
        again = _unfitted(type(model), _schema(document), document)
    except ValueError as error:
        raise StorageError(f"schema and settings cannot be written down: {str(error).rstrip('.')}.") from error
    if again.schema != schema or _settings(again) != document["settings"]:
        raise StorageError("schema and settings cannot be written down: they would not come back as they are.")
    tensors = {f"vae.{name}": value for name, value in vae.state_dict().items()}
    tensors |= {f"encoder.{name}": torch.as_tensor(getattr(encoder, name), dtype=torch.float64) for name in SCALES}
    if schema.kinds or model.scaling == "normal":
        tensors["encoder.y_spread"] = torch.as_tensor(encoder.scales.spread)
    if model.scaling == "normal":
        tensors["encoder.knots"] = torch.as_tensor(knots_as_table(encoder.scales.knots))
    if isinstance(model._trained, Fingerprints):
        tensors["trained"] = torch.as_tensor(model._trained.sorted.view(np.int64))
    tensors["training"] = torch.tensor(training.to_numpy(dtype=float))
    if fill is not None:
        tensors |= {f"fill.{name}": value for name, value in fill.marginal.state_dict().items()}
        if fill.features is not None:
            tensors["fill.features"] = torch.as_tensor(fill.features)
    return document, tensors


def put_together(document: Mapping[str, Any], tensors: Mapping[str, Tensor], classes: Mapping[str, type[M]]) -> M:
    """The model again, on the host; raises whatever it stumbles over where the parts do not fit together."""
    kind, parts = document["model"], _Tensors(tensors)
    if kind not in classes:
        raise StorageError(f"its model is {kind!r}; expected {' or '.join(classes)}")
    schema = _schema(document)
    model = _unfitted(classes[kind], schema, document)
    model._encoder = encoder = _encoder(schema, document, parts, model.scaling == "normal")
    FactorisedPrior.blank(encoder.space).override(
        encoder, model.covariate_prior
    )  # refuses knowledge that makes no sense
    model._options = FitOptions(**_known(document, "options", [field.name for field in fields(FitOptions)]))
    sizes = {name: _whole(n, 0) for name, n in document["sizes"].items()}
    model._vae = _read_into(partial(model._blank, encoder, sizes), parts, _is_small(model, encoder, document))
    model._fill = _fill(model.covariates, encoder, parts) if model.covariates in FILLS else None
    model._trained = frozenset(_labels(unpack(document["trained"])))
    if "trained" in parts.left:  # of a stream, whose labels are not kept
        model._trained = Fingerprints(parts.take("trained", torch.int64, None).numpy().view(np.uint64))
    columns = _labels(unpack(document["training"]))
    model.training = pd.DataFrame(
        parts.take("training", torch.float64, None, len(columns)).numpy(), columns=list(columns)
    )
    if parts.left:
        raise StorageError(f"it holds {len(parts.left)} tensor(s) that the model does not have")
    return model


class _Tensors:
    """The tensors of a file, each handed out once and only as expected."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.left = dict(tensors)

    def take(self, name: str, dtype: torch.dtype, *shape: int | None) -> Tensor:
        """A copy of a tensor; None stands for any length."""
        found = self.left.pop(name, None)
        if found is None or found.dtype != dtype or found.dim() != len(shape):
            raise StorageError(f"its tensor {name} is missing or of another kind")
        if any(want is not None and want != got for want, got in zip(shape, found.shape, strict=True)):
            raise StorageError(f"its tensor {name} has the shape {tuple(found.shape)}; expected {shape}")
        return found.clone()


def _setting_names(cls: type[Storable]) -> list[str]:
    """The keyword arguments of a model's class and of its bases, but for those that the class settles itself."""
    inits = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]
    given = [p for init in inits for p in inspect.signature(init).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return list(dict.fromkeys(p.name for p in given if p.name not in cls.settled))


def identity(model: Storable) -> dict[str, Any]:
    """What the unfitted model is, by name, as JSON: its settings and the roles of columns."""
    kernels = getattr(model, "kernels", {})
    known = {name: [repr(kernel), digest(kernel.state_dict())] for name, kernel in kernels.items()}
    schema = {f"{f.name} of the schema": pack(getattr(model.schema, f.name), "schema") for f in fields(model.schema)}
    return {"model": type(model).__name__, **_settings(model, without="kernels"), "kernels": known, **schema}


def arguments(model: Storable) -> dict[str, Any]:
    """The keyword arguments that make the unfitted model; of a GP prior, its formula."""
    names = _setting_names(type(model))
    return {name: getattr(model, "formula" if name == "prior" else name) for name in names}


def _settings(model: Storable, without: str | None = None) -> dict[str, Any]:
    """The same as JSON."""
    values = {name: value for name, value in arguments(model).items() if name != without}
    networks = values["networks"]
    values["networks"] = {"kind": type(networks).__name__, **asdict(networks)}
    return {name: pack(value, f"setting {name}") for name, value in values.items()}


def _schema(document: Mapping[str, Any]) -> Schema:
    schema = Schema(**_known(document, "schema", [field.name for field in fields(Schema)]))
    if not all(isinstance(name, LABEL) for name in schema.columns):
        raise StorageError("a column is named by something other than text or a number")
    return schema


def _unfitted(cls: type[M], schema: Schema, document: Mapping[str, Any]) -> M:
    """The model before it was fitted."""
    settings = _known(document, "settings", _setting_names(cls))
    networks = _networks(settings.pop("networks"))
    formula = settings.get("prior")
    if formula is not None and not (FORMULA.fullmatch(formula) and formula.count("(") <= MAX_KERNELS):
        raise StorageError(
            f"its formula is no plain sum of products of kernels, has more than {MAX_KERNELS:,} of them, or names a "
            "column with a backtick"
        )
    if not math.isfinite(settings.get("noise_floor", 1.0)):
        raise StorageError("its noise_floor is not finite")
    return cls(schema, networks=networks, **settings)


def _networks(stored: dict[str, Any]) -> Dense | Conv:
    architecture = NETWORKS[stored.pop("kind")]
    flags = {name: stored.pop(name) for name in ("linear",) if type(stored.get(name)) is bool}
    shape: dict[str, Any] = {name: tuple(_whole(n, 1) for n in widths) for name, widths in stored.items()}
    if sum(map(len, shape.values())) > MAX_LAYERS:
        raise StorageError(f"its networks have more than {MAX_LAYERS} layers")
    return architecture(**shape, **flags)


def _known(document: Mapping[str, Any], part: str, names: list[str]) -> dict[str, Any]:
    """A part of the document whose names are known; what is not there has its default."""
    if not isinstance(document[part], dict):
        raise StorageError(f"its {part} cannot be read")
    strange = [name for name in document[part] if name not in names]
    if strange:
        writer = written_by(document)
        raise StorageError(
            f"{strange[0]!r} in its {part} is unknown to lacova {__version__}; install lacova {writer}, which wrote it"
        )
    return {name: unpack(value) for name, value in document[part].items()}


def _encoder(schema: Schema, document: Mapping[str, Any], parts: _Tensors, normal: bool) -> TableEncoder:
    levels = unpack(document["levels"])
    if not isinstance(levels, dict) or list(levels) != list(schema.categories):
        raise StorageError("its levels are not those of the categorical columns")
    if any(len(_labels(values)) == 0 or len(set(values)) < len(values) for values in levels.values()):
        raise StorageError("its levels are not all different")
    lengths = {"y": len(schema.measurements), "x": len(schema.covariates)}
    scales = {name: parts.take(f"encoder.{name}", torch.float64, lengths[name[0]]).numpy() for name in SCALES}
    if not all(np.isfinite(value).all() for value in scales.values()):
        raise StorageError("its scales are not finite")
    kinds = [schema.kinds.get(name, "gaussian") for name in schema.measurements]
    spread = scales["y_scale"]
    if schema.kinds or normal:
        spread = parts.take("encoder.y_spread", torch.float64, len(kinds)).numpy()
    if not all((value > 0).all() for value in (scales["y_scale"], scales["x_scale"], spread)):
        raise StorageError("its scales are not positive")
    if any(kind == "bernoulli" and len(levels[n]) > 2 for n, kind in schema.kinds.items()):
        raise StorageError("a bernoulli column of it has more than two levels")
    knots = {}
    if normal:
        allowed = [d for d, kind in enumerate(kinds) if kind in NORMAL]
        knots = knots_of_table(parts.take("encoder.knots", torch.float64, None, 4).numpy(), allowed)
    log = np.array([kind == "lognormal" for kind in kinds], dtype=bool)
    measured = Scales(scales["y_shift"], scales["y_scale"], log, spread, knots)
    return TableEncoder(schema, measured, scales["x_shift"], scales["x_scale"], levels)


def _labels(values: Any) -> tuple[Any, ...]:
    """Levels or instances, each a single value."""
    if not isinstance(values, tuple) or not all(isinstance(v, LABEL) for v in values):
        raise StorageError("its labels are not all text, numbers, True, False or timestamps")
    return values


def _whole(value: object, least: int) -> int:
    if type(value) is not int or not least <= value < MAX_SIZE:
        raise StorageError("one of its sizes is not a whole number in range")
    return value


def _sizes(vae: ConditionalVAE) -> dict[str, int]:
    """What the training rows decided of the shape: components of the mixture, inducing inputs."""
    sizes = {"mixture": 0, "inducing": 0}
    for part in vae.modules():
        if isinstance(part, Mixture):
            sizes["mixture"] = len(part)
        elif isinstance(part, InducingPoints):
            sizes["inducing"] = part.shift.shape[1]
    return sizes


def _is_small(model: Storable, encoder: TableEncoder, document: Mapping[str, Any]) -> bool:
    """Whether no tensor of the model can be large, by the products of the sizes that the file claims."""
    levels = [len(values) for values in encoder.levels.values()]
    wide, deep = len(encoder.schema.columns) + sum(levels), max(levels, default=1)  # features, levels of a column
    claims, sizes = [abs(n) for n in _numbers(document["settings"])], document["sizes"]
    largest = (
        wide * max(wide, deep**2),
        max(sizes["mixture"], 1) * wide**2,
        model.latent_dim * sizes["inducing"] ** 2,
        sum(claims) * (wide + max(claims)),  # all layers
    )
    return isinstance(model.networks, Dense) and all(size <= SMALL for size in largest)  # NaN is not


def _numbers(packed: Any) -> Iterator[float]:
    """All of a document, however deep."""
    if isinstance(packed, dict | list):
        for part in packed.values() if isinstance(packed, dict) else packed:
            yield from _numbers(part)
    elif isinstance(packed, int | float):
        yield packed


def _read_into(build: Callable[[], ConditionalVAE], parts: _Tensors, small: bool) -> ConditionalVAE:
    """Build the networks and read their weights, whose shapes must be those of the file.

    What may be large is built for real only once this is known of shapes found without memory. That loads torch's
    compiler, which takes longer than all the rest.
    """
    with torch.random.fork_rng(devices=[]):
        with nullcontext() if small else torch.device("meta"):
            vae = build()
        expected = vae.state_dict()
        weights = {name: parts.take(f"vae.{name}", value.dtype, *value.shape) for name, value in expected.items()}
        if not small:
            vae = build()
    vae.load_state_dict(weights)  # copies, so that memory is laid out as in a model that was just fitted
    return vae.eval()


def _fill(kind: str, encoder: TableEncoder, parts: _Tensors) -> Fill:
    marginal = FactorisedPrior.blank(encoder.space)
    expected = marginal.state_dict()
    marginal.load_state_dict({k: parts.take(f"fill.{k}", v.dtype, *v.shape) for k, v in expected.items()})
    if kind not in FITTED:
        return Fill(kind, encoder, marginal)
    features = parts.take("fill.features", torch.float64, None, width(kind, encoder.space)).numpy()
    if np.isinf(features).any() or np.isnan(features).all(0).any():
        raise StorageError("its features have infinite values or an empty column")
    return Fill(kind, encoder, marginal, features)
