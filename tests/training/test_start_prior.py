"""A Gaussian-process prior of few rows starts from a regression on its kernel."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import MultivariateNormal

from lacova import FitOptions, GPPriorVAE, Schema
from lacova.models.builder import build
from lacova.models.fitting import read_training_data
from lacova.priors.gp.bounds import project
from lacova.training import start_prior
from lacova.training.distributed import SINGLE
from lacova.training.start import start_from_factors
from lacova.training.start_prior import regress, signals


def rows_table(n, measurements=1, seed=0):
    rng = np.random.default_rng(seed)
    x0, x1 = rng.normal(size=(2, n))
    arm = rng.permutation(n) % 2
    table = pd.DataFrame({"x0": x0, "x1": x1, "arm": np.array(["a", "b"])[arm]})
    for k in range(measurements):
        table[f"y{k}"] = (k + 1) * x0 + 0.5 * x1 - k * arm + rng.normal(size=n)
    return table


def assembled(table, **settings):
    covariates = {"x0": "continuous", "x1": "continuous", "arm": "categorical"}
    model = GPPriorVAE(Schema([name for name in table if name[0] == "y"], covariates), **settings)
    data = read_training_data(model, table, None, FitOptions(), torch.device("cpu"), SINGLE)
    torch.manual_seed(0)
    return build(model, data.encoder, data.table, 0), data


def problem(n, measurements, inducing, missing=0.0):
    """Projections and k(x, x) under a kernel of variance 1, residuals and mask, and the kernel matrix of the rows."""
    vae, data = assembled(rows_table(n, measurements), inducing=inducing, latent_dim=1)
    x, kernel = data.table.x.double(), vae.prior.kernel
    with torch.no_grad():
        a = project(kernel, vae.prior.inducing.inputs, x)[0]
        dense, prior_var = kernel(x, x, kernel.shared)[0], kernel.diagonal(x, kernel.shared)[0]
    mask = (torch.rand(n, measurements, generator=torch.Generator().manual_seed(1)) >= missing).double()
    return a, prior_var, data.table.y.double() * mask, mask, dense


def evidence(dense, variance, noise, y):
    covariance = variance * dense + noise * torch.eye(len(y), dtype=y.dtype)
    return MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)


def test_the_regression_is_that_of_a_dense_gaussian_process():
    a, prior_var, y, mask, dense = problem(25, 2, inducing=25, missing=0.2)
    result = regress(a, prior_var, y, mask, 0.0)
    total = 0.0
    for d in range(2):
        seen = mask[:, d].bool()
        variance, noise, own = result.variance[d], result.noise[d], y[seen, d]
        inner = variance * dense[seen][:, seen] + noise * torch.eye(len(own), dtype=own.dtype)
        mean = variance * dense[:, seen] @ torch.linalg.solve(inner, own)
        # The jitter of K_SS, 1e-8, is not in the dense matrix.
        torch.testing.assert_close(a.mT @ result.coefficients[:, d], mean, rtol=1e-5, atol=1e-6)
        total += float(evidence(dense[seen][:, seen], variance, noise, own))
    assert result.evidence == pytest.approx(total, rel=1e-6)


def test_the_noise_is_the_best_given_the_ratio():
    a, prior_var, y, mask, dense = problem(25, 1, inducing=25)
    result = regress(a, prior_var, y, mask, 0.0)
    variance, noise = result.variance[0], result.noise[0]
    others = [evidence(dense, f * variance, f * noise, y[:, 0]) for f in (0.9, 1.1)]
    assert result.evidence > max(map(float, others))


def test_with_fewer_inducing_inputs_the_evidence_is_a_lower_bound():
    a, prior_var, y, mask, dense = problem(40, 1, inducing=8)
    result = regress(a, prior_var, y, mask, 0.0)
    variance, noise = result.variance[0], result.noise[0]
    exact = float(evidence(dense, variance, noise, y[:, 0]))
    assert result.evidence < exact - 0.01
    low_rank = a.mT @ a
    left = 0.5 * float(variance / noise * (dense - low_rank).diagonal().sum())
    assert result.evidence == pytest.approx(float(evidence(low_rank, variance, noise, y[:, 0])) - left, rel=1e-8)


def test_signals_add_up_to_what_x_explains_and_take_their_share_of_the_noise(monkeypatch):
    monkeypatch.setattr(start_prior, "LEAST_SHARE", 0.0)
    a, prior_var, y, mask, _ = problem(60, 3, inducing=60)
    result = regress(a, prior_var, y, mask, 1.0)
    of_x = signals(result, a, 3)
    torch.testing.assert_close(of_x.mean @ of_x.loadings.mT, a.mT @ result.coefficients, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(of_x.mean.square().mean(0) + of_x.noise, torch.ones(3, dtype=torch.double))
    taken = of_x.loadings.square() @ of_x.noise
    assert (taken <= start_prior.SHARE_OF_NOISE * result.noise * (1.0 + 1e-8)).all()
    # Of one measurement, f has the prior variance of the regression.
    alone = regress(a, prior_var, y[:, :1], mask[:, :1], 1.0)
    one = signals(alone, a, 1)
    torch.testing.assert_close(one.variance * one.loadings[0].square(), alone.variance)
    assert float(one.loadings.square()[0] @ one.noise) == pytest.approx(0.5 * float(alone.noise[0]))


@pytest.mark.parametrize("measurements", [1, 2])
def test_the_start_knows_what_x_explains(measurements):
    table = rows_table(60, measurements)
    vae, data = assembled(table)
    start_from_factors(vae, data.table, 0)
    prior, x = vae.prior, data.table.x.double()
    with torch.no_grad():
        a = project(prior.kernel, prior.inducing.inputs, x)
        z = torch.einsum("lmn,lm->nl", a, prior.inducing.distribution().mean)
        predicted = vae.decode(z.float(), data.table.x)
    design = np.column_stack([np.ones(60), table.x0, table.x1, table.arm == "b"])
    y = data.table.y.numpy()
    line = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    assert np.sqrt(np.mean((predicted.numpy() - line) ** 2)) < 0.25 * line.std()
    # What noise and z hold together is about the variance that the line leaves.
    held = vae.likelihood.noise_variance + vae.decoder.linear.weight.square() @ prior.noise.float()
    np.testing.assert_allclose(held.detach(), (y - line).var(axis=0), rtol=0.4)


def test_only_few_independent_rows_have_such_a_start(monkeypatch):
    monkeypatch.setattr("lacova.training.start.FEW_ROWS", 50)
    for n, starts in ((49, True), (50, False)):
        vae, data = assembled(rows_table(n))
        start_from_factors(vae, data.table, 0)
        assert bool(vae.prior.inducing.shift.any()) is starts
