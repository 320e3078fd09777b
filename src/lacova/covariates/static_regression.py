"""What patients' averages say of covariates that do not change with visits: a regression, learnt before training.

Where patients have levels of their own, these explain how patients differ, and the bound has no use left for sex or
age: it draws q(x_u) of such columns to the prior. Networks that recall them instead know the few dozen or hundred
patients of a study by heart. A shrunk regression on patients' averages does neither.
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
from lacova.data.encoder import Table
from lacova.data.measurement_space import MeasurementSpace
from lacova.data.scaling import Floats

KAPPA = 0.5  # visits at what is usual that an average starts with
FEWEST = 20  # patients that show a column, for anything to be read of it
MOST = 2000  # patients that are looked at
DIRECTIONS = 200  # principal ones of averages, at most
BEYOND = 3.0  # standard deviations that a value counts, at most
BESIDE = 0.3  # of a measurement that another covariate counts: the prior may have spoken of it
FOLDS = 5
PATIENCE = 2  # further settings that may be worse than the best
# Grids: of a number's precision in units of the prior's, and of shrinkage in units of averages' square.
GAINS = np.concatenate([[0.0], np.geomspace(0.03, 1000.0, 48)])
SHRINKAGE = np.geomspace(1e-5, 1e3, 25)
TINY = 1e-6
LEAST = -30.0  # of a log probability


class StaticRegression(nn.Module):
    """q(x | y_o, x_o) ∝ p(x | x_o) · exp(x·(aᵀh + ωb) − ½ωJx²) of a number, p(x | x_o) · exp(a_xᵀh + ωb_x) of a level.

    h has Σ_i y_i/(n + ½) of each measurement (of each level, where there are levels) over the n visits at which the
    patient has it, with y in standard deviations from what is usual, 3 at most; and the same of the other covariates
    at visits with measurements, the time aside: when a patient is seen, and how long, is not what it is like. a is
    shrunk, that of covariates more: by ridge regression, with the shrinkage and J of the best leave-one-out density,
    and by multinomial regression, with that of the best cross-validated likelihood. ω says how much the patient has of
    what a looks at, Σ a²n/(n + ½), where 1 is what patients in training have on average: who has no measurements has
    the prior.

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

    def __init__(self, space: CovariateSpace, measurements: MeasurementSpace, time: int | None) -> None:
        super().__init__()
        self.space, self.measurements = space, measurements
        self.numbers = [q for q in space.continuous if space.static[q]]
        self.categories = [q for q in space.categorical if space.static[q]]
        others = [(at, q) for at, q in enumerate(space.owners) if q != time]
        self.register_buffer("of_y", torch.tensor(measurements.owners), persistent=False)
        self.register_buffer("of_x", torch.tensor([q for _, q in others], dtype=torch.long), persistent=False)
        self.register_buffer("at", torch.tensor([at for at, _ in others], dtype=torch.long), persistent=False)
        width = len(self.of_y) + len(self.of_x)
        outputs = len(self.numbers) + sum(space.levels[q] for q in self.categories)
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.register_buffer("weight", torch.zeros(width, outputs))  # a
        self.register_buffer("bias", torch.zeros(outputs))
        self.register_buffer("precision", torch.zeros(len(self.numbers)))  # J
        self.register_buffer("looked", torch.ones(outputs))  # what 1 is for ω

    def learn(self, table: Table, prior: CovariatePrior, seed: int) -> None:
        """From patients that show the column, and from what the prior would say of it if they did not."""
        patients = torch.randperm(len(table.labels), generator=torch.Generator().manual_seed(seed))[:MOST]
        shown = Batches(table).batch(patients)
        some = Table(shown.y, shown.y_mask, shown.x, shown.x_mask, shown.patient, tuple(patients.tolist()))
        values, seen = self._features(shown)
        count = seen.sum(0).clamp_min(1.0)
        self.centre.copy_((values * seen).sum(0) / count)
        spread = (((values - self.centre) * seen).square().sum(0) / count).sqrt()
        self.spread.copy_(torch.where(spread > 0.0, spread, 1.0))
        averages, share = self._averages(shown)
        apart, at = averages.double().numpy(), 0
        for q in (*self.numbers, *self.categories):
            own = slice(at, at := at + max(self.space.levels[q], 1))
            known = shown.x_mask[shown.first, q]
            if int(known.sum()) < FEWEST:
                continue
            first = shown.first[known]
            hidden = replace(some, x_mask=some.x_mask.index_fill(1, torch.tensor(q), False))
            told = prior.condition(hidden).distribution.take(first)
            counts = np.r_[np.ones(len(self.of_y)), np.where(self.of_x.numpy() == q, 0.0, BESIDE)]
            h, turn = _directions(apart[known.numpy()] * counts)
            x = shown.x[first, q]
            if q in self.numbers:
                a, b, precision = regress_number(h, *(v.double().numpy() for v in (x, told.mean[:, q], told.var[:, q])))
                self.precision[own] = precision
            else:
                log_prob = told.log_prob[:, q, : self.space.levels[q]]
                a, b = regress_category(h, x.long().numpy(), log_prob.double().numpy())
            self.weight[:, own] = torch.as_tensor(counts[:, None] * (turn @ a), dtype=self.weight.dtype)
            self.bias[own] = torch.as_tensor(b, dtype=self.bias.dtype)
            looked = share.mean(0) @ self.weight[:, own].square()
            self.looked[own] = torch.where(looked > 0.0, looked, 1.0)

    def forward(self, prior: FactorisedDistribution, batch: Batch) -> FactorisedDistribution:
        """The distribution about static columns; the prior's in the others."""
        h, share = self._averages(batch)
        seen = share @ self.weight.square() / self.looked  # ω
        said = (h @ self.weight + seen * self.bias)[batch.patient]
        precision = (seen[:, : len(self.numbers)] * self.precision)[batch.patient]
        mean, var, log_prob = prior.mean.clone(), prior.var.clone(), prior.log_prob.clone()
        for at, q in enumerate(self.numbers):
            less = 1.0 + precision[:, at] * prior.var[:, q]
            mean[:, q] = (prior.mean[:, q] + prior.var[:, q] * said[:, at]) / less
            var[:, q] = prior.var[:, q] / less
        at = len(self.numbers)
        for q in self.categories:
            width = self.space.levels[q]
            log_prob[:, q, :width] = torch.log_softmax(prior.log_prob[:, q, :width] + said[:, at : at + width], dim=-1)
            at += width
        return FactorisedDistribution(mean, var, log_prob)

    def _averages(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """h of each patient (P̂×F), and n/(n + ½)."""
        values, seen = self._features(batch)
        values = ((values - self.centre) / self.spread).clamp(-BEYOND, BEYOND) * seen  # in standard deviations
        size = (batch.patients, values.shape[1])
        total, count = (part.new_zeros(size).index_add(0, batch.patient, part) for part in (values, seen))
        return total / (count + KAPPA), count / (count + KAPPA)

    def _features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Measurements and covariates (N̂×F) as networks see them, and whether they count."""
        features = self.measurements.features(batch.y, batch.y_mask)
        values, seen = features.split([len(self.of_y), len(self.measurements)], dim=1)
        x = self.space.values(batch.x, batch.x_mask)[:, self.at]
        beside = batch.x_mask[:, self.of_x] & batch.y_mask.any(1, keepdim=True)
        return torch.cat([values, x], 1), torch.cat([seen[:, self.of_y], beside.to(x.dtype)], 1)


def regress_number(h: Floats, x: Floats, mean: Floats, var: Floats) -> tuple[Floats, Floats, float]:
    """a (R×1), b (1,) and J of x ~ N(v·(mean/var + aᵀh + b), v), v = 1/(1/var + J).

    Of the grids, the J and the shrinkage of a with the highest density of each x under what the others say; all are 0
    where that of the prior alone is higher.
    """
    var = var.clip(TINY)
    best = -0.5 * ((x - mean) ** 2 / var + np.log(var)).sum()
    found = np.zeros((h.shape[1], 1)), np.zeros(1), 0.0
    for precision in GAINS / var.mean():
        v = var / (1.0 + precision * var)
        root = np.sqrt(v)
        target = (x - v / var * mean) / root
        level = root / np.linalg.norm(root)
        inside = h * root[:, None]
        u, s, vt = np.linalg.svd(inside - np.outer(level, level @ inside), full_matrices=False)
        left = target - level * (level @ target)
        pull = u.T @ left
        for shrinkage in SHRINKAGE * max(s[0] ** 2, TINY):
            keep = s**2 / (s**2 + shrinkage)
            leverage = level**2 + u**2 @ keep
            residual = (left - u @ (keep * pull)) / (1.0 - leverage).clip(TINY)
            density = -0.5 * (residual**2 + np.log(v)).sum()
            if density > best:
                a = vt.T @ (keep * pull / np.where(s > 0, s, 1.0))
                b = level @ (target - inside @ a) / np.linalg.norm(root)
                best, found = density, (a[:, None], b[None], float(precision))
    return found


def regress_category(h: Floats, x: npt.NDArray[np.int64], log_prior: Floats) -> tuple[Floats, Floats]:
    """a (R×K) and b (K,) of log p(k) = log_prior_k + a_kᵀh + b_k, with the shrinkage of the best cross-validation."""
    h, log_prior = np.c_[h, np.ones(len(h))], log_prior.clip(LEAST)
    everyone, fold = np.arange(len(h)), np.arange(len(h)) % FOLDS
    nothing = np.zeros((h.shape[1], log_prior.shape[1]))
    best, most, found = 0, log_softmax(log_prior, axis=1)[everyone, x].sum(), [nothing] * FOLDS
    path = np.square(h).sum(1).mean() * SHRINKAGE[::-1]
    for step, shrinkage in enumerate(path, 1):
        told = 0.0
        for k in range(FOLDS):
            others, left = fold != k, everyone[fold == k]
            found[k] = _multinomial(h[others], x[others], log_prior[others], shrinkage, found[k])
            told += log_softmax(log_prior[left] + h[left] @ found[k], axis=1)[np.arange(len(left)), x[left]].sum()
        if told > most:
            best, most = step, told
        elif step - best > PATIENCE:
            break
    a = nothing
    for shrinkage in path[:best]:
        a = _multinomial(h, x, log_prior, shrinkage, a)
    return a[:-1], a[-1]


def _multinomial(h: Floats, x: npt.NDArray[np.int64], log_prior: Floats, shrinkage: float, start: Floats) -> Floats:
    from scipy.optimize import minimize  # slow to import

    hot = np.eye(log_prior.shape[1])[x]

    def loss(a: Floats) -> tuple[float, Floats]:
        a = a.reshape(start.shape)
        logit = log_prior + h @ a
        value = 0.5 * shrinkage * np.square(a).sum() - (hot * log_softmax(logit, axis=1)).sum()
        return value, (h.T @ (softmax(logit, axis=1) - hot) + shrinkage * a).ravel()

    found: Floats = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B").x
    return found.reshape(start.shape)


def _directions(h: Floats) -> tuple[Floats, Floats]:
    """The leading principal directions of h: h turned to them (n×R), and what turns to them (F×R)."""
    turn = np.linalg.svd(h, full_matrices=False)[2][:DIRECTIONS].T
    return h @ turn, turn
