"""Models known by name from the literature, as compositions of the same parts; see docs/models.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from numbers import Real
from typing import Any, Literal

from torch import Tensor

from lacova.data.encoder import TableEncoder
from lacova.data.errors import SchemaError
from lacova.data.schema import Schema
from lacova.inference.vae import Networks
from lacova.models.base import Model
from lacova.models.conditional import GPPriorVAE
from lacova.models.inference import whole_number
from lacova.models.unconditional import VAE
from lacova.nn.networks import Decoder, Dense, Encoder
from lacova.nn.structured import ChainEncoder, ColumnDecoder
from lacova.priors.base import LatentPrior
from lacova.priors.gp.formula import Component
from lacova.priors.mixture import MixtureNormal
from lacova.priors.temporal import SeriesPrior


class LVAE(GPPriorVAE):
    """Longitudinal VAE: z an additive Gaussian process of the covariates, with components of each patient's own.

    The prior is `gp` of each continuous covariate, `gp(time)` for each level of each categorical one, a level of each
    patient and a course in time of each patient; the bound is D̂⁴, over whole patients. It is a `GPPriorVAE` without
    patients' levels of the measurements, which is what Ramchandran et al. (2021) describe; gaps in X are the addition.

    Args:
        schema: the roles of the columns, an instance and a time among them.
        prior: a formula with a component of the instance; None for the one above.

    The other arguments are those of `GPPriorVAE`; `patient_effects` is False unless you say otherwise.

    Examples:
        >>> import numpy as np, pandas as pd, lacova
        >>> rng = np.random.default_rng(0)
        >>> table = pd.DataFrame({"id": np.repeat(np.arange(20), 4), "day": np.tile(np.arange(4.0), 20)})
        >>> table["alt"] = table["id"] % 3 + np.sin(table["day"]) + rng.normal(0, 0.1, 80)
        >>> schema = lacova.Schema(["alt"], {}, instance="id", time="day")
        >>> model = lacova.LVAE(schema, latent_dim=1, inducing=4).fit(table, max_epochs=2)
        >>> model.formula
        'gp(day) + cat(id) + gp(day):cat(id)'
    """

    stored = True

    def __init__(self, schema: Schema, *, prior: str | None = None, patient_effects: bool = False, **settings: Any):
        _need(self, schema, "instance", "time")
        super().__init__(schema, prior=prior, patient_effects=patient_effects, **settings)
        if not any(component.instance for component in self.components):
            raise ValueError(
                f"an LVAE has components of its own for each instance, but {self.formula!r} has none; add a term such "
                f"as gp({schema.time}):cat({schema.instance}), or use GPPriorVAE."
            )


class GPPVAE(GPPriorVAE):
    """GP-prior VAE of objects seen under several views: one product kernel, k((o, v), (o', v')) = k(o, o') k(v, v').

    Casale et al. (2018) describe it for faces (objects) in several poses (views); patients at several visits are of the
    same form. Objects without features are independent (k is 1 for the same object and 0 for others); with features,
    they lend each other strength. It is a `GPPriorVAE` with one component, without patients' levels.

    Args:
        schema: the roles of the columns, an instance among them unless `objects` are given.
        views: covariates that tell views apart; None for the time, or without one for all that are not static.
        objects: covariates that describe the object; None for the instance itself.

    Numbers have a squared-exponential kernel, categories the identity. The other arguments are those of `GPPriorVAE`,
    without `prior` and `kernels`; `patient_effects` is False unless you say otherwise.

    Examples:
        >>> import numpy as np, pandas as pd, lacova
        >>> rng = np.random.default_rng(0)
        >>> table = pd.DataFrame({"id": np.repeat(np.arange(20), 4), "angle": np.tile(np.arange(4.0), 20)})
        >>> table["alt"] = table["id"] % 3 + np.sin(table["angle"]) + rng.normal(0, 0.1, 80)
        >>> schema = lacova.Schema(["alt"], {"angle": "continuous"}, instance="id")
        >>> model = lacova.GPPVAE(schema, latent_dim=1).fit(table, max_epochs=2)
        >>> model.formula
        'gp(angle):cat(id)'
    """

    stored = True
    settled = ("prior", "kernels")

    def __init__(
        self, schema: Schema, *, views: Iterable[str] | None = None, objects: Iterable[str] | None = None,
        patient_effects: bool = False, **settings: Any,
    ) -> None:  # fmt: skip
        for name in self.settled:
            if name in settings:
                raise ValueError(f"{name} is not for a GPPVAE, whose kernel is that of views times that of objects; "
                                 "name their columns, or use GPPriorVAE.")  # fmt: skip
        if objects is None:
            _need(self, schema, "instance", otherwise=", or objects=[...], the covariates that describe an object")
        self.objects = None if objects is None else _columns(schema, "objects", objects)
        if views is None and schema.time is not None:
            views = [schema.time]
        elif views is None:
            taken = (*schema.static, *(self.objects or ()))
            views = [name for name in schema.covariates if name not in taken]
        self.views = _columns(schema, "views", views)
        both = [name for name in self.views if name in (self.objects or ())]
        if both:
            raise ValueError(f"{both[0]!r} is among views and objects; it can describe one of them only.")
        names = (*self.views, *(self.objects or ()))
        kinds = schema.covariates
        if self.objects is None and not any(kinds[name] == "continuous" for name in self.views):
            given = ", ".join(map(repr, self.views)) or "no column"
            raise ValueError(
                f"views are told apart by {given}, of which none is a number: no view of an object would say anything "
                "of another. Name a view that is a number, such as an angle, or objects=[...], or use LVAE, whose "
                "patients have levels of their own."
            )
        product = Component(
            tuple(name for name in names if kinds[name] == "continuous"),
            tuple(name for name in names if kinds[name] == "categorical"),
            instance=self.objects is None,
        )
        super().__init__(schema, prior=product.formula(schema), patient_effects=patient_effects, **settings)


class GPVAE(Model):
    """VAE of time series: z of each series a Gaussian process of time, q(z) a chain along time.

    Fortuin et al. (2020) describe it for series on a regular grid; times may be irregular here. Each latent dimension
    of each series has the prior covariance k(t, t') of a fixed length-scale, and the posterior N(m, (Bᵀ B)⁻¹) with B
    upper bidiagonal, which a network gives from the measurements of a visit and its neighbours. So a gap is filled from
    the visits around it. The KL is exact, by dense algebra for each series: made for up to some hundred visits each.
    Visits at which nothing was measured are left out of it, and predicted from the others.

    Neither the prior nor the decoder looks at covariates other than the time: they inform q(z) only. Use `LVAE` to
    condition on them.

    Args:
        schema: the roles of the columns, an instance (the series) and a time among them.
        kernel: "cauchy", 1/(1 + (t − t')²/ℓ²), or "se", exp(−(t − t')²/2ℓ²).
        length_scale: ℓ in units of the time column; None for the standard deviation of the training times.
        learn_length_scale: start there and train it, for each latent dimension by itself.
        posterior: "banded" for the chain, "diagonal" for a q(z) whose visits are independent.

    The other arguments are those of `Model`.

    Examples:
        >>> import numpy as np, pandas as pd, lacova
        >>> rng = np.random.default_rng(0)
        >>> table = pd.DataFrame({"id": np.repeat(np.arange(20), 6), "day": rng.uniform(0, 6, 120)})
        >>> table["alt"] = np.sin(table["day"] + table["id"]) + rng.normal(0, 0.1, 120)
        >>> table["alt"] = table["alt"].mask(rng.random(120) < 0.3)
        >>> schema = lacova.Schema(["alt"], {}, instance="id", time="day")
        >>> model = lacova.GPVAE(schema, latent_dim=1, length_scale=2).fit(table, max_epochs=2)
        >>> int(model.impute(table).isna().sum().sum())
        0
    """

    decoder_sees_x = False
    latent_weight = 1.0
    stored = True

    def __init__(
        self, schema: Schema, *, kernel: Literal["cauchy", "se"] = "cauchy", length_scale: float | None = None,
        learn_length_scale: bool = False, posterior: Literal["banded", "diagonal"] = "banded", **settings: Any,
    ) -> None:  # fmt: skip
        _need(self, schema, "instance", "time")
        super().__init__(schema, **settings)
        for name, value, known in (
            ("kernel", kernel, ("cauchy", "se")),
            ("posterior", posterior, ("banded", "diagonal")),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}; expected {known[0]!r} or {known[1]!r}.")
        number = isinstance(length_scale, Real) and not isinstance(length_scale, bool)
        if length_scale is not None and not (number and 0.0 < length_scale < float("inf")):
            raise ValueError(
                f"length_scale is {length_scale!r}; expected a positive number, in units of {schema.time!r}."
            )
        self.kernel, self.posterior = kernel, posterior
        self.length_scale = None if length_scale is None else float(length_scale)
        self.learn_length_scale = bool(learn_length_scale)

    def _described(self) -> dict[str, str]:
        scale = "one standard deviation" if self.length_scale is None else f"{self.length_scale:g}"
        learnt = " to start from" if self.learn_length_scale else ""
        return {
            "prior of z": f"a {self.kernel} process of {self.schema.time}, length-scale {scale}{learnt}",
            "posterior of z": self.posterior,
        }

    def _latent_prior(self, encoder: TableEncoder, inputs: Callable[[int], Tensor]) -> LatentPrior:
        time = encoder.space.names.index(self.schema.time)
        scale = 1.0 if self.length_scale is None else self.length_scale / float(encoder.x_scale[time])
        return SeriesPrior(self.latent_dim, time, self.kernel, scale, self.learn_length_scale)

    def _networks(self, encoder: TableEncoder) -> Networks:
        time = encoder.space.names.index(self.schema.time)
        return partial(ChainEncoder, time=time, banded=self.posterior == "banded"), Decoder


class HIVAE(VAE):
    """VAE of mixed measurements: each column a law of its own, z from a mixture, a decoder with a head per column.

    As Nazábal et al. (2020) describe: p(s) uniform on C components, p(z | s) = N(μ_s, I), a shared g(z) that gives each
    column a few numbers of its own, and a small head per column. Two things differ. q(z | y_o) is one normal, and q(s)
    is not sampled but summed over at its optimum, which no network could improve on. And heads do not look at s, of
    which g(z) tells them.

    As in a `VAE`, covariates of the schema are not looked at. Use `CVAE` to condition on them.

    Args:
        schema: the kinds of the measurements; other roles do not count.
        components: C; with 1, the prior is N(0, I).
        column_width: how many numbers g(z) has for each column.

    The other arguments are those of `VAE`; `networks` must be dense.

    Examples:
        >>> import numpy as np, pandas as pd, lacova
        >>> rng = np.random.default_rng(0)
        >>> ill = rng.random(200) < 0.5
        >>> table = pd.DataFrame({"falls": rng.poisson(1 + 4 * ill), "ill": ill})
        >>> table = table.astype(object).mask(rng.random(table.shape) < 0.2)
        >>> schema = lacova.Schema({"falls": "poisson", "ill": "bernoulli"}, {})
        >>> model = lacova.HIVAE(schema, latent_dim=2, components=2).fit(table, max_epochs=2)
        >>> int(model.impute(table).isna().sum().sum())
        0
    """

    stored = True

    def __init__(self, schema: Schema, *, components: int = 10, column_width: int = 5, **settings: Any) -> None:
        super().__init__(schema, **settings)
        self.components = whole_number(components, "components")
        self.column_width = whole_number(column_width, "column_width")
        if not isinstance(self.networks, Dense):
            raise ValueError(f"networks is {self.networks!r}; an HIVAE has a head per column: give Dense(...).")

    def _described(self) -> dict[str, str]:
        return {"prior of z": f"a mixture of {self.components} normals", "decoder": "a head per column"}

    def _latent_prior(self, encoder: TableEncoder, inputs: Callable[[int], Tensor]) -> LatentPrior:
        return MixtureNormal(self.latent_dim, self.components)

    def _networks(self, encoder: TableEncoder) -> Networks:
        return Encoder, partial(ColumnDecoder, outputs=encoder.measurements.outputs, width=self.column_width)


def _need(model: Model, schema: Schema, *roles: Literal["instance", "time"], otherwise: str = "") -> None:
    for role in roles:
        if getattr(schema, role) is None:
            name, what = type(model).__name__, {"instance": "an instance", "time": "a time"}[role]
            raise SchemaError(
                f"{name} needs {what} column, but the schema has none: give Schema({role}=...){otherwise}."
            )


def _columns(schema: Schema, word: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ValueError(f"{word} must be a list of covariates, got the string {names!r}; write [{names!r}].")
    found = tuple(dict.fromkeys(names))
    if not found:
        raise ValueError(f"{word} is empty: name at least one covariate of {', '.join(schema.covariates)}.")
    for name in found:
        if name not in schema.covariates:
            raise ValueError(f"{word} names {name!r}, which is no covariate; they are {', '.join(schema.covariates)}.")
        if word == "objects" and schema.instance is not None and name not in schema.static:
            raise ValueError(f"objects names {name!r}, which is not static; an object is the same under all views.")
    return found
