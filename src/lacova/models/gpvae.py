"""GPVAE: the VAE of time series."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, Literal

from torch import Tensor

from lacova.data.registry import register
from lacova.data.schema import Schema
from lacova.data.table_encoder import TableEncoder
from lacova.models.base import Model
from lacova.models.requirements import require_roles
from lacova.nn.networks import Networks
from lacova.nn.structured import ChainNetworks
from lacova.priors.base import LatentPrior
from lacova.priors.temporal import SeriesPrior


@register("GPVAE")
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

    def __init__(
        self, schema: Schema, *, kernel: Literal["cauchy", "se"] = "cauchy", length_scale: float | None = None,
        learn_length_scale: bool = False, posterior: Literal["banded", "diagonal"] = "banded", **settings: Any,
    ) -> None:  # fmt: skip
        require_roles(self, schema, "instance", "time")
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
        if not hasattr(self.networks, "build_trunk"):
            raise ValueError(
                f"networks is {self.networks!r}; the encoder of a GPVAE is a chain along visits, and needs networks "
                "with `build_trunk` and `encoder`, as Dense(...) and Conv(...) have."
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
        return ChainNetworks(self.networks, time, banded=self.posterior == "banded")
