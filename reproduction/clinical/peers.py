"""What lacova is compared with: each answers with draws of Y (draws×N×D) for the test visits, in their own units."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401  # scikit-learn's switch for the next import
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import BayesianRidge

from reproduction.clinical.tasks import Floats, Task

DRAWS = 100


def by_mean(task: Task, seed: int) -> Floats:
    """Draws from the training values of each measurement."""
    rng = np.random.default_rng(seed)
    values = [task.train[name].dropna().to_numpy(dtype=float) for name in task.measurements]
    return np.stack([rng.choice(column, (DRAWS, len(task.test))) for column in values], axis=-1)


def by_last_value(task: Task, seed: int) -> Floats:
    """The patient's last value before the visit, else the training mean."""
    y = task.test[task.measurements].astype(float)
    last = y.groupby(task.test[task.schema.instance]).ffill()
    return last.fillna(task.train[task.measurements].mean()).to_numpy()[None]


def by_neighbours(task: Task, seed: int) -> Floats:
    train, test, back = _numbers(task)
    return back(KNNImputer().fit(train).transform(test))[None]


def by_ridge(task: Task, seed: int) -> Floats:
    """scikit-learn's chained equations: Bayesian ridge regressions, values drawn from their posterior."""
    return _chained(task, lambda k: BayesianRidge(), seed, 10, each=DRAWS // 10, sample_posterior=True)


def by_extra_trees(task: Task, seed: int) -> Floats:
    """The same with extremely randomised trees, which give no draws."""
    return _chained(
        task, lambda k: ExtraTreesRegressor(n_estimators=30, min_samples_leaf=3, random_state=k), seed, 1, 1, max_iter=4
    )


def by_forest(task: Task, seed: int) -> Floats:
    """miceforest: chained boosted trees with predictive mean matching. The test visits stand in its kernel."""
    import miceforest

    train, test, back = _numbers(task)
    both = pd.DataFrame(np.vstack([train, test]), columns=[f"c{k}" for k in range(train.shape[1])])
    found = []
    for draw in range(10):  # one at a time: a kernel keeps all its trees
        kernel = miceforest.ImputationKernel(both, save_all_iterations_data=False, random_state=1000 * seed + draw)
        kernel.mice(3, verbose=False, n_jobs=1, num_iterations=50)
        found.append(back(kernel.complete_data().to_numpy()[len(train) :]))
    return np.stack(found)


def by_trees(task: Task, seed: int) -> Floats:
    """Boosted trees per measurement, with the patient's other visits as features; spread from validation residuals."""
    rng = np.random.default_rng(seed)
    draws = np.empty((DRAWS, *task.truth.shape))
    for d, name in enumerate(task.measurements):
        parts = [_history_features(task, frame, name) for frame in (task.train, task.validation, task.test)]
        (x, value), (held_x, held), (test_x, _) = parts
        seen, held_seen = ~np.isnan(value), ~np.isnan(held)
        trees = HistGradientBoostingRegressor(learning_rate=0.05, max_iter=200, max_leaf_nodes=15, random_state=0)
        trees.fit(x[seen], value[seen])
        loss = [np.mean((p - held[held_seen]) ** 2) for p in trees.staged_predict(held_x[held_seen])]
        best = int(np.argmin(loss))
        guess = list(trees.staged_predict(test_x))[best]
        residual = held[held_seen] - list(trees.staged_predict(held_x[held_seen]))[best]
        draws[:, :, d] = guess + rng.choice(residual, (DRAWS, len(guess)))
    return draws


def by_mixed_model(task: Task, seed: int) -> Floats:
    """statsmodels' linear mixed model per measurement, with a random intercept and slope of each patient."""
    rng = np.random.default_rng(seed)
    draws = np.empty((DRAWS, *task.truth.shape))
    days = task.train[task.schema.time].astype(float)
    shift, scale = days.mean(), days.std() or 1.0
    for d, name in enumerate(task.measurements):
        mean, var = _mixed(task, name, shift, scale)
        draws[:, :, d] = mean + np.sqrt(var) * rng.standard_normal((DRAWS, len(mean)))
    return draws


PEERS: dict[str, Callable[[Task, int], Floats]] = {
    "mean": by_mean, "locf": by_last_value, "knn": by_neighbours, "ridge": by_ridge, "extra trees": by_extra_trees,
    "miceforest": by_forest, "boosted trees": by_trees, "mixed model": by_mixed_model,
}  # fmt: skip


def _numbers(task: Task) -> tuple[Floats, Floats, Callable[[Floats], Floats]]:
    """Training and test visits as standardised numbers, X one-hot before Y, NaN at gaps; and the way back to Y."""
    both = pd.concat([task.train, task.test], keys=["train", "test"])
    columns = []
    for name, kind in task.schema.covariates.items():
        if kind == "continuous":
            columns.append(both[[name]].astype(float))
        else:
            columns.append(_indicators(both[name], both[name]))
    wide = pd.concat([*columns, both[task.measurements].astype(float)], axis=1)
    mean, spread = wide.loc["train"].mean(), wide.loc["train"].std().replace(0.0, 1.0).fillna(1.0)
    wide = (wide - mean) / spread
    wide = wide.drop(columns=[name for name in wide if wide.loc["train", name].isna().all()])
    at = [wide.columns.get_loc(name) for name in task.measurements]
    shift, scale = mean[task.measurements].to_numpy(), spread[task.measurements].to_numpy()
    return wide.loc["train"].to_numpy(), wide.loc["test"].to_numpy(), lambda filled: filled[:, at] * scale + shift


def _indicators(column: pd.Series[Any], known: pd.Series[Any]) -> pd.DataFrame:
    """Of a category, for each level that is known but the first, which is the others' complement; NaN at gaps."""
    levels = sorted(known.dropna().unique(), key=str)[1:]
    hot = {f"{column.name}={level}": (column == level).where(column.notna()).astype(float) for level in levels}
    return pd.DataFrame(hot, index=column.index)


def _chained(task: Task, regressor: Callable[[int], Any], seed: int, fits: int, each: int, **settings: Any) -> Floats:
    """So many fits, and so many draws of each."""
    train, test, back = _numbers(task)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so many rounds, converged or not
        for k in range(fits):
            imputer = IterativeImputer(regressor(k), random_state=1000 * seed + k, **{"max_iter": 10, **settings})
            imputer.fit(train)
            found += [back(imputer.transform(test)) for _ in range(each)]
    return np.stack(found)


def _history_features(task: Task, frame: pd.DataFrame, name: str) -> tuple[Floats, Floats]:
    """X, and what the patient's other visits say of a measurement; forecasts and training for them look back only."""
    patient = frame[task.schema.instance]
    x = pd.DataFrame(index=frame.index)
    for q, kind in task.schema.covariates.items():
        levels = sorted(task.train[q].dropna().unique(), key=str)
        x[q] = frame[q].astype(float) if kind == "continuous" else frame[q].map({v: k for k, v in enumerate(levels)})
    x = x.astype(float)
    value, day = frame[name].astype(float), frame[task.schema.time].astype(float)
    seen_day = day.where(value.notna())
    if task.kind == "predict":
        return x.to_numpy(), value.to_numpy()
    groups = patient.to_numpy()
    if task.kind == "forecast":
        # Training patients are asked as test patients are: their second half, given the first.
        half = frame.groupby(patient).cumcount() < (frame.groupby(patient)[name].transform("size") + 1) // 2
        value_past, day_past = value.where(half), seen_day.where(half)
    else:
        value_past, day_past = value, seen_day
    both = pd.DataFrame({"value": value_past, "day": day_past})
    last = both.groupby(groups).ffill().groupby(groups).shift(1)
    after = both.groupby(groups).bfill().groupby(groups).shift(-1)
    count = value_past.notna().groupby(groups).transform("sum") - value_past.notna()
    others = value_past.fillna(0.0).groupby(groups).transform("sum") - value_past.fillna(0.0)
    x["mean of others"] = (others / count.where(count > 0)).to_numpy()
    x["last"], x["since"] = last["value"].to_numpy(), (day - last["day"]).to_numpy()
    if task.kind == "impute":
        x["next"], x["until"] = after["value"].to_numpy(), (after["day"] - day).to_numpy()
        for other in task.measurements:
            if other != name:
                x[f"y {other}"] = frame[other].to_numpy(dtype=float)
    wanted = value if task.kind == "impute" else value.where(~half)  # the second half is what is learnt
    return x.to_numpy(), wanted.to_numpy()


def _mixed(task: Task, name: str, shift: float, scale: float) -> tuple[Floats, Floats]:
    """Mean and variance of y at the test visits, given the patient's observed values."""
    import statsmodels.api as sm

    instance, time = task.schema.instance, task.schema.time
    fixed = [q for q in task.schema.covariates if q != time]

    def numbers(frame: pd.DataFrame) -> pd.DataFrame:
        kinds = task.schema.covariates
        return pd.concat([
            frame[[q]].astype(float) if kinds[q] == "continuous" else _indicators(frame[q], task.train[q])
            for q in fixed
        ], axis=1)  # fmt: skip

    centre, spread = numbers(task.train).mean(), numbers(task.train).std().replace(0.0, 1.0).fillna(1.0)

    def design(frame: pd.DataFrame) -> tuple[Floats, Floats]:
        day = (frame[time].to_numpy(dtype=float) - shift) / scale
        others = ((numbers(frame) - centre) / spread).fillna(0.0).to_numpy()
        random = np.column_stack([np.ones_like(day), day])
        return np.column_stack([random, others]), random

    train = pd.concat([task.train, task.validation], ignore_index=True)
    y = train[name].to_numpy(dtype=float)
    seen = ~np.isnan(y)
    middle, unit = y[seen].mean(), y[seen].std() or 1.0
    x, z = design(train)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # variances at their boundary
        try:
            fit = sm.MixedLM(
                (y[seen] - middle) / unit, x[seen], groups=train[instance].to_numpy()[seen], exog_re=z[seen]
            ).fit(reml=True, method=["lbfgs", "powell"])
            beta, cov, noise = fit.fe_params, np.asarray(fit.cov_re), max(float(fit.scale), 1e-6)
        except (np.linalg.LinAlgError, ValueError):  # next to no variance within patients, or between them
            beta, cov, noise = np.zeros(x.shape[1]), np.zeros((2, 2)), 1.0
    x, z = design(task.test)
    given = (task.test[name].to_numpy(dtype=float) - middle) / unit
    mean, var = x @ beta, np.einsum("ni,ij,nj->n", z, cov, z) + noise
    for rows in task.test.groupby(instance).indices.values():
        known = rows[~np.isnan(given[rows])]
        if len(known):
            gain = z[rows] @ cov @ z[known].T @ np.linalg.inv(z[known] @ cov @ z[known].T + noise * np.eye(len(known)))
            mean[rows] += gain @ (given[known] - x[known] @ beta)
            var[rows] -= np.einsum("nk,nk->n", gain, z[rows] @ cov @ z[known].T)
    return mean * unit + middle, np.maximum(var, 1e-12) * unit**2
