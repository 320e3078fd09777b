"""VAE: the variational autoencoder of the measurements alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lacova.data.registry import register
from lacova.data.schema import Schema
from lacova.data.table_encoder import TableEncoder
from lacova.models.base import Model
from lacova.models.requirements import measurements_of
from lacova.priors.base import LatentPrior
from lacova.priors.normal import StandardNormal


@register("VAE")
class VAE(Model):
    """Variational autoencoder of the measurements alone, with gaps: p(y | z) p(z), z ~ N(0, I), rows independent.

    Covariates, instance and time of the schema are not looked at, and stay as they are in imputed tables.

    Args:
        schema: the roles of the columns, of which only measurements count; `Schema(["alt", "ast"], {})` is enough.

    The other arguments are those of `Model`, except for those about covariates.

    Examples:
        >>> import numpy as np, pandas as pd, lacova
        >>> rng = np.random.default_rng(0)
        >>> table = pd.DataFrame(rng.normal(size=(200, 1)) + rng.normal(0, 0.2, (200, 3)), columns=["a", "b", "c"])
        >>> table = table.mask(rng.random(table.shape) < 0.2)
        >>> model = lacova.VAE(lacova.Schema(["a", "b", "c"], {}), latent_dim=1).fit(table, max_epochs=5)
        >>> int(model.impute(table).isna().sum().sum())
        0
    """

    def __init__(self, schema: Schema, **settings: Any) -> None:
        name = type(self).__name__
        fixed = {"covariates": "oracle", "covariate_prior": {}}  # there are no gaps in no covariates
        for setting, value in fixed.items():
            if settings.setdefault(setting, value) not in (value, None):
                raise ValueError(
                    f"{setting} is for models of covariates, which a {name} does not look at: leave it out."
                )
        super().__init__(measurements_of(schema), **settings)

    def _described(self) -> dict[str, str]:
        return {"prior of z": "N(0, I)"}

    def _latent_prior(self, encoder: TableEncoder, inputs: Callable[[int], Tensor]) -> LatentPrior:
        return StandardNormal(self.latent_dim)
