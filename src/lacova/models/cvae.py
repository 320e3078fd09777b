"""CVAE: a conditional VAE, whose decoder sees the covariates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

from torch import Tensor

from lacova.data.registry import configured, factory, lookup, register
from lacova.data.schema import Schema
from lacova.data.table_encoder import TableEncoder
from lacova.models.base import Model
from lacova.models.requirements import require_covariates
from lacova.nn.networks import has_linear_path
from lacova.priors import normal as normal  # registers "normal" and "conditional"
from lacova.priors.base import LatentPrior


@register("CVAE")
class CVAE(Model):
    """Conditional VAE that learns through gaps in Y and X: p(y | z, x) p(z | x) p(x).

    Args:
        latent_prior: "normal" for p(z) = N(0, I), "conditional" for a network p(z | x), or a registered `LatentPrior`
            of your own, as a class, or as `functools.partial` of it with its configuration.

    The other arguments are those of `Model`.

    Examples:
        >>> import numpy as np, pandas as pd, lacova
        >>> rng = np.random.default_rng(0)
        >>> age = rng.normal(50, 10, 200)
        >>> table = pd.DataFrame({"age": age, "chol": 0.05 * age + rng.normal(0, 0.2, 200)})
        >>> table = table.mask(rng.random(table.shape) < 0.2)
        >>> schema = lacova.Schema(["chol"], {"age": "continuous"})
        >>> model = lacova.CVAE(schema, latent_dim=1).fit(table, max_epochs=5)
        >>> int(model.impute(table).isna().sum().sum())
        0
    """

    decoder_sees_x = True

    @property
    def latent_weight(self) -> float:
        """A decoder with a linear path starts from a regression on x; another one must learn from x before z does."""
        return 1.0 if has_linear_path(self.networks) else 100.0

    def __init__(
        self, schema: Schema, *,
        latent_prior: Literal["normal", "conditional"] | type[LatentPrior] | partial[LatentPrior] = "normal",
        **settings: Any,
    ) -> None:  # fmt: skip
        require_covariates(self, schema)
        super().__init__(schema, **settings)
        known = configured("latent prior", latent_prior)
        if known is None:
            raise ValueError(
                f"latent_prior is {latent_prior!r}; expected 'normal' or 'conditional', or a lacova.priors.LatentPrior "
                "with @lacova.register(...) above it, its configuration by keyword."
            )
        built_in = latent_prior in ("normal", "conditional")
        self.latent_prior: Any = latent_prior if built_in else factory("latent prior", *known)

    def _described(self) -> dict[str, str]:
        name, configuration = configured("latent prior", self.latent_prior) or ("", {})
        shown = {"normal": "N(0, I)", "conditional": "a network of x"}.get(name, name)
        return {"prior of z": f"{shown} with {configuration}" if configuration else shown}

    def _latent_prior(self, encoder: TableEncoder, inputs: Callable[[int], Tensor]) -> LatentPrior:
        name, configuration = configured("latent prior", self.latent_prior) or ("normal", {})
        kind = cast(type[LatentPrior], lookup("latent prior", name))
        return kind.build(encoder.space, self.latent_dim, **configuration)
