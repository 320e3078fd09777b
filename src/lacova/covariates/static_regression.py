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
from torch import Tensor, nn

from lacova.covariates.prior import CovariatePrior
from lacova.data.batches import Batch, Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.measurement_space import MeasurementSpace
from lacova.data.scaling import Floats
from lacova.data.table import Table

PRIOR_VISITS = 0.5  # pseudo-visits at the mean, which shrink the average of a patient with few visits
MIN_PATIENTS = 20  # patients with an observed value, for a column to have a regression
MAX_PATIENTS = 2000  # patients that are used
MAX_DIRECTIONS = 200  # principal directions of the averages
MAX_DEVIATION = 3.0  # standard deviations at which a value is clipped
COVARIATE_WEIGHT = 0.3  # scale of other covariates relative to measurements: the prior may already use them
FOLDS = 5
PATIENCE = 2  # shrinkages in a row without a gain before the search stops
# Grids: precision J relative to the prior's, and shrinkage relative to the square of the averages.
PRECISION_GRID = np.concatenate([[0.0], np.geomspace(0.03, 1000.0, 48)])
SHRINKAGE_GRID = np.geomspace(1e-5, 1e3, 25)
TINY = 1e-6  # lower bound on divisors
MIN_LOG_PROB = -30.0  # lower bound on a log probability of the prior


class StaticRegression(nn.Module):
    """q(x | y_o, x_o) of a visit-constant covariate x: the conditional prior times the likelihood of a regression.

        continuous:   q(x) ∝ p(x | x_o) · exp(x·(aᵀh + ωb) − ½ωJx²)
        categorical:  q(x) ∝ p(x | x_o) · exp(a_xᵀh + ωb_x)

    h holds shrunk averages of the patient, Σ_i y_i/(n + ½) over the n visits at which the feature is observed. Features
    are the measurements (one per level where categorical) and the other covariates at visits with measurements, each
    centred, in standard deviations and clipped at ±3. The time is left out: when and for how long a patient is seen is
    not a trait of the patient.

    a is shrunk, and more so for covariates than for measurements. Continuous columns use ridge regression, with the
    shrinkage and J that maximise the leave-one-out density. Categorical columns use multinomial regression, with the
    shrinkage that maximises the cross-validated likelihood.

    ω = Σ a²n/(n + ½), relative to its mean over the training patients, is the amount of information about x. A patient
    without measurements has ω = 0 and keeps the prior.

    Args:
        space: layout of X.
        measurements: layout of Y.
        time: index of the time column in X, if there is one.
    """

    centre: Tensor
    spread: Tensor
    weight: Tensor
    bias: Tensor
    precision: Tensor
    looked: Tensor
    of_y: Tensor
    of_x: Tensor
    at: Tensor
    number_columns: Tensor
    category_columns: Tensor
    level_outputs: Tensor

    def __init__(self, space: CovariateSpace, measurements: MeasurementSpace, time: int | None) -> None:
        super().__init__()
        self.space, self.measurements = space, measurements
        self.numbers = [q for q in space.continuous if space.static[q]]
        self.categories = [q for q in space.categorical if space.static[q]]
        others = [(at, q) for at, q in enumerate(space.owners) if q != time]
        self.register_buffer("of_y", torch.tensor(measurements.owners), persistent=False)
        self.register_buffer("of_x", torch.tensor([q for _, q in others], dtype=torch.long), persistent=False)
        self.register_buffer("at", torch.tensor([at for at, _ in others], dtype=torch.long), persistent=False)
        self.register_buffer("number_columns", torch.tensor(self.numbers, dtype=torch.long), persistent=False)
        self.register_buffer("category_columns", torch.tensor(self.categories, dtype=torch.long), persistent=False)
        first = len(self.numbers)
        level_outputs = torch.full((len(self.categories), space.max_levels), -1)  # output of each level, -1 for none
        for row, q in zip(level_outputs, self.categories, strict=True):
            row[: space.levels[q]] = torch.arange(first, first := first + space.levels[q])
        self.register_buffer("level_outputs", level_outputs, persistent=False)
        width = len(self.of_y) + len(self.of_x)
        outputs = len(self.numbers) + sum(space.levels[q] for q in self.categories)
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.register_buffer("weight", torch.zeros(width, outputs))  # a
        self.register_buffer("bias", torch.zeros(outputs))
        self.register_buffer("precision", torch.zeros(len(self.numbers)))  # J
        self.register_buffer("looked", torch.ones(outputs))  # mean of Σ a²n/(n + ½) over training patients

    def learn(self, table: Table, prior: CovariatePrior, seed: int) -> None:
        """Fit the regression of each column to the patients with an observed value.

        The prior that enters is the conditional prior of the column as if it were missing in all patients.

        Args:
            table: the training rows.
            prior: the covariate prior.
            seed: seed of the choice of patients, where there are more than MAX_PATIENTS.
        """
        patients = torch.randperm(len(table.labels), generator=torch.Generator().manual_seed(seed))[:MAX_PATIENTS]
        batch = Batches(table).batch(patients)
        rows = Table(batch.y, batch.y_mask, batch.x, batch.x_mask, batch.patient, tuple(patients.tolist()))
        values, observed = self._features(batch)
        count = observed.sum(0).clamp_min(1.0)
        self.centre.copy_((values * observed).sum(0) / count)
        spread = (((values - self.centre) * observed).square().sum(0) / count).sqrt()
        self.spread.copy_(torch.where(spread > 0.0, spread, 1.0))
        averages, share = self._averages(batch)
        h_all, at = averages.double().numpy(), 0
        for q in (*self.numbers, *self.categories):
            outputs = slice(at, at := at + max(self.space.levels[q], 1))
            known = batch.x_mask[batch.first, q]
            if int(known.sum()) < MIN_PATIENTS:
                continue
            first = batch.first[known]
            masked = replace(rows, x_mask=rows.x_mask.index_fill(1, torch.tensor(q), False))
            p = prior.condition(masked).distribution.take(first)
            scale = np.r_[np.ones(len(self.of_y)), np.where(self.of_x.numpy() == q, 0.0, COVARIATE_WEIGHT)]
            h, directions = _principal_directions(h_all[known.numpy()] * scale)
            x = batch.x[first, q]
            if q in self.numbers:
                a, b, precision = regress_number(h, *(v.double().numpy() for v in (x, p.mean[:, q], p.var[:, q])))
                self.precision[outputs] = precision
            else:
                log_prob = p.log_prob[:, q, : self.space.levels[q]]
                a, b = regress_category(h, x.long().numpy(), log_prob.double().numpy())
            self.weight[:, outputs] = torch.as_tensor(scale[:, None] * (directions @ a), dtype=self.weight.dtype)
            self.bias[outputs] = torch.as_tensor(b, dtype=self.bias.dtype)
            information = share.mean(0) @ self.weight[:, outputs].square()
            self.looked[outputs] = torch.where(information > 0.0, information, 1.0)

    def forward(self, prior: FactorisedDistribution, batch: Batch) -> FactorisedDistribution:
        """Return the posterior of visit-constant columns, and `prior` in the others."""
        h, share = self._averages(batch)
        omega = share @ self.weight.square() / self.looked
        logits = (h @ self.weight + omega * self.bias)[batch.patient]  # aᵀh + ωb
        precision = (omega[:, : len(self.numbers)] * self.precision)[batch.patient]  # ωJ
        mean, var, log_prob = prior.mean, prior.var, prior.log_prob
        if self.numbers:
            at, columns = len(self.numbers), self.number_columns
            old = mean[:, columns], var[:, columns]
            ratio = 1.0 + precision * old[1]  # prior variance over posterior variance
            mean = mean.index_copy(1, columns, (old[0] + old[1] * logits[:, :at]) / ratio)
            var = var.index_copy(1, columns, old[1] / ratio)
        if self.categories:
            columns, outputs = self.category_columns, self.level_outputs
            own = torch.where(outputs >= 0, logits[:, outputs.clamp_min(0).flatten()].unflatten(1, outputs.shape), 0.0)
            log_prob = log_prob.index_copy(1, columns, torch.log_softmax(log_prob[:, columns] + own, dim=-1))
        return FactorisedDistribution(mean, var, log_prob)

    def _averages(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute h of each patient and n/(n + ½) of each feature (P̂×F each)."""
        values, observed = self._features(batch)
        values = ((values - self.centre) / self.spread).clamp(-MAX_DEVIATION, MAX_DEVIATION) * observed
        size = (batch.patients, values.shape[1])
        total, count = (part.new_zeros(size).index_add(0, batch.patient, part) for part in (values, observed))
        return total / (count + PRIOR_VISITS), count / (count + PRIOR_VISITS)

    def _features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return measurements and covariates as network inputs, and 1 where they are observed (N̂×F each)."""
        features = self.measurements.features(batch.y, batch.y_mask)
        values, y_observed = features.split([len(self.of_y), len(self.measurements)], dim=1)
        x = batch.values(self.space)[:, self.at]
        x_observed = batch.x_mask[:, self.of_x] & batch.y_mask.any(1, keepdim=True)
        return torch.cat([values, x], 1), torch.cat([y_observed[:, self.of_y], x_observed.to(x.dtype)], 1)


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


def _principal_directions(h: Floats) -> tuple[Floats, Floats]:
    """Return h (P×F) projected to its leading principal directions (P×R), and the directions (F×R)."""
    directions = np.linalg.svd(h, full_matrices=False)[2][:MAX_DIRECTIONS].T
    return h @ directions, directions
