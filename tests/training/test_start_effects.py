"""Random effects that start at the maximum of their likelihood, with f solved by generalised least squares."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import MultivariateNormal

from lacova import FitOptions, GPPriorVAE, Schema
from lacova.data.batches import Batches
from lacova.models.builder import build
from lacova.models.fitting import read_training_data
from lacova.priors.gp.bounds import project
from lacova.training import start_effects
from lacova.training.distributed import SINGLE
from lacova.training.start import start_from_factors
from lacova.training.start_effects import EffectsStart


def study(patients=12, visits=5, measurements=1, seed=0, missing=0.15, noise=0.3):
    """Visits of patients in two arms: a curved course, random intercepts and slopes, and gaps in y."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), visits)
    day = np.tile(np.linspace(0.0, 4.0, visits), patients) + rng.uniform(0, 0.2, len(patient))
    table = pd.DataFrame({"id": patient, "day": day, "arm": np.where(patient % 2, "a", "b")})
    own = rng.normal(0.0, [1.0, 0.4], (patients, 2))[patient]
    for k in range(measurements):
        course = (1.0 + k) * np.sin(day) + 0.8 * (patient % 2)
        table[f"y{k}"] = course + own[:, 0] + own[:, 1] * day + rng.normal(0.0, noise, len(patient))
    names = [f"y{k}" for k in range(measurements)]
    table[names] = table[names].mask(rng.random((len(table), measurements)) < missing)
    return table, names


def intercepts(table):
    """Patients' random effects at the mean of the time, from regressions of single patients."""
    y, day = table.y0 - np.sin(table.day), table.day - table.day.mean()
    groups = [group.dropna() for _, group in pd.DataFrame({"y": y, "day": day, "id": table.id}).groupby("id")]
    own = np.array([np.polyfit(group.day, group.y, 1)[1] for group in groups])
    return own - 0.8 * (np.arange(len(own)) % 2)


def assembled(table, names, **settings):
    schema = Schema(
        names, {"day": "continuous", "arm": "categorical"}, instance="id", time="day", static=("arm",)
    )  # fmt: skip
    model = GPPriorVAE(schema, **settings)
    data = read_training_data(model, table, False, FitOptions(), torch.device("cpu"), SINGLE)
    torch.manual_seed(0)
    return build(model, data.encoder, data.table, 0), data.table


def started(measurements=1, inducing=8, scale=1.0, fixed=True, **study_of):
    """An `EffectsStart` in float64 with variances and factors away from their start."""
    table, names = study(measurements=measurements, **study_of)
    vae, encoded = assembled(table, names, inducing=inducing, fixed_effects=fixed)
    vae = vae.double()
    batches = Batches(vae.condition(encoded))
    batch = batches.batch(torch.arange(batches.units))
    batch = type(batch)(
        batch.y.double(), batch.y_mask, batch.x.double(), batch.x_mask, batch.patient, scale, None, batch.count,
        longest=batch.longest,
    )  # fmt: skip
    effects = vae.random_effects
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in effects.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    centre, noise = torch.full((measurements,), 0.2).double(), vae.likelihood.noise_variance.detach()
    rows = EffectsStart(effects, batch, batch.x, centre, noise)
    return rows, vae.prior


def dense_covariance(rows):
    """Covariance of all entries (N·D×N·D) under random effects and noise, written out entry by entry."""
    e, batch = rows.effects, rows.batch
    n, d = batch.y.shape
    t, noise = batch.x[:, e.time], rows.noise
    h = torch.stack([torch.ones_like(t), t], dim=1)
    total = torch.zeros(n, d, n, d, dtype=torch.double)
    for i in range(n):
        for j in range(n):
            if batch.patient[i] != batch.patient[j]:
                continue
            for a in range(d):
                for b in range(d):
                    value = (h[i] @ e.loadings[a]) @ (h[j] @ e.loadings[b])
                    if a == b:
                        value = value + e.raw[a].exp()
                        value = value + e.raw_drift[a].exp() * torch.exp(-e.raw_rate[a].exp() * (t[i] - t[j]).abs())
                        value = value + (noise[a] if i == j else 0.0)
                    total[i, a, j, b] = value
    return total.reshape(n * d, n * d).detach()


def observed_normal(rows, covariance, mean):
    """The normal distribution of the observed entries, and their values."""
    seen = rows.batch.y_mask.flatten()
    normal = MultivariateNormal(mean.flatten()[seen], covariance[seen][:, seen])
    return normal, rows.batch.y.flatten()[seen]


@pytest.mark.parametrize("measurements", [1, 2])
def test_the_likelihood_is_that_of_a_dense_normal(measurements):
    rows, _ = started(measurements, patients=4, visits=4, fixed=False)
    f = torch.randn(len(rows.batch), measurements, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    normal, y = observed_normal(rows, dense_covariance(rows), rows.centre + f)
    expected = normal.log_prob(y) + 0.5 * len(y) * math.log(2.0 * math.pi)
    torch.testing.assert_close(rows.log_likelihood(f), expected, rtol=1e-8, atol=0)
    both = torch.stack([f, -f])
    mean = 0.5 * (rows.log_likelihood(f) + rows.log_likelihood(-f))
    torch.testing.assert_close(rows.log_likelihood(both), mean, rtol=1e-8, atol=0)


@pytest.mark.parametrize("measurements", [1, 2])
def test_f_is_solved_as_with_dense_matrices(measurements):
    rows, prior = started(measurements, patients=5, visits=4)
    with torch.no_grad():
        prior.kernel.log_variance.fill_(-math.log(len(prior.kernel.shared)))
        a = project(prior.kernel, prior.inducing.inputs, rows.x)[0]
        smooth = rows.smooth(a, 0.5)
        fixed = rows.effects.fixed_effects.at(rows.x, rows.batch).mean
    m, d = len(a), measurements
    seen = rows.batch.y_mask.flatten()
    patterns = torch.einsum("mn,de->dmne", a, torch.eye(d).double()).reshape(d * m, -1)[:, seen]
    dense = dense_covariance(rows)
    without, y = observed_normal(rows, dense, rows.centre + fixed)
    weighted = torch.linalg.solve(without.covariance_matrix, patterns.mT)
    precision = patterns @ weighted + torch.eye(d * m).double() / smooth.variance
    mean = torch.linalg.solve(precision, weighted.mT @ (y - without.mean))
    torch.testing.assert_close(smooth.mean.mT.flatten(), mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(smooth.root @ smooth.root.mT, torch.linalg.inv(precision), rtol=1e-6, atol=1e-9)
    covariance = without.covariance_matrix + smooth.variance * patterns.mT @ patterns
    gained = MultivariateNormal(without.mean, covariance).log_prob(y) - without.log_prob(y)
    assert smooth.evidence == pytest.approx(float(gained), rel=1e-6)
    torch.testing.assert_close(smooth.values, a.mT @ smooth.mean)


def test_draws_of_f_have_its_moments():
    rows, prior = started(patients=5, visits=4)
    with torch.no_grad():
        a = project(prior.kernel, prior.inducing.inputs, rows.x)[0]
        smooth = rows.smooth(a, 0.5)
    drawn = smooth.draw(40_000, torch.Generator().manual_seed(0))[..., 0]
    torch.testing.assert_close(drawn.mean(0), smooth.values[:, 0])  # in pairs
    covariance = a.mT @ smooth.root @ smooth.root.mT @ a
    assert (drawn.mT.cov() - covariance).abs().max() < 0.04 * covariance.abs().max()


def test_climbing_raises_the_likelihood_and_leaves_what_it_cannot_improve(monkeypatch):
    rows, _ = started(patients=8)
    f = torch.zeros_like(rows.batch.y)
    before = float((rows.log_likelihood(f) - rows.effects.kl()).detach())
    rows.climb(f)
    after = float((rows.log_likelihood(f) - rows.effects.kl()).detach())
    assert after > before + 1.0
    values = [p.detach().clone() for p in rows.moved]
    monkeypatch.setattr(rows, "log_likelihood", lambda f: rows.moved[0].sum() * math.nan)
    rows.climb(f)
    assert all(torch.equal(p, value) for p, value in zip(rows.moved, values, strict=True))


def test_fixed_effects_are_solved():
    rows, _ = started(2, patients=8)
    f = torch.zeros_like(rows.batch.y)
    # The step has the curvature of each measurement given the others: two of them meet in the end.
    for _ in range(60):
        rows.solve_fixed(f)
    value = rows.log_likelihood(f) - rows.effects.kl()
    (gradient,) = torch.autograd.grad(value, [rows.effects.fixed_effects.mean])
    assert gradient.abs().max() < 1e-6


def test_a_sample_of_patients_stands_for_all():
    """Sums count `scale` times, as if each patient were there that many times."""
    rows, prior = started(patients=5)
    twice, _ = started(patients=5, scale=2.0)
    f = torch.zeros_like(rows.batch.y)
    torch.testing.assert_close(twice.log_likelihood(f), 2.0 * rows.log_likelihood(f))
    with torch.no_grad():
        a = project(prior.kernel, prior.inducing.inputs, rows.x)[0]
        own = rows.smooth(a, 0.5)
        precision = torch.linalg.inv(own.root @ own.root.mT) - torch.eye(len(a)).double() / own.variance
        doubled = twice.smooth(a, 0.5)
        other = torch.linalg.inv(doubled.root @ doubled.root.mT) - torch.eye(len(a)).double() / doubled.variance
    torch.testing.assert_close(other, 2.0 * precision, rtol=1e-5, atol=1e-6)
    seen, seen_twice = (  # Σ a Σ⁻¹ r
        (torch.linalg.inv(one.root @ one.root.mT) @ one.mean)[:, 0] for one in (own, doubled)
    )
    torch.testing.assert_close(seen_twice, 2.0 * seen, rtol=1e-5, atol=1e-6)


def test_the_start_finds_variances_and_the_course():
    table, names = study(patients=150, visits=6, seed=3)
    vae, encoded = assembled(table, names)
    start_from_factors(vae, encoded, 0)
    scale = float(table.y0.std())
    effects, sd = vae.random_effects, float(table.day.std())
    cov = effects.loadings[0] @ effects.loadings[0].mT
    assert float(cov[1, 1].detach()) * scale**2 == pytest.approx(0.16 * sd**2, rel=0.35)  # slopes
    of_z = vae.prior.noise + vae.prior.kernel.log_variance[list(vae.prior.kernel.own)].exp().sum(0)
    within = vae.likelihood.noise_variance + vae.decoder.linear.weight.square() @ of_z.float()
    # Half the variance of the difference between neighbouring visits, slopes aside: drift has a part of it.
    forgotten = 1.0 - torch.exp(-effects.raw_rate.exp() * 0.8 / sd)
    within = within + forgotten * effects.raw_drift.exp()
    assert float(within.detach()) * scale**2 == pytest.approx(0.09, rel=0.25)
    total = cov[0, 0] + effects.var
    assert float(total.detach()) * scale**2 == pytest.approx(float(intercepts(table).var()), rel=0.35)
    # The mean course is what is decoded from E z = E f, and the fixed effects.
    batches = Batches(vae.condition(encoded))
    batch = batches.batch(torch.arange(batches.units))
    with torch.no_grad():
        a = project(vae.prior.kernel, vae.prior.inducing.inputs, batch.x.double())
        z = torch.einsum("lmn,lm->nl", a, vae.prior.inducing.distribution().mean)
        course = vae.decode(z.float(), batch.x) + effects.fixed_effects.at(batch.x, batch).mean
    course = course[:, 0].numpy() * scale
    truth = np.sin(table.day) + 0.8 * (table.arm == "a")
    error = course - truth - (course - truth).mean()
    assert np.sqrt(np.mean(error**2)) < 0.2 * truth.std()


def test_a_dimension_without_use_has_variance_1():
    table, names = study(patients=20)
    vae, encoded = assembled(table, names, latent_dim=3)
    start_from_factors(vae, encoded, 0)
    total = vae.prior.prior_variance + vae.prior.noise
    torch.testing.assert_close(total[1:], torch.ones(2).double())
    assert not vae.decoder.linear.weight[:, 1:].any()


@pytest.mark.parametrize(("measurements", "starts"), [(4, True), (5, False)])
def test_only_a_few_measurements_have_such_a_start(measurements, starts, monkeypatch):
    runs = []
    run = EffectsStart.run
    monkeypatch.setattr(EffectsStart, "run", lambda self, *rest: runs.append(len(self.batch)) or run(self, *rest))
    monkeypatch.setattr("lacova.training.start.MAX_ROWS", 30)
    table, names = study(measurements=measurements)
    vae, encoded = assembled(table, names)
    start_from_factors(vae, encoded, 0)
    assert runs == ([30] if starts else [])  # of a large table, a sample of patients


def test_what_is_left_has_the_variance_of_the_noise():
    rows, _ = started(2, patients=8)
    left = rows.left(torch.zeros_like(rows.batch.y))
    observed = rows.batch.y_mask
    assert not left[~observed].any()
    torch.testing.assert_close((left**2).sum(0) / observed.sum(0), rows.noise.detach())


def test_variances_and_rates_stay_where_gradients_can_move_them():
    rows, _ = started(patients=6)
    with torch.no_grad():
        rows.effects.raw.fill_(-30.0)
        rows.effects.raw_rate.fill_(9.0)
    rows.climb(torch.zeros_like(rows.batch.y))
    assert float(rows.effects.raw.detach()) >= start_effects.LOG_VARIANCES[0] - 1e-9
    assert float(rows.effects.raw_rate.detach()) <= start_effects.LOG_RATES[1]
