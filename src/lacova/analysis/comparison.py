"""Compare several models on one table, by cross-validation over patients."""

from __future__ import annotations

import copy
import math
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lacova import __version__
from lacova.analysis.folds import Fold, assign_folds, make_fold
from lacova.analysis.held_out import IMPUTED, PREDICTED, held_out_scores
from lacova.analysis.result_file import ResultFile, digest_of, key_of, roles_of
from lacova.data.columns import require_columns
from lacova.data.errors import DataError, FitWarning, SchemaError, hint
from lacova.data.io.dataframes import to_pandas
from lacova.data.schema import Schema
from lacova.models.base import Model
from lacova.models.checks import in_memory, whole_number
from lacova.models.inference import MEAN_DRAWS
from lacova.models.registry import OPTIONS, make_model, model_class
from lacova.models.settings import identity
from lacova.training.interrupt import InterruptedWarning
from lacova.training.options import FitOptions, TrainingError
from lacova.training.progress import progress as progress_bar

SCORES = (
    *IMPUTED, "x_rmse", "x_accuracy", *(f"predict_{name}" for name in PREDICTED), "log_likelihood", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class _Entry:
    """An unfitted model to compare, with training options of its own."""

    label: str
    model: Model
    options: dict[str, Any]


def compare(
    data: Any, schema: Schema, models: Iterable[str | Model] | Mapping[str, Any], *, folds: int = 5, hide: float = 0.2,
    validation_share: float = 0.1, draws: int = MEAN_DRAWS, seed: int = 0, device: str = "auto",
    checkpoint: str | os.PathLike[str] | None = None, progress: bool | None = None, **options: Any,
) -> pd.DataFrame:  # fmt: skip
    """Fit several models and compare them on held-out patients, with cross-validation.

    All rows of an instance are in the same fold; without an instance column, rows are split one by one. A share of the
    entries of the held-out rows is hidden, the same for all models, and imputed from the other entries, which models
    with and without covariates can all do. See docs/models.md for which scores are comparable.

    Args:
        data: a table in memory: pandas, polars or pyarrow.
        schema: the roles of its columns.
        models: names such as "VAE", "CVAE" or "LVAE", or unfitted models of your own; or a dict from labels to these,
            or to pairs of a name and its settings, which may also be those of training:
            `{"small": ("CVAE", {"latent_dim": 2, "importance": 5})}`.
        folds: the number of folds; each is held out once.
        hide: the share of the entries of held-out rows that is hidden, in measurements and in covariates (not in the
            time). A visit-constant covariate is hidden at all visits of an instance.
        validation_share: the share of the training rows, or instances, used for early stopping; none if they are few.
        draws: the number of draws of each held-out row.
        seed: of folds, hidden entries, fits and draws; the same seed gives the same table, except for the seconds.
        device: where models are fitted.
        checkpoint: a file, or a folder for one, that gains a line of JSON after each fit. Fits of the same comparison
            that are in the file are not repeated.
        progress: show a progress bar on stderr; None shows it in a terminal only.
        **options: training options for all models: `max_epochs`, `batch_size`, ...; see `FitOptions`.

    Returns:
        a pandas DataFrame with one line per model. Means over folds, and their standard errors in columns ending in
        `_se`:

        - `nll`, `crps`, `rmse`, `coverage90` of hidden numbers, per entry, `nll` and `accuracy` of hidden categories.
          `crps` and `rmse` are in units of the training standard deviation, `nll` in the column's own units;
        - `energy` and `variogram` of the hidden numbers of a row jointly, `course_energy` and `course_variogram` of
          those of one measurement over the visits of an instance; see docs/explain/calibration.md;
        - `x_rmse`, `x_accuracy` of hidden covariates, in units of the training standard deviation; NaN for models that
          do not use covariates;
        - `predict_...`: the same for all measurements of a held-out row, predicted from its covariates alone;
        - `log_likelihood` per held-out row, log p(y_o | x_o), or log p(y_o) of models without covariates;
        - `seconds` per fit, and the number of trained `parameters`.

        Columns that apply to no model are left out.

    Example:
        >>> import numpy as np, pandas as pd, lacova
        >>> rng = np.random.default_rng(0)
        >>> age = rng.normal(50, 10, 90)
        >>> table = pd.DataFrame({"age": age, "chol": 0.05 * age + rng.normal(0, 0.2, 90)})
        >>> schema = lacova.Schema(["chol"], {"age": "continuous"})
        >>> scores = lacova.compare(table, schema, ["VAE", "CVAE"], folds=2, max_epochs=2)
        >>> scores.index.tolist()
        ['VAE', 'CVAE']
    """
    if not isinstance(schema, Schema):
        raise SchemaError(f"expected a lacova.Schema, got {schema!r}.")
    frame, _ = to_pandas(in_memory(data, "compare"), schema.columns)
    require_columns(frame, schema.columns)
    if not 0.0 < hide < 1.0:
        raise ValueError(f"hide is {hide!r}; expected a share of the entries above 0 and below 1, such as 0.2.")
    if not 0.0 <= validation_share < 1.0:
        raise ValueError(f"validation_share is {validation_share!r}; expected a share of at least 0 and below 1.")
    if whole_number(draws) < 2:
        raise ValueError(f"draws is {draws}; expected at least 2, as CRPS compares draws with each other.")
    check_options(options)
    entries = list(_entries(models, schema))
    fold = assign_folds(frame, schema, folds, seed)
    settings = {"hide": hide, "validation_share": validation_share, "draws": draws, "seed": seed, "folds": folds}
    common = {"version": __version__, "data": digest_of(frame, schema.columns), "schema": roles_of(schema), **settings}
    results = ResultFile(checkpoint)
    by_model: dict[str, list[dict[str, Any]]] = {entry.label: [] for entry in entries}
    with progress_bar(len(entries) * folds, progress) as bar:
        for k in range(folds):
            part = None
            for number, entry in enumerate(entries):
                if bar is not None:
                    bar.advance_to(k * len(entries) + number, f"{entry.label}, fold {k + 1}")
                training = {**options, **entry.options}
                key = key_of({**common, "model": identity(entry.model), "training": training, "fold": k})
                if key not in results.lines:
                    part = part or make_fold(frame, schema, fold, k, hide, validation_share, seed)
                    scores = _fitted_scores(entry, part, schema, training, draws, seed + k, device)
                    results.add({"key": key, "model": entry.label, "fold": k, **scores})
                by_model[entry.label].append(results.lines[key])
        if bar is not None:
            bar.advance_to(len(entries) * folds, "")
    return _table(by_model)


def _fitted_scores(
    entry: _Entry, part: Fold, schema: Schema, options: Mapping[str, Any], draws: int, seed: int, device: str
) -> dict[str, Any]:
    """Fit one model on one fold and score it."""
    model = copy.deepcopy(entry.model)
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InterruptedWarning)
            warnings.simplefilter("ignore", FitWarning)  # of each fold and model; scores are what is asked for
            validation = False if part.validation is None else part.validation
            model.fit(part.train, validation, seed=seed, device=device, progress=False, **options)
        if model.interrupted:
            raise KeyboardInterrupt
        seconds = time.perf_counter() - started
        scores = held_out_scores(model, part, schema, draws, seed)
    except (DataError, TrainingError) as error:
        raise type(error)(f"{entry.label}: {error}") from None
    trained = sum(parameter.numel() for parameter in model.fitted()[1].parameters() if parameter.requires_grad)
    return {name: _plain(value) for name, value in scores.items()} | {"seconds": seconds, "parameters": trained}


def _table(by_model: Mapping[str, list[dict[str, Any]]]) -> pd.DataFrame:
    """Return means over folds with their standard errors, one line per model."""
    rows = {}
    for label, lines in by_model.items():
        scores = pd.DataFrame(lines).reindex(columns=[*SCORES, "parameters"]).astype(float)
        means, errors = scores.mean(), scores.sem()
        row: dict[str, Any] = {}
        for name in SCORES:
            row |= {name: means[name], f"{name}_se": errors[name]}
        rows[label] = row | {"parameters": int(scores["parameters"].max())}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")
    unused = [name for name in SCORES if table[name].isna().all()]
    return table.drop(columns=[column for name in unused for column in (name, f"{name}_se")])


def _entries(models: Iterable[str | Model] | Mapping[str, Any], schema: Schema) -> Iterator[_Entry]:
    """Yield the models, built once, so that a wrong setting is refused before the first fit."""
    if isinstance(models, str | Model):
        raise ValueError(f"models is {models!r}; expected several: a list such as ['VAE', 'CVAE'], or a dict.")
    labelled = list(models.items()) if isinstance(models, Mapping) else [(None, model) for model in models]
    if not labelled:
        raise ValueError("models is empty: name at least one, such as ['VAE', 'CVAE'].")
    labels = set()
    for label, specification in labelled:
        entry = _entry(label, specification, schema)
        if entry.label in labels:
            raise ValueError(f"two models are called {entry.label!r}; give a dict from labels of your own to models.")
        labels.add(entry.label)
        yield entry


def _entry(label: str | None, specification: Any, schema: Schema) -> _Entry:
    """Build a model from a name, a name with settings, or a model, and check that it suits the schema."""
    if isinstance(specification, Model):
        label, roles = label or type(specification).__name__, specification.schema
        if set(roles.measurements) != set(schema.measurements):
            raise SchemaError(
                f"{label} is a model of {', '.join(roles.measurements[:4])}, but the schema has the measurements "
                f"{', '.join(schema.measurements[:4])}: models are compared on the same."
            )
        strange = [name for name in roles.columns if name not in schema.columns]
        if strange:
            raise SchemaError(f"{label} looks at {strange[0]!r}, which is not in the schema of the comparison: add it.")
        return _Entry(label, specification, {})
    pair = isinstance(specification, tuple) and len(specification) == 2
    name, settings = specification if pair else (specification, {})
    if not isinstance(name, str) or not isinstance(settings, Mapping):
        raise ValueError(
            f"a model is given as {specification!r}; expected a name, an unfitted model, or a pair of a name and its "
            "settings."
        )
    return _Entry(label or model_class(name).__name__, *make_model(name, schema, settings))


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what is no option of training."""
    strange = [name for name in options if name not in OPTIONS]
    if strange:
        raise ValueError(f"option {strange[0]!r} is none of training.{hint(strange, OPTIONS)} See lacova.FitOptions.")
    FitOptions(**options)


def _plain(value: float) -> float | None:
    """Replace a number that is not finite, which JSON does not have, by None."""
    return value if math.isfinite(value) else None
