"""LVAE: the longitudinal VAE, with Gaussian-process components of each patient's own."""

from __future__ import annotations

from typing import Any, Literal

from lacova.data.registry import register
from lacova.data.schema import Schema
from lacova.models.gp_prior_vae import GPPriorVAE
from lacova.models.requirements import require_roles


@register("LVAE")
class LVAE(GPPriorVAE):
    """Longitudinal VAE: z an additive Gaussian process of the covariates, with components of each patient's own.

    The prior is `gp` of each continuous covariate, `gp(time)` for each level of each categorical one, a level of each
    patient and a course in time of each patient; the bound is D̂⁴, over whole patients. It is a `GPPriorVAE` without
    random effects on the measurements, which is what Ramchandran et al. (2021) describe; gaps in X are the addition.

    Args:
        schema: the roles of the columns, an instance and a time among them.
        prior: a formula with a component of the instance; None for the one above.

    The other arguments are those of `GPPriorVAE`; `patient_effects` is False and `lengthscales` "own" unless you say
    otherwise.

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

    def __init__(
        self, schema: Schema, *, prior: str | None = None, lengthscales: Literal["shared", "own"] = "own",
        patient_effects: bool = False, **settings: Any,
    ) -> None:  # fmt: skip
        require_roles(self, schema, "instance", "time")
        super().__init__(schema, prior=prior, lengthscales=lengthscales, patient_effects=patient_effects, **settings)
        if not any(component.instance for component in self.components):
            raise ValueError(
                f"an LVAE has components of its own for each instance, but {self.formula!r} has none; add a term such "
                f"as gp({schema.time}):cat({schema.instance}), or use GPPriorVAE."
            )
