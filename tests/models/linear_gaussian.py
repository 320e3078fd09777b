"""Linear Gaussian models, whose likelihood is known exactly."""

import math

import numpy as np
import pandas as pd
import torch

from lacova import Dense, Schema

TRAINED = {"schedule": "constant", "max_epochs": 250, "learning_rate": 5e-3, "batch_size": 200}


def linear_data(seed=0, n=400):
    """Draw four measurements of one latent dimension, with the same noise in all columns."""
    rng = np.random.default_rng(seed)
    loading = np.array([[1.0], [0.8], [-0.6], [0.9]])
    return pd.DataFrame(rng.normal(size=(n, 1)) @ loading.T + 0.5 * rng.normal(size=(n, 4)) + 1.0, columns=list("abcd"))


def data_with_gaps(seed=0, n=400, share=0.3):
    """Return linear Gaussian data with a share of the entries missing at random."""
    table = linear_data(seed, n)
    return table.mask(np.random.default_rng(seed + 1).random(table.shape) < share)


def fit_linear(model, gaps=0.3, encoder=(32,), **options):
    """Fit a model of one latent dimension with a linear decoder to such data."""
    table = data_with_gaps(share=gaps)
    return model(Schema(list(table), {}), latent_dim=1, networks=Dense(encoder, ())).fit(table, device="cpu", **options)


def moments(model):
    """Return mean and covariance of y, in own units, of a model with a linear decoder."""
    loading, bias = (p.detach().double().numpy() for p in model.vae.decoder.network[0].parameters())
    noise, encoder = model.vae.likelihood.noise_variance.detach().double().numpy(), model.encoder
    loading = loading * encoder.y_scale[:, None]
    return bias * encoder.y_scale + encoder.y_shift, loading @ loading.T + np.diag(noise * encoder.y_scale**2)


def observed_likelihood(mean, covariance, table):
    """Return log N(y_o) of each row."""
    log_probs = []
    for y in table.to_numpy():
        seen = ~np.isnan(y)
        rest, part = y[seen] - mean[seen], covariance[np.ix_(seen, seen)]
        quadratic = rest @ np.linalg.solve(part, rest)
        log_probs.append(-0.5 * (quadratic + np.linalg.slogdet(part)[1] + seen.sum() * math.log(2 * math.pi)))
    return np.array(log_probs)


def best_likelihood(table):
    """Return the largest mean log N(y_o) that one latent dimension can reach, by direct search."""
    y = torch.tensor(table.to_numpy())
    seen = ~y.isnan()
    y, width = y.nan_to_num(), y.shape[1]
    start = [torch.ones(width, 1), torch.zeros(width), torch.zeros(width)]
    loading, mean, log_noise = free = [part.double().requires_grad_() for part in start]
    search = torch.optim.LBFGS(free, max_iter=500, line_search_fn="strong_wolfe")

    def loss():
        search.zero_grad()
        both = seen[:, :, None] & seen[:, None, :]
        covariance = torch.where(both, loading @ loading.T + torch.diag(log_noise.exp()), torch.eye(width).double())
        rest = torch.where(seen, y - mean, 0.0)
        quadratic = (rest * torch.linalg.solve(covariance, rest[..., None])[..., 0]).sum(1)
        value = 0.5 * (quadratic + torch.linalg.slogdet(covariance)[1] + seen.sum(1) * math.log(2 * math.pi)).mean()
        value.backward()
        return value.detach()

    search.step(loss)
    return -float(loss())
