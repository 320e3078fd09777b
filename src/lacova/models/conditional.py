"""The public models: what each adds to the parts that all share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from lacova.data.encoder import TableEncoder
from lacova.data.io.dataframes import Frame, to_pandas
from lacova.data.schema import Schema
from lacova.inference.effects import Effects, measure
from lacova.models.base import Model
from lacova.models.inference import MEAN_DRAWS, sure_level, whole, whole_number
from lacova.priors.base import ConditionalNormal, GPPrior, LatentPrior, StandardNormal
from lacova.priors.gp.factors import check_passed
from lacova.priors.gp.formula import components
from lacova.priors.gp.inducing import InducingPoints
from lacova.priors.gp.kernels import AdditiveKernel

# A drift takes a matrix per patient and measurement in every step, and pixels are explained by the decoder.
MOST_DRIFTING = 200


class CVAE(Model):
    """Conditional VAE that learns through gaps in Y and X: p(y | z, x) p(z | x) p(x).

    Args:
        latent_prior: "normal" for p(z) = N(0, I), "conditional" for a network p(z | x).

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
    latent_weight = 100.0
    stored = True

    def __init__(
        self, schema: Schema, *, latent_prior: Literal["normal", "conditional"] = "normal", **settings: Any
    ) -> None:
        _need_covariates(self, schema)
        super().__init__(schema, **settings)
        if latent_prior not in ("normal", "conditional"):
            raise ValueError(f"latent_prior is {latent_prior!r}; expected 'normal' or 'conditional'.")
        self.latent_prior = latent_prior

    def _described(self) -> dict[str, str]:
        return {"prior of z": {"normal": "N(0, I)", "conditional": "a network of x"}[self.latent_prior]}

    def _latent_prior(self, encoder: TableEncoder, inputs: Callable[[int], Tensor]) -> LatentPrior:
        if self.latent_prior == "normal":
            return StandardNormal(self.latent_dim)
        return ConditionalNormal(encoder.space, self.latent_dim)


class GPPriorVAE(Model):
    """GP-prior VAE that learns through gaps in Y and X: p(y | z) with z_l an additive Gaussian process of x.

    Args:
        prior: a formula such as `"gp(day) + gp(day):cat(sex) + gp(day):cat(id)"`, one of the paper's variants
            ("regression", "temporal", "longitudinal"), or None for the variant that suits the schema. The kernels are
            `gp`, `cat`, `lin`, `periodic` and `matern`; see docs/formulas.md.
        kernels: further kernels for the formula by name, such as `{"rough": gpytorch.kernels.RQKernel()}` for
            `"rough(day, age)"`. Each latent dimension trains its own copy, on standardised columns.
        inducing: M, number of inducing inputs.
        expectation: "sample" or "exact": how the bound is integrated over missing covariates. Exact sums are for
            formulas of `gp` and `cat`, and grow with the square of the number of components.
        patient_effects: give each instance a level of its own of each Gaussian or log-normal measurement, which is
            integrated out exactly. True: it drifts with the time of the schema, if there is one and there are at most
            200 measurements. "intercept": it is constant. False, or without an instance column: there is none.
        fixed_effects: let levels depend on the visit-constant covariates of the formula, and on patients' averages of
            the others, the time aside, by a linear regression that is shrunk. False: what these explain has to come
            through z, as everything of the model in the paper does.

    The other arguments are those of `Model`.
    """

    decoder_sees_x = False
    latent_weight = 1.0
    stored = True

    def __init__(
        self, schema: Schema, *, prior: str | None = None, kernels: Mapping[str, nn.Module] | None = None,
        inducing: int = 60, expectation: Literal["sample", "exact"] = "sample",
        patient_effects: bool | Literal["intercept"] = True, fixed_effects: bool = True, **settings: Any,
    ) -> None:  # fmt: skip
        _need_covariates(self, schema)
        super().__init__(schema, **settings)
        if expectation not in ("sample", "exact"):
            raise ValueError(f"expectation is {expectation!r}; expected 'sample' or 'exact'.")
        if patient_effects not in (True, False, "intercept"):
            raise ValueError(f"patient_effects is {patient_effects!r}; expected True, False or 'intercept'.")
        if not isinstance(fixed_effects, bool):
            raise ValueError(f"fixed_effects is {fixed_effects!r}; expected True or False.")
        self.expectation = expectation
        self.patient_effects = patient_effects
        self.fixed_effects = fixed_effects
        self.kernels = dict(kernels or {})
        self.components = components(prior, schema, self.kernels)
        check_passed(self.components, self.kernels, schema)
        sampled = next((component for component in self.components if component.factors), None)
        if expectation == "exact" and sampled is not None:
            raise ValueError(
                'expectation="exact" is for terms of gp and cat, but the prior has the term '
                f'{sampled.formula(schema)!r}; use expectation="sample".'
            )
        self.inducing = whole_number(inducing, "inducing")

    @property
    def _has_random_effects(self) -> bool:
        return bool(self.patient_effects) and self.schema.instance is not None

    @property
    def _effects_drift(self) -> bool:
        return self.patient_effects is True and len(self.schema.measurements) <= MOST_DRIFTING

    def _fixed_effects_on(self, encoder: TableEncoder) -> list[str]:
        """All of the formula but the time: when a patient is seen, and how long, is not what it is like."""
        names = (name for name in encoder.space.names if self.fixed_effects and name != self.schema.time)
        return [name for name in names if any(one.in_fixed_effects(name) for one in self.components)]

    @property
    def formula(self) -> str:
        """The prior as a formula."""
        return " + ".join(component.formula(self.schema) for component in self.components)

    def effects(self, data: Frame, *, draws: int = MEAN_DRAWS, interval: float = 0.9, seed: int = 0) -> Effects[Frame]:
        """What each component of the prior does to each measurement, row by row, and its share of the variance.

        The effect of a component is what the mean of a measurement loses when the component's part of z is taken away.
        Components that belong to a patient, and the patient's level, are those of the patients in `data`, given all
        their measurements there. See docs/effects.md.

        Args:
            data: rows with covariates and measurements, gaps allowed in both; or covariates alone, such as a grid.
            draws: of x_u, of the components and of the patients' levels.
            interval: the central interval, such as 0.9.
            seed: of the draws.

        Returns:
            tables of the same library as `data`: `rows`, one line per row, component and measurement; `shares`, one
            line per component and a column per measurement; and `known`, what of these shares the posterior mean of the
            effects explains: the rest is what is not known of them.
        """
        encoder, vae = self._fitted()
        level = sure_level(interval)
        frame, origin = to_pandas(whole(data, "effects"), self.schema.columns)
        table = self._encode(frame, measurements=any(name in frame for name in self.schema.measurements))
        names = tuple(component.formula(self.schema) for component in self.components)
        found = measure(vae, encoder, frame, table, names, whole_number(draws), level, self._noise(seed), self._trained)
        return Effects(*map(origin.table, found))

    def _described(self) -> dict[str, str]:
        return {"prior of z": self.formula, "inducing inputs": str(self.inducing), "expectations": self.expectation}

    def _latent_prior(self, encoder: TableEncoder, inputs: Callable[[int], Tensor]) -> LatentPrior:
        scale = dict(zip(encoder.space.names, encoder.x_scale.tolist(), strict=True))
        kernel = AdditiveKernel(self.components, encoder.space, self.latent_dim, scale=scale, passed=self.kernels)
        points = InducingPoints(inputs(self.inducing if kernel.shared else 0), encoder.space, self.latent_dim)
        return GPPrior(kernel, points, encoder.space, exact=self.expectation == "exact")


def _need_covariates(model: Model, schema: Schema) -> None:
    if not schema.covariates:
        raise ValueError(
            f"{type(model).__name__} conditions on covariates: name at least one in the schema, or use VAE or MIWAE."
        )
