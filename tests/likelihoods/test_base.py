"""The contract of all observation families: normalised densities, their gradients, draws, and float32."""

import math

import pytest
import torch

from lacova.data.kinds import values_of
from lacova.data.measurement_space import FAMILIES
from lacova.likelihoods.likelihood import Likelihood
from tests.likelihoods.cases import column_log_prob, decoder_outputs, generator, likelihood_of, space, support

every_family = pytest.mark.parametrize("family", FAMILIES)


@every_family
@pytest.mark.parametrize("column", [0, 1])
def test_probabilities_add_up_to_1(family, column):
    likelihood = likelihood_of(family)
    values, weight = support(family, column)
    for outputs in decoder_outputs(family, 4, seed=3):
        total = (column_log_prob(likelihood, outputs, column, values).exp() * weight).sum()
        assert total.item() == pytest.approx(1.0, abs=1e-3 if family == "censored" else 1e-8)


@every_family
def test_gradients_are_those_of_finite_differences(family):
    likelihood = likelihood_of(family)
    y = likelihood.sample(decoder_outputs(family, 5), generator()).detach()
    mask = torch.rand(5, 2, generator=generator(2)) < 0.7
    outputs = decoder_outputs(family, 5, seed=4).requires_grad_()
    names, values = zip(*likelihood.named_parameters(), strict=True) if list(likelihood.parameters()) else ((), ())

    def log_prob(outputs, *values):
        return torch.func.functional_call(likelihood, dict(zip(names, values, strict=True)), (outputs, y, mask), {})

    likelihood.forward = likelihood.log_prob
    assert torch.autograd.gradcheck(log_prob, (outputs, *values), rtol=1e-5, atol=1e-6)


@every_family
def test_draws_follow_the_stated_distribution(family):
    """Compare the share of draws up to some points with the sum of probabilities there, and their mean."""
    likelihood, count = likelihood_of(family), 40_000
    outputs = decoder_outputs(family, 1, seed=5)
    with torch.no_grad():
        draws = likelihood.sample(outputs.expand(count, -1), generator())
        for column in (0, 1):
            drawn = draws[:, column]
            values, weight = support("gaussian" if family == "censored" else family, column)
            uncensored = likelihood
            if family == "censored":  # draws are not censored: they come from the normal distribution behind
                uncensored = Likelihood(space("gaussian")).double()
                uncensored.families["gaussian"].raw.copy_(likelihood.families["censored"].raw)
            probs = column_log_prob(uncensored, outputs[0], column, values).exp() * weight
            cumulative = probs.cumsum(0)
            for share in (0.1, 0.5, 0.9):
                at = values[int(torch.searchsorted(cumulative, share).clamp_max(len(values) - 1))]
                expected = float(probs[values <= at].sum())
                assert float((drawn <= at).double().mean()) == pytest.approx(expected, abs=0.012)
            if values_of(family) != "level":
                mean = float((probs * values).sum())
                assert float(likelihood.mean(outputs)[0, column]) == pytest.approx(mean, rel=1e-3, abs=1e-3)
                error = 5 * float(((probs * values.square()).sum() - mean**2).sqrt()) / math.sqrt(count)
                assert float(drawn.mean()) == pytest.approx(mean, abs=error)
            if values_of(family) in ("level", "count"):
                assert torch.equal(drawn, drawn.round())
            if values_of(family) == "level":
                assert int(drawn.max()) <= space(family).levels[column] - 1


@every_family
@pytest.mark.parametrize("scale", [1e-6, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("where", ["outputs", "parameters", "both"])
def test_extreme_parameters_give_finite_values_and_gradients_in_float32(family, scale, where):
    likelihood = likelihood_of(family, torch.float32)
    with torch.no_grad():
        if where != "outputs":
            for value in likelihood.parameters():
                value.mul_(min(scale, 80.0) if values_of(family) == "number" else scale)
    outputs = decoder_outputs(family, 20, scale=1.0 if where == "parameters" else scale, dtype=torch.float32)
    outputs.requires_grad_()
    y = torch.zeros(20, 2)
    if values_of(family) == "level":
        y[:, 0], y[:, 1] = torch.arange(20) % 2, torch.arange(20) % space(family).levels[1]
    elif values_of(family) == "count":
        y += torch.tensor([0.0, 1.0, 7.0, 1e4, 1e7]).repeat(4)[:, None]
    else:
        y += torch.tensor([-2.0, -0.5, 0.0, 0.4, 0.5]).repeat(4)[:, None]
    mask = torch.ones(20, 2, dtype=torch.bool)
    mask[3] = False
    value = likelihood.log_prob(outputs, y, mask)
    value.sum().backward()
    assert value.isfinite().all()
    assert outputs.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in likelihood.parameters())
    assert likelihood.sample(outputs.detach(), generator()).isfinite().all()
    probs = likelihood.level_probabilities(outputs.detach())
    assert (probs is None) == (values_of(family) != "level")
    assert probs is None or probs.isfinite().all()
