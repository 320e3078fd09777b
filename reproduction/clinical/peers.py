"""The methods that lacova is compared with: each returns draws (draws×N×D) of the wanted columns at the test visits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401  # scikit-learn's switch for the next import
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import BayesianRidge

from reproduction.clinical.tasks import OF_Y, Floats, Task, coded, losing

DRAWS = 100


def by_mean(task: Task, seed: int) -> Floats:
    """Draw from the training values of each column; a column that does not change with visits counts once a patient."""
    rng = np.random.default_rng(seed)
    train, first = task.coded(task.train), ~task.train[task.schema.instance].duplicated()
    values = [train.loc[first | (name not in task.schema.static), name].dropna().to_numpy() for name in task.names]
    return np.stack([rng.choice(column, (DRAWS, len(task.test))) for column in values], axis=-1)


def by_last_value(task: Task, seed: int) -> Floats:
    """Return the patient's last value before the visit, else the training mean or the most frequent level."""
    train = task.coded(task.train)
    default = train.mean().where(~train.columns.isin(list(task.levels)), train.mode().iloc[0])
    return task.coded(task.test).groupby(task.test[task.schema.instance]).ffill().fillna(default).to_numpy()[None]


def by_neighbours(task: Task, seed: int) -> Floats:
    """Return the mean over the 5 nearest neighbours."""
    train, test, back = _numbers(task)
    return back(KNNImputer().fit(train).transform(test)[None])


def by_ridge(task: Task, seed: int) -> Floats:
    """Draw by scikit-learn's chained equations with Bayesian ridge regressions, from their posterior."""
    return _chained(task, lambda k: BayesianRidge(), seed, 10, draws=DRAWS // 10, sample_posterior=True)


def by_extra_trees(task: Task, seed: int) -> Floats:
    """Impute by the same with extremely randomised trees, which give no draws."""
    return _chained(
        task, lambda k: ExtraTreesRegressor(n_estimators=30, min_samples_leaf=3, random_state=k), seed, 1, 1, max_iter=4
    )


def by_forest(task: Task, seed: int) -> Floats:
    """Draw by miceforest: chained boosted trees with predictive mean matching. Its kernel contains the test visits."""
    import miceforest

    train, test, back = _numbers(task)
    both = pd.DataFrame(np.vstack([train, test]), columns=[f"c{k}" for k in range(train.shape[1])])
    tables = []
    for draw in range(10):  # one at a time: a kernel keeps all its trees
        kernel = miceforest.ImputationKernel(both, save_all_iterations_data=False, random_state=1000 * seed + draw)
        kernel.mice(3, verbose=False, n_jobs=1, num_iterations=50)
        tables.append(kernel.complete_data().to_numpy()[len(train) :])
    return back(np.stack(tables))


def by_trees(task: Task, seed: int) -> Floats:
    """Draw by boosted trees per column: the patient's other visits are features, validation residuals the spread."""
    rng = np.random.default_rng(seed)
    if task.kind not in OF_Y:
        return np.stack([_covariate_by_trees(task, name, rng) for name in task.names], axis=-1)
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
    """Draw by statsmodels' linear mixed model per measurement, with a random intercept and slope for each patient."""
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
    """Return training and test visits as standardised numbers, one-hot X before Y, NaN at gaps; and the inverse."""
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

    def back(filled: Floats) -> Floats:
        """Return the wanted columns (draws×N×D) from completed numbers (draws×N×columns)."""
        numbers = filled * spread[wide.columns].to_numpy() + mean[wide.columns].to_numpy()
        return np.stack([_column(task, name, numbers, list(wide.columns)) for name in task.names], axis=-1)

    return wide.loc["train"].to_numpy(), wide.loc["test"].to_numpy(), back


def _column(task: Task, name: str, numbers: Floats, columns: list[str]) -> Floats:
    """Return a column, or the place of its largest indicator (draws×N), from completed numbers (draws×N×columns).

    A column that does not change with visits has been imputed at each visit separately. A number is then the patient's
    average, with the spread of the draws at a visit. A level is that of the average indicators; where levels are
    drawn, each draw is that of one visit.
    """
    shown = [f"{name}={level}" for level in task.levels.get(name, [])]
    if not shown:
        values = numbers[:, :, columns.index(name), None]
    else:
        values = np.full((*numbers.shape[:2], len(shown)), -1e9)
        known = [k for k, indicator in enumerate(shown) if indicator in columns]
        values[:, :, known] = numbers[:, :, [columns.index(shown[k]) for k in known]]
        seen = pd.concat([task.train[name], task.test[name]]).dropna()
        first = task.levels[name].index(min(seen.unique(), key=str))  # which has no indicator
        values[:, :, first] = 1.0 - values[:, :, known].sum(-1)
    if name in task.schema.static:
        who = pd.factorize(task.test[task.schema.instance])[0]
        visits = [np.flatnonzero(who == p) for p in range(who.max() + 1)]
        if shown and len(values) > 1:  # each draw of a patient's level is that of one of its visits
            rng = np.random.default_rng(0)
            rows = np.stack([rng.choice(mine, len(values)) for mine in visits], axis=1)[:, who]
            values = np.take_along_axis(values, rows[..., None], axis=1)
        else:
            middle = values.mean(0)
            values = np.stack([middle[mine].mean(0) for mine in visits])[who] + (values - middle)
    return values.argmax(-1).astype(float) if shown else values[..., 0]


def _indicators(column: pd.Series[Any], known: pd.Series[Any]) -> pd.DataFrame:
    """Return indicators of a category's known levels but the first, which is the others' complement; NaN at gaps."""
    levels = sorted(known.dropna().unique(), key=str)[1:]
    hot = {f"{column.name}={level}": (column == level).where(column.notna()).astype(float) for level in levels}
    return pd.DataFrame(hot, index=column.index)


def _chained(task: Task, regressor: Callable[[int], Any], seed: int, fits: int, draws: int, **settings: Any) -> Floats:
    """Return the given number of draws from each of several fits of chained equations."""
    train, test, back = _numbers(task)
    tables = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the number of rounds is fixed, converged or not
        for k in range(fits):
            imputer = IterativeImputer(regressor(k), random_state=1000 * seed + k, **{"max_iter": 10, **settings})
            imputer.fit(train)
            tables += [imputer.transform(test) for _ in range(draws)]
    return back(np.stack(tables))


def _history_features(task: Task, frame: pd.DataFrame, name: str) -> tuple[Floats, Floats]:
    """Return X and features of the patient's other visits (earlier ones in forecasts), and the measurement itself."""
    patient = frame[task.schema.instance]
    x = pd.DataFrame(index=frame.index)
    for q, kind in task.schema.covariates.items():
        levels = sorted(task.train[q].dropna().unique(), key=str)
        x[q] = frame[q].astype(float) if kind == "continuous" else frame[q].map({v: k for k, v in enumerate(levels)})
    x = x.astype(float)
    value, day = frame[name].astype(float), frame[task.schema.time].astype(float)
    if task.kind == "predict":
        return x.to_numpy(), value.to_numpy()
    groups = patient.to_numpy()
    if task.kind == "forecast":
        # Training patients are treated as test patients are: the second half is predicted from the first.
        half = frame.groupby(patient).cumcount() < (frame.groupby(patient)[name].transform("size") + 1) // 2
        value_past = value.where(half)
    else:
        value_past = value
    beside = _beside(value_past, day, groups)
    count = value_past.notna().groupby(groups).transform("sum") - value_past.notna()
    others = value_past.fillna(0.0).groupby(groups).transform("sum") - value_past.fillna(0.0)
    x["mean of others"] = (others / count.where(count > 0)).to_numpy()
    x["last"], x["since"] = beside["last"], beside["since"]
    if task.kind == "impute":
        x["next"], x["until"] = beside["next"], beside["until"]
        for other in task.measurements:
            if other != name:
                x[f"y {other}"] = frame[other].to_numpy(dtype=float)
    wanted = value if task.kind == "impute" else value.where(~half)  # the second half is what is learnt
    return x.to_numpy(), wanted.to_numpy()


def _covariate_by_trees(task: Task, name: str, rng: np.random.Generator) -> Floats:
    """Draw a covariate (draws×N) given the others, the measurements, and its values at the patient's other visits.

    A covariate that does not change counts once per patient, and its values at other visits are then no features: they
    would reveal the value in training, and never in the test.
    """
    fixed, instance, levels = name in task.schema.static, task.schema.instance, task.levels.get(name)
    others = [other for other in losing(task.schema) if other != name]

    def rows(frame: pd.DataFrame) -> tuple[Floats, Floats, Floats]:
        value, patient = task.coded(frame)[name], frame[instance]
        day = frame[task.schema.time].astype(float)
        x = pd.concat([coded(frame, others, task.levels), day, frame[task.measurements].astype(float)], axis=1)
        if not fixed:
            x = x.assign(**_beside(value, day, patient.to_numpy()))
        visits = patient.groupby(patient).transform("size")
        return x.to_numpy(), value.to_numpy(), (1.0 / visits if fixed else 1.0 + 0.0 * visits).to_numpy()

    (x, value, weight), (held_x, held, held_weight), (test_x, _, _) = map(
        rows, (task.train, task.validation, task.test)
    )
    seen, held_seen = ~np.isnan(value), ~np.isnan(held)
    held_x, held, held_weight = held_x[held_seen], held[held_seen], held_weight[held_seen]
    who, held_who = task.test[instance].to_numpy(), task.validation[instance].to_numpy()[held_seen]

    def of_patients(values: Floats, patient: npt.NDArray[Any]) -> Floats:
        """Return the patients' averages if the covariate does not change with visits."""
        if not fixed:
            return values
        return pd.DataFrame(values).groupby(patient).transform("mean").to_numpy().reshape(values.shape)

    settings = {"learning_rate": 0.05, "max_iter": 200, "max_leaf_nodes": 15, "random_state": 0}
    if levels is None:
        trees = HistGradientBoostingRegressor(**settings).fit(x[seen], value[seen], weight[seen])
        stages = [of_patients(p, held_who) for p in trees.staged_predict(held_x)]
        best = int(np.argmin([np.average((p - held) ** 2, weights=held_weight) for p in stages]))
        guess = of_patients(list(trees.staged_predict(test_x))[best], who)
        probs = held_weight / held_weight.sum()
        return guess + rng.choice(held - stages[best], (DRAWS, len(guess)), p=probs)
    trees = HistGradientBoostingClassifier(**settings).fit(x[seen], value[seen].astype(int), weight[seen])

    def staged_probabilities(rows: Floats) -> Iterator[Floats]:
        for of_seen_levels in trees.staged_predict_proba(rows):
            probs = np.zeros((len(rows), len(levels)))
            probs[:, trees.classes_] = of_seen_levels[:, : len(trees.classes_)]
            yield probs

    at = np.arange(len(held)), held.astype(int)
    stages = [of_patients(p, held_who) for p in staged_probabilities(held_x)]
    best = int(np.argmin([-np.average(np.log(p[at].clip(1e-3)), weights=held_weight) for p in stages]))
    prob = of_patients(list(staged_probabilities(test_x))[best], who)
    return (rng.random((DRAWS, len(prob), 1)) > prob.cumsum(1)[:, :-1]).sum(-1).astype(float)


def _beside(value: pd.Series[Any], day: pd.Series[Any], patient: npt.NDArray[Any]) -> dict[str, Floats]:
    """Return the last value before and the next value after each visit, and the days to them."""
    both = pd.DataFrame({"value": value, "day": day.where(value.notna())})
    last = both.groupby(patient).ffill().groupby(patient).shift(1)
    after = both.groupby(patient).bfill().groupby(patient).shift(-1)
    return {
        "last": last["value"].to_numpy(), "since": (day - last["day"]).to_numpy(),
        "next": after["value"].to_numpy(), "until": (after["day"] - day).to_numpy(),
    }  # fmt: skip


def _mixed(task: Task, name: str, shift: float, scale: float) -> tuple[Floats, Floats]:
    """Return mean and variance of y at the test visits, given the patient's observed values."""
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
    observed = (task.test[name].to_numpy(dtype=float) - middle) / unit
    mean, var = x @ beta, np.einsum("ni,ij,nj->n", z, cov, z) + noise
    for rows in task.test.groupby(instance).indices.values():
        known = rows[~np.isnan(observed[rows])]
        if len(known):
            gain = z[rows] @ cov @ z[known].T @ np.linalg.inv(z[known] @ cov @ z[known].T + noise * np.eye(len(known)))
            mean[rows] += gain @ (observed[known] - x[known] @ beta)
            var[rows] -= np.einsum("nk,nk->n", gain, z[rows] @ cov @ z[known].T)
    return mean * unit + middle, np.maximum(var, 1e-12) * unit**2
