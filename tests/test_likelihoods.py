import pytest
import torch
from torch.distributions import Normal

from lacova.likelihoods import NOISE_FLOOR, GaussianLikelihood
from lacova.table import Table


def likelihood(*log_var, floor=NOISE_FLOOR):
    made = GaussianLikelihood(torch.ones(len(log_var), dtype=torch.float64), floor)
    with torch.no_grad():
        made.raw.copy_(torch.tensor(log_var, dtype=torch.float64))
    return made


def example(rows=4, columns=3):
    generator = torch.Generator().manual_seed(0)
    location, y = torch.randn(2, rows, columns, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, columns, generator=generator) < 0.6
    mask[0], mask[1] = True, False
    return location, y, mask


def test_log_prob_is_the_sum_of_normal_log_densities_over_observed_entries():
    model = likelihood(-1.0, 0.3, 2.0)
    location, y, mask = example()
    got = model.log_prob(location, y, mask)
    for i in range(len(y)):
        each = [Normal(location[i, d], model.var[d].sqrt()).log_prob(y[i, d]).item() for d in range(3) if mask[i, d]]
        assert got[i].item() == pytest.approx(sum(each), rel=1e-12, abs=0)


def test_log_prob_of_one_standard_entry_has_its_constant():
    model = likelihood(0.0, floor=1e-12)
    got = model.log_prob(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool))
    assert got.item() == pytest.approx(-0.9189385332046727, abs=1e-11)


def test_row_without_observed_entries_has_log_prob_0():
    location, y, mask = example()
    assert not mask[1].any()
    assert likelihood(-1.0, 0.3, 2.0).log_prob(location, y, mask)[1].item() == 0.0


def test_masked_values_are_arbitrary():
    model = likelihood(-1.0, 0.3, 2.0)
    location, y, mask = example()
    before = model.log_prob(location, y, mask)
    assert torch.equal(model.log_prob(location, torch.where(mask, y, -1e30), mask), before)
    assert torch.equal(model.log_prob(torch.where(mask, location, 1e9), y, mask), before)


def test_masked_entries_have_no_gradient():
    model = likelihood(-1.0, 0.3, 2.0)
    location, y, mask = example()
    mask[:, 2] = False
    location.requires_grad_()
    model.log_prob(location, y, mask).sum().backward()
    assert (location.grad[~mask] == 0).all()
    assert (location.grad[mask] != 0).all()
    assert model.raw.grad[2] == 0
    assert (model.raw.grad[:2] != 0).all()


def test_log_prob_broadcasts_over_draws():
    model = likelihood(-1.0, 0.3, 2.0)
    location, y, mask = example()
    draws = torch.stack([location, 2 * location])
    got = model.log_prob(draws, y, mask)
    assert torch.equal(got[1], model.log_prob(2 * location, y, mask))


@pytest.mark.parametrize("floor", [1e-4, 0.02])
def test_variance_rests_on_its_floor_and_the_loss_uses_it(floor):
    model = likelihood(-100.0, floor=floor)
    assert model.var.tolist() == [floor]
    location, y = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 0.3, dtype=torch.float64)
    got = model.log_prob(location, y, torch.ones(1, 1, dtype=torch.bool))
    expected = Normal(location, torch.full_like(y, floor).sqrt()).log_prob(y)[0]
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


def test_variance_is_floor_plus_exp_raw():
    assert likelihood(0.0, 1.0, floor=0.25).var.tolist() == [1.25, pytest.approx(0.25 + 2.718281828459045)]


def test_variance_starts_where_it_is_told():
    start = torch.tensor([0.7, 3.0, 0.2], dtype=torch.float64)
    torch.testing.assert_close(GaussianLikelihood(start, floor=0.1).var, start)


def test_start_below_twice_the_floor_is_twice_the_floor():
    start = torch.tensor([0.0, 0.1, 0.15], dtype=torch.float64)
    torch.testing.assert_close(GaussianLikelihood(start, floor=0.1).var, torch.full_like(start, 0.2))


def test_learnt_start_is_the_variance_of_the_observed_entries():
    y = torch.tensor([[1.0, 50.0], [9.0, 2.0], [5.0, 9.0], [99.0, 4.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False], [True, True], [True, False], [False, True]])
    x = torch.zeros(4, 0)
    model = GaussianLikelihood.learn(Table(y, mask, x, x.bool(), None, ()))
    torch.testing.assert_close(model.var, torch.tensor([32 / 3, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("mask", [[True, False], [False, True]])
def test_density_integrates_to_1_over_the_observed_entry(mask):
    model = likelihood(-1.0, 0.5)
    grid = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    y = grid[:, None].expand(-1, 2)
    density = model.log_prob(torch.tensor([[0.7, -0.4]], dtype=torch.float64), y, torch.tensor(mask)).exp()
    assert torch.trapezoid(density, grid).item() == pytest.approx(1.0, abs=1e-10)


def test_density_integrates_to_1_over_two_entries():
    model = likelihood(-1.0, 0.5)
    grid = torch.linspace(-12, 12, 401, dtype=torch.float64)
    y = torch.cartesian_prod(grid, grid)
    density = model.log_prob(torch.zeros(1, 2, dtype=torch.float64), y, torch.tensor([True, True])).exp()
    inner = torch.trapezoid(density.view(401, 401), grid)
    assert torch.trapezoid(inner, grid).item() == pytest.approx(1.0, abs=1e-10)


def test_sample_adds_noise_of_the_stated_variance():
    model = likelihood(-1.0, 0.5)
    location = torch.tensor([[3.0, -2.0]], dtype=torch.float64)
    noise = torch.randn(1, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    got = model.sample(location, torch.Generator().manual_seed(5))
    torch.testing.assert_close(got, location + model.var.sqrt() * noise, rtol=1e-12, atol=0)


@pytest.mark.parametrize("floor", [0.0, -1.0, float("nan")])
def test_bad_floor_is_refused(floor):
    with pytest.raises(ValueError, match=f"^noise_floor must be positive, got {floor!r}\\.$"):
        GaussianLikelihood(torch.ones(2), floor)
