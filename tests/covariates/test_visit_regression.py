"""Regression of numbers on a patient's visits: its features, its examples, and what q and members make of it."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

import lacova
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.masked_loss import REGRESSED_WEIGHT, masked_log_prob
from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.visit_regression import VisitRegression
from lacova.data.measurement_space import NO_LIMITS, MeasurementSpace
from lacova.data.table_encoder import TableEncoder
from lacova.training.members import train_member
from tests.covariates import cases

# time, number, 3 levels, static 2 levels, number
SPACE = cases.CovariateSpace(("t", "a", "c3", "s2", "b"), (0, 0, 3, 2, 0), (False, False, False, True, False))
MIXED = MeasurementSpace(("gaussian", "categorical"), (0, 3), (NO_LIMITS,) * 2)  # 4 features, levels last


def study(patients=150, seed=0, lost=0.5):
    """y = x + (patient) + noise at 4 visits, x half of the patient; x is missing at random at a share of the visits."""
    rng = np.random.default_rng(seed)
    x = np.sqrt(0.5) * (rng.normal(size=(patients, 1)) + rng.normal(size=(patients, 4)))
    y = x + 0.7 * rng.normal(size=(patients, 1)) + 0.5 * rng.normal(size=x.shape)
    frame = pd.DataFrame({"id": np.repeat(np.arange(patients), 4), "day": np.tile(np.arange(4.0), patients)})
    frame = frame.assign(y=y.ravel(), x=x.ravel())
    schema = lacova.Schema(["y"], {"day": "continuous", "x": "continuous"}, instance="id", time="day")
    return frame.assign(x=frame["x"].mask(rng.random(len(frame)) < lost)), frame, schema


def learnt(table, schema):
    """Encoder, rows, prior and a regression fitted to them."""
    encoder = TableEncoder.learn(schema, table)
    rows = encoder.encode(table)
    prior = LongitudinalPrior.learn(encoder.space, rows, 0, 0)
    regression = VisitRegression(encoder.space, encoder.measurements, 0)
    regression.learn(rows, prior, 0)
    return encoder, rows, prior, regression


def mixed_batch():
    """Three patients with gaps in mixed measurements, and a conditional prior."""
    b = cases.batch((2, 3, 1), seed=3, space=SPACE)
    g = cases.generator(0)
    y = torch.stack([torch.randn(6, generator=g), torch.randint(3, (6,), generator=g)], 1)
    mask = torch.rand(6, 2, generator=g) > 0.3
    mask[1] = False
    return replace(b, y=y.double() * mask, y_mask=mask)


def test_features_are_the_visit_and_averages_over_the_other_visits():
    b, regression = mixed_batch(), VisitRegression(SPACE, MIXED, 0).double()
    regression.spread.fill_(0.5)
    h, share = regression.features(b)
    assert regression.numbers == [1, 4]  # neither the time nor what does not vary
    values = [b.y[:, 0], *((b.y[:, 1] == level).double() for level in range(3))]
    seen = [b.y_mask[:, 0], *[b.y_mask[:, 1]] * 3]
    for at, q in enumerate(SPACE.owners):
        values.append(SPACE.values(b.x)[:, at])
        seen.append(b.x_mask[:, q] & b.y_mask.any(1))
    width = len(values)
    assert h.shape == (6, 2 * width)
    for f, (value, mask) in enumerate(zip(values, seen, strict=True)):
        scaled = (value / 0.5).clamp(-3.0, 3.0)
        for i in range(6):
            others = [j for j in range(6) if j != i and b.patient[j] == b.patient[i] and mask[j]]
            assert_close(h[i, f], scaled[i] if mask[i] else torch.zeros(()).double())
            assert share[i, f] == float(mask[i])
            average = sum(scaled[j] for j in others) / (len(others) + 0.5)
            assert_close(h[i, width + f], torch.as_tensor(average).double())
            assert_close(share[i, width + f], torch.tensor(len(others) / (len(others) + 0.5)).double())


def test_each_observed_entry_is_masked_in_one_half():
    table, _, schema = study(40)
    table.loc[table.id < 10, "x"] = np.nan  # a quarter has no value at all
    _, rows, _, regression = learnt(table, schema)
    halves = regression.examples.halves
    masked = [int((~half.x_mask).sum()) for half in halves]
    assert sum(masked) == int(rows.x_mask.sum()) + 2 * int((~rows.x_mask).sum())
    whole, known = 0, halves[0].x_mask | halves[1].x_mask
    for half in halves:
        shown, all_known = (
            torch.zeros(40).index_add(0, half.patient, mask[:, 1].float()) for mask in (half.x_mask, known)
        )
        whole += int(((shown == 0) & (all_known >= 3)).sum())
    assert whole >= 3  # as many lose all values as have none
    column = regression.examples.columns[1]
    assert len(column.rows) == int(rows.x_mask[:, 1].sum())
    shown = torch.cat([half.x_mask[:, 1] for half in halves])[column.rows]
    assert not shown.any()


def test_it_foretells_new_patients_with_calibrated_intervals():
    table, _, schema = study()
    encoder, _, prior, regression = learnt(table, schema)
    gappy, truth, _ = study(300, seed=1)
    new = encoder.encode(gappy)
    batch = cases.conditioned(new, prior)
    before = batch.conditional_prior.distribution
    after, gap = regression(before, batch), ~batch.x_mask[:, 1]
    assert after.paths is before.paths
    x = encoder.encode(truth).x[gap, 1]
    error, alone = x - after.mean[gap, 1], x - before.mean[gap, 1]
    assert error.square().mean() < 0.7 * alone.square().mean()
    inside = (error.abs() < 1.645 * after.var[gap, 1].sqrt()).double().mean()
    assert 0.86 < inside < 0.94
    assert torch.equal(after.mean[:, 0], before.mean[:, 0])  # the time is left alone


def test_a_patient_without_measurements_keeps_the_prior():
    table, _, schema = study()
    encoder, _, prior, regression = learnt(table, schema)
    new = encoder.encode(table.assign(y=np.nan))
    batch = cases.conditioned(new, prior)
    p = batch.conditional_prior.distribution
    for posterior, expected in zip(cases.parts(regression(p, batch)), cases.parts(p), strict=True):
        assert_close(posterior, expected)


def test_it_follows_the_prior_so_that_q_stays_where_it_was():
    """A prior with another mean and a larger variance: what the measurements tell must not count twice."""
    table, _, schema = study(400)
    _, rows, prior, regression = learnt(table, schema)
    moved = copy.deepcopy(prior)
    moved.marginal.mean[1] += 0.4
    moved.marginal.var[1] *= 1.5
    moved.across.mixture.mean += 0.4 * (torch.arange(len(moved.across.mixture.mean[0])) == 1)
    q = []
    for each, follow in ((prior, False), (moved, False), (moved, True)):
        if follow:
            regression.follow(each)
        batch = cases.conditioned(rows, each)
        q.append(regression(batch.conditional_prior.distribution, batch).mean[~batch.x_mask[:, 1], 1])
    assert (q[2] - q[0]).square().mean() < 0.5 * (q[1] - q[0]).square().mean()


def test_few_visits_or_no_numbers_give_no_regression():
    table, _, schema = study(12)
    _, _, _, regression = learnt(table, schema)
    assert regression.examples.columns == {}
    assert regression.weight.abs().max() == 0.0
    categories = cases.CovariateSpace(("t", "c2"), (0, 2), (False, False))
    assert VisitRegression(categories, MIXED, 0).numbers == []


@pytest.fixture(scope="module")
def fitted():
    """A model of the study, with two members."""
    table, truth, schema = study(60)
    model = lacova.GPPriorVAE(schema, latent_dim=1, networks=lacova.Dense((8,), (8,), linear=True))
    return model.fit(table, max_epochs=20, members=2, seed=0, progress=False), table, truth


def test_q_starts_from_the_regression(monkeypatch):
    table, _, schema = study(60)
    networks = lacova.Dense((8,), (8,), linear=True)
    model = lacova.GPPriorVAE(schema, latent_dim=1, networks=networks)
    seen = []
    forward = AmortisedPosterior.forward
    monkeypatch.setattr(AmortisedPosterior, "forward", lambda *a: seen.append((a[0], a[1], forward(*a))) or seen[-1][2])
    model.fit(table, max_epochs=1, progress=False)
    posterior, batch, q = seen[0]
    start = posterior.visit_regression(batch.conditional_prior.distribution, batch)
    assert posterior.visit_regression.weight.abs().max() > 0.05
    assert all(layer[-1].weight.abs().max() < 0.1 for layer in posterior.networks)
    assert_close(q.mean[:, 1], start.mean[:, 1], rtol=1e-5, atol=1e-5)
    random = lacova.GPPriorVAE(schema, latent_dim=1, networks=networks)
    assert random.fit(table, max_epochs=1, start="random").vae.covariate_posterior.visit_regression is None


def test_members_have_the_regression_of_their_sample_and_rows_are_forgotten(fitted):
    model, _, _ = fitted
    regressions = [each.covariate_posterior.visit_regression for each in (model.vae, *model.members)]
    assert all(regression.examples is None for regression in regressions)
    weights = [regression.weight[:, 0] for regression in regressions]
    assert weights[0].abs().max() > 0.05
    for other in weights[1:]:
        assert 0.01 < (other - weights[0]).norm() / weights[0].norm() < 1.0


def test_a_saved_model_has_the_regression(fitted, tmp_path):
    model, table, _ = fitted
    model.save(tmp_path / "model.lacova")
    again = lacova.load(tmp_path / "model.lacova")
    assert torch.equal(
        again.vae.covariate_posterior.visit_regression.weight, model.vae.covariate_posterior.visit_regression.weight
    )
    assert again.impute(table, draws=3).equals(model.impute(table, draws=3))


def test_the_member_takes_the_counts_of_its_own_sample(monkeypatch):
    table, _, schema = study(60)
    model = lacova.GPPriorVAE(schema, latent_dim=1, networks=lacova.Dense((8,), (8,), linear=True))
    counts = []
    follow = VisitRegression.follow

    def recorded(regression, prior, count=None):
        counts.append(count)
        follow(regression, prior, count)

    monkeypatch.setattr(VisitRegression, "follow", recorded)
    taken = []
    monkeypatch.setattr(
        "lacova.models.fitting.train_member",
        lambda vae, train, *rest: taken.append(train_member(vae, train, *rest)) or taken[-1],
    )
    model.fit(table, max_epochs=2, members=2, progress=False)
    samples = [count for count in counts if count is not None]
    assert len(samples) == len(taken) == 2
    assert all(int(count.sum()) == 60 for count in samples)
    assert not torch.equal(*samples)


def test_masked_entries_of_regressed_columns_count_more():
    b = cases.with_prior(mixed_batch())
    masked = replace(b, x_mask=b.x_mask & (torch.rand(b.x_mask.shape, generator=cases.generator(5)) > 0.5))
    q = masked.conditional_prior.distribution.by_entry()
    chosen = torch.tensor([False, True, False, False, False])
    once = masked_log_prob(q, b, masked, SPACE)
    only = masked_log_prob(q, b, replace(masked, x_mask=masked.x_mask | ~chosen), SPACE)
    assert only.abs() > 0.1
    assert_close(masked_log_prob(q, b, masked, SPACE, chosen), once + (REGRESSED_WEIGHT - 1.0) * only)
