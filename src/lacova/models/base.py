"""What all models share: they assemble the parts and delegate."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import pandas as pd
import torch
from torch import Tensor

from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.masked_loss import hidden_share
from lacova.covariates.mixture import Mixture
from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.prior import CovariatePrior, FactorisedPrior, JointPrior
from lacova.covariates.single_imputation import FILLS, Fill
from lacova.covariates.static_regression import StaticRegression
from lacova.data.batches import Batches, variance_parts
from lacova.data.columns import ColumnStatistics, Scaling, check_scaling
from lacova.data.encoder import Table, TableEncoder
from lacova.data.io.archive import StorageError, write
from lacova.data.io.dataframes import to_pandas
from lacova.data.io.parquet import Layout, Source
from lacova.data.labels import Fingerprints
from lacova.data.schema import Schema
from lacova.data.survey import lay_out, survey
from lacova.inference.vae import ConditionalVAE, Networks
from lacova.likelihoods.families import NOISE_FLOOR
from lacova.likelihoods.fixed_effects import FixedEffects
from lacova.likelihoods.missingness import Missingness
from lacova.likelihoods.mixed import Likelihood, blank, learn
from lacova.likelihoods.random_effects import LEAST, DriftingIntercepts, RandomIntercepts
from lacova.models.inference import Inference, whole_number
from lacova.models.snapshot import identity, take_apart
from lacova.nn.networks import Conv, Decoder, Dense, Encoder, resolve
from lacova.priors.base import LatentPrior
from lacova.priors.gp.inducing import spread_rows
from lacova.training.checkpoint import Checkpoint
from lacova.training.distributed import SINGLE, Team, launch
from lacova.training.interrupt import InterruptedWarning
from lacova.training.loader import Loader, TableLoader
from lacova.training.loop import Outcome, fit
from lacova.training.options import FitOptions
from lacova.training.stream import StreamLoader

Covariates = Literal["joint", "factorised", "paper", "mean", "knn", "iterative", "zero", "oracle"]


class _Start(NamedTuple):
    """What a model is assembled from and trained on; `table` has all training rows, or a sample of a stream."""

    encoder: TableEncoder
    fill: Fill | None
    table: Table
    train: Loader
    validation: Loader | None
    trained: frozenset[Any] | Fingerprints


class _Fitted(NamedTuple):
    """What training makes of a model."""

    encoder: TableEncoder
    fill: Fill | None
    trained: frozenset[Any] | Fingerprints
    vae: ConditionalVAE


class Model(Inference, ABC):
    """What all models share. See `CVAE` and `GPPriorVAE`.

    Args:
        schema: the roles of the columns.
        latent_dim: L, dimensions of z.
        networks: `Dense(...)`, `Conv(...)`, or a preset's name.
        scaling: of the measurements: "standard", "minmax", "none", or "normal" for normal scores, which make any
            continuous law normal; see docs/observation.md. Continuous covariates are standardised.
        covariates: how to treat gaps in X. "joint" (default): a joint model of the covariates, with memory along a
            patient's visits, as prior, and q(x_u | y_o, x_o) as posterior. "factorised": independent columns as prior,
            the same posterior. "paper": independent columns, and q(x_u | x_o). Or fill X once before training: "mean",
            "knn", "iterative", "zero"; "oracle" demands complete X.
        covariate_prior: domain knowledge that replaces the observed moments or frequencies of some covariates:
            `{"height": (170, 10), "sex": {"f": 0.5, "m": 0.5}}`; for "factorised" and "paper".
        noise_floor: least noise variance of a (scaled) measurement.

    Attributes:
        training: a pandas DataFrame with a line per epoch, None before `fit`; see below.
        interrupted: whether Ctrl-C ended training.

    Columns of `training`, in nats per row, means over the steps of the epoch:

    - `epoch`, from 1;
    - `reconstruction`, `kl_latent`, `kl_inducing`, `kl_covariates` and `elbo`, the terms of the bound on training rows;
      docs/explain/model.md says what each is;
    - `masked_log_prob`: log q of observed covariates that were hidden from it; only where `fit` has `masked_loss` above 0;
    - `validation`: the bound on the validation rows, and `validation_masked_log_prob`, their recall; only with such rows. The
      epoch in which their sum, recall with its weight, was highest gives the weights.
    """

    def __init__(
        self, schema: Schema, *, latent_dim: int = 8, networks: str | Dense | Conv = "clinical",
        scaling: Scaling = "standard", covariates: Covariates = "joint",
        covariate_prior: Mapping[str, object] | None = None, noise_floor: float = NOISE_FLOOR,
    ) -> None:  # fmt: skip
        latent_dim = whole_number(latent_dim, "latent_dim")
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
        self._encoder: TableEncoder | None = None
        self._fill: Fill | None = None
        self._vae: ConditionalVAE | None = None
        self._trained: frozenset[Any] | Fingerprints = frozenset()
        self._options = FitOptions()
        self.training: pd.DataFrame | None = None
        self.interrupted = False
        self._written_by: str | None = None  # the version of lacova that wrote the file it was loaded from

    # The part in which models differ.

    decoder_sees_x: bool
    latent_weight: float
    stored: bool = False  # whether `lacova.load` knows the class; those derived from it must say so themselves
    settled: ClassVar[tuple[str, ...]] = ()  # arguments of its bases that a model decides itself
    importance: int = 1  # draws that are weighted, unless a fit says otherwise

    @property
    def _has_random_effects(self) -> bool:
        return False

    @property
    def _effects_drift(self) -> bool:
        return False

    def _fixed_effects_on(self, encoder: TableEncoder) -> list[str]:
        """The covariates that patients' levels depend on."""
        return []

    @abstractmethod
    def _latent_prior(self, encoder: TableEncoder, inputs: Callable[[int], Tensor]) -> LatentPrior:
        """p(z | x); `inputs` gives as many inducing inputs as are asked for, or as there are different rows."""

    def _networks(self, encoder: TableEncoder) -> Networks:
        """What makes the encoder and the decoder of an architecture."""
        return Encoder, Decoder

    def _missingness(self, encoder: TableEncoder, table: Table | None) -> Missingness | None:
        """p(mask | y), started from a table if there is one; None where gaps in y are taken to be at random."""
        return None

    def fit(
        self, train: Any, validation: Any = None, *, max_epochs: int | None = None,
        seed: int = 0, device: str = "auto", checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 1000, checkpoint_keep: bool = False, devices: int = 1, nodes: int = 1, **options: Any,
    ) -> Self:  # fmt: skip
        """Learn from a table with gaps in Y and X.

        Ctrl-C ends training after the step at hand: the model then has the best weights so far, and `interrupted` is
        True. See docs/interruption.md.

        Args:
            train: the training rows: a pandas or polars DataFrame, a pyarrow Table, or, for what does not fit memory,
                the path of a Parquet file or of a folder of them, or a pyarrow Dataset; see docs/scaling.md.
            validation: rows to stop early on; the best weights are restored. Without them, all epochs are run.
            max_epochs: most passes over the rows; None for 200, or more where these are fewer than 3,000 steps.
            seed: the same seed gives the same model on the same CPU, bit for bit.
            device: "auto", "cpu", "cuda", or any torch device.
            checkpoint: a file to write now and then, so that training which is killed is not lost: the same call goes
                on from it, to the same weights bit for bit on the same CPU. It is removed when training has ended.
            checkpoint_every: steps from one time of writing to the next.
            checkpoint_keep: do not remove it; the same call then takes no further step.
            devices: processes that share each batch, with a GPU each where there are any; needs Lightning Fabric
                (`lacova[distributed]`) and, in a script, `if __name__ == "__main__":`.
            nodes: machines, on each of which torchrun or SLURM has started so many processes; see docs/scaling.md.
            **options: the other fields of `lacova.FitOptions` (batch_size, learning_rate, patience, ...); a batch has
                100 rows, or 10 patients, unless you say otherwise, and the learning rate is 0.001, or 0.003.
        """
        rows = self.schema.instance is None
        fixed_part = {
            "batch_size": 100 if rows else 10,
            "learning_rate": 1e-3 if rows else 3e-3,
            "latent_weight": self.latent_weight,
            "masked_loss": float(self.covariates in ("joint", "factorised")),
            "importance": self.importance,
        }
        settings = FitOptions(**{**fixed_part, **options}, max_epochs=max_epochs, seed=seed)
        if self.covariate_prior and settings.prior_every is not None:
            raise ValueError("covariate_prior states what prior_every would unlearn; leave one of them out.")
        kept = None if checkpoint is None else (checkpoint, checkpoint_every, checkpoint_keep)
        job = partial(self._train, train, validation, settings, kept)
        if (devices, nodes) == (1, 1):
            fitted, outcome = job(SINGLE, resolve_device(device))
        else:
            fitted, outcome = launch(job, devices, nodes, device)
            fitted.vae.to(resolve_device(device))
        self._encoder, self._fill, self._trained, self._vae = fitted
        self._options = settings
        self.training = pd.DataFrame(outcome.records, columns=None if outcome.records else ["epoch"])
        self.interrupted, self._written_by = outcome.interrupted is not None, None
        if outcome.interrupted is not None:
            warnings.warn(outcome.interrupted, InterruptedWarning, stacklevel=2)
        return self

    def _train(
        self, train: Any, validation: Any, settings: FitOptions,
        checkpoint: tuple[str | os.PathLike[str], int, bool] | None, team: Team, device: torch.device,
    ) -> tuple[_Fitted, Outcome]:  # fmt: skip
        """What one process does of a fit; it leaves the model itself as it was."""
        kept = Checkpoint(*checkpoint, identity(self)) if checkpoint is not None and team.main else None
        start = self._begin(train, validation, settings, device, team)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(settings.seed)
            vae = self._assemble(start.encoder, start.table, settings.seed)
        vae.to(device)
        outcome = fit(vae, start.train, start.validation, settings, kept)
        return _Fitted(start.encoder, start.fill, start.trained, vae), outcome

    def _begin(
        self, train: Any, validation: Any, settings: FitOptions, device: torch.device, team: Team = SINGLE
    ) -> _Start:
        """Read the rows, once if they do not fit memory, and learn of them what comes before the networks."""
        columns, opened = self.schema.columns, self._opened(train)
        found, statistics = None, ColumnStatistics(self.schema)
        if isinstance(opened, Source):
            found = survey(opened, self.schema, settings.seed)
            frame, statistics = found.sample, found.statistics
        else:
            frame, _ = to_pandas(opened, columns)
            statistics.add(frame)
        encoder = TableEncoder.from_statistics(statistics, self.scaling, frame)
        table = encoder.encode(frame)
        fill = Fill.learn(self.covariates, encoder, table) if self.covariates in FILLS else None
        table = table if fill is None else fill(table)
        share = hidden_share(table)

        def encode(data: Any) -> Table:
            new = encoder.encode(to_pandas(data, columns)[0])
            return new if fill is None else fill(new)

        varied = torch.as_tensor(~statistics.constant())

        def encode_validation(data: Any) -> Table:
            """Noise is next to nothing where training rows are all alike: one other value would decide everything."""
            new = encode(data)
            return replace(new, y=new.y * varied, y_mask=new.y_mask & varied)

        def stream(source: Source, layout: Layout, read: Callable[[Any], Table]) -> Loader:
            return StreamLoader(source, layout, columns, read, table, share, settings, device, team)

        held_out, exam = self._opened(validation), None
        if isinstance(held_out, Source):
            exam = stream(held_out, lay_out(held_out, columns, encode), encode_validation)
        elif held_out is not None:
            exam = TableLoader(encode_validation(held_out), share, settings, device, team)
        if found is None:
            rows = TableLoader(table, share, settings, device, team)
            return _Start(encoder, fill, table, rows, exam, frozenset(table.labels))
        trained = Fingerprints(found.layout.prints)
        return _Start(encoder, fill, table, stream(opened, found.layout, encode), exam, trained)

    def _assemble(self, encoder: TableEncoder, table: Table, seed: int) -> ConditionalVAE:
        marginal = FactorisedPrior.learn(encoder.space, table)
        marginal.override(encoder, self.covariate_prior)
        prior = self._covariate_prior(encoder, table, marginal, seed)
        latent = self._latent_prior(encoder, partial(_inducing_inputs, encoder, table, marginal, seed))
        columns, noise = encoder.measurements.columns("gaussian"), learn(encoder.measurements, table, self.noise_floor)
        if not self._uses_random_effects(encoder):
            return self._join(encoder, marginal, prior, latent, noise, missingness=self._missingness(encoder, table))
        between, within = variance_parts(table.y, table.y_mask, table.patient)
        start = (between[columns].clamp_min(LEAST) / len(table.labels)).sqrt()  # of slopes: what patients leave of them
        random_effects = self._random_effects(encoder, between[columns], within[columns], start)
        if random_effects.fixed_effects is not None:
            random_effects.fixed_effects.learn(table)
        noise.start_at((between + within)[columns] - random_effects.var.detach())
        vae = self._join(encoder, marginal, prior, latent, noise, random_effects)
        if vae.covariate_posterior.static_regression is not None:
            # Against what rows show: a stated prior is what the likelihood that is read is then multiplied with.
            shown = FactorisedPrior.learn(encoder.space, table) if prior is marginal else prior
            vae.covariate_posterior.static_regression.learn(table, shown, seed)
        return vae

    def _blank(self, encoder: TableEncoder, sizes: Mapping[str, int]) -> ConditionalVAE:
        """Of the right shape, to read stored numbers into; `sizes` are those that training rows decide."""
        space = encoder.space
        marginal = FactorisedPrior.blank(space)
        prior: CovariatePrior = marginal
        if self.covariates == "joint":
            mixture = Mixture.blank(space, sizes["mixture"])
            prior = JointPrior(mixture)
            if self.schema.instance is not None:
                rates = torch.zeros(len(space.names), dtype=torch.float64)
                generators = rates.new_zeros(len(rates), space.max_levels, space.max_levels)
                prior = LongitudinalPrior(mixture, FactorisedPrior.blank(space), rates, self._time(encoder), generators)
        latent = self._latent_prior(encoder, lambda _: torch.zeros(sizes["inducing"], len(space.names)))
        ones = torch.ones(len(encoder.measurements.columns("gaussian")))
        random_effects = self._random_effects(encoder, ones, ones, ones) if self._uses_random_effects(encoder) else None
        noise = blank(encoder.measurements, self.noise_floor)
        return self._join(encoder, marginal, prior, latent, noise, random_effects, self._missingness(encoder, None))

    def _random_effects(
        self, encoder: TableEncoder, between: Tensor, within: Tensor, slope: Tensor
    ) -> RandomIntercepts:
        """Levels with the variance between patients; drift starts with half of that within them."""
        time, names = self._time(encoder), self._fixed_effects_on(encoder)
        slopes = FixedEffects(encoder.space, names, slope) if names else None
        if time is None or not self._effects_drift:
            return RandomIntercepts(between, slopes)
        return DriftingIntercepts(between, within / 2.0, time, slopes)

    def _uses_random_effects(self, encoder: TableEncoder) -> bool:
        """Whether patients have levels of their own: of Gaussian columns, if there are any."""
        return self._has_random_effects and bool(encoder.measurements.columns("gaussian"))

    def _join(
        self, encoder: TableEncoder, marginal: FactorisedPrior, prior: CovariatePrior, latent: LatentPrior,
        likelihood: Likelihood, random_effects: RandomIntercepts | None = None, missingness: Missingness | None = None,
    ) -> ConditionalVAE:  # fmt: skip
        seen = 0 if self.covariates == "paper" else encoder.measurements
        # Levels explain how patients differ, and leave the bound nothing to teach q of what visits have in common.
        read = random_effects is not None and self.covariates in ("joint", "factorised") and any(encoder.space.static)
        return ConditionalVAE(
            encoder.space, encoder.measurements, self.latent_dim, self.networks, decoder_sees_x=self.decoder_sees_x,
            prior=latent, covariate_prior=prior,
            covariate_posterior=AmortisedPosterior(
                encoder.space, seen, marginal, "conditional" if isinstance(prior, LongitudinalPrior) else "marginal",
                static_regression=StaticRegression(encoder.space, encoder.measurements, self._time(encoder)) if read else None,
            ),
            likelihood=likelihood, random_effects=random_effects, missingness=missingness, networks=self._networks(encoder),
        )  # fmt: skip

    def _covariate_prior(
        self, encoder: TableEncoder, table: Table, marginal: FactorisedPrior, seed: int
    ) -> CovariatePrior:
        if self.covariates != "joint":
            return marginal
        if self.schema.instance is None:
            return JointPrior.learn(encoder.space, table, seed)
        return LongitudinalPrior.learn(encoder.space, table, self._time(encoder), seed)

    def _time(self, encoder: TableEncoder) -> int | None:
        return None if self.schema.time is None else encoder.space.names.index(self.schema.time)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, whole or not at all; `lacova.load` reads it.

        The file holds tensors and JSON, nothing that is executed, and it does hold labels of the training instances;
        with covariates "knn" and "iterative" also the training covariates. See docs/storage.md.

        Args:
            path: where to; an older file there is replaced once the new one is complete.

        Examples:
            >>> import tempfile
            >>> import numpy as np, pandas as pd, lacova
            >>> table = pd.DataFrame({"age": np.linspace(30, 60, 40), "chol": np.linspace(4, 6, 40)})
            >>> schema = lacova.Schema(["chol"], {"age": "continuous"})
            >>> model = lacova.CVAE(schema, latent_dim=1).fit(table, max_epochs=2)
            >>> path = tempfile.mkdtemp() + "/cholesterol.lacova"
            >>> model.save(path)
            >>> lacova.load(path).predict(table).equals(model.predict(table))
            True
        """
        self._fitted()
        if not vars(type(self)).get("stored"):
            raise StorageError(
                f"a {type(self).__name__} cannot be saved: only models of lacova itself can be loaded again."
            )
        write(path, *take_apart(self))

    def describe(self) -> str:
        """What the model is, in lines for a person to read: columns, prior, networks, sizes, and how it was trained."""
        facts = self.facts()
        width = max(map(len, facts))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in facts.items())

    def facts(self) -> dict[str, str]:
        """The lines of `describe`, by name.

        All models have "model", "networks", "measurements", "latent dimensions" and "trained"; those with covariates
        "covariates" and "gaps in covariates"; "instance", "time" and "static" are there where the schema has them.
        A fitted model has "parameters", their number, and "device". Models add facts of their own, such as "prior of
        z".
        """
        lines = {"model": type(self).__name__, **self._described(), "networks": str(self.networks)}
        kinds = self.schema.kinds
        shown = [f"{name} ({kinds[name]})" if name in kinds else name for name in self.schema.measurements]
        lines["measurements"] = f"{len(shown)}: {_some(shown)}"
        if shown := [f"{name} ({kind})" for name, kind in self.schema.covariates.items()]:
            lines["covariates"] = f"{len(shown)}: {_some(shown)}"
            lines["gaps in covariates"] = self.covariates
        for role in ("instance", "time", "static"):
            if value := getattr(self.schema, role):
                lines[role] = value if isinstance(value, str) else ", ".join(value)
        lines["latent dimensions"] = str(self.latent_dim)
        if self._vae is None or self.training is None:
            lines["trained"] = "no; call fit(train)"
        else:
            lines["parameters"] = f"{sum(p.numel() for p in self._vae.parameters()):,}"
            lines["device"] = str(next(self._vae.parameters()).device)
            lines["trained"] = f"less than an epoch, seed {self._options.seed}"
            for last in self.training.tail(1).to_dict("records"):
                kind, name = ("validation bound", "validation") if "validation" in last else ("bound", "elbo")
                lines["trained"] = (
                    f"{len(self.training)} epochs, last {kind} {last[name]:.4g} per row, seed {self._options.seed}"
                )
        return lines

    def _described(self) -> dict[str, str]:
        """Facts that only some models have."""
        return {}


def _inducing_inputs(encoder: TableEncoder, table: Table, covariates: FactorisedPrior, seed: int, count: int) -> Tensor:
    """Training rows spread over the covariate space, their gaps drawn from the prior."""
    batches = Batches(replace(table, conditional_prior=covariates.condition(table)))
    x = covariates.draw(batches.batch(torch.arange(batches.units)), 1, torch.Generator().manual_seed(seed))[0]
    return x[spread_rows(encoder.space.values(x), count, seed)]


def _some(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def resolve_device(name: str) -> torch.device:
    """The device behind a name; "auto" is the GPU where there is one."""
    if name == "auto":
        name = _best_device()
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0].split(":")[0].rstrip(".")
        raise ValueError(f"device is {name!r}, which cannot be used here ({reason}); try 'auto' or 'cpu'.") from None
    return device


def _best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
