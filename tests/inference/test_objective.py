"""The bound against closed forms, and under batching, permutation and added rows."""

import math
from dataclasses import replace

import pytest
import torch

from lacova.covariates.posterior import AmortisedPosterior
from lacova.covariates.prior import FactorisedPrior
from lacova.data.batches import Batch, Batches
from lacova.data.covariate_space import CovariateSpace
from lacova.data.distributions import FactorisedDistribution
from lacova.data.table import Table
from lacova.inference.objective import TERMS, bound, elbo, log_likelihood, weighted
from lacova.inference.vae import ConditionalVAE
from lacova.likelihoods.likelihood import Likelihood
from lacova.nn.networks import Dense
from lacova.priors.gp.bounds import exact_kl
from lacova.priors.gp.formula import Component, Factor
from lacova.priors.gp.inducing import InducingPoints
from lacova.priors.gp.kernels import AdditiveKernel
from lacova.priors.gp.prior import GPPrior
from tests.inference.cases import (
    KINDS,
    MIXED,
    PATIENTS,
    Fixed,
    conditioned,
    gaussian_case,
    generator,
    linear_cvae,
    some_table,
    some_vae,
    whole_batch,
    with_posterior,
)

WITH_TIME = CovariateSpace(("a", "c", "t"), (0, 2, 0), (False, False, False))


def exact_normals(monkeypatch, dimensions):
    """Replace normal draws by 2·dimensions points of mean 0 and covariance I: means of quadratics become exact."""
    axes = math.sqrt(dimensions) * torch.eye(dimensions, dtype=torch.float64)
    points = torch.cat([axes, -axes])
    used = 0

    def randn(samples, n, width, **_):
        nonlocal used
        assert samples == 2 * dimensions
        part = points[:, used : used + width][:, None].expand(-1, n, -1)
        used = (used + width) % dimensions
        return part

    monkeypatch.setattr(torch, "randn", randn)
    return 2 * dimensions


def test_elbo_meets_the_likelihood_at_the_true_posterior(monkeypatch):
    vae, batch, truth, mean, var = gaussian_case()
    with_posterior(vae, mean[0], var[0], mean[1], var[1])
    # Importance weights are constant at the true posterior: one draw gives the likelihood.
    torch.testing.assert_close(log_likelihood(vae, batch, 1, generator())[0], truth, rtol=1e-8, atol=0)
    samples = exact_normals(monkeypatch, 3)
    torch.testing.assert_close(elbo(vae, batch, generator(), samples).elbo, truth, rtol=1e-8, atol=0)


@pytest.mark.parametrize("seed", range(20))
def test_elbo_never_exceeds_the_likelihood(monkeypatch, seed):
    vae, batch, truth, mean, var = gaussian_case()
    g = generator(seed)
    shift = 0.3 * torch.randn(2, generator=g, dtype=torch.float64)
    factor = torch.exp(0.5 * torch.randn(2, generator=g, dtype=torch.float64))
    with_posterior(vae, mean[0] + shift[0], var[0] * factor[0], mean[1] + shift[1], var[1] * factor[1])
    samples = exact_normals(monkeypatch, 3)
    value = elbo(vae, batch, generator(), samples).elbo
    # For a normal posterior the gap is KL[q ‖ posterior], known.
    gap = 0.5 * (factor + shift**2 / var - 1 - factor.log()).sum()
    assert gap > 0
    torch.testing.assert_close(truth - value, gap, rtol=1e-8, atol=0)


def test_elbo_meets_the_likelihood_with_a_missing_category(monkeypatch):
    loading = torch.tensor([[0.8], [0.0]], dtype=torch.float64)
    slope = torch.tensor([[0.3, 0.0, 0.0], [-0.2, 0.9, -0.4]], dtype=torch.float64)
    log_prob = torch.tensor([[0.0, 0.0], [0.3, 0.7]], dtype=torch.float64)
    log_prob[1] = log_prob[1].log()
    prior = FactorisedPrior(MIXED, torch.zeros(2).double(), torch.ones(2).double(), log_prob)
    noise_var = torch.tensor([0.3, 0.2], dtype=torch.float64)
    vae = linear_cvae(MIXED, loading, slope, torch.zeros(2).double(), noise_var, prior)
    noise_var = vae.likelihood.noise_variance.detach()
    y, a = torch.tensor([[0.7, 0.5]], dtype=torch.float64), 0.4
    batch = Batch(
        y,
        torch.ones(1, 2, dtype=torch.bool),
        torch.tensor([[a, 0.0]], dtype=torch.float64),
        torch.tensor([[True, False]]),
        torch.tensor([0]),
    )
    of_z = torch.distributions.Normal(0.3 * a * y.new_ones(()), (0.64 + noise_var[0]).sqrt()).log_prob(y[0, 0])
    of_c = torch.distributions.Normal(slope[1, 1:] - 0.2 * a, noise_var[1].sqrt()).log_prob(y[0, 1]) + log_prob[1]
    truth = of_z + of_c.logsumexp(0)
    precision = 1 + 0.64 / noise_var[0]
    vae.encoder = Fixed(((0.8 * (0.7 - 0.3 * a) / noise_var[0] / precision).view(1, 1), (1 / precision).view(1, 1)))
    distribution = FactorisedDistribution(
        torch.zeros(1, 2).double(),
        torch.ones(1, 2).double(),
        torch.stack([torch.zeros(2).double(), of_c.log_softmax(0)])[None],
    )
    vae.covariate_posterior = Fixed(distribution)
    batch = conditioned(batch, vae)
    samples = exact_normals(monkeypatch, 3)
    torch.testing.assert_close(elbo(vae, batch, generator(), samples).elbo, truth, rtol=1e-8, atol=0)
    wrong = FactorisedDistribution(distribution.mean, distribution.var, torch.log(torch.full((1, 2, 2), 0.5)).double())
    vae.covariate_posterior = Fixed(wrong)
    assert elbo(vae, batch, generator(), samples).elbo < truth - 1e-3


@pytest.mark.parametrize(
    "component", [Component(("t",)), Component(factors=(Factor("lin", ("t",)),))], ids=["gp", "lin"]
)
@pytest.mark.parametrize(("instance", "by_row"), [(False, False), (True, False), (False, True), (True, True)])
def test_gp_elbo_never_exceeds_the_dense_likelihood(monkeypatch, instance, by_row, component):
    """y = z + noise with a GP prior on z: log p(Y | X) is a dense normal, also where the noise depends on x."""
    g = generator()
    space = CovariateSpace(("t",), (0,), (False,))
    terms = [component] + ([Component(instance=True)] if instance else [])
    n, patient = 6, torch.tensor([0, 0, 0, 1, 1, 2])
    x = torch.randn(n, 1, generator=g, dtype=torch.float64)
    kernel = AdditiveKernel(terms, space, 1)
    prior = GPPrior(kernel, InducingPoints(x, space, 1), space, noise=0.2)
    factorised = FactorisedPrior(space, torch.zeros(1).double(), torch.ones(1).double(), torch.zeros(1, 1).double())
    vae = ConditionalVAE(
        space, 1, 1, Dense((), ()), decoder_sees_x=False, prior=prior, covariate_prior=factorised,
        covariate_posterior=AmortisedPosterior(space, 1, factorised),
        likelihood=Likelihood.gaussian(torch.tensor([0.3]), by_row=by_row), joint=False,
    ).double()  # fmt: skip
    vae.decoder.network[0].weight.data.fill_(1.0)
    vae.decoder.network[0].bias.data.fill_(0.0)
    y = torch.randn(n, 1, generator=g, dtype=torch.float64)
    batch = Batch(y, torch.ones(n, 1, dtype=torch.bool), x, torch.ones(n, 1, dtype=torch.bool), patient)
    batch = conditioned(batch, vae)
    same = (patient[:, None] == patient).double()
    eye = torch.eye(n, dtype=torch.float64)
    covariance = (kernel(x, x, kernel.shared)[0] + kernel(x, x, kernel.own)[0] * same + prior.noise * eye).detach()
    noise = vae.likelihood.noise_variance.detach().expand(n)
    if by_row:
        vae.row_noise.linear.weight.data.copy_(torch.tensor([[0.0, 0.4]], dtype=torch.float64))  # of z and of x
        floor = vae.likelihood.families["gaussian"].floor
        noise = floor + (noise - floor) * torch.exp(2.0 * 4.0 * torch.tanh(0.4 * x[:, 0] / 4.0))
        assert noise.max() > 3.0 * noise.min()
    total = covariance + torch.diag(noise)
    truth = torch.distributions.MultivariateNormal(torch.zeros(n).double(), total).log_prob(y[:, 0])
    gain = covariance @ torch.linalg.inv(total)
    posterior = covariance - gain @ covariance
    samples = exact_normals(monkeypatch, 2)
    for spread in (0.5, 1.0, 2.0):
        mean, var = gain @ y, spread * posterior.diagonal()[:, None]
        vae.encoder = Fixed((mean, var))
        with torch.no_grad():
            prior.inducing.natural_step(elbo(vae, batch, generator(), samples).statistics, 1.0)
            terms = elbo(vae, batch, generator(), samples)
        slack = terms.kl_latent + terms.kl_inducing - exact_kl(mean.T, var.T, covariance[None])[0]
        q = torch.distributions.MultivariateNormal(mean[:, 0], torch.diag(var[:, 0]))
        distance = torch.distributions.kl_divergence(q, torch.distributions.MultivariateNormal(mean[:, 0], posterior))
        assert slack > 0
        torch.testing.assert_close(truth - terms.elbo, distance + slack, rtol=1e-8, atol=0)


def exactly(prior):
    """Return the same GP prior with exact expectations."""
    other = GPPrior(prior.kernel, prior.inducing, prior.space, exact=True).double()
    other.load_state_dict(prior.state_dict())
    return other


@pytest.fixture
def _zero_draws(monkeypatch):
    monkeypatch.setattr(torch, "randn", lambda *size, dtype=None, **_: torch.zeros(*size, dtype=dtype))


def terms_of(vae, batch):
    return {k: v for k, v in elbo(vae, batch, generator()).named().items() if k != "kl_inducing"}


@pytest.mark.usefixtures("_zero_draws")
@pytest.mark.parametrize("kind", KINDS)
def test_equal_partitions_average_to_the_whole(kind):
    vae = some_vae(MIXED, kind)
    ragged = PATIENTS if kind == "longitudinal" else None
    batches = Batches(conditioned(some_table(patients=ragged), vae), 3 if kind != "longitudinal" else 2)
    terms = terms_of(vae, whole_batch(batches.table, vae))
    parts = [terms_of(vae, batches.batch(units)) for units in batches.shuffled(generator(1))]
    for name, value in terms.items():
        mean = sum(part[name] for part in parts) / len(parts)
        assert mean == pytest.approx(value, rel=1e-8), name


@pytest.mark.usefixtures("_zero_draws")
@pytest.mark.parametrize("kind", KINDS)
def test_permuting_rows_changes_nothing_and_empty_rows_add_only_their_own(kind):
    vae = some_vae(MIXED, kind)
    t = some_table(patients=PATIENTS)
    terms = terms_of(vae, whole_batch(t, vae))
    order = torch.randperm(12, generator=generator(3))
    moved = Table(t.y[order], t.y_mask[order], t.x[order], t.x_mask[order], t.patient[order], t.labels)
    for name, value in terms_of(vae, whole_batch(moved, vae)).items():
        assert value == pytest.approx(terms[name], rel=1e-9), name

    empty = (
        torch.zeros(1, 3).double(),
        torch.zeros(1, 3, dtype=torch.bool),
        torch.zeros(1, 2).double(),
        torch.zeros(1, 2, dtype=torch.bool),
    )
    alone = Table(*empty, torch.tensor([0]), (9,))
    parts = zip((t.y, t.y_mask, t.x, t.x_mask), empty, strict=True)
    longer = Table(*(torch.cat(pair) for pair in parts), torch.cat([t.patient, torch.tensor([6])]), (*t.labels, 9))
    own = terms_of(vae, whole_batch(alone, vae))
    assert own["reconstruction"] == 0.0
    for name, value in terms_of(vae, whole_batch(longer, vae)).items():
        if name != "elbo":
            assert value == pytest.approx(terms[name] + own[name], rel=1e-9), name


@pytest.mark.usefixtures("_zero_draws")
@pytest.mark.parametrize("kind", KINDS)
def test_masked_values_do_not_matter(kind):
    vae = some_vae(MIXED, kind)
    t = some_table(patients=PATIENTS)
    spoiled = Table(
        torch.where(t.y_mask, t.y, 77.0), t.y_mask, torch.where(t.x_mask, t.x, 1.0), t.x_mask, t.patient, t.labels
    )
    assert terms_of(vae, whole_batch(spoiled, vae)) == terms_of(vae, whole_batch(t, vae))


@pytest.mark.parametrize("kind", KINDS)
def test_samples_estimate_the_same_bound(kind):
    """The mean of many one-sample estimates is the many-sample estimate."""
    vae = some_vae(MIXED, kind)
    batch = whole_batch(some_table(patients=PATIENTS), vae)
    g = generator()
    with torch.no_grad():
        singles = torch.tensor([elbo(vae, batch, g).elbo for _ in range(400)])
        many = elbo(vae, batch, g, samples=4000).elbo
    assert abs(float(singles.mean() - many)) < 4 * float(singles.std()) / 20


def test_batch_columns_can_be_permuted():
    """Permuting the measurements, with their weights, changes nothing."""
    vae = some_vae(MIXED, "regression")
    batch = whole_batch(some_table(), vae)
    before = elbo(vae, batch, generator()).named()
    order = torch.tensor([2, 0, 1])
    d = 3
    for layer in (vae.encoder.head[0], vae.covariate_posterior.look):
        index = torch.arange(layer.weight.shape[1])
        index[:d], index[d : 2 * d] = order, d + order
        layer.weight.data = layer.weight.data[:, index]
    last = vae.decoder.network[-1]
    last.weight.data, last.bias.data = last.weight.data[order], last.bias.data[order]
    raw = vae.likelihood.families["gaussian"].raw
    raw.data = raw.data[order]
    moved = Batch(
        batch.y[:, order],
        batch.y_mask[:, order],
        batch.x,
        batch.x_mask,
        batch.patient,
        conditional_prior=batch.conditional_prior,
    )
    for name, value in elbo(vae, moved, generator()).named().items():
        assert value == pytest.approx(before[name], rel=1e-8), name


@pytest.mark.parametrize("kind", ["regression", "longitudinal"])
@pytest.mark.parametrize("gaps_in_time", [False, True])
def test_exact_expectation_is_what_samples_estimate(kind, gaps_in_time):
    """Bound and natural statistics, integrated over x_u in closed form, against the mean over many samples."""
    vae = some_vae(WITH_TIME, kind, time="t", joint=False)
    table = some_table(patients=PATIENTS)
    t = torch.linspace(-1, 1, 12, dtype=torch.float64)[:, None]
    known = torch.arange(12)[:, None] % 5 != 0 if gaps_in_time else torch.ones(12, 1, dtype=torch.bool)
    table = replace(table, x=torch.cat([table.x, t * known], 1), x_mask=torch.cat([table.x_mask, known], 1))
    batch = whole_batch(table, vae)
    with torch.no_grad():
        q = vae.prior.inducing
        q.natural_step(elbo(vae, batch, generator(), 50).statistics, 0.5)
        parts = [elbo(vae, batch, generator(k), 200) for k in range(20)]
        vae.prior = exactly(vae.prior)
        repeats = 20 if gaps_in_time and kind == "longitudinal" else 1  # time in K^(R) is sampled even then
        exact = [elbo(vae, batch, generator(k), 200) for k in range(repeats)]
    sampled = torch.stack([part.kl_latent for part in parts])
    error = sampled.std() / math.sqrt(20)
    value = torch.stack([part.kl_latent for part in exact]).mean()
    assert abs(value - sampled.mean()) < 4 * error * (1.5 if repeats > 1 else 1.0)
    assert error < 0.05 * abs(value)
    for name in ("precision", "shift"):
        samples = torch.stack([getattr(part.statistics, name) for part in parts])
        expected = torch.stack([getattr(part.statistics, name) for part in exact]).mean(0)
        spread = samples.std(0) / math.sqrt(20)
        assert ((samples.mean(0) - expected).abs() <= 6 * spread + 1e-6).all(), name


def test_terms_add_up_to_the_loss():
    """Of −elbo, the loss weights the latent KL; it subtracts the weighted log probability of masked covariates."""
    vae = some_vae(MIXED, "regression")
    batch = whole_batch(some_table(), vae)
    more = torch.rand(12, 2, generator=generator(5)) < 0.5
    masked = conditioned(replace(batch, x=batch.x * ~more, x_mask=batch.x_mask & ~more), vae)
    plan, eps = vae.plan(batch.x_mask, batch.patient, 1, None), vae.draw_eps(batch, 1, generator())
    terms, plain = bound(vae, batch, plan, eps, masked), bound(vae, batch, plan, eps)
    assert plain.named() == terms.named()
    assert plain.masked_log_prob == 0.0
    assert terms.masked_log_prob < -1.0
    log_prob, kl_x = terms.reconstruction, terms.kl_covariates
    torch.testing.assert_close(terms.elbo, log_prob - terms.kl_latent - terms.kl_inducing - kl_x)
    expected = 0.3 * terms.kl_latent + terms.kl_inducing + kl_x - log_prob - 2.0 * terms.masked_log_prob
    torch.testing.assert_close(terms.loss(0.3, 2.0), expected)
    torch.testing.assert_close(plain.loss(1.0, 2.0), -plain.elbo)
    for record in (terms, plain):
        stacked = dict(zip(TERMS, record.stacked().tolist(), strict=True))
        assert not record.stacked().requires_grad
        assert stacked == pytest.approx(
            {**record.named(), "masked_log_prob": torch.as_tensor(record.masked_log_prob).item()}
        )


def test_the_bound_with_importance_is_the_weighted_one():
    vae = some_vae(MIXED, "regression")
    batch = whole_batch(some_table(), vae)
    plan, eps = vae.plan(batch.x_mask, batch.patient, 5, None), vae.draw_eps(batch, 5, generator())
    terms = bound(vae, batch, plan, eps, importance=True)
    assert terms.named() == weighted(vae, batch, eps, vae.covariate_posterior(batch)).named()
    assert terms.gain > 0.0
    assert bound(vae, batch, plan, eps).gain == 0.0
