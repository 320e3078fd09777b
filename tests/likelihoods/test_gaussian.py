"""Numbers about a location: the Gaussian family and its variance, Student and censored noise against torch's."""

import pytest
import torch
from torch.distributions import Normal, StudentT

from lacova.likelihoods.base import NOISE_FLOOR
from lacova.likelihoods.gaussian import Gaussian, RowGaussian
from tests.likelihoods.cases import assert_log_prob_is_that_of_torch, generator


def family(*raw, floor=NOISE_FLOOR):
    """Return the Gaussian family with these log-variances above the floor."""
    gaussian = Gaussian(torch.ones(len(raw), dtype=torch.float64), floor)
    with torch.no_grad():
        gaussian.raw.copy_(torch.tensor(raw, dtype=torch.float64))
    return gaussian


def test_log_prob_of_one_standard_entry_has_its_constant():
    log_prob = family(0.0, floor=1e-12).log_prob(torch.zeros(1, 1), torch.zeros(1, 1))
    assert log_prob.item() == pytest.approx(-0.9189385332046727, abs=1e-11)


@pytest.mark.parametrize("floor", [1e-4, 0.02])
def test_variance_rests_on_its_floor_and_the_loss_uses_it(floor):
    gaussian = family(-100.0, floor=floor)
    assert gaussian.noise_variance.tolist() == [floor]
    location, y = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 0.3, dtype=torch.float64)
    expected = Normal(location, torch.full_like(y, floor).sqrt()).log_prob(y)
    torch.testing.assert_close(gaussian.log_prob(location, y), expected, rtol=1e-12, atol=0)


def test_variance_is_floor_plus_exp_raw():
    assert family(0.0, 1.0, floor=0.25).noise_variance.tolist() == [1.25, pytest.approx(0.25 + 2.718281828459045)]


def test_extra_variance_adds_to_the_noise():
    gaussian, y = family(-1.0, 0.5), torch.tensor([[0.3, -2.0]], dtype=torch.float64)
    expected = Normal(torch.zeros(1, 2).double(), (gaussian.noise_variance + 0.7).sqrt()).log_prob(y)
    torch.testing.assert_close(gaussian.log_prob(torch.zeros_like(y), y, 0.7), expected, rtol=1e-12, atol=0)


def test_variance_starts_from_the_given_one():
    start = torch.tensor([0.7, 3.0, 0.2], dtype=torch.float64)
    torch.testing.assert_close(Gaussian(start, floor=0.1).noise_variance, start)


def test_initial_variance_is_that_of_the_observed_entries():
    y = torch.tensor([[1.0, 50.0], [9.0, 2.0], [5.0, 9.0], [99.0, 4.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False], [True, True], [True, False], [False, True]])
    gaussian = family(0.0, 0.0)
    gaussian.initialise(y, mask)
    torch.testing.assert_close(gaussian.noise_variance, torch.tensor([32 / 3, 1.0], dtype=torch.float64))


def test_start_below_twice_the_floor_is_twice_the_floor():
    start = torch.tensor([0.0, 0.1, 0.15], dtype=torch.float64)
    torch.testing.assert_close(Gaussian(start, floor=0.1).noise_variance, torch.full_like(start, 0.2))


def test_sample_adds_noise_of_the_stated_variance():
    gaussian = family(-1.0, 0.5)
    location = torch.tensor([[3.0, -2.0]], dtype=torch.float64)
    eps = torch.randn(1, 2, generator=generator(5), dtype=torch.float64)
    drawn = gaussian.sample(location, generator(5))
    torch.testing.assert_close(drawn, location + gaussian.noise_variance.sqrt() * eps, rtol=1e-12, atol=0)


@pytest.mark.parametrize("floor", [0.0, -1.0, float("nan")])
def test_bad_floor_is_refused(floor):
    with pytest.raises(ValueError, match=f"^noise_floor must be positive, got {floor!r}\\.$"):
        Gaussian(torch.ones(2), floor)


def distribution(own_family, outputs, column):
    location, sd = outputs[0], own_family.noise_variance[column].sqrt()
    if hasattr(own_family, "freedom"):
        return StudentT(own_family.freedom[column], location, sd)
    return Normal(location, sd)


@pytest.mark.parametrize("kind", ["gaussian", "student", "censored"])
@pytest.mark.parametrize("column", [0, 1])
def test_log_prob_is_that_of_torch(kind, column):
    assert_log_prob_is_that_of_torch(kind, column, distribution)


def by_row(*raw):
    """Return the family whose noise depends on the row, with these log-variances above the floor."""
    noisy = RowGaussian(torch.ones(len(raw), dtype=torch.float64))
    with torch.no_grad():
        noisy.raw.copy_(torch.tensor(raw, dtype=torch.float64))
    return noisy


def test_noise_by_row_is_the_columns_own_where_its_log_is_0():
    noisy, plain = by_row(0.3, -1.0), family(0.3, -1.0)
    location, y = torch.randn(2, 5, 2, generator=generator(0), dtype=torch.float64)
    outputs = torch.stack([location, torch.zeros_like(location)], -1)
    assert torch.equal(noisy.log_prob(outputs, y), plain.log_prob(location, y))
    assert torch.equal(noisy.variance(outputs), plain.noise_variance.expand(5, 2))
    drawn = (f.sample(o, generator(1)) for f, o in ((noisy, outputs), (plain, location)))
    assert torch.equal(*drawn)


def test_noise_by_row_is_that_of_torch_and_bounded():
    noisy = by_row(0.3, -1.0)
    location, log_ratio, y = torch.randn(3, 50, 2, generator=generator(0), dtype=torch.float64)
    outputs = torch.stack([location, 2.0 * log_ratio], -1)
    raw = torch.tensor([0.3, -1.0], dtype=torch.float64)
    sd = (NOISE_FLOOR + torch.exp(raw + 2.0 * 4.0 * torch.tanh(2.0 * log_ratio / 4.0))).sqrt()
    expected = Normal(location, sd).log_prob(y)
    torch.testing.assert_close(noisy.log_prob(outputs, y), expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(noisy.variance(outputs), sd**2, rtol=1e-8, atol=0)
    wider = Normal(location, (sd**2 + 0.7).sqrt()).log_prob(y)
    torch.testing.assert_close(noisy.log_prob(outputs, y, 0.7), wider, rtol=1e-8, atol=1e-8)
    draws = noisy.sample(outputs[:3].expand(200_000, 3, 2, 2), generator(2))
    torch.testing.assert_close(draws.var(0), sd[:3] ** 2, rtol=0.02, atol=0)
    torch.testing.assert_close(draws.mean(0), location[:3], rtol=0, atol=0.02)
    far = torch.tensor([[0.0, 1e6], [0.0, -1e6]], dtype=torch.float64)
    ends = NOISE_FLOOR + (raw + torch.tensor([8.0, -8.0]).double()).exp()
    torch.testing.assert_close(noisy.variance(far), ends, rtol=1e-8, atol=0)
