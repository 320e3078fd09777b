"""The temporal prior, the chain of q(Z) and the predictions of GPVAE against dense algebra, row by row."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

from lacova import GPVAE, Dense, Schema
from lacova.covariates.scenarios import complete
from lacova.data.batches import Batch, Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.table import Table
from lacova.inference.objective import elbo, log_likelihood, weighted
from lacova.nn.structured import ChainEncoder
from lacova.priors.base import History
from lacova.priors.temporal import NUGGET, SeriesPrior
from tests.priors.cases import Given

SPACE = CovariateSpace(("day", "age"), (0, 0), (False, False))
LATENT, TIME = 2, 0
DAYS = [0.3, -1.2, 0.9, 0.1, 2.0, 0.4, 0.4, -0.7, 1.5]  # out of order, and two at the same time
PATIENT = [0, 0, 0, 0, 1, 2, 2, 2, 2]
UNSEEN = [2, 8]
APART = [*DAYS[:6], 1.1, *DAYS[7:]]


def close(one, other, rtol=1e-8):
    torch.testing.assert_close(one, other, rtol=rtol, atol=1e-12)


def rows(time_gaps=()):
    """Rows of three patients in float64; nothing is measured at two of them."""
    generator = torch.Generator().manual_seed(0)
    n = len(DAYS)
    y = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y_mask = torch.rand(n, 3, generator=generator) < 0.7
    y_mask[:, 0] = True
    y_mask[UNSEEN] = False
    x = torch.stack([torch.tensor(DAYS, dtype=torch.float64), torch.arange(n).double()], dim=1)
    x_mask = torch.ones(n, 2, dtype=torch.bool)
    x_mask[list(time_gaps), TIME] = False
    return Batch(y, y_mask, x, x_mask, torch.tensor(PATIENT), 1.7, None, 3)


class FeatureHead(nn.Module):
    """A head that returns the covariate features, which follow the measurements of a row."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, inputs):
        return inputs[:, self.width : self.width + 3 * LATENT]


def chained(batch, seed=1):
    """q(Z) of a batch with known parameters: mean, log-variance and artanh of the correlation (N×L each)."""
    features = torch.randn(len(batch), 3 * LATENT, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    encoder = ChainEncoder(Dense((4,), ()), 3, 3 * LATENT, LATENT, time=TIME)
    encoder.head = FeatureHead(encoder.measurements.width)
    return encoder.latents(batch.y, batch, features), features.chunk(3, dim=1)


def in_time(batch, days=DAYS):
    """Rows with a measurement of each patient, in the order of time."""
    seen = [i for i in range(len(batch)) if batch.y_mask[i].any()]
    return [sorted((i for i in seen if batch.patient[i] == p), key=lambda i: days[i]) for p in range(batch.patients)]


def precision(series, log_var, raw, l):  # noqa: E741
    """Bᵀ B of one series and latent dimension, B upper bidiagonal: entry by entry."""
    b = torch.zeros(len(series), len(series), dtype=torch.float64)
    for k, i in enumerate(series):
        b[k, k] = torch.exp(-0.5 * log_var[i, l])
        if k + 1 < len(series):
            r = torch.tanh(raw[i, l])
            slope = r * torch.exp(0.5 * (log_var[i, l] - log_var[series[k + 1], l]))
            b[k, k] /= (1 - r**2).sqrt()
            b[k, k + 1] = -slope * b[k, k]
    return b.mT @ b


def covariance(days, kernel="cauchy", scale=0.8):
    k = torch.zeros(len(days), len(days), dtype=torch.float64)
    for i, one in enumerate(days):
        for j, other in enumerate(days):
            d2 = ((one - other) / scale) ** 2
            k[i, j] = (1 - NUGGET) * (1 / (1 + d2) if kernel == "cauchy" else np.exp(-d2 / 2)) + NUGGET * (i == j)
    return k


def prior(kernel="cauchy", learn=False):
    return SeriesPrior(LATENT, TIME, kernel, 0.8, learn)


def q_x(batch):
    return FactorisedDistribution(batch.x + 0.3, torch.full_like(batch.x, 0.5), batch.x.new_zeros(*batch.x.shape, 0))


def scenarios(batch, samples=1):
    return complete(
        q_x(batch), batch, SPACE, couple=True, samples=samples, columns=prior().scenario_columns,
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip


def test_draws_have_the_inverse_of_the_banded_precision_as_covariance():
    batch = rows()
    q, (mean, log_var, raw) = chained(batch)
    n = len(batch)
    # Draws are linear in eps: one unit vector at a time gives the map itself.
    unit = torch.zeros(n * LATENT, n, LATENT, dtype=torch.float64)
    unit[torch.arange(n * LATENT), torch.arange(n * LATENT) // LATENT, torch.arange(n * LATENT) % LATENT] = 1.0
    centre = q.draw(torch.zeros(1, n, LATENT, dtype=torch.float64))[0]
    step = q.draw(unit) - centre
    spread = torch.einsum("kil,kjm->ilmj", step, step)  # Cov[z_il, z_jm]
    close(centre[[i for s in in_time(batch) for i in s]], mean[[i for s in in_time(batch) for i in s]])
    expected = torch.zeros_like(spread)
    for series in in_time(batch):
        for l in range(LATENT):  # noqa: E741
            expected[np.ix_(series, [l], [l], series)] = torch.linalg.inv(precision(series, log_var, raw, l))[
                :, None, None
            ]
    for i in UNSEEN:
        expected[i, :, :, i] = torch.eye(LATENT)
    close(spread, expected)
    close(q.var, torch.stack([spread[i].diagonal(dim1=0, dim2=1)[i] for i in range(n)]))


def test_a_long_series_has_the_variances_of_the_head():
    """Each visit varies more than the next and is correlated with it: the coefficients exceed 1 throughout."""
    days = torch.arange(60.0)[:, None]
    table = Table(torch.ones(60, 1), torch.ones(60, 1, dtype=torch.bool), days, torch.ones(60, 1, dtype=torch.bool),
                  torch.zeros(60, dtype=torch.long), ("p",))  # fmt: skip
    batch = Batches(table).batch(torch.tensor([0]))
    encoder = ChainEncoder(Dense((4,), ()), 1, 0, 1, time=0)
    falling = torch.linspace(2.0, -6.0, 60)
    encoder.head = Given(torch.stack([torch.zeros(60), falling, torch.full((60,), 9.0)], dim=1))
    q = encoder.latents(batch.y, batch, torch.zeros(60, 0))
    close(q.chain.root[0, 0].square().sum(-1), falling.exp(), rtol=1e-5)
    close(q.var[:, 0], falling.exp(), rtol=1e-5)
    assert q.chain.root.diagonal(dim1=-2, dim2=-1).min() > 0


@pytest.mark.parametrize("kernel", ["cauchy", "se"])
def test_kl_equals_the_dense_kl(kernel):
    batch = rows()
    q, (mean, log_var, raw) = chained(batch)
    terms = prior(kernel).kl(scenarios(batch), batch, q, q_x(batch))
    total = 0.0
    for series in in_time(batch):
        for l in range(LATENT):  # noqa: E741
            q_z = MultivariateNormal(mean[series, l], precision_matrix=precision(series, log_var, raw, l))
            days = [DAYS[i] for i in series]
            total += kl_divergence(q_z, MultivariateNormal(torch.zeros(len(series)).double(), covariance(days, kernel)))
    close(terms.latent, 1.7 * total)
    assert terms.inducing == 0


def test_kl_averages_over_missing_times_in_any_order():
    batch = rows(time_gaps=[0, 7])
    q, (mean, log_var, raw) = chained(batch)
    completed = scenarios(batch, samples=5)
    assert len(completed.weight) == 5 + 1 + 5
    total = 0.0
    for v in range(len(completed.weight)):
        lines = (completed.scenario == v).nonzero()[:, 0].tolist()
        at = {int(completed.row[e]): float(completed.x[e, TIME]) for e in lines}
        series = next(s for s in in_time(batch) if s[0] in at)
        for l in range(LATENT):  # noqa: E741
            q_z = MultivariateNormal(mean[series, l], precision_matrix=precision(series, log_var, raw, l))
            k = covariance([at[i] for i in series])
            total += completed.weight[v] * kl_divergence(q_z, MultivariateNormal(torch.zeros(len(series)).double(), k))
    close(prior().kl(completed, batch, q, q_x(batch)).latent, 1.7 * total)


def test_rows_without_measurements_add_nothing_to_the_kl():
    batch = rows()
    measured = batch.y_mask.any(1)
    fewer = batch.take(measured)
    q, parts = chained(batch)
    encoder = ChainEncoder(Dense((4,), ()), 3, 3 * LATENT, LATENT, time=TIME)
    encoder.head = FeatureHead(encoder.measurements.width)
    features = torch.cat(parts, dim=1)
    q_fewer = encoder.latents(fewer.y, fewer, features[measured])
    q_padded = encoder.latents(batch.y, replace(batch, longest=7), features)
    kl, kl_fewer, kl_padded = (
        prior().kl(scenarios(rows), rows, q_z, q_x(rows)).latent
        for rows, q_z in ((batch, q), (fewer, q_fewer), (batch, q_padded))
    )
    close(kl_fewer, kl)
    close(kl_padded, kl)
    eps = torch.randn(4, len(batch), LATENT, dtype=torch.float64)
    close(q.draw(eps)[:, measured], q_fewer.draw(eps[:, measured]))
    close(q.draw(eps), q_padded.draw(eps))
    close(q.take(measured).draw(eps[:, measured]), q_fewer.draw(eps[:, measured]))


def test_the_encoder_of_a_visit_depends_on_its_neighbours_in_time_only():
    batch = rows()
    torch.manual_seed(0)
    encoder = ChainEncoder(Dense((6,), ()), 3, 2, LATENT, time=TIME).double()
    features = torch.zeros(len(batch), 2, dtype=torch.float64)
    y = batch.y.clone().requires_grad_()
    mean = encoder.latents(y, batch, features).mean
    series = in_time(batch)
    for line in series:
        for k, i in enumerate(line):
            slope = torch.autograd.grad(mean[i].sum(), y, retain_graph=True)[0]
            assert set(slope.abs().sum(1).nonzero()[:, 0].tolist()) == set(line[max(k - 1, 0) : k + 2])


def test_prediction_at_new_times_conditions_on_the_posterior_of_the_history():
    batch = rows()
    q, (mean, log_var, raw) = chained(batch)
    past = torch.ones(len(batch), dtype=torch.bool)
    new = torch.tensor([[0.0, 0.0], [0.5, 0.0], [5.0, 0.0], [0.4, 0.0]], dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 2])
    versions = 2  # the second one half a unit later, its history at twice the times
    other = new + torch.tensor([0.5, 0.0])
    x = torch.cat([batch.x, 2.0 * batch.x])
    history = History(
        x, q.mean.repeat(versions, 1), q.var.repeat(versions, 1), torch.tensor(PATIENT * versions),
        torch.zeros(3 * versions), q.chain.take(past, versions),
    )  # fmt: skip
    both, groups = torch.cat([new, other]), torch.cat([group, group + 3])
    predicted_mean, predicted_var = prior().predict(both, groups, history)
    blocks = prior()._blocks(both, groups, history)[1]
    for k, (patient, times) in enumerate(
        [(p, block[group == p, 0].tolist()) for block in (new, other) for p in range(3)]
    ):
        series = in_time(batch)[patient]
        days, m = [DAYS[i] * (1 + k // 3) for i in series], len(times)
        joint = covariance(days + times)
        khh, ksh = joint[: len(days), : len(days)], joint[len(days) :, : len(days)]
        gain = ksh @ torch.linalg.inv(khh)
        for l in range(LATENT):  # noqa: E741
            spread = torch.linalg.inv(precision(series, log_var, raw, l))
            expected = joint[len(days) :, len(days) :] - gain @ ksh.mT + gain @ spread @ gain.mT
            place = (groups == k).nonzero()[:, 0]
            close(predicted_mean[place, l], gain @ mean[series, l])
            close(predicted_var[place, l], expected.diagonal())
            close(blocks[l, k, :m, :m], expected)


def test_without_history_moments_and_draws_are_those_of_the_prior():
    x = torch.tensor([[0.0, 1.0], [0.4, 1.0], [0.9, 2.0]], dtype=torch.float64)
    group = torch.tensor([0, 0, 1])
    mean, var = prior("se").predict(x, group)
    close(mean, torch.zeros(3, LATENT, dtype=torch.float64))
    close(var, torch.ones(3, LATENT, dtype=torch.float64))
    draws = prior("se").sample(x, group, torch.Generator().manual_seed(0), times=20_000).unflatten(0, (-1, 3))
    k = covariance([0.0, 0.4], "se")
    product = draws[:, 0] * draws[:, 1]
    error = product.std(0) / len(draws) ** 0.5
    assert ((product.mean(0) - k[0, 1]).abs() < 5 * error).all()
    assert ((draws[:, 0] * draws[:, 2]).mean(0).abs() < 5 * error).all()


def fitted(posterior="banded", table=None, **more):
    schema = Schema(["a", "b"], {"sex": "categorical"}, instance="id", time="day", static=["sex"])
    model = GPVAE(schema, latent_dim=2, networks=Dense((8,), (8,)), length_scale=2.0, posterior=posterior, **more)
    return model.fit(series_table() if table is None else table, max_epochs=2)


def series_table(patients=8, visits=6, seed=0, gaps=0.3):
    """Two measurements of one smooth curve per series, at irregular times."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), visits)
    day = rng.uniform(0, 6, len(who))
    curve = np.sin(day + rng.uniform(0, 6, patients)[who])
    noise = rng.normal(0, 0.1, (len(who), 2))  # of observation
    table = pd.DataFrame({"id": who, "day": day, "sex": np.array(["f", "m"])[who % 2], "a": curve + noise[:, 0]})
    table["b"] = 5 - 2 * curve + noise[:, 1]
    table[["a", "b"]] = table[["a", "b"]].mask(rng.random((len(who), 2)) < gaps)
    return table.sample(frac=1.0, random_state=seed, ignore_index=True)


def test_the_bound_meets_the_likelihood_at_the_true_posterior():
    """Two visits with a linear decoder: their posterior is a chain, and the bound is then the likelihood itself."""
    schema = Schema(["a", "b"], {}, instance="id", time="day")
    model = GPVAE(schema, latent_dim=1, networks=Dense((8,), (8,)), length_scale=2.0)
    vae = model.fit(series_table(), max_epochs=1).vae.double()
    loading, noise = torch.tensor([0.9, -0.4], dtype=torch.float64), vae.likelihood.noise_variance.detach()
    days = torch.tensor([0.2, 0.9], dtype=torch.float64)
    y = torch.tensor([[0.5, -0.1], [0.2, 0.3]], dtype=torch.float64)
    k = covariance(days.tolist(), scale=vae.prior.log_length_scale.exp().item())
    spread = torch.linalg.inv(torch.linalg.inv(k) + (loading**2 / noise).sum() * torch.eye(2))
    mean = spread @ (y @ (loading / noise))
    var = spread.diagonal()
    raw = (spread[0, 1] / var.prod().sqrt()).atanh()
    vae.encoder.head = Given(torch.stack([mean, var.log(), torch.stack([raw, raw])], dim=1))
    vae.decoder = Given(lambda z: z * loading)
    full, x = torch.ones(2, 2, dtype=torch.bool), days[:, None]
    table = Table(y, full, x, full[:, :1], torch.tensor([0, 0]), ("p",))
    batch = Batches(vae.condition(table)).batch(torch.tensor([0]))
    terms = elbo(vae, batch, torch.Generator().manual_seed(0), samples=20_000)
    dense = torch.kron(k, torch.outer(loading, loading)) + torch.diag(noise.repeat(2))
    exact = MultivariateNormal(torch.zeros(4, dtype=torch.float64), dense).log_prob(y.flatten())
    assert terms.elbo.item() == pytest.approx(exact.item(), abs=0.02)  # the draws' own error is about a quarter of it


def measurement_covariance(vae, days, loading):
    """The covariance of all measurements of a series under a linear decoder, visit by visit."""
    total = torch.diag(vae.likelihood.noise_variance.detach().repeat(len(days)))
    for l in range(LATENT):  # noqa: E741
        k = covariance(days, scale=float(vae.prior.log_length_scale[l].exp()))
        total = total + torch.kron(k, torch.outer(loading[l], loading[l]))
    return total


def linear_case():
    """A model after little training with a known linear decoder, and three series with gaps."""
    vae = fitted().vae.double()
    loading = torch.tensor([[0.9, -0.4], [0.3, 0.5]], dtype=torch.float64)
    vae.decoder = Given(lambda z: z @ loading)
    y = torch.randn(len(DAYS), 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mask = torch.ones(len(DAYS), 2, dtype=torch.bool)
    mask[[0, 4], [1, 0]] = False
    mask[UNSEEN] = False
    x = torch.zeros(len(DAYS), 2, dtype=torch.float64)
    x[:, vae.prior.time] = torch.tensor(APART, dtype=torch.float64)
    table = Table(y, mask, x, torch.ones_like(mask), torch.tensor(PATIENT), ("p", "q", "r"))
    return vae, Batches(vae.condition(table)).batch(torch.arange(3)), loading


def importance_weighted(vae, batch, draws, generator):
    return weighted(vae, batch, vae.draw_eps(batch, draws, generator), vae.covariate_posterior(batch))


def test_importance_weighted_bound_of_series_tends_to_their_likelihood():
    vae, batch, loading = linear_case()
    exact = 0.0
    for p in range(3):
        series = [i for i in range(len(DAYS)) if PATIENT[i] == p]
        at = batch.y_mask[series].flatten()
        dense = measurement_covariance(vae, [APART[i] for i in series], loading)[at][:, at]
        normal = MultivariateNormal(torch.zeros(len(dense)).double(), dense)
        exact += float(normal.log_prob(batch.y[series].flatten()[at]))
    with torch.no_grad():
        wide = torch.tensor([0.1, -0.2, 0.0, -0.5, 0.6, 0.8], dtype=torch.float64)  # a wide q(Z), for even weights
        vae.encoder.head = Given(wide.expand(len(DAYS), -1))
        bounds = [
            float(importance_weighted(vae, batch, draws, torch.Generator().manual_seed(draws)).elbo)
            for draws in (10, 200_000)
        ]
    assert bounds[0] < bounds[1] - 0.1
    assert bounds[1] == pytest.approx(exact, abs=0.05)


def test_the_mean_of_log_weights_is_the_evidence_lower_bound():
    """Also where times are missing, so that visits may come in another order than they are drawn in."""
    vae = fitted().vae.double()
    table = series_table(3, 4, seed=5)
    encoded = fitted().encode(table.assign(day=table["day"].mask(table.index.isin([1, 6]))))
    encoded = replace(encoded, y=encoded.y.double(), x=encoded.x.double())
    batch = Batches(vae.condition(encoded)).batch(torch.arange(3))
    values = {"elbo": [], "weighted": []}
    with torch.no_grad():
        for seed in range(20):
            g = torch.Generator().manual_seed(seed)
            for name, terms in (
                ("elbo", elbo(vae, batch, g, 300)), ("weighted", importance_weighted(vae, batch, 300, g))
            ):  # fmt: skip
                values[name].append([float(terms.reconstruction), float(terms.kl_latent), float(terms.kl_covariates)])
            assert terms.gain > 0
    a, b = (torch.tensor(runs) for runs in values.values())
    error = ((a.var(0) + b.var(0)) / 20).sqrt()
    assert ((a.mean(0) - b.mean(0)).abs() < 4 * error + 1e-9).all()
    assert (error < 0.05 + 0.02 * a.mean(0).abs()).all(), (a.mean(0), error)


def test_the_likelihood_of_a_visit_by_itself_ignores_the_other_visits():
    vae, batch, loading = linear_case()
    dense = loading.mT @ loading + torch.diag(vae.likelihood.noise_variance.detach())
    with torch.no_grad():
        narrow = torch.tensor([0.3, -0.2, -3.0, -3.0, 0.2, 0.2], dtype=torch.float64)  # as after a long series
        vae.encoder.head = Given(narrow.expand(len(DAYS), -1))
        likelihood = log_likelihood(vae, batch, 4_000, torch.Generator().manual_seed(0))
    for i in range(len(DAYS)):
        at = batch.y_mask[i]
        zero = torch.zeros(int(at.sum())).double()
        exact = float(MultivariateNormal(zero, dense[at][:, at]).log_prob(batch.y[i, at])) if len(zero) else 0.0
        assert float(likelihood[i]) == pytest.approx(exact, abs=0.15)  # a standard error of about 0.04


@pytest.mark.parametrize("posterior", ["banded", "diagonal"])
def test_gaps_in_smooth_series_are_imputed_from_neighbouring_visits(posterior):
    full = series_table(40, 10, seed=1, gaps=0.0)
    rng = np.random.default_rng(0)
    hidden = rng.random((len(full), 2)) < 0.2
    missed = rng.random(len(full)) < 0.15  # visits at which nothing is measured
    hidden[missed] = True
    shown = full.assign(**full[["a", "b"]].mask(hidden))
    schema = Schema(["a", "b"], {}, instance="id", time="day")
    model = GPVAE(schema, latent_dim=2, networks=Dense((16,), (16,)), length_scale=2.0, posterior=posterior)
    done = model.fit(shown, max_epochs=100, learning_rate=5e-3).impute(shown)
    error = ((done[["a", "b"]] - full[["a", "b"]]) / full[["a", "b"]].std()).to_numpy()
    for chosen in (hidden & missed[:, None], hidden & ~missed[:, None]):
        assert np.sqrt((error[chosen] ** 2).mean()) < 0.6  # the mean would have 1
    # A visit predicted from its own series is closer than one predicted from its time alone.
    new, past = full[missed], shown[~missed]
    with_past, without = (model.predict(new, history=h) for h in (past, None))
    assert (with_past - new[["a", "b"]]).abs().mean().mean() < 0.7 * (without - new[["a", "b"]]).abs().mean().mean()


def test_the_length_scale_is_in_units_of_time_and_can_be_learnt():
    table = series_table()
    fixed = fitted(table=table)
    assert fixed.vae.prior.log_length_scale.exp().tolist() == pytest.approx([2.0 / np.std(table["day"])] * 2, rel=1e-6)
    assert not any("length_scale" in name for name, _ in fixed.vae.named_parameters())
    learnt = fitted(table=table, learn_length_scale=True)
    assert learnt.vae.prior.log_length_scale.exp().tolist() != fixed.vae.prior.log_length_scale.exp().tolist()


def test_predictions_do_not_depend_on_other_covariates():
    model = fitted()
    table = series_table()
    new, past = table[:12], table[12:]
    other = new.assign(sex=np.where(new["sex"] == "f", "m", "f"))
    assert model.predict(new).equals(model.predict(other))
    assert not model.predict(new, history=past).equals(model.predict(new))


def test_a_diagonal_posterior_has_independent_visits():
    model = fitted("diagonal")
    q = model.vae.latents(batch_of_series(model))
    off = q.chain.root - torch.diag_embed(q.chain.root.diagonal(dim1=-2, dim2=-1))
    assert (off == 0).all()


def batch_of_series(model):
    table = model.encode(series_table())
    return Batches(table).batch(torch.arange(len(table.labels)))
