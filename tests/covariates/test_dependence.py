"""Numbers that are missing together, against dense normals; and what measurements leave of their correlation."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

import lacova
from lacova.covariates import factorised
from lacova.covariates.dependence import (
    Group,
    NumberDependence,
    PosteriorDependence,
    correlated,
    groups_of,
    of_precision,
)
from lacova.covariates.linear_model import LinearModel, fit_linear_model, of_gaps
from lacova.covariates.linear_posterior import LinearPosterior
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, Dependence, FactorisedDistribution
from lacova.data.table_encoder import TableEncoder
from tests.covariates.cases import generator
from tests.covariates.test_paths import PATIENT, paths_of

SPACE = CovariateSpace(("a", "c", "b", "d", "s", "t"), (0, 2, 0, 0, 0, 0), (False, False, False, False, True, True))
NUMBERS, STATIC = [0, 2, 3, 4, 5], [4, 5]
# Rows of two patients. Runs of a, b and d that begin and end at different visits; s and t are constant within patients.
RUNS = {0: [(2, 0, 3), (5, 6)], 2: [(1, 2, 0, 3), (5, 6, 4)], 3: [(2, 0)]}
GAPS = {0: [0, 2, 3, 5, 6], 2: [0, 1, 2, 3, 4, 5, 6], 3: [0, 2, 5], 4: [0, 1, 2, 3], 5: [0, 1, 2, 3]}


def gaps_of():
    gaps = torch.zeros(7, 6, dtype=torch.bool)
    for q, rows in GAPS.items():
        gaps[rows, q] = True
    return gaps


def random_dependence(seed):
    """Correlations of the missing numbers of each row; visit-constant numbers apart from the others, and the same in
    all rows of a patient."""
    root = torch.randn(7, 5, 5, generator=generator(seed), dtype=torch.float64)
    precision = root @ root.mT + torch.eye(5).double()
    precision[1:4, 3:, 3:] = precision[0, 3:, 3:]
    precision[:, :3, 3:] = precision[:, 3:, :3] = 0.0
    return of_precision(of_gaps(precision, gaps_of()[:, NUMBERS]), SPACE)


def some_distribution(seed, paths=True, dependence=True, strength=3.0):
    g = generator(seed)
    mean, log_var = (torch.randn(7, 6, generator=g, dtype=torch.float64) for _ in range(2))
    for part in (mean, log_var):
        part[1:4, STATIC] = part[0, STATIC]
    coupling = strength * torch.rand(7, 6, generator=generator(7), dtype=torch.float64)
    return FactorisedDistribution(
        mean, (0.7 * log_var).exp(), torch.randn(7, 6, 2, generator=g, dtype=torch.float64).log_softmax(-1),
        paths_of(RUNS, 7, 6, coupling) if paths else None, random_dependence(seed) if dependence else None,
    )  # fmt: skip


def batch_of(y_mask=None):
    x = torch.randn(7, 6, generator=generator(9), dtype=torch.float64)
    x[:, 1] = 1.0
    p = some_distribution(5)
    y_mask = torch.ones(7, 1, dtype=torch.bool) if y_mask is None else y_mask
    return Batch(
        torch.zeros(y_mask.shape).double(), y_mask, x, ~gaps_of(), PATIENT,
        conditional_prior=ConditionalPrior(replace(p, dependence=None), torch.zeros(7).double()),
    )  # fmt: skip


def unknowns():
    """The missing numbers as (row, column), a visit-constant one in its patient's first row."""
    return [(i, q) for q, rows in GAPS.items() for i in rows if q not in STATIC or i == 0]


def dense(distribution):
    """The normal of all unknowns, by the recursion that defines it, in loops."""
    places = {entry: k for k, entry in enumerate(unknowns())}
    root = torch.zeros(len(places), 7 * 5, dtype=torch.float64)
    factor = (
        torch.eye(5).double().expand(7, 5, 5) if distribution.dependence is None else distribution.dependence.factor
    )
    sd, paths, done = distribution.var.sqrt(), distribution.paths, {}

    def standardised(i, q):
        if (i, q) not in done:
            k = NUMBERS.index(q)
            new = torch.zeros(7 * 5, dtype=torch.float64)
            new[i * 5 : i * 5 + 5] = factor[i, k]
            step = 0 if paths is None else int(paths.before[i, q])
            if step:
                kappa = float(paths.coupling[i, q] * sd[i, q] * sd[i + step, q])
                rho = (-1 + (1 + 4 * kappa**2) ** 0.5) / (2 * kappa)
                new = rho * standardised(i + step, q) + (1 - rho**2) ** 0.5 * new
            done[i, q] = new
        return done[i, q]

    for (i, q), place in places.items():
        root[place] = sd[i, q] * standardised(i, q)
    mean = torch.stack([distribution.mean[i, q] for i, q in places])
    return MultivariateNormal(mean, root @ root.T)


CASES = pytest.mark.parametrize("paths", [True, False], ids=["paths", "no paths"])


@CASES
def test_draws_are_linear_in_the_random_numbers_and_have_the_covariance_of_the_definition(paths):
    distribution, batch = some_distribution(1, paths), batch_of()
    eps = torch.eye(42, dtype=torch.float64).view(42, 7, 6)  # one random number each
    root = correlated(eps, distribution, batch)
    rows, columns = torch.tensor(unknowns()).T
    root = root[:, rows, columns].T * distribution.var.sqrt()[rows, columns][:, None]
    assert_close(root @ root.T, dense(distribution).covariance_matrix, rtol=1e-8, atol=1e-10)
    drawn = factorised.draw(distribution, batch, SPACE, 20_000, generator(3))
    observed = drawn[:, batch.x_mask]
    assert torch.equal(observed, batch.x[batch.x_mask].expand_as(observed))
    assert torch.equal(drawn[:, 1:4, STATIC], drawn[:, :1, STATIC].expand(-1, 3, -1))
    true = dense(distribution)
    close = 6 * float(true.variance.max()) / 20_000**0.5 * 1.5  # six standard errors of a covariance
    assert_close(torch.cov(drawn[:, rows, columns].T), true.covariance_matrix, rtol=0, atol=close)


@CASES
@pytest.mark.parametrize("strength", [3.0, 400.0])
@pytest.mark.parametrize("dependent", ["both", "q", "p"])
def test_kl_is_that_of_dense_normals(paths, strength, dependent):
    q = some_distribution(2, paths, dependent != "p", strength)
    p, batch = some_distribution(3, paths, dependent != "q", strength), batch_of()
    q = replace(q, log_prob=p.log_prob)
    assert_close(factorised.kl(q, p, batch, SPACE), kl_divergence(dense(q), dense(p)), rtol=1e-8, atol=0)
    assert factorised.kl(p, p, batch, SPACE).abs() < 1e-9


def test_independent_numbers_have_the_kl_of_single_entries_and_pairs():
    eye = torch.eye(5).double().expand(7, 5, 5)
    none = Dependence(eye, eye, torch.tensor(NUMBERS))
    q, p, batch = some_distribution(2, dependence=False), some_distribution(3, dependence=False), batch_of()
    value = factorised.kl(replace(q, dependence=none), replace(p, dependence=none), batch, SPACE)
    assert_close(value, factorised.kl(q, p, batch, SPACE), rtol=1e-10, atol=0)


@CASES
def test_density_is_that_of_dense_normals(paths):
    p, batch = some_distribution(3, paths), batch_of()
    x = torch.randn(4, 7, 6, generator=generator(6), dtype=torch.float64)
    x[..., 1] = 1.0
    rows, columns = torch.tensor(unknowns()).T
    free = factorised.free_entries(batch, SPACE)
    value = factorised.log_density(p, x, free, SPACE).sum(1)
    assert_close(value, dense(p).log_prob(x[:, rows, columns]), rtol=1e-8, atol=0)
    levels = torch.zeros_like(free)  # of categories alone: none is missing
    assert (factorised.log_density(p, x, levels, SPACE) == 0).all()


def test_entropy_is_that_of_dense_normals():
    q, batch = some_distribution(2, paths=False), batch_of()
    assert_close(factorised.negative_entropy(q, batch, SPACE), -dense(q).entropy(), rtol=1e-8, atol=0)


def test_halves_and_other_choices_of_rows():
    q = some_distribution(2, paths=False)
    doubled = Dependence(*(torch.cat([part, part]) for part in (q.dependence.factor, q.dependence.precision)), None)
    first, second = replace(q.above(q), dependence=doubled).halves()
    for half in (first, second):
        assert torch.equal(half.dependence.factor, q.dependence.factor)
        assert torch.equal(half.dependence.precision, q.dependence.precision)
    assert q.by_entry().dependence is None
    assert q.take(torch.arange(7)).dependence is None


# The posterior


def linear_case(seed=0, k=3, d=4, r=2):
    g = generator(seed)
    root = torch.randn(k, k, generator=g, dtype=torch.float64)
    loadings = torch.randn(d, k + r, generator=g, dtype=torch.float64)
    noise = 0.2 + torch.rand(d, generator=g, dtype=torch.float64)
    of_x, of_y = (torch.randn(1, n, generator=g, dtype=torch.float64) for n in (k, d))
    return LinearModel(root @ root.T + 0.5 * torch.eye(k).double(), loadings, noise, of_x, of_y)


def exact(model, missing, shown, x, y):
    """Mean and covariance of x_u given x_o and y_o in a linear model, from the joint normal of x and y."""
    k = len(model.covariance)
    b, w = model.loadings[:, :k], model.loadings[:, k:]
    cross = b @ model.covariance
    of_y = cross @ b.T + w @ w.T + torch.diag(model.noise)
    joint = torch.cat([torch.cat([model.covariance, cross.T], 1), torch.cat([cross, of_y], 1)])
    means, values = torch.cat([model.of_x[0], model.of_y[0]]), torch.cat([x, y])
    given, u = [j for j in range(k) if j not in missing] + [k + j for j in shown], torch.tensor(missing)
    mean, part = means[u], joint[u][:, u]
    if given:
        o = torch.tensor(given)
        slope = torch.linalg.solve(joint[o][:, o], joint[o][:, u]).T
        mean, part = mean + slope @ (values - means)[o], part - slope @ joint[o][:, u]
    return mean, part


def correlation_of(covariance):
    sd = covariance.diagonal().sqrt()
    return covariance / sd / sd[:, None]


ROWS = CovariateSpace(("a", "b", "d"), (0, 0, 0), (False,) * 3)
GAPS_OF_ROWS = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=torch.bool)
SHOWN = torch.tensor(
    [[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 1]], dtype=torch.bool
)


def some_rows(model):
    """Rows of a linear model, and their conditional prior: that of x alone."""
    g = generator(4)
    x = model.of_x + torch.randn(6, 3, generator=g, dtype=torch.float64)
    y = model.of_y + torch.randn(6, 4, generator=g, dtype=torch.float64)
    mean, var = x.clone(), torch.ones_like(x)
    for i, gaps in enumerate(GAPS_OF_ROWS):
        missing = gaps.nonzero()[:, 0].tolist()
        if missing:
            mean[i, missing], covariance = exact(model, missing, [], x[i], y[i])
            var[i, missing] = covariance.diagonal()
    prior = FactorisedDistribution(mean, var, torch.zeros(6, 3, 1).double())
    return Batch(y, SHOWN, x.masked_fill(GAPS_OF_ROWS, 99.0), ~GAPS_OF_ROWS, torch.arange(6)), prior, x


def assert_correlations(dependence, model, x, y):
    for i in range(len(x)):
        missing = GAPS_OF_ROWS[i].nonzero()[:, 0].tolist()
        expected, u = torch.eye(3, dtype=torch.float64), torch.tensor(missing, dtype=torch.long)
        if missing:
            covariance = exact(model, missing, SHOWN[i].nonzero()[:, 0].tolist(), x[i], y[i])[1]
            expected[u[:, None], u] = correlation_of(covariance)
        assert_close(dependence.factor[i] @ dependence.factor[i].T, expected, rtol=1e-8, atol=1e-10)
        assert_close(dependence.precision[i], torch.linalg.inv(expected), rtol=1e-7, atol=1e-9)  # inverse of an inverse


def test_the_posterior_of_rows_is_that_of_the_joint_normal():
    model = linear_case()
    posterior = LinearPosterior(ROWS, [0, 1, 2, 3], 2)
    for name, value in zip(
        ("precision", "loadings", "noise", "of_x", "of_y"),
        (
            torch.linalg.inv(model.covariance), model.loadings, model.noise, model.of_x,
            model.of_y,
        ),
        strict=True,
    ):  # fmt: skip
        getattr(posterior, name).copy_(value)
    posterior.spread.fill_(100.0)
    batch, prior, x = some_rows(model)
    q = posterior(prior, batch)
    for i, gaps in enumerate(GAPS_OF_ROWS):
        missing = gaps.nonzero()[:, 0].tolist()
        if missing:
            mean, covariance = exact(model, missing, SHOWN[i].nonzero()[:, 0].tolist(), x[i], batch.y[i])
            assert_close(q.mean[i, missing], mean, rtol=1e-8, atol=1e-10)
            assert_close(q.var[i, missing], covariance.diagonal(), rtol=1e-8, atol=1e-10)
    assert_correlations(q.dependence, model, x, batch.y)
    posterior.spread.fill_(0.01)  # an outlier is clipped: it moves the posterior by no more than its limit
    far = posterior(prior, replace(batch, y=batch.y + 1e6))
    assert torch.isfinite(far.mean).all()
    assert (far.mean - prior.mean).abs().max() < 10.0


def test_the_posterior_of_visits_has_the_correlations_of_the_joint_normal():
    """With all gaps of a group or some of them: an observed partner leaves others less of their variance."""
    model = linear_case()
    batch, prior, x = some_rows(model)
    own = NumberDependence(ROWS)
    own.precision.copy_(torch.linalg.inv(correlation_of(model.covariance)))
    own.alone.copy_(own.precision)
    dependence = PosteriorDependence(own, 4, 2)
    dependence.set_loadings(Group([0, 1, 2], False), model)
    assert_correlations(dependence(batch, SHOWN, prior), model, x, batch.y)


def pairs_of(space, *matrices):
    own = NumberDependence(space)
    for buffer, matrix in zip((own.precision, own.alone), matrices, strict=True):
        buffer.copy_(torch.linalg.inv(matrix))
    return own


def test_two_numbers_whose_sum_is_measured_go_against_each_other():
    model = LinearModel(
        torch.eye(2).double(),
        torch.ones(1, 2).double(),
        torch.tensor([0.25]).double(),
        torch.zeros(1, 2),
        torch.zeros(1, 1),
    )
    space = CovariateSpace(("a", "b"), (0, 0), (False, False))
    dependence = PosteriorDependence(NumberDependence(space), 1, 0)
    dependence.set_loadings(Group([0, 1], False), model)
    mask = torch.zeros(1, 2, dtype=torch.bool)
    batch = Batch(torch.zeros(1, 1).double(), mask[:, :1], torch.zeros(1, 2).double(), mask, torch.zeros(1).long())
    prior = FactorisedDistribution(torch.zeros(1, 2).double(), torch.ones(1, 2).double(), torch.zeros(1, 2, 1).double())
    answer = dependence(batch, torch.ones(1, 1, dtype=torch.bool), prior)
    assert_close(
        answer.factor[0, 1, 0], torch.tensor(-0.8, dtype=torch.float64), rtol=1e-8, atol=0
    )  # 1/0.25 over 1 + 1/0.25
    assert dependence(batch, mask[:, :1], prior).factor[0, 1, 0] == 0.0


def test_the_less_other_visits_tell_the_more_numbers_go_together_as_they_do_alone():
    space = CovariateSpace(("a", "b"), (0, 0), (False, False))
    matrices = [torch.tensor([[1.0, r], [r, 1.0]]).double() for r in (0.2, 0.8)]
    own = pairs_of(space, *matrices)
    own.left.fill_(0.25)
    mask = torch.zeros(3, 2, dtype=torch.bool)
    batch = Batch(torch.zeros(3, 1).double(), mask[:, :1], torch.zeros(3, 2).double(), mask, torch.arange(3))
    var = torch.tensor([0.2, 0.625, 1.0]).double()[:, None].expand(3, 2)  # of 1: as much as visits leave, half, all
    prior = FactorisedDistribution(torch.zeros(3, 2).double(), var, torch.zeros(3, 2, 1).double())
    found = own.given(batch, prior).factor
    between = torch.linalg.inv(sum(torch.linalg.inv(matrix) for matrix in matrices) / 2)
    for row, matrix in enumerate((matrices[0], between, matrices[1])):
        assert_close(found[row] @ found[row].T, correlation_of(matrix), rtol=1e-8, atol=1e-10)


def test_pairs_that_few_rows_show_have_no_correlation():
    g = generator(3)
    root = torch.linalg.cholesky(torch.tensor([[1.0, 0.9, 0.9], [0.9, 1.0, 0.9], [0.9, 0.9, 1.0]])).double()
    values = torch.randn(400, 3, generator=g, dtype=torch.float64) @ root.T
    values[:200, 2] = torch.nan
    values[200:, 0] = torch.nan  # the first and the third are never shown together, and both go with the second
    space = CovariateSpace(("a", "b", "d"), (0, 0, 0), (False,) * 3)
    own = NumberDependence(space)
    own.learn(Group([0, 1, 2], False), values, values)
    correlation = correlation_of(torch.linalg.inv(own.precision))
    assert correlation[0, 2] == pytest.approx(0.0, abs=1e-8)
    assert 0.5 < correlation[0, 1] < 0.8  # two of .9 beside one of 0 are not possible
    assert torch.linalg.eigvalsh(own.precision)[0] > 0.1
    values[: 200 - 19, 1] = torch.nan
    own.learn(Group([0, 1, 2], False), values[:200], values)
    assert_close(own.precision, torch.eye(3).double())


def test_patients_averages_inform_numbers_that_do_not_vary_and_visits_those_that_do():
    space = CovariateSpace(("a", "b", "s", "t"), (0,) * 4, (False, False, True, True))
    model = LinearModel(
        torch.eye(2).double(),
        torch.ones(1, 2).double(),
        torch.tensor([0.5]).double(),
        torch.zeros(1, 2),
        torch.zeros(1, 1),
    )
    dependence = PosteriorDependence(NumberDependence(space), 1, 0)
    for group in groups_of(space):
        dependence.set_loadings(group, model)
    shown = torch.tensor([[True], [False], [False]])
    patient, mask = torch.tensor([0, 0, 1]), torch.zeros(3, 4, dtype=torch.bool)
    batch = Batch(torch.zeros(3, 1).double(), shown, torch.zeros(3, 4).double(), mask, patient)
    prior = FactorisedDistribution(torch.zeros(3, 4).double(), torch.ones(3, 4).double(), torch.zeros(3, 4, 1).double())
    correlation = dependence(batch, shown, prior).factor @ dependence(batch, shown, prior).factor.mT
    share = 1 / 1.5  # one visit, and half a pseudo-visit
    of_patient = -share / 0.5 / (1 + share / 0.5)
    for row, (varying, static) in enumerate([(-2 / 3, of_patient), (0.0, of_patient), (0.0, 0.0)]):
        assert_close(correlation[row, 0, 1], torch.tensor(varying, dtype=torch.float64), rtol=1e-8, atol=1e-12)
        assert_close(correlation[row, 2, 3], torch.tensor(static, dtype=torch.float64), rtol=1e-8, atol=1e-12)
        assert (correlation[row, :2, 2:] == 0).all()


def test_without_measurements_the_posterior_is_the_prior():
    own = pairs_of(ROWS, *[correlation_of(linear_case(seed).covariance) for seed in (0, 5)])
    own.left.copy_(torch.tensor([0.1, 0.5, 0.3]))
    dependence = PosteriorDependence(own, 4, 2)
    dependence.set_loadings(Group([0, 1, 2], False), linear_case(1))
    gaps = torch.tensor([[1, 1, 1], [0, 1, 1]], dtype=torch.bool)
    shown = torch.zeros(2, 4, dtype=torch.bool)
    var = torch.full((2, 3), 0.7).double()
    prior = FactorisedDistribution(torch.zeros(2, 3).double(), var, torch.zeros(2, 3, 1).double())
    batch = Batch(torch.zeros(2, 4).double(), shown, torch.zeros(2, 3).double(), ~gaps, torch.arange(2))
    q, p = dependence(batch, shown, prior), own.given(batch, prior)
    assert_close(q.factor, p.factor, rtol=1e-8, atol=1e-10)
    observed = replace(batch, x_mask=torch.tensor([[False, True, True], [True, True, False]]))
    assert own.given(observed, prior) is None


# Fitting


def simulated(n, seed=3, gaps=0.3):
    model, g = linear_case(), generator(seed)
    root = torch.linalg.cholesky(model.covariance)
    x = model.of_x + torch.randn(n, 3, generator=g, dtype=torch.float64) @ root.T
    z = torch.randn(n, 2, generator=g, dtype=torch.float64)
    y = model.of_y + torch.cat([x - model.of_x, z], 1) @ model.loadings.T
    y = y + model.noise.sqrt() * torch.randn(n, 4, generator=g, dtype=torch.float64)
    x, y = (v.masked_fill(torch.rand(v.shape, generator=g) < gaps, torch.nan) for v in (x, y))
    return model, x, y


def log_likelihood(model, x, y):
    """Of each row, from the joint normal of what is observed, in a loop."""
    k, total = len(model.covariance), 0.0
    b, w = model.loadings[:, :k], model.loadings[:, k:]
    cross = b @ model.covariance
    of_y = cross @ b.T + w @ w.T + torch.diag(model.noise)
    joint = torch.cat([torch.cat([model.covariance, cross.T], 1), torch.cat([cross, of_y], 1)])
    for row in torch.cat([x, y], 1):
        o = row.isfinite().nonzero()[:, 0]
        if len(o):
            mean = torch.cat([model.of_x[0], model.of_y[0]])
            total += float(MultivariateNormal(mean[o], joint[o][:, o]).log_prob(row[o]))
    return total


def test_em_raises_the_likelihood_and_finds_the_model(monkeypatch):
    truth, x, y = simulated(400)
    values = []
    for iterations in (1, 3, 10, 40):
        monkeypatch.setattr("lacova.covariates.linear_model.ITERATIONS", iterations)
        values.append(log_likelihood(fit_linear_model(x, y, 2, generator()), x, y))
    assert all(np.diff(values) > 0)
    assert values[-1] > log_likelihood(truth, x, y) - 3.0  # 21 parameters fit better than the truth, a ridge takes some
    _, x, y = simulated(6000)
    fitted = fit_linear_model(x, y, 2, generator())
    k = 3
    assert_close(fitted.covariance, truth.covariance, rtol=0, atol=0.25)
    assert_close(fitted.loadings[:, :k], truth.loadings[:, :k], rtol=0, atol=0.12)  # 40 iterations of EM, 6,000 rows


def test_gaps_that_depend_on_y_do_not_bias_it():
    """As in world E: x is missing where y is high."""
    g = generator(1)
    x = torch.randn(4000, 2, generator=g, dtype=torch.float64)
    y = x.sum(1, keepdim=True) + torch.randn(4000, 1, generator=g, dtype=torch.float64)
    gone = torch.rand(4000, generator=g) < torch.sigmoid(2.0 * y[:, 0])
    x[gone, 1] = torch.nan
    fitted = fit_linear_model(x, y, 0)
    assert_close(fitted.loadings[0], torch.ones(2).double(), rtol=0, atol=0.08)  # four standard errors
    assert_close(fitted.covariance, torch.eye(2).double(), rtol=0, atol=0.12)
    assert_close(torch.cat([fitted.of_x[0], fitted.of_y[0]]), torch.zeros(3).double(), rtol=0, atol=0.1)


def test_a_row_with_a_weight_counts_as_often():
    _, x, y = simulated(60)
    weight = torch.arange(60) % 3
    rows = torch.repeat_interleave(torch.arange(60), weight)
    weighted = fit_linear_model(x, y, 1, generator(), weight.double())
    for own, again in zip(weighted, fit_linear_model(x[rows], y[rows], 1, generator()), strict=True):
        assert_close(own, again, rtol=1e-8, atol=1e-10)


def test_a_measurement_that_hardly_any_row_shows_says_nothing():
    _, x, y = simulated(100)
    y[:, 2], y[19:, 3] = torch.nan, torch.nan
    fitted = fit_linear_model(x, y, 1, generator())
    assert (fitted.loadings[2:] == 0).all()
    assert (fitted.loadings[:2, :3].abs() > 0.01).any()


def rows_without_two(n=300, seed=0):
    rng = np.random.default_rng(seed)
    x1 = rng.standard_normal(n)
    x2 = 0.9 * x1 + np.sqrt(0.19) * rng.standard_normal(n)
    table = pd.DataFrame({"y": x1 + rng.standard_normal(n), "x1": x1, "x2": x2})
    table.loc[rng.random(n) < 0.4, ["x1", "x2"]] = np.nan
    return table


@pytest.fixture(scope="module")
def fitted():
    table = rows_without_two()
    schema = lacova.Schema(["y"], {"x1": "continuous", "x2": "continuous"})
    return lacova.CVAE(schema).fit(table, members=1, progress=False), table


def within(completed, table):
    """The correlation of imputed pairs, less their means over draws."""
    lost = table["x1"].isna().to_numpy()
    drawn = np.stack([part.loc[lost, ["x1", "x2"]] for _, part in completed.groupby("draw", sort=False)])
    return np.corrcoef((drawn - drawn.mean(0)).reshape(-1, 2).T)[0, 1]


def completed_tables(model, table):
    drawn = model.impute(table, draws=20, seed=1)
    return drawn.set_index(np.tile(table.index, 20))


def test_imputed_pairs_keep_their_correlation(fitted):
    """Of x1 and x2 given y: precisions (5.26 + 1, 5.26) and −4.74, so .83."""
    model, table = fitted
    assert 0.75 < within(completed_tables(model, table), table) < 0.9
    start = model.vae.covariate_posterior.linear_posterior
    forward = start.forward
    start.forward = lambda prior, batch: forward(prior, batch).by_entry()
    alone = within(completed_tables(model, table), table)
    del start.forward
    assert abs(alone) < 0.1


def test_a_saved_model_draws_the_same_pairs(fitted, tmp_path):
    model, table = fitted
    model.save(tmp_path / "model.lacova")
    again = lacova.load(tmp_path / "model.lacova")
    pd.testing.assert_frame_equal(model.impute(table, draws=3, seed=2), again.impute(table, draws=3, seed=2))


def test_numbers_are_independent_where_that_is_asked_for():
    table = rows_without_two(60)
    schema = lacova.Schema(["y"], {"x1": "continuous", "x2": "continuous"})
    for settings in ({"joint_posterior": False}, {"covariates": "factorised"}, {"covariates": "paper"}):
        model = lacova.CVAE(schema, **settings).fit(table, max_epochs=1, progress=False)
        assert model.vae.covariate_posterior.dependence is None
        assert model.vae.covariate_posterior.linear_posterior is None


def test_visits_and_constant_numbers_keep_their_correlation():
    rng, patients = np.random.default_rng(2), 120
    s = rng.multivariate_normal([0, 0], [[1, 0.9], [0.9, 1]], patients)
    x = rng.multivariate_normal([0, 0], [[1, 0.9], [0.9, 1]], (patients, 4))
    y = s[:, :1] + x[:, :, 0] + rng.standard_normal((patients, 4))
    table = pd.DataFrame({"id": np.repeat(np.arange(patients), 4), "day": np.tile(np.arange(4.0), patients)})
    table["y"] = y.ravel()
    for k in (0, 1):
        table[f"s{k}"], table[f"x{k}"] = np.repeat(s[:, k], 4), x[:, :, k].ravel()
    table.loc[table["id"] % 3 == 0, ["s0", "s1"]] = np.nan
    table.loc[rng.random(len(table)) < 0.4, ["x0", "x1"]] = np.nan
    covariates = dict.fromkeys(("day", "s0", "s1", "x0", "x1"), "continuous")
    schema = lacova.Schema(["y"], covariates, instance="id", time="day", static=["s0", "s1"])
    model = lacova.GPPriorVAE(schema).fit(table, max_epochs=20, progress=False)
    for draw in (model.impute(table, draws=10, seed=0), model.prior_covariates(table, draws=10, seed=0)):
        parts = [part.reset_index(drop=True) for _, part in draw.groupby("draw")]
        for a, b in (("s0", "s1"), ("x0", "x1")):
            lost = table[a].isna().to_numpy()
            of = np.mean([np.corrcoef(part[a][lost], part[b][lost])[0, 1] for part in parts])
            assert of > 0.75  # .9 in truth, and about 0 without


def visits(patients, seed=0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"id": np.repeat(np.arange(patients), 4), "day": np.tile(np.arange(4.0), patients)})
    return rng, table.assign(y=rng.standard_normal(len(table)))


def schema_of(*names, **kinds):
    kinds = dict.fromkeys(("day", *names), "continuous") | kinds
    static = [name for name in kinds if name[0] == "s"]
    return lacova.Schema(["y"], kinds, instance="id", time="day", static=static)


def test_what_a_category_explains_is_no_correlation_of_numbers():
    """Two numbers that are independent given the sex, or a category that varies, which are observed."""
    rng, table = visits(300)
    sex, g = rng.integers(0, 2, 300), rng.integers(0, 2, len(table))
    for k in (0, 1):
        table[f"s{k}"] = (3 * sex + rng.standard_normal(300))[table["id"]]
        table[f"x{k}"] = 3 * g + rng.standard_normal(len(table))
    table["sex"], table["g"] = np.array(["f", "m"])[sex][table["id"]], np.array(["a", "b"])[g]
    table.loc[table["id"] % 3 == 0, ["s0", "s1"]] = np.nan
    table.loc[rng.random(len(table)) < 0.3, ["x0", "x1"]] = np.nan
    schema = schema_of("s0", "s1", "x0", "x1", sex="categorical", g="categorical")
    rows = TableEncoder.learn(schema, table).encode(table)
    space = TableEncoder.learn(schema, table).space
    prior = LongitudinalPrior.learn(space, rows, space.names.index("day"), 0)
    correlation = correlation_of(torch.linalg.inv(prior.dependence.precision))
    first = [space.continuous.index(space.names.index(name)) for name in ("s0", "x0")]
    second = [space.continuous.index(space.names.index(name)) for name in ("s1", "x1")]
    assert correlation[first, second].abs().max() < 0.2  # 200 patients; .7 with what the categories explain


@pytest.mark.parametrize("how", ["random start", "no linear path"])
def test_posteriors_without_a_linear_model_have_the_correlation_of_the_prior(how):
    """Else their numbers, independent, would have the variances that each has given the others."""
    rng, table = visits(100)
    x = rng.multivariate_normal([0, 0], [[1, 0.95], [0.95, 1]], len(table))
    table["x0"], table["x1"] = np.where(rng.random(len(table)) < 0.3, np.nan, x.T)
    networks = {} if how == "random start" else {"networks": lacova.Dense((16,), (16,))}
    options = {"start": "random"} if how == "random start" else {}
    model = lacova.GPPriorVAE(schema_of("x0", "x1"), latent_dim=1, **networks)
    model.fit(table, max_epochs=3, progress=False, **options)
    lost = table["x0"].isna().to_numpy()
    drawn = [part.loc[lost, ["x0", "x1"]] for _, part in imputed_by_draw(model, table)]
    assert np.mean([part.corr().iloc[0, 1] for part in drawn]) > 0.85
    assert np.mean([part.std() for part in drawn]) > 0.8


def imputed_by_draw(model, table):
    drawn = model.impute(table, draws=20, seed=0).set_index(np.tile(table.index, 20))
    return drawn.groupby("draw", sort=False)


def test_pairs_stay_together_where_one_is_on_a_path_and_the_row_has_no_measurement():
    rng, table = visits(120)
    x = rng.multivariate_normal([0, 0], [[1, 0.95], [0.95, 1]], len(table))
    table["x0"], table["x1"] = x.T
    half = table["id"] % 2 == 0
    last = half & (table["day"] == 3)
    table.loc[half & (table["day"] >= 2), "x0"] = np.nan
    table.loc[last, ["x1", "y"]] = np.nan
    model = lacova.GPPriorVAE(schema_of("x0", "x1"), latent_dim=1).fit(table, max_epochs=3, progress=False)
    drawn = [part.loc[last, ["x0", "x1"]].corr().iloc[0, 1] for _, part in imputed_by_draw(model, table)]
    assert np.mean(drawn) > 0.85


def test_log_likelihood_of_rows_weighs_correlated_numbers_by_their_own_density():
    """y does not depend on x, so that every weight of x is 1 and draws hardly vary."""
    rng, table = visits(100)
    x = rng.multivariate_normal(np.zeros(4), np.full((4, 4), 0.95) + 0.05 * np.eye(4), len(table))
    names = [f"x{k}" for k in range(4)]
    table[names] = np.where(rng.random((len(table), 1)) < 0.4, np.nan, x)
    model = lacova.GPPriorVAE(schema_of(*names), latent_dim=1).fit(table, max_epochs=3, progress=False)
    lost = table["x0"].isna().to_numpy()
    values = np.array([model.log_likelihood(table, draws=50, seed=seed)[lost].mean() for seed in range(4)])
    assert values.std() < 0.05  # .5 with independent numbers in one of p and q


def test_numbers_that_are_never_shown_together_are_independent():
    rng, table = visits(60)
    table["x0"] = np.where(table["id"] % 3 == 0, rng.standard_normal(len(table)), np.nan)
    table["x1"] = np.where(table["id"] % 3 == 1, rng.standard_normal(len(table)), np.nan)
    model = lacova.GPPriorVAE(schema_of("x0", "x1"), latent_dim=1).fit(table, max_epochs=1, progress=False)
    assert np.isfinite(model.impute(table)[["x0", "x1"]].to_numpy()).all()
