"""Draws with weights: imputed covariates, summaries, quantiles and level probabilities."""

import math

import numpy as np
import pandas as pd
import torch

import lacova
from lacova.data.schema import Schema
from lacova.data.table import Table
from lacova.data.table_encoder import TableEncoder
from lacova.inference.draws import Draws
from lacova.inference.impute import weighted_covariates, weighted_draws
from lacova.inference.metrics import weighted_quantile
from lacova.inference.summaries import summarise
from tests.inference.cases import conditioned, gaussian_case, with_posterior


def test_missing_covariates_are_weighted_too():
    """The posterior of a gap in x, linear and Gaussian, from a q that is shifted and too wide."""
    vae, batch, _, mean, var = gaussian_case()
    with_posterior(vae, mean[0] + 0.3, var[0] * 1.5, mean[1] - 0.4, var[1] * 1.4)
    table = conditioned(Table(batch.y, batch.y_mask, batch.x, batch.x_mask, None, ()), vae)
    (part,) = weighted_draws(vae, table, 2_000, torch.Generator().manual_seed(0))
    assert part.weight.shape == (20_000, 1)
    torch.testing.assert_close(part.weight.sum(), torch.tensor(1.0).double())
    assert abs(weighted_covariates(part, vae.space)[0][0, 1] - mean[1]) < 0.02
    assert abs(part.average((part.x - mean[1]) ** 2)[0, 1] / var[1] - 1) < 0.05
    location = 0.2 + 0.5 * mean[0] + 0.1 * 0.4 + 0.4 * mean[1]
    assert abs(part.average(part.location)[0, 2] - location) < 0.02
    (part,) = weighted_draws(vae, table, 2_000, torch.Generator().manual_seed(0), resample=True)
    assert part.weight is None
    assert part.x.shape == (2_000, 1, 2)
    assert abs(part.x[:, 0, 1].mean() - mean[1]) < 0.05
    assert abs(part.x[:, 0, 1].var() / var[1] - 1) < 0.1


def test_summaries_are_weighted():
    """With all the weight on one draw, that draw is the mean and both ends; also on a logarithmic scale."""
    rng = np.random.default_rng(0)
    encoder = TableEncoder.learn(
        Schema({"a": "gaussian", "b": "lognormal"}, {}), pd.DataFrame(rng.lognormal(size=(30, 2)), columns=list("ab"))
    )
    y = torch.as_tensor(rng.normal(size=(3, 2, 2)), dtype=torch.float32)
    weight = torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    part = Draws(torch.arange(2), y, torch.ones(2), y, torch.zeros(3, 2, 0), weight=weight)
    summary = summarise([part], 2, encoder, 0.9)
    expected = encoder.in_own_units(torch.stack([y[2, 0], y[0, 1]]))
    for values in (summary.mean, summary.ends["lower"][0], summary.ends["upper"][0]):
        np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_weighted_quantiles():
    draws, weight = torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([[0.5], [0.2], [0.3]])
    quantiles = [float(weighted_quantile(draws, weight, share)) for share in (0.1, 0.3, 0.49, 0.6, 1.0)]
    assert quantiles == [1.0, 2.0, 2.0, 3.0, 3.0]


def test_level_probabilities_are_weighted():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"grade": rng.choice(["low", "high"], 60), "a": rng.normal(size=60)})
    model = lacova.MIWAE(Schema({"grade": "bernoulli", "a": "gaussian"}, {}), latent_dim=1)
    vae = model.fit(table, max_epochs=1, device="cpu").vae
    outputs = torch.tensor([[[-2.0, 0.0]], [[3.0, 0.0]]])
    observed = vae.observe(outputs, None, torch.Generator().manual_seed(0))
    odds = float(vae.likelihood.families["bernoulli"].base)
    probability = vae.level_probabilities(observed, torch.tensor([[0.9], [0.1]]))[0, 0, 1]
    expected = 0.9 / (1 + math.exp(2.0 - odds)) + 0.1 / (1 + math.exp(-3.0 - odds))
    assert abs(float(probability) - expected) < 1e-6
