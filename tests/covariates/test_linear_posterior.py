"""The linear model that q of independent rows starts from: gaps that depend on y, and members' samples."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

import lacova
from lacova.covariates.linear_posterior import LinearPosterior
from lacova.covariates.prior import JointPrior
from lacova.data.batches import Batches
from lacova.data.table_encoder import TableEncoder
from lacova.training.members import draw_units

SCHEMA = lacova.Schema(["y"], {"x": "continuous", "g": "categorical"})


def groups(n, seed=0):
    """x = 2 in group b + N(0, 1) and y = x + 3 in group b + N(0, 1); x is missing where y is high."""
    rng = np.random.default_rng(seed)
    g = rng.integers(0, 2, n)
    x = 2.0 * g + rng.standard_normal(n)
    y = x + 3.0 * g + rng.standard_normal(n)
    table = pd.DataFrame({"y": y, "x": x, "g": np.array(["a", "b"])[g]})
    return table.assign(x=table["x"].mask(rng.random(n) < 0.8 * (y > 4.0)))


def learnt(table, rows=None):
    encoder = TableEncoder.learn(SCHEMA, table)
    encoded = encoder.encode(table)
    model = LinearPosterior(encoder.space, [0], 0)
    model.learn(encoded, torch.arange(len(table)) if rows is None else rows, 0)
    return model, encoder, encoded


def test_gaps_have_their_conditional_distribution_in_groups_and_where_they_depend_on_y():
    table = groups(4000)
    model, encoder, encoded = learnt(table)
    prior = JointPrior.learn(encoder.space, encoded, 0, components=1)
    batch = Batches(replace(encoded, conditional_prior=prior.condition(encoded))).batch(torch.arange(4000))
    flat = batch.conditional_prior.distribution
    # A prior that says nothing, so that the answer is the likelihood of y: x = y − 3 in group b, with variance 1.
    wide = replace(flat, var=torch.full_like(flat.var, 1e4), mean=torch.zeros_like(flat.mean))
    q = model(wide, batch)
    column, lost = encoder.space.names.index("x"), table["x"].isna().to_numpy()
    scale, shift = float(encoder.x_scale[column]), float(encoder.x_shift[column])
    mean = q.mean[:, column].numpy()[lost] * scale + shift
    expected = (table["y"] - 3.0 * (table["g"] == "b")).to_numpy()[lost]
    near = np.abs(mean) < 6.0  # others are clipped
    assert near.mean() > 0.9
    assert np.abs(mean - expected)[near].mean() < 0.25
    assert q.var[:, column].numpy()[lost].mean() * scale**2 == pytest.approx(1.0, abs=0.15)


def test_a_sample_counts_rows_as_often_as_they_come():
    table = groups(200)
    model, _, encoded = learnt(table, torch.randperm(200, generator=torch.Generator().manual_seed(1))[:150])
    units = draw_units(encoded, seed=2)
    model.fit(torch.bincount(units, minlength=200))
    used = torch.cat([units[units == row] for row in model.examples.row])
    again = LinearPosterior(model.space, [0], 0)
    again.learn(encoded, used, 0)
    for name in ("precision", "loadings", "noise", "of_x", "of_y"):
        assert_close(getattr(model, name), getattr(again, name), rtol=1e-6, atol=1e-3)  # shares of levels are others


def test_members_have_the_model_of_their_own_sample_and_none_keeps_rows():
    table = groups(120)
    model = lacova.CVAE(SCHEMA, latent_dim=1).fit(table, max_epochs=2, members=2, progress=False)
    starts = [vae.covariate_posterior.linear_posterior for vae in (model.vae, *model.members)]
    slopes = [float(start.loadings[0, 0]) for start in starts]
    assert len(set(slopes)) == 3
    for number, start in enumerate(starts[1:], 1):
        own, _, encoded = learnt(table)
        own.fit(torch.bincount(draw_units(encoded, 7919 * number), minlength=120))
        assert_close(start.loadings, own.loadings, rtol=1e-4, atol=1e-6)  # rows in another order
    assert all(start.examples is None for start in starts)


def test_few_rows_with_both_have_no_linear_model():
    table = groups(60)
    table.loc[19:, "x"] = np.where(table.loc[19:, "y"] > 0, np.nan, table.loc[19:, "x"])
    table.loc[table["x"].notna() & (table.index >= 19), "y"] = np.nan
    model = lacova.CVAE(SCHEMA, latent_dim=1).fit(table, max_epochs=1, progress=False)
    assert model.vae.covariate_posterior.linear_posterior is None
