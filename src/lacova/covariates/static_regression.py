"""Posterior of visit-constant covariates by a shrunk regression on patients' averages, fitted before training.

Random effects explain how patients differ. Where a model has them, sex or age do not improve the bound, which then
draws q(x_u) of such columns to the prior. Networks trained with the masked-covariate loss overfit instead: a study has
only a few dozen or hundred patients. A shrunk regression on patients' averages avoids both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import log_softmax, softmax
from torch import Tensor

from lacova.covariates.dependence import PRIOR_VISITS
from lacova.covariates.prior import CovariatePrior
from lacova.covariates.regression import Coefficients, ShrunkRegression, principal_directions
from lacova.data.batches import Batch, Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.measurement_space import MeasurementSpace
from lacova.data.scaling import Floats
from lacova.data.table import Table

MIN_PATIENTS = 20  # patients with an observed value, for a column to have a regression
MAX_PATIENTS = 2000  # patients that are used
COVARIATE_WEIGHT = 0.3  # scale of other covariates relative to measurements: the prior may already use them
MAX_DIRECTIONS = 200  # principal directions of the averages
FOLDS = 5
PATIENCE = 2  # shrinkages in a row without a gain before the search stops
# Grids: precision J relative to the prior's, and shrinkage relative to the square of the averages.
PRECISION_GRID = np.concatenate([[0.0], np.geomspace(0.03, 1000.0, 48)])
SHRINKAGE_GRID = np.geomspace(1e-5, 1e3, 25)
TINY = 1e-6  # lower bound on divisors
MIN_LOG_PROB = -30.0  # lower bound on a log probability of the prior


class StaticRegression(ShrunkRegression):
    """q(x | y_o, x_o) of visit-constant covariates, from shrunk averages of the patient: h = Σ_i v_i/(n + ½) over the n
    visits at which the value v is observed. A patient without measurements keeps the prior.

    Continuous columns use ridge regression, with the shrinkage and J that maximise the leave-one-out density.
    Categorical columns use multinomial regression, with the shrinkage that maximises the cross-validated likelihood.
    Covariates are shrunk more than measurements. The time is left out: when and for how long a patient is seen is not a
    trait of the patient. The patients whose value is known are given the gaps of those whose value is missing, so that
    the regression does not lean on covariates that miss together with it.

    Args:
        space: layout of X.
        measurements: layout of Y.
        time: index of the time column in X, if there is one.
    """

    def __init__(self, space: CovariateSpace, measurements: MeasurementSpace, time: int | None) -> None:
        columns = range(len(space.names))
        super().__init__(
            space, measurements, [q for q in columns if space.static[q]], [q for q in columns if q != time]
        )

    def learn(self, table: Table, prior: CovariatePrior, seed: int) -> None:
        """Fit the regressions to patients; at most MAX_PATIENTS, chosen by the seed."""
        generator = torch.Generator().manual_seed(seed)
        patients = torch.randperm(len(table.labels), generator=generator)[:MAX_PATIENTS]
        batch = Batches(table).batch(patients)
        rows = Table(batch.y, batch.y_mask, batch.x, batch.x_mask, batch.patient, tuple(patients.tolist()))
        self._learn_scale(batch)
        for q in (*self.numbers, *self.categories):
            known = batch.x_mask[batch.first, q]
            if int(known.sum()) < MIN_PATIENTS:
                continue
            first = batch.first[known]
            x_mask = _mask_as_elsewhere(batch, q, generator)
            averages, share = self._averages(replace(batch, x_mask=x_mask))
            h = averages.double().numpy()
            p = prior.condition(replace(rows, x_mask=x_mask)).distribution.take(first)
            scale = np.r_[np.ones(len(self.of_y)), np.where(self.of_x.numpy() == q, 0.0, COVARIATE_WEIGHT)]
            turned, directions = principal_directions(h[known.numpy()] * scale, MAX_DIRECTIONS)
            x = batch.x[first, q]
            if q in self.numbers:
                fit = regress_number(turned, *(v.double().numpy() for v in (x, p.mean[:, q], p.var[:, q])))
            else:
                log_prob = p.log_prob[:, q, : self.space.levels[q]]
                fit = (*regress_category(turned, x.long().numpy(), log_prob.double().numpy()), 0.0)
            a, b, precision = fit
            self._set(q, Coefficients(directions @ a, b, precision), scale, share.mean(0))

    def features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        h, share = self._averages(batch)
        return h.index_select(0, batch.patient), share.index_select(0, batch.patient)

    def _averages(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute h of each patient and n/(n + ½) of each feature (P̂×F each)."""
        values, observed = self._scaled(batch)
        size = (batch.patients, values.shape[1])
        total, count = (part.new_zeros(size).index_add(0, batch.patient, part) for part in (values, observed))
        return total / (count + PRIOR_VISITS), count / (count + PRIOR_VISITS)


def _mask_as_elsewhere(batch: Batch, q: int, generator: torch.Generator) -> Tensor:
    """Return the mask of x without column q, and without what patients who lack q lack, too, at all visits.

    Each patient has the gaps of one who lacks q, at random. Else a number that always misses together with another one
    would be told from that other one.
    """
    seen = torch.zeros(batch.patients, batch.x_mask.shape[1]).index_add(0, batch.patient, batch.x_mask.float())
    lacking = (seen[:, q] == 0).nonzero()[:, 0]
    x_mask = batch.x_mask.index_fill(1, torch.tensor(q), False)
    if not len(lacking):
        return x_mask
    alike = lacking[torch.randint(len(lacking), (batch.patients,), generator=generator)]
    return x_mask & (seen[alike] > 0)[batch.patient]


def regress_number(h: Floats, x: Floats, mean: Floats, var: Floats) -> tuple[Floats, Floats, float]:
    """Fit a (R×1), b (1,) and J of x ~ N(v·(mean/var + aᵀh + b), v), v = 1/(1/var + J), by ridge regression.

    J and the shrinkage of a are those of the grids with the highest leave-one-out density. All results are 0 where the
    density under the prior alone is higher.

    Args:
        h: averages of the patients, turned to principal directions (P×R).
        x: values of the column (P,).
        mean, var: conditional prior of x (P,).
    """
    var = var.clip(TINY)
    best = -0.5 * ((x - mean) ** 2 / var + np.log(var)).sum()
    fit = np.zeros((h.shape[1], 1)), np.zeros(1), 0.0
    for precision in PRECISION_GRID / var.mean():
        v = var / (1.0 + precision * var)
        root = np.sqrt(v)
        target = (x - v / var * mean) / root
        # Weighted regression of `target` on √v·h and the intercept √v, which is projected out.
        intercept = root / np.linalg.norm(root)
        weighted = h * root[:, None]
        u, s, vt = np.linalg.svd(weighted - np.outer(intercept, intercept @ weighted), full_matrices=False)
        centred = target - intercept * (intercept @ target)
        score = u.T @ centred
        for shrinkage in SHRINKAGE_GRID * max(s[0] ** 2, TINY):
            factor = s**2 / (s**2 + shrinkage)
            leverage = intercept**2 + u**2 @ factor
            # Leave-one-out residuals are residuals over one minus the leverage.
            residual = (centred - u @ (factor * score)) / (1.0 - leverage).clip(TINY)
            density = -0.5 * (residual**2 + np.log(v)).sum()
            if density > best:
                a = vt.T @ (factor * score / np.where(s > 0, s, 1.0))
                b = intercept @ (target - weighted @ a) / np.linalg.norm(root)
                best, fit = density, (a[:, None], b[None], float(precision))
    return fit


def regress_category(h: Floats, x: npt.NDArray[np.int64], log_prior: Floats) -> tuple[Floats, Floats]:
    """Fit a (R×K) and b (K,) of log p(k) = log_prior_k + a_kᵀh + b_k, with the shrinkage of the best cross-validation.

    Args:
        h: averages of the patients, turned to principal directions (P×R).
        x: level of each patient (P,).
        log_prior: log probabilities of the conditional prior (P×K).
    """
    h, log_prior = np.c_[h, np.ones(len(h))], log_prior.clip(MIN_LOG_PROB)
    patients, fold = np.arange(len(h)), np.arange(len(h)) % FOLDS
    zeros = np.zeros((h.shape[1], log_prior.shape[1]))
    best_step, best_score = 0, log_softmax(log_prior, axis=1)[patients, x].sum()
    coefficients = [zeros] * FOLDS  # of each fold's other patients; each shrinkage starts at the one before
    path = np.square(h).sum(1).mean() * SHRINKAGE_GRID[::-1]
    for step, shrinkage in enumerate(path, 1):
        score = 0.0
        for k in range(FOLDS):
            train, test = fold != k, patients[fold == k]
            coefficients[k] = _multinomial(h[train], x[train], log_prior[train], shrinkage, coefficients[k])
            logits = log_prior[test] + h[test] @ coefficients[k]
            score += log_softmax(logits, axis=1)[np.arange(len(test)), x[test]].sum()
        if score > best_score:
            best_step, best_score = step, score
        elif step - best_step > PATIENCE:
            break
    a = zeros
    for shrinkage in path[:best_step]:
        a = _multinomial(h, x, log_prior, shrinkage, a)
    return a[:-1], a[-1]


def _multinomial(h: Floats, x: npt.NDArray[np.int64], log_prior: Floats, shrinkage: float, start: Floats) -> Floats:
    """Minimise the penalised multinomial loss over a ((R+1)×K), from `start`."""
    from scipy.optimize import minimize  # slow to import

    hot = np.eye(log_prior.shape[1])[x]

    def loss(a: Floats) -> tuple[float, Floats]:
        a = a.reshape(start.shape)
        logits = log_prior + h @ a
        value = 0.5 * shrinkage * np.square(a).sum() - (hot * log_softmax(logits, axis=1)).sum()
        return value, (h.T @ (softmax(logits, axis=1) - hot) + shrinkage * a).ravel()

    minimum: Floats = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B").x
    return minimum.reshape(start.shape)
