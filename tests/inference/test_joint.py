"""q(z) that depends on the missing covariates that were drawn: the bound, and what it leaves between draws."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import lacova
from lacova.covariates.prior import FactorisedPrior
from lacova.data.batches import Batch
from lacova.data.distributions import FactorisedDistribution
from lacova.data.table_encoder import TableEncoder
from lacova.inference.objective import bound, elbo, log_likelihood
from lacova.models.builder import build
from tests.inference.cases import MIXED, Fixed, conditioned, generator, linear_cvae, whole_batch
from tests.inference.test_objective import exact_normals
from tests.tables import VISITS, visits


class Posterior(nn.Module):
    """The true q(z | y, a, c) of `category_case`."""

    def __init__(self, noise_var, shift=0.0):
        super().__init__()
        self.noise_var, self.shift = noise_var, shift

    def forward(self, y, y_mask, features):
        precision = 1 + 0.64 / self.noise_var
        a, c = features[:, :1], features[:, 2:3]
        mean = 0.8 * (y - 0.3 * a - 1.5 * c) / self.noise_var / precision
        return mean + self.shift * (c - 0.5), (1 / precision).expand_as(mean)


def category_case(joint):
    """Return a model y = 0.8 z + 0.3 a + 1.5 [c = 1] + ε, a row without c, log p(y | a), and q of c."""
    log_prob = torch.tensor([[0.0, 0.0], [math.log(0.3), math.log(0.7)]], dtype=torch.float64)
    prior = FactorisedPrior(MIXED, torch.zeros(2).double(), torch.ones(2).double(), log_prob)
    loading, slope = torch.tensor([[0.8]]).double(), torch.tensor([[0.3, 0.0, 1.5]]).double()
    vae = linear_cvae(MIXED, loading, slope, torch.zeros(1).double(), torch.tensor([0.3]).double(), prior, joint)
    noise_var = vae.likelihood.noise_variance.detach()[0]
    y, a = torch.tensor([[0.9]], dtype=torch.float64), 0.4
    batch = Batch(
        y, torch.ones(1, 1, dtype=torch.bool), torch.tensor([[a, 0.0]]).double(), torch.tensor([[True, False]]),
        torch.tensor([0]),
    )  # fmt: skip
    of_c = log_prob[1] + torch.distributions.Normal(
        torch.tensor([0.0, 1.5]).double() + 0.3 * a, (0.64 + noise_var).sqrt()
    ).log_prob(y[0, 0])
    q = torch.stack([torch.zeros(2).double(), of_c.log_softmax(0)])[None]
    vae.covariate_posterior = Fixed(FactorisedDistribution(torch.zeros(1, 2).double(), torch.ones(1, 2).double(), q))
    vae.encoder = Posterior(noise_var)
    return vae, conditioned(batch, vae), of_c.logsumexp(0)


def test_the_bound_meets_the_likelihood_where_z_and_a_category_depend_on_each_other(monkeypatch):
    vae, batch, truth = category_case(joint=True)
    torch.testing.assert_close(log_likelihood(vae, batch, 4, generator())[0], truth, rtol=1e-8, atol=0)
    samples = exact_normals(monkeypatch, 3)
    torch.testing.assert_close(elbo(vae, batch, generator(), samples).elbo, truth, rtol=1e-8, atol=0)
    vae.encoder.shift = 0.3
    value = elbo(vae, batch, generator(), samples).elbo
    # The gap is E_c KL[q(z | c) ‖ p(z | y, c)]: a mean that is off by 0.15 whatever c.
    gap = 0.5 * 0.15**2 * (1 + 0.64 / vae.encoder.noise_var)
    torch.testing.assert_close(value + gap, truth, rtol=1e-8, atol=0)


def test_no_q_without_dependence_meets_it(monkeypatch):
    """Coordinate ascent to the best q(z) q(c); what is missing is its distance from the true posterior."""
    vae, batch, truth = category_case(joint=False)
    noise_var, y, a = vae.encoder.noise_var, batch.y[0, 0], 0.4
    precision, prob = 1 + 0.64 / noise_var, torch.tensor(0.7).double()
    for _ in range(200):
        mean = 0.8 * (y - 0.3 * a - 1.5 * prob) / noise_var / precision
        residual = y - 0.3 * a - 0.8 * mean
        logit = math.log(0.7 / 0.3) + (residual**2 - (residual - 1.5) ** 2) / (2 * noise_var)
        prob = torch.sigmoid(logit)
    log_prob = torch.stack([torch.zeros(2).double(), torch.stack([1 - prob, prob]).log()])[None]
    vae.covariate_posterior.output = replace(vae.covariate_posterior.output, log_prob=log_prob)
    vae.encoder = Fixed((mean.view(1, 1), (1 / precision).view(1, 1)))
    samples = exact_normals(monkeypatch, 3)
    assert elbo(vae, batch, generator(), samples).elbo < truth - 0.1


def patients_with_gaps(model, gaps=0.3, seed=0):
    table = visits(patients=6, gaps=gaps)
    if gaps:
        table.loc[table["id"].isin(table["id"].unique()[:2]), "sex"] = None
    encoder = TableEncoder.learn(model.schema, table)
    encoded = encoder.encode(table, dtype=torch.float64)
    torch.manual_seed(seed)
    vae = build(model, encoder, encoded, 0).double()
    return vae, whole_batch(encoded, vae)


@pytest.mark.parametrize("fixed_effects", [False, True], ids=["", "fixed effects"])
@pytest.mark.parametrize("formula", ["gp(day) + gp(age):cat(id)", "gp(day) + gp(age):cat(sex)"], ids=["D4", "D3"])
def test_random_effects_are_integrated_out_in_every_scenario(formula, fixed_effects):
    """Against dense normals, patient by patient, for each completion of the patient's rows, which the encoder and the
    fixed effects both see."""
    model = lacova.GPPriorVAE(
        VISITS, prior=formula, latent_dim=2, inducing=5, patient_effects="intercept", patient_slopes=False,
        fixed_effects=fixed_effects,
    )  # fmt: skip
    vae, batch = patients_with_gaps(model)
    plan, eps = vae.plan(batch.x_mask, batch.patient, 2, None), vae.draw_eps(batch, 2, generator())
    fixed = vae.random_effects.fixed_effects
    with torch.no_grad():
        if fixed is not None:
            fixed.mean.normal_(generator=generator())
            fixed.covariance.mul_(20.0)
        terms = bound(vae, batch, plan, eps)
        scenarios = plan.scenarios(vae.covariate_posterior(batch), batch, vae.space, eps)
        noise, between = vae.likelihood.noise_variance, vae.random_effects.var
        shared = vae.random_effects.loadings[:, 0]
        expected, several = 0.0, 0
        for v in range(len(scenarios.weight)):
            lines = (scenarios.scenario == v).nonzero()[:, 0]
            row = scenarios.row[lines]
            whole = (batch.patient == batch.patient[row[0]]).nonzero()[:, 0]
            assert row.tolist() == whole.tolist()  # a scenario completes a patient
            features = torch.cat([vae.space.values(scenarios.x[lines]), batch.x_mask[row].double()], 1)
            own = batch.take(batch.patient == batch.patient[row[0]])
            own = replace(own, conditional_prior=batch.conditional_prior.take(whole))
            zeros = torch.zeros_like(own.y)
            prior_mean = None if fixed is None else fixed.expected_mean(own, own.conditional_prior.distribution)
            effects = vae.random_effects.expect(*vae.likelihood.gaussian_part(zeros, own), prior_mean)
            mean, var = vae.encoder(own.y - effects, own.y_mask, torch.cat([features, effects], 1))
            location = vae.decoder(mean + var.sqrt() * eps.z[scenarios.sample[lines], row])
            seen, trace = own.y_mask.flatten(), 0.0
            of_patient = torch.diag(between) + shared @ shared.mT  # D×D, the same at all visits
            covariance = torch.diag(noise.repeat(len(own.y))) + of_patient.repeat(len(own.y), len(own.y))
            if fixed is not None:
                part = fixed.at(scenarios.x[lines], own)
                location = location + part.mean
                of_coefficients = torch.diag(part.covariance[0, :, 0, 0]).repeat(len(own.y), len(own.y))
                trace = (torch.linalg.inv(covariance[seen][:, seen]) * of_coefficients[seen][:, seen]).sum()
            normal = torch.distributions.MultivariateNormal(location.flatten()[seen], covariance[seen][:, seen])
            expected += scenarios.weight[v] * (normal.log_prob(own.y.flatten()[seen]) - 0.5 * trace)
            several += int(scenarios.slot[v] > 0)
    assert several > 6  # two draws of each patient, and both sexes of some
    torch.testing.assert_close(terms.reconstruction, torch.as_tensor(expected), rtol=1e-8, atol=0)
    assert (terms.information is None) == (fixed is None)


def test_what_fixed_effects_are_told_is_averaged_over_scenarios():
    model = lacova.GPPriorVAE(VISITS, latent_dim=2, inducing=5, patient_effects="intercept")
    vae, batch = patients_with_gaps(model)
    plan, eps = vae.plan(batch.x_mask, batch.patient, 2, None), vae.draw_eps(batch, 2, generator())
    with torch.no_grad():
        information = bound(vae, batch, plan, eps).information
        scenarios = plan.scenarios(vae.covariate_posterior(batch), batch, vae.space, eps)
        expected = torch.zeros_like(information)
        for v in range(len(scenarios.weight)):
            lines = (scenarios.scenario == v).nonzero()[:, 0]
            own = batch.take(batch.patient == batch.patient[scenarios.row[lines[0]]])
            part = vae.fixed_part_at(scenarios.x[lines][None], own)
            expected += vae.information(own, part, scenarios.weight[v].view(1, 1), vae.factorise_effects(own))
    torch.testing.assert_close(information, expected, rtol=1e-8, atol=1e-12)


def test_without_gaps_both_posteriors_give_the_same_bound():
    for joint in (True, False):
        model = lacova.GPPriorVAE(VISITS, latent_dim=2, inducing=5, joint_posterior=joint)
        vae, batch = patients_with_gaps(model, gaps=0.0)
        assert vae.joint == joint
        plan, eps = vae.plan(batch.x_mask, batch.patient, 2, None), vae.draw_eps(batch, 2, generator())
        terms = bound(vae, batch, plan, eps)
        values = [terms.reconstruction, terms.kl_latent, terms.kl_inducing, terms.kl_covariates]
        gradient = torch.autograd.grad(terms.loss(1.0, 0.0), vae.encoder.parameters())
        if joint:
            first = values, gradient
    for one, two in zip((*first[0], *first[1]), (*values, *gradient), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


def test_completed_pairs_of_x_and_y_keep_their_correlation():
    """x and a measurement y of it are missing together; another measurement is not. Each alone is told equally well."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=300)
    table = pd.DataFrame({"x": x, "other": x + rng.normal(0, 0.7, 300), "y": x + rng.normal(0, 0.5, 300)})
    hidden = rng.random(300) < 0.4
    table.loc[hidden, ["x", "y"]] = np.nan
    schema, correlation = lacova.Schema(["other", "y"], {"x": "continuous"}), {}
    for joint in (True, False):
        model = lacova.GPPriorVAE(schema, joint_posterior=joint).fit(table, members=1, progress=False)
        drawn = model.impute(table, draws=20).loc[lambda t: np.tile(hidden, 20)]
        correlation[joint] = np.corrcoef(drawn["x"], drawn["y"])[0, 1]
    assert correlation[True] == pytest.approx(0.89, abs=0.08)  # 1 / √1.25
    assert correlation[False] < correlation[True] - 0.08


def test_settings():
    with pytest.raises(ValueError, match="joint_posterior is 'full'; expected True, False or None"):
        lacova.CVAE(VISITS, joint_posterior="full")
    with pytest.raises(ValueError, match='expectation="exact" integrates over missing covariates'):
        lacova.GPPriorVAE(VISITS, joint_posterior=True, expectation="exact")
    exact = lacova.GPPriorVAE(VISITS, latent_dim=1, inducing=5, expectation="exact")
    assert not patients_with_gaps(exact)[0].joint
    paper = lacova.CVAE(VISITS, latent_dim=1, covariates="paper")
    assert not patients_with_gaps(paper)[0].joint
