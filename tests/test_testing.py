"""lacova's own parts pass the contracts that others can run, and broken parts fail them."""

from dataclasses import replace
from functools import partial

import gpytorch
import pytest
import torch
from torch import nn

from lacova import Conv, Dense, testing
from lacova.covariates.longitudinal import LongitudinalPrior
from lacova.covariates.prior import FactorisedPrior, JointPrior
from lacova.data.registry import registered
from lacova.likelihoods import likelihood  # noqa: F401  # registers the families
from lacova.likelihoods.base import Family
from lacova.likelihoods.gaussian import Gaussian
from lacova.priors.base import LatentPrior, PriorTerms
from lacova.priors.mixture import MixtureNormal
from lacova.priors.normal import ConditionalNormal, StandardNormal

FAMILIES = ("gaussian", "student", "censored", "poisson", "negative_binomial", "bernoulli", "categorical", "ordinal")


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name):
    testing.check_family(registered("family")[name], levels=2 if name == "bernoulli" else 3)


@pytest.mark.parametrize("networks", [Dense((8,), (8,)), Dense((), ()), Dense((4,), (6,), linear=True)])
def test_networks(networks):
    testing.check_networks(networks)


def test_convolutional_networks():
    small = Conv((12, 12), (2, 3), (3, 2), (4,), (4,))
    testing.check_networks(small, measurements=144)


@pytest.mark.parametrize(
    "make", [gpytorch.kernels.RBFKernel, gpytorch.kernels.RQKernel, partial(gpytorch.kernels.MaternKernel, nu=1.5)]
)
def test_kernels(make):
    testing.check_kernel(make, columns=2)


@pytest.mark.parametrize("prior", [FactorisedPrior, JointPrior])
def test_covariate_priors_of_rows(prior):
    testing.check_covariate_prior(prior)


@pytest.mark.parametrize("prior", [FactorisedPrior, LongitudinalPrior])
def test_covariate_priors_of_visits(prior):
    testing.check_covariate_prior(prior, visits=True)


@pytest.mark.parametrize("prior", [StandardNormal, ConditionalNormal, partial(ConditionalNormal, hidden=(5,))])
def test_latent_priors(prior):
    testing.check_latent_prior(prior)


class Unnormalised(Gaussian):
    def log_prob(self, outputs, y, extra=0.0):
        return super().log_prob(outputs, y, extra) + 0.5


class Peeking(Gaussian):
    def initialise(self, y, mask):
        self.set_variance(y.var(0))


class WrongDraws(Gaussian):
    def sample(self, outputs, generator):
        return outputs + 2.0 * (super().sample(outputs, generator) - outputs)


@pytest.mark.parametrize(
    ("family", "sentence"),
    [(Unnormalised, "integrate to 1"), (Peeking, "behind the mask"), (WrongDraws, "nor the variance")],
)
def test_a_broken_family_is_told(family, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_family(family)


class Looking(nn.Module):
    def __init__(self, inputs, latent_dim):
        super().__init__()
        self.layer = nn.Linear(inputs, 2 * latent_dim)

    def forward(self, y, y_mask, features):
        mean, log_var = self.layer(torch.cat([y, features], 1)).chunk(2, 1)
        return mean, log_var.exp()


class LookingNetworks(Dense):
    def build_encoder(self, measurements, features, latent_dim):
        return Looking(len(measurements) + features, latent_dim)


def test_networks_that_look_behind_the_mask_are_told():
    with pytest.raises(AssertionError, match="behind the mask"):
        testing.check_networks(LookingNetworks((4,), (4,)))


def test_a_kernel_that_is_none_is_told():
    class Distance(gpytorch.kernels.Kernel):
        def forward(self, x1, x2, diag=False, **_):
            distance = (x1[..., :, None, :] - x2[..., None, :, :]).norm(dim=-1)
            return distance.diagonal(dim1=-1, dim2=-2) if diag else distance

    with pytest.raises(AssertionError, match="positive semi-definite"):
        testing.check_kernel(Distance)


def test_a_covariate_prior_whose_parts_disagree_is_told():
    class Halved(FactorisedPrior):
        def kl(self, q, scenarios, batch):
            return 0.5 * super().kl(q, scenarios, batch)

    class Peeks(FactorisedPrior):
        def condition(self, table):
            conditional = super().condition(table)
            conditional.distribution.mean.add_(table.x)
            return conditional

    with pytest.raises(AssertionError, match="E\\[log q"):
        testing.check_covariate_prior(Halved)
    with pytest.raises(AssertionError, match="behind the mask"):
        testing.check_covariate_prior(Peeks)


class TooLow(StandardNormal):
    def kl(self, scenarios, batch, q, q_x):
        terms = super().kl(scenarios, batch, q, q_x)
        return PriorTerms(0.8 * terms.latent, terms.inducing)


class Unscaled(StandardNormal):
    def kl(self, scenarios, batch, q, q_x):
        terms = super().kl(scenarios, batch, q, q_x)
        return PriorTerms(terms.latent / batch.scale, terms.inducing)


@pytest.mark.parametrize(("prior", "sentence"), [(TooLow, "below the true"), (Unscaled, "batch.scale")])
def test_a_latent_prior_whose_kl_is_no_bound_is_told(prior, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_latent_prior(prior)


class TwoOutputs(Family):
    """Mean and log standard deviation from the decoder, with random initial weights of its own."""

    outputs = 2

    def __init__(self, columns):
        super().__init__()
        self.start = nn.Parameter(0.1 * torch.randn(columns))

    def _moments(self, outputs):
        mean, log_sd = outputs.unbind(-1)
        return mean + self.start, log_sd

    def log_prob(self, outputs, y):
        mean, log_sd = self._moments(outputs)
        return torch.distributions.Normal(mean, log_sd.exp()).log_prob(y)

    def sample(self, outputs, generator):
        mean, log_sd = self._moments(outputs)
        return mean + log_sd.exp() * torch.randn(mean.shape, generator=generator, dtype=mean.dtype)

    def mean(self, outputs):
        return self._moments(outputs)[0]

    def variance(self, outputs):
        return (2.0 * self._moments(outputs)[1]).exp()

    def initialise(self, y, mask):
        pass


def test_a_family_with_several_outputs_and_random_weights():
    state = torch.get_rng_state()
    testing.check_family(TwoOutputs)
    assert torch.equal(torch.get_rng_state(), state)


def test_mixture_prior():
    testing.check_latent_prior(partial(MixtureNormal, components=3))


class WrongMass(StandardNormal):
    def log_density(self, z, x):
        return super().log_density(z, x) + 1.0


class CountsPadding(StandardNormal):
    def kl(self, scenarios, batch, q, q_x):
        return super().kl(replace(scenarios, weight=torch.ones_like(scenarios.weight)), batch, q, q_x)


@pytest.mark.parametrize(("prior", "sentence"), [(WrongMass, "not that of the draws"), (CountsPadding, "padding")])
def test_a_latent_prior_with_a_wrong_density_or_padding_is_told(prior, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_latent_prior(prior)


def test_protocols_are_abstract():
    for protocol in (Family, LatentPrior):
        with pytest.raises(TypeError, match="abstract"):
            protocol()
