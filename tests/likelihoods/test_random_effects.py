"""Random effects against dense normal distributions, in the bound, in imputation and in forecasts."""

import numpy as np
import pandas as pd
import pytest
import torch

import lacova
from lacova.data.batches import Batch, Batches, variance_parts
from lacova.data.table_encoder import TableEncoder
from lacova.inference.objective import elbo
from lacova.likelihoods.likelihood import Likelihood
from lacova.likelihoods.random_effects import DriftingIntercepts, RandomIntercepts

SCHEMA = lacova.Schema(["alt", "ast"], {"day": "continuous", "sex": "categorical"}, instance="id", time="day")
NOISE = torch.tensor([0.5, 2.0, 0.1], dtype=torch.double)
SPREAD = torch.tensor([1.5, 0.3, 0.02], dtype=torch.double)  # τ²
DRIFT = torch.tensor([0.8, 0.4, 0.05], dtype=torch.double)
RATE = torch.tensor([0.7, 3.0, 0.2], dtype=torch.double)


def batch(seed=0):
    """Return patients with 3, 1, 4 and 2 visits and three measurements with gaps; the last patient lacks the first.

    The first column of x is the time, which is missing at two visits.
    """
    g = torch.Generator().manual_seed(seed)
    patient = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2, 3, 3])
    y = torch.randn(10, 3, generator=g, dtype=torch.double)
    mask = torch.rand(10, 3, generator=g) < 0.7
    mask[8:, 0] = False
    x = torch.rand(10, 1, generator=g, dtype=torch.double) * 3.0
    known = torch.ones(10, 1, dtype=torch.bool)
    known[[1, 6]] = False
    return Batch(torch.where(mask, y, 0.0), mask, torch.where(known, x, 0.0), known, patient)


def intercepts(drifting):
    if not drifting:
        return RandomIntercepts(SPREAD)
    random_effects = DriftingIntercepts(SPREAD, DRIFT, 0)
    with torch.no_grad():
        random_effects.raw_rate.copy_(RATE.log())
    return random_effects


def gaussian_likelihood():
    likelihood = Likelihood.gaussian(NOISE, 1e-9)
    torch.testing.assert_close(likelihood.noise_variance, NOISE)
    return likelihood


def covariance(rows, d, drifting):
    """Return the covariance of the random effects of all rows on measurement d, 0 between patients."""
    k = torch.zeros(10, 10, dtype=torch.double)
    for i in range(10):
        for j in range(10):
            if rows.patient[i] == rows.patient[j]:
                k[i, j] = SPREAD[d]
                if drifting and (i == j or (rows.x_mask[i, 0] and rows.x_mask[j, 0])):
                    k[i, j] += DRIFT[d] * torch.exp(-RATE[d] * abs(rows.x[i, 0] - rows.x[j, 0]))
    return k


both_kinds = pytest.mark.parametrize("drifting", [False, True], ids=["constant", "drifting"])


@both_kinds
def test_the_bound_is_the_density_of_correlated_residuals(drifting):
    rows, location = batch(), torch.randn(2, 10, 3, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    expected = torch.zeros(2, 4, dtype=torch.double)
    for p in range(4):
        for d in range(3):
            at = ((rows.patient == p) & rows.y_mask[:, d]).nonzero()[:, 0]
            if len(at):
                own = covariance(rows, d, drifting)[at][:, at] + NOISE[d] * torch.eye(len(at), dtype=torch.double)
                joint = torch.distributions.MultivariateNormal(torch.zeros(len(at), dtype=torch.double), own)
                expected[:, p] += joint.log_prob(rows.y[at, d] - location[:, at, d])
    independent = gaussian_likelihood().log_prob(location, rows.y, rows.y_mask)
    log_prob = torch.zeros(2, 4, dtype=torch.double).index_add(1, rows.patient, independent)
    torch.testing.assert_close(log_prob + intercepts(drifting).gain(location, rows, NOISE), expected)


@both_kinds
def test_random_effects_are_the_conditional_of_the_joint_normal(drifting):
    rows, location = batch(), torch.randn(1, 10, 3, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    draws = 20_000
    effects = intercepts(drifting).draw(location.expand(draws, -1, -1), rows, NOISE, torch.Generator().manual_seed(0))
    expected = intercepts(drifting).expect(location, rows, NOISE)[0]
    for d in range(3):
        k, at = covariance(rows, d, drifting), rows.y_mask[:, d].nonzero()[:, 0]
        gain = torch.linalg.solve(k[at][:, at] + NOISE[d] * torch.eye(len(at), dtype=torch.double), k[at]).T
        mean = gain @ (rows.y[at, d] - location[0, at, d])
        posterior = k - gain @ k[at]
        torch.testing.assert_close(expected[:, d], mean)
        torch.testing.assert_close(effects.mean[0, :, d], mean)
        torch.testing.assert_close(effects.var.expand(draws, -1, -1)[0, :, d], posterior.diagonal())
        drawn, largest = effects.drawn[:, :, d], posterior.diagonal().max()
        torch.testing.assert_close(drawn.mean(0), mean, rtol=0, atol=float(5 * (largest / draws).sqrt()))
        torch.testing.assert_close(drawn.T.cov(), posterior, rtol=0, atol=float(0.05 * largest))


def test_padding_rows_change_nothing():
    """A captured step pads with rows of a patient of their own, more than any patient has places."""
    rows, random_effects = batch(), intercepts(True)
    location = torch.randn(2, 10, 3, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    padded = Batch(
        *(torch.cat([part, part.new_zeros(6, part.shape[1])]) for part in (rows.y, rows.y_mask, rows.x)),
        torch.cat([rows.x_mask, rows.x_mask.new_ones(6, 1)]), torch.cat([rows.patient, torch.full((6,), 4)]),
        count=5, longest=4,
    )  # fmt: skip
    padded_location = torch.cat([location, torch.ones(2, 6, 3, dtype=torch.double)], 1)
    gain, expected = random_effects.gain(padded_location, padded, NOISE), random_effects.expect(location, rows, NOISE)
    torch.testing.assert_close(gain[:, :4], random_effects.gain(location, rows, NOISE))
    torch.testing.assert_close(gain[:, 4], torch.zeros(2, dtype=torch.double))
    torch.testing.assert_close(random_effects.expect(padded_location, padded, NOISE)[:, :10], expected)


def test_variances_to_start_from_add_up():
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(400), 5)
    frame = pd.DataFrame({"id": patient, "day": rng.random(2000), "sex": "f"})
    frame["alt"] = rng.normal(0, 2, 400)[patient] + rng.normal(0, 1, 2000)
    frame["ast"] = rng.normal(0, 1, 2000)
    table = TableEncoder.learn(SCHEMA, frame, "none").encode(frame)
    between, within = variance_parts(table.y, table.y_mask, table.patient)
    np.testing.assert_allclose(between, [4.0, 0.0], atol=0.6)
    np.testing.assert_allclose(within, [1.0, 1.0], rtol=0.1)
    assert (between >= 0).all()


def visits(patients=60, own=2.0, noise=0.5, seed=0):
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), 6)
    n = len(patient)
    table = pd.DataFrame({"id": patient, "day": np.tile(np.arange(6.0), patients), "sex": rng.choice(["f", "m"], n)})
    for name in SCHEMA.measurements:
        table[name] = rng.normal(0, own, patients)[patient] + rng.normal(0, noise, n)
    return table


@pytest.fixture(scope="module")
def fitted():
    return lacova.GPPriorVAE(SCHEMA, latent_dim=2, inducing=8, scaling="none", patient_factors=0).fit(
        visits(), max_epochs=40, seed=0
    )


def without_a_decoder(model):
    """Set the decoder of a model to 0, so that y is a random effect and noise; return the variances of both."""
    _, vae = model.fitted()
    with torch.no_grad():
        for parameter in vae.decoder.parameters():
            parameter.zero_()
    return vae.likelihood.noise_variance.detach(), vae.random_effects.var.detach()


def test_a_forecast_uses_the_patients_random_effects(fitted):
    new = visits(20, seed=5)
    past, future = new[new.day < 3], new[new.day >= 3]
    forecast = fitted.predict(future, history=past, seed=1)
    error = np.sqrt(((forecast - future[list(SCHEMA.measurements)]) ** 2).mean().mean())
    assert error < 0.8  # noise alone has 0.5, a forecast without random effects 2.06
    plain = lacova.GPPriorVAE(SCHEMA, latent_dim=2, inducing=8, scaling="none", patient_effects=False)
    assert plain.fit(visits(), max_epochs=1).vae.random_effects is None


def test_shrunk_means_joint_draws_and_the_likelihood_of_a_row():
    model = lacova.GPPriorVAE(
        SCHEMA, latent_dim=1, inducing=4, scaling="none", patient_effects="intercept", patient_factors=0
    ).fit(visits(30), max_epochs=2)
    noise, spread = without_a_decoder(model)
    new = visits(3, seed=8)
    past, future = new[new.day < 4], new[new.day >= 4]
    total = past.groupby("id")[list(SCHEMA.measurements)].sum()
    expected = spread.numpy() * total / (noise + 4 * spread).numpy()
    forecast = model.predict(future, history=past).set_axis(future["id"])
    np.testing.assert_allclose(forecast, expected.loc[future["id"]], rtol=1e-4, atol=1e-5)
    drawn = model.sample(future.head(2), draws=4000, seed=2)["alt"].to_numpy().reshape(-1, 2)
    share = float(spread[0] / (spread[0] + noise[0]))
    assert np.corrcoef(drawn.T)[0, 1] == pytest.approx(share, abs=0.06)
    assert drawn.var() == pytest.approx(float(spread[0] + noise[0]), rel=0.1)
    y = torch.tensor(new[list(SCHEMA.measurements)].to_numpy()).float()
    marginal = torch.distributions.Normal(0.0, (noise + spread).sqrt())
    with torch.no_grad():  # q(z) close to p(z), so that importance weights hardly vary; y is independent of z
        last = model.vae.encoder.head[-1]
        last.weight.zero_(), last.bias.zero_()
    log_likelihood = model.log_likelihood(new, draws=2000).to_numpy()
    np.testing.assert_allclose(log_likelihood, marginal.log_prob(y).sum(1).numpy(), atol=0.3)


def test_imputed_entries_follow_the_patients_other_visits():
    model = lacova.GPPriorVAE(
        SCHEMA, latent_dim=1, inducing=4, scaling="none", patient_effects="intercept", patient_factors=0
    ).fit(visits(30), max_epochs=2)
    noise, spread = without_a_decoder(model)
    new = visits(3, seed=9)
    gaps = new.assign(alt=new["alt"].mask(new["day"] == 2.0))
    total = gaps.groupby("id")["alt"].sum()
    expected = float(spread[0]) * total / float(noise[0] + 5 * spread[0])
    imputed = model.impute(gaps).loc[new["day"] == 2.0].set_index("id")["alt"]
    np.testing.assert_allclose(imputed, expected, rtol=1e-4)


def test_random_effects_without_variance_change_nothing(monkeypatch):
    table = visits(10)
    model = lacova.GPPriorVAE(
        SCHEMA, latent_dim=2, inducing=6, patient_effects="intercept", patient_factors=0, fixed_effects=False
    )
    model.fit(table, max_epochs=1)
    _, vae = model.fitted()
    rows = Batches(model.encode(table)).batch(torch.arange(10))

    def terms():
        with torch.no_grad():
            return elbo(vae, rows, torch.Generator().manual_seed(0)).named()

    with_effects = terms()
    with torch.no_grad():
        vae.random_effects.raw.fill_(-60.0)
    without = terms()
    monkeypatch.setattr(
        RandomIntercepts, "gain", lambda self, location, batch, noise, fixed_part, factorisation: torch.zeros(1, 10)
    )
    assert without == pytest.approx(terms(), rel=1e-5)
    assert abs(with_effects["reconstruction"] - without["reconstruction"]) > 1.0


def test_the_encoder_sees_the_expected_random_effects_and_the_measurements_less_these():
    table = visits(10)
    model = lacova.GPPriorVAE(
        SCHEMA, latent_dim=2, inducing=6, scaling="none", patient_effects="intercept", patient_factors=0
    ).fit(table, max_epochs=1)
    _, vae = model.fitted()
    inputs = []
    vae.encoder.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments))
    with torch.no_grad():
        vae.random_effects.raw.fill_(15.0)  # without shrinkage: the expected effect is the patient's mean
        model.embed(table)
    (y, _, features), names = inputs[0], list(SCHEMA.measurements)
    mean = table.groupby("id")[names].transform("mean").to_numpy()
    np.testing.assert_allclose(y, table[names].to_numpy() - mean, atol=1e-3)
    np.testing.assert_allclose(features[:, -2:], mean, atol=1e-3)


def test_a_table_without_patients_has_no_random_effects():
    table = visits(10).drop(columns="id")
    schema = lacova.Schema(["alt", "ast"], {"day": "continuous", "sex": "categorical"})
    assert lacova.GPPriorVAE(schema, latent_dim=1).fit(table, max_epochs=1).vae.random_effects is None
    encoded = TableEncoder.learn(schema, table).encode(table)
    with pytest.raises(ValueError, match="no patients"):
        variance_parts(encoded.y, encoded.y_mask, encoded.patient)


def test_a_measurement_that_is_constant_in_training_does_not_decide_when_to_stop():
    train, held_out = visits(20), visits(6, seed=3)
    bounds = []
    for value in (0.0, 40.0):
        model = lacova.GPPriorVAE(SCHEMA, latent_dim=1, inducing=4, scaling="none")
        with pytest.warns(UserWarning, match="constant"):
            model.fit(train.assign(ast=0.0), held_out.assign(ast=value), max_epochs=3, batch_size=5)
        bounds.append(model.training["validation"])
    pd.testing.assert_series_equal(*bounds)


def test_drift_is_learnt_and_used():
    """With a random walk towards 0 in alt, a gap is filled from the visits next to it, not from the patient's mean."""
    rng = np.random.default_rng(4)
    table = visits(80, own=0.7, noise=0.1)
    walk = rng.normal(0, 1, (80, 1))
    for _ in range(5):
        last = walk[:, -1:]
        walk = np.hstack([walk, np.exp(-0.3) * last + np.sqrt(1 - np.exp(-0.6)) * rng.normal(0, 1, (80, 1))])
    table["alt"] += walk.reshape(-1)
    gaps = table.assign(alt=table["alt"].mask(table["day"] == 3.0))
    error, models = {}, {}
    for kind in (True, "intercept"):
        model = lacova.GPPriorVAE(
            SCHEMA, latent_dim=1, inducing=6, scaling="none", patient_effects=kind, fixed_effects=False
        )
        model.fit(table[table["id"] < 60], max_epochs=40, seed=0)
        imputed = model.impute(gaps[gaps["id"] >= 60], interval=0.9)
        new = table[table["id"] >= 60].reset_index(drop=True)
        at = (new["day"] == 3.0).to_numpy()
        error[kind] = np.sqrt(np.mean((imputed["alt"].to_numpy() - new["alt"])[at] ** 2))
        models[kind] = model.vae.random_effects.requires_grad_(False)
    drifting = models[True]
    rate = float(drifting.raw_rate[0].exp()) / table["day"].std()
    assert isinstance(drifting, DriftingIntercepts)
    assert not isinstance(models["intercept"], DriftingIntercepts)
    assert float(drifting.raw_drift[0].exp()) == pytest.approx(1.0, abs=0.5)
    assert rate == pytest.approx(0.3, abs=0.2)
    assert float(drifting.raw_drift[1].exp()) < 0.05  # the intercept of ast is constant
    assert error[True] < 0.8 * error["intercept"]
