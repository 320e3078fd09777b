"""A fitted model as a JSON document and tensors, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lacova.covariates.prior import FactorisedPrior
from lacova.covariates.single_imputation import FILLS, FITTED_FILLS, Fill, feature_width
from lacova.data.holdout import HeldOut
from lacova.data.io.archive import StorageError, pack, pack_labels, unpack
from lacova.data.labels import Fingerprints
from lacova.data.registry import name_of
from lacova.data.scaling import Scales, knots_as_table, knots_of_table
from lacova.data.schema import Schema
from lacova.data.statistics import NORMAL, SCORED
from lacova.data.table_encoder import TableEncoder
from lacova.inference.vae import ConditionalVAE
from lacova.models.builder import build_blank
from lacova.models.findings import Findings
from lacova.models.settings import (
    LABEL,
    M,
    Storable,
    check_registered,
    known_values,
    packed_settings,
    parts_of_others,
    unfitted,
    unpacked_schema,
    whole_size,
)
from lacova.nn.networks import Dense
from lacova.training.options import FitOptions

SCALES = ("y_shift", "y_scale", "x_shift", "x_scale")
SMALL = 2**22  # numbers of a tensor that is made before the file is known to hold it


def take_apart(model: Storable) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the document and the tensors that make the model again; refuse what a file cannot hold."""
    encoder, vae = model.fitted()
    schema, fill = encoder.schema, model.fill
    training = pd.DataFrame() if model.training is None else model.training
    linear = vae.covariate_posterior.linear_posterior or vae.covariate_posterior.dependence
    known = () if isinstance(model.training_instances, Fingerprints) else model.training_instances
    document = {
        "model": name_of("model", type(model)),
        "registered": parts_of_others(model),
        "settings": packed_settings(model),
        "schema": {field.name: pack(getattr(schema, field.name), "schema") for field in fields(schema)},
        "levels": {"map": [[pack(name, "schema"), labels] for name, labels in packed_levels(encoder).items()]},
        "options": {k: pack(v, f"fit option {k}") for k, v in asdict(model.options).items()},
        "sizes": {"inducing": vae.prior.inducing_count, "covariate prior": vae.covariate_prior.sizes()},
        "regressed visits": vae.covariate_posterior.visit_regression is not None,
        "linear factors": None if linear is None else linear.factors,
        "training": pack(list(training.columns), "columns of training"),
        "members": len(model.members),
        "held out": {"count": model.held_out.count, "given": model.held_out.given, "asked": model.held_out.asked},
        "findings": {"used": model.findings.used, "concerns": dict(model.findings.concerns)},
        "trained": packed_instances(schema, known),
    }
    try:
        again = unfitted(type(model), unpacked_schema(document), document)
    except ValueError as error:
        raise StorageError(f"schema and settings cannot be written down: {str(error).rstrip('.')}.") from error
    same = again.schema == schema and again.networks == model.networks
    if not same or packed_settings(again) != document["settings"]:
        raise StorageError("schema and settings cannot be written down: they would not come back as they are.")
    tensors = {f"vae.{name}": value for name, value in vae.state_dict().items()}
    for k, member in enumerate(model.members):
        tensors |= {f"member{k}.{name}": value for name, value in member.state_dict().items()}
    tensors |= {f"encoder.{name}": torch.as_tensor(getattr(encoder, name), dtype=torch.float64) for name in SCALES}
    if schema.kinds or model.scaling in SCORED:
        tensors["encoder.y_spread"] = torch.as_tensor(encoder.scales.spread)
    if model.scaling in SCORED:
        tensors["encoder.knots"] = torch.as_tensor(knots_as_table(encoder.scales.knots))
    if isinstance(model.training_instances, Fingerprints):
        tensors["trained"] = torch.as_tensor(model.training_instances.sorted.view(np.int64))
    tensors["held_out"] = torch.as_tensor(model.held_out.prints.view(np.int64))
    tensors["training"] = torch.tensor(training.to_numpy(dtype=float))
    if fill is not None:
        tensors |= {f"fill.{name}": value for name, value in fill.marginal.state_dict().items()}
        if fill.features is not None:
            tensors["fill.features"] = torch.as_tensor(fill.features)
    return document, tensors


def packed_levels(encoder: TableEncoder) -> dict[str, Any]:
    """Return the levels of each column as JSON; refuse those that a file cannot hold."""
    return {name: pack_labels(levels, f"levels of column {name!r}") for name, levels in encoder.levels.items()}


def packed_instances(schema: Schema, labels: Collection[Any]) -> list[Any]:
    """Return labels of instances as JSON, sorted; refuse those that a file cannot hold."""
    return sorted(pack_labels(labels, f"labels of the instance column {schema.instance!r}"), key=json.dumps)


def put_together(document: Mapping[str, Any], tensors: Mapping[str, Tensor], classes: Mapping[str, type[M]]) -> M:
    """Return the model again, on the host; any exception means that the parts do not fit together."""
    check_registered(document)
    kind, parts = document["model"], _Tensors(tensors)
    if kind not in classes:
        raise StorageError(f"its model is {kind!r}; expected {' or '.join(classes)}")
    schema = unpacked_schema(document)
    model = unfitted(classes[kind], schema, document)
    model.encoder = encoder = _encoder(schema, document, parts, model.scaling in SCORED)
    FactorisedPrior.blank(encoder.space).override(encoder, model.covariate_prior)  # refuses what makes no sense
    model.options = FitOptions(**known_values(document, "options", [field.name for field in fields(FitOptions)]))
    own = {name: whole_size(n, 0) for name, n in document["sizes"]["covariate prior"].items()}
    sizes = {"inducing": whole_size(document["sizes"]["inducing"], 0), "covariate prior": own}
    if type(document["regressed visits"]) is not bool:
        raise StorageError("whether its covariates have a regression on visits cannot be read")
    sizes["regressed visits"] = document["regressed visits"]
    factors = document["linear factors"]
    sizes["linear factors"] = None if factors is None else whole_size(factors, 0)
    blank, small = partial(build_blank, model, encoder, sizes), _is_small(model, encoder, document)
    model.vae = _read_into(blank, parts, small, "vae")
    count = whole_size(document.get("members", 0), 0)
    if count > model.options.ensemble:
        raise StorageError(f"it has {count} members; expected at most {model.options.ensemble}")
    model.members = tuple(_read_into(blank, parts, small, f"member{k}") for k in range(count))
    model.fill = _fill(model.covariates, encoder, parts) if model.covariates in FILLS else None
    model.training_instances = frozenset(_labels(unpack(document["trained"])))
    if "trained" in parts.left:  # of a stream, whose labels are not kept
        model.training_instances = Fingerprints(parts.take("trained", torch.int64, None).numpy().view(np.uint64))
    model.held_out, model.findings = _held_out(document, parts), _findings(document)
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
        """Return a copy of a tensor; None stands for any length."""
        tensor = self.left.pop(name, None)
        if tensor is None or tensor.dtype != dtype or tensor.dim() != len(shape):
            raise StorageError(f"its tensor {name} is missing or of another kind")
        if any(want is not None and want != got for want, got in zip(shape, tensor.shape, strict=True)):
            raise StorageError(f"its tensor {name} has the shape {tuple(tensor.shape)}; expected {shape}")
        return tensor.clone()


def _encoder(schema: Schema, document: Mapping[str, Any], parts: _Tensors, normal: bool) -> TableEncoder:
    levels = unpack(document["levels"])
    if not isinstance(levels, dict) or list(levels) != list(schema.categories):
        raise StorageError("its levels are not those of the categorical columns")
    if any(len(_labels(values)) == 0 or len(set(values)) < len(values) for values in levels.values()):
        raise StorageError("its levels are not all different")
    if any(levels[name] != declared for name, declared in schema.levels.items()):
        raise StorageError("its levels are not those that its schema declares")
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
    y_scales = Scales(scales["y_shift"], scales["y_scale"], log, spread, knots)
    return TableEncoder(schema, y_scales, scales["x_shift"], scales["x_scale"], levels)


def _held_out(document: Mapping[str, Any], parts: _Tensors) -> HeldOut:
    """Return what was held out."""
    known = document["held out"]
    if not isinstance(known, dict) or type(known.get("given")) is not bool:
        raise StorageError("what it held out cannot be read")
    asked = known.get("asked")
    if not (asked is None or asked is False or (type(asked) is float and 0.0 < asked < 1.0)):
        raise StorageError("the share that it was to hold out is none")
    prints = parts.take("held_out", torch.int64, None).numpy().view(np.uint64)
    return HeldOut(np.sort(prints), whole_size(known.get("count"), 0), known["given"], asked)


def _findings(document: Mapping[str, Any]) -> Findings:
    """Return what was found when the model was fitted."""
    known = document["findings"]
    used, concerns = known["used"], known["concerns"]
    if not isinstance(concerns, dict) or not all(isinstance(text, str) for text in concerns.values()):
        raise StorageError("what was found about it cannot be read")
    return Findings(None if used is None else whole_size(used, 0), concerns)


def _labels(values: Any) -> tuple[Any, ...]:
    """Return levels or instances, which must be single values."""
    if not isinstance(values, tuple) or not all(isinstance(v, LABEL) for v in values):
        raise StorageError("its labels are not all text, numbers, True, False or timestamps")
    return values


def _is_small(model: Storable, encoder: TableEncoder, document: Mapping[str, Any]) -> bool:
    """Return whether no tensor of the model can be large, by the products of the sizes that the file claims."""
    levels = [len(values) for values in encoder.levels.values()]
    wide, deep = len(encoder.schema.columns) + sum(levels), max(levels, default=1)  # features, levels of a column
    claims, sizes = [abs(n) for n in _numbers(document["settings"])], document["sizes"]
    largest = (
        wide * max(wide, deep**2),
        max(*sizes["covariate prior"].values(), 1, 1) * wide**2,
        model.latent_dim * sizes["inducing"] ** 2,
        sum(claims) * (wide + max(claims)),  # all layers
    )
    own = type(model.networks) is Dense and not parts_of_others(model)  # sizes of other parts are not known
    return own and all(size <= SMALL for size in largest)  # NaN is not


def _numbers(packed: Any) -> Iterator[float]:
    """Yield all numbers of a document, however deep."""
    if isinstance(packed, dict | list):
        for part in packed.values() if isinstance(packed, dict) else packed:
            yield from _numbers(part)
    elif isinstance(packed, int | float):
        yield packed


def _read_into(build: Callable[[], ConditionalVAE], parts: _Tensors, small: bool, prefix: str) -> ConditionalVAE:
    """Build networks and read their weights, under names with a prefix, whose shapes must be those of the file.

    What may be large is first built on the meta device, without memory, to check its shapes. That loads torch's
    compiler, which takes longer than all the rest.
    """
    with torch.random.fork_rng(devices=[]):
        with nullcontext() if small else torch.device("meta"):
            vae = build()
        expected = vae.state_dict()
        weights = {name: parts.take(f"{prefix}.{name}", value.dtype, *value.shape) for name, value in expected.items()}
        if not small:
            vae = build()
    vae.load_state_dict(weights)  # copies, so that memory is laid out as in a model that was just fitted
    return vae.eval()


def _fill(kind: str, encoder: TableEncoder, parts: _Tensors) -> Fill:
    marginal = FactorisedPrior.blank(encoder.space)
    expected = marginal.state_dict()
    marginal.load_state_dict({k: parts.take(f"fill.{k}", v.dtype, *v.shape) for k, v in expected.items()})
    if kind not in FITTED_FILLS:
        return Fill(kind, encoder, marginal)
    features = parts.take("fill.features", torch.float64, None, feature_width(kind, encoder.space)).numpy()
    if np.isinf(features).any() or np.isnan(features).all(0).any():
        raise StorageError("its features have infinite values or an empty column")
    return Fill(kind, encoder, marginal, features)
