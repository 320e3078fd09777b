import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from lacova.inference.metrics import covered, crps, gaussian_nll, quantile


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def quantiles(mean, sd, count):
    """The `count` midpoint quantiles of a normal: draws without chance."""
    level = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return Normal(mean, sd).icdf(level)


def gaussian_crps(mean, sd, y):
    """σ [ζ(2Φ(ζ) − 1) + 2φ(ζ) − 1/√π] with ζ = (y − μ)/σ."""
    zeta = (y - mean) / sd
    cdf = 0.5 * (1.0 + math.erf(zeta / math.sqrt(2.0)))
    density = math.exp(-0.5 * zeta**2) / math.sqrt(2.0 * math.pi)
    return sd * (zeta * (2.0 * cdf - 1.0) + 2.0 * density - 1.0 / math.sqrt(math.pi))


@pytest.mark.parametrize(("mean", "sd", "y"), [(0.0, 1.0, 0.0), (2.0, 0.5, 3.1), (-1.0, 3.0, -6.0)])
def test_crps_is_the_closed_form_for_normal_draws(mean, sd, y):
    got = crps(quantiles(mean, sd, 50_000), torch.tensor(y, dtype=torch.float64)).item()
    assert got == pytest.approx(gaussian_crps(mean, sd, y), rel=2e-4)  # the quantiles' own error is about 1/draws


def test_crps_of_random_normal_draws_is_the_closed_form_on_average():
    draws = 2.0 + 0.5 * random(10, 20_000)
    got = crps(draws.sort(0).values, torch.full((20_000,), 2.3, dtype=torch.float64)).mean().item()
    # 20 000 scores of 10 draws each, standard error about 0.0005; a biased ½E|Y−Y'| would be off by 0.028.
    assert got == pytest.approx(gaussian_crps(2.0, 0.5, 2.3), abs=0.002)


@pytest.mark.parametrize("count", [2, 3, 17])
def test_crps_is_the_naive_double_loop(count):
    draws, y = random(count, 4, 2), random(4, 2, seed=1)
    got = crps(draws.sort(0).values, y)
    for i in range(4):
        for d in range(2):
            mine = draws[:, i, d].tolist()
            error = sum(abs(a - y[i, d].item()) for a in mine) / count
            spread = sum(abs(a - b) for a in mine for b in mine) / (count * (count - 1))
            assert got[i, d].item() == pytest.approx(error - 0.5 * spread, rel=1e-8, abs=1e-12)


def test_crps_of_equal_draws_is_the_absolute_error():
    y = torch.tensor([1.0, -2.0])
    assert crps(torch.full((5, 2), 0.5), y).tolist() == [0.5, 2.5]


def test_gaussian_nll_is_the_moment_matched_normal():
    location, y = random(7, 4, 3), random(4, 3, seed=1)
    noise_var = torch.tensor([0.1, 1.0, 2.5], dtype=torch.float64)
    got = gaussian_nll(location, noise_var, y)
    for i in range(4):
        for d in range(3):
            mine = location[:, i, d].tolist()
            mean = sum(mine) / 7
            var = sum((v - mean) ** 2 for v in mine) / 7 + noise_var[d]
            expected = -Normal(y.new_tensor(mean), var.sqrt()).log_prob(y[i, d]).item()
            assert got[i, d].item() == pytest.approx(expected, rel=1e-10, abs=0)


def test_gaussian_nll_of_one_draw_uses_the_noise_alone():
    got = gaussian_nll(torch.ones(1, 1, 1), torch.tensor([4.0]), torch.tensor([[0.0]]))
    assert got.item() == pytest.approx(0.5 * (0.25 + math.log(8.0 * math.pi)), rel=1e-6)


@pytest.mark.parametrize(
    ("level", "y", "share"),
    [
        (0.9, [4.05, 4.15, 50.0, 95.85, 95.95], 3 / 5),  # from 0.05 · 102 − 1 to 0.95 · 102 − 1
        (0.5, [4.9, 24.45, 24.55, 75.45, 75.55], 2 / 5),
        (0.98, [-0.1, 0.1, 2.0, 3.0, 99.9], 4 / 5),
    ],
)
def test_coverage_of_the_draws_0_to_100(level, y, share):
    draws = torch.arange(101, dtype=torch.float64)[:, None].expand(-1, 5)
    got = covered(draws, torch.tensor(y, dtype=torch.float64), level)
    assert got.double().mean().item() == pytest.approx(share)


def test_ends_of_the_interval_are_covered():
    draws = torch.arange(5, dtype=torch.float64)[:, None].expand(-1, 3)
    y = torch.tensor([0.5, 3.5, 0.4], dtype=torch.float64)
    assert covered(draws, y, 0.5).tolist() == [True, True, False]


@pytest.mark.parametrize(("count", "level"), [(10, 0.8), (19, 0.9), (100, 0.9), (400, 0.5)])
def test_coverage_of_calibrated_draws_is_the_level(count, level):
    draws, y = random(count, 40_000), random(40_000, seed=1)
    got = covered(draws.sort(0).values, y, level).double().mean().item()
    assert got == pytest.approx(level, abs=0.008)  # binomial standard error 0.0025


@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.95, 1.0])
def test_quantile_equals_numpys(count, share):
    draws = random(count, 3)
    expected = torch.from_numpy(np.quantile(draws.numpy(), share, axis=0, method="weibull"))
    torch.testing.assert_close(quantile(draws.sort(0).values, share), expected)
