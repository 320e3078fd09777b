"""The limit: a model trained on complete X that draws missing test covariates from their true distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from lacova.covariates.prior import CovariatePrior
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder
from lacova.datasets import true_covariates
from lacova.datasets.digits import covariate_moments
from lacova.datasets.trial import COVARIATES

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
GRID = 4001
MOMENT_DRAWS = 1000
KNOWN = "the true conditional distribution is known, not learnt."


class Moments(NamedTuple):
    """Mean and variance of each missing number, and probability that each missing category has its second level."""

    mean: Floats
    var: Floats
    second: Floats


class TrueConditional(Protocol):
    """p(x_u | x_o) of a generator. Rows have NaN at gaps, numbers in their own units, and categories as codes."""

    def draw(self, x: Floats, patient: Codes, draws: int, rng: np.random.Generator) -> Floats:
        """Draw completions of x (draws×N×Q)."""

    def moments(self, x: Floats, patient: Codes) -> Moments:
        """Return the marginal moments of each missing entry; the values at observed entries are meaningless."""


def true_conditional(dataset: int | str) -> TrueConditional:
    """Return p(x_u | x_o) of a data set's generator."""
    return TrialConditional() if dataset == "trial" else DigitsConditional(dataset)


class DigitsConditional:
    """p(x_u | x_o) of the rotated digits, exact up to a grid over the driver of the covariates.

    Rows are (rotation, shift, contrast), preceded by time and followed by the code of the digit (0 for 3, 1 for 6)
    in the sets that have them. The driver is time where the set has it; given the driver, all columns are independent.
    """

    def __init__(self, dataset: int | str) -> None:
        self.dataset = dataset
        self.timed, self.discrete = dataset in (3, "3-discrete"), dataset == "3-discrete"
        self.values = slice(int(self.timed), int(self.timed) + 3)
        self.grid = (np.arange(GRID) + 0.5) / GRID
        self.mean, self.sd = covariate_moments(dataset, self.grid)

    def weights(self, x: Floats) -> Floats:
        """Return p(driver | x_o) on the grid (N×GRID)."""
        log_weight = np.zeros((len(x), GRID))
        for value, mean, sd in zip(x[:, self.values].T, self.mean, self.sd[:, 0], strict=True):
            log_weight += np.nan_to_num(-0.5 * ((value[:, None] - mean) / sd) ** 2)
        if self.discrete:
            six = probability_of_six(self.grid)
            digit = x[:, -1:]
            log_weight += np.where(np.isnan(digit), 0.0, np.log(np.where(digit == 1.0, six, 1.0 - six)))
        weight = np.exp(log_weight - log_weight.max(1, keepdims=True))
        return np.asarray(weight / weight.sum(1, keepdims=True))

    def draw(self, x: Floats, patient: Codes, draws: int, rng: np.random.Generator) -> Floats:
        cumulative = np.cumsum(self.weights(x), axis=1)
        uniform = rng.random((draws, len(x)))
        place = np.stack([np.searchsorted(c, u * c[-1]) for c, u in zip(cumulative, uniform.T, strict=True)], axis=1)
        driver = self.grid[place]
        out = np.repeat(x[None], draws, axis=0)
        if self.timed:
            driver = np.where(np.isnan(x[:, 0]), driver, x[:, 0])
            out[..., 0] = driver
        centre, sd = covariate_moments(self.dataset, driver.ravel())
        drawn = centre + sd * rng.standard_normal(centre.shape)
        parts = [drawn.T.reshape(draws, len(x), 3)]
        if self.discrete:
            parts.append((rng.random(driver.shape) < probability_of_six(driver))[..., None])
        fresh = np.concatenate([out[..., : self.values.start], *parts], axis=-1)
        return np.where(np.isnan(x), fresh, x)

    def moments(self, x: Floats, patient: Codes) -> Moments:
        weight, grid = self.weights(x), self.grid
        mean_var, second = np.zeros((len(x), x.shape[1], 2)), np.zeros(x.shape)
        seen_time = self.timed and ~np.isnan(x[:, 0])

        def expectation(values: Floats, at_time: Floats) -> Floats:
            return np.where(seen_time, at_time, weight @ values) if self.timed else weight @ values

        time = np.nan_to_num(x[:, 0]) if self.timed else np.zeros(len(x))
        centre, sd = covariate_moments(self.dataset, time)
        for k in range(3):
            power = [expectation(self.mean[k] ** p, centre[k] ** p) for p in (1, 2)]
            mean_var[:, self.values.start + k] = np.stack([power[0], power[1] - power[0] ** 2 + sd[k] ** 2], axis=-1)
        if self.timed:
            mean_var[:, 0] = np.stack([weight @ grid, weight @ grid**2 - (weight @ grid) ** 2], axis=-1)
        if self.discrete:
            second[:, -1] = expectation(probability_of_six(grid), probability_of_six(time))
        return Moments(mean_var[..., 0], mean_var[..., 1], second)


def probability_of_six(time: Floats) -> Floats:
    """Return P(digit = 6 | time) of the set with a discrete covariate."""
    return np.asarray(0.1 + 0.36 * time)


class TrialConditional:
    """p(x_u | x_o) of the simulated trial, given all of a patient's visits."""

    def draw(self, x: Floats, patient: Codes, draws: int, rng: np.random.Generator) -> Floats:
        table = pd.DataFrame(x, columns=list(COVARIATES)).round({COVARIATES[0]: 0})  # days, scaled in single precision
        return true_covariates(table.assign(id=patient), draws, rng)

    def moments(self, x: Floats, patient: Codes) -> Moments:
        """Estimate the moments from draws."""
        drawn = self.draw(x, patient, MOMENT_DRAWS, np.random.default_rng(0))
        return Moments(drawn.mean(0), drawn.var(0), drawn.mean(0))


class TruePrior(CovariatePrior):
    """A covariate prior that uses the true conditional distribution instead of a learnt one."""

    def __init__(self, conditional: TrueConditional, encoder: TableEncoder, seed: int) -> None:
        super().__init__()
        self.space, self.encoder, self.conditional = encoder.space, encoder, conditional
        self.rng = np.random.default_rng(seed)

    @classmethod
    def from_table(cls, space: CovariateSpace, table: Table, time: int | None, seed: int) -> TruePrior:
        raise NotImplementedError(KNOWN)

    @classmethod
    def empty(cls, space: CovariateSpace, time: int | None, sizes: Mapping[str, int]) -> TruePrior:
        raise NotImplementedError(KNOWN)

    def condition(self, table: Table) -> ConditionalPrior:
        x, patient = self._own(table.x, table.x_mask), _codes(table.patient)
        mean, var, second = self.conditional.moments(x, patient)
        prob = np.stack([1.0 - second, second], axis=-1)[..., : self.space.max_levels]
        scale, shift = self.encoder.x_scale, self.encoder.x_shift
        distribution = FactorisedDistribution(
            torch.as_tensor((mean - shift) / scale), torch.as_tensor(var / scale**2), torch.as_tensor(prob).log()
        )
        return ConditionalPrior(distribution, torch.zeros(len(table), dtype=torch.float64)).to(table.x.dtype)

    def update(self, completed: Table) -> None:
        raise NotImplementedError(KNOWN)

    def draw(self, batch: Batch, draws: int, generator: torch.Generator) -> Tensor:
        drawn = self.conditional.draw(self._own(batch.x, batch.x_mask), _codes(batch.patient), draws, self.rng)
        return torch.as_tensor((drawn - self.encoder.x_shift) / self.encoder.x_scale).to(batch.x)

    def _own(self, x: Tensor, mask: Tensor) -> Floats:
        """Return covariates in their own units, with categories as codes and NaN at gaps."""
        values = torch.where(mask, x, torch.nan).cpu().double().numpy()
        return np.asarray(values * self.encoder.x_scale + self.encoder.x_shift)


def _codes(patient: Tensor | None) -> Codes:
    return np.zeros(0, dtype=np.int64) if patient is None else patient.cpu().numpy()
