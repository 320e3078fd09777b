"""Estimators for scikit-learn: `LacovaImputer` fills a table, `LacovaRegressor` predicts y from X, both with gaps."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, RegressorMixin, TransformerMixin
from sklearn.impute import MissingIndicator
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from lacova.data.schema import Kind, Schema
from lacova.models.base import Covariates, Model
from lacova.models.cvae import CVAE
from lacova.models.gp_prior_vae import GPPriorVAE
from lacova.nn.networks import Networks

__all__ = ["LacovaImputer", "LacovaRegressor"]

MODELS: dict[str, type[Model]] = {"cvae": CVAE, "gp": GPPriorVAE}
STD_DRAWS = 400


class _Estimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What both estimators share: parameters, reading X, and training."""

    _padding: dict[str, Any]  # columns that the model needs and X does not have

    def __init__(
        self, *, model: Literal["cvae", "gp"], categorical_features: Iterable[str | int] | None,
        covariates: Covariates, latent_dim: int | None, networks: str | Networks, max_epochs: int | None,
        batch_size: int | None, learning_rate: float | None, validation_fraction: float | None, patience: int | None,
        device: str,
        random_state: int | np.random.RandomState | None,
    ) -> None:  # fmt: skip
        self.model = model
        self.categorical_features = categorical_features
        self.covariates = covariates
        self.latent_dim = latent_dim
        self.networks = networks
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.random_state = random_state

    def _read(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """Return X as a DataFrame, its rows numbered and its columns named; arrays must be numeric."""
        if isinstance(X, pd.DataFrame) or hasattr(X, "to_pandas"):
            validate_data(self, X, reset=reset, skip_check_array=True)
            frame = (X if isinstance(X, pd.DataFrame) else X.to_pandas()).infer_objects()
            if 0 in frame.shape:
                raise ValueError(
                    f"X has shape {frame.shape}, but {type(self).__name__} needs at least one row and one column."
                )
        else:
            floats = [np.float64, np.float32]
            frame = pd.DataFrame(validate_data(self, X, reset=reset, dtype=floats, ensure_all_finite="allow-nan"))
        names = list(getattr(self, "feature_names_in_", ()))
        if len(set(names)) < frame.shape[1]:  # no names, or duplicates
            names = [f"x{k}" for k in range(frame.shape[1])]
        return frame.set_axis(names, axis=1).reset_index(drop=True)

    def _kinds(self, frame: pd.DataFrame) -> dict[str, Kind]:
        """Return the kind of each column; text, categories, booleans and columns named by the user are categorical."""
        named = _select(self.categorical_features, frame, "categorical_features")
        return {
            name: "categorical" if name in named or frame[name].dtype.kind in "Ob" else "continuous"
            for name in frame.columns
        }

    def _train(
        self, measurements: list[str], covariates: dict[str, Kind], frame: pd.DataFrame, **options: Any
    ) -> Model:
        """Fit the model to the columns of `frame`."""
        if self.model not in MODELS:
            raise ValueError(f"model is {self.model!r}; expected one of {', '.join(MODELS)}.")
        random = check_random_state(self.random_state)
        seed, self._seed = (int(s) for s in random.randint(np.iinfo(np.int32).max, size=2))
        if not covariates:  # a conditional model needs a covariate: the same category in all rows
            name = _unused("everything", frame)
            self._padding = {name: "all"}
            frame, covariates = frame.assign(**self._padding), {name: "categorical"}
            options = {**options, "masked_loss": 0.0}
        model = MODELS[self.model](
            Schema(measurements, covariates), latent_dim=self.latent_dim, networks=self.networks,
            covariates=self.covariates,
        )  # fmt: skip
        train, validation = _split(frame, covariates, self.validation_fraction, random)
        for name in ("max_epochs", "batch_size", "learning_rate", "patience"):
            value = getattr(self, name)
            if value is not None:
                value = value.item() if isinstance(value, np.generic) else value  # as from a grid search
                options.setdefault(name, value)
        held_out = False if validation is None else validation
        return model.fit(train, held_out, seed=seed, device=self.device, progress=False, **options)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class LacovaImputer(OneToOneFeatureMixin, TransformerMixin, _Estimator):  # type: ignore[misc]
    """Fill the gaps of every column with its mean, or its most probable level, given the rest of the row.

    Numeric columns are the measurements of the model and categorical ones its covariates. Without covariates, the model
    is a plain VAE; with covariates only, their joint distribution fills the gaps. A column with a single value is
    filled with that value.

    `transform` returns numbers as an array and tables with categories as a DataFrame, unless `set_output` changes that.
    The values imputed in a row do not depend on the other rows.

    Args:
        model: "cvae" or "gp", a Gaussian process of the covariates in latent space.
        covariate_columns: names or indices of further covariates besides the categorical columns.
        categorical_features: names or indices of categorical columns besides those that hold text, categories or
            booleans.
        covariates: how to treat gaps in covariates, as in `lacova.CVAE`.
        latent_dim: dimensions of z; None for the model's own default.
        networks: as in `lacova.CVAE`.
        max_epochs: maximum number of passes over the rows; None for the default of `lacova.FitOptions`.
        batch_size: rows per training step; None for the default.
        learning_rate: of the optimiser; None for the default.
        validation_fraction: share of the rows for early stopping, after `patience` epochs without improvement; None to
            train for all of `max_epochs`.
        patience: see `validation_fraction`; None for the default.
        device: "auto", "cpu", "cuda", or any torch device.
        add_indicator: append an indicator of missing entries for each feature that had gaps in `fit`.
        keep_empty_features: fill features that had no value in `fit` with 0 instead of dropping them.
        random_state: of training and of the draws that are averaged.

    Attributes:
        model_: the fitted `lacova` model; None if no column has two values. Columns of an array are named x0, x1, ...;
            without covariates, `model_.schema` holds one called "everything", which is "all" in every row.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(50, 1)) * [1.0, 2.0, 3.0]
        >>> X[0, 0] = np.nan
        >>> LacovaImputer(max_epochs=2, random_state=0).fit_transform(X).shape
        (50, 3)
    """

    def __init__(
        self, *, model: Literal["cvae", "gp"] = "cvae", covariate_columns: Iterable[str | int] | None = None,
        categorical_features: Iterable[str | int] | None = None, covariates: Covariates = "joint",
        latent_dim: int | None = None, networks: str | Networks = "clinical", max_epochs: int | None = None,
        batch_size: int | None = None, learning_rate: float | None = None, validation_fraction: float | None = None,
        patience: int | None = None, device: str = "auto", add_indicator: bool = False,
        keep_empty_features: bool = False, random_state: int | np.random.RandomState | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            model=model, categorical_features=categorical_features, covariates=covariates, latent_dim=latent_dim,
            networks=networks, max_epochs=max_epochs, batch_size=batch_size, learning_rate=learning_rate,
            validation_fraction=validation_fraction, patience=patience, device=device, random_state=random_state,
        )  # fmt: skip
        self.covariate_columns = covariate_columns
        self.add_indicator = add_indicator
        self.keep_empty_features = keep_empty_features

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to a table or array with gaps; y is ignored."""
        frame = self._read(X, reset=True)
        chosen = _select(self.covariate_columns, frame, "covariate_columns")
        self._names = list(frame.columns)
        self._empty, self._constant, varying = _split_columns(frame)
        if self._empty and not self.keep_empty_features:
            warnings.warn(
                f"Skipping features without any observed value: {self._empty}. "
                "Set keep_empty_features=True to fill them with 0.",
                UserWarning,
                stacklevel=2,
            )
        kinds = {name: kind for name, kind in self._kinds(frame).items() if name in varying}
        covariates = {name: kind for name, kind in kinds.items() if kind == "categorical" or name in chosen}
        self.model_ = self._fit_model(frame[varying], covariates) if varying else None
        self.indicator_ = MissingIndicator(error_on_new=False).fit(_nan_at_gaps(frame)) if self.add_indicator else None
        return self

    def _fit_model(self, frame: pd.DataFrame, covariates: dict[str, Kind]) -> Model:
        self._padding = {}
        measurements = [name for name in frame.columns if name not in covariates]
        options: dict[str, Any] = {"latent_weight": 1.0}  # imputation conditions on y: no need to train on x first
        if not measurements:
            # The model needs a measurement. This one has no meaning and is missing in imputation, so that the joint
            # distribution of the covariates, which is fitted before training, fills the gaps.
            name = _unused("nothing", frame)
            self._padding = {name: np.nan}
            measurements, frame = [name], frame.assign(**{name: np.arange(len(frame)) % 2.0})
            if self.covariates != "paper":
                options["max_epochs"] = 1
        return self._train(measurements, covariates, frame, **options)

    def transform(self, X: Any) -> npt.NDArray[Any] | pd.DataFrame:
        """Fill the gaps; observed entries stay as they are."""
        check_is_fitted(self)
        frame = self._read(X, reset=False)
        completed = self._complete(frame)
        numeric = all(dtype.kind in "fiu" for dtype in completed.dtypes)
        if self.indicator_ is not None:
            completed = pd.concat([completed, pd.DataFrame(self.indicator_.transform(_nan_at_gaps(frame)))], axis=1)
        if numeric:
            narrow = all(dtype == np.float32 for dtype in frame.dtypes)
            return completed.to_numpy(dtype=np.float32 if narrow else np.float64)
        index = X.index if isinstance(X, pd.DataFrame) else completed.index
        return completed.set_axis(self.get_feature_names_out(), axis=1).set_axis(index)

    def _complete(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Fill the gaps; drop or zero the columns that were empty in `fit`."""
        completed = frame.fillna(self._constant)
        if self.keep_empty_features:
            completed[self._empty] = completed[self._empty].fillna(0).infer_objects()
        else:
            completed = completed.drop(columns=self._empty)
        if self.model_ is None:
            return completed
        columns = [name for name in self.model_.schema.columns if name not in self._padding]
        gaps = frame[columns].isna()
        rows = gaps.any(axis=1)
        if rows.any():
            filled = self.model_.impute(frame[rows].assign(**self._padding), seed=self._seed, independent_noise=True)
            for name in columns:
                completed.loc[gaps[name], name] = filled.loc[gaps[name][rows], name]
        return completed

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """Return the names of the columns that `transform` returns."""
        names = super().get_feature_names_out(input_features)
        dropped = [] if self.keep_empty_features else self._empty
        returned = [name for name, own in zip(names, self._names, strict=True) if own not in dropped]
        indicators = [] if self.indicator_ is None else self.indicator_.get_feature_names_out(names)
        return np.array([*returned, *indicators], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class LacovaRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """Predict one or several y from X by their mean given the observed entries of X. In fit, both may have gaps.

    Features with a single value, or none, are ignored. The prediction of a row does not depend on the other rows.

    Args:
        model: "cvae" or "gp", a Gaussian process of X in latent space.
        categorical_features: names or indices of categorical features besides those that hold text, categories or
            booleans.
        covariates: how to treat gaps in X, as in `lacova.CVAE`.
        latent_dim: dimensions of z; None for the model's own default.
        networks: as in `lacova.CVAE`.
        max_epochs: maximum number of passes over the rows; None for the default of `lacova.FitOptions`.
        batch_size: rows per training step; None for the default.
        learning_rate: of the optimiser; None for the default.
        validation_fraction: share of the rows for early stopping, after `patience` epochs without improvement; None to
            train for all of `max_epochs`.
        patience: see `validation_fraction`; None for the default.
        device: "auto", "cpu", "cuda", or any torch device.
        random_state: of training and of the draws that are averaged.

    Attributes:
        model_: the fitted `lacova` model; None if no column of y has two values.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(50, 3))
        >>> y = X.sum(axis=1)
        >>> X[0, 0] = np.nan
        >>> LacovaRegressor(max_epochs=2, random_state=0).fit(X, y).predict(X).shape
        (50,)
    """

    def __init__(
        self, *, model: Literal["cvae", "gp"] = "cvae", categorical_features: Iterable[str | int] | None = None,
        covariates: Covariates = "joint", latent_dim: int | None = None, networks: str | Networks = "clinical",
        max_epochs: int | None = None, batch_size: int | None = None, learning_rate: float | None = None,
        validation_fraction: float | None = None, patience: int | None = None, device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            model=model, categorical_features=categorical_features, covariates=covariates, latent_dim=latent_dim,
            networks=networks, max_epochs=max_epochs, batch_size=batch_size, learning_rate=learning_rate,
            validation_fraction=validation_fraction, patience=patience, device=device, random_state=random_state,
        )  # fmt: skip

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X (N×Q) and y (N,) or (N×D), both with gaps."""
        frame = self._read(X, reset=True)
        if y is None:
            raise ValueError("LacovaRegressor requires y to be passed, but the target y is None.")
        y = check_array(y, ensure_2d=False, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y")
        check_consistent_length(frame, y)
        self._flat = y.ndim == 1
        targets = pd.DataFrame(y)
        self._targets = [_unused(f"y{k}", frame) for k in range(targets.shape[1])]
        targets.columns = pd.Index(self._targets)
        empty, self._constant, measurements = _split_columns(targets)
        if empty:
            raise ValueError(
                f"Input y contains NaN only in {len(empty)} of its {len(self._targets)} column(s); "
                "each needs an observed value."
            )
        varying = _split_columns(frame)[2]
        covariates = {name: kind for name, kind in self._kinds(frame).items() if name in varying}
        self._padding = {}
        table = pd.concat([frame[varying], targets], axis=1)
        self.model_ = self._train(measurements, covariates, table) if measurements else None
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the mean of y for each row of X; with `return_std`, also its standard deviation, noise included."""
        check_is_fitted(self)
        frame = self._read(X, reset=False)
        mean = pd.DataFrame(self._constant, index=frame.index, columns=self._targets, dtype=float)
        std = pd.DataFrame(0.0, index=frame.index, columns=self._targets)
        if self.model_ is not None:
            rows = self.model_.without_unseen(frame.assign(**self._padding))
            varying = list(self.model_.schema.measurements)
            mean[varying] = self.model_.predict(rows, seed=self._seed, independent_noise=True)
            if return_std:
                draws = self.model_.sample(rows, draws=STD_DRAWS, seed=self._seed, independent_noise=True)
                std[varying] = draws.groupby(level=0)[varying].std(ddof=0)
        means, stds = (part.to_numpy().reshape(-1) if self._flat else part.to_numpy() for part in (mean, std))
        return (means, stds) if return_std else means

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _select(columns: Iterable[str | int] | None, frame: pd.DataFrame, parameter: str) -> list[str]:
    """Return the names of the columns given by names or indices."""
    if isinstance(columns, str):
        raise ValueError(f"{parameter} must be a list of names or indices, got the string {columns!r}.")
    names = list(frame.columns)
    selected = []
    for column in columns if columns is not None else ():
        if isinstance(column, int | np.integer) and -len(names) <= column < len(names):
            selected.append(names[column])
        elif column in names:
            selected.append(str(column))
        else:
            raise ValueError(f"{parameter} holds {column!r}, but the {len(names)} features are {', '.join(names)}.")
    return selected


def _split_columns(frame: pd.DataFrame) -> tuple[list[str], dict[str, Any], list[str]]:
    """Return the columns without values, those with a single value by that value, and the others."""
    counts = frame.nunique()
    constant = {name: frame[name].dropna().iloc[0] for name in counts.index[counts == 1]}
    return list(counts.index[counts == 0]), constant, list(counts.index[counts > 1])


def _split(
    frame: pd.DataFrame, covariates: dict[str, Kind], fraction: float | None, random: np.random.RandomState
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Hold out random rows for validation; one row with each level and with the extremes of each number stays in."""
    if fraction is None:
        return frame, None
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"validation_fraction must lie between 0 and 1, or be None; got {fraction!r}.")
    needed = pd.Series(False, index=frame.index)
    for name in frame.columns:
        observed = frame[name].dropna()
        if covariates.get(name) == "categorical":
            needed[observed.drop_duplicates().index] = True
        else:
            needed[observed.index[[int(observed.argmin()), int(observed.argmax())]]] = True
    free = needed.index[~needed].to_numpy()
    count = min(round(fraction * len(frame)), len(free))
    if count == 0:
        raise ValueError(
            f"validation_fraction={fraction!r} of {len(frame)} row(s) leaves none to stop on; "
            "give more rows, a larger share, or None."
        )
    held_out = frame.index.isin(random.permutation(free)[:count])
    return frame[~held_out], frame[held_out]


def _nan_at_gaps(frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return an array with NaN at the gaps and 0 elsewhere."""
    return np.where(frame.isna(), np.nan, 0.0)


def _unused(name: str, frame: pd.DataFrame) -> str:
    """Return the name, with underscores appended until no column has it."""
    while name in frame.columns:
        name += "_"
    return name
