"""What a fitted model answers: tables in, tables out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, overload

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from lacova.covariates.factorised import level_probabilities, most_probable
from lacova.covariates.single_imputation import Fill
from lacova.data.batches import Batches
from lacova.data.encoder import Table, TableEncoder
from lacova.data.errors import DataError, about
from lacova.data.io.dataframes import Frame, to_pandas
from lacova.data.io.parquet import Source, is_stream, open_source, writing
from lacova.data.labels import Fingerprints
from lacova.data.schema import Schema
from lacova.inference.filtering import followed, visit_numbers
from lacova.inference.impute import guessed, imputation_draws, weighted_draws
from lacova.inference.objective import elbo, log_likelihood
from lacova.inference.predict import Draws, chunks, paired_draws, predictive_draws
from lacova.inference.score import by_column, overall, predictions
from lacova.inference.summaries import completed, completed_draws, predicted, predicted_draws, summarise
from lacova.inference.vae import ConditionalVAE
from lacova.inference.what_if import WhatIf, compare, encode_setting, from_text
from lacova.likelihoods.moments import Moments
from lacova.training.options import FitOptions

MEAN_DRAWS = 100
INTERVAL_DRAWS = 400
ANSWER_ROWS = 10_000  # of a stream that are answered at a time


class NotFittedError(RuntimeError):
    """The model has not been fitted yet."""


class Inference:
    """The part of a model that answers, once it is fitted. Tables go in and come out in the caller's own library."""

    schema: Schema
    latent_dim: int
    _encoder: TableEncoder | None
    _fill: Fill | None
    _vae: ConditionalVAE | None
    _trained: frozenset[Any] | Fingerprints
    _options: FitOptions

    def _fitted(self) -> tuple[TableEncoder, ConditionalVAE]:
        if self._encoder is None or self._vae is None:
            raise NotFittedError(f"this {type(self).__name__} has not been fitted; call fit(train) first.")
        return self._encoder, self._vae

    def _noise(self, seed: int) -> torch.Generator:
        return torch.Generator(next(self._fitted()[1].parameters()).device).manual_seed(seed)

    def _opened(self, data: Any, measurements: bool = True) -> Any:
        """What is behind a path or a dataset: a source to read bit by bit, or a table; a table is itself."""
        columns = self.schema.columns if measurements else self._given
        return open_source(data, self.schema.instance, columns) if is_stream(data) else data

    def _encode(self, data: Any, measurements: bool = True) -> Table:
        """A table as the fitted model takes it: scaled, its gaps in X filled or prepared, on the model's device."""
        encoder, vae = self._fitted()
        frame, _ = to_pandas(data, self.schema.columns)
        table = encoder.encode(frame, measurements=measurements)
        table = table if self._fill is None else self._fill(table)
        return vae.condition(table).to(next(vae.parameters()).device)

    def impute(
        self, data: Frame, draws: int | None = None, *, interval: float | None = None, probabilities: bool = False,
        seed: int = 0, independent_noise: bool = False, out: str | os.PathLike[str] | None = None,
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
            independent_noise: give every row, or patient, the same noise, so that its means do not depend on the rows beside it.
                Slower, and wrong for `draws`, which must be independent between rows.
            out: where the answer to a path or a dataset goes, as Parquet, written as it is made; see docs/scaling.md.

        Returns:
            a table of the same library as `data`, its columns of the same types; of a path or dataset, the path `out`.
        """
        if is_stream(data):
            each = partial(
                self._impute,
                draws=draws,
                interval=interval,
                probabilities=probabilities,
                independent_noise=independent_noise,
            )
            return cast(Frame, self._write(data, out, seed, independent_noise, partial(each, every=True), beside=False))
        _no_out(out)
        return self._impute(data, draws, interval, probabilities, seed, independent_noise)

    def _impute(
        self, data: Frame, draws: int | None, interval: float | None, probabilities: bool, seed: int, independent_noise: bool,
        every: bool = False,
    ) -> Frame:  # fmt: skip
        encoder, vae = self._fitted()
        if draws is not None and (interval is not None or probabilities):
            word = "probabilities" if interval is None else "interval"
            raise ValueError(f"give draws or {word}, not both: draws leave the summary to you.")
        if draws is not None and independent_noise:
            raise ValueError("alone gives all rows the same noise, but completed tables need rows drawn independently.")
        count = MEAN_DRAWS if interval is None else INTERVAL_DRAWS
        count, interval = whole_number(count if draws is None else draws), _level(interval)
        frame, origin = to_pandas(data, self.schema.columns)
        table = self._encode(frame)
        weighs = self._weighs(vae)
        parts = self._imputation(table, count, seed, independent_noise, resample=draws is not None)
        if draws is not None:
            return origin.complete(completed_draws(frame, encoder, parts, table, count))
        guess = torch.empty(table.x.shape)
        probs = torch.empty(*table.x.shape, vae.space.max_levels) if probabilities else None
        if weighs:
            parts = _noted(parts, vae, guess, probs)
        else:
            for rows, batch in chunks(table, 1, self._noise(seed) if independent_noise else None):
                distribution = vae.believe(batch)
                guess[rows] = most_probable(distribution, batch, vae.space).detach().cpu()
                if probs is not None:
                    probs[rows] = level_probabilities(distribution, batch).detach().cpu()
        summary = summarise(parts, len(table), encoder, interval)
        return origin.complete(completed(frame, encoder, summary, guess, probs, every=every))

    def _imputation(
        self, table: Table, count: int, seed: int, independent_noise: bool = False, resample: bool = True
    ) -> Iterable[Draws]:  # fmt: skip
        """Draws for every row of an encoded table; where they are weighed, with weights unless they are resampled."""
        vae = self._fitted()[1]
        if self._weighs(vae):
            return weighted_draws(vae, table, count, self._noise(seed), independent_noise, resample)
        return imputation_draws(vae, table, count, self._noise(seed), self._trained, independent_noise)

    @torch.no_grad()
    def prior_covariates(self, data: Frame, *, draws: int = MEAN_DRAWS, seed: int = 0) -> Frame:
        """Draws of missing covariates from p(x_u | x_o), before any measurement is looked at.

        Beside the draws of `impute(draws=...)` they show what the measurements say of the gaps.

        Args:
            data: rows with measurements, which are not looked at, and covariates.
            draws: how many.
            seed: of the draws.

        Returns:
            `draws` tables of the covariates one below the other, numbered in a column `draw`, as those of `impute`;
            of the same library as `data`.
        """
        encoder, vae = self._fitted()
        if self._fill is not None:
            raise ValueError(f"this {type(self).__name__} fills gaps in covariates once; it has no prior of them.")
        frame, origin = to_pandas(whole(data, "prior_covariates"), self.schema.columns)
        table, noise = self._encode(frame), self._noise(seed)
        y = torch.zeros(1, *table.y.shape)
        drawn = (
            Draws(rows, y[:, rows], y[:, rows], torch.ones(y.shape[-1]), x)
            for rows, batch in chunks(table, draws)
            for x in [vae.covariate_prior.draw(batch, draws, noise).cpu()]
        )
        found = completed_draws(frame, encoder, drawn, table, whole_number(draws))
        return origin.table(found[["draw", *self._given]])

    def _weighs(self, vae: ConditionalVAE) -> bool:
        """Whether imputation weighs draws: as training did, unless z of a row depends on that of others."""
        return vae.prior.independent and (self._options.importance > 1 or vae.missingness is not None)

    def predict(
        self, x: Frame, history: Any = None, *, draws: int = MEAN_DRAWS, interval: float | None = None,
        probabilities: bool = False, seed: int = 0, independent_noise: bool = False, out: str | os.PathLike[str] | None = None,
    ) -> Frame:  # fmt: skip
        """Predict Y for covariates with gaps; any measurements in `x` are not looked at.

        Args:
            x: rows of covariates (and the instance column, if there is one); or the path of a Parquet file or folder,
                or a pyarrow Dataset.
            history: earlier visits of some of the patients in `x`, measurements included; for patients of the training
                rows, those rows. All rows of a patient, in `x` and here, say what it is like on average.
            draws: how many draws of x_u and z to average over.
            interval: adds `<column>_lower` and `<column>_upper`, a central interval such as 0.9, of each number.
            probabilities: adds `<column>_p_<level>`, the probability of each level of each categorical measurement.
            seed: of the draws.
            independent_noise: give every row, or patient, the same noise, so that its answer does not depend on the rows beside it.
            out: where the answer to a path or a dataset goes, as Parquet, with the columns of `x` beside it.

        Returns:
            the predictive mean of every number and the most probable level of every category, row by row as in `x`;
            with the index of `x`, if it is pandas. Of a path or dataset, the path `out`.
        """
        encoder, _ = self._fitted()
        interval = _level(interval)
        if is_stream(x):
            each = partial(
                self.predict, history=_in_memory(history), draws=draws, interval=interval, probabilities=probabilities,
                independent_noise=independent_noise,
            )  # fmt: skip
            return cast(Frame, self._write(x, out, seed, independent_noise, each, measurements=False))
        _no_out(out)
        frame, origin = to_pandas(x, self._given)
        parts = self._predict_draws(frame, history, whole_number(draws), seed, independent_noise)
        summary = summarise(parts, len(frame), encoder, interval)
        return origin.table(predicted(frame.index, encoder, summary, probabilities))

    def sample(
        self, x: Frame, history: Any = None, *, draws: int = 20, seed: int = 0, independent_noise: bool = False,
        out: str | os.PathLike[str] | None = None,
    ) -> Frame:  # fmt: skip
        """Draw Y (noise included) for covariates with gaps: `draws` tables one below the other, numbered in `draw`.

        With `alone`, every row (or patient) gets the same noise: its draws do not depend on the rows beside it, but
        draws of different rows are no longer independent. `x` and `out` are those of `predict`.
        """
        encoder, _ = self._fitted()
        draws = whole_number(draws)
        if is_stream(x):
            each = partial(self.sample, history=_in_memory(history), draws=draws, independent_noise=independent_noise)
            return cast(Frame, self._write(x, out, seed, independent_noise, each, measurements=False))
        _no_out(out)
        frame, origin = to_pandas(x, self._given)
        parts = self._predict_draws(frame, history, draws, seed, independent_noise)
        return origin.table(predicted_draws(frame.index, encoder, parts, draws))

    def what_if(
        self, data: Frame, changes: Mapping[str, Any], history: Any = None, *, draws: int = INTERVAL_DRAWS,
        interval: float = 0.9, seed: int = 0, keep_draws: bool = False,
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
            keep_draws: give the paired draws too, for what the summaries do not say: how probable a difference of more
                than so much is, or the average over a subgroup. They are `draws` times as many lines as `rows` has.

        Returns:
            tables of the same library as `data`: `rows`, with a line per row and measurement, `average`, with a line
            per measurement, over all rows, and `draws`, if they are kept, with a line per draw, row and measurement.
        """
        encoder, vae = self._fitted()
        level = sure_level(interval)
        frame, origin = to_pandas(whole(data, "what_if"), self._given)
        table, marked = self._with_history(frame, history)
        setting = encode_setting(encoder, frame, changes)
        pairs = paired_draws(vae, table, marked, setting, whole_number(draws), self._noise(seed), self._trained)
        found = compare(encoder, Moments(encoder, vae.likelihood), frame, pairs, level, keep_draws)
        kept = None if found.draws is None else origin.table(found.draws)
        return WhatIf(origin.table(found.rows), origin.table(found.average), kept)

    def read_value(self, covariate: str, text: str) -> Any:
        """A value of a covariate as somebody typed it, for `what_if`: the level that reads like that, or a number."""
        return from_text(self._fitted()[0], covariate, text)

    def filter(
        self,
        data: Frame,
        *,
        draws: int = INTERVAL_DRAWS,
        interval: float = 0.9,
        seed: int = 0,
        independent_noise: bool = False,
    ) -> Frame:
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
        encoder, _ = self._fitted()
        level = sure_level(interval)
        frame, origin = to_pandas(whole(data, "filter"), self.schema.columns)
        encoder.require(frame)
        number = visit_numbers(frame, self.schema)
        found = []
        for k in range(number.max() + 1):
            now, before = frame[number == k], frame[number < k]
            parts = self._predict_draws(now, before if k else None, whole_number(draws), seed, independent_noise)
            places: pd.Index[Any] = pd.Index(np.flatnonzero(number == k))
            found.append(predicted(places, encoder, summarise(parts, len(now), encoder, level), probabilities=True))
        return origin.table(followed(frame, encoder, pd.concat(found).sort_index()))

    def _write(
        self, data: Any, out: str | os.PathLike[str] | None, seed: int, independent_noise: bool, answer: Callable[..., pa.Table],
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
                found = answer(part, seed=seed if independent_noise else own)
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

    def _predict_draws(
        self, x: pd.DataFrame, history: Any, draws: int, seed: int, independent_noise: bool
    ) -> Iterable[Draws]:
        table, marked = self._with_history(x, history)
        return predictive_draws(
            self._fitted()[1], table, marked, draws, self._noise(seed), self._trained, independent_noise
        )

    def _with_history(self, x: pd.DataFrame, history: Any) -> tuple[Table, Tensor]:
        """Loader to predict and, behind them, what is known of their instances; which rows are to be predicted."""
        encoder, _ = self._fitted()
        table, new = self._encode(x, measurements=False), len(x)
        if history is not None:
            if self.schema.instance is None:
                raise DataError(
                    "history belongs to instances, but the schema has no instance column: give Schema(instance=...)."
                )
            visits, _ = to_pandas(history, self.schema.columns)
            with about("history"):
                encoder.require(visits)
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
        encoder, vae = self._fitted()
        if is_stream(data):
            each = partial(self.log_likelihood, draws=draws)
            return self._write(data, out, seed, False, lambda *a, **k: pa.table({"log_likelihood": each(*a, **k)}))
        _no_out(out)
        frame, origin = to_pandas(data, self.schema.columns)
        table = self._encode(frame)
        noise, found = self._noise(seed), torch.empty(len(table), dtype=torch.float64)
        for rows, batch in chunks(table, whole_number(draws), width=vae.prior.width):
            value = log_likelihood(vae, batch, draws, noise).double() + encoder.log_jacobian(batch.y, batch.y_mask)
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
        encoder, vae = self._fitted()
        parts = (
            (self._encode(part), self._noise(own))
            for part, own in self._parts(self._opened(data), seed, self.schema.columns)
        )
        found, rows = by_column(vae, encoder, predictions(vae, parts, whole_number(draws)))
        return found, overall(found, encoder.scales.spread, rows)

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
        encoder, vae = self._fitted()
        table = self._encode(data)
        noise, samples = self._noise(seed), whole_number(samples, "samples")
        total = {
            "reconstruction": float(encoder.log_jacobian(table.y, table.y_mask).sum()),
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


def _noted(
    parts: Iterable[Draws], vae: ConditionalVAE, guess: Tensor, level_probabilities: Tensor | None
) -> Iterator[Draws]:
    """The same draws, of which the covariates are taken down as they pass."""
    for part in parts:
        mean, each = guessed(part, vae.space)
        guess[part.rows] = mean.cpu()
        if level_probabilities is not None:
            level_probabilities[part.rows] = each.cpu()
        yield part


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


def whole(data: Frame, method: str) -> Frame:
    if is_stream(data):
        raise ValueError(f"{method} takes a table in memory, such as a DataFrame, but got {data!r}; read it first.")
    return data


def _level(interval: float | None) -> float | None:
    return None if interval is None else sure_level(interval)


def sure_level(interval: float) -> float:
    if interval is None or not 0.0 < interval < 1.0:
        raise ValueError(f"interval must lie between 0 and 1, such as 0.9; got {interval!r}.")
    return interval


def whole_number(value: int, name: str = "draws") -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return int(value)
