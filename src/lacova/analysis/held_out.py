"""Scores of a fitted model on the rows held out of a fold: hidden entries imputed, all measurements predicted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from lacova.analysis.folds import Fold
from lacova.data.columns import patient_codes
from lacova.data.kinds import values_of
from lacova.data.scaling import Floats
from lacova.data.schema import Schema
from lacova.data.table import Table
from lacova.inference.draws import Draws
from lacova.inference.impute import weighted_covariates
from lacova.inference.joint_scores import NAMES as JOINT
from lacova.inference.joint_scores import JointScores
from lacova.inference.score import DrawsAndTruth, by_column, overall
from lacova.models.base import Model
from lacova.models.miwae import NotMIWAE
from lacova.nn.threads import suitable_threads

IMPUTED = ("nll", "crps", "rmse", "coverage90", "accuracy", *JOINT)
PREDICTED = ("nll", "crps", "rmse", "accuracy", *JOINT)


def held_out_scores(model: Model, part: Fold, schema: Schema, draws: int, seed: int) -> dict[str, float]:
    """Return the scores of a fitted model on the rows held out, by name."""
    scale = _Scale(*np.transpose([_mean_and_sd(part.train, name, schema) for name in model.schema.measurements]))
    with suitable_threads(model.networks.parallel):
        imputation, covariate_errors = _score_imputation(model, part, schema, scale, draws, seed)
        prediction = _score_prediction(model, part, schema, scale, draws, seed)
    scores = {name: imputation[name] for name in IMPUTED if name in imputation} | covariate_errors
    scores |= {f"predict_{name}": prediction[name] for name in PREDICTED if name in prediction}
    if not isinstance(model, NotMIWAE):  # its likelihood includes the mask
        rows = part.test[part.test[list(schema.measurements)].notna().any(axis=1)]
        scores["log_likelihood"] = float(model.log_likelihood(rows, draws=draws, seed=seed).mean())
    return scores


class _Scale(NamedTuple):
    """Mean and standard deviation of each measurement in training (D,), the same for all models."""

    mean: Floats
    sd: Floats


def _mean_and_sd(train: pd.DataFrame, name: str, schema: Schema) -> tuple[float, float]:
    """Return mean and standard deviation of a measurement in training; 0 and 1 for a category."""
    if values_of(schema.kinds.get(name)) == "level":
        return 0.0, 1.0
    values = train[name].astype(float)
    sd = float(values.std(ddof=0))
    return float(values.mean()), sd if sd > 0 else 1.0


def _score_prediction(
    model: Model, part: Fold, schema: Schema, scale: _Scale, draws: int, seed: int
) -> dict[str, float]:  # fmt: skip
    """Return the scores of all measurements, predicted from covariates alone."""
    table = model.encode(part.test)
    everything = torch.ones(len(table), dtype=torch.bool)
    drawn = model._predictions(table, everything, draws, seed, trained=())
    return _compare(model, drawn, table, table.y_mask, part, schema, scale)


@torch.no_grad()
def _score_imputation(
    model: Model, part: Fold, schema: Schema, scale: _Scale, draws: int, seed: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the scores of hidden measurements, and the errors of hidden covariates."""
    encoder, vae = model.fitted()
    rows = part.hidden_y if model.covariates == "oracle" else part.hidden
    truth, seen = (encoder.encode(frame, unseen="missing") for frame in (part.test, rows))
    table = model.encode(rows)
    guess = torch.empty(truth.x.shape)

    def imputed() -> Iterator[Draws]:
        for drawn in model._imputation(table, draws, seed):
            guess[drawn.rows] = weighted_covariates(drawn, vae.space)[0].to(guess)
            yield drawn

    mask = truth.y_mask & ~seen.y_mask
    scores = _compare(model, imputed(), truth.to(table.y.device), mask, part, schema, scale)
    hidden = truth.x_mask & ~seen.x_mask
    if truth.patient is not None:  # a visit-constant covariate counts once per instance
        first = torch.as_tensor(~pd.Series(truth.patient.numpy()).duplicated().to_numpy())
        hidden &= first[:, None] | ~torch.tensor(vae.space.static, dtype=torch.bool)
    numbers, levels = (torch.zeros_like(hidden) for _ in range(2))
    numbers[:, list(vae.space.continuous)] = True
    levels[:, list(vae.space.categorical)] = True
    square, hit = (guess - truth.x).square(), (guess == truth.x).to(guess)
    x_rmse, x_accuracy = _mean(square[hidden & numbers]) ** 0.5, _mean(hit[hidden & levels])
    return scores, {"x_rmse": x_rmse, "x_accuracy": x_accuracy}


def _compare(
    model: Model, drawn: Iterable[Draws], truth: Table, mask: torch.Tensor, part: Fold, schema: Schema, scale: _Scale
) -> dict[str, float]:  # fmt: skip
    """Return scores of draws of the rows held out, over the entries in the mask.

    Courses are those of the instances of the comparison, of which a model may know nothing.
    """
    encoder, vae = model.fitted()
    codes, _ = patient_codes(part.test, schema.instance)
    patient, mask = None if codes is None else torch.as_tensor(codes), mask.to(truth.y.device)
    joint = JointScores(encoder, scale.mean, scale.sd, hold=True)
    parts = (
        DrawsAndTruth(one, truth.y[one.rows], mask[one.rows], None if patient is None else patient[one.rows])
        for one in drawn
    )
    scores, _ = by_column(vae, encoder, parts, joint)
    return overall(scores, scale.sd, max(1, int(scores["entries"].sum()))) | joint.means()


def _mean(values: torch.Tensor) -> float:
    return float(values.double().mean()) if len(values) else math.nan
