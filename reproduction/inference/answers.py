"""How methods answer: completed tables that are analysed, predictions of new rows, and effects of an arm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm
from scipy.stats import t as student

from reproduction.inference.multiple import TABLES
from reproduction.inference.regressions import (
    Floats,
    design,
    interval,
    least_squares,
    mixed_model,
    variance_regression,
)  # fmt: skip
from reproduction.inference.world import Figures, Method, Ours, Study

Source = Callable[[Study, int, Ours], Iterable[pd.DataFrame]]
Judge = Callable[[Sequence[pd.DataFrame], Study], Figures]
HELD = 0.9  # the intervals of predictions and of what_if


def by_tables(judge: Judge, source: Source) -> Method:
    """Return the method that completes tables and analyses them."""
    return lambda study, seed, ours: judge(list(source(study, seed, ours)), study)


def complete_data(study: Study, seed: int, ours: Ours) -> Iterable[pd.DataFrame]:
    yield study.complete


def complete_cases(study: Study, seed: int, ours: Ours) -> Iterable[pd.DataFrame]:
    yield study.gappy.dropna()


def imputed(kind: str) -> Source:
    """Return completed tables drawn by a model of lacova."""

    def tables(study: Study, seed: int, ours: Ours) -> Iterable[pd.DataFrame]:
        drawn = ours.model(kind, study, seed).impute(study.gappy, draws=TABLES, seed=seed)
        for _, table in drawn.groupby("draw"):
            yield table.drop(columns="draw").set_axis(study.gappy.index)

    return tables


def repeated(fill: Callable[[pd.DataFrame, np.random.Generator], pd.DataFrame]) -> Source:
    """Return tables that were completed one by one, each with its own random numbers."""

    def tables(study: Study, seed: int, ours: Ours) -> Iterable[pd.DataFrame]:
        for draw in range(TABLES):
            yield fill(study.gappy, np.random.default_rng([seed, draw]))

    return tables


# Predictions


class Prediction(NamedTuple):
    """Means and ends of intervals of new rows, and the standard deviation of the noise, where there is one."""

    mean: Any
    lower: Any
    upper: Any
    noise: float | None = None


Predictor = Callable[[Study, int, Ours], Prediction]


def by_predictions(judge: Callable[[Prediction, Study], Figures], predict: Predictor) -> Method:
    return lambda study, seed, ours: judge(predict(study, seed, ours), study)


def predicted(kind: str, **settings: Any) -> Predictor:
    """Return the predictions of a model of lacova, with settings of its own."""

    def predict(study: Study, seed: int, ours: Ours) -> Prediction:
        model = ours._replace(settings={**ours.settings, **settings}).model(kind, study, seed)
        answer = model.predict(study.new, interval=HELD, seed=seed)
        return Prediction(answer["y"], answer["y_lower"], answer["y_upper"], learnt_noise(model))

    return predict


def learnt_noise(model: Any) -> float:
    """Return the standard deviation of the noise of the one measurement, root mean square over members."""
    variances = [float(vae.likelihood.noise_variance.detach()[0]) for vae in model.draw_from]
    return float(np.sqrt(np.mean(variances)) * model.encoder.y_scale[0])


def numbers(table: pd.DataFrame) -> Floats:
    """Return the design of the covariates: an intercept, the numbers, and the second arm."""
    columns = [table[name] for name in ("x0", "x1") if name in table]
    return design(*columns, *([table["arm"] == "b"] if "arm" in table else []))


def by_least_squares(study: Study, seed: int, ours: Ours) -> Prediction:
    """Predict by least squares, with the exact interval of a new observation."""
    assert study.new is not None
    fit, new = least_squares(study.gappy["y"], numbers(study.gappy)), numbers(study.new)
    mean, spread = new @ fit.coefficients, fit.noise + np.einsum("ni,ij,nj->n", new, fit.covariance, new)
    half = student.ppf(0.5 + 0.5 * HELD, fit.dof) * np.sqrt(spread)
    return Prediction(mean, mean - half, mean + half, float(np.sqrt(fit.noise)))


def by_variance_regression(study: Study, seed: int, ours: Ours) -> Prediction:
    """Predict by a regression of the mean and of the logarithm of the variance."""
    assert study.new is not None
    beta, gamma = variance_regression(study.gappy["y"], numbers(study.gappy))
    new = numbers(study.new)
    mean, half = new @ beta, norm.ppf(0.5 + 0.5 * HELD) * np.exp(0.5 * new @ gamma)
    return Prediction(mean, mean - half, mean + half)


# Effects


def what_if(kind: str) -> Method:
    """Return the average difference between the arms that a model of lacova expects of the study's own rows."""

    def answer(study: Study, seed: int, ours: Ours) -> Figures:
        model, rows = ours.model(kind, study, seed), study.gappy.assign(arm="a")
        average = model.what_if(rows, {"arm": "b"}, interval=HELD, seed=seed).average.iloc[0]
        return {"effect": [float(average[name]) for name in ("difference", "difference_lower", "difference_upper")]}

    return answer


def effect_by_least_squares(study: Study, seed: int, ours: Ours) -> Figures:
    """Return the coefficient of the arm."""
    fit = least_squares(study.gappy["y"], numbers(study.gappy))
    return {"effect": interval(fit, len(fit.coefficients) - 1, HELD)}


def effect_by_means(study: Study, seed: int, ours: Ours) -> Figures:
    """Compare the patients' means by least squares."""
    means = study.gappy.groupby("id").agg(y=("y", "mean"), arm=("arm", "first"))
    return {"effect": interval(least_squares(means["y"], design(means["arm"] == "b")), 1, HELD)}


def effect_by_mixed_model(slopes: bool) -> Method:
    """Return the difference between the arms at the mean day, from a mixed model by REML.

    With slopes: an effect of the day and its square, of the arm and of its product with the day, and for each patient
    an intercept and a slope. Else the day, the arm, and an intercept for each patient.
    """

    def answer(study: Study, seed: int, ours: Ours) -> Figures:
        table = study.gappy
        day, arm = table["day"] - table["day"].mean(), (table["arm"] == "b").astype(float)
        day = day / day.std()
        x = design(arm, day, day**2, arm * day) if slopes else design(arm, day)
        z = design(day) if slopes else np.ones((len(table), 1))
        fit = mixed_model(table["y"], x, table["id"], z, dof=table["id"].nunique() - 2)
        return {"effect": interval(fit, 1, HELD)}

    return answer
