"""Fixed effects against draws and dense normals, and on patients with a known effect."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import lacova
from lacova.data.batches import Batch, Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import ConditionalPrior, FactorisedDistribution
from lacova.inference.objective import elbo
from lacova.likelihoods.fixed_effects import FixedEffects, FixedPart
from lacova.likelihoods.likelihood import Likelihood
from lacova.likelihoods.random_effects import DriftingIntercepts, RandomIntercepts
from tests.tables import assert_close

NOISE = torch.tensor([0.5, 2.0], dtype=torch.double)
SPREAD = torch.tensor([1.5, 0.3], dtype=torch.double)
DRIFT = torch.tensor([0.8, 0.4], dtype=torch.double)
# Columns: the time; arm, of three levels; age; a dose, and an event of two levels, which change with visits.
SPACE = CovariateSpace(("day", "arm", "age", "dose", "event"), (0, 3, 0, 0, 2), (False, True, True, False, False))
NAMES = ("arm", "age", "dose", "event")  # features in the order of the space: age, dose, 3 arms, 2 events
OWNERS = torch.tensor([1, 2, 0, 0, 0, 3, 3])
CENTRE = torch.tensor([0.0, 0.3, 0.0, 0.0, 0.0, 0.6, 0.4], dtype=torch.double)
KAPPA = torch.tensor([1.0, 1.0, 2.5, 0.7], dtype=torch.double)
PATIENT = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2])


def batch():
    """Return patients with 3, 1 and 4 visits; the first lacks the arm, the last the age, visits some of the rest."""
    g = torch.Generator().manual_seed(0)
    y = torch.randn(8, 2, generator=g, dtype=torch.double)
    mask = torch.rand(8, 2, generator=g) < 0.7
    x = torch.rand(8, 5, generator=g, dtype=torch.double)
    x[:, 1], x[:, 2] = torch.tensor([1.0, 2.0, 0.0])[PATIENT], torch.tensor([0.3, -1.0, 0.7])[PATIENT]
    x[:, 4] = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1]).double()
    known = torch.ones(8, 5, dtype=torch.bool)
    known[:3, 1], known[4:, 2] = False, False
    known[[0, 2, 5], 3], known[[1, 3, 4, 6], 4] = False, False
    distribution = FactorisedDistribution(
        torch.full((8, 5), 0.4, dtype=torch.double),
        torch.full((8, 5), 0.49, dtype=torch.double),
        torch.zeros(8, 5, 3).double(),
    )
    distribution.log_prob[:, 1] = torch.tensor([0.2, 0.5, 0.3], dtype=torch.double).log()
    distribution.log_prob[:, 4, :2] = torch.tensor([0.7, 0.3], dtype=torch.double).log()
    prior = ConditionalPrior(distribution, torch.zeros(8).double())
    return Batch(y * mask, mask, x * known, known, PATIENT, conditional_prior=prior)


def complete(rows, draws, generator):
    """Return covariates that change (draws×8×2), and others (draws×8×5): observed, or drawn by visit or by patient."""
    x = rows.x.repeat(draws, 1, 1)
    normal = 0.4 + 0.7 * torch.randn(draws, 9, generator=generator, dtype=torch.double)
    arm = torch.multinomial(torch.tensor([0.2, 0.5, 0.3]), draws, replacement=True, generator=generator)
    event = (torch.rand(draws, 8, generator=generator) < 0.3).double()
    x[:, :3, 1], x[:, 4:, 2] = arm[:, None].double(), normal[:, 8:]
    return torch.where(rows.x_mask[:, 3:], x[..., 3:], torch.stack([normal[:, :8], event], -1)), x


def features(rows, draws, generator):
    """Return completed covariates, and c of each row (draws×8×7), by plain loops over patients."""
    moving, x = complete(rows, draws, generator)
    x[..., 3:] = moving
    hot = torch.nn.functional.one_hot
    c = torch.cat([x[..., 2:4], hot(x[..., 1].long(), 3).double(), hot(x[..., 4].long(), 2).double()], dim=-1)
    for p in range(3):
        for k in (1, 5, 6):
            visits = c[:, p == PATIENT, k]
            share = (visits - CENTRE[k]).sum(1) / (visits.shape[1] + KAPPA[OWNERS[k]])
            c[:, p == PATIENT, k] = share[:, None]
    return x, c


def fixed_effects(time=None, coupled=False):
    effects = FixedEffects(SPACE, NAMES, torch.ones(2, dtype=torch.double), time, coupled)
    g = torch.Generator().manual_seed(3)
    count = effects.mean.shape[1]
    with torch.no_grad():
        effects.mean.copy_(torch.randn(2, count, generator=g))
        root = 0.3 * torch.randn(2, count, count, generator=g, dtype=torch.double)
        effects.covariance.copy_(root @ root.mT + 0.01 * torch.eye(count))
        effects.precision.copy_(torch.linalg.inv(effects.covariance))
        effects.log_det_precision.copy_(effects.precision[-1].logdet())
        effects.log_scale.copy_(torch.randn(len(effects.log_scale), generator=g))
        effects.centre.copy_(CENTRE)
        effects.kappa.copy_(KAPPA)
    return effects


def with_time(c, rows):
    """Return c and, for visit-constant features (age and arms), their products with the time (…×8×11)."""
    return torch.cat([c, c[..., [0, 2, 3, 4]] * rows.x[:, :1]], dim=-1)


def random_effects_of(kind):
    """Return random effects with fixed ones: constant or drifting; with factors, drifting ones have slopes."""
    fixed = fixed_effects(0 if kind == "slopes" else None, kind in ("slopes", "constant factors"))
    if kind.startswith("constant"):
        effects = RandomIntercepts(SPREAD, fixed, factors=2 if kind == "constant factors" else 0)
    else:
        effects = DriftingIntercepts(SPREAD, DRIFT, 0, fixed, factors=3 if kind == "slopes" else 0)
    if effects.loadings is not None:
        with torch.no_grad():
            effects.loadings.copy_(torch.randn(effects.loadings.shape, generator=torch.Generator().manual_seed(8)))
    return effects.double()


def design(rows, effects):
    """Return h(t) at each row."""
    return torch.cat([torch.ones(8, 1, dtype=torch.double), rows.x[:, :1]], 1)[:, : effects.orders]


def covariance(rows, effects):
    """Return the covariance of the random effects of all rows and measurements (2·8×2·8), without the fixed part."""
    same, h = (PATIENT[:, None] == PATIENT).double(), design(rows, effects)
    distance = (rows.x[:, None, 0] - rows.x[:, 0]).abs()
    drifting = isinstance(effects, DriftingIntercepts)
    total = torch.zeros(2, 8, 2, 8, dtype=torch.double)
    for d in range(2):
        total[d, :, d] = same * (SPREAD[d] + (DRIFT[d] * torch.exp(-distance) if drifting else 0.0))
        if effects.loadings is not None:
            for e in range(2):
                total[d, :, e] += same * (h @ effects.loadings[d] @ effects.loadings[e].T @ h.T)
    return total.reshape(16, 16).detach()


def observed_of(rows, p):
    """Return which of the 2·8 entries, measurement by measurement, patient p has observed."""
    return (rows.y_mask.T & (p == PATIENT)).flatten().nonzero()[:, 0]


all_kinds = pytest.mark.parametrize("kind", ["constant", "constant factors", "drifting", "slopes"])
both_times = pytest.mark.parametrize("time", [None, 0], ids=["intercepts", "slopes"])


@both_times
def test_means_and_covariances_are_those_of_draws(time):
    """Both coefficients and missing covariates are drawn for the mean; of known covariates, coefficients alone."""
    rows, fixed, g = batch(), fixed_effects(time), torch.Generator().manual_seed(5)
    w = fixed.draw(200_000, g)
    x, c = features(rows, 200_000, g)
    features_at = c if time is None else with_time(c, rows)
    drawn = torch.einsum("snk,sdk->snd", features_at, w)
    expected = fixed.expected_mean(rows, rows.conditional_prior.distribution)
    torch.testing.assert_close(expected, drawn.mean(0), rtol=0, atol=0.03)
    h = torch.cat([torch.ones(8, 1, dtype=torch.double), rows.x[:, :1]], 1)[:, : fixed.orders]
    assert_close(fixed.at(x[:50], rows, w[:50]).mean, drawn[:50], rtol=1e-9)
    over_posterior, one = fixed.at(x[:1], rows), features_at[:1]
    assert_close(over_posterior.mean, one @ fixed.mean.mT, rtol=1e-9)
    var = torch.einsum("nj,ndjl,nl->nd", h, over_posterior.covariance[0, PATIENT], h)
    assert_close(var, torch.einsum("nk,dkl,nl->nd", one[0], fixed.covariance, one[0]), rtol=1e-9)
    torch.testing.assert_close(var, torch.einsum("nk,sdk->snd", one[0], w).var(0), rtol=0.02, atol=0)
    own = c[:1, [0, 3, 4]]  # first rows of the patients
    assert_close(over_posterior.second, own[..., :, None] * own[..., None, :], rtol=1e-9)
    owners = OWNERS if time is None else torch.cat([OWNERS, OWNERS[[0, 2, 3, 4]]])
    assert [fixed.features_of(name).tolist() for name in fixed.names] == [(k == owners).tolist() for k in range(4)]


def test_without_gaps_the_distribution_of_covariates_does_not_matter():
    rows, fixed = batch(), fixed_effects()
    x, c = features(rows, 1, torch.Generator().manual_seed(1))
    complete_rows = replace(rows, x=x[0], x_mask=torch.ones_like(rows.x_mask))
    for distribution in (None, rows.conditional_prior.distribution):
        assert_close(fixed.expected_mean(complete_rows, distribution), c[0] @ fixed.mean.mT, rtol=1e-9)


def test_averages_are_of_the_covariates_as_they_are():
    """Covariates that are set at visits change visit-constant features, and no average."""
    rows, fixed, g = batch(), fixed_effects(), torch.Generator().manual_seed(2)
    x, c = features(rows, 3, g)
    other = x.clone()
    other[:, 5:, 2], other[:, 5:, 3], other[:, 5:, 4] = 2.0, 9.0, 1.0
    c[:, 5:, 0] = 2.0
    w = fixed.draw(3, g)
    assert_close(fixed.at(other, rows, w, x).mean, torch.einsum("snk,sdk->snd", c, w), rtol=1e-9)


def test_averages_are_shrunk_by_how_much_visits_differ():
    """κ is ¼ for a dose with a standard deviation of 2 between patients and 1 within; large for independent events."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(2000), 4)
    frame = pd.DataFrame({"id": patient, "day": rng.random(8000), "sex": np.where(patient % 2, "f", "m")})
    frame["dose"] = rng.normal(0, 2, 2000)[patient] + rng.normal(0, 1, 8000)
    frame["event"] = np.where(rng.random(8000) < 0.3, "yes", "no")
    frame["alt"] = rng.normal(size=8000)
    kinds = {"day": "continuous", "sex": "categorical", "dose": "continuous", "event": "categorical"}
    frame[["dose", "event"]] = frame[["dose", "event"]].mask(rng.random((8000, 2)) < 0.3)
    schema = lacova.Schema(["alt"], kinds, instance="id", time="day", static=["sex"])
    fitted = lacova.GPPriorVAE(schema, latent_dim=1, inducing=4).fit(frame, max_epochs=1, batch_size=500)
    fixed = fitted.vae.random_effects.fixed_effects
    assert fixed.names == ("sex", "dose", "event")
    assert float(fixed.kappa[1]) == pytest.approx(0.25, rel=0.1)
    assert float(fixed.kappa[2]) > 20
    events = fixed.centre[fixed.owner == 2]
    np.testing.assert_allclose(sorted(events), [0.3, 0.7], atol=0.02)


@both_times
def test_the_kl_of_coefficients_is_that_of_torch(time):
    """Beside it, the bound has the log density of the scales of visit-constant covariates."""
    fixed = fixed_effects(time)
    owners = OWNERS if time is None else torch.cat([OWNERS, 4 + OWNERS[[0, 2, 3, 4]]])
    scale = fixed.log_scale.exp()[owners].expand(2, -1)
    posterior = MultivariateNormal(fixed.mean, fixed.covariance)
    prior = MultivariateNormal(torch.zeros_like(scale), torch.diag_embed(scale.square()))
    stated = [0, 1] if time is None else [0, 1, 4, 5]  # of w and w' of arm and age
    density = Normal(0.0, 0.5).log_prob(fixed.log_scale[stated]) - Normal(0.0, 0.5).log_prob(torch.zeros(1).double())
    assert_close(fixed.kl(), kl_divergence(posterior, prior).sum() - density.sum(), rtol=1e-9)


@all_kinds
def test_the_bound_has_the_mean_over_coefficients_of_the_log_density(kind):
    """Where covariates are known, as in a scenario: against dense normals, for two completions of the table."""
    rows, random_effects = batch(), random_effects_of(kind)
    location = torch.randn(2, 8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    fixed_part = random_effects.fixed_effects.at(features(rows, 2, torch.Generator().manual_seed(2))[0], rows)
    h, dense = design(rows, random_effects), covariance(rows, random_effects)
    noise, expected = torch.diag(NOISE.repeat_interleave(8)), torch.zeros(2, 3, dtype=torch.double)
    residual = (rows.y - location - fixed_part.mean).mT.flatten(1)
    for s, p in np.ndindex(2, 3):
        at = observed_of(rows, p)
        if not len(at):
            continue
        total = (dense + noise)[at][:, at]
        log_prob = MultivariateNormal(torch.zeros(len(at)).double(), total).log_prob(residual[s, at])
        var = torch.zeros(2, 8, 2, 8, dtype=torch.double)
        for d in range(2):  # coefficients of different measurements are independent
            var[d, :, d] = h @ fixed_part.covariance[s, p, d] @ h.T
        trace = (torch.linalg.inv(total) * var.reshape(16, 16)[at][:, at]).sum()
        expected[s, p] = log_prob - 0.5 * trace
    independent = Likelihood.gaussian(NOISE, 1e-9).log_prob(location, rows.y, rows.y_mask)
    log_prob = torch.zeros(2, 3, dtype=torch.double).index_add(1, PATIENT, independent)
    log_prob = log_prob + random_effects.gain(location, rows, NOISE, fixed_part)
    torch.testing.assert_close(log_prob, expected, rtol=1e-7, atol=1e-9)


@all_kinds
def test_random_effects_are_the_conditional_of_the_joint_normal(kind):
    rows, random_effects, g = batch(), random_effects_of(kind), torch.Generator().manual_seed(4)
    fixed = random_effects.fixed_effects
    location = torch.randn(3, 8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    fixed_part = fixed.at(features(rows, 3, g)[0], rows, fixed.draw(3, g))
    with torch.no_grad():
        effects = random_effects.draw(location, rows, NOISE, torch.Generator().manual_seed(0), fixed_part)
        mean = random_effects.expect(location, rows, NOISE, fixed_part.mean)
    k, at = covariance(rows, random_effects), rows.y_mask.T.flatten().nonzero()[:, 0]
    total = k[at][:, at] + torch.diag(NOISE.repeat_interleave(8)[at])
    gain = torch.linalg.solve(total, k[at]).T
    posterior = k - gain @ k[at]
    prior_mean = fixed_part.mean.detach().mT.flatten(1)
    residual = (rows.y - location).mT.flatten(1) - prior_mean
    expected = (prior_mean + residual[:, at] @ gain.T).unflatten(1, (2, 8)).mT
    torch.testing.assert_close(effects.mean, expected, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(mean, expected, rtol=1e-7, atol=1e-9)
    var = posterior.diagonal().unflatten(0, (2, 8)).mT
    torch.testing.assert_close(effects.var.expand(3, -1, -1)[0], var, rtol=1e-7, atol=1e-9)
    with torch.no_grad():
        one, many = FixedPart(fixed_part.mean[:1]), location[:1].expand(20_000, -1, -1)
        drawn = random_effects.draw(many, rows, NOISE, torch.Generator().manual_seed(0), one).drawn
    largest = float(posterior.diagonal().max())
    torch.testing.assert_close(drawn.mean(0), expected[0], rtol=0, atol=5 * (largest / 20_000) ** 0.5)
    torch.testing.assert_close(drawn.mT.flatten(1).T.cov(), posterior, rtol=0, atol=0.06 * largest)


@all_kinds
def test_steps_of_natural_gradients_reach_the_posterior_of_the_coefficients(kind):
    """With covariates known and measurements independent, q(w) is the posterior of a mixed model."""
    rows, random_effects = batch(), random_effects_of(kind)
    if random_effects.loadings is not None:
        with torch.no_grad():  # factors of different measurements are apart
            random_effects.loadings[0, :, 1:], random_effects.loadings[1, :, :1] = 0.0, 0.0
    x, c = features(rows, 1, torch.Generator().manual_seed(1))
    rows = replace(rows, x=x[0], x_mask=torch.ones_like(rows.x_mask), scale=1.0)
    fixed = random_effects.fixed_effects
    location = torch.randn(8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    for rate in (0.3, 1.0):
        fixed.zero_grad()
        part, parts = fixed.at(rows.x, rows), random_effects.factorise(rows, NOISE)
        (random_effects.gain(location, rows, NOISE, part, parts).sum() - fixed.kl()).backward()
        fixed.natural_step(random_effects.information(rows, part.second, parts), fixed.mean.grad, rate)
    phi, dense = c[0] if kind != "slopes" else with_time(c[0], rows), covariance(rows, random_effects)
    for d in range(2):
        at = rows.y_mask[:, d].nonzero()[:, 0]
        total = dense[8 * d :][:8, 8 * d :][:, :8][at][:, at] + NOISE[d] * torch.eye(len(at))
        weight = torch.linalg.solve(total, phi[at])
        prior = torch.diag((-2.0 * fixed.log_scale.detach()).exp()[fixed.block])
        precision = phi[at].T @ weight + prior
        mean = torch.linalg.solve(precision, weight.T @ (rows.y - location)[at, d])
        assert_close(fixed.precision[-1, d], precision, rtol=1e-8)
        assert_close(fixed.covariance[d], torch.linalg.inv(precision), rtol=1e-6)
        assert_close(fixed.mean[d].detach(), mean, rtol=1e-6)
        assert_close(fixed.log_det_precision[d], precision.logdet(), rtol=1e-8)


def joint_posterior(rows, random_effects, phi):
    """Return mean and precision of the coefficients of both measurements together (2·K')."""
    fixed, at = random_effects.fixed_effects, rows.y_mask.T.flatten().nonzero()[:, 0]
    total = (covariance(rows, random_effects) + torch.diag(NOISE.repeat_interleave(8)))[at][:, at]
    both = torch.block_diag(phi, phi)[at]
    weight = torch.linalg.solve(total, both)
    prior = (-2.0 * fixed.log_scale.detach()).exp()[fixed.block].repeat(2)
    precision = both.T @ weight + torch.diag(prior)
    return torch.linalg.solve(precision, weight.T @ rows.y.T.flatten()[at]), precision


@pytest.mark.parametrize("kind", ["constant factors", "slopes"])
@pytest.mark.parametrize("complete", [False, True])
def test_coefficients_of_measurements_that_share_factors(kind, complete):
    """Means are those of the joint posterior, variances those of a measurement by itself; with complete visits and a
    flat prior these are the marginal variances of the joint posterior, and those given the others are too small."""
    rows, random_effects = batch(), random_effects_of(kind)
    x, c = features(rows, 1, torch.Generator().manual_seed(1))
    rows = replace(rows, x=x[0], x_mask=torch.ones_like(rows.x_mask), scale=1.0)
    fixed = random_effects.fixed_effects
    if complete:
        rows = replace(rows, y_mask=torch.ones_like(rows.y_mask))
        fixed.log_scale.data.fill_(4.0)
    for _ in range(300):
        fixed.zero_grad()
        part, parts = fixed.at(rows.x, rows), random_effects.factorise(rows, NOISE)
        (random_effects.gain(torch.zeros(8, 2).double(), rows, NOISE, part, parts).sum() - fixed.kl()).backward()
        fixed.natural_step(random_effects.information(rows, part.second, parts), fixed.mean.grad, 0.5)
    phi = c[0] if kind != "slopes" else with_time(c[0], rows)
    mean, precision = joint_posterior(rows, random_effects, phi)
    torch.testing.assert_close(fixed.mean.detach().flatten(), mean, rtol=1e-4, atol=1e-4)
    count = phi.shape[1]
    given_others = torch.stack([precision[d * count :][:count, d * count :][:, :count] for d in range(2)])
    assert_close(fixed.precision[0], given_others, rtol=1e-6)
    if complete:
        joint = torch.linalg.inv(precision)
        contrast = phi[0] - phi[-1]  # of two patients; what the prior alone tells is left out
        for d in range(2):
            marginal = contrast @ joint[d * count :][:count, d * count :][:, :count] @ contrast
            assert float(contrast @ fixed.covariance[d] @ contrast) == pytest.approx(float(marginal), rel=0.01)
            narrow = contrast @ torch.linalg.inv(given_others[d]) @ contrast
            assert float(narrow) < 0.97 * float(marginal)


def test_many_coefficients_are_independent(monkeypatch):
    fixed = fixed_effects()
    monkeypatch.setattr("lacova.likelihoods.fixed_effects.MAX_JOINT", 6)
    information = torch.ones(1, 2, 7, 7, dtype=torch.double)
    fixed.natural_step(information, torch.zeros(2, 7, dtype=torch.double), 1.0)
    variance = 1.0 / (1.0 + (-2.0 * fixed.log_scale.detach()).exp()[OWNERS])
    assert_close(fixed.covariance, torch.diag(variance).expand(2, 7, 7), rtol=1e-9)
    assert_close(fixed.log_det_precision, -variance.log().sum().expand(2), rtol=1e-9)


def test_draws_of_coefficients_have_their_moments():
    fixed = fixed_effects()
    drawn = fixed.draw(40_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), fixed.mean.detach(), rtol=0, atol=0.02)
    for d in range(2):
        torch.testing.assert_close(drawn[:, d].T.cov().detach(), fixed.covariance[d], rtol=0.03, atol=0.02)


SCHEMA = lacova.Schema(
    ["weight", "temperature"], {"day": "continuous", "sex": "categorical", "age": "continuous"}, instance="id",
    time="day", static=["sex", "age"],
)  # fmt: skip


def patients(count=120, visits=5, seed=0, missing=0.1):
    """Return visits of patients: men weigh 4 more, temperature depends on nothing, and sex is missing for some."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(count), visits)
    men, age = rng.random(count) < 0.5, rng.normal(0, 1, count)
    table = pd.DataFrame({
        "id": patient, "day": np.tile(np.arange(float(visits)), count),
        "sex": np.where(rng.random(count) < missing, None, np.where(men, "m", "f"))[patient], "age": age[patient],
    })  # fmt: skip
    table["weight"] = (4.0 * men + rng.normal(0, 1, count))[patient] + rng.normal(0, 0.3, count * visits)
    table["temperature"] = rng.normal(0, 1, count)[patient] + rng.normal(0, 0.3, count * visits)
    return table


@pytest.fixture(scope="module", params=[True, "intercept"], ids=["drifting", "constant"])
def model(request):
    unfitted = lacova.GPPriorVAE(SCHEMA, latent_dim=2, inducing=10, patient_effects=request.param)
    return unfitted.fit(patients(), max_epochs=30, batch_size=20, seed=0, device="cpu")


def test_a_new_patients_random_effects_depend_on_its_covariates(model):
    new = patients(40, seed=5, missing=0.0)
    x = new.drop(columns=list(SCHEMA.measurements))
    predicted = model.predict(x, draws=400)
    men = new["sex"] == "m"
    assert predicted["weight"][men].mean() - predicted["weight"][~men].mean() == pytest.approx(4.0, abs=0.5)
    assert abs(predicted["temperature"][men].mean() - predicted["temperature"][~men].mean()) < 0.4
    variance = float(model.vae.random_effects.var[0].detach()) * model.encoder.y_scale[0].item() ** 2
    assert variance == pytest.approx(1.0, abs=0.5)  # 5 with the difference between the sexes


def test_a_patient_of_unknown_sex_may_be_either(model):
    """Intervals cover both sexes, and completed tables have heavy men and light women."""
    new = patients(60, seed=9, missing=0.0).assign(sex=None)
    x = new.drop(columns=list(SCHEMA.measurements))
    drawn = model.sample(x.groupby("id").head(1), draws=400, seed=1)
    assert drawn["weight"].std() == pytest.approx(5.09**0.5, rel=0.15)
    ends = model.predict(x, interval=0.9, draws=400)
    assert new["weight"].between(ends["weight_lower"], ends["weight_upper"]).mean() == pytest.approx(0.9, abs=0.1)
    completed = model.impute(x.groupby("id").head(1).assign(weight=np.nan, temperature=np.nan), draws=50, seed=1)
    by_sex = completed.groupby("sex")["weight"].mean()
    assert by_sex["m"] - by_sex["f"] == pytest.approx(4.0, abs=0.8)


def test_a_missing_covariate_is_inferred_from_the_random_effects(model):
    new = patients(60, seed=10, missing=0.0)
    imputed = model.impute(new.assign(sex=None))["sex"]
    assert (imputed == new["sex"]).mean() > 0.93  # 0.977 for normals 4 standard deviations apart


def test_the_likelihood_of_a_row_sums_over_sexes(model):
    new = patients(200, seed=11, missing=0.0).groupby("id").head(1)
    with_sex, without = (model.log_likelihood(rows, draws=400).mean() for rows in (new, new.assign(sex=None)))
    # Mean weights of the sexes are 4 apart with sd 1.04: the sex is worth 0.6 nats, of at most log 2.
    assert with_sex - without == pytest.approx(0.62, abs=0.25)


def test_the_likelihood_of_a_row_integrates_over_coefficients():
    fitted = lacova.GPPriorVAE(
        SCHEMA, latent_dim=1, inducing=4, scaling="none", patient_effects="intercept", patient_factors=0
    )
    fitted.fit(patients(20, missing=0.0), max_epochs=1)
    encoder, vae = fitted.fitted()
    fixed, last = vae.random_effects.fixed_effects, vae.encoder.head[-1]
    with torch.no_grad():  # y is a random effect and noise, and q(z) close to p(z)
        for parameter in (*vae.decoder.parameters(), last.weight, last.bias):
            parameter.zero_()
        fixed.mean.copy_(torch.randn(2, 3, generator=torch.Generator().manual_seed(0)))
        fixed.covariance.copy_(torch.eye(3) * 2.7 + 0.5)
        new = patients(8, seed=3, missing=0.0)
        table = encoder.encode(new)
        c = torch.stack([table.x[:, 2], *(table.x[:, 1] == level for level in range(2))], dim=1).float()
        var = vae.likelihood.noise_variance + vae.random_effects.var
        var = var + torch.einsum("nk,dkl,nl->nd", c, fixed.covariance, c)
        expected = Normal(c @ fixed.mean.mT, var.sqrt()).log_prob(table.y).sum(1)
    np.testing.assert_allclose(fitted.log_likelihood(new, draws=2000), expected, atol=0.15)


def test_what_if_has_the_fixed_effect(model):
    new = patients(20, seed=6, missing=0.0)
    women = new[new["sex"] == "f"]
    x = women.drop(columns=list(SCHEMA.measurements))
    average = model.what_if(x, {"sex": "m"}, draws=200).average.set_index("measurement")
    assert average.loc["weight", "difference"] == pytest.approx(4.0, abs=0.5)
    assert average.loc["weight", "difference_lower"] < average.loc["weight", "difference_upper"]


def test_the_effect_belongs_to_the_component_of_the_covariate(model):
    shares = model.effects(patients(40, seed=7), draws=60).shares.set_index("component")["weight"]
    assert shares["gp(day):cat(sex)"] == pytest.approx(4.0 / 5.09, abs=0.12)
    assert shares["patient effect"] == pytest.approx(1.0 / 5.09, abs=0.12)


def test_coefficients_are_stored(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = lacova.load(tmp_path / "model")
    x = patients(5, seed=8).drop(columns=list(SCHEMA.measurements))
    pd.testing.assert_frame_equal(loaded.predict(x, seed=1), model.predict(x, seed=1))


def test_models_without_fixed_effects():
    short = {"latent_dim": 1, "inducing": 4}
    without = lacova.GPPriorVAE(SCHEMA, fixed_effects=False, **short).fit(patients(10), max_epochs=1)
    assert without.vae.random_effects.fixed_effects is None
    timed = lacova.Schema(SCHEMA.measurements, {"day": "continuous"}, instance="id", time="day")
    assert lacova.GPPriorVAE(timed, **short).fit(patients(10), max_epochs=1).vae.random_effects.fixed_effects is None
    named = lacova.GPPriorVAE(SCHEMA, prior="gp(day) + gp(day):cat(sex) + cat(id):gp(age)", **short)
    assert named.fit(patients(10), max_epochs=1).vae.random_effects.fixed_effects.names == ("sex",)
    with pytest.raises(ValueError, match="fixed_effects is 'no'"):
        lacova.GPPriorVAE(SCHEMA, fixed_effects="no")


def test_random_effects_have_no_gradient_for_the_posterior_of_covariates(model):
    """Random effects of measurements are correlated, but independent in the model: q(x_u) would be overconfident."""
    _, vae = model.fitted()
    rows = Batches(model.encode(patients(30, seed=12, missing=0.5))).batch(torch.arange(30))
    vae.zero_grad()
    elbo(vae, rows, torch.Generator().manual_seed(0)).reconstruction.backward()
    assert vae.random_effects.fixed_effects.mean.grad.abs().max() > 0
    assert all(p.grad is None or (p.grad == 0).all() for p in vae.covariate_posterior.parameters())
    vae.zero_grad()


DOSED = lacova.Schema(
    ["weight", "temperature"], {"day": "continuous", "sex": "categorical", "dose": "continuous"}, instance="id",
    time="day", static=["sex"],
)  # fmt: skip


def dosed(count, seed=0):
    """Return visits of patients whose weight rises by 2 per unit of their mean dose, not with the visit's dose."""
    rng = np.random.default_rng(seed)
    table = patients(count, seed=seed, missing=0.0).drop(columns="age")
    own = rng.normal(0, 1, count)[table["id"]]
    table["dose"] = own + rng.normal(0, 0.3, len(table))
    table["weight"] += 2.0 * own
    return table


@pytest.fixture(scope="module")
def dosing():
    unfitted = lacova.GPPriorVAE(DOSED, latent_dim=2, inducing=10)
    return unfitted.fit(dosed(150), max_epochs=30, batch_size=20, seed=0, device="cpu")


def test_a_new_patients_random_effects_depend_on_its_average_dose(dosing):
    new = dosed(60, seed=5)
    new["weight"] -= 4.0 * (new["sex"] == "m")
    weight = dosing.predict(new.drop(columns=list(DOSED.measurements)).assign(sex="f"), draws=400)["weight"]
    average = new.groupby("id")["dose"].transform("mean")
    assert np.polyfit(average, weight, 1)[0] == pytest.approx(2.0, abs=0.35)
    within = weight - weight.groupby(new["id"]).transform("mean")
    assert abs(np.polyfit(new["dose"] - average, within, 1)[0]) < 0.5


def test_a_dose_that_is_set_at_visits_does_not_change_the_patients_average(dosing):
    new = dosed(20, seed=6)
    x = new.drop(columns=list(DOSED.measurements))
    what_if = dosing.what_if(x, {"dose": 2.0}, draws=200).average.set_index("measurement")["difference"]
    predicted = (dosing.predict(x.assign(dose=2.0), draws=200) - dosing.predict(x, draws=200))["weight"].mean()
    assert predicted == pytest.approx(2.0 * (2.0 - x["dose"].mean()), abs=0.8)
    assert abs(what_if["weight"]) < 0.3 * predicted


def test_unmeasured_visits_count_for_averages_in_imputation_too(dosing):
    """A measured visit is imputed as it would be predicted with its patient's record as history."""
    rows = dosed(40, seed=7)
    first = rows["day"] == 0.0
    rows["dose"] += np.where(first, 0.0, 3.0)
    gaps = rows.assign(weight=np.nan, temperature=rows["temperature"].where(first))
    filled = dosing.impute(gaps)
    measured, unmeasured = (filled["weight"][part].to_numpy() for part in (first, rows["day"] == 1.0))
    assert np.abs(measured - unmeasured).mean() < 1.0  # at least 2 if the averages were the first visits' doses
    alone = dosing.impute(gaps[first])["weight"].to_numpy()
    assert (measured - alone).mean() > 2.0


def test_the_likelihood_of_a_row_does_not_depend_on_other_visits(dosing):
    rows = dosed(10, seed=8)
    log_likelihood = dosing.log_likelihood(rows, draws=2000)
    first = (rows["day"] == 0.0).to_numpy()
    np.testing.assert_allclose(dosing.log_likelihood(rows[first], draws=2000), log_likelihood[first], atol=0.3)


def test_the_shrinkage_of_averages_is_stored(dosing, tmp_path):
    dosing.save(tmp_path / "model")
    loaded = lacova.load(tmp_path / "model")
    fixed, stored = (model.vae.random_effects.fixed_effects for model in (dosing, loaded))
    for name in ("kappa", "centre"):
        assert torch.equal(getattr(stored, name), getattr(fixed, name))
    x = dosed(5, seed=9).drop(columns=list(DOSED.measurements))
    pd.testing.assert_frame_equal(loaded.predict(x, seed=1), dosing.predict(x, seed=1))
