"""The public models: they assemble the parts and delegate."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast, get_args, overload

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor, nn

from lacova.archive import StorageError, write
from lacova.batches import Batches
from lacova.checkpoint import Checkpoint
from lacova.columns import Scaling, Tally, check_scaling
from lacova.covariates.belief import best_guess, level_chances
from lacova.covariates.fill import FILLS, Fill
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.mixture import Mixture
from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.prior import CovariatePrior, FactorisedPrior, JointPrior
from lacova.covariates.recall import hidden_share
from lacova.dataframes import Frame, to_pandas
from lacova.distributed import ALONE, Team, launch
from lacova.effects import Effects, measure
from lacova.errors import about
from lacova.families import NOISE_FLOOR
from lacova.filtering import followed, visit_numbers
from lacova.fit import Outcome, fit
from lacova.frames import completed, completed_draws, predicted, predicted_draws, summarise
from lacova.gp.factors import check_passed
from lacova.gp.formula import components
from lacova.gp.inducing import InducingPoints, spread_rows
from lacova.gp.kernels import AdditiveKernel
from lacova.impute import imputation_draws
from lacova.intercepts import Intercepts, variance_parts
from lacova.interrupt import InterruptedWarning
from lacova.labels import Fingerprints
from lacova.likelihoods import Likelihood, blank, learn
from lacova.measurements import LEVELS as CODED
from lacova.networks import Conv, Dense, resolve
from lacova.objective import elbo, log_likelihood
from lacova.options import FitOptions
from lacova.parquet import Layout, Source, is_stream, open_source, writing
from lacova.predict import Draws, chunks, paired_draws, predictive_draws
from lacova.priors import ConditionalNormal, GPPrior, LatentPrior, StandardNormal
from lacova.rows import Rows, TableRows
from lacova.schema import DataError, Schema
from lacova.score import by_column, overall
from lacova.snapshot import identity, take_apart
from lacova.stream import StreamRows
from lacova.survey import lay_out, survey
from lacova.table import Codec, Table
from lacova.vae import ConditionalVAE
from lacova.whatif import WhatIf, compare, encode_setting, from_text

Covariates = Literal["joint", "factorised", "paper", "mean", "knn", "iterative", "zero", "oracle"]
MEAN_DRAWS = 100
INTERVAL_DRAWS = 400
ANSWER_ROWS = 10_000  # of a stream that are answered at a time


class NotFittedError(RuntimeError):
    """The model has not been fitted yet."""


class _Start(NamedTuple):
    """What a model is assembled from and trained on; `table` has all training rows, or a sample of a stream."""

    codec: Codec
    fill: Fill | None
    table: Table
    train: Rows
    validation: Rows | None
    trained: frozenset[Any] | Fingerprints


class _Fitted(NamedTuple):
    """What training makes of a model."""

    codec: Codec
    fill: Fill | None
    trained: frozenset[Any] | Fingerprints
    vae: ConditionalVAE


class Model(ABC):
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
        self._trained: frozenset[Any] | Fingerprints = frozenset()
        self._options = FitOptions()
        self.training: pd.DataFrame | None = None
        self.interrupted = False

    # The part in which models differ.

    decoder_sees_x: bool
    latent_weight: float

    @property
    def _has_intercepts(self) -> bool:
        return False

    @abstractmethod
    def _latent_prior(self, codec: Codec, inputs: Callable[[int], Tensor]) -> LatentPrior:
        """p(z | x); `inputs` gives as many inducing inputs as are asked for, or as there are different rows."""

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
                100 rows, or 20 patients, unless you say otherwise.
        """
        usual = {
            "batch_size": 100 if self.schema.instance is None else 20,
            "latent_weight": self.latent_weight,
            "recall": float(self.covariates in ("joint", "factorised")),
        }
        settings = FitOptions(**{**usual, **options}, max_epochs=max_epochs, seed=seed)
        if self.covariate_prior and settings.prior_every is not None:
            raise ValueError("covariate_prior states what prior_every would unlearn; leave one of them out.")
        kept = None if checkpoint is None else (checkpoint, checkpoint_every, checkpoint_keep)
        job = partial(self._train, train, validation, settings, kept)
        if (devices, nodes) == (1, 1):
            fitted, outcome = job(ALONE, resolve_device(device))
        else:
            fitted, outcome = launch(job, devices, nodes, device)
            fitted.vae.to(resolve_device(device))
        self._codec, self._fill, self._trained, self._vae = fitted
        self._options = settings
        self.training = pd.DataFrame(outcome.records, columns=None if outcome.records else ["epoch"])
        self.interrupted = outcome.interrupted is not None
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
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(settings.seed)
            vae = self._assemble(start.codec, start.table, settings.seed)
        vae.to(device)
        outcome = fit(vae, start.train, start.validation, settings, kept)
        return _Fitted(start.codec, start.fill, start.trained, vae), outcome

    def _begin(
        self, train: Any, validation: Any, settings: FitOptions, device: torch.device, team: Team = ALONE
    ) -> _Start:
        """Read the rows, once if they do not fit memory, and learn of them what comes before the networks."""
        columns, opened = self.schema.columns, self._opened(train)
        found, tally = None, Tally(self.schema)
        if isinstance(opened, Source):
            found = survey(opened, self.schema, settings.seed)
            frame, tally = found.sample, found.tally
        else:
            frame, _ = to_pandas(opened, columns)
            tally.add(frame)
        codec = Codec.of(tally, self.scaling, frame)
        table = codec.encode(frame)
        fill = Fill.learn(self.covariates, codec, table) if self.covariates in FILLS else None
        table = table if fill is None else fill(table)
        share = hidden_share(table)

        def encode(data: Any) -> Table:
            new = codec.encode(to_pandas(data, columns)[0])
            return new if fill is None else fill(new)

        varied = torch.as_tensor(~tally.constant())

        def encode_exam(data: Any) -> Table:
            """Noise is next to nothing where training rows are all alike: one other value would decide everything."""
            new = encode(data)
            return replace(new, y=new.y * varied, y_mask=new.y_mask & varied)

        def stream(source: Source, layout: Layout, read: Callable[[Any], Table]) -> Rows:
            return StreamRows(source, layout, columns, read, table, share, settings, device, team)

        held_out, exam = self._opened(validation), None
        if isinstance(held_out, Source):
            exam = stream(held_out, lay_out(held_out, columns, encode), encode_exam)
        elif held_out is not None:
            exam = TableRows(encode_exam(held_out), share, settings, device, team)
        if found is None:
            rows = TableRows(table, share, settings, device, team)
            return _Start(codec, fill, table, rows, exam, frozenset(table.labels))
        trained = Fingerprints(found.layout.prints)
        return _Start(codec, fill, table, stream(opened, found.layout, encode), exam, trained)

    def _opened(self, data: Any, measurements: bool = True) -> Any:
        """What is behind a path or a dataset: a source to read bit by bit, or a table; a table is itself."""
        columns = self.schema.columns if measurements else self._given
        return open_source(data, self.schema.instance, columns) if is_stream(data) else data

    def _assemble(self, codec: Codec, table: Table, seed: int) -> ConditionalVAE:
        marginal = FactorisedPrior.learn(codec.space, table)
        marginal.override(codec, self.covariate_prior)
        prior = self._covariate_prior(codec, table, marginal, seed)
        latent = self._latent_prior(codec, partial(_inducing_inputs, codec, table, marginal, seed))
        between, within = variance_parts(table) if self._has_levels(codec) else (None, None)
        columns, noise = codec.measurements.columns("gaussian"), learn(codec.measurements, table, self.noise_floor)
        if between is None or within is None:
            return self._join(codec, marginal, prior, latent, noise)
        noise.start_at(within[columns])
        return self._join(codec, marginal, prior, latent, noise, Intercepts(between[columns]))

    def _blank(self, codec: Codec, sizes: Mapping[str, int]) -> ConditionalVAE:
        """Of the right shape, to read stored numbers into; `sizes` are those that training rows decide."""
        space = codec.space
        marginal = FactorisedPrior.blank(space)
        prior: CovariatePrior = marginal
        if self.covariates == "joint":
            mixture = Mixture.blank(space, sizes["mixture"])
            prior = JointPrior(mixture)
            if self.schema.instance is not None:
                rates = torch.zeros(len(space.names), dtype=torch.float64)
                generators = rates.new_zeros(len(rates), space.max_levels, space.max_levels)
                prior = LongitudinalPrior(mixture, FactorisedPrior.blank(space), rates, self._time(codec), generators)
        latent = self._latent_prior(codec, lambda _: torch.zeros(sizes["inducing"], len(space.names)))
        columns = codec.measurements.columns("gaussian")
        intercepts = Intercepts(torch.ones(len(columns))) if self._has_levels(codec) else None
        return self._join(codec, marginal, prior, latent, blank(codec.measurements, self.noise_floor), intercepts)

    def _has_levels(self, codec: Codec) -> bool:
        """Whether patients have levels of their own: of Gaussian columns, if there are any."""
        return self._has_intercepts and bool(codec.measurements.columns("gaussian"))

    def _join(
        self, codec: Codec, marginal: FactorisedPrior, prior: CovariatePrior, latent: LatentPrior,
        likelihood: Likelihood, intercepts: Intercepts | None = None,
    ) -> ConditionalVAE:  # fmt: skip
        seen = 0 if self.covariates == "paper" else codec.measurements
        return ConditionalVAE(
            codec.space, codec.measurements, self.latent_dim, self.networks, decoder_sees_x=self.decoder_sees_x,
            prior=latent, covariate_prior=prior,
            covariate_posterior=AmortisedPosterior(
                codec.space, seen, marginal, "given" if isinstance(prior, LongitudinalPrior) else "marginal"
            ),
            likelihood=likelihood, intercepts=intercepts,
        )  # fmt: skip

    def _covariate_prior(self, codec: Codec, table: Table, marginal: FactorisedPrior, seed: int) -> CovariatePrior:
        if self.covariates != "joint":
            return marginal
        if self.schema.instance is None:
            return JointPrior.learn(codec.space, table, seed)
        return LongitudinalPrior.learn(codec.space, table, self._time(codec), seed)

    def _time(self, codec: Codec) -> int | None:
        return None if self.schema.time is None else codec.space.names.index(self.schema.time)

    def _encode(self, data: Any, measurements: bool = True) -> Table:
        """A table as the fitted model takes it: scaled, its gaps in X filled or prepared, on the model's device."""
        codec, vae = self._fitted()
        frame, _ = to_pandas(data, self.schema.columns)
        table = codec.encode(frame, measurements=measurements)
        table = table if self._fill is None else self._fill(table)
        return vae.prepare(table).to(next(vae.parameters()).device)

    def impute(
        self, data: Frame, draws: int | None = None, *, interval: float | None = None, probabilities: bool = False,
        seed: int = 0, alone: bool = False, out: str | os.PathLike[str] | None = None,
    ) -> Frame:  # fmt: skip
        """Fill the gaps of a table; observed entries come back as they were.

        Args:
            data: rows with gaps in Y and X; or the path of a Parquet file or folder, or a pyarrow Dataset.
            draws: None for one table (mean of a number, most probable level of a category); n for n completed
                tables one below the other, numbered in a column `draw`.
            interval: with `draws=None`, adds `<column>_lower` and `<column>_upper`, the central interval of each
                numeric column (observed entries: the value itself).
            probabilities: with `draws=None`, adds `<column>_p_<level>`, the probability of each level of each
                categorical column with gaps (observed entries: 1 for the level observed).
            seed: of the draws.
            alone: give every row, or patient, the same noise, so that its means do not depend on the rows beside it.
                Slower, and wrong for `draws`, which must be independent between rows.
            out: where the answer to a path or a dataset goes, as Parquet, written as it is made; see docs/scaling.md.

        Returns:
            a table of the same library as `data`, its columns of the same types; of a path or dataset, the path `out`.
        """
        if is_stream(data):
            each = partial(self._impute, draws=draws, interval=interval, probabilities=probabilities, alone=alone)
            return cast(Frame, self._write(data, out, seed, alone, partial(each, every=True), beside=False))
        _no_out(out)
        return self._impute(data, draws, interval, probabilities, seed, alone)

    def _impute(
        self, data: Frame, draws: int | None, interval: float | None, probabilities: bool, seed: int, alone: bool,
        every: bool = False,
    ) -> Frame:  # fmt: skip
        codec, vae = self._fitted()
        if draws is not None and (interval is not None or probabilities):
            word = "probabilities" if interval is None else "interval"
            raise ValueError(f"give draws or {word}, not both: draws leave the summary to you.")
        if draws is not None and alone:
            raise ValueError("alone gives all rows the same noise, but completed tables need rows drawn independently.")
        count = MEAN_DRAWS if interval is None else INTERVAL_DRAWS
        count, interval = _count(count if draws is None else draws), _level(interval)
        frame, origin = to_pandas(data, self.schema.columns)
        table = self._encode(frame)
        parts = imputation_draws(vae, table, count, self._noise(seed), self._trained, alone)
        if draws is not None:
            return origin.complete(completed_draws(frame, codec, parts, table, count))
        guess = torch.empty(table.x.shape)
        chances = torch.empty(*table.x.shape, vae.space.max_levels) if probabilities else None
        for rows, batch in chunks(table, 1, self._noise(seed) if alone else None):
            belief = vae.believe(batch)
            guess[rows] = best_guess(belief, batch, vae.space).detach().cpu()
            if chances is not None:
                chances[rows] = level_chances(belief, batch).detach().cpu()
        summary = summarise(parts, len(table), codec, interval)
        return origin.complete(completed(frame, codec, summary, guess, chances, every=every))

    def predict(
        self, x: Frame, history: Any = None, *, draws: int = MEAN_DRAWS, interval: float | None = None,
        probabilities: bool = False, seed: int = 0, alone: bool = False, out: str | os.PathLike[str] | None = None,
    ) -> Frame:  # fmt: skip
        """Predict Y for covariates with gaps; any measurements in `x` are not looked at.

        Args:
            x: rows of covariates (and the instance column, if there is one); or the path of a Parquet file or folder,
                or a pyarrow Dataset.
            history: earlier visits of some of the patients in `x`, measurements included; for patients of the training
                rows, those rows.
            draws: how many draws of x_u and z to average over.
            interval: adds `<column>_lower` and `<column>_upper`, a central interval such as 0.9, of each number.
            probabilities: adds `<column>_p_<level>`, the probability of each level of each categorical measurement.
            seed: of the draws.
            alone: give every row, or patient, the same noise, so that its answer does not depend on the rows beside it.
            out: where the answer to a path or a dataset goes, as Parquet, with the columns of `x` beside it.

        Returns:
            the predictive mean of every number and the most probable level of every category, row by row as in `x`;
            with the index of `x`, if it is pandas. Of a path or dataset, the path `out`.
        """
        codec, _ = self._fitted()
        interval = _level(interval)
        if is_stream(x):
            each = partial(
                self.predict, history=_in_memory(history), draws=draws, interval=interval, probabilities=probabilities,
                alone=alone,
            )  # fmt: skip
            return cast(Frame, self._write(x, out, seed, alone, each, measurements=False))
        _no_out(out)
        frame, origin = to_pandas(x, self._given)
        parts = self._predict_draws(frame, history, _count(draws), seed, alone)
        summary = summarise(parts, len(frame), codec, interval)
        return origin.table(predicted(frame.index, codec, summary, probabilities))

    def sample(
        self, x: Frame, history: Any = None, *, draws: int = 20, seed: int = 0, alone: bool = False,
        out: str | os.PathLike[str] | None = None,
    ) -> Frame:  # fmt: skip
        """Draw Y (noise included) for covariates with gaps: `draws` tables one below the other, numbered in `draw`.

        With `alone`, every row (or patient) gets the same noise: its draws do not depend on the rows beside it, but
        draws of different rows are no longer independent. `x` and `out` are those of `predict`.
        """
        codec, _ = self._fitted()
        draws = _count(draws)
        if is_stream(x):
            each = partial(self.sample, history=_in_memory(history), draws=draws, alone=alone)
            return cast(Frame, self._write(x, out, seed, alone, each, measurements=False))
        _no_out(out)
        frame, origin = to_pandas(x, self._given)
        parts = self._predict_draws(frame, history, draws, seed, alone)
        return origin.table(predicted_draws(frame.index, codec, parts, draws))

    def what_if(
        self, data: Frame, changes: Mapping[str, Any], history: Any = None, *, draws: int = INTERVAL_DRAWS,
        interval: float = 0.9, seed: int = 0,
    ) -> WhatIf[Frame]:  # fmt: skip
        """Predict Y with some covariates set to other values, beside the prediction as things are.

        Both predictions have their random numbers in common, so that the difference is free of noise. What else is
        unknown stays as it is: a gap in another covariate is drawn as if nothing had been set. Whether the difference
        is an effect of setting the covariate is a question to the study, not to the model; see docs/effects.md.

        Args:
            data: rows of covariates, as in `predict`; any measurements are not looked at.
            changes: the value, in its own units or as a level, of each covariate to set, such as `{"arm": "b"}`. It is
                set in the rows of `data`; the history is as it was.
            history: earlier visits, as in `predict`.
            draws: how many.
            interval: the central interval, such as 0.9.
            seed: of the draws.

        Returns:
            two tables of the same library as `data`: `rows`, with a line per row and measurement, and `average`, with a
            line per measurement, over all rows.
        """
        codec, vae = self._fitted()
        level = _sure_level(interval)
        _differences(codec, "what_if")
        frame, origin = to_pandas(_whole(data, "what_if"), self._given)
        table, marked = self._with_history(frame, history)
        setting = encode_setting(codec, frame, changes)
        pairs = paired_draws(vae, table, marked, setting, _count(draws), self._noise(seed), self._trained)
        found = compare(codec, frame, pairs, level)
        return WhatIf(origin.table(found.rows), origin.table(found.average))

    def read_value(self, covariate: str, text: str) -> Any:
        """A value of a covariate as somebody typed it, for `what_if`: the level that reads like that, or a number."""
        return from_text(self._fitted()[0], covariate, text)

    def filter(
        self, data: Frame, *, draws: int = INTERVAL_DRAWS, interval: float = 0.9, seed: int = 0, alone: bool = False
    ) -> Frame:
        """Predict each visit's measurements from all earlier visits of the same patient, without fitting again.

        The first visits of all patients are predicted together, from their covariates alone, then the second ones,
        given the first, and so on. Visits are in the order of the time column, or of the rows if there is none.

        Args:
            data: rows with covariates and measurements.
            draws: how many.
            interval: the central interval, such as 0.9.
            seed: of the draws.
            alone: as in `predict`.

        Returns:
            one line per row and measurement: what was `observed`, the `mean`, `lower` and `upper` of its prediction,
            and whether it lay `inside`.
        """
        codec, _ = self._fitted()
        level = _sure_level(interval)
        if coded := codec.measurements.columns(*CODED):
            name = self.schema.measurements[coded[0]]
            raise DataError(f"filter compares numbers, but {name!r} is a category; fit without it, or use predict.")
        frame, origin = to_pandas(_whole(data, "filter"), self.schema.columns)
        codec.require(frame)
        number = visit_numbers(frame, self.schema)
        found = []
        for k in range(number.max() + 1):
            now, before = frame[number == k], frame[number < k]
            parts = self._predict_draws(now, before if k else None, _count(draws), seed, alone)
            places: pd.Index[Any] = pd.Index(np.flatnonzero(number == k))
            found.append(predicted(places, codec, summarise(parts, len(now), codec, level)))
        return origin.table(followed(frame, self.schema, pd.concat(found).sort_index()))

    def _write(
        self, data: Any, out: str | os.PathLike[str] | None, seed: int, alone: bool, answer: Callable[..., pa.Table],
        beside: bool = True, measurements: bool = True,
    ) -> Path:  # fmt: skip
        """Answer part by part of whole patients, each with its own noise unless `alone`, into a Parquet file.

        Answers stand beside the columns of the data, unless they hold these; measurements may be needed there or not.
        """
        self._fitted()
        if out is None:
            raise ValueError("the answer to a path or a dataset goes to a file: give its name, out='answer.parquet'.")
        opened = self._opened(data, measurements)
        if isinstance(opened, pd.DataFrame):  # of a CSV file
            opened = pa.Table.from_pandas(opened, preserve_index=False)
        with writing(out) as sink:
            for part, own in self._parts(opened, seed):
                found = answer(part, seed=seed if alone else own)
                sink.write(_beside(found, part) if beside else found)
        return Path(out)

    def _parts(self, data: Any, seed: int, columns: Sequence[str] | None = None) -> Iterator[tuple[Any, int]]:
        """The parts of a source, or a table as it is, and a seed for each; the first has the seed itself."""
        if not isinstance(data, Source):
            yield data, seed
            return
        for k, part in enumerate(data.walk(columns, ANSWER_ROWS)):
            yield part.table, seed + 1_000_003 * k

    @property
    def _given(self) -> list[str]:
        """The columns that a prediction looks at."""
        return [name for name in self.schema.columns if name not in self.schema.measurements]

    def _predict_draws(self, x: pd.DataFrame, history: Any, draws: int, seed: int, alone: bool) -> Iterable[Draws]:
        table, marked = self._with_history(x, history)
        return predictive_draws(self._fitted()[1], table, marked, draws, self._noise(seed), self._trained, alone)

    def _with_history(self, x: pd.DataFrame, history: Any) -> tuple[Table, Tensor]:
        """Rows to predict and, behind them, what is known of their instances; which rows are to be predicted."""
        codec, _ = self._fitted()
        table, new = self._encode(x, measurements=False), len(x)
        if history is not None:
            if self.schema.instance is None:
                raise DataError(
                    "history belongs to instances, but the schema has no instance column: give Schema(instance=...)."
                )
            visits, _ = to_pandas(history, self.schema.columns)
            with about("history"):
                codec.require(visits)
            past = visits[visits[self.schema.instance].isin(set(x[self.schema.instance]))]
            if len(past):
                both = pd.concat(
                    [x.drop(columns=list(self.schema.measurements), errors="ignore"), past[list(self.schema.columns)]]
                )
                with about("the rows to predict and their history together"):
                    table = self._encode(both)
        return table, torch.arange(len(table)) < new

    def log_likelihood(
        self, data: Any, *, draws: int = MEAN_DRAWS, seed: int = 0, out: str | os.PathLike[str] | None = None
    ) -> Any:
        """Per row, log p(y_o | x_o) in the measurements' own units, by importance sampling with `draws` draws.

        Of a path or a dataset, a column `log_likelihood` beside the others in the Parquet file `out`.
        """
        codec, vae = self._fitted()
        if is_stream(data):
            each = partial(self.log_likelihood, draws=draws)
            return self._write(data, out, seed, False, lambda *a, **k: pa.table({"log_likelihood": each(*a, **k)}))
        _no_out(out)
        frame, origin = to_pandas(data, self.schema.columns)
        table = self._encode(frame)
        noise, found = self._noise(seed), torch.empty(len(table), dtype=torch.float64)
        for rows, batch in chunks(table, _count(draws), width=vae.prior.width):
            value = log_likelihood(vae, batch, draws, noise).double() + codec.log_jacobian(batch.y, batch.y_mask)
            found[rows] = value.cpu()
        return origin.series(pd.Series(found.numpy(), index=frame.index, name="log_likelihood"))

    @overload
    def score(
        self, data: Any, *, columns: Literal[False] = ..., draws: int = ..., seed: int = ...
    ) -> dict[str, float]: ...

    @overload
    def score(self, data: Any, *, columns: Literal[True], draws: int = ..., seed: int = ...) -> pd.DataFrame: ...

    def score(
        self, data: Any, *, columns: bool = False, draws: int = MEAN_DRAWS, seed: int = 0
    ) -> dict[str, float] | pd.DataFrame:
        """Predict the measurements from the covariates alone and compare with those that are there.

        Args:
            data: rows with covariates and measurements, gaps allowed in both; or the path of a Parquet file or folder,
                or a pyarrow Dataset.
            columns: False for one figure per score over all measurements: `nll`, the sum per row in the measurements'
                own units, and per observed entry `rmse` and `crps` (divided by the training scale of the column) and
                `coverage50`, `coverage90`, `coverage95` of central intervals; of categories, `accuracy` and `brier`.
                True for a table with one row per measurement, everything per entry and in its own units. See
                docs/observation.md for what `nll` is of which kind.
            draws: of x_u and z per row.
            seed: of the draws.
        """
        by_measurement, together = self.scores(data, draws=draws, seed=seed)
        return by_measurement if columns else together

    def scores(self, data: Any, *, draws: int = MEAN_DRAWS, seed: int = 0) -> tuple[pd.DataFrame, dict[str, float]]:
        """Both answers of `score`, by measurement and over all, from the same predictions."""
        codec, vae = self._fitted()
        parts = (
            (self._encode(part), self._noise(own))
            for part, own in self._parts(self._opened(data), seed, self.schema.columns)
        )
        found, rows = by_column(vae, codec, parts, _count(draws))
        return found, overall(found, codec.scales.spread, rows)

    @torch.no_grad()
    def embed(self, data: Frame, *, out: str | os.PathLike[str] | None = None) -> Frame:
        """Mean and variance of q(z | y_o, x_o) of each row: columns `z1`, ..., then `z1_var`, ...

        Of a path or a dataset, these columns beside the others in the Parquet file `out`.
        """
        _, vae = self._fitted()
        if is_stream(data):
            return cast(Frame, self._write(data, out, 0, True, lambda part, seed: self.embed(part)))
        _no_out(out)
        frame, origin = to_pandas(data, self.schema.columns)
        table = self._encode(frame)
        found = torch.empty(len(table), 2 * self.latent_dim, dtype=torch.float64)
        for rows, batch in chunks(table, 1):
            found[rows] = torch.cat(vae.encode(batch), dim=1).double().cpu()
        names = [f"z{k + 1}" for k in range(self.latent_dim)]
        columns = [*names, *(f"{name}_var" for name in names)]
        return origin.table(pd.DataFrame(found.numpy(), index=frame.index, columns=columns))

    @torch.no_grad()
    def elbo(self, data: Any, *, samples: int = 1, seed: int = 0) -> dict[str, float]:
        """The named terms of the bound on log p(Y_o | X_o) over a whole table, in the measurements' own units."""
        codec, vae = self._fitted()
        table = self._encode(data)
        noise, samples = self._noise(seed), _count(samples, "samples")
        total = {
            "reconstruction": float(codec.log_jacobian(table.y, table.y_mask).sum()),
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, whole or not at all; `lacova.load` reads it.

        The file holds tensors and JSON, nothing that is executed, and it does hold labels of the training instances;
        with covariates "knn" and "iterative" also the training covariates. See docs/storage.md.

        Args:
            path: where to; an older file there is replaced once the new one is complete.

        Example:
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
        if type(self) not in (CVAE, GPPriorVAE):
            raise StorageError(
                f"a {type(self).__name__} cannot be saved: only CVAE and GPPriorVAE themselves can be loaded again."
            )
        write(path, *take_apart(self))

    def describe(self) -> str:
        """What the model is, in lines for a person to read: columns, prior, networks, sizes, and how it was trained."""
        facts = self.facts()
        width = max(map(len, facts))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in facts.items())

    def facts(self) -> dict[str, str]:
        """The lines of `describe`, by name."""
        lines = {"model": type(self).__name__, **self._described(), "networks": str(self.networks)}
        kinds = self.schema.kinds
        shown = [f"{name} ({kinds[name]})" if name in kinds else name for name in self.schema.measurements]
        lines["measurements"] = f"{len(shown)}: {_some(shown)}"
        shown = [f"{name} ({kind})" for name, kind in self.schema.covariates.items()]
        lines["covariates"] = f"{len(shown)}: {_some(shown)}"
        for role in ("instance", "time", "static"):
            if value := getattr(self.schema, role):
                lines[role] = value if isinstance(value, str) else ", ".join(value)
        lines["gaps in covariates"] = self.covariates
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

    def _described(self) -> dict[str, str]:
        return {"prior of z": {"normal": "N(0, I)", "conditional": "a network of x"}[self.latent_prior]}

    def _latent_prior(self, codec: Codec, inputs: Callable[[int], Tensor]) -> LatentPrior:
        if self.latent_prior == "normal":
            return StandardNormal(self.latent_dim)
        return ConditionalNormal(codec.space, self.latent_dim)


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

    The other arguments are those of `Model`.
    """

    decoder_sees_x = False
    latent_weight = 1.0

    def __init__(
        self, schema: Schema, *, prior: str | None = None, kernels: Mapping[str, nn.Module] | None = None,
        inducing: int = 60, expectation: Literal["sample", "exact"] = "sample", patient_effects: bool = True,
        **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(schema, **settings)
        if expectation not in ("sample", "exact"):
            raise ValueError(f"expectation is {expectation!r}; expected 'sample' or 'exact'.")
        self.expectation = expectation
        self.patient_effects = patient_effects
        self.kernels = dict(kernels or {})
        self.components = components(prior, schema, self.kernels)
        check_passed(self.components, self.kernels, schema)
        sampled = next((component for component in self.components if component.factors), None)
        if expectation == "exact" and sampled is not None:
            raise ValueError(
                'expectation="exact" is for terms of gp and cat, but the prior has the term '
                f'{sampled.formula(schema)!r}; use expectation="sample".'
            )
        self.inducing = _count(inducing, "inducing")

    @property
    def _has_intercepts(self) -> bool:
        return self.patient_effects and self.schema.instance is not None

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
            two tables of the same library as `data`: `rows`, one line per row, component and measurement, and `shares`,
            one line per component and a column per measurement.
        """
        codec, vae = self._fitted()
        level = _sure_level(interval)
        _differences(codec, "effects")
        frame, origin = to_pandas(_whole(data, "effects"), self.schema.columns)
        table = self._encode(frame, measurements=any(name in frame for name in self.schema.measurements))
        names = tuple(component.formula(self.schema) for component in self.components)
        found = measure(vae, codec, frame, table, names, _count(draws), level, self._noise(seed), self._trained)
        return Effects(origin.table(found.rows), origin.table(found.shares))

    def _described(self) -> dict[str, str]:
        return {"prior of z": self.formula, "inducing inputs": str(self.inducing), "expectations": self.expectation}

    def _latent_prior(self, codec: Codec, inputs: Callable[[int], Tensor]) -> LatentPrior:
        scale = dict(zip(codec.space.names, codec.x_scale.tolist(), strict=True))
        kernel = AdditiveKernel(self.components, codec.space, self.latent_dim, scale=scale, passed=self.kernels)
        points = InducingPoints(inputs(self.inducing if kernel.shared else 0), codec.space, self.latent_dim)
        return GPPrior(kernel, points, codec.space, exact=self.expectation == "exact")


def _inducing_inputs(codec: Codec, table: Table, covariates: FactorisedPrior, seed: int, count: int) -> Tensor:
    """Training rows spread over the covariate space, their gaps drawn from the prior."""
    batches = Batches(replace(table, given=covariates.prepare(table)))
    x = covariates.draw(batches.batch(torch.arange(batches.units)), 1, torch.Generator().manual_seed(seed))[0]
    return x[spread_rows(codec.space.values(x), count, seed)]


def _differences(codec: Codec, question: str) -> None:
    """Refuse measurements that are not Gaussian on a linear scale: a difference there has no single size."""
    for d, name in enumerate(codec.schema.measurements):
        if codec.measurements.families[d] != "gaussian" or not codec.scales.linear[d]:
            raise DataError(
                f"{question} gives differences of Gaussian measurements on a linear scale, but {name!r} is of another "
                'kind, or scaled to normal scores; fit with kinds "gaussian" and scaling="standard", or compare draws '
                "of `sample`."
            )


def _some(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _beside(found: pa.Table, x: pa.Table) -> pa.Table:
    """Answers behind the columns of x that they do not replace, draw by draw; the number of the draw comes first."""
    first = [name for name in found.column_names[:1] if name == "draw"]
    kept = [name for name in x.column_names if name not in found.column_names]
    whole = pa.concat_tables([x.select(kept)] * (len(found) // len(x)))
    for name in [name for name in found.column_names if name not in first]:
        whole = whole.append_column(name, found[name])
    return whole.add_column(0, "draw", found["draw"]) if first else whole


def _no_out(out: object) -> None:
    if out is not None:
        raise ValueError("out is for the answer to a path or a dataset; the answer to a table comes back as a table.")


def _in_memory(history: Any) -> Any:
    if is_stream(history):
        raise ValueError("history must be a table in memory, such as a DataFrame; a path or dataset can only be x.")
    return history


def _whole(data: Frame, method: str) -> Frame:
    if is_stream(data):
        raise ValueError(f"{method} takes a table in memory, such as a DataFrame, but got {data!r}; read it first.")
    return data


def _level(interval: float | None) -> float | None:
    return None if interval is None else _sure_level(interval)


def _sure_level(interval: float) -> float:
    if interval is None or not 0.0 < interval < 1.0:
        raise ValueError(f"interval must lie between 0 and 1, such as 0.9; got {interval!r}.")
    return interval


def _count(value: int, name: str = "draws") -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return int(value)


def resolve_device(name: str) -> torch.device:
    """The device behind a name; "auto" is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0].split(":")[0].rstrip(".")
        raise ValueError(f"device is {name!r}, which cannot be used here ({reason}); try 'auto' or 'cpu'.") from None
    return device
