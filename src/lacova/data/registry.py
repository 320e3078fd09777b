"""Names of exchangeable parts: what a saved model holds in the place of code.

A part is a model, networks, an observation family, a kernel, a covariate prior or a latent prior. `register` gives it a
name; a file holds that name and a configuration of plain values, and loading looks the name up. lacova's own parts are
registered in the same way as those of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import isclass, isfunction
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])
Part = Callable[..., Any]

# Names of lacova's own parts, which are registered only when their modules are imported.
RESERVED = {
    "model": ("CVAE", "GPPriorVAE", "LVAE", "GPPVAE", "GPVAE", "HIVAE", "VAE", "MIWAE", "NotMIWAE"),
    "networks": ("Dense", "Conv"),
    "family": (
        "gaussian", "lognormal", "student", "censored", "bernoulli", "categorical", "ordinal", "poisson",
        "negative_binomial",
    ),
    "kernel": ("gp", "cat", "lin", "periodic", "matern"),
    "latent prior": ("normal", "conditional", "mixture"),
    "covariate prior": ("joint", "factorised", "paper", "mean", "knn", "iterative", "zero", "oracle"),
}  # fmt: skip
PARTS = ("model", "networks", "family", "kernel", "covariate prior", "latent prior")
_REGISTERED: dict[str, dict[str, Part]] = {part: {} for part in PARTS}


class NotRegisteredError(ValueError):
    """A name that no part has been registered under."""


def register(name: str) -> Callable[[T], T]:
    """Register a part under a name, as a decorator of its class or of the function that makes it.

    What the part is follows from its base class: `lacova.models.Model`, `lacova.nn.Networks`,
    `lacova.likelihoods.Family`, `lacova.covariates.CovariatePrior` or `lacova.priors.LatentPrior`. Anything else is
    taken for a kernel: a class or function that returns a module with GPyTorch's interface. docs/bring-your-own.md has
    an example of each, and `lacova.testing` a check of each.

    Args:
        name: how schemas, formulas and saved models refer to it. Registering the same class again, as when a notebook
            cell is run twice, replaces it; the name of another class is refused.

    Examples:
        >>> import torch, lacova
        >>> from lacova.nn import Networks
        >>> @lacova.register("OneLayer")
        ... class OneLayer(Networks):
        ...     pass
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"a part cannot be registered as {name!r}; expected a plain name, such as 'gamma'.")

    def add(part: T) -> T:
        kind = part_kind(part)
        if not (isfunction(part) or isclass(part)) or (
            isclass(part) and kind == "kernel" and not hasattr(part, "forward")
        ):
            raise TypeError(
                f"register({name!r}) takes a class of one of lacova's protocols, a kernel's class, or a function that "
                f"returns a kernel; got {part!r}."
            )
        if _origin(part)[0].split(".")[0] != "lacova" and name.lower() in map(str.lower, RESERVED[kind]):
            raise ValueError(f"{name!r} is a {kind} of lacova's own; choose another name.")
        known = _REGISTERED[kind]
        other = known.get(name)
        if other is not None and _origin(other) != _origin(part):
            raise ValueError(
                f"the {kind} {name!r} is registered already, as {'.'.join(_origin(other))}; choose another name."
            )
        known[name] = part
        return part

    return add


def part_kind(part: Part) -> str:
    """Return which of PARTS a class or function is."""
    return getattr(part, "part_kind", "kernel")


def registered(kind: str) -> dict[str, Part]:
    """Return the parts of a kind by name."""
    return dict(_REGISTERED[kind])


def lookup(kind: str, name: str) -> Part:
    """Return the part of a kind that is registered under a name."""
    known = _REGISTERED[kind]
    if name not in known:
        raise NotRegisteredError(
            f"no {kind} is registered as {name!r}; the names are {', '.join(known)}. "
            "Import the module that registers it first."
        )
    return known[name]


def name_of(kind: str, part: object) -> str | None:
    """Return the name that a class or function is registered under, if it is."""
    known = ((name, _origin(other)) for name, other in _REGISTERED[kind].items())
    return next((name for name, origin in known if callable(part) and origin == _origin(part)), None)


def configured(kind: str, value: object) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the configuration of a part that a model was given; None if it is not registered.

    Args:
        kind: one of PARTS.
        value: a registered name, a registered class, or `functools.partial` of one with its configuration.
    """
    if isinstance(value, str):
        return (value, {}) if value in _REGISTERED[kind] else None
    part, configuration = (value.func, value.keywords) if isinstance(value, partial) else (value, {})
    name = name_of(kind, part)
    return None if name is None or (isinstance(value, partial) and value.args) else (name, dict(configuration))


def factory(kind: str, name: str, configuration: Mapping[str, Any]) -> Part:
    """Undo `configured`: the registered part, with its configuration filled in."""
    part = lookup(kind, name)
    return partial(part, **configuration) if configuration else part


def _origin(part: Part) -> tuple[str, str]:
    return str(getattr(part, "__module__", "?")), str(getattr(part, "__qualname__", repr(part)))
