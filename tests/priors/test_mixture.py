"""The mixture prior of HIVAE against sampling and torch.distributions."""

import math

import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence

from lacova.priors.mixture import MixtureNormal
from lacova.priors.normal import StandardNormal
from tests.priors.cases import batch_of, each_row, kl_without_x, some_latents


def mixture(components, latent=2):
    torch.manual_seed(1)
    return MixtureNormal(latent, components).double()


def test_one_component_is_the_standard_normal():
    q, x = some_latents(), torch.zeros(6, 1, dtype=torch.float64)
    one, normal = mixture(1), StandardNormal(2)
    torch.testing.assert_close(kl_without_x(one, q), kl_without_x(normal, q), rtol=1e-12, atol=0)
    torch.testing.assert_close(one.log_density(q.mean, x), normal.log_density(q.mean, x), rtol=1e-12, atol=0)
    for moment, expected in zip(one.predict(x, torch.arange(6)), normal.predict(x, torch.arange(6)), strict=True):
        torch.testing.assert_close(moment, expected, rtol=0, atol=1e-12)


def test_kl_is_the_joint_kl_at_the_best_q_of_s():
    prior, q = mixture(3), some_latents()
    generator = torch.Generator().manual_seed(2)
    for i in range(len(q.mean)):
        q_z = Independent(Normal(q.mean[i], q.var[i].sqrt()), 1)
        components = Independent(Normal(prior.means.detach(), torch.ones_like(prior.means)), 1)
        component_kl = torch.stack([
            kl_divergence(q_z, Independent(Normal(m, torch.ones_like(m)), 1)) for m in prior.means
        ]).detach()  # fmt: skip
        q_s = Categorical(logits=-component_kl)
        kl = kl_without_x(prior, q, slice(i, i + 1)).item()
        # By sampling s and z from q, without any formula for the KL of normals.
        eps = torch.randn(40_000, 2, generator=generator, dtype=torch.float64)
        z = q_z.mean + q.var[i].sqrt() * eps
        s = torch.multinomial(q_s.probs, len(z), replacement=True, generator=generator)
        log_ratio = q_z.log_prob(z) + q_s.log_prob(s) + math.log(3)
        log_ratio = log_ratio - components.log_prob(z[:, None]).gather(1, s[:, None])[:, 0]
        assert abs(log_ratio.mean().item() - kl) < 5 * log_ratio.std().item() / len(z) ** 0.5
        # It is above the KL of z itself, and no other q(s) has less.
        log_ratio_z = q_z.log_prob(z) - prior.log_density(z, z).detach()
        assert kl > log_ratio_z.mean().item() - 5 * log_ratio_z.std().item() / len(z) ** 0.5
        for other in (Categorical(logits=torch.zeros(3).double()), Categorical(probs=q_s.probs.flip(0))):
            joint_kl = (other.probs * (component_kl + other.logits)).sum() + math.log(3)
            assert joint_kl.item() >= kl - 1e-12


def test_density_moments_and_draws_are_those_of_the_mixture():
    prior = mixture(4)
    with torch.no_grad():
        prior.raw_means *= 3.0  # far from normal
    reference = MixtureSameFamily(
        Categorical(logits=torch.zeros(4).double()),
        Independent(Normal(prior.means.detach(), torch.ones(()).double()), 1),
    )
    z = some_latents().mean
    torch.testing.assert_close(prior.log_density(z, z).detach(), reference.log_prob(z), rtol=1e-10, atol=0)
    x = torch.zeros(20_000, 1, dtype=torch.float64)
    mean, var = (part[0].detach() for part in prior.predict(x, torch.arange(len(x))))
    torch.testing.assert_close(mean, reference.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(var, reference.variance, rtol=1e-10, atol=0)
    draws = prior.sample(x, torch.arange(len(x)), torch.Generator().manual_seed(0)).detach()
    assert ((draws.mean(0) - mean).abs() < 5 * (var / len(x)).sqrt()).all()
    # Not only its moments: the draws' average log density is the mixture's negative entropy.
    ours, theirs = reference.log_prob(draws), reference.log_prob(reference.sample((len(x),)))
    assert abs(ours.mean() - theirs.mean()) < 5 * (ours.var() / len(x) + theirs.var() / len(x)) ** 0.5


def test_padding_counts_for_nothing():
    prior, q = mixture(3), some_latents()
    real = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]).double()
    expected = kl_without_x(prior, q, slice(3))
    value = prior.kl(each_row(6, real), batch_of(6, real), q, None).latent
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
