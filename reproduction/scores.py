"""Scores that the paper has and the library does not: the plug-in NLL, and errors of imputed covariates."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from lacova.covariates.factorised import level_probabilities, most_probable
from lacova.inference.draws import chunks
from lacova.models.base import Model


@torch.no_grad()
def plugin_nll(model: Model, data: pd.DataFrame) -> float:
    """Return the paper's kind of NLL: one completion of X, one value of z, and the noise variance alone.

    x̂_u is the mean (of a category, the most probable level) of the distribution that the model predicts with, and ẑ
    is the mean of p(z | x̂). The score is −Σ_d log N(y_d | decoder(ẑ, x̂)_d, σ_d²) over the observed entries, averaged
    over rows, in the measurements' own units. It leaves out the uncertainty about x_u and z.
    """
    encoder, vae = model.fitted()
    table = model.encode(data)
    total = 0.0
    for _, batch in chunks(table, 1, width=vae.prior.width):
        without_y = replace(batch, y_mask=torch.zeros_like(batch.y_mask))
        x = batch.x
        if not batch.x_mask.all():
            x = most_probable(vae.covariate_distribution(without_y), without_y, vae.space)
        z, _ = vae.prior.predict(x, batch.patient)
        var = vae.likelihood.noise_variance
        nll = 0.5 * ((batch.y - vae.decode(z, x)) ** 2 / var + var.log() + math.log(2.0 * math.pi))
        total += float(torch.where(batch.y_mask, nll.double(), 0.0).sum())
    total -= float(encoder.log_jacobian(table.y, table.y_mask).sum())
    return total / len(table)


@torch.no_grad()
def covariate_scores(model: Model, data: pd.DataFrame, truth: pd.DataFrame) -> dict[str, float | None]:
    """Score the imputed gaps in X, given what is observed of X and Y in the same row (or patient).

    `covariate_mse`: squared error of numbers in units of the training variance, over missing entries only.
    `covariate_mse_all_rows`: the same as a mean over all entries, observed ones counting 0. `covariate_accuracy` and
    `covariate_brier`: of categories, over missing entries; the latter is Σ_k (p_k − 1[k is true])², and a method
    that fills in one level gives it probability 1. A visit-constant covariate counts once per patient.
    """
    encoder, vae = model.fitted()
    space = encoder.space
    table, true = model.encode(data), encoder.encode(truth)
    gone = (true.x_mask & ~encoder.encode(data).x_mask).numpy()
    entries = true.x_mask.numpy()
    if table.patient is not None:
        first = ~pd.Series(table.patient.numpy()).duplicated().to_numpy()
        once = first[:, None] | ~np.asarray(space.static)
        gone, entries = gone & once, entries & once
    guess = np.zeros(true.x.shape)
    probs = np.zeros((*true.x.shape, space.max_levels))
    for rows, batch in chunks(table, 1):
        distribution = vae.covariate_distribution(batch)
        guess[rows] = most_probable(distribution, batch, vae.space).double().cpu().numpy()
        probs[rows] = level_probabilities(distribution, batch).double().cpu().numpy()
    x, c, k = true.x.double().numpy(), space.continuous, space.categorical
    scores: dict[str, float | None] = dict.fromkeys(
        ("covariate_mse", "covariate_mse_all_rows", "covariate_accuracy", "covariate_brier")
    )
    if gone[:, c].any():
        square = ((guess - x)[:, c] ** 2)[gone[:, c]]
        scores["covariate_mse"] = float(square.mean())
        scores["covariate_mse_all_rows"] = float(square.sum() / entries[:, c].sum())
    if gone[:, k].any():
        at = gone[:, k]
        level, imputed = x[:, k][at].round().astype(int), guess[:, k][at].round().astype(int)
        scores["covariate_accuracy"] = float((level == imputed).mean())
        scores["covariate_brier"] = float(((probs[:, k][at] - np.eye(space.max_levels)[level]) ** 2).sum(-1).mean())
    return scores
