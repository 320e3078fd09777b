"""Several models on one table: cross-validated by patient, asked the same questions, one line each."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from lacova import __version__
from lacova.data.columns import patients, require
from lacova.data.errors import DataError, SchemaError, meant
from lacova.data.io.dataframes import to_pandas
from lacova.data.masks import mask_at_random
from lacova.data.measurement_space import LEVELS
from lacova.data.schema import Schema
from lacova.inference.impute import guessed
from lacova.inference.score import Asked, by_column, overall
from lacova.models.base import Model
from lacova.models.inference import MEAN_DRAWS, whole, whole_number
from lacova.models.named import OPTIONS, class_of, made
from lacova.models.snapshot import identity
from lacova.models.unconditional import NotMIWAE
from lacova.training.interrupt import InterruptedWarning
from lacova.training.options import FitOptions, TrainingError
from lacova.training.progress import progress as progress_bar

LEAST_UNITS = 20  # training rows or instances below which none are held out to stop early on
START = b'{"key": '
FILE = "comparison.jsonl"  # within a folder
IMPUTED = ("nll", "crps", "rmse", "coverage90", "accuracy")
PREDICTED = ("nll", "crps", "rmse", "accuracy")
SCORES = (
    *IMPUTED, "x_rmse", "x_accuracy", *(f"predict_{name}" for name in PREDICTED), "log_likelihood", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class _Entry:
    """A model to be compared, unfitted, and what of its training differs from that of the others."""

    label: str
    model: Model
    options: dict[str, Any]


@dataclass(frozen=True)
class _Fold:
    """Rows to learn from, to stop early on, and to be asked about: as they are, and with entries hidden.

    `open_x` has the measurements hidden, but no covariate.
    """

    train: pd.DataFrame
    validation: pd.DataFrame | None
    test: pd.DataFrame
    hidden: pd.DataFrame
    open_x: pd.DataFrame


def compare(
    data: Any, schema: Schema, models: Iterable[str | Model] | Mapping[str, Any], *, folds: int = 5, hide: float = 0.2,
    validation_share: float = 0.1, draws: int = MEAN_DRAWS, seed: int = 0, device: str = "auto",
    checkpoint: str | os.PathLike[str] | None = None, progress: bool | None = None, **options: Any,
) -> pd.DataFrame:  # fmt: skip
    """Fit several models and compare them on held-out patients, with cross-validation.

    Whole instances go to a fold; rows do where there is no instance. A share of the entries of the held-out rows is
    hidden, the same for all models, and must be imputed from what is left: a question that models with and without
    covariates can all answer. See docs/models.md for what is comparable.

    Args:
        data: a table in memory: pandas, polars or pyarrow.
        schema: the roles of its columns.
        models: names such as "VAE", "CVAE" or "LVAE", or unfitted models of your own; or a dict from labels to these,
            or to pairs of a name and its settings, which may also be those of training:
            `{"small": ("CVAE", {"latent_dim": 2, "importance": 5})}`.
        folds: how many; each is held out once.
        hide: the share of the entries of held-out rows that is hidden, in measurements and in covariates (not in the
            time). A visit-constant covariate is hidden at all visits of an instance.
        validation_share: of the training rows, or instances, on which training stops early; none if they are few.
        draws: of each held-out row.
        seed: of folds, hidden entries, fits and draws; the same seed gives the same table, but for the seconds.
        device: where models are fitted.
        checkpoint: a file, or a folder for one, that gains a line of JSON after each fit. What is there of the same
            comparison is not computed again.
        progress: show a progress bar on stderr; None shows it in a terminal only.
        **options: of training, for all models: `max_epochs`, `batch_size`, ...; see `FitOptions`.

    Returns:
        a pandas DataFrame with one line per model. Means over folds, and their standard errors in columns ending in
        `_se`:

        - `nll`, `crps`, `rmse`, `coverage90` of hidden numbers, per entry, `nll` and `accuracy` of hidden categories.
          `crps` and `rmse` are in units of the training standard deviation, `nll` is in own units;
        - `x_rmse`, `x_accuracy` of hidden covariates, in units of the training standard deviation; NaN for models that
          do not look at covariates;
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
        >>> found = lacova.compare(table, schema, ["VAE", "CVAE"], folds=2, max_epochs=2)
        >>> found.index.tolist()
        ['VAE', 'CVAE']
    """
    if not isinstance(schema, Schema):
        raise SchemaError(f"expected a lacova.Schema, got {schema!r}.")
    frame, _ = to_pandas(whole(data, "compare"), schema.columns)
    require(frame, schema.columns)
    if not 0.0 < hide < 1.0:
        raise ValueError(f"hide is {hide!r}; expected a share of the entries above 0 and below 1, such as 0.2.")
    if not 0.0 <= validation_share < 1.0:
        raise ValueError(f"validation_share is {validation_share!r}; expected a share of at least 0 and below 1.")
    if whole_number(draws) < 2:
        raise ValueError(f"draws is {draws}; expected at least 2, as CRPS compares draws with each other.")
    _check_options(options)
    entries = list(_entries(models, schema))
    fold = fold_of(frame, schema, folds, seed)
    asked = {"hide": hide, "validation_share": validation_share, "draws": draws, "seed": seed, "folds": folds}
    common = {"version": __version__, "data": _digest(frame, schema), "schema": repr(_roles(schema)), **asked}
    store = _Store(checkpoint)
    lines: dict[str, list[dict[str, Any]]] = {entry.label: [] for entry in entries}
    with progress_bar(len(entries) * folds, progress) as bar:
        for k in range(folds):
            part = None
            for place, entry in enumerate(entries):
                if bar is not None:
                    bar.say(k * len(entries) + place, f"{entry.label}, fold {k + 1}")
                training = {**options, **entry.options}
                key = _key({**common, "model": identity(entry.model), "training": training, "fold": k})
                if key not in store.lines:
                    part = _fold(frame, schema, fold, k, hide, validation_share, seed) if part is None else part
                    found = _fitted_scores(entry, part, schema, training, draws, seed + k, device)
                    store.add({"key": key, "model": entry.label, "fold": k, **found})
                lines[entry.label].append(store.lines[key])
        if bar is not None:
            bar.say(len(entries) * folds, "")
    return _table(lines)


def fold_of(frame: pd.DataFrame, schema: Schema, folds: int, seed: int) -> npt.NDArray[np.int64]:
    """The number of the fold in which each row is held out (N,): the same for all rows of an instance."""
    patient, labels = patients(frame, schema.instance)
    count, unit = (len(frame), np.arange(len(frame))) if patient is None else (len(labels), np.asarray(patient))
    word = "rows" if patient is None else f"different {schema.instance!r}"
    if not 2 <= whole_number(folds, "folds") <= count:
        raise ValueError(f"folds is {folds}; expected from 2 to {count}, the number of {word}.")
    number = np.empty(count, dtype=np.int64)
    number[np.random.default_rng(seed).permutation(count)] = np.arange(count) % folds
    return number[unit]


def _fold(
    frame: pd.DataFrame, schema: Schema, fold: npt.NDArray[np.int64], k: int, hide: float, share: float, seed: int
) -> _Fold:
    rest, test = frame[fold != k].reset_index(drop=True), frame[fold == k].reset_index(drop=True)
    rng = np.random.default_rng([seed, k])
    patient, labels = patients(rest, schema.instance)
    count, unit = (len(rest), np.arange(len(rest))) if patient is None else (len(labels), np.asarray(patient))
    chosen = rng.permutation(count)[: round(share * count) if count >= LEAST_UNITS else 0]
    held_out = np.isin(unit, chosen)
    train = rest[~held_out]
    validation = _known(rest[held_out], train, schema) if held_out.any() else None
    test = _known(test, train, schema)
    names = [name for name in schema.covariates if name != schema.time]
    losing, lot = [*schema.measurements, *names], int(rng.integers(2**32))
    hidden = mask_at_random(test, losing, hide, lot, instance=schema.instance, static=schema.static)
    return _Fold(train, validation, test, hidden, hidden.assign(**test[names]))


def _known(part: pd.DataFrame, train: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """The rows without levels that no training row shows: those are gaps."""
    coded = [name for name, kind in schema.covariates.items() if kind == "categorical"]
    coded += [name for name in schema.measurements if schema.kinds.get(name) in LEVELS]
    return part.assign(**{name: part[name].where(part[name].isin(train[name].dropna().unique())) for name in coded})


def _fitted_scores(
    entry: _Entry, part: _Fold, schema: Schema, options: Mapping[str, Any], draws: int, seed: int, device: str
) -> dict[str, Any]:
    """Fit one model on one fold, and ask it."""
    model = copy.deepcopy(entry.model)
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InterruptedWarning)
            model.fit(part.train, part.validation, seed=seed, device=device, progress=False, **options)
        if model.interrupted:
            raise KeyboardInterrupt
        seconds = time.perf_counter() - started
        found = _scores(model, part, schema, draws, seed)
    except (DataError, TrainingError) as error:
        raise type(error)(f"{entry.label}: {error}") from None
    trained = sum(parameter.numel() for parameter in model._fitted()[1].parameters() if parameter.requires_grad)
    return {name: _plain(value) for name, value in found.items()} | {"seconds": seconds, "parameters": trained}


def _scores(model: Model, part: _Fold, schema: Schema, draws: int, seed: int) -> dict[str, float]:
    unit = np.array([_spread(part.train, name, schema) for name in model.schema.measurements])
    imputed, errors = _imputed(model, part, draws, seed)
    predicted = model.score(part.test, columns=True, draws=draws, seed=seed)
    together, foreseen = (overall(table, unit, max(1, int(table["entries"].sum()))) for table in (imputed, predicted))
    found = {name: together[name] for name in IMPUTED if name in together} | errors
    found |= {f"predict_{name}": foreseen[name] for name in PREDICTED if name in foreseen}
    if not isinstance(model, NotMIWAE):  # whose likelihood is that of the mask, too
        rows = part.test[part.test[list(schema.measurements)].notna().any(axis=1)]
        found["log_likelihood"] = float(model.log_likelihood(rows, draws=draws, seed=seed).mean())
    return found


def _spread(train: pd.DataFrame, name: str, schema: Schema) -> float:
    """The standard deviation of a measurement in training, by which errors are divided."""
    if schema.kinds.get(name) in LEVELS:
        return 1.0
    spread = float(train[name].astype(float).std(ddof=0))
    return spread if spread > 0 else 1.0


@torch.no_grad()
def _imputed(model: Model, part: _Fold, draws: int, seed: int) -> tuple[pd.DataFrame, dict[str, float]]:
    """Scores of hidden measurements by column, and errors of hidden covariates."""
    encoder, vae = model._fitted()
    asked = part.open_x if model.covariates == "oracle" else part.hidden
    truth, seen, table = encoder.encode(part.test), encoder.encode(asked), model._encode(asked)
    y, mask = truth.y.to(table.y.device), (truth.y_mask & ~seen.y_mask).to(table.y.device)
    guess = torch.empty(truth.x.shape)

    def passing() -> Iterator[Asked]:
        for drawn in model._imputation(table, draws, seed):
            guess[drawn.rows] = guessed(drawn, vae.space)[0].to(guess)
            yield Asked(drawn, y[drawn.rows], mask[drawn.rows])

    found, _ = by_column(vae, encoder, passing())
    gone = truth.x_mask & ~seen.x_mask
    if truth.patient is not None:  # a visit-constant one counts once per instance
        first = torch.as_tensor(~pd.Series(truth.patient.numpy()).duplicated().to_numpy())
        gone &= first[:, None] | ~torch.tensor(vae.space.static, dtype=torch.bool)
    numbers, levels = (torch.zeros_like(gone) for _ in range(2))
    numbers[:, list(vae.space.continuous)] = True
    levels[:, list(vae.space.categorical)] = True
    square, hit = (guess - truth.x).square(), (guess == truth.x).to(guess)
    x_rmse, x_accuracy = _mean(square[gone & numbers]) ** 0.5, _mean(hit[gone & levels])
    return found, {"x_rmse": x_rmse, "x_accuracy": x_accuracy}


def _mean(values: torch.Tensor) -> float:
    return float(values.double().mean()) if len(values) else math.nan


def _table(lines: Mapping[str, list[dict[str, Any]]]) -> pd.DataFrame:
    """Means over folds with their standard errors, one line per model."""
    rows = {}
    for label, found in lines.items():
        each = pd.DataFrame(found).reindex(columns=[*SCORES, "parameters"]).astype(float)
        means, errors = each.mean(), each.sem()
        row: dict[str, Any] = {}
        for name in SCORES:
            row |= {name: means[name], f"{name}_se": errors[name]}
        rows[label] = row | {"parameters": int(each["parameters"].max())}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")
    unused = [name for name in SCORES if table[name].isna().all()]
    return table.drop(columns=[column for name in unused for column in (name, f"{name}_se")])


class _Store:
    """What has been computed, by key: in memory, or in a file that is only ever appended to, by whole lines."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.lines: dict[str, dict[str, Any]] = {}
        self.path = None if path is None else Path(path)
        if self.path is None:
            return
        if self.path.is_dir():
            self.path = self.path / FILE
        if not self.path.parent.is_dir():
            raise DataError(
                f"there is no folder {self.path.parent} for the checkpoint {self.path.name}; make it first."
            )
        *complete, rest = self.path.read_bytes().split(b"\n") if self.path.exists() else [b""]
        for number, text in enumerate(complete, 1):
            self._take(text, number)
        begun = rest.startswith(START[: len(rest)])  # what a killed process had begun to write
        if rest and not (complete or begun):
            self._take(rest, 1)
        if rest:
            os.truncate(self.path, self.path.stat().st_size - len(rest))

    def _take(self, text: bytes, number: int) -> None:
        try:
            line = json.loads(text)
            self.lines[line["key"]] = line
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"line {number} of {self.path} is no line of a comparison: {text[:60].decode(errors='replace')!r}; "
                "name another checkpoint, or remove that line, and it is computed again."
            ) from None

    def add(self, line: dict[str, Any]) -> None:
        self.lines[line["key"]] = line
        if self.path is None:
            return
        with self.path.open("ab") as out:
            out.write((json.dumps(line, allow_nan=False) + "\n").encode())
            out.flush()
            os.fsync(out.fileno())


def _entries(models: Iterable[str | Model] | Mapping[str, Any], schema: Schema) -> Iterator[_Entry]:
    """The models, each made once: what is wrong with any of them is said before the first is fitted."""
    if isinstance(models, str | Model):
        raise ValueError(f"models is {models!r}; expected several: a list such as ['VAE', 'CVAE'], or a dict.")
    labelled = list(models.items()) if isinstance(models, Mapping) else [(None, model) for model in models]
    if not labelled:
        raise ValueError("models is empty: name at least one, such as ['VAE', 'CVAE'].")
    taken = set()
    for given, what in labelled:
        entry = _entry(given, what, schema)
        if entry.label in taken:
            raise ValueError(f"two models are called {entry.label!r}; give a dict from labels of your own to models.")
        taken.add(entry.label)
        yield entry


def _entry(label: str | None, what: Any, schema: Schema) -> _Entry:
    if isinstance(what, Model):
        label, roles = label or type(what).__name__, what.schema
        if set(roles.measurements) != set(schema.measurements):
            raise SchemaError(
                f"{label} is a model of {', '.join(roles.measurements[:4])}, but the schema has the measurements "
                f"{', '.join(schema.measurements[:4])}: models are compared on the same."
            )
        strange = [name for name in roles.columns if name not in schema.columns]
        if strange:
            raise SchemaError(f"{label} looks at {strange[0]!r}, which is not in the schema of the comparison: add it.")
        return _Entry(label, what, {})
    name, settings = what if isinstance(what, tuple) and len(what) == 2 else (what, {})
    if not isinstance(name, str) or not isinstance(settings, Mapping):
        raise ValueError(
            f"a model is given as {what!r}; expected a name, an unfitted model, or a pair of a name and its settings."
        )
    return _Entry(label or class_of(name).__name__, *made(name, schema, settings))


def _check_options(options: Mapping[str, Any]) -> None:
    strange = [name for name in options if name not in OPTIONS]
    if strange:
        raise ValueError(f"option {strange[0]!r} is none of training.{meant(strange, OPTIONS)} See lacova.FitOptions.")
    FitOptions(**options)


def _digest(frame: pd.DataFrame, schema: Schema) -> str:
    """Of the values that the schema names, in the order of the rows."""
    found = hashlib.sha256()
    for name in schema.columns:
        found.update(f"{name}:{frame[name].dtype};".encode())
        found.update(pd.util.hash_pandas_object(frame[name], index=False).to_numpy().tobytes())
    return found.hexdigest()


def _roles(schema: Schema) -> dict[str, Any]:
    return {field.name: getattr(schema, field.name) for field in fields(schema)}


def _key(question: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True, default=repr).encode()).hexdigest()


def _plain(value: float) -> float | None:
    """JSON has no NaN: null in its place."""
    return value if math.isfinite(value) else None
