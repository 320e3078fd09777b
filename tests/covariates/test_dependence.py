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
from lacova.data.batches import Batch
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, Dependence, FactorisedDistribution
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
    return LinearModel(root @ root.T + 0.5 * torch.eye(k).double(), loadings, noise)


def exact_covariance(model, missing, shown):
    """Cov[x_u | x_o, y_o] of a linear model, from the joint normal of x and y."""
    k = len(model.covariance)
    b, w = model.loadings[:, :k], model.loadings[:, k:]
    cross = b @ model.covariance
    of_y = cross @ b.T + w @ w.T + torch.diag(model.noise)
    joint = torch.cat([torch.cat([model.covariance, cross.T], 1), torch.cat([cross, of_y], 1)])
    given = [j for j in range(k) if j not in missing] + [k + j for j in shown]
    u = torch.tensor(missing)
    part = joint[u][:, u]
    if given:
        o = torch.tensor(given)
        part = part - joint[u][:, o] @ torch.linalg.solve(joint[o][:, o], joint[o][:, u])
    return part


def correlation_of(covariance):
    sd = covariance.diagonal().sqrt()
    return covariance / sd / sd[:, None]


ROWS = CovariateSpace(("a", "b", "d"), (0, 0, 0), (False,) * 3)


@pytest.mark.parametrize("by_scale", [False, True])
def test_the_posterior_has_the_correlations_of_the_joint_normal(by_scale):
    model = linear_case()
    dependence = PosteriorDependence(ROWS, 4, 2, by_scale)
    group = Group([0, 1, 2], False)
    dependence.set(group, model)
    sd = torch.ones(3).double()
    if by_scale:
        sd = model.covariance.diagonal().sqrt()
        dependence.precision.copy_(torch.linalg.inv(correlation_of(model.covariance)))
    gaps = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1]], dtype=torch.bool)
    shown = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)
    number = torch.arange(5)
    batch = Batch(torch.zeros(5, 4).double(), shown, torch.zeros(5, 3).double(), ~gaps, number)
    prior = FactorisedDistribution(torch.zeros(5, 3).double(), sd.square().expand(5, 3), torch.zeros(5, 3, 1).double())
    answer = dependence(batch, shown, prior)
    found = answer.factor @ answer.factor.mT
    for i in range(5):
        missing = gaps[i].nonzero()[:, 0].tolist()
        covariance = exact_covariance(model, missing, shown[i].nonzero()[:, 0].tolist())
        expected = torch.eye(3, dtype=torch.float64)
        u = torch.tensor(missing)
        expected[u[:, None], u] = correlation_of(covariance)
        assert_close(found[i], expected, rtol=1e-8, atol=1e-10)
        assert_close(answer.precision[i], torch.linalg.inv(expected), rtol=1e-7, atol=1e-9)  # an inverse of an inverse


def test_two_numbers_whose_sum_is_measured_go_against_each_other():
    model = LinearModel(torch.eye(2).double(), torch.ones(1, 2).double(), torch.tensor([0.25]).double())
    space = CovariateSpace(("a", "b"), (0, 0), (False, False))
    dependence = PosteriorDependence(space, 1, 0, by_scale=False)
    dependence.set(Group([0, 1], False), model)
    mask = torch.zeros(1, 2, dtype=torch.bool)
    batch = Batch(torch.zeros(1, 1).double(), mask[:, :1], torch.zeros(1, 2).double(), mask, torch.zeros(1).long())
    prior = FactorisedDistribution(torch.zeros(1, 2).double(), torch.ones(1, 2).double(), torch.zeros(1, 2, 1).double())
    answer = dependence(batch, torch.ones(1, 1, dtype=torch.bool), prior)
    assert_close(
        answer.factor[0, 1, 0], torch.tensor(-0.8, dtype=torch.float64), rtol=1e-8, atol=0
    )  # 1/0.25 over 1 + 1/0.25
    assert dependence(batch, mask[:, :1], prior).factor[0, 1, 0] == 0.0


def test_patients_averages_inform_numbers_that_do_not_vary_and_visits_those_that_do():
    space = CovariateSpace(("a", "b", "s", "t"), (0,) * 4, (False, False, True, True))
    model = LinearModel(torch.eye(2).double(), torch.ones(1, 2).double(), torch.tensor([0.5]).double())
    dependence = PosteriorDependence(space, 1, 0, by_scale=True)
    for group in groups_of(space):
        dependence.set(group, model)
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
    own = NumberDependence(ROWS)
    own.precision.copy_(torch.linalg.inv(correlation_of(linear_case().covariance)))
    dependence = PosteriorDependence(ROWS, 4, 2, by_scale=True)
    dependence.precision.copy_(own.precision)
    dependence.set(Group([0, 1, 2], False), linear_case(1))
    gaps = torch.tensor([[1, 1, 1], [0, 1, 1]], dtype=torch.bool)
    shown = torch.zeros(2, 4, dtype=torch.bool)
    prior = FactorisedDistribution(torch.zeros(2, 3).double(), torch.ones(2, 3).double(), torch.zeros(2, 3, 1).double())
    batch = Batch(torch.zeros(2, 4).double(), shown, torch.zeros(2, 3).double(), ~gaps, torch.arange(2))
    q, p = dependence(batch, shown, prior), own.given(~gaps, torch.float64)
    assert_close(q.factor, p.factor, rtol=1e-8, atol=1e-10)
    assert own.given(torch.tensor([[True, False, True]]), torch.float64) is None


# Fitting


def simulated(n, seed=3, gaps=0.3):
    model, g = linear_case(), generator(seed)
    root = torch.linalg.cholesky(model.covariance)
    x = torch.randn(n, 3, generator=g, dtype=torch.float64) @ root.T
    z = torch.randn(n, 2, generator=g, dtype=torch.float64)
    y = torch.cat([x, z], 1) @ model.loadings.T
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
            total += float(MultivariateNormal(torch.zeros(len(o)).double(), joint[o][:, o]).log_prob(row[o]))
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
    factors = model.vae.covariate_posterior.dependence
    model.vae.covariate_posterior.dependence = None
    alone = within(completed_tables(model, table), table)
    model.vae.covariate_posterior.dependence = factors
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
