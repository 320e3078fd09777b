"""The public models: they assemble the parts and delegate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, Self, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lacova.batches import Batches
from lacova.covariates.belief import best_guess
from lacova.covariates.fill import FILLS, Fill
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.prior import CovariatePrior, FactorisedPrior, JointPrior
from lacova.fit import FitOptions, fit
from lacova.frames import completed, completed_draws, predicted, predicted_draws, summarise
from lacova.gp.formula import components
from lacova.gp.inducing import InducingPoints, spread_rows
from lacova.gp.kernels import AdditiveKernel
from lacova.impute import imputation_draws
from lacova.likelihoods import NOISE_FLOOR, GaussianLikelihood
from lacova.networks import Conv, Dense, resolve
from lacova.objective import elbo, log_likelihood
from lacova.predict import Draws, chunks, predictive_draws
from lacova.priors import ConditionalNormal, GPPrior, LatentPrior, StandardNormal
from lacova.schema import DataError, Schema
from lacova.score import score
from lacova.table import Codec, Scaling, Table, check_scaling
from lacova.vae import ConditionalVAE

Covariates = Literal["joint", "factorised", "paper", "mean", "knn", "iterative", "zero", "oracle"]
MEAN_DRAWS = 100
INTERVAL_DRAWS = 400


class NotFittedError(RuntimeError):
    """The model has not been fitted yet."""


class Model(ABC):
    """What all models share. See `CVAE` and `GPPriorVAE`.

    Args:
        schema: the roles of the columns.
        latent_dim: L, dimensions of z.
        networks: `Dense(...)`, `Conv(...)`, or a preset's name.
        scaling: of the measurements: "standard", "minmax" or "none". Continuous covariates are standardised.
        covariates: how to treat gaps in X. "joint" (default): a joint model of the covariates, with memory along a
            patient's visits, as prior, and q(x_u | y_o, x_o) as posterior. "factorised": independent columns as prior,
            the same posterior. "paper": independent columns, and q(x_u | x_o). Or fill X once before training: "mean",
            "knn", "iterative", "zero"; "oracle" demands complete X.
        covariate_prior: domain knowledge that replaces the observed moments or frequencies of some covariates:
            `{"height": (170, 10), "sex": {"f": 0.5, "m": 0.5}}`; for "factorised" and "paper".
        noise_floor: least noise variance of a (scaled) measurement.
    """

    def __init__(
        self, schema: Schema, *, latent_dim: int = 8, networks: str | Dense | Conv = "clinical",
        scaling: Scaling = "standard", covariates: Covariates = "joint",
        covariate_prior: Mapping[str, object] | None = None, noise_floor: float = NOISE_FLOOR,
    ) -> None:  # fmt: skip
        if not schema.covariates:
            raise ValueError(f"{type(self).__name__} conditions on covariates: name at least one in the schema.")
        latent_dim = _count(latent_dim, "latent_dim")
        if covariates not in get_args(Covariates):
            raise ValueError(f"covariates is {covariates!r}; expected one of {', '.join(get_args(Covariates))}.")
        if covariate_prior and covariates not in ("factorised", "paper"):
            raise ValueError(
                f"covariate_prior states independent columns, but covariates is {covariates!r}; "
                'use covariates="factorised".'
            )
        check_scaling(scaling)
        if not noise_floor > 0:
            raise ValueError(f"noise_floor must be positive, got {noise_floor!r}.")
        self.schema = schema
        self.latent_dim = latent_dim
        self.networks = resolve(networks)
        self.scaling: Scaling = scaling
        self.covariates: Covariates = covariates
        self.covariate_prior = dict(covariate_prior or {})
        self.noise_floor = noise_floor
        self._codec: Codec | None = None
        self._fill: Fill | None = None
        self._vae: ConditionalVAE | None = None
        self._trained: frozenset[Any] = frozenset()
        self._options = FitOptions()
        self.training: pd.DataFrame | None = None

    # The part in which models differ.

    decoder_sees_x: bool
    latent_weight: float

    @abstractmethod
    def _latent_prior(self, codec: Codec, table: Table, covariates: FactorisedPrior, seed: int) -> LatentPrior: ...

    def fit(
        self, train: pd.DataFrame, validation: pd.DataFrame | None = None, *, max_epochs: int = 200,
        seed: int = 0, device: str = "auto", **options: Any,
    ) -> Self:  # fmt: skip
        """Learn from a table with gaps in Y and X.

        Args:
            train: the training rows.
            validation: rows to stop early on; the best weights are restored. Without them, all epochs are run.
            max_epochs: most passes over the rows.
            seed: the same seed gives the same model on the same CPU, bit for bit.
            device: "auto", "cpu", "cuda", or any torch device.
            **options: the other fields of `lacova.FitOptions` (batch_size, learning_rate, patience, ...).
        """
        usual = {"latent_weight": self.latent_weight, "recall": float(self.covariates in ("joint", "factorised"))}
        settings = FitOptions(**{**usual, **options}, max_epochs=max_epochs, seed=seed)
        if self.covariate_prior and settings.prior_every is not None:
            raise ValueError("covariate_prior states what prior_every would unlearn; leave one of them out.")
        target = _device(device)
        codec = Codec.learn(self.schema, train, self.scaling)
        table = codec.encode(train)
        fill = Fill(self.covariates, codec, table) if self.covariates in FILLS else None
        held_out = None if validation is None else codec.encode(validation)
        if fill is not None:
            table, held_out = fill(table), None if held_out is None else fill(held_out)
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            vae = self._assemble(codec, table, seed)
        vae.to(target)
        records = fit(vae, table, held_out, settings)
        self._codec, self._fill, self._vae, self._options = codec, fill, vae, settings
        self._trained = frozenset(table.labels)
        self.training = pd.DataFrame(records)
        return self

    def _assemble(self, codec: Codec, table: Table, seed: int) -> ConditionalVAE:
        measurements = len(self.schema.measurements)
        marginal = FactorisedPrior.learn(codec.space, table)
        marginal.override(codec, self.covariate_prior)
        prior = self._covariate_prior(codec, table, marginal, seed)
        seen = 0 if self.covariates == "paper" else measurements
        return ConditionalVAE(
            codec.space, measurements, self.latent_dim, self.networks, decoder_sees_x=self.decoder_sees_x,
            prior=self._latent_prior(codec, table, marginal, seed), covariate_prior=prior,
            covariate_posterior=AmortisedPosterior(
                codec.space, seen, marginal, "given" if isinstance(prior, LongitudinalPrior) else "marginal"
            ),
            likelihood=GaussianLikelihood.learn(table, self.noise_floor),
        )  # fmt: skip

    def _covariate_prior(self, codec: Codec, table: Table, marginal: FactorisedPrior, seed: int) -> CovariatePrior:
        if self.covariates != "joint":
            return marginal
        if self.schema.instance is None:
            return JointPrior.learn(codec.space, table, seed)
        time = None if self.schema.time is None else codec.space.names.index(self.schema.time)
        return LongitudinalPrior.learn(codec.space, table, time, seed)

    def _encode(self, frame: pd.DataFrame, measurements: bool = True) -> Table:
        """A table as the fitted model takes it: scaled, its gaps in X filled or prepared, on the model's device."""
        codec, vae = self._fitted()
        table = codec.encode(frame, measurements=measurements)
        table = table if self._fill is None else self._fill(table)
        return vae.prepare(table).to(next(vae.parameters()).device)

    def impute(
        self, data: pd.DataFrame, draws: int | None = None, *, interval: float | None = None, seed: int = 0,
        alone: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """Fill the gaps of a table; observed entries come back as they were.

        Args:
            data: rows with gaps in Y and X.
            draws: None for one table (mean of a number, most probable level of a category); n for n completed
                tables one below the other, numbered in a column `draw`.
            interval: with `draws=None`, adds `<column>_lower` and `<column>_upper`, the central interval of each
                numeric column (observed entries: the value itself).
            seed: of the draws.
            alone: give every row, or patient, the same noise, so that its means do not depend on the rows beside it.
                Slower, and wrong for `draws`, which must be independent between rows.
        """
        codec, vae = self._fitted()
        if draws is not None and interval is not None:
            raise ValueError("give draws or interval, not both: an interval is a summary of draws.")
        if draws is not None and alone:
            raise ValueError("alone gives all rows the same noise, but completed tables need rows drawn independently.")
        count = MEAN_DRAWS if interval is None else INTERVAL_DRAWS
        count, interval = _count(count if draws is None else draws), _level(interval)
        table = self._encode(data)
        parts = imputation_draws(vae, table, count, self._noise(seed), self._trained, alone)
        if draws is not None:
            return completed_draws(data, codec, parts, table, count)
        guess = torch.empty(table.x.shape)
        for rows, batch in chunks(table, 1, self._noise(seed) if alone else None):
            guess[rows] = best_guess(vae.believe(batch), batch, vae.space).detach().cpu()
        return completed(data, codec, summarise(parts, len(table), codec, interval), guess)

    def predict(
        self, x: pd.DataFrame, history: pd.DataFrame | None = None, *, draws: int = MEAN_DRAWS,
        interval: float | None = None, seed: int = 0, alone: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """Predict Y for covariates with gaps; any measurements in `x` are not looked at.

        Args:
            x: rows of covariates (and the instance column, if there is one).
            history: earlier visits of some of the patients in `x`, measurements included; for patients of the training
                rows, those rows.
            draws: how many draws of x_u and z to average over.
            interval: adds `<column>_lower` and `<column>_upper`, a central interval such as 0.9.
            seed: of the draws.
            alone: give every row, or patient, the same noise, so that its answer does not depend on the rows beside it.

        Returns:
            the predictive mean of every measurement, with the index of `x`.
        """
        codec, _ = self._fitted()
        interval = _level(interval)
        parts = self._predict_draws(x, history, _count(draws), seed, alone)
        return predicted(x.index, codec, summarise(parts, len(x), codec, interval))

    def sample(
        self, x: pd.DataFrame, history: pd.DataFrame | None = None, *, draws: int = 20, seed: int = 0,
        alone: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """Draw Y (noise included) for covariates with gaps: `draws` tables one below the other, numbered in `draw`.

        With `alone`, every row (or patient) gets the same noise: its draws do not depend on the rows beside it, but
        draws of different rows are no longer independent.
        """
        codec, _ = self._fitted()
        draws = _count(draws)
        return predicted_draws(x.index, codec, self._predict_draws(x, history, draws, seed, alone), draws)

    def _predict_draws(
        self, x: pd.DataFrame, history: pd.DataFrame | None, draws: int, seed: int, alone: bool = False
    ) -> Iterable[Draws]:
        codec, vae = self._fitted()
        table, new = self._encode(x, measurements=False), len(x)
        if history is not None:
            if self.schema.instance is None:
                raise DataError(
                    "history belongs to instances, but the schema has no instance column: give Schema(instance=...)."
                )
            codec.require(history)
            past = history[history[self.schema.instance].isin(set(x[self.schema.instance]))]
            if len(past):
                both = pd.concat(
                    [x.drop(columns=list(self.schema.measurements), errors="ignore"), past[list(self.schema.columns)]]
                )
                table = self._encode(both)
        marked = torch.arange(len(table)) < new
        return predictive_draws(vae, table, marked, draws, self._noise(seed), self._trained, alone)

    def log_likelihood(self, data: pd.DataFrame, *, draws: int = MEAN_DRAWS, seed: int = 0) -> pd.Series[float]:
        """Per row, log p(y_o | x_o) in the measurements' own units, by importance sampling with `draws` draws."""
        codec, vae = self._fitted()
        table = self._encode(data)
        noise, out = self._noise(seed), torch.empty(len(table), dtype=torch.float64)
        for rows, batch in chunks(table, _count(draws)):
            value = log_likelihood(vae, batch, draws, noise).double() + codec.log_jacobian(batch.y_mask)
            out[rows] = value.cpu()
        return pd.Series(out.numpy(), index=data.index, name="log_likelihood")

    def score(self, data: pd.DataFrame, *, draws: int = MEAN_DRAWS, seed: int = 0) -> dict[str, float]:
        """Predict the measurements from the covariates alone and compare: see `lacova.score.score` for the scores."""
        codec, vae = self._fitted()
        return score(vae, codec, self._encode(data), _count(draws), self._noise(seed))

    @torch.no_grad()
    def elbo(self, data: pd.DataFrame, *, samples: int = 1, seed: int = 0) -> dict[str, float]:
        """The named terms of the bound on log p(Y_o | X_o) over a whole table, in the measurements' own units."""
        codec, vae = self._fitted()
        table = self._encode(data)
        noise, samples = self._noise(seed), _count(samples, "samples")
        total = {
            "reconstruction": float(codec.log_jacobian(table.y_mask).sum()),
            "kl_latent": 0.0,
            "kl_covariates": 0.0,
        }
        inducing = 0.0
        for _, batch in Batches(table, self._options.batch_size).in_order():
            terms = elbo(vae, batch, noise, samples, self._options.cap).named()
            total = {name: value + terms[name] for name, value in total.items()}
            inducing = terms["kl_inducing"]
        total["kl_inducing"] = inducing
        total["elbo"] = total["reconstruction"] - total["kl_latent"] - total["kl_covariates"] - inducing
        return total

    def _fitted(self) -> tuple[Codec, ConditionalVAE]:
        if self._codec is None or self._vae is None:
            raise NotFittedError(f"this {type(self).__name__} has not been fitted; call fit(train) first.")
        return self._codec, self._vae

    def _noise(self, seed: int) -> torch.Generator:
        return torch.Generator(next(self._fitted()[1].parameters()).device).manual_seed(seed)


class CVAE(Model):
    """Conditional VAE that learns through gaps in Y and X: p(y | z, x) p(z | x) p(x).

    Args:
        latent_prior: "normal" for p(z) = N(0, I), "conditional" for a network p(z | x).

    The other arguments are those of `Model`.

    Example:
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

    def __init__(
        self, schema: Schema, *, latent_prior: Literal["normal", "conditional"] = "normal", **settings: Any
    ) -> None:
        super().__init__(schema, **settings)
        if latent_prior not in ("normal", "conditional"):
            raise ValueError(f"latent_prior is {latent_prior!r}; expected 'normal' or 'conditional'.")
        self.latent_prior = latent_prior

    def _latent_prior(self, codec: Codec, table: Table, covariates: FactorisedPrior, seed: int) -> LatentPrior:
        if self.latent_prior == "normal":
            return StandardNormal(self.latent_dim)
        return ConditionalNormal(codec.space, self.latent_dim)


class GPPriorVAE(Model):
    """GP-prior VAE that learns through gaps in Y and X: p(y | z) with z_l an additive Gaussian process of x.

    Args:
        prior: a formula such as `"gp(day) + gp(day):cat(sex) + gp(day):cat(id)"`, one of the paper's variants
            ("regression", "temporal", "longitudinal"), or None for the variant that suits the schema.
        inducing: M, number of inducing inputs.
        expectation: "sample" or "exact": how the bound is integrated over missing covariates. Exact sums grow with the
            square of the number of components.

    The other arguments are those of `Model`.
    """

    decoder_sees_x = False
    latent_weight = 1.0

    def __init__(
        self, schema: Schema, *, prior: str | None = None, inducing: int = 60,
        expectation: Literal["sample", "exact"] = "sample", **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(schema, **settings)
        if expectation not in ("sample", "exact"):
            raise ValueError(f"expectation is {expectation!r}; expected 'sample' or 'exact'.")
        self.expectation = expectation
        self.components = components(prior, schema)
        self.inducing = _count(inducing, "inducing")

    @property
    def formula(self) -> str:
        """The prior as a formula."""
        return " + ".join(component.formula(self.schema) for component in self.components)

    def _latent_prior(self, codec: Codec, table: Table, covariates: FactorisedPrior, seed: int) -> LatentPrior:
        kernel = AdditiveKernel(self.components, codec.space, self.latent_dim)
        count = self.inducing if kernel.shared else 0
        inputs = _inducing_inputs(codec, table, covariates, count, seed)
        points = InducingPoints(inputs, codec.space, self.latent_dim)
        return GPPrior(kernel, points, codec.space, exact=self.expectation == "exact")


def _inducing_inputs(codec: Codec, table: Table, covariates: FactorisedPrior, count: int, seed: int) -> Tensor:
    """Training rows spread over the covariate space, their gaps drawn from the prior."""
    batches = Batches(replace(table, given=covariates.prepare(table)))
    x = covariates.draw(batches.batch(torch.arange(batches.units)), 1, torch.Generator().manual_seed(seed))[0]
    return x[spread_rows(codec.space.values(x), count, seed)]


def _level(interval: float | None) -> float | None:
    if interval is not None and not 0.0 < interval < 1.0:
        raise ValueError(f"interval must lie between 0 and 1, such as 0.9; got {interval!r}.")
    return interval


def _count(value: int, name: str = "draws") -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return int(value)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
