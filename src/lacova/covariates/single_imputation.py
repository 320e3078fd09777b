"""Single imputation of covariates before training: the usual practice, for comparison."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lacova.covariates.prior import FactorisedPrior
from lacova.data.covariate_space import CovariateSpace
from lacova.data.errors import DataError
from lacova.data.scaling import Floats
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder

FILLS = ("mean", "knn", "iterative", "zero", "oracle")
FITTED_FILLS = ("knn", "iterative")  # those that fit an imputer of scikit-learn


class Fill:
    """A rule, learnt from the training rows, that completes X once; the model then treats X as observed.

    - "mean": the mean of a continuous column, the most frequent level of a categorical one.
    - "knn", "iterative": scikit-learn's imputers on continuous columns and one-hot levels.
    - "zero": 0 in the column's own units, the first level of a categorical column.
    - "oracle": none; X must be complete.

    Args:
        kind: the rule, one of FILLS.
        encoder: encoder of the training rows.
        marginal: marginal distribution of each column.
        features: training data of "knn" and "iterative": continuous columns and one-hot levels, NaN at gaps.
    """

    def __init__(
        self, kind: str, encoder: TableEncoder, marginal: FactorisedPrior, features: Floats | None = None
    ) -> None:
        self.kind, self.encoder, self.marginal, self.features = kind, encoder, marginal, features
        self._imputer: Any = None
        if features is not None:
            from sklearn.exceptions import ConvergenceWarning

            self._imputer = _imputer(kind)
            with warnings.catch_warnings():
                # On small tables the iterations often stop before convergence; the last one is used all the same.
                warnings.simplefilter("ignore", ConvergenceWarning)
                self._imputer.fit(features)

    @classmethod
    def learn(cls, kind: str, encoder: TableEncoder, table: Table) -> Fill:
        """Learn the rule from the training rows."""
        features = _features(encoder.space, table, _skipped_levels(kind)) if kind in FITTED_FILLS else None
        return cls(kind, encoder, FactorisedPrior.learn(encoder.space, table), features)

    def __call__(self, table: Table) -> Table:
        """Return the table with complete covariates."""
        if table.x_mask.all():
            return table
        if self.kind == "oracle":
            gaps = (~table.x_mask).sum(0).tolist()
            columns = ", ".join(f"{n} in {c!r}" for c, n in zip(self.encoder.space.names, gaps, strict=True) if n)
            raise DataError(f'covariates="oracle" needs complete covariates, but there are gaps: {columns}.')
        x = torch.where(table.x_mask, table.x, self._values(table).to(table.x.dtype))
        return replace(table, x=x, x_mask=torch.ones_like(table.x_mask))

    def _values(self, table: Table) -> Tensor:
        """Return the values to put into gaps, one per column (Q,) or per entry (N×Q)."""
        space = self.encoder.space
        if self.kind == "mean":
            x = self.marginal.mean.clone()
            x[space.categorical] = self.marginal.log_prob[space.categorical].argmax(-1).to(x.dtype)
            return x
        if self.kind == "zero":
            x = torch.as_tensor(-self.encoder.x_shift / self.encoder.x_scale)
            x[space.categorical] = 0.0
            return x
        skip = _skipped_levels(self.kind)
        values = torch.as_tensor(np.asarray(self._imputer.transform(_features(space, table, skip))))
        return _one_per_patient(_from_features(space, values, skip), table, space)


def feature_width(kind: str, space: CovariateSpace) -> int:
    """Return the number of features that the imputer of "knn" or "iterative" is fitted to."""
    return len(space.continuous) + sum(n - min(_skipped_levels(kind), n - 1) for n in space.levels if n)


def _skipped_levels(kind: str) -> int:
    """Return the number of levels to leave out of the features.

    All levels of a column sum to one. With every level present, a regression would predict each from the others and
    never change the starting values.
    """
    return 1 if kind == "iterative" else 0


def _imputer(kind: str) -> Any:
    """Return scikit-learn's imputer for "knn" or "iterative", not yet fitted."""
    if kind == "knn":
        from sklearn.impute import KNNImputer

        return KNNImputer()
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401  # scikit-learn's switch for the next import
    from sklearn.impute import IterativeImputer

    return IterativeImputer(random_state=0, max_iter=20, tol=1e-2)


def _features(space: CovariateSpace, table: Table, skip: int) -> Floats:
    """Return continuous columns and one-hot levels without the first `skip`, NaN at gaps."""
    x, mask = table.x.double(), table.x_mask
    parts = [torch.where(mask[:, q], x[:, q], torch.nan)[:, None] for q in space.continuous]
    for q in space.categorical:
        hot = (x[:, q, None] == torch.arange(min(skip, space.levels[q] - 1), space.levels[q])).double()
        parts.append(torch.where(mask[:, q, None], hot, torch.nan))
    return np.asarray(torch.cat(parts, dim=1).numpy())


def _from_features(space: CovariateSpace, values: Tensor, skip: int) -> Tensor:
    """Return covariates (N×Q) from features: of a categorical column, the level with the largest value.

    The value of a skipped level is one minus the sum of the others.
    """
    x = values.new_zeros(len(values), len(space.names))
    x[:, space.continuous] = values[:, : len(space.continuous)]
    start = len(space.continuous)
    for q in space.categorical:
        skipped = min(skip, space.levels[q] - 1)
        scores = values[:, start : start + space.levels[q] - skipped]
        start += scores.shape[1]
        scores = torch.cat([1.0 - scores.sum(1, keepdim=True), scores], 1) if skipped else scores
        x[:, q] = scores.argmax(1).to(x.dtype)
    return x


def _one_per_patient(x: Tensor, table: Table, space: CovariateSpace) -> Tensor:
    """Replace visit-constant columns by the mean, or the most frequent level, over the patient's visits."""
    if table.patient is None or not any(space.static):
        return x
    visits = torch.bincount(table.patient)
    for q in (q for q, static in enumerate(space.static) if static):
        levels = max(space.levels[q], 1)
        hot = torch.nn.functional.one_hot(x[:, q].long(), levels).to(x.dtype) if space.levels[q] else x[:, q, None]
        total = x.new_zeros(len(visits), levels).index_add(0, table.patient, hot)
        pooled = total.argmax(1).to(x.dtype) if space.levels[q] else total[:, 0] / visits
        x[:, q] = pooled[table.patient]
    return x
