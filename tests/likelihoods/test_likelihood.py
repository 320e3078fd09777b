"""The likelihood of a table: observed entries only, each column by its own family, and its starting values."""

import pytest
import torch
from torch.distributions import Normal

from lacova.data.measurement_space import FAMILIES, NO_LIMITS, MeasurementSpace
from lacova.data.table import Table
from lacova.likelihoods.base import NOISE_FLOOR
from lacova.likelihoods.likelihood import Likelihood
from tests.likelihoods.cases import decoder_outputs, generator, likelihood_of, space


def gaussian(*raw, floor=NOISE_FLOOR):
    """Return the likelihood of Gaussian columns with these log-variances above the floor."""
    likelihood = Likelihood.gaussian(torch.ones(len(raw), dtype=torch.float64), floor)
    with torch.no_grad():
        likelihood.families["gaussian"].raw.copy_(torch.tensor(raw, dtype=torch.float64))
    return likelihood


def example(rows=4, columns=3):
    """Return locations, y and a mask with a complete row and an empty one."""
    g = generator()
    location, y = torch.randn(2, rows, columns, generator=g, dtype=torch.float64)
    mask = torch.rand(rows, columns, generator=g) < 0.6
    mask[0], mask[1] = True, False
    return location, y, mask


def table_of(y, mask):
    x = torch.zeros(len(y), 0)
    return Table(y, mask, x, x.bool(), None, ())


def test_log_prob_is_the_sum_of_normal_log_densities_over_observed_entries():
    likelihood = gaussian(-1.0, 0.3, 2.0)
    location, y, mask = example()
    log_prob, sd = likelihood.log_prob(location, y, mask), likelihood.noise_variance.sqrt()
    for i in range(len(y)):
        entries = [Normal(location[i, d], sd[d]).log_prob(y[i, d]).item() for d in range(3) if mask[i, d]]
        assert log_prob[i].item() == pytest.approx(sum(entries), rel=1e-12, abs=0)


def test_log_prob_of_one_standard_entry_has_its_constant():
    likelihood = gaussian(0.0, floor=1e-12)
    log_prob = likelihood.log_prob(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool))
    assert log_prob.item() == pytest.approx(-0.9189385332046727, abs=1e-11)


def test_row_without_observed_entries_has_log_prob_0():
    location, y, mask = example()
    assert not mask[1].any()
    assert gaussian(-1.0, 0.3, 2.0).log_prob(location, y, mask)[1].item() == 0.0


def test_masked_values_are_arbitrary():
    likelihood = gaussian(-1.0, 0.3, 2.0)
    location, y, mask = example()
    log_prob = likelihood.log_prob(location, y, mask)
    assert torch.equal(likelihood.log_prob(location, torch.where(mask, y, -1e30), mask), log_prob)
    assert torch.equal(likelihood.log_prob(torch.where(mask, location, 1e9), y, mask), log_prob)


def test_masked_entries_have_no_gradient():
    likelihood = gaussian(-1.0, 0.3, 2.0)
    location, y, mask = example()
    mask[:, 2] = False
    location.requires_grad_()
    likelihood.log_prob(location, y, mask).sum().backward()
    assert (location.grad[~mask] == 0).all()
    assert (location.grad[mask] != 0).all()
    raw = likelihood.families["gaussian"].raw
    assert raw.grad[2] == 0
    assert (raw.grad[:2] != 0).all()


def test_log_prob_broadcasts_over_draws():
    likelihood = gaussian(-1.0, 0.3, 2.0)
    location, y, mask = example()
    log_prob = likelihood.log_prob(torch.stack([location, 2 * location]), y, mask)
    assert torch.equal(log_prob[1], likelihood.log_prob(2 * location, y, mask))


def test_variance_starts_from_the_given_one():
    start = torch.tensor([0.7, 3.0, 0.2], dtype=torch.float64)
    likelihood = Likelihood.gaussian(start, floor=0.1)
    torch.testing.assert_close(likelihood.noise_variance, start)
    likelihood.set_noise_variance(2 * start)
    torch.testing.assert_close(likelihood.noise_variance, 2 * start)
    with pytest.raises(ValueError, match=r"^noise_floor must be positive, got 0.0\.$"):
        Likelihood.gaussian(start, floor=0.0)


def test_learnt_start_is_the_variance_of_the_observed_entries():
    y = torch.tensor([[1.0, 50.0], [9.0, 2.0], [5.0, 9.0], [99.0, 4.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False], [True, True], [True, False], [False, True]])
    likelihood = Likelihood.learn(MeasurementSpace.of(2), table_of(y, mask)).double()
    torch.testing.assert_close(
        likelihood.noise_variance, torch.tensor([32 / 3, 1.0], dtype=torch.float64), rtol=1e-6, atol=0
    )  # fmt: skip


@pytest.mark.parametrize("mask", [[True, False], [False, True]])
def test_density_integrates_to_1_over_the_observed_entry(mask):
    grid = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    y, location = grid[:, None].expand(-1, 2), torch.tensor([[0.7, -0.4]], dtype=torch.float64)
    density = gaussian(-1.0, 0.5).log_prob(location, y, torch.tensor(mask)).exp()
    assert torch.trapezoid(density, grid).item() == pytest.approx(1.0, abs=1e-10)


def test_density_integrates_to_1_over_two_entries():
    grid = torch.linspace(-12, 12, 401, dtype=torch.float64)
    y, location = torch.cartesian_prod(grid, grid), torch.zeros(1, 2, dtype=torch.float64)
    density = gaussian(-1.0, 0.5).log_prob(location, y, torch.tensor([True, True])).exp()
    inner = torch.trapezoid(density.view(401, 401), grid)
    assert torch.trapezoid(inner, grid).item() == pytest.approx(1.0, abs=1e-10)


every_family = pytest.mark.parametrize("family", FAMILIES)


@every_family
def test_masked_entries_neither_count_nor_get_a_gradient(family):
    likelihood = likelihood_of(family)
    outputs = decoder_outputs(family, 3).requires_grad_()
    y = likelihood.sample(outputs.detach(), generator()).detach()
    mask = torch.tensor([[True, False], [False, False], [True, False]])
    log_prob = likelihood.log_prob(outputs, torch.where(mask, y, -1e30), mask)
    entries = likelihood.entry_log_prob(outputs.detach(), y)
    torch.testing.assert_close(log_prob, torch.where(mask, entries, 0.0).sum(-1), rtol=1e-12, atol=0)
    assert log_prob[1] == 0.0
    log_prob.sum().backward()
    second = list(space(family).outputs[1])
    assert (outputs.grad[1] == 0).all()
    assert (outputs.grad[:, second] == 0).all()
    assert (outputs.grad[0] != 0).any()
    for parameter in likelihood.parameters():
        assert (parameter.grad[1] == 0).all()


@every_family
def test_draws_and_scenarios_broadcast(family):
    likelihood = likelihood_of(family)
    outputs = decoder_outputs(family, 3, 4)
    y = likelihood.sample(outputs[0], generator())
    mask = torch.ones(4, 2, dtype=torch.bool)
    log_prob = likelihood.log_prob(outputs, y, mask)
    assert log_prob.shape == (3, 4)
    torch.testing.assert_close(log_prob[2], likelihood.log_prob(outputs[2], y, mask), rtol=1e-12, atol=0)


ORDER = ("categorical", "gaussian", "poisson", "gaussian", "ordinal", "bernoulli", "categorical", "censored")
LEVELS = (3, 0, 0, 0, 4, 2, 2, 0)


def test_columns_of_different_families_keep_to_themselves():
    both = Likelihood(MeasurementSpace(ORDER, LEVELS, (NO_LIMITS,) * 7 + ((-0.5, 0.5),))).double()
    both.set_noise_variance(torch.tensor([0.4, 2.5]))
    g = generator()
    outputs = torch.randn(6, both.space.output_width, generator=g, dtype=torch.float64)
    assert both.space.output_width == 3 + 1 + 1 + 1 + 1 + 1 + 2 + 1
    y, mask = both.sample(outputs, g), torch.rand(6, 8, generator=g) < 0.7
    entries, mean, variance = both.entry_log_prob(outputs, y), both.mean(outputs), both.variance(outputs)
    probs = both.level_probabilities(outputs)
    total = torch.zeros(6, dtype=torch.float64)
    for d, kind in enumerate(ORDER):
        alone = Likelihood(MeasurementSpace((kind,), (LEVELS[d],), (both.space.limits[d],))).double()
        if kind == "gaussian":
            alone.set_noise_variance(torch.tensor([0.4 if d == 1 else 2.5]))
        own, own_y = outputs[:, list(both.space.outputs[d])], y[:, d : d + 1]
        torch.testing.assert_close(alone.entry_log_prob(own, own_y)[:, 0], entries[:, d])
        torch.testing.assert_close(alone.mean(own)[:, 0], mean[:, d])
        torch.testing.assert_close(alone.variance(own).expand(6, 1)[:, 0], variance[:, d])
        total += alone.log_prob(own, own_y, mask[:, d : d + 1])
        if LEVELS[d]:
            torch.testing.assert_close(alone.level_probabilities(own)[:, 0], probs[:, d, : LEVELS[d]])
            assert (probs[:, d, LEVELS[d] :] == 0).all()
        else:
            assert (probs[:, d] == 0).all()
    torch.testing.assert_close(both.log_prob(outputs, y, mask), total)


def test_starting_values_are_those_of_the_observed_entries():
    """With outputs of 0, probabilities of levels and means are those of the table."""
    families = ("gaussian", "poisson", "negative_binomial", "bernoulli", "categorical", "ordinal")
    layout = MeasurementSpace(families, (0, 0, 0, 2, 3, 4), (NO_LIMITS,) * 6)
    g, n = generator(), 4000
    y = torch.stack(
        [torch.randn(n, generator=g), *torch.poisson(torch.full((2, n), 7.0), generator=g),
         *(torch.randint(0, k, (n,), generator=g).float() for k in (2, 3, 4))], 1,
    )  # fmt: skip
    y[:, 2] *= torch.randint(0, 3, (n,), generator=g)
    mask = torch.rand(n, 6, generator=g) < 0.8
    likelihood = Likelihood.learn(layout, table_of(torch.where(mask, y, 0.0), mask))
    outputs = torch.zeros(layout.output_width)
    for d in (1, 2):
        assert likelihood.mean(outputs)[d].item() == pytest.approx(float(y[mask[:, d], d].mean()), rel=1e-4)
    size = likelihood.families["negative_binomial"].log_size.exp().item()
    observed = y[mask[:, 2], 2]
    assert 1 / size == pytest.approx(float((observed.var() - observed.mean()) / observed.mean() ** 2), rel=0.05)
    for d in (3, 4, 5):
        share = torch.bincount(y[mask[:, d], d].long(), minlength=4) / mask[:, d].sum()
        torch.testing.assert_close(likelihood.level_probabilities(outputs)[d], share[:4], rtol=0.02, atol=0.002)
