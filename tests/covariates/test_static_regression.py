"""Static regression: against refits without each patient, Bayes' theorem, and data without any information."""

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
from lacova.covariates.static_regression import StaticRegression, _mask_as_elsewhere, regress_category, regress_number
from lacova.data.batches import Batches
from lacova.data.masks import mask_at_random
from lacova.data.measurement_space import NO_LIMITS, MeasurementSpace
from lacova.data.table_encoder import TableEncoder
from tests.covariates import cases

SPACE = cases.SPACE
# A number, 3 levels, a count: 5 features, levels last.
MIXED = MeasurementSpace(("gaussian", "categorical", "poisson"), (0, 3, 0), (NO_LIMITS,) * 3)


def numbers(patients, seed=0):
    """Averages h without information about x, values x, and mean and variance of their prior."""
    rng = np.random.default_rng(seed)
    h, var = rng.normal(size=(patients, 4)), rng.uniform(0.5, 2.0, patients)
    mean = rng.normal(size=patients)
    return h, mean + np.sqrt(var) * rng.normal(size=patients), mean, var


def posterior(h, mean, var, a, b, precision):
    """N(v·(mean/var + aᵀh + b), v) with v = 1/(1/var + J)."""
    v = 1.0 / (1.0 / var + precision)
    return norm(v * (mean / var + h @ a[:, 0] + b[0]), np.sqrt(v))


@pytest.mark.parametrize("seed", range(6))
def test_the_setting_with_the_best_leave_one_out_density_is_chosen(monkeypatch, seed):
    monkeypatch.setattr(static_regression, "PRECISION_GRID", np.array([0.0, 0.2, 0.5, 1.0]))
    monkeypatch.setattr(static_regression, "SHRINKAGE_GRID", np.array([0.01, 0.1, 0.3, 1.0]))
    h, x, mean, var = numbers(8, seed)
    h[:, 0] += x - mean

    def ridge(rows, precision, shrinkage):
        """Minimise Σ v(x/v − mean/var − aᵀh − b)² + shrinkage·a², weighted by the posterior variance v."""
        v = 1.0 / (1.0 / var[rows] + precision)
        full = np.c_[h[rows], np.ones(len(v))]
        penalty = np.diag([shrinkage] * 4 + [0.0])
        right = full.T @ (x[rows] - v / var[rows] * mean[rows])
        coefficients = np.linalg.solve((full.T * v) @ full + penalty, right)
        return coefficients[:4, None], coefficients[4:]

    patients, scores = np.arange(8), {}
    for precision in static_regression.PRECISION_GRID / var.mean():
        root = np.sqrt(1.0 / (1.0 / var + precision))
        intercept = root / np.linalg.norm(root)
        weighted = h * root[:, None]
        largest = np.linalg.svd(weighted - np.outer(intercept, intercept @ weighted))[1][0] ** 2
        for shrinkage in static_regression.SHRINKAGE_GRID * largest:
            score = 0.0
            for i in patients:
                a, b = ridge(np.delete(patients, i), precision, shrinkage)
                score += posterior(h[[i]], mean[[i]], var[[i]], a, b, precision).logpdf(x[i])[0]
            scores[precision, shrinkage] = score
    best = max(scores, key=scores.get)
    a, b, precision = regress_number(h, x, mean, var)
    if scores[best] < norm(mean, np.sqrt(var)).logpdf(x).sum():
        assert (abs(a).max(), b, precision) == (0.0, 0.0, 0.0)
        return
    assert precision == pytest.approx(best[0])
    expected = ridge(patients, *best)
    np.testing.assert_allclose(a, expected[0], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(b, expected[1], rtol=1e-8)


def test_the_regression_of_a_number_approaches_bayes_theorem_with_many_patients():
    """Two measurements of x with independent noise: the posterior is known."""
    rng = np.random.default_rng(1)
    mean, var, noise = 0.5, 1.5, np.array([0.5, 2.0])
    x = mean + np.sqrt(var) * rng.normal(size=4000)
    h = x[:, None] + np.sqrt(noise) * rng.normal(size=(4000, 2))
    a, b, precision = regress_number(h, x, np.full(4000, mean), np.full(4000, var))
    assert precision == pytest.approx((1 / noise).sum(), rel=0.3)  # J is on a grid
    exact = 1.0 / (1.0 / var + (1.0 / noise).sum())
    new = np.array([[1.0, -1.0], [2.0, 3.0], [0.0, 0.0]])
    q = posterior(new, np.full(3, mean), np.full(3, var), a, b, precision)
    np.testing.assert_allclose(q.mean(), exact * (mean / var + new @ (1.0 / noise)), atol=0.06)
    np.testing.assert_allclose(q.var(), exact, rtol=0.2)


def test_a_number_without_informative_measurements_keeps_its_prior():
    a, b, precision = regress_number(*numbers(300, seed=2))
    q = posterior(np.eye(4), np.zeros(4), np.ones(4), a, b, precision)
    assert abs(q.mean()).max() < 0.2
    assert q.var().min() > 0.9


def test_few_patients_and_many_measurements_give_calibrated_intervals():
    rng = np.random.default_rng(3)
    w = np.r_[0.8, 0.5, np.zeros(58)]

    def patients(n):
        h = rng.normal(size=(n, 60))
        return h, h @ w + 0.7 * rng.normal(size=n), np.zeros(n), np.full(n, w @ w + 0.49)

    inside = []
    for _ in range(10):
        fit = regress_number(*patients(80))
        h, x, mean, var = patients(500)
        inside.append((abs(posterior(h, mean, var, *fit).cdf(x) - 0.5) < 0.45).mean())
    assert 0.85 < np.mean(inside) < 0.95


def categories(patients, seed=0, effect=0.0):
    """Averages h, levels x with log odds of `effect` times h, and their log prior."""
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(patients, 3))
    log_prior = log_softmax(rng.normal(size=(patients, 3)), axis=1)
    probability = softmax(log_prior + effect * h, axis=1)
    return h, (rng.random((patients, 1)) > probability.cumsum(1)[:, :2]).sum(1), log_prior


def test_the_regression_of_a_category_maximises_the_penalised_likelihood(monkeypatch):
    monkeypatch.setattr(static_regression, "SHRINKAGE_GRID", np.array([0.02]))
    h, x, log_prior = categories(60, effect=1.5)
    a, b = regress_category(h, x, log_prior)
    residual = softmax(log_prior + h @ a + b, axis=1) - np.eye(3)[x]
    shrinkage = 0.02 * (np.square(h).sum(1).mean() + 1.0)
    np.testing.assert_allclose(h.T @ residual + shrinkage * a, 0.0, atol=1e-3)
    np.testing.assert_allclose(residual.sum(0) + shrinkage * b, 0.0, atol=1e-3)


def test_the_regression_of_a_category_approaches_bayes_theorem_with_many_patients():
    h, x, log_prior = categories(4000, seed=4, effect=1.0)
    a, b = regress_category(h, x, log_prior)
    new, _, before = categories(50, seed=5)
    np.testing.assert_allclose(softmax(before + new @ a + b, axis=1), softmax(before + new, axis=1), atol=0.05)


def test_a_category_without_informative_measurements_keeps_its_prior():
    a, b = regress_category(*categories(150, seed=6))
    assert abs(a).max() < 0.15
    assert abs(b).max() < 0.15


def test_shrinkage_is_chosen_by_held_out_patients():
    """60 measurements of 60 patients separate any two groups: without shrinkage, all probabilities would be 0 or 1."""
    rng = np.random.default_rng(7)
    h, new = rng.normal(size=(60, 60)), rng.normal(size=(500, 60))
    log_prior = np.log(np.full((60, 2), 0.5))
    a, b = regress_category(h, (h[:, 0] + rng.normal(size=60) > 0).astype(int), log_prior)
    probability = softmax(new @ a + b, axis=1)[:, 1]
    truth = (new[:, 0] + rng.normal(size=500) > 0).astype(float)
    assert np.square(probability - truth).mean() < 0.25  # the score of a constant 0.5


def mixed_batch():
    """Three patients with gaps in mixed measurements, and a conditional prior."""
    b = cases.batch((2, 3, 1), seed=3)
    g = cases.generator(0)
    y = torch.stack(
        [torch.randn(6, generator=g), torch.randint(3, (6,), generator=g), torch.randint(9, (6,), generator=g)], 1
    )
    mask = torch.rand(6, 3, generator=g) > 0.3
    mask[1], mask[5] = torch.tensor([[False, False, False], [True, False, False]])
    b = replace(b, y=y.double() * mask, y_mask=mask)
    return cases.with_prior(b)


def random_regression(measurements=MIXED):
    """A regression with random coefficients."""
    g = cases.generator(2)
    regression = StaticRegression(SPACE, measurements, time=0).double()
    for name in ("centre", "spread", "weight", "bias", "precision", "looked"):
        buffer = getattr(regression, name)
        buffer.copy_(torch.rand(buffer.shape, generator=g, dtype=torch.double) + 0.1)
    return regression


def test_the_posterior_is_the_prior_times_the_likelihood_of_the_averages():
    b, regression = mixed_batch(), random_regression()
    prior = b.conditional_prior.distribution
    posterior, largest = regression(prior, b), 0.0
    for rows in ([0, 1], [2, 3, 4], [5]):
        observed = [[r for r in rows if b.y_mask[r, d]] for d in (0, 2, 1, 1, 1)]
        values = [b.y[:, 0], b.y[:, 2].log1p(), *((b.y[:, 1] == level).double() for level in range(3))]
        for q, levels in ((4, [None]), (1, range(3)), (2, range(2)), (3, range(2))):  # all but the time
            observed += [[r for r in rows if b.x_mask[r, q] and b.y_mask[r].any()]] * len(levels)
            values += [b.x[:, q] if level is None else (b.x[:, q] == level).double() for level in levels]
        scaled = [((v - regression.centre[f]) / regression.spread[f]).clamp(-3.0, 3.0) for f, v in enumerate(values)]
        h = [sum(v[r] for r in observed[f]) / (len(observed[f]) + 0.5) for f, v in enumerate(scaled)]
        largest = max(largest, *(v[r].abs().item() for f, v in enumerate(scaled) for r in observed[f]))
        share = torch.tensor([len(at) / (len(at) + 0.5) for at in observed], dtype=torch.double)
        omega = share @ regression.weight**2 / regression.looked
        h = torch.stack([torch.as_tensor(average).double() for average in h])
        logits = h @ regression.weight + omega * regression.bias
        for r in rows:
            var = 1.0 / (1.0 / prior.var[r, 4] + omega[0] * regression.precision[0])
            assert_close(posterior.var[r, 4], var)
            assert_close(posterior.mean[r, 4], var * (prior.mean[r, 4] / prior.var[r, 4] + logits[0]))
            assert_close(posterior.log_prob[r, 3, :2], torch.log_softmax(prior.log_prob[r, 3, :2] + logits[1:], 0))
    assert largest == 3.0


def test_a_patient_without_measurements_keeps_the_prior():
    b = mixed_batch()
    b, prior = replace(b, y_mask=torch.zeros_like(b.y_mask)), b.conditional_prior.distribution
    for posterior, expected in zip(cases.parts(random_regression()(prior, b)), cases.parts(prior), strict=True):
        assert_close(posterior, expected)


def test_columns_that_vary_between_visits_are_left_to_the_networks():
    b = mixed_batch()
    torch.manual_seed(0)
    q = AmortisedPosterior(
        SPACE, MIXED, cases.marginal(), "conditional", hidden=(16, 8), static_regression=random_regression()
    ).double()
    prior = b.conditional_prior.distribution
    distribution, static = q(b), torch.tensor(SPACE.static)
    tensors = zip(*(cases.parts(d) for d in (distribution, q.static_regression(prior, b), prior)), strict=True)
    for combined, regression, start in tensors:
        assert_close(combined[:, static], regression[:, static])
        assert_close(regression[:, ~static], start[:, ~static])
    assert (distribution.mean - prior.mean)[:, 0].abs().min() > 1e-4
    static_outputs = distribution.mean[:, 4].sum() + distribution.log_prob[:, 3].sum()
    (gradient,) = torch.autograd.grad(static_outputs, q.inner.weight)
    assert gradient.abs().max() == 0.0


def cohort(patients=120, seed=0):
    """4 visits each; sex shifts half of the measurements and age two of them; 30% of both are missing, by patient."""
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


def learn(table, schema):
    """Encoder, encoded rows, prior and regression of a table."""
    encoder = TableEncoder.learn(schema, table)
    rows = encoder.encode(table)
    prior = LongitudinalPrior.learn(encoder.space, rows, 0, 0)
    regression = StaticRegression(encoder.space, encoder.measurements, encoder.space.names.index("day"))
    regression.learn(rows, prior, 0)
    return encoder, rows, prior, regression


def test_the_regression_generalises_to_new_patients():
    table, _, schema = cohort(200)
    table.loc[table.index % 9 == 0, list(schema.measurements)] = np.nan
    encoder, rows, prior, regression = learn(table, schema)
    features = [rows.y[rows.y_mask[:, d], d] for d in range(8)]
    x_observed = rows.x_mask & rows.y_mask.any(1, keepdim=True)
    features += [rows.x[x_observed[:, 2], 2]]
    features += [(rows.x[x_observed[:, 1], 1] == level).float() for level in range(2)]
    assert_close(regression.centre, torch.stack([feature.mean() for feature in features]))
    assert_close(regression.spread, torch.stack([feature.std(correction=0) for feature in features]))
    draws = torch.Generator().manual_seed(0)
    everyone = Batches(rows).batch(torch.randperm(200, generator=draws))
    without_age, without_sex = (
        replace(everyone, x_mask=_mask_as_elsewhere(everyone, column, draws)) for column in (2, 1)
    )  # fmt: skip
    for shown, outputs in ((without_age, slice(0, 1)), (without_sex, slice(1, 3))):
        observed = torch.cat([shown.y_mask, (shown.x_mask & shown.y_mask.any(1, keepdim=True))[:, [2, 1, 1]]], 1)
        count = torch.zeros(200, 11).index_add(0, shown.patient, observed.float())
        assert_close(((count / (count + 0.5)).mean(0) @ regression.weight**2)[outputs], regression.looked[outputs])
    assert regression.weight[8, 0] == 0.0  # neither age nor sex predicts itself
    assert regression.weight[9:, 1:].abs().max() == 0.0
    first = everyone.first[everyone.x_mask[everyone.first, 2]]
    masked = replace(rows, **{name: getattr(without_age, name) for name in ("y", "y_mask", "x", "x_mask", "patient")})
    p = prior.condition(masked).distribution.take(first)
    scale = torch.tensor([1.0] * 8 + [0.0] + [0.3] * 2)  # measurements, age, sex
    h = regression._averages(without_age)[0][everyone.patient[first]] * scale
    x = everyone.x[first, 2]
    a, _, precision = regress_number(*(v.double().numpy() for v in (h, x, p.mean[:, 2], p.var[:, 2])))
    assert_close(regression.weight[:, 0], scale * torch.as_tensor(a[:, 0]).float(), rtol=1e-3, atol=1e-4)
    assert regression.precision[0].item() == pytest.approx(precision)

    new, truth, _ = cohort(300, seed=1)
    new = encoder.encode(new.assign(age=np.nan))
    batch = cases.conditioned(new, prior)
    before, after = batch.conditional_prior.distribution, regression(batch.conditional_prior.distribution, batch)
    x = encoder.encode(truth).x[batch.first, 2]
    error = x - after.mean[batch.first, 2]
    assert (error.square() / after.var[batch.first, 2]).mean().item() == pytest.approx(1.0, abs=0.2)
    explained = 1.0 - error.square().mean() / (x - before.mean[batch.first, 2]).square().mean()
    # Of at most two thirds: two measurements with age and a patient effect of variance 1 each, and little noise.
    assert explained > 0.5


def test_covariates_that_vary_between_visits_add_to_the_prior_of_single_visits():
    """Older patients drink at more visits. The prior averages over single visits; the regression adds their number."""
    rng = np.random.default_rng(0)

    def study(patients):
        who, age = np.repeat(np.arange(patients), 6), rng.normal(50, 10, patients)
        frame = pd.DataFrame({"id": who, "day": np.tile(np.arange(6.0), patients), "age": age[who]})
        frame["drinks"] = np.where(rng.random(len(who)) < 1.0 / (1.0 + np.exp((50 - age[who]) / 5)), "yes", "no")
        return frame.assign(lab=rng.normal(size=len(who)))

    kinds = {"day": "continuous", "age": "continuous", "drinks": "categorical"}
    schema = lacova.Schema(["lab"], kinds, instance="id", time="day", static=["age"])
    table, truth = study(300), study(300)
    encoder, _, prior, regression = learn(table, schema)
    new = encoder.encode(truth.assign(age=np.nan))
    batch = cases.conditioned(new, prior)
    x = encoder.encode(truth).x[batch.first, 1]
    after = regression(batch.conditional_prior.distribution, batch)
    before = batch.conditional_prior.distribution
    error = [(x - distribution.mean[batch.first, 1]).square().mean() for distribution in (before, after)]
    assert error[1] < 0.85 * error[0], error
    inside = (x - after.mean[batch.first, 1]).abs() < 1.645 * after.var[batch.first, 1].sqrt()
    assert 0.85 < inside.double().mean() < 0.95


def test_units_do_not_matter():
    table, _, schema = cohort()
    table["lab3"] = 1e5 * table["lab3"] + 7e5
    table["lab5"] *= 1e-4
    posteriors = []
    for scaling in ("standard", "none"):
        encoder = TableEncoder.learn(schema, table, scaling)
        rows = encoder.encode(table, dtype=torch.float64)
        prior = LongitudinalPrior.learn(encoder.space, rows, 0, 0)
        regression = StaticRegression(encoder.space, encoder.measurements, 0).double()
        regression.learn(rows, prior, 0)
        batch = cases.conditioned(rows, prior)
        posteriors.append(regression(batch.conditional_prior.distribution, batch))
    for one, other in zip(*map(cases.parts, posteriors), strict=True):
        assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_patients_with_a_missing_value_have_no_influence():
    encoder, rows, prior, regression = learn(*cohort()[::2])
    other = StaticRegression(encoder.space, encoder.measurements, 0)
    other.learn(replace(rows, x=torch.where(rows.x_mask, rows.x, 7.0)), prior, 0)
    for name, buffer in regression.named_buffers():
        assert_close(buffer, getattr(other, name))
    assert regression.weight.abs().max() > 0.1


def test_fewer_than_twenty_patients_give_the_prior():
    table, _, schema = cohort()
    table.loc[table["id"] >= 19, ["sex", "age"]] = None
    table["sex"], table["age"] = table["sex"].astype(object), table["age"].astype(float)
    _, rows, prior, regression = learn(table, schema)
    batch = cases.conditioned(rows, prior)
    p = batch.conditional_prior.distribution
    posterior = regression(p, batch)
    assert_close(posterior.mean, p.mean)
    assert_close(posterior.log_prob, p.log_prob)


@pytest.mark.parametrize("covariates", ["joint", "factorised"])
def test_a_model_with_random_effects_imputes_sex_and_age_from_measurements(covariates):
    table, _, schema = cohort()
    model = lacova.GPPriorVAE(schema, latent_dim=2, networks=lacova.Dense((16,), (16,)), covariates=covariates)
    model.fit(table, max_epochs=2, progress=False)
    new, truth, _ = cohort(seed=1)
    new["sex"], new["age"] = pd.Series([None] * len(new), dtype=object), np.nan
    encoder, vae = model.fitted()
    regression = vae.covariate_posterior.static_regression
    assert {encoder.space.names[q] for q in regression.of_x} == {"sex", "age"}  # not the day
    imputed = model.impute(new)
    first = ~new["id"].duplicated()
    assert (imputed["sex"] == truth["sex"])[first].mean() > 0.85
    assert np.corrcoef(imputed["age"][first], truth["age"][first])[0, 1] > 0.6


def test_a_stated_prior_is_combined_with_the_regression():
    """A stated prior of a high age raises the imputed ages, as far as the measurements allow."""
    table, _, schema = cohort()
    settings = {"latent_dim": 2, "networks": lacova.Dense((16,), (16,)), "covariates": "factorised"}
    new = cohort(seed=1)[0].assign(age=np.nan)
    ages = []
    for stated in ({}, {"age": (80.0, 5.0)}):
        model = lacova.GPPriorVAE(schema, covariate_prior=stated, **settings).fit(table, max_epochs=1, progress=False)
        ages.append(model.impute(new)["age"].mean())
    assert ages[0] == pytest.approx(50.0, abs=5.0)
    assert 60.0 < ages[1] < 80.0


@pytest.mark.parametrize("settings", [{"patient_effects": False}, {"covariates": "paper"}, {"covariates": "oracle"}])
def test_models_without_random_effects_or_without_y_in_the_posterior_have_no_regression(settings):
    _, complete, schema = cohort(20)
    model = lacova.GPPriorVAE(schema, latent_dim=2, networks=lacova.Dense((16,), (16,)), **settings)
    model.fit(complete, max_epochs=1, progress=False)
    assert model.fitted()[1].covariate_posterior.static_regression is None


def test_the_gaps_of_those_who_lack_a_column_are_drawn_for_those_who_have_it():
    """Of 300 patients a third lacks sex and age together, and another third only sex: so do the others, at random."""
    table, _, schema = cohort(300)
    table.loc[table["id"] % 3 == 0, ["sex", "age"]] = None
    table.loc[table["id"] % 3 == 1, "sex"] = None
    rows = TableEncoder.learn(schema, table).encode(table)
    batch = Batches(rows).batch(torch.arange(300))
    mask = _mask_as_elsewhere(batch, 1, torch.Generator().manual_seed(0))  # sex
    assert not mask[:, 1].any()
    kept = (mask[:, 2] & batch.x_mask[:, 2]).float()[batch.patient % 3 == 2].mean() / 0.7
    assert 0.25 < kept < 0.5  # half of those who lack sex have age, but for the 30% that is missing at random
    assert torch.equal(mask[:, 0], batch.x_mask[:, 0])


def test_numbers_that_are_missing_together_are_told_from_the_measurements():
    """s1 is s0 with noise, and missing where s0 is: y tells of s0, and so of s1."""
    rng, patients = np.random.default_rng(2), 200
    s = rng.multivariate_normal([0, 0], [[1, 0.95], [0.95, 1]], patients)
    table = pd.DataFrame({"id": np.repeat(np.arange(patients), 4), "day": np.tile(np.arange(4.0), patients)})
    table["y"] = (s[:, :1] + 0.5 * rng.standard_normal((patients, 4))).ravel()
    table["s0"], table["s1"] = np.repeat(s[:, 0], 4), np.repeat(s[:, 1], 4)
    table.loc[table["id"] % 3 == 0, ["s0", "s1"]] = np.nan
    covariates = dict.fromkeys(("day", "s0", "s1"), "continuous")
    schema = lacova.Schema(["y"], covariates, instance="id", time="day", static=["s0", "s1"])
    _, rows, prior, regression = learn(table, schema)
    batch = Batches(replace(rows, conditional_prior=prior.condition(rows))).batch(torch.arange(0, patients, 3))
    q = regression(batch.conditional_prior.distribution, batch)
    told = np.corrcoef(q.mean[batch.first, 2].numpy(), s[::3, 1])[0, 1]
    assert told > 0.8  # .92 in the linear model; without the gaps of others .3
