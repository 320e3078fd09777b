"""HIVAE: the VAE of mixed measurements, with a mixture prior and a head per column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lacova.data.registry import register
from lacova.data.schema import Schema
from lacova.data.table_encoder import TableEncoder
from lacova.models.checks import whole_number
from lacova.models.vae import VAE
from lacova.nn.networks import Conv, Networks
from lacova.nn.structured import ColumnNetworks
from lacova.priors.base import LatentPrior
from lacova.priors.mixture import MixtureNormal


@register("HIVAE")
class HIVAE(VAE):
    """VAE of mixed measurements: columns of several families, z from a mixture, a decoder with a head per column.

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

    def __init__(self, schema: Schema, *, components: int = 10, column_width: int = 5, **settings: Any) -> None:
        super().__init__(schema, **settings)
        self.components = whole_number(components, "components")
        self.column_width = whole_number(column_width, "column_width")
        if isinstance(self.networks, Conv):
            raise ValueError(f"networks is {self.networks!r}; an HIVAE has a head per column: give Dense(...).")

    def _described(self) -> dict[str, str]:
        return {"prior of z": f"a mixture of {self.components} normals", "decoder": "a head per column"}

    def _latent_prior(self, encoder: TableEncoder, inputs: Callable[[int], Tensor]) -> LatentPrior:
        return MixtureNormal(self.latent_dim, self.components)

    def _networks(self, encoder: TableEncoder) -> Networks:
        return ColumnNetworks(self.networks, encoder.measurements.outputs, self.column_width)
