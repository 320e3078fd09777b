"""MIWAE and NotMIWAE: VAEs trained by the importance-weighted bound."""

from __future__ import annotations

from typing import Any, get_args

import pandas as pd
import torch

from lacova.data.registry import register
from lacova.data.schema import Schema
from lacova.data.statistics import Scaling
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder
from lacova.likelihoods.missingness import Mechanism, Missingness
from lacova.models.vae import VAE


@register("MIWAE")
class MIWAE(VAE):
    """VAE trained by the importance-weighted bound, as Mattei and Frellsen describe, for gaps in Y missing at random.

    `fit(importance=K)` sets the number of draws that are weighted, 20 unless told otherwise. Imputation weighs draws by
    self-normalised importance sampling.

    The arguments are those of `VAE`.

    Examples:
        >>> import numpy as np, pandas as pd, lacova
        >>> rng = np.random.default_rng(0)
        >>> table = pd.DataFrame(rng.normal(size=(200, 1)) + rng.normal(0, 0.2, (200, 3)), columns=["a", "b", "c"])
        >>> table = table.mask(rng.random(table.shape) < 0.2)
        >>> model = lacova.MIWAE(lacova.Schema(["a", "b", "c"], {}), latent_dim=1)
        >>> model = model.fit(table, max_epochs=5, importance=10)
        >>> int(model.impute(table, interval=0.9).isna().sum().sum())
        0
    """

    importance = 20


@register("NotMIWAE")
class NotMIWAE(MIWAE):
    """MIWAE with a model of which values are missing, as Ipsen, Mattei and Frellsen describe, for gaps not at random.

    p(y | z) p(z) p(mask | y), where y includes the missing values. For Gaussian and log-normal measurements.
    Predictions are of y itself; `log_likelihood` is that of observed values and mask, and imputation takes the mask
    into account.

    What data say of values that are never seen rests on the mechanism being as assumed: compare several.

    Args:
        schema: as in `VAE`.
        mechanism: the log-odds of a gap are linear in the column's own value ("selfmasking"), rising with it
            ("selfmasking_high") or falling ("selfmasking_low"), or linear in all values of the row ("linear").

    The other arguments are those of `VAE`.

    Examples:
        >>> import numpy as np, pandas as pd, lacova
        >>> rng = np.random.default_rng(0)
        >>> table = pd.DataFrame(rng.normal(size=(200, 1)) + rng.normal(0, 0.2, (200, 3)), columns=["a", "b", "c"])
        >>> table["a"] = table["a"].mask(table["a"] > 0.5)
        >>> model = lacova.NotMIWAE(lacova.Schema(["a", "b", "c"], {}), latent_dim=1, mechanism="selfmasking_high")
        >>> model.fit(table, max_epochs=5).gaps().columns.tolist()
        ['intercept', 'slope']
    """

    def __init__(self, schema: Schema, *, mechanism: Mechanism = "selfmasking", **settings: Any) -> None:
        super().__init__(schema, **settings)
        if mechanism not in get_args(Mechanism):
            raise ValueError(f"mechanism is {mechanism!r}; expected one of {', '.join(get_args(Mechanism))}.")
        for name, kind in schema.kinds.items():
            if kind != "lognormal":
                raise ValueError(
                    f"a NotMIWAE draws missing values from normal distributions, but {name!r} is {kind}; give it the "
                    "kind gaussian or lognormal, or use MIWAE."
                )
        self.mechanism = mechanism

    def gaps(self) -> pd.DataFrame:
        """The log-odds of a gap, by measurement: `intercept`, and `slope` per unit of its own value.

        The unit is that of the logarithm where the measurement is log-normal. With the mechanism "linear", there is a
        column of slopes for each measurement that they depend on.
        """
        encoder, vae = self.fitted()
        if encoder.scales.knots or vae.missingness is None:
            raise ValueError(
                'with scaling="normal" the log-odds of a gap are not linear in a measurement\'s own units.'
            )
        slope = vae.missingness.coefficients.detach().cpu().double().numpy() / encoder.y_scale
        bias = vae.missingness.bias.detach().cpu().double().numpy()
        names = list(self.schema.measurements)
        if self.mechanism == "linear":
            columns = {"intercept": bias - slope @ encoder.y_shift}
            columns |= {f"slope_{name}": slope[:, d] for d, name in enumerate(names)}
        else:
            columns = {"intercept": bias - slope * encoder.y_shift, "slope": slope}
        return pd.DataFrame(columns, index=pd.Index(names, name="measurement"))

    @property
    def column_scaling(self) -> Scaling:
        """By default linear: the log-odds of a gap are linear in a measurement's own units."""
        return "standard" if self.scaling == "auto" else self.scaling

    def _described(self) -> dict[str, str]:
        return {**super()._described(), "gaps in measurements": self.mechanism}

    def _missingness(self, encoder: TableEncoder, table: Table | None) -> Missingness:
        share = torch.full((len(encoder.measurements),), 0.5)
        return Missingness(self.mechanism, share if table is None else 1.0 - table.y_mask.to(share.dtype).mean(0))
