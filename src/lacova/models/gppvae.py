"""GPPVAE: the GP-prior VAE of objects under several views."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lacova.data.registry import register
from lacova.data.schema import Schema
from lacova.models.gp_prior_vae import GPPriorVAE
from lacova.models.requirements import check_covariates, require_roles
from lacova.priors.gp.formula import Component


@register("GPPVAE")
class GPPVAE(GPPriorVAE):
    """GP-prior VAE of objects seen under several views: one product kernel, k((o, v), (o', v')) = k(o, o') k(v, v').

    Casale et al. (2018) describe it for faces (objects) in several poses (views); patients at several visits are of the
    same form. Objects without features are independent (k is 1 for the same object and 0 for others); with features,
    they lend each other strength. It is a `GPPriorVAE` with one component, without random effects.

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
            require_roles(
                self, schema, "instance", otherwise=", or objects=[...], the covariates that describe an object"
            )
        self.objects = None if objects is None else check_covariates(schema, "objects", objects)
        if views is None and schema.time is not None:
            views = [schema.time]
        elif views is None:
            taken = (*schema.static, *(self.objects or ()))
            views = [name for name in schema.covariates if name not in taken]
        self.views = check_covariates(schema, "views", views)
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
                "patients have components of their own."
            )
        product = Component(
            tuple(name for name in names if kinds[name] == "continuous"),
            tuple(name for name in names if kinds[name] == "categorical"),
            instance=self.objects is None,
        )
        super().__init__(schema, prior=product.formula(schema), patient_effects=patient_effects, **settings)
