"""What a fitted model answers: tables in, tables out, in the caller's own library."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, overload

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from lacova.covariates.single_imputation import Fill
from lacova.data.batches import Batches
from lacova.data.errors import DataError, about
from lacova.data.holdout import HeldOut
from lacova.data.io.dataframes import Frame, to_pandas
from lacova.data.io.files import require_apart
from lacova.data.io.parquet import is_stream
from lacova.data.labels import Fingerprints
from lacova.data.levels import Unseen, check_unseen, one_warning
from lacova.data.schema import Schema
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder
from lacova.inference.draws import Draws, chunks
from lacova.inference.ensemble import MemberDoubt, merge_draws, spread
from lacova.inference.filtering import beside_observed, only_earlier_values, visit_numbers
from lacova.inference.impute import imputation_draws, weighted_draws
from lacova.inference.joint_scores import JointScores
from lacova.inference.objective import elbo, log_likelihood
from lacova.inference.predict import paired_draws, predictive_draws
from lacova.inference.score import DrawsAndTruth, by_column, overall
from lacova.inference.summaries import completed, completed_draws, predicted, predicted_draws, summarise
from lacova.inference.vae import ENCODING_DRAWS, ConditionalVAE
from lacova.inference.what_if import WhatIf, compare, encode_setting, from_text
from lacova.likelihoods.moments import Moments
from lacova.models.checks import (
    check_interval,
    check_memory,
    history_in_memory,
    in_memory,
    no_output_file,
    whole_number,
)
from lacova.models.streams import opened, parts, write_answers
from lacova.nn.threads import with_suitable_threads
from lacova.training.options import FitOptions

MEAN_DRAWS = 100
INTERVAL_DRAWS = 400


class NotFittedError(RuntimeError):
    """The model has not been fitted yet."""


class Inference:
    """The part of a model that answers, once it is fitted."""

    schema: Schema
    latent_dim: int
    encoder: TableEncoder | None
    fill: Fill | None
    vae: ConditionalVAE | None
    members: tuple[ConditionalVAE, ...]
    training_instances: frozenset[Any] | Fingerprints
    held_out: HeldOut
    options: FitOptions
    _unseen: Unseen = "warn"

    @property
    def unseen(self) -> Unseen:
        """What becomes of entries whose levels training does not know; see `Model`."""
        return self._unseen

    @unseen.setter
    def unseen(self, unseen: Unseen) -> None:
        check_unseen(unseen)
        self._unseen = unseen

    @with_suitable_threads
    def impute(
        self, data: Frame, draws: int | None = None, *, interval: float | None = None, probabilities: bool = False,
        seed: int = 0, independent_noise: bool = False, out: str | os.PathLike[str] | None = None,
    ) -> Frame:  # fmt: skip
        """Fill the gaps of a table; observed entries come back as they were, those of unseen levels, too.

        Args:
            data: rows with gaps in Y and X; or the path of a Parquet file or folder, or a pyarrow Dataset.
            draws: None for one table (mean of a number, most probable level of a category); n for n completed
                tables one below the other, numbered in a column `draw`.
            interval: with `draws=None`, adds `<column>_lower` and `<column>_upper`, the central interval of each
                numeric column (observed entries: the value itself).
            probabilities: with `draws=None`, adds `<column>_p_<level>`, the probability of each level of each
                categorical column with gaps (observed entries: 1 for the level observed).
            seed: of the draws.
            independent_noise: give every row, or patient, the same random numbers, so that its means do not depend on
                the rows beside it. Slower, and wrong for `draws`, which must be independent between rows.
            out: where the answer to a path or a dataset goes, as Parquet, written as it is made; see docs/scaling.md.

        Returns:
            a table of the same library as `data`, its columns of the same types; of a path or dataset, the path `out`.
        """
        if is_stream(data):
            answer = partial(
                self._impute, draws=draws, interval=interval, probabilities=probabilities,
                independent_noise=independent_noise, every=True,
            )  # fmt: skip
            return cast(Frame, self._write(data, out, seed, answer, same_seed=independent_noise, beside=False))
        no_output_file(out)
        return self._impute(data, draws, interval, probabilities, seed, independent_noise)

    def _impute(
        self, data: Frame, draws: int | None, interval: float | None, probabilities: bool, seed: int,
        independent_noise: bool, every: bool = False,
    ) -> Frame:  # fmt: skip
        encoder, _ = self.fitted()
        if draws is not None and (interval is not None or probabilities):
            word = "probabilities" if interval is None else "interval"
            raise ValueError(f"give draws or {word}, not both: draws leave the summary to you.")
        if draws is not None and independent_noise:
            raise ValueError(
                "independent_noise gives all rows the same random numbers, but completed tables need rows drawn "
                "independently."
            )
        count = MEAN_DRAWS if interval is None else INTERVAL_DRAWS
        count = whole_number(count if draws is None else draws)
        interval = None if interval is None else check_interval(interval)
        frame, origin = to_pandas(data, self.schema.columns)
        table = self.encode(frame)
        check_memory(count, table, 0 if draws is None else frame.size)
        imputed = self._imputation(table, count, seed, independent_noise, resample=draws is not None)
        if draws is not None:
            return origin.complete(completed_draws(frame, encoder, imputed, table, count))
        summary = summarise(imputed, len(table), encoder, interval)
        return origin.complete(completed(frame, encoder, summary, probabilities, every=every))

    def _imputation(
        self, table: Table, count: int, seed: int, independent_noise: bool = False, resample: bool = True
    ) -> Iterable[Draws]:
        """Draw every row of an encoded table; where draws are weighted, with weights unless they are resampled."""

        def draw(k: int, count: int) -> Iterable[Draws]:
            vae, own, generator = self.draw_from[k], self._condition_by(k, table), self._generator(seed, k)
            if self._weights_draws(vae):
                return weighted_draws(vae, own, count, generator, independent_noise, resample)
            return imputation_draws(vae, own, count, generator, self.training_instances, independent_noise)

        return self._spread(draw, count)

    def _weights_draws(self, vae: ConditionalVAE) -> bool:
        """Return whether imputation weights draws: as training did, unless z of a row depends on that of others."""
        return vae.prior.independent and (self.options.importance > 1 or vae.missingness is not None)

    @with_suitable_threads
    @torch.no_grad()
    def prior_covariates(self, data: Frame, *, draws: int = MEAN_DRAWS, seed: int = 0) -> Frame:
        """Draw missing covariates from p(x_u | x_o), without the measurements.

        Beside the draws of `impute(draws=...)` they show what the measurements add.

        Args:
            data: rows with covariates and measurements; the measurements do not enter.
            draws: how many.
            seed: of the draws.

        Returns:
            `draws` tables of the covariates one below the other, numbered in a column `draw`, as those of `impute`;
            of the same library as `data`.
        """
        encoder, vae = self.fitted()
        if self.fill is not None:
            raise ValueError(f"this {type(self).__name__} fills gaps in covariates once; it has no prior of them.")
        frame, origin = to_pandas(in_memory(data, "prior_covariates"), self.schema.columns)
        table, generator = self.encode(frame), self._generator(seed)
        check_memory(whole_number(draws), table, table.x.numel())
        y = torch.zeros(1, *table.y.shape)
        drawn = (
            Draws(rows, y[:, rows], torch.ones(y.shape[-1]), y[:, rows], x)
            for rows, batch in chunks(table, draws)
            for x in [vae.covariate_prior.draw(batch, draws, generator).cpu()]
        )
        tables = completed_draws(frame, encoder, drawn, table, draws)
        return origin.table(tables[["draw", *self._input_columns]])

    @with_suitable_threads
    def predict(
        self, x: Frame, history: Any = None, *, draws: int = MEAN_DRAWS, interval: float | None = None,
        probabilities: bool = False, seed: int = 0, independent_noise: bool = False,
        out: str | os.PathLike[str] | None = None,
    ) -> Frame:  # fmt: skip
        """Predict Y for covariates with gaps; measurements in `x`, if there are any, do not enter.

        Args:
            x: rows of covariates (and the instance column, if there is one); or the path of a Parquet file or folder,
                or a pyarrow Dataset.
            history: earlier visits of some of the patients in `x`, measurements included; for patients of the training
                rows, those rows. Patients' averages are over all their rows, in `x` and here.
            draws: how many draws of x_u and z to average over.
            interval: adds `<column>_lower` and `<column>_upper`, a central interval such as 0.9, of each number.
            probabilities: adds `<column>_p_<level>`, the probability of each level of each categorical measurement.
            seed: of the draws.
            independent_noise: give every row, or patient, the same random numbers, so that its answer does not depend
                on the rows beside it.
            out: where the answer to a path or a dataset goes, as Parquet, with the columns of `x` beside it.

        Returns:
            the predictive mean of every number and the most probable level of every category, row by row as in `x`;
            with the index of `x`, if it is pandas. Of a path or dataset, the path `out`.
        """
        encoder, _ = self.fitted()
        interval = None if interval is None else check_interval(interval)
        if is_stream(x):
            answer = partial(
                self.predict, history=history_in_memory(history), draws=draws, interval=interval,
                probabilities=probabilities, independent_noise=independent_noise,
            )  # fmt: skip
            return cast(Frame, self._write(x, out, seed, answer, same_seed=independent_noise, measurements=False))
        no_output_file(out)
        frame, origin = to_pandas(x, self._input_columns)
        drawn = self._predictive_draws(frame, history, whole_number(draws), seed, independent_noise)
        summary = summarise(drawn, len(frame), encoder, interval)
        return origin.table(predicted(frame.index, encoder, summary, probabilities))

    @with_suitable_threads
    def sample(
        self, x: Frame, history: Any = None, *, draws: int = 20, seed: int = 0, independent_noise: bool = False,
        out: str | os.PathLike[str] | None = None,
    ) -> Frame:  # fmt: skip
        """Draw Y (noise included) for covariates with gaps: `draws` tables one below the other, numbered in `draw`.

        With `independent_noise`, every row (or patient) gets the same random numbers: its draws do not depend on the
        rows beside it, but draws of different rows are no longer independent. `x` and `out` are those of `predict`.
        """
        encoder, _ = self.fitted()
        draws = whole_number(draws)
        if is_stream(x):
            answer = partial(
                self.sample, history=history_in_memory(history), draws=draws, independent_noise=independent_noise
            )
            return cast(Frame, self._write(x, out, seed, answer, same_seed=independent_noise, measurements=False))
        no_output_file(out)
        frame, origin = to_pandas(x, self._input_columns)
        kept = len(frame) * len(self.schema.measurements)
        drawn = self._predictive_draws(frame, history, draws, seed, independent_noise, kept)
        return origin.table(predicted_draws(frame.index, encoder, drawn, draws))

    @with_suitable_threads
    def what_if(
        self, data: Frame, changes: Mapping[str, Any], history: Any = None, *, draws: int = INTERVAL_DRAWS,
        interval: float = 0.9, seed: int = 0, keep_draws: bool = False,
    ) -> WhatIf[Frame]:  # fmt: skip
        """Predict Y with some covariates set to other values, beside the prediction as things are.

        Both predictions share their random numbers, so that the difference is free of noise. What else is unknown stays
        as it is: a gap in another covariate is drawn as if nothing had been set. Whether the difference is an effect of
        setting the covariate depends on the study, not on the model; see docs/effects.md.

        Args:
            data: rows of covariates, as in `predict`; measurements do not enter.
            changes: the value, in its own units or as a level, of each covariate to set, such as `{"arm": "b"}`. It is
                set in the rows of `data`; the history is as it was.
            history: earlier visits, as in `predict`.
            draws: how many.
            interval: the central interval, such as 0.9.
            seed: of the draws.
            keep_draws: return the paired draws too, for what the summaries leave out: the probability of a difference
                of more than so much, or the average over a subgroup. They have `draws` times as many lines as `rows`.

        Returns:
            tables of the same library as `data`: `rows`, with a line per row and measurement, `average`, with a line
            per measurement, over all rows, and `draws`, if they are kept, with a line per draw, row and measurement.
        """
        encoder, vae = self.fitted()
        interval = check_interval(interval)
        frame, origin = to_pandas(in_memory(data, "what_if"), self._input_columns)
        table, new = self.encode_with_history(frame, history)
        setting = encode_setting(encoder, frame, changes)
        draws = whole_number(draws)
        check_memory(draws, table, 2 * len(frame) * len(self.schema.measurements) if keep_draws else 0)

        def draw(k: int, each: int) -> Iterable[tuple[Draws, Draws]]:
            own, generator = self._condition_by(k, table), self._generator(seed, k)
            return paired_draws(self.draw_from[k], own, new, setting, each, generator, self.training_instances)

        def merge(parts: Sequence[tuple[Draws, Draws]]) -> tuple[Draws, Draws]:
            as_is, set_to = (merge_draws(side, draws, encoder.space) for side in zip(*parts, strict=True))
            return as_is, set_to

        pairs = spread(self.draw_from, draws, draw, merge)
        doubt = MemberDoubt(len(self.draw_from), draws, self._generator(seed, len(self.draw_from)))
        answer = compare(encoder, Moments(encoder, vae.likelihood), frame, pairs, interval, doubt, keep_draws)
        kept = None if answer.draws is None else origin.table(answer.draws)
        return WhatIf(origin.table(answer.rows), origin.table(answer.average), kept)

    def read_value(self, covariate: str, text: str) -> Any:
        """Return a covariate's value as typed, for `what_if`: the level that reads like that, or a number."""
        return from_text(self.fitted()[0], covariate, text)

    @with_suitable_threads
    def filter(
        self, data: Frame, *, draws: int = INTERVAL_DRAWS, interval: float = 0.9, seed: int = 0,
        independent_noise: bool = False,
    ) -> Frame:  # fmt: skip
        """Predict each visit's measurements from all earlier visits of the same patient, without fitting again.

        The first visits of all patients are predicted together, from their covariates alone, then the second ones,
        given the first, and so on. Visits are in the order of the time column, or of the rows if there is none.

        Args:
            data: rows with covariates and measurements.
            draws: how many.
            interval: the central interval, such as 0.9.
            seed: of the draws.
            independent_noise: as in `predict`.

        Returns:
            one line per row and measurement: what was `observed`, the `mean`, `lower` and `upper` of its prediction,
            and whether it lay `inside`. A category has a line for each level, `<measurement>_p_<level>`: 1 if it was
            observed and else 0, and as `mean` its probability; without an interval.
        """
        encoder, _ = self.fitted()
        interval, draws = check_interval(interval), whole_number(draws)
        frame, origin = to_pandas(in_memory(data, "filter"), self.schema.columns)
        encoder.require(frame)
        number = visit_numbers(frame, self.schema)
        table, tables = encoder.encode(frame, unseen=self.unseen), []
        for k in range(number.max() + 1):
            rows = np.flatnonzero(number == k)
            known = self._conditioned(only_earlier_values(table, frame, self.schema, number, k))
            new = torch.arange(len(known)) < len(rows)
            drawn = self._predictions(known, new, draws, seed, independent_noise)
            summary = summarise(drawn, len(rows), encoder, interval)
            tables.append(predicted(cast("pd.Index[Any]", pd.Index(rows)), encoder, summary, probabilities=True))
        return origin.table(beside_observed(frame, encoder, pd.concat(tables).sort_index()))

    @with_suitable_threads
    def log_likelihood(
        self, data: Any, *, draws: int = MEAN_DRAWS, seed: int = 0, out: str | os.PathLike[str] | None = None
    ) -> Any:
        """Return log p(y_o | x_o) per row in the measurements' own units, by importance sampling with `draws` draws.

        Of a path or a dataset, a column `log_likelihood` beside the others in the Parquet file `out`.
        """
        encoder, vae = self.fitted()
        if is_stream(data):
            answer = partial(self.log_likelihood, draws=draws)
            return self._write(data, out, seed, lambda *a, **k: pa.table({"log_likelihood": answer(*a, **k)}))
        no_output_file(out)
        frame, origin = to_pandas(data, self.schema.columns)
        table = self.encode(frame)
        check_memory(whole_number(draws), table)
        values = torch.full((len(self.draw_from), len(table)), -math.log(len(self.draw_from)), dtype=torch.float64)
        for k, vae in enumerate(self.draw_from):
            generator, own = self._generator(seed, k), self._condition_by(k, table)
            for rows, batch in chunks(own, draws, width=vae.prior.width):
                value = log_likelihood(vae, batch, draws, generator).double()
                values[k, rows] += (value + encoder.log_jacobian(batch.y, batch.y_mask)).cpu()
        values = values.logsumexp(0)  # the density of an ensemble is the mean of its members'
        return origin.series(pd.Series(values.numpy(), index=frame.index, name="log_likelihood"))

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
                Jointly: `energy` and `variogram` of the numbers of a row, `course_energy` and `course_variogram` of
                those of one measurement over the visits of a patient, each a mean over rows or courses of at least two
                entries, in the training scales; see docs/explain/calibration.md.
                True for a table with one row per measurement, everything per entry and in its own units. See
                docs/observation.md for what `nll` is of which kind.
            draws: of x_u and z per row, at least 2.
            seed: of the draws.
        """
        by_measurement, together = self.scores(data, draws=draws, seed=seed)
        return by_measurement if columns else together

    @with_suitable_threads
    def scores(self, data: Any, *, draws: int = MEAN_DRAWS, seed: int = 0) -> tuple[pd.DataFrame, dict[str, float]]:
        """Return both answers of `score`, by measurement and over all, from the same predictions."""
        encoder, vae = self.fitted()
        columns = self.schema.columns
        if whole_number(draws) < 2:
            raise ValueError(f"draws is {draws}; expected at least 2, as scores compare draws with each other.")

        def predictions() -> Iterator[DrawsAndTruth]:
            """Predict every row from its covariates alone; all its observed measurements count."""
            for part, own_seed in parts(opened(data, self.schema.instance, columns), seed, columns):
                yield from self._predictions_and_truth(self.encode(part), draws, own_seed)

        joint = JointScores(encoder)
        with one_warning():
            table, rows = by_column(vae, encoder, predictions(), joint)
        return table, overall(table, encoder.scales.spread, rows) | joint.means()

    def _predictions_and_truth(self, table: Table, draws: int, seed: int) -> Iterator[DrawsAndTruth]:
        """Predict every row of an encoded table from its covariates alone."""
        for drawn in self._predictions(table, torch.ones(len(table), dtype=torch.bool), draws, seed, trained=()):
            patient = None if table.patient is None else table.patient[drawn.rows]
            yield DrawsAndTruth(drawn, table.y[drawn.rows], table.y_mask[drawn.rows], patient)

    @with_suitable_threads
    @torch.no_grad()
    def embed(self, data: Frame, *, out: str | os.PathLike[str] | None = None) -> Frame:
        """Return mean and variance of q(z | y_o, x_o) of each row: columns `z1`, ..., then `z1_var`, ...

        Of a path or a dataset, these columns beside the others in the Parquet file `out`.
        """
        _, vae = self.fitted()
        if is_stream(data):
            return cast(Frame, self._write(data, out, 0, lambda part, seed: self.embed(part)))
        no_output_file(out)
        frame, origin = to_pandas(data, self.schema.columns)
        table = self.encode(frame)
        values = torch.empty(len(table), 2 * self.latent_dim, dtype=torch.float64)
        for rows, batch in chunks(table, ENCODING_DRAWS):
            values[rows] = torch.cat(vae.encode(batch), dim=1).double().cpu()
        names = [f"z{k + 1}" for k in range(self.latent_dim)]
        columns = [*names, *(f"{name}_var" for name in names)]
        return origin.table(pd.DataFrame(values.numpy(), index=frame.index, columns=columns))

    def was_held_out(self, data: Any) -> Any:
        """Return which rows of a table `fit` did not train on, but held out or was given as validation rows.

        Patients are known by their labels, rows without patients by their content.

        Args:
            data: a table in memory with the columns of the schema.

        Returns:
            a column of True and False, in the library of the table.

        Examples:
            >>> import numpy as np, pandas as pd, lacova
            >>> table = pd.DataFrame({"alt": np.arange(50.0), "ast": np.arange(50.0)[::-1]})
            >>> model = lacova.VAE(lacova.Schema(["alt", "ast"], {}), latent_dim=1)
            >>> held_out = model.fit(table, validation=0.2, max_epochs=1).was_held_out(table)
            >>> int(held_out.sum()), len(lacova.recover(model, table[held_out]).masked)
            (10, 10)
        """
        encoder, _ = self.fitted()
        frame, origin = to_pandas(in_memory(data, "was_held_out"), self.schema.columns)
        encoder.require(frame)
        return origin.series(pd.Series(self.held_out.among(frame, encoder), index=frame.index, name="held_out"))

    @with_suitable_threads
    @torch.no_grad()
    def elbo(self, data: Any, *, samples: int = 1, seed: int = 0) -> dict[str, float]:
        """Return the named terms of the bound on log p(Y_o | X_o) over a table, in the measurements' own units."""
        encoder, vae = self.fitted()
        table = self.encode(data)
        generator, samples = self._generator(seed), whole_number(samples, "samples")
        total = {
            "reconstruction": float(encoder.log_jacobian(table.y, table.y_mask).sum()),
            "kl_latent": 0.0,
            "kl_covariates": 0.0,
        }
        inducing = 0.0
        for _, batch in Batches(table, self.options.batch).in_order():
            terms = elbo(vae, batch, generator, samples, self.options.cap).named()
            total = {name: value + terms[name] for name, value in total.items()}
            inducing = terms["kl_inducing"]
        total["kl_inducing"] = inducing
        total["elbo"] = total["reconstruction"] - total["kl_latent"] - total["kl_covariates"] - inducing
        return total

    # How tables reach the model.

    def fitted(self) -> tuple[TableEncoder, ConditionalVAE]:
        """Return the table encoder and the trained network; raise `NotFittedError` before `fit`."""
        if self.encoder is None or self.vae is None:
            raise NotFittedError(f"this {type(self).__name__} has not been fitted; call fit(train) first.")
        return self.encoder, self.vae

    @property
    def draw_from(self) -> tuple[ConditionalVAE, ...]:
        """The modules that draws are spread over: the members of an ensemble, or the one model."""
        return self.members or (self.fitted()[1],)

    def _generator(self, seed: int, member: int = 0) -> torch.Generator:
        return torch.Generator(self.fitted()[1].device).manual_seed(seed + 1_000_003 * member)

    def _condition_by(self, member: int, table: Table) -> Table:
        """Return a conditioned table with the conditional prior of a member, if there are members."""
        return self.draw_from[member].condition(table) if self.members else table

    def _spread(self, draw: Callable[[int, int], Iterable[Draws]], draws: int) -> Iterator[Draws]:
        space = self.fitted()[0].space
        return spread(self.draw_from, draws, draw, lambda parts: merge_draws(parts, draws, space))

    @property
    def _input_columns(self) -> list[str]:
        """The columns that enter a prediction."""
        return [name for name in self.schema.columns if name not in self.schema.measurements]

    def encode(self, data: Any, measurements: bool = True) -> Table:
        """Return a DataFrame as tensors, with the conditional prior of its missing covariates.

        Without `measurements`, all of Y is missing.
        """
        frame, _ = to_pandas(data, self.schema.columns)
        return self._conditioned(self.fitted()[0].encode(frame, measurements=measurements, unseen=self.unseen))

    def without_unseen(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a table as the model sees it: with gaps in the place of levels that training does not know."""
        return self.fitted()[0].without_unseen(frame, self.unseen)

    def _conditioned(self, table: Table) -> Table:
        """Return an encoded table with its gaps in X filled, or with their conditional prior, on the model's device."""
        _, vae = self.fitted()
        table = table if self.fill is None else self.fill(table)
        return vae.condition(table).to(vae.device)

    def _predictive_draws(
        self, x: pd.DataFrame, history: Any, draws: int, seed: int, independent_noise: bool, kept: int = 0
    ) -> Iterable[Draws]:
        table, new = self.encode_with_history(x, history)
        return self._predictions(table, new, draws, seed, independent_noise, kept=kept)

    def _predictions(
        self, table: Table, new: Tensor, draws: int, seed: int, independent_noise: bool = False,
        trained: Container[Any] | None = None, kept: int = 0,
    ) -> Iterable[Draws]:  # fmt: skip
        """Draw Y of the `new` rows; `trained` replaces the labels of the training instances.

        So many numbers per draw will be `kept`.
        """
        labels = self.training_instances if trained is None else trained

        check_memory(draws, table, kept)

        def draw(k: int, count: int) -> Iterable[Draws]:
            own, generator = self._condition_by(k, table), self._generator(seed, k)
            return predictive_draws(self.draw_from[k], own, new, count, generator, labels, independent_noise)

        return self._spread(draw, draws)

    def encode_with_history(self, x: pd.DataFrame, history: Any) -> tuple[Table, Tensor]:
        """Encode rows to predict and, behind them, the history of their instances; return which rows to predict."""
        encoder, _ = self.fitted()
        encoder.require(x, measurements=False)
        past = None if history is None else self._history_of(x, history)
        if past is None or not len(past):
            return self.encode(x, measurements=False), torch.ones(len(x), dtype=torch.bool)
        inputs = x.drop(columns=list(self.schema.measurements), errors="ignore")
        try:
            table = self.encode(pd.concat([inputs, past[list(self.schema.columns)]]))
        except DataError as error:
            encoder.encode(x, measurements=False, unseen=self.unseen)  # whose own errors come first
            raise DataError(f"the rows to predict and their history together: {error}") from None
        return table, torch.arange(len(table)) < len(x)

    def _history_of(self, x: pd.DataFrame, history: Any) -> pd.DataFrame:
        """Return the rows of the history that belong to instances of x."""
        if self.schema.instance is None:
            raise DataError(
                "history belongs to instances, but the schema has no instance column: give Schema(instance=...)."
            )
        visits, _ = to_pandas(history, self.schema.columns)
        with about("history"):
            self.fitted()[0].require(visits)
        return visits[visits[self.schema.instance].isin(set(x[self.schema.instance]))]

    def _write(
        self, data: Any, out: str | os.PathLike[str] | None, seed: int, answer: Any, *, same_seed: bool = False,
        beside: bool = True, measurements: bool = True,
    ) -> Any:  # fmt: skip
        self.fitted()
        columns = self.schema.columns if measurements else self._input_columns
        if out is not None and isinstance(data, str | os.PathLike):
            require_apart({"out": Path(out)}, {"the data": Path(data)})
        source = None if out is None else opened(data, self.schema.instance, columns)
        with one_warning():
            return write_answers(source, out, seed, answer, same_seed=same_seed, beside=beside)
