"""Numbers with memory and noise, against dense normals of a patient's visits."""

import math

import pytest
import torch
from torch.testing import assert_close

from lacova.covariates import processes
from lacova.covariates.prior import FactorisedPrior
from lacova.covariates.processes import fit_number
from lacova.covariates.smoothing import Courses, log_likelihood, smooth
from lacova.covariates.visits import Visits, clock_of
from lacova.data.covariate_space import CovariateSpace
from tests.covariates.cases import generator, table

VISITS = (6, 1, 9, 4, 1, 1)
SPACE = CovariateSpace(("t", "a", "b"), (0, 0, 0), (False,) * 3)
RATE, W = torch.tensor([0.3, 2.0], dtype=torch.float64), torch.tensor([1.0, 0.6], dtype=torch.float64)


def rows_in_random_order(seed=0, visits=VISITS, missing=0.5):
    """Rows, of which some lack the time: order by patient and time, patient, time, values and mask of two columns."""
    g = generator(seed)
    patient = torch.repeat_interleave(torch.arange(len(visits)), torch.tensor(visits))
    patient = patient[torch.randperm(len(patient), generator=g)]
    x = torch.randn(len(patient), 3, generator=g, dtype=torch.float64)
    mask = torch.rand(x.shape, generator=g) > missing
    mask[:, 0] = True
    mask[::6, 0] = False
    t = table(x, mask, patient)
    return Visits.of(t, clock_of(t, 0), torch.tensor([1, 2]))


def covariance(visits, rows, q):
    """Of x at some rows of one patient."""
    at = visits.clock[rows]
    k = W[q] * torch.exp(-RATE[q] * (at[:, None] - at).abs())
    return k + (1.0 - W[q]) * torch.eye(len(rows), dtype=torch.float64)


def given_others(visits, rows, seen, q):
    """Mean and covariance of x at some rows, given the observed values at `seen`."""
    both = covariance(visits, torch.cat([rows, seen]), q)
    n = len(rows)
    gain = torch.linalg.solve(both[n:, n:], both[n:, :n]).T
    return gain @ visits.x[seen, q], both[:n, :n] - gain @ both[n:, :n]


@pytest.mark.parametrize("seed", range(3))
def test_every_entry_has_the_distribution_given_the_other_visits(seed):
    visits = rows_in_random_order(seed)
    smoothed = smooth(visits.order, visits.patient, visits.clock, visits.x, visits.x_mask, RATE, W)
    alone, pairs = 0, 0
    for patient in range(len(VISITS)):
        own = visits.order[visits.patient[visits.order] == patient]
        for q in range(2):
            for place, row in enumerate(own.tolist()):
                seen = own[visits.x_mask[own, q] & (own != row)]
                mean, var = given_others(visits, torch.tensor([row]), seen, q)
                assert_close(smoothed.mean[row, q], mean[0], rtol=1e-8, atol=1e-10)
                assert_close(smoothed.var[row, q], var[0, 0], rtol=1e-8, atol=0)
                alone += len(seen) == 0
                pair = own[place - 1 : place + 1]
                if place and not visits.x_mask[pair, q].any():
                    both = given_others(visits, pair, own[visits.x_mask[own, q]], q)[1]
                    expected = both[0, 1] / (both[0, 0] * both[1, 1]).sqrt()
                    assert_close(smoothed.correlation[row, q], expected, rtol=1e-7, atol=1e-10)
                    pairs += 1
            assert (smoothed.correlation[own[:1], q] == 0.0).all()
    assert pairs > 2
    assert alone > 0
    without_time = visits.clock.isnan()
    assert without_time.any()
    assert (smoothed.mean[without_time] == 0.0).all()
    assert (smoothed.var[without_time] == 1.0).all()


def test_the_likelihood_is_that_of_the_dense_normal():
    visits = rows_in_random_order(1)
    courses = Courses.of(visits.order, visits.patient, visits.clock)
    values = log_likelihood(courses, visits.x, visits.x_mask, *(part[:, None].expand(2, 2) for part in (RATE, W)))
    for g in range(2):
        for q in range(2):
            expected = torch.zeros((), dtype=torch.float64)
            for patient in range(len(VISITS)):
                own = visits.order[(visits.patient[visits.order] == patient) & visits.x_mask[visits.order, q]]
                normal = torch.distributions.MultivariateNormal(
                    torch.zeros(len(own), dtype=torch.float64), covariance(visits, own, g)
                )
                if len(own):
                    expected += normal.log_prob(visits.x[own, q]) + 0.5 * len(own) * math.log(2.0 * math.pi)
            assert_close(values[g, q], expected, rtol=1e-8, atol=1e-10)


def test_visits_at_the_same_time_are_handled():
    """Of a process without noise, they are nearly copies."""
    patient, clock = torch.zeros(4, dtype=torch.long), torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    x, observed = torch.tensor([[1.5], [0.0], [0.0], [0.0]]).double(), torch.tensor([[True], [False], [False], [False]])
    smoothed = smooth(torch.arange(4), patient, clock, x, observed, RATE[:1], W[:1])
    assert_close(smoothed.mean[1:3], torch.full((2, 1), 1.5).double(), rtol=1e-4, atol=0)
    assert (smoothed.var[1:3] < 1e-4).all()
    assert all(part.isfinite().all() for part in smoothed)


@pytest.mark.parametrize(("rate", "lasting"), [(0.1, 1.0), (0.3, 0.6), (0.001, 0.5)])
def test_rate_and_lasting_share_are_recovered(rate, lasting, monkeypatch):
    monkeypatch.setattr(processes, "MAX_PATIENTS", 1500)
    g = generator(3)
    patients, visits = 1500, 8
    at = torch.arange(visits).double()
    k = lasting * torch.exp(-rate * (at[:, None] - at).abs()) + (1.0 - lasting) * torch.eye(visits).double()
    x = torch.randn(patients, visits, generator=g, dtype=torch.float64) @ torch.linalg.cholesky(k).T
    space = CovariateSpace(("t", "a"), (0, 0), (False, False))
    rows = torch.stack([at.repeat(patients), 3.0 + 2.0 * x.flatten()], 1)
    mask = torch.rand(rows.shape, generator=g) > 0.3
    mask[:, 0] = True
    t = table(rows, mask, torch.arange(patients).repeat_interleave(visits))
    fitted, share = fit_number(FactorisedPrior.learn(space, t), t, clock_of(t, 0), 1)
    assert float(share) == pytest.approx(lasting, abs=0.101)  # the grid has tenths
    if rate > 0.01:
        assert float(fitted) == pytest.approx(rate, rel=0.45)  # and steps of 1.6
    else:
        assert float(fitted) < 0.02


def test_without_two_values_of_a_patient_a_number_has_no_memory():
    visits = rows_in_random_order(visits=(1, 1, 1))
    t = table(torch.cat([visits.clock[:, None], visits.x], 1), torch.ones(3, 3, dtype=torch.bool), visits.patient)
    rate, lasting = fit_number(FactorisedPrior.learn(SPACE, t), t, clock_of(t, None), 1)
    assert (float(rate), float(lasting)) == (math.inf, 1.0)
