"""What averages say of columns that do not change: refitted one by one, against Bayes' theorem, and without a say."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import log_softmax, softmax
from scipy.stats import norm
from torch.testing import assert_close

import lacova
from lacova.covariates import static_regression
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.prior import FactorisedPrior
from lacova.covariates.static_regression import StaticRegression, regress_category, regress_number
from lacova.data.batches import Batches
from lacova.data.distributions import ConditionalPrior
from lacova.data.encoder import Table, TableEncoder
from lacova.data.masks import mask_at_random
from lacova.data.measurement_space import NO_LIMITS, MeasurementSpace
from tests.covariates import cases

SPACE = cases.SPACE
# A number, 3 levels, a count: 5 values, of which levels come last.
MIXED = MeasurementSpace(("gaussian", "categorical", "poisson"), (0, 3, 0), (NO_LIMITS,) * 3)


def numbers(patients, seed=0):
    """Averages that say nothing, x, and what the prior says of it, whose variances differ."""
    rng = np.random.default_rng(seed)
    h, var = rng.normal(size=(patients, 4)), rng.uniform(0.5, 2.0, patients)
    mean = rng.normal(size=patients)
    return h, mean + np.sqrt(var) * rng.normal(size=patients), mean, var


def law(h, mean, var, a, b, precision):
    v = 1.0 / (1.0 / var + precision)
    return norm(v * (mean / var + h @ a[:, 0] + b[0]), np.sqrt(v))


@pytest.mark.parametrize("seed", range(6))
def test_of_all_settings_the_one_that_foretells_each_patient_from_the_others_is_taken(monkeypatch, seed):
    monkeypatch.setattr(static_regression, "GAINS", np.array([0.0, 0.2, 0.5, 1.0]))
    monkeypatch.setattr(static_regression, "SHRINKAGE", np.array([0.01, 0.1, 0.3, 1.0]))
    h, x, mean, var = numbers(8, seed)
    h[:, 0] += x - mean

    def ridge(rows, precision, shrinkage):
        """Of what is weighted by what is not known: minimise Σ v(x/v − mean/var − aᵀh − b)² + shrinkage·a²."""
        v = 1.0 / (1.0 / var[rows] + precision)
        full = np.c_[h[rows], np.ones(len(v))]
        penalty = np.diag([shrinkage] * 4 + [0.0])
        found = np.linalg.solve((full.T * v) @ full + penalty, full.T @ (x[rows] - v / var[rows] * mean[rows]))
        return found[:4, None], found[4:]

    everyone, scores = np.arange(8), {}
    for precision in static_regression.GAINS / var.mean():
        root = np.sqrt(1.0 / (1.0 / var + precision))
        level = root / np.linalg.norm(root)
        inside = h * root[:, None]
        largest = np.linalg.svd(inside - np.outer(level, level @ inside))[1][0] ** 2
        for shrinkage in static_regression.SHRINKAGE * largest:
            told = 0.0
            for i in everyone:
                a, b = ridge(np.delete(everyone, i), precision, shrinkage)
                told += law(h[[i]], mean[[i]], var[[i]], a, b, precision).logpdf(x[i])[0]
            scores[precision, shrinkage] = told
    best = max(scores, key=scores.get)
    a, b, precision = regress_number(h, x, mean, var)
    if scores[best] < norm(mean, np.sqrt(var)).logpdf(x).sum():
        assert (abs(a).max(), b, precision) == (0.0, 0.0, 0.0)
        return
    assert precision == pytest.approx(best[0])
    expected = ridge(everyone, *best)
    np.testing.assert_allclose(a, expected[0], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(b, expected[1], rtol=1e-8)


def test_what_many_patients_say_of_a_number_is_bayes_theorem():
    """Two measurements of x, each with its noise: the posterior is known."""
    rng = np.random.default_rng(1)
    mean, var, noise = 0.5, 1.5, np.array([0.5, 2.0])
    x = mean + np.sqrt(var) * rng.normal(size=4000)
    h = x[:, None] + np.sqrt(noise) * rng.normal(size=(4000, 2))
    a, b, precision = regress_number(h, x, np.full(4000, mean), np.full(4000, var))
    assert precision == pytest.approx((1 / noise).sum(), rel=0.3)  # J is one of a grid
    exact = 1.0 / (1.0 / var + (1.0 / noise).sum())
    new = np.array([[1.0, -1.0], [2.0, 3.0], [0.0, 0.0]])
    found = law(new, np.full(3, mean), np.full(3, var), a, b, precision)
    np.testing.assert_allclose(found.mean(), exact * (mean / var + new @ (1.0 / noise)), atol=0.06)
    np.testing.assert_allclose(found.var(), exact, rtol=0.2)


def test_a_number_with_nothing_to_read_stays_with_its_prior():
    a, b, precision = regress_number(*numbers(300, seed=2))
    found = law(np.eye(4), np.zeros(4), np.ones(4), a, b, precision)
    assert abs(found.mean()).max() < 0.2
    assert found.var().min() > 0.9


def test_few_patients_and_many_measurements_give_intervals_that_hold():
    rng = np.random.default_rng(3)
    w = np.r_[0.8, 0.5, np.zeros(58)]

    def patients(n):
        h = rng.normal(size=(n, 60))
        return h, h @ w + 0.7 * rng.normal(size=n), np.zeros(n), np.full(n, w @ w + 0.49)

    inside = []
    for _ in range(10):
        found = regress_number(*patients(80))
        h, x, mean, var = patients(500)
        inside.append((abs(law(h, mean, var, *found).cdf(x) - 0.5) < 0.45).mean())
    assert 0.85 < np.mean(inside) < 0.95


def categories(patients, seed=0, effect=0.0):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(patients, 3))
    log_prior = log_softmax(rng.normal(size=(patients, 3)), axis=1)
    probability = softmax(log_prior + effect * h, axis=1)
    return h, (rng.random((patients, 1)) > probability.cumsum(1)[:, :2]).sum(1), log_prior


def test_a_category_is_read_by_the_penalised_likelihood(monkeypatch):
    monkeypatch.setattr(static_regression, "SHRINKAGE", np.array([0.02]))
    h, x, log_prior = categories(60, effect=1.5)
    a, b = regress_category(h, x, log_prior)
    wrong = softmax(log_prior + h @ a + b, axis=1) - np.eye(3)[x]
    shrinkage = 0.02 * (np.square(h).sum(1).mean() + 1.0)
    np.testing.assert_allclose(h.T @ wrong + shrinkage * a, 0.0, atol=1e-3)
    np.testing.assert_allclose(wrong.sum(0) + shrinkage * b, 0.0, atol=1e-3)


def test_what_many_patients_say_of_a_category_is_bayes_theorem():
    h, x, log_prior = categories(4000, seed=4, effect=1.0)
    a, b = regress_category(h, x, log_prior)
    new, _, before = categories(50, seed=5)
    np.testing.assert_allclose(softmax(before + new @ a + b, axis=1), softmax(before + new, axis=1), atol=0.05)


def test_a_category_with_nothing_to_read_stays_with_its_prior():
    a, b = regress_category(*categories(150, seed=6))
    assert abs(a).max() < 0.15
    assert abs(b).max() < 0.15


def test_shrinkage_is_that_of_held_out_patients():
    """60 measurements of 60 patients separate any two groups: without shrinkage, all would be sure."""
    rng = np.random.default_rng(7)
    h, new = rng.normal(size=(60, 60)), rng.normal(size=(500, 60))
    log_prior = np.log(np.full((60, 2), 0.5))
    a, b = regress_category(h, (h[:, 0] + rng.normal(size=60) > 0).astype(int), log_prior)
    probability = softmax(new @ a + b, axis=1)[:, 1]
    truth = (new[:, 0] + rng.normal(size=500) > 0).astype(float)
    assert np.square(probability - truth).mean() < 0.25  # that of who knows nothing


def mixed_batch():
    b = cases.batch((2, 3, 1), seed=3)
    g = torch.Generator().manual_seed(0)
    y = torch.stack(
        [torch.randn(6, generator=g), torch.randint(3, (6,), generator=g), torch.randint(9, (6,), generator=g)], 1
    )
    mask = torch.rand(6, 3, generator=g) > 0.3
    mask[1], mask[5] = torch.tensor([[False, False, False], [True, False, False]])
    b = replace(b, y=y.double() * mask, y_mask=mask)
    return replace(b, conditional_prior=ConditionalPrior(cases.distribution(b), b.x.new_zeros(6)))


def talkative(measurements=MIXED):
    g = torch.Generator().manual_seed(2)
    read = StaticRegression(SPACE, measurements, time=0).double()
    for name in ("centre", "spread", "weight", "bias", "precision", "looked"):
        buffer = getattr(read, name)
        buffer.copy_(torch.rand(buffer.shape, generator=g, dtype=torch.double) + 0.1)
    return read


def test_beliefs_are_the_prior_times_what_averages_say():
    b, read = mixed_batch(), talkative()
    prior = b.conditional_prior.distribution
    found, most = read(prior, b), 0.0
    for rows in ([0, 1], [2, 3, 4], [5]):
        seen = [[r for r in rows if b.y_mask[r, d]] for d in (0, 2, 1, 1, 1)]
        values = [b.y[:, 0], b.y[:, 2].log1p(), *((b.y[:, 1] == level).double() for level in range(3))]
        for q, levels in ((4, [None]), (1, range(3)), (2, range(2)), (3, range(2))):  # all but the time
            seen += [[r for r in rows if b.x_mask[r, q] and b.y_mask[r].any()]] * len(levels)
            values += [b.x[:, q] if level is None else (b.x[:, q] == level).double() for level in levels]
        parts = [((v - read.centre[f]) / read.spread[f]).clamp(-3.0, 3.0) for f, v in enumerate(values)]
        h = [sum(v[r] for r in seen[f]) / (len(seen[f]) + 0.5) for f, v in enumerate(parts)]
        most = max(most, *(v[r].abs().item() for f, v in enumerate(parts) for r in seen[f]))
        known = torch.tensor([len(at) / (len(at) + 0.5) for at in seen], dtype=torch.double)
        share = known @ read.weight**2 / read.looked
        said = torch.stack([torch.as_tensor(one).double() for one in h]) @ read.weight + share * read.bias
        for r in rows:
            var = 1.0 / (1.0 / prior.var[r, 4] + share[0] * read.precision[0])
            assert_close(found.var[r, 4], var)
            assert_close(found.mean[r, 4], var * (prior.mean[r, 4] / prior.var[r, 4] + said[0]))
            assert_close(found.log_prob[r, 3, :2], torch.log_softmax(prior.log_prob[r, 3, :2] + said[1:], 0))
    assert most == 3.0


def test_who_has_no_measurements_has_the_prior():
    b = mixed_batch()
    b, prior = replace(b, y_mask=torch.zeros_like(b.y_mask)), b.conditional_prior.distribution
    found = talkative()(prior, b)
    for name in ("mean", "var", "log_prob"):
        assert_close(getattr(found, name), getattr(prior, name))


def test_columns_that_change_are_left_to_the_networks():
    b = mixed_batch()
    torch.manual_seed(0)
    many = cases.batch((3,) * 30, 0.3, seed=9)
    marginal = FactorisedPrior.learn(SPACE, Table(many.y, many.y_mask, many.x, many.x_mask, many.patient, ()))
    q = AmortisedPosterior(
        SPACE, MIXED, marginal, "conditional", hidden=(16, 8), static_regression=talkative()
    ).double()
    distribution, read = q(b), q.static_regression(b.conditional_prior.distribution, b)
    static = torch.tensor(SPACE.static)
    for name in ("mean", "var", "log_prob"):
        assert_close(getattr(distribution, name)[:, static], getattr(read, name)[:, static])
        assert_close(getattr(read, name)[:, ~static], getattr(b.conditional_prior.distribution, name)[:, ~static])
    assert (distribution.mean - b.conditional_prior.distribution.mean)[:, 0].abs().min() > 1e-4
    (of_weights,) = torch.autograd.grad(
        distribution.mean[:, 4].sum() + distribution.log_prob[:, 3].sum(), q.inner.weight
    )
    assert of_weights.abs().max() == 0.0


def cohort(patients=120, seed=0):
    """4 visits each; sex moves half of the measurements, age two of them; both are missing in a third of patients."""
    rng = np.random.default_rng(seed)
    sex, age = rng.integers(0, 2, patients), rng.normal(50, 10, patients)
    own = rng.normal(size=(patients, 8)) + np.outer(sex - 0.5, [1.5] * 4 + [0.0] * 4)
    own += np.outer((age - 50) / 10, [0.0] * 4 + [1.0, 1.0, 0.0, 0.0])
    who = np.repeat(np.arange(patients), 4)
    names = [f"lab{d}" for d in range(8)]
    frame = pd.DataFrame(own[who] + 0.5 * rng.normal(size=(len(who), 8)), columns=names)
    frame = frame.mask(rng.random(frame.shape) < 0.2)
    frame["id"], frame["day"] = who, np.tile(np.arange(4.0), patients)
    frame["sex"], frame["age"] = np.array(["f", "m"])[sex[who]], age[who]
    schema = lacova.Schema(
        names, {"day": "continuous", "sex": "categorical", "age": "continuous"},
        instance="id", time="day", static=["sex", "age"],
    )  # fmt: skip
    return mask_at_random(frame, ["sex", "age"], 0.3, seed, instance="id", static=["sex", "age"]), frame, schema


def learnt(table, schema):
    encoder = TableEncoder.learn(schema, table)
    rows = encoder.encode(table)
    prior = LongitudinalPrior.learn(encoder.space, rows, 0, 0)
    read = StaticRegression(encoder.space, encoder.measurements, encoder.space.names.index("day"))
    read.learn(rows, prior, 0)
    return encoder, rows, prior, read


def test_what_is_learnt_holds_for_patients_who_were_not_there():
    table, _, schema = cohort(200)
    table.loc[table.index % 9 == 0, list(schema.measurements)] = np.nan
    encoder, rows, prior, read = learnt(table, schema)
    seen = [rows.y[rows.y_mask[:, d], d] for d in range(8)]
    beside = rows.x_mask & rows.y_mask.any(1, keepdim=True)
    seen += [rows.x[beside[:, 2], 2], *((rows.x[beside[:, 1], 1] == level).float() for level in range(2))]
    assert_close(read.centre, torch.stack([one.mean() for one in seen]))
    assert_close(read.spread, torch.stack([one.std(correction=0) for one in seen]))
    everyone = Batches(rows).batch(torch.arange(200))
    there = torch.cat([everyone.y_mask, beside[:, [2, 1, 1]]], 1).float()
    count = torch.zeros(200, 11).index_add(0, everyone.patient, there)
    assert_close((count / (count + 0.5)).mean(0) @ read.weight**2, read.looked)
    assert read.weight[8, 0] == 0.0  # age says nothing of itself, nor does sex
    assert read.weight[9:, 1:].abs().max() == 0.0
    first = everyone.first[everyone.x_mask[everyone.first, 2]]
    hidden = prior.condition(replace(rows, x_mask=rows.x_mask & (torch.arange(3) != 2))).distribution.take(first)
    counts = torch.tensor([1.0] * 8 + [0.0] + [0.3] * 2)  # measurements, age, sex
    h = read._averages(everyone)[0][everyone.patient[first]] * counts
    a, _, precision = regress_number(
        *(v.double().numpy() for v in (h, rows.x[first, 2], hidden.mean[:, 2], hidden.var[:, 2]))
    )
    assert_close(read.weight[:, 0], counts * torch.as_tensor(a[:, 0]).float(), rtol=1e-3, atol=1e-4)
    assert read.precision[0].item() == pytest.approx(precision)

    new, truth, _ = cohort(300, seed=1)
    new = encoder.encode(new.assign(age=np.nan))
    batch = Batches(replace(new, conditional_prior=prior.condition(new))).batch(torch.arange(300))
    before, after = batch.conditional_prior.distribution, read(batch.conditional_prior.distribution, batch)
    x = encoder.encode(truth).x[batch.first, 2]
    off = ((x - after.mean[batch.first, 2]) / after.var[batch.first, 2].sqrt()).square()
    assert off.mean().item() == pytest.approx(1.0, abs=0.2)
    explained = (
        1.0 - (x - after.mean[batch.first, 2]).square().mean() / (x - before.mean[batch.first, 2]).square().mean()
    )
    assert explained > 0.5  # of two thirds: two levels of variance 1 beside the age, and little noise


def test_covariates_that_change_tell_what_the_law_of_visits_leaves_out():
    """Who drinks at more visits is older: the law of covariates, which is one of visits, takes the visits' average."""
    rng = np.random.default_rng(0)

    def study(patients):
        who, age = np.repeat(np.arange(patients), 6), rng.normal(50, 10, patients)
        frame = pd.DataFrame({"id": who, "day": np.tile(np.arange(6.0), patients), "age": age[who]})
        frame["drinks"] = np.where(rng.random(len(who)) < 1.0 / (1.0 + np.exp((50 - age[who]) / 5)), "yes", "no")
        return frame.assign(lab=rng.normal(size=len(who)))

    kinds = {"day": "continuous", "age": "continuous", "drinks": "categorical"}
    schema = lacova.Schema(["lab"], kinds, instance="id", time="day", static=["age"])
    table, truth = study(300), study(300)
    encoder, _, prior, read = learnt(table, schema)
    new = encoder.encode(truth.assign(age=np.nan))
    batch = Batches(replace(new, conditional_prior=prior.condition(new))).batch(torch.arange(300))
    x = encoder.encode(truth).x[batch.first, 1]
    after = read(batch.conditional_prior.distribution, batch)
    off = [
        (x - distribution.mean[batch.first, 1]).square().mean()
        for distribution in (batch.conditional_prior.distribution, after)
    ]
    assert off[1] < 0.85 * off[0], off
    inside = (x - after.mean[batch.first, 1]).abs() < 1.645 * after.var[batch.first, 1].sqrt()
    assert 0.85 < inside.double().mean() < 0.95


def test_units_do_not_matter():
    table, _, schema = cohort()
    table["lab3"] = 1e5 * table["lab3"] + 7e5
    table["lab5"] *= 1e-4
    found = []
    for scaling in ("standard", "none"):
        encoder = TableEncoder.learn(schema, table, scaling)
        rows = encoder.encode(table, dtype=torch.float64)
        prior = LongitudinalPrior.learn(encoder.space, rows, 0, 0)
        read = StaticRegression(encoder.space, encoder.measurements, 0).double()
        read.learn(rows, prior, 0)
        batch = Batches(replace(rows, conditional_prior=prior.condition(rows))).batch(torch.arange(120))
        found.append(read(batch.conditional_prior.distribution, batch))
    for name in ("mean", "var", "log_prob"):
        assert_close(getattr(found[0], name), getattr(found[1], name), rtol=1e-3, atol=1e-3)


def test_patients_who_do_not_show_a_column_are_not_learnt_from():
    encoder, rows, prior, one = learnt(*cohort()[::2])
    two = StaticRegression(encoder.space, encoder.measurements, 0)
    two.learn(replace(rows, x=torch.where(rows.x_mask, rows.x, 7.0)), prior, 0)
    for name, buffer in one.named_buffers():
        assert_close(buffer, getattr(two, name))
    assert one.weight.abs().max() > 0.1


def test_of_fewer_than_twenty_patients_nothing_is_read():
    table, _, schema = cohort()
    table.loc[table["id"] >= 19, ["sex", "age"]] = None
    table["sex"], table["age"] = table["sex"].astype(object), table["age"].astype(float)
    _, rows, prior, read = learnt(table, schema)
    batch = Batches(replace(rows, conditional_prior=prior.condition(rows))).batch(torch.arange(120))
    assert_close(read(batch.conditional_prior.distribution, batch).mean, batch.conditional_prior.distribution.mean)
    assert_close(
        read(batch.conditional_prior.distribution, batch).log_prob, batch.conditional_prior.distribution.log_prob
    )


@pytest.mark.parametrize("covariates", ["joint", "factorised"])
def test_sex_and_age_of_patients_with_levels_are_read_from_their_measurements(covariates):
    table, _, schema = cohort()
    model = lacova.GPPriorVAE(schema, latent_dim=2, networks=lacova.Dense((16,), (16,)), covariates=covariates)
    model.fit(table, max_epochs=2, progress=False)
    new, truth, _ = cohort(seed=1)
    new["sex"], new["age"] = pd.Series([None] * len(new), dtype=object), np.nan
    encoder, vae = model._fitted()
    assert {encoder.space.names[q] for q in vae.covariate_posterior.static_regression.of_x} == {
        "sex",
        "age",
    }  # not the day
    found = model.impute(new)
    first = ~new["id"].duplicated()
    assert (found["sex"] == truth["sex"])[first].mean() > 0.85
    assert np.corrcoef(found["age"][first], truth["age"][first])[0, 1] > 0.6


def test_what_is_stated_of_a_covariate_counts_beside_what_is_read():
    """Who is stated to be old is old, unless measurements are sure of something else."""
    table, _, schema = cohort()
    settings = {"latent_dim": 2, "networks": lacova.Dense((16,), (16,)), "covariates": "factorised"}
    new = cohort(seed=1)[0].assign(age=np.nan)
    found = []
    for stated in ({}, {"age": (80.0, 5.0)}):
        model = lacova.GPPriorVAE(schema, covariate_prior=stated, **settings).fit(table, max_epochs=1, progress=False)
        found.append(model.impute(new)["age"].mean())
    assert found[0] == pytest.approx(50.0, abs=5.0)
    assert 60.0 < found[1] < 80.0


@pytest.mark.parametrize("settings", [{"patient_effects": False}, {"covariates": "paper"}, {"covariates": "oracle"}])
def test_models_without_levels_or_without_a_look_at_y_read_nothing(settings):
    _, complete, schema = cohort(20)
    model = lacova.GPPriorVAE(schema, latent_dim=2, networks=lacova.Dense((16,), (16,)), **settings)
    model.fit(complete, max_epochs=1, progress=False)
    assert model._fitted()[1].covariate_posterior.static_regression is None
