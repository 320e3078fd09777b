"""GPPriorVAE: z an additive Gaussian process of the covariates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from lacova.data.io.dataframes import Frame, to_pandas
from lacova.data.registry import register, registered
from lacova.data.schema import Schema
from lacova.data.table_encoder import TableEncoder
from lacova.inference.effects import Effects, effect_draws, measure, merge_effects
from lacova.inference.ensemble import MemberDoubt, spread
from lacova.models.base import DEFAULT_LATENT_DIM, Model
from lacova.models.checks import check_interval, check_memory, in_memory, whole_number
from lacova.models.inference import MEAN_DRAWS
from lacova.models.requirements import require_covariates
from lacova.nn.threads import with_suitable_threads
from lacova.priors.base import LatentPrior
from lacova.priors.gp.factors import check_passed
from lacova.priors.gp.formula import components
from lacova.priors.gp.inducing import InducingPoints
from lacova.priors.gp.kernels import AdditiveKernel
from lacova.priors.gp.prior import GPPrior

# A drift takes a matrix per patient and measurement in every step, and pixels are explained by the decoder.
MAX_DRIFTING = 200
MAX_FACTORS = 8
MAX_SLOPED = 4  # measurements up to which random and fixed effects have slopes by default


@register("GPPriorVAE")
class GPPriorVAE(Model):
    """GP-prior VAE that learns through gaps in Y and X: p(y | z) with z_l an additive Gaussian process of x.

    Args:
        prior: a formula such as `"gp(day) + gp(day):cat(sex) + gp(day):cat(id)"`, one of the paper's variants
            ("regression", "temporal", "longitudinal"), or None for the variant that suits the schema. The kernels are
            `gp`, `cat`, `lin`, `periodic` and `matern`; see docs/formulas.md.
        kernels: further kernels for the formula by name, such as `{"rough": gpytorch.kernels.RQKernel()}` for
            `"rough(day, age)"`. Each latent dimension trains its own copy, on standardised columns. A kernel that is
            registered can be named in the formula without being passed, and saved.
        lengthscales: "shared" by terms with the same numbers, such as gp(day) and gp(day):cat(sex), where they are not
            terms of the instance; or each term's "own". Each latent dimension has its length-scales either way.
        inducing: M, number of inducing inputs.
        expectation: "sample" or "exact": how the bound is integrated over missing covariates. Exact sums are for
            formulas of `gp` and `cat`, grow with the square of the number of components, and leave out
            `joint_posterior`.
        patient_effects: give each instance a random effect on each Gaussian or log-normal measurement, which is
            integrated out exactly. True: a random intercept that drifts with the time of the schema, if there is one
            and there are at most 200 measurements. "intercept": a constant one. False, or without an instance column:
            none.
        patient_factors: how many factors of a patient all measurements share: normal variables that enter their random
            intercepts and slopes. None for as many as there are intercepts and slopes, at most 8; 0 for none, with
            random effects that are independent between measurements. It needs patient effects.
        fixed_effects: let the mean of the random effects depend on the visit-constant covariates of the formula, and on
            patients' averages of the others, the time aside, by a shrunk linear regression. False: their effect has to
            pass through z, as everything does in the paper's model.
        patient_slopes: let factors and fixed effects of visit-constant covariates change linearly with time, as the
            effect of a treatment does. None for at most 4 measurements: what a slope says about visits after a patient
            has left makes predictions of the others worse. True needs a time and `patient_effects=True`. See
            docs/effects.md.

    The other arguments are those of `Model`.
    """

    decoder_sees_x = False

    def __init__(
        self, schema: Schema, *, prior: str | None = None, kernels: Mapping[str, nn.Module] | None = None,
        lengthscales: Literal["shared", "own"] = "shared", inducing: int = 60,
        expectation: Literal["sample", "exact"] = "sample", patient_effects: bool | Literal["intercept"] = True,
        patient_factors: int | None = None, fixed_effects: bool = True, patient_slopes: bool | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        require_covariates(self, schema)
        super().__init__(schema, **settings)
        if expectation not in ("sample", "exact"):
            raise ValueError(f"expectation is {expectation!r}; expected 'sample' or 'exact'.")
        if expectation == "exact" and self.joint_posterior:
            raise ValueError(
                'expectation="exact" integrates over missing covariates that q(z) does not see: use '
                'joint_posterior=False with it, or expectation="sample".'
            )
        if lengthscales not in ("shared", "own"):
            raise ValueError(f"lengthscales is {lengthscales!r}; expected 'shared' or 'own'.")
        if patient_effects not in (True, False, "intercept"):
            raise ValueError(f"patient_effects is {patient_effects!r}; expected True, False or 'intercept'.")
        if not isinstance(fixed_effects, bool):
            raise ValueError(f"fixed_effects is {fixed_effects!r}; expected True or False.")
        if not (patient_slopes is None or isinstance(patient_slopes, bool)):
            raise ValueError(f"patient_slopes is {patient_slopes!r}; expected True, False or None.")
        if patient_factors is not None:
            patient_factors = whole_number(patient_factors, "patient_factors", least=0)
        self.lengthscales = lengthscales
        self.expectation = expectation
        self.patient_effects = patient_effects
        self.patient_factors = patient_factors
        self.fixed_effects = fixed_effects
        self.patient_slopes = patient_slopes
        passed, known = dict(kernels or {}), registered("kernel")
        self.components = components(prior, schema, passed, known)
        used = {factor.kernel for component in self.components for factor in component.factors}
        self.kernels = {name: known[name]() for name in known if name in used and name not in passed} | passed
        check_passed(self.components, self.kernels, schema)
        sampled = next((component for component in self.components if component.factors), None)
        if expectation == "exact" and sampled is not None:
            raise ValueError(
                'expectation="exact" is for terms of gp and cat, but the prior has the term '
                f'{sampled.formula(schema)!r}; use expectation="sample".'
            )
        self.inducing = whole_number(inducing, "inducing")
        self._check_patient_settings()
        if self.noise == "row":
            self._check_row_noise()

    def _check_patient_settings(self) -> None:
        """Refuse settings of random effects that there are none of, or that do not drift with time."""
        if self.patient_factors and not self._has_random_effects:
            why = "the schema has no instance" if self.schema.instance is None else "patient_effects is False"
            raise ValueError(
                f"patient_factors is {self.patient_factors}, factors of patients' random effects, but {why}; leave it "
                "out, or ask for patient effects of an instance."
            )
        if not self.patient_slopes or (self._has_random_effects and self._effects_drift and self.schema.time):
            return
        if self.schema.instance is None or self.schema.time is None:
            why = f"the schema has no {'instance' if self.schema.instance is None else 'time'}"
        elif self.patient_effects is not True:
            why = f"patient_effects is {self.patient_effects!r}"
        else:
            why = f"there are {len(self.schema.measurements)} measurements, more than {MAX_DRIFTING}"
        raise ValueError(
            f"patient_slopes is True, but {why}; slopes are for patients' random effects with patient_effects=True, an "
            f"instance, a time, and at most {MAX_DRIFTING} measurements. Leave it out, or change that."
        )

    def _check_row_noise(self) -> None:
        """Refuse noise that depends on the row where a bound is in closed form that takes it for constant."""
        if self.expectation == "exact":
            raise ValueError(
                "noise='row' depends on missing covariates, which expectation='exact' integrates out; use "
                "expectation='sample', or noise='column'."
            )
        if self._has_random_effects:
            raise ValueError(
                "noise='row' and patient effects cannot be combined; use patient_effects=False, or noise='column'."
            )

    @staticmethod
    def _default_latent_dim(schema: Schema) -> int:
        """One more than measurements, if these are few: z is all that the decoder sees, and others stay idle."""
        return min(DEFAULT_LATENT_DIM, len(schema.measurements) + 1)

    @property
    def _joint(self) -> bool:
        return self.expectation == "sample" and super()._joint

    @property
    def _has_random_effects(self) -> bool:
        return bool(self.patient_effects) and self.schema.instance is not None

    @property
    def _effects_drift(self) -> bool:
        return self.patient_effects is True and len(self.schema.measurements) <= MAX_DRIFTING

    @property
    def _patient_slopes(self) -> bool:
        if self.patient_slopes is None:
            return self._effects_drift and len(self.schema.measurements) <= MAX_SLOPED
        return self.patient_slopes and self._effects_drift

    def _factors_of(self, measurements: int) -> int:
        if self.patient_factors is not None:
            return self.patient_factors
        effects = measurements * (2 if self._patient_slopes and self.schema.time is not None else 1)
        return min(effects, MAX_FACTORS) if effects > 1 else 0

    def _fixed_effects_on(self, encoder: TableEncoder) -> list[str]:
        """Return all of the formula but the time: when and how long a patient is seen does not describe the patient."""
        names = (name for name in encoder.space.names if self.fixed_effects and name != self.schema.time)
        return [name for name in names if any(one.in_fixed_effects(name) for one in self.components)]

    @property
    def formula(self) -> str:
        """The prior as a formula."""
        return " + ".join(component.formula(self.schema) for component in self.components)

    @with_suitable_threads
    def effects(self, data: Frame, *, draws: int = MEAN_DRAWS, interval: float = 0.9, seed: int = 0) -> Effects[Frame]:
        """Return the effect of each component of the prior on each measurement, row by row, and its share of variance.

        The effect of a component is the change in the mean of a measurement when the component's part of z is removed.
        Components that belong to a patient, and the patient's random effect, are those of the patients in `data`, given
        all their measurements there. See docs/effects.md.

        Args:
            data: rows with covariates and measurements, gaps allowed in both; or covariates alone, such as a grid.
            draws: of x_u, of the components and of the patients' random effects.
            interval: the central interval, such as 0.9.
            seed: of the draws.

        Returns:
            tables of the same library as `data`: `rows`, one line per row, component and measurement; `shares`, one
            line per component and a column per measurement; and `known`, the part of these shares that the posterior
            mean of the effects explains. The rest is uncertainty about the effects.
        """
        encoder, vae = self.fitted()
        interval, draws = check_interval(interval), whole_number(draws)
        frame, origin = to_pandas(in_memory(data, "effects"), self.schema.columns)
        table = self.encode(frame, measurements=any(name in frame for name in self.schema.measurements))
        check_memory(draws, table)
        names = tuple(component.formula(self.schema) for component in self.components)
        doubt = MemberDoubt(len(self.draw_from), draws, self._generator(seed, len(self.draw_from)))
        parts = spread(
            self.draw_from, draws,
            lambda k, each: effect_draws(
                self.draw_from[k], encoder, self._condition_by(k, table), each, self._generator(seed, k),
                self.training_instances,
            ),
            lambda own: merge_effects(own, draws),
        )  # fmt: skip
        tables = measure(vae, encoder, frame, table, names, interval, parts, doubt)
        return Effects(*map(origin.table, tables))

    def _described(self) -> dict[str, str]:
        return {"prior of z": self.formula, "inducing inputs": str(self.inducing), "expectations": self.expectation}

    def _latent_prior(self, encoder: TableEncoder, inputs: Callable[[int], Tensor]) -> LatentPrior:
        scale = dict(zip(encoder.space.names, encoder.x_scale.tolist(), strict=True))
        kernel = AdditiveKernel(
            self.components, encoder.space, self.latent_dim, scale=scale, passed=self.kernels,
            tied=self.lengthscales == "shared",
        )  # fmt: skip
        points = InducingPoints(inputs(self.inducing if kernel.shared else 0), encoder.space, self.latent_dim)
        return GPPrior(kernel, points, encoder.space, exact=self.expectation == "exact")
