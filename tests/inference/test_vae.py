"""Measurements that the encoder does not see in training: the bound still asks for them, and gaps become familiar."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

import lacova
from lacova.inference.objective import bound, weighted
from lacova.training.options import FitOptions
from tests.training.test_cuda_graph import training_batch_of


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def first_lesson(make="patients"):
    vae, _, rows = training_batch_of(make, None)
    return vae, next(iter(rows.epoch(vae, 0)))


def test_a_row_hides_anything_between_nothing_and_the_share():
    vae, training_batch = first_lesson()
    many = replace(training_batch.shown, x=training_batch.shown.x.new_zeros(20_000, training_batch.shown.x.shape[1]))
    plain, noise = vae.draw_eps(many, 1, generator()), vae.draw_eps(many, 1, generator(), dropout=0.6)
    assert plain.dropped_y is None
    assert_close(noise.z, plain.z, rtol=0, atol=0)  # what else is drawn stays as it was
    assert noise.dropped_y.float().mean() == pytest.approx(0.3, abs=0.01)
    assert_close(noise.rows(slice(3, 9)).dropped_y, noise.dropped_y[3:9])
    together = torch.cov(noise.dropped_y.float().T)[0, 1]
    assert together == pytest.approx(0.6**2 / 12, abs=0.005)  # the variance of a row's share


@pytest.mark.parametrize("estimate", ["bound", "weighted"])
def test_the_encoder_does_not_see_them_and_the_bound_asks_for_all(estimate, monkeypatch):
    vae, training_batch = first_lesson("rows, weighted" if estimate == "weighted" else "patients")
    batch, noise = training_batch.shown, vae.draw_eps(training_batch.shown, 3, generator(), dropout=0.8)
    q_x = vae.covariate_posterior(batch)

    def terms(rows, numbers):
        if estimate == "weighted":
            found = weighted(vae, rows, numbers, q_x)
        else:
            found = bound(vae, rows, training_batch.how, numbers, q_x)
        return torch.stack([found.reconstruction, found.kl_latent, found.elbo])

    seen = batch.y_mask & ~noise.dropped_y
    seen[~seen.any(1)] = batch.y_mask[~seen.any(1)]  # a row that has lost all it had is shown whole
    assert (seen.any(1) == batch.y_mask.any(1)).all()
    found, thinned = terms(batch, noise), replace(batch, y_mask=seen)
    q_z, bare = vae.latents(thinned), replace(noise, dropped_y=None)
    junk = replace(batch, y=torch.where(batch.y_mask & ~seen, batch.y + 9.0, batch.y))
    assert_close(vae.latents(junk, noise.dropped_y)[:2], q_z[:2])
    assert (found - terms(thinned, bare)).abs()[0] > 1.0  # fewer measurements are asked for there
    monkeypatch.setattr(vae, "latents", lambda *_: q_z)
    assert_close(found, terms(batch, bare))


def test_gaps_that_training_rows_do_not_have_are_coped_with():
    """Columns of one factor, complete in training; then two of five are hidden."""
    rng = np.random.default_rng(0)
    names = list("abcde")
    values = rng.normal(size=(600, 1)) @ np.ones((1, 5)) + 0.5 * rng.normal(size=(600, 5))
    table = pd.DataFrame(values, columns=names)
    train, test = table[:400], table[400:]
    gone = rng.random((200, 5)) < 0.4
    rmse, coverage = {}, {}
    for dropout in (0.0, 0.6):
        model = lacova.VAE(lacova.Schema(names, {}), latent_dim=4)
        model.fit(train, max_epochs=60, learning_rate=0.005, encoder_dropout=dropout, device="cpu")
        found = model.impute(test.mask(gone), interval=0.9)
        truth = test.to_numpy()[gone]
        low, high, mean = (found[[f"{n}{end}" for n in names]].to_numpy()[gone] for end in ("_lower", "_upper", ""))
        rmse[dropout], coverage[dropout] = (
            np.sqrt(((mean - truth) ** 2).mean()),
            ((low <= truth) & (truth <= high)).mean(),
        )
    assert rmse[0.6] < rmse[0.0]
    assert abs(coverage[0.6] - 0.9) < 0.05


def test_a_share_is_between_none_and_all():
    with pytest.raises(ValueError, match=r"encoder_dropout must lie in \[0, 1\], got 1.5"):
        FitOptions(encoder_dropout=1.5)
