"""Files of earlier versions, brought to the names and settings of the present one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lacova.models.registry import models
from lacova.models.settings import setting_names

# Settings that older files lack and whose default is new: what models did before. Others that a file lacks have their
# defaults.
BEFORE = {
    "lengthscales": "own",
    "joint_posterior": False,
    "patient_factors": 0,
    "patient_slopes": False,
    "noise": "column",
    "unseen": "warn",  # they refused such entries, which is no part of what was learnt
}
# Format 2: networks, families, kernels and priors of others by name; one word for each idea.
TENSORS = {
    "codec.": "encoder.",
    "vae.likelihood.raw": "vae.likelihood.families.gaussian.raw",
    "vae.intercepts.slopes.": "vae.random_effects.fixed_effects.",
    "vae.intercepts.": "vae.random_effects.",
    "vae.covariate_posterior.reading.": "vae.covariate_posterior.static_regression.",
}
SETTINGS = {"level_slopes": "fixed_effects"}
OPTIONS_BEFORE = {"schedule": "constant", "start": "random", "members": 1}  # of files without these options
# Parts of the document that older files lack.
NOT_KEPT: dict[str, Any] = {
    "held out": {"count": 0, "given": False}, "findings": {"used": None, "concerns": {}}, "regressed visits": False,
    "linear factors": None,
}  # fmt: skip
OPTIONS = {"recall": "masked_loss"}
TRAINING = {"recall": "masked_log_prob", "validation_recall": "validation_masked_log_prob"}


def migrated(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return document and tensors of a file of any version in the present one."""
    document, tensors = dict(document), dict(tensors)
    if isinstance(document.get("schema"), dict):
        document["schema"] = {"levels": {"map": []}} | document["schema"]
    if document["format_version"] == 1:
        document, tensors = _to_format_2(document, tensors)
    cls, settings = models().get(document.get("model", "")), document["settings"]
    if cls is not None and isinstance(settings, dict):  # any other file is refused by `put_together`
        known = setting_names(cls)
        if "patient_factors" not in settings:  # coefficients of intercepts alone, each by itself
            tensors = _with_covariances(tensors)
        document["settings"] = {name: value for name, value in BEFORE.items() if name in known} | settings
        for part, nothing in NOT_KEPT.items():
            document.setdefault(part, nothing)
        tensors = {"held_out": torch.zeros(0, dtype=torch.int64)} | _without_noise_of_numbers(tensors)
    if isinstance(document.get("options"), dict):
        older = "start" not in document["options"] and document["options"].get("prior_every") is None
        never = {"prior_every": 0} if older else {}  # None was for no update of the prior
        document["options"] = OPTIONS_BEFORE | document["options"] | never
    return document, tensors


def _without_noise_of_numbers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of a covariate prior in which all of a number's variance lasts, where they do not say how much."""
    ones = {
        f"{name.removesuffix('.rates')}.lasting": torch.ones_like(rates)
        for name, rates in tensors.items()
        if name.endswith("covariate_prior.rates")
    }
    return ones | dict(tensors)


def _with_covariances(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in which q(w) of the fixed effects has covariances in place of logs of standard deviations."""
    migrated = dict(tensors)
    for name in tensors:
        part, _, last = name.rpartition(".")
        if last == "log_sd" and part.endswith("fixed_effects"):
            log_sd = migrated.pop(name)
            migrated[f"{part}.covariance"] = torch.diag_embed((2.0 * log_sd).exp())
            migrated[f"{part}.precision"] = torch.diag_embed((-2.0 * log_sd).exp())[None]
            migrated[f"{part}.log_det_precision"] = -2.0 * log_sd.sum(-1)
    return migrated


def _to_format_2(document: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    settings = {SETTINGS.get(name, name): value for name, value in document["settings"].items()}
    if settings.get("patient_effects") == "level":
        settings["patient_effects"] = "intercept"
    if settings.get("kernels") == {"map": []}:
        settings["kernels"] = []
    networks = dict(settings["networks"]["map"])
    name = networks.pop("kind")
    configuration = {"map": [[key, value] for key, value in networks.items()]}
    settings["networks"] = {"map": [["name", name], ["configuration", configuration]]}
    document["settings"] = settings
    sizes = document["sizes"]
    document["sizes"] = {
        "inducing": sizes["inducing"],
        "covariate prior": {"mixture": sizes["mixture"]} if sizes["mixture"] else {},
    }
    document["options"] = {OPTIONS.get(name, name): value for name, value in document["options"].items()}
    document["training"] = [TRAINING.get(name, name) for name in document["training"]]
    document["registered"] = []
    return document, {_renamed(name): value for name, value in tensors.items()}


def _renamed(name: str) -> str:
    for old, new in TENSORS.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
