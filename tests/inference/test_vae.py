"""Measurements that are hidden from the encoder in training: the bound has all of them, and gaps are imputed better."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

import lacova
from lacova.data.table_encoder import TableEncoder
from lacova.inference.objective import bound
from lacova.models.builder import build
from lacova.training.options import FitOptions
from tests.inference.cases import generator, whole_batch
from tests.tables import ROWS, VISITS, visits


def vae_and_batch(longitudinal=True):
    """Return an untrained model of visits with random effects, or of rows, in float64, and a batch with gaps."""
    if longitudinal:
        model = lacova.GPPriorVAE(VISITS, latent_dim=2, inducing=5)
    else:
        model = lacova.GPPriorVAE(ROWS, prior="gp(age):cat(sex)", latent_dim=2, inducing=5)
    table = visits(patients=7, gaps=0.3)
    encoder = TableEncoder.learn(model.schema, table)
    encoded = encoder.encode(table, dtype=torch.float64)
    torch.manual_seed(0)
    vae = build(model, encoder, encoded, 0).double()
    return vae, whole_batch(encoded, vae)


def test_a_row_hides_anything_between_nothing_and_the_share():
    vae, batch = vae_and_batch()
    many = replace(batch, x=batch.x.new_zeros(20_000, batch.x.shape[1]))
    without, eps = vae.draw_eps(many, 1, generator()), vae.draw_eps(many, 1, generator(), dropout=0.6)
    assert without.dropped_y is None
    assert_close(eps.z, without.z, rtol=0, atol=0)  # the other random numbers are the same
    assert eps.dropped_y.float().mean() == pytest.approx(0.3, abs=0.01)
    assert_close(eps.rows(slice(3, 9)).dropped_y, eps.dropped_y[3:9])
    covariance = torch.cov(eps.dropped_y.float().T)[0, 1]
    assert covariance == pytest.approx(0.6**2 / 12, abs=0.005)  # the variance of a row's share


@pytest.mark.parametrize("importance", [False, True], ids=["bound", "weighted"])
def test_the_encoder_does_not_see_hidden_measurements_and_the_bound_has_all(importance, monkeypatch):
    vae, batch = vae_and_batch(longitudinal=not importance)
    eps = vae.draw_eps(batch, 3, generator(), dropout=0.8)
    plan = vae.plan(batch.x_mask, batch.patient, 3, None)

    def terms(rows, draws):
        values = bound(vae, rows, plan, draws, importance=importance)
        return torch.stack([values.reconstruction, values.kl_latent, values.elbo])

    shown = batch.y_mask & ~eps.dropped_y
    shown[~shown.any(1)] = batch.y_mask[~shown.any(1)]  # a row that would lose all measurements keeps them
    assert (shown.any(1) == batch.y_mask.any(1)).all()
    values, thinned = terms(batch, eps), replace(batch, y_mask=shown)
    q_z, without = vae.latents(thinned), replace(eps, dropped_y=None)
    other = replace(batch, y=torch.where(batch.y_mask & ~shown, batch.y + 9.0, batch.y))
    assert_close(vae.latents(other, eps.dropped_y)[:2], q_z[:2])
    assert (values - terms(thinned, without)).abs()[0] > 1.0  # which has fewer measurements
    latents = vae.latents
    monkeypatch.setattr(vae, "latents", lambda *_, lines=None: latents(thinned, lines=lines))
    assert_close(values, terms(batch, without))


def test_dropout_makes_up_for_gaps_that_training_rows_do_not_have():
    """Columns of one factor are complete in training; then two of five are hidden."""
    rng = np.random.default_rng(0)
    names = list("abcde")
    values = rng.normal(size=(600, 1)) @ np.ones((1, 5)) + 0.5 * rng.normal(size=(600, 5))
    table = pd.DataFrame(values, columns=names)
    train, test = table[:400], table[400:]
    gaps = rng.random((200, 5)) < 0.4
    rmse, coverage = {}, {}
    for dropout in (0.0, 0.6):
        model = lacova.VAE(lacova.Schema(names, {}), latent_dim=4)
        model.fit(train, max_epochs=60, learning_rate=0.005, encoder_dropout=dropout, device="cpu")
        imputed, truth = model.impute(test.mask(gaps), interval=0.9), test.to_numpy()[gaps]
        low, high, mean = (imputed[[f"{n}{end}" for n in names]].to_numpy()[gaps] for end in ("_lower", "_upper", ""))
        rmse[dropout] = np.sqrt(((mean - truth) ** 2).mean())
        coverage[dropout] = ((low <= truth) & (truth <= high)).mean()
    assert rmse[0.6] < rmse[0.0]
    assert abs(coverage[0.6] - 0.9) < 0.05


def test_a_share_is_between_0_and_1():
    with pytest.raises(ValueError, match=r"encoder_dropout must lie in \[0, 1\], got 1.5"):
        FitOptions(encoder_dropout=1.5)


def test_embedding_is_that_of_the_encoder():
    table = visits(patients=7, gaps=0.3).reset_index(drop=True)
    model = lacova.CVAE(ROWS, latent_dim=1, networks=lacova.Dense((4,), (4,))).fit(table, max_epochs=1, device="cpu")
    z = model.embed(table.set_index(table.index + 7))
    assert list(z.columns) == ["z1", "z1_var"]
    assert z.index.tolist() == list(range(7, 7 + len(table)))
    encoder, vae = model.fitted()
    encoded = encoder.encode(table)
    features = torch.cat([encoder.space.values(encoded.x, encoded.x_mask), encoded.x_mask.float()], dim=1)
    mean, var = vae.encoder(encoded.y, encoded.y_mask, features)
    complete = encoded.x_mask.all(1).numpy()
    assert 0 < complete.sum() < len(table)
    assert np.allclose(z[complete], torch.cat([mean, var], 1).detach().numpy()[complete], atol=1e-6)
    assert (z["z1_var"] > 0).all()


@torch.no_grad()
def test_moments_of_q_where_covariates_are_missing_are_those_over_their_draws(monkeypatch):
    vae, batch = vae_and_batch(longitudinal=False)
    draws = 20_000
    x = vae.draw_covariates(batch, draws, generator(1))
    features = torch.cat([vae.space.values(x.flatten(0, 1)), batch.x_mask.double().repeat(draws, 1)], 1)
    mean, var = vae.encoder(batch.y.repeat(draws, 1), batch.y_mask.repeat(draws, 1), features)
    mean, var = (part.unflatten(0, (draws, -1)) for part in (mean, var))
    alone = vae.encode(batch.take(torch.arange(len(batch)) < 3))
    assert_close(alone[0], vae.encode(batch)[0][:3])  # whatever the batch
    monkeypatch.setattr("lacova.inference.vae.ENCODING_DRAWS", draws)
    own_mean, own_var = vae.encode(batch)
    assert ((own_mean - mean.mean(0)).abs() <= 6 * mean.std(0) / draws**0.5 + 1e-9).all()
    gaps = ~batch.x_mask.all(1)
    assert (mean.var(0)[gaps] > 0).all()  # q(z) depends on the missing covariates
    within = own_var - mean.var(0)
    assert ((within - var.mean(0)).abs() <= 6 * var.std(0) / draws**0.5 + 0.1 * mean.var(0) + 1e-9).all()
    complete = vae.latents(batch)
    assert_close(own_mean[~gaps], complete.mean[~gaps])


def test_an_update_of_the_covariate_prior_stays_where_it_is_in_memory():
    """A captured graph reads the prior at the addresses at which it was recorded."""
    table = pd.DataFrame({"a": np.arange(20.0), "c": list("xyxyz") * 4, "y": np.arange(20.0)})
    schema = lacova.Schema(["y"], {"a": "continuous", "c": "categorical"})
    model = lacova.CVAE(schema, latent_dim=1).fit(table, max_epochs=1)
    encoder, vae = model.fitted()
    before = {name: (value.data_ptr(), value.clone()) for name, value in vae.covariate_prior.state_dict().items()}
    vae.update_prior(encoder.encode(table.assign(a=np.arange(20.0) ** 2)))
    after = vae.covariate_prior.state_dict()
    assert all(after[name].data_ptr() == place for name, (place, _) in before.items())
    assert any(not torch.equal(after[name], value) for name, (_, value) in before.items())
