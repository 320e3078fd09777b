"""Single imputation of covariates before training: what others do, for comparison."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lacova.covariates.prior import FactorisedPrior
from lacova.data.covariate_space import CovariateSpace
from lacova.data.encoder import Table, TableEncoder
from lacova.data.errors import DataError
from lacova.data.scaling import Floats

FILLS = ("mean", "knn", "iterative", "zero", "oracle")
FITTED = ("knn", "iterative")


class Fill:
    """Completes X once, by a rule learnt from the training rows; the model then takes it for observed.

    "mean": mean of a number, most frequent level of a category; "knn" and "iterative": scikit-learn's imputers on
    numbers and one-hot levels; "zero": 0 in the column's own units, the first level of a category;
    "oracle": X must be complete.

    Args:
        kind: the rule.
        encoder: of the training rows.
        marginal: overall law of each column.
        features: what "knn" and "iterative" are fitted to: numbers and one-hot levels, NaN at gaps.
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
                # On small tables the iterations often end before they settle; the last one serves all the same.
                warnings.simplefilter("ignore", ConvergenceWarning)
                self._imputer.fit(features)

    @classmethod
    def learn(cls, kind: str, encoder: TableEncoder, table: Table) -> Fill:
        """From the training rows."""
        features = _spread(encoder.space, table, _skip(kind)) if kind in FITTED else None
        return cls(kind, encoder, FactorisedPrior.learn(encoder.space, table), features)

    def __call__(self, table: Table) -> Table:
        """The table with complete covariates."""
        if table.x_mask.all():
            return table
        if self.kind == "oracle":
            gaps = (~table.x_mask).sum(0).tolist()
            named = ", ".join(f"{n} in {c!r}" for c, n in zip(self.encoder.space.names, gaps, strict=True) if n)
            raise DataError(f'covariates="oracle" needs complete covariates, but there are gaps: {named}.')
        x = torch.where(table.x_mask, table.x, self._values(table).to(table.x.dtype))
        return replace(table, x=x, x_mask=torch.ones_like(table.x_mask))

    def _values(self, table: Table) -> Tensor:
        space = self.encoder.space
        if self.kind == "mean":
            x = self.marginal.mean.clone()
            x[space.categorical] = self.marginal.log_prob[space.categorical].argmax(-1).to(x.dtype)
            return x
        if self.kind == "zero":
            x = torch.as_tensor(-self.encoder.x_shift / self.encoder.x_scale)
            x[space.categorical] = 0.0
            return x
        skip = _skip(self.kind)
        values = torch.as_tensor(np.asarray(self._imputer.transform(_spread(space, table, skip))))
        return _one_per_patient(_gather(space, values, skip), table, space)


def width(kind: str, space: CovariateSpace) -> int:
    """Number of features that an imputer is fitted to."""
    return len(space.continuous) + sum(n - min(_skip(kind), n - 1) for n in space.levels if n)


def _skip(kind: str) -> int:
    """Levels left out of the features: all of them sum to one, which a regression would find out and stop at."""
    return 1 if kind == "iterative" else 0


def _imputer(kind: str) -> Any:
    if kind == "knn":
        from sklearn.impute import KNNImputer

        return KNNImputer()
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401  # scikit-learn's switch for the next import
    from sklearn.impute import IterativeImputer

    return IterativeImputer(random_state=0, max_iter=20, tol=1e-2)


def _spread(space: CovariateSpace, table: Table, skip: int) -> Floats:
    """Numbers and one-hot levels but for the first `skip`, NaN at gaps."""
    x, mask = table.x.double(), table.x_mask
    parts = [torch.where(mask[:, q], x[:, q], torch.nan)[:, None] for q in space.continuous]
    for q in space.categorical:
        hot = (x[:, q, None] == torch.arange(min(skip, space.levels[q] - 1), space.levels[q])).double()
        parts.append(torch.where(mask[:, q, None], hot, torch.nan))
    return np.asarray(torch.cat(parts, dim=1).numpy())


def _gather(space: CovariateSpace, values: Tensor, skip: int) -> Tensor:
    """Back from numbers and one-hot levels: the level with the largest value, the first having what is left to 1."""
    x = values.new_zeros(len(values), len(space.names))
    x[:, space.continuous] = values[:, : len(space.continuous)]
    start = len(space.continuous)
    for q in space.categorical:
        left_out = min(skip, space.levels[q] - 1)
        shown = values[:, start : start + space.levels[q] - left_out]
        share = torch.cat([1.0 - shown.sum(1, keepdim=True), shown], 1) if left_out else shown
        x[:, q] = share.argmax(1).to(x.dtype)
        start += shown.shape[1]
    return x


def _one_per_patient(x: Tensor, table: Table, space: CovariateSpace) -> Tensor:
    """Visit-constant columns take the mean, or the most frequent level, of what a patient's visits were given."""
    if table.patient is None or not any(space.static):
        return x
    visits = torch.bincount(table.patient)
    for q in (q for q, fixed in enumerate(space.static) if fixed):
        levels = max(space.levels[q], 1)
        hot = torch.nn.functional.one_hot(x[:, q].long(), levels).to(x.dtype) if space.levels[q] else x[:, q, None]
        total = x.new_zeros(len(visits), levels).index_add(0, table.patient, hot)
        pooled = total.argmax(1).to(x.dtype) if space.levels[q] else total[:, 0] / visits
        x[:, q] = pooled[table.patient]
    return x
