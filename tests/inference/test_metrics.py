"""Scores of draws and their quantiles, against closed forms and plain loops."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from lacova.inference.metrics import covered, crps, gaussian_nll, quantile, weighted_quantile


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def quantiles(mean, sd, count):
    """Return the `count` midpoint quantiles of a normal distribution, in the place of draws."""
    share = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return Normal(mean, sd).icdf(share)


def gaussian_crps(mean, sd, y):
    """Return σ [ζ(2Φ(ζ) − 1) + 2φ(ζ) − 1/√π] with ζ = (y − μ)/σ."""
    zeta = (y - mean) / sd
    cdf = 0.5 * (1.0 + math.erf(zeta / math.sqrt(2.0)))
    density = math.exp(-0.5 * zeta**2) / math.sqrt(2.0 * math.pi)
    return sd * (zeta * (2.0 * cdf - 1.0) + 2.0 * density - 1.0 / math.sqrt(math.pi))


@pytest.mark.parametrize(("mean", "sd", "y"), [(0.0, 1.0, 0.0), (2.0, 0.5, 3.1), (-1.0, 3.0, -6.0)])
def test_crps_is_the_closed_form_for_normal_draws(mean, sd, y):
    score = crps(quantiles(mean, sd, 50_000), torch.tensor(y, dtype=torch.float64)).item()
    assert score == pytest.approx(gaussian_crps(mean, sd, y), rel=2e-4)  # the quantiles' own error is about 1/draws


def test_crps_of_random_normal_draws_is_the_closed_form_on_average():
    draws = 2.0 + 0.5 * random(10, 20_000)
    score = crps(draws.sort(0).values, torch.full((20_000,), 2.3, dtype=torch.float64)).mean().item()
    # 20 000 scores of 10 draws each, standard error about 0.0005; a biased ½E|Y−Y'| would be off by 0.028.
    assert score == pytest.approx(gaussian_crps(2.0, 0.5, 2.3), abs=0.002)


@pytest.mark.parametrize("count", [2, 3, 17])
def test_crps_is_the_naive_double_loop(count):
    draws, y = random(count, 4, 2), random(4, 2, seed=1)
    score = crps(draws.sort(0).values, y)
    for i in range(4):
        for d in range(2):
            own = draws[:, i, d].tolist()
            error = sum(abs(a - y[i, d].item()) for a in own) / count
            spread = sum(abs(a - b) for a in own for b in own) / (count * (count - 1))
            assert score[i, d].item() == pytest.approx(error - 0.5 * spread, rel=1e-8, abs=1e-12)


def test_crps_of_equal_draws_is_the_absolute_error():
    y = torch.tensor([1.0, -2.0])
    assert crps(torch.full((5, 2), 0.5), y).tolist() == [0.5, 2.5]


def test_gaussian_nll_is_the_moment_matched_normal():
    location, y = random(7, 4, 3), random(4, 3, seed=1)
    noise_var = torch.tensor([0.1, 1.0, 2.5], dtype=torch.float64)
    nll = gaussian_nll(location, noise_var, y)
    for i in range(4):
        for d in range(3):
            own = location[:, i, d].tolist()
            mean = sum(own) / 7
            var = sum((v - mean) ** 2 for v in own) / 7 + noise_var[d]
            expected = -Normal(y.new_tensor(mean), var.sqrt()).log_prob(y[i, d]).item()
            assert nll[i, d].item() == pytest.approx(expected, rel=1e-10, abs=0)


def test_gaussian_nll_of_one_draw_uses_the_noise_alone():
    nll = gaussian_nll(torch.ones(1, 1, 1), torch.tensor([4.0]), torch.tensor([[0.0]]))
    assert nll.item() == pytest.approx(0.5 * (0.25 + math.log(8.0 * math.pi)), rel=1e-6)


@pytest.mark.parametrize(
    ("coverage", "y", "share"),
    [
        (0.9, [4.05, 4.15, 50.0, 95.85, 95.95], 3 / 5),  # from 0.05 · 102 − 1 to 0.95 · 102 − 1
        (0.5, [4.9, 24.45, 24.55, 75.45, 75.55], 2 / 5),
        (0.98, [-0.1, 0.1, 2.0, 3.0, 99.9], 4 / 5),
    ],
)
def test_coverage_of_the_draws_0_to_100(coverage, y, share):
    draws = torch.arange(101, dtype=torch.float64)[:, None].expand(-1, 5)
    inside = covered(draws, torch.tensor(y, dtype=torch.float64), coverage)
    assert inside.double().mean().item() == pytest.approx(share)


def test_ends_of_the_interval_are_covered():
    draws = torch.arange(5, dtype=torch.float64)[:, None].expand(-1, 3)
    y = torch.tensor([0.5, 3.5, 0.4], dtype=torch.float64)
    assert covered(draws, y, 0.5).tolist() == [True, True, False]


@pytest.mark.parametrize(("count", "coverage"), [(10, 0.8), (19, 0.9), (100, 0.9), (400, 0.5)])
def test_coverage_of_calibrated_draws_is_the_stated_one(count, coverage):
    draws, y = random(count, 40_000), random(40_000, seed=1)
    share = covered(draws.sort(0).values, y, coverage).double().mean().item()
    assert share == pytest.approx(coverage, abs=0.008)  # binomial standard error 0.0025


@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.95, 1.0])
def test_quantile_equals_numpys(count, share):
    draws = random(count, 3)
    expected = torch.from_numpy(np.quantile(draws.numpy(), share, axis=0, method="weibull"))
    torch.testing.assert_close(quantile(draws.sort(0).values, share), expected)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.1, 1.0), (0.15, 2.0), (0.5, 3.0), (0.9, 4.0)])
def test_weighted_quantile_is_the_first_draw_with_enough_weight(share, expected):
    draws, weight = torch.tensor([3.0, 1.0, 4.0, 2.0]), torch.tensor([0.5, 0.125, 0.125, 0.25])
    assert weighted_quantile(draws[:, None], weight[:, None], share).tolist() == [expected]
