"""Observation models: Gaussian noise in detail, then one contract for all families."""

import math

import pytest
import torch
from torch import distributions
from torch.distributions import Normal

from lacova.data.measurement_space import COUNTS, FAMILIES, LEVELS, NO_LIMITS, MeasurementSpace
from lacova.data.table import Table
from lacova.likelihoods.families import NOISE_FLOOR, GaussianLikelihood
from lacova.likelihoods.mixed import MixedLikelihood, learn


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


# The contract of all families, each as the model uses it: some columns of a mixed likelihood.

LIMITS = ((-1.0, math.inf), (-2.0, 0.5))


def space(family):
    """Two columns of a family; of levels, a column has two or four of them, or two each."""
    levels = {"bernoulli": (2, 2), "categorical": (2, 4), "ordinal": (2, 4)}.get(family, (0, 0))
    return MeasurementSpace((family,) * 2, levels, LIMITS if family == "censored" else (NO_LIMITS,) * 2)


def mixed(family, dtype=torch.float64, seed=0):
    """With parameters and starting values somewhere."""
    made = MixedLikelihood(space(family)).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in (*made.parameters(), *(made.get_buffer(n) for n in made.state_dict() if n.endswith("base"))):
            value.copy_(0.7 * torch.randn(value.shape, generator=generator))
    return made


def outputs(family, *shape, scale=1.0, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    width = space(family).output_width
    return scale * torch.randn(*shape, width, generator=generator, dtype=torch.float64).to(dtype)


def support(family, column):
    """All values of a column, or a grid of them, and the weight of each in a sum or integral."""
    if family in LEVELS:
        values = torch.arange(float(space(family).levels[column]), dtype=torch.float64)
        return values, torch.ones_like(values)
    if family in COUNTS:
        values = torch.arange(4000.0, dtype=torch.float64)
        return values, torch.ones_like(values)
    grid = torch.linspace(-60, 60, 240_001, dtype=torch.float64)
    if family == "student":  # in u, y = sinh(u): its tails are long
        grid = torch.linspace(-25, 25, 100_001, dtype=torch.float64)
        return grid.sinh(), grid.cosh() * (grid[1] - grid[0])
    weight = torch.full_like(grid, float(grid[1] - grid[0]))
    if family == "censored":
        lower, upper = LIMITS[column]
        inside = (grid > lower) & (grid < upper)
        weight = torch.where(inside, weight, 0.0)
        ends = torch.tensor([end for end in (lower, upper) if math.isfinite(end)], dtype=torch.float64)
        # Half a cell is lost at each limit, where the density does not vanish.
        return torch.cat([grid, ends]), torch.cat([weight, torch.ones_like(ends)])
    return grid, weight


def entries(made, family, out, column, values):
    """log p of one column over its support (S,), at one row of outputs."""
    y = torch.zeros(len(values), 2, dtype=out.dtype)
    y[:, column] = values.to(out.dtype)
    return made.each(out.expand(len(values), -1), y)[:, column]


every_family = pytest.mark.parametrize("family", FAMILIES)


@every_family
@pytest.mark.parametrize("column", [0, 1])
def test_probabilities_add_up_to_1(family, column):
    made = mixed(family)
    values, weight = support(family, column)
    for out in outputs(family, 4, seed=3):
        total = (entries(made, family, out, column, values).exp() * weight).sum()
        assert total.item() == pytest.approx(1.0, abs=1e-3 if family == "censored" else 1e-8)


@every_family
def test_gradients_are_those_of_finite_differences(family):
    made = mixed(family)
    y = made.sample(outputs(family, 5), torch.Generator().manual_seed(0)).detach()
    mask = torch.rand(5, 2, generator=torch.Generator().manual_seed(2)) < 0.7
    out = outputs(family, 5, seed=4).requires_grad_()
    names, values = zip(*made.named_parameters(), strict=True) if list(made.parameters()) else ((), ())

    def value(out, *values):
        return torch.func.functional_call(made, dict(zip(names, values, strict=True)), (out, y, mask), {})

    made.forward = made.log_prob
    assert torch.autograd.gradcheck(value, (out, *values), rtol=1e-5, atol=1e-6)


@every_family
def test_draws_follow_the_stated_law(family):
    """Shares of draws up to some points against the sum of probabilities there, and their mean."""
    made, count = mixed(family), 40_000
    out = outputs(family, 1, seed=5)
    with torch.no_grad():
        draws = made.sample(out.expand(count, -1), torch.Generator().manual_seed(0))
        for column in (0, 1):
            mine = draws[:, column]
            values, weight = support("gaussian" if family == "censored" else family, column)
            noise = made
            if family == "censored":  # draws are not censored: those of the normal law behind
                noise = MixedLikelihood(space("gaussian")).double()
                noise.families["gaussian"].raw.copy_(made.families["censored"].raw)
            chance = entries(noise, family, out[0], column, values).exp() * weight
            reached = chance.cumsum(0)
            for share in (0.1, 0.5, 0.9):
                at = values[int(torch.searchsorted(reached, share).clamp_max(len(values) - 1))]
                expected = float(chance[values <= at].sum())
                assert float((mine <= at).double().mean()) == pytest.approx(expected, abs=0.012)
            if family not in LEVELS:
                mean = float((chance * values).sum())
                assert float(made.mean(out)[0, column]) == pytest.approx(mean, rel=1e-3, abs=1e-3)
                error = 5 * float(((chance * values.square()).sum() - mean**2).sqrt()) / math.sqrt(count)
                assert float(mine.mean()) == pytest.approx(mean, abs=error)
            if family in (*LEVELS, *COUNTS):
                assert torch.equal(mine, mine.round())
            if family in LEVELS:
                assert int(mine.max()) <= space(family).levels[column] - 1


@every_family
@pytest.mark.parametrize("scale", [1e-6, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("where", ["outputs", "parameters", "both"])
def test_extreme_parameters_give_finite_values_and_gradients_in_float32(family, scale, where):
    made = mixed(family, torch.float32)
    with torch.no_grad():
        if where != "outputs":
            for value in made.parameters():
                value.mul_(min(scale, 80.0) if family in ("gaussian", "student", "censored") else scale)
    out = outputs(family, 20, scale=1.0 if where == "parameters" else scale, dtype=torch.float32).requires_grad_()
    y = torch.zeros(20, 2)
    if family in LEVELS:
        y[:, 0], y[:, 1] = torch.arange(20) % 2, torch.arange(20) % space(family).levels[1]
    elif family in COUNTS:
        y += torch.tensor([0.0, 1.0, 7.0, 1e4, 1e7]).repeat(4)[:, None]
    else:
        y += torch.tensor([-2.0, -0.5, 0.0, 0.4, 0.5]).repeat(4)[:, None]
    mask = torch.ones(20, 2, dtype=torch.bool)
    mask[3] = False
    value = made.log_prob(out, y, mask)
    value.sum().backward()
    assert value.isfinite().all()
    assert out.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in made.parameters())
    assert made.sample(out.detach(), torch.Generator().manual_seed(0)).isfinite().all()
    assert made.level_probabilities(out.detach()).isfinite().all()


@every_family
def test_masked_entries_neither_count_nor_get_a_gradient(family):
    made = mixed(family)
    out = outputs(family, 3).requires_grad_()
    y = made.sample(out.detach(), torch.Generator().manual_seed(0)).detach()
    mask = torch.tensor([[True, False], [False, False], [True, False]])
    value = made.log_prob(out, torch.where(mask, y, -1e30), mask)
    each = made.each(out.detach(), y)
    torch.testing.assert_close(value, torch.where(mask, each, 0.0).sum(-1), rtol=1e-12, atol=0)
    assert value[1] == 0.0
    value.sum().backward()
    second = list(space(family).outputs[1])
    assert (out.grad[1] == 0).all()
    assert (out.grad[:, second] == 0).all()
    assert (out.grad[0] != 0).any()
    for parameter in made.parameters():
        assert (parameter.grad[1] == 0).all()


@every_family
def test_draws_and_scenarios_broadcast(family):
    made = mixed(family)
    out = outputs(family, 3, 4)
    y = made.sample(out[0], torch.Generator().manual_seed(0))
    mask = torch.ones(4, 2, dtype=torch.bool)
    got = made.log_prob(out, y, mask)
    assert got.shape == (3, 4)
    torch.testing.assert_close(got[2], made.log_prob(out[2], y, mask), rtol=1e-12, atol=0)


def reference(made, family, out, column):
    """The same law from torch.distributions; what is learnt beside the outputs is read off by its definition."""
    part, own = made.families[family], out[list(space(family).outputs[column])]
    base = part.base[column] if hasattr(part, "base") else 0.0
    sd = part.var[column].sqrt() if hasattr(part, "var") else None
    match family:
        case "gaussian" | "censored":
            return Normal(own[0], sd)
        case "student":
            return distributions.StudentT(part.freedom[column], own[0], sd)
        case "poisson":
            return distributions.Poisson((base + 20 * torch.tanh(own[0] / 20)).exp())
        case "negative_binomial":
            size = (-8 * torch.tanh(part.raw[column] / 8)).exp()
            odds = base + 20 * torch.tanh(own[0] / 20) - size.log()
            return distributions.NegativeBinomial(size, logits=odds)
        case "bernoulli":
            return distributions.Categorical(torch.stack([1 - (base + own[0]).sigmoid(), (base + own[0]).sigmoid()]))
        case "categorical":
            return distributions.Categorical(logits=base[: len(own)] + own)
        case "ordinal":
            cuts = part.thresholds[column][: space(family).levels[column] - 1]
            ends = torch.cat([torch.zeros(1).double(), (cuts - own[0]).sigmoid(), torch.ones(1).double()])
            return distributions.Categorical(ends.diff())


@every_family
@pytest.mark.parametrize("column", [0, 1])
def test_log_probabilities_are_those_of_torch(family, column):
    made = mixed(family, seed=7)
    out = outputs(family, 1, seed=8)[0]
    law = reference(made, family, out, column)
    values = support(family, column)[0][::1000] if family not in LEVELS else support(family, column)[0]
    expected = law.log_prob(values)
    if family == "censored":
        lower, upper = (torch.tensor(end, dtype=torch.float64) for end in LIMITS[column])
        expected = torch.where(values <= lower, law.cdf(lower).log(), expected)
        expected = torch.where(values >= upper, (1 - law.cdf(upper)).log(), expected)
    torch.testing.assert_close(entries(made, family, out, column, values), expected, rtol=1e-8, atol=1e-8)
    if family in LEVELS:
        level_probabilities = made.level_probabilities(out)[column]
        torch.testing.assert_close(level_probabilities[: len(values)], expected.exp())
        assert (level_probabilities[len(values) :] == 0).all()


def test_columns_of_different_families_keep_to_themselves():
    order = ("categorical", "gaussian", "poisson", "gaussian", "ordinal", "bernoulli", "categorical", "censored")
    levels = (3, 0, 0, 0, 4, 2, 2, 0)
    whole = MixedLikelihood(MeasurementSpace(order, levels, (NO_LIMITS,) * 7 + ((-0.5, 0.5),))).double()
    generator = torch.Generator().manual_seed(0)
    out = torch.randn(6, whole.space.output_width, generator=generator, dtype=torch.float64)
    assert whole.space.output_width == 3 + 1 + 1 + 1 + 1 + 1 + 2 + 1
    y = whole.sample(out, generator)
    each = whole.each(out, y)
    for d, family in enumerate(order):
        alone = MixedLikelihood(MeasurementSpace((family,), (levels[d],), (whole.space.limits[d],))).double()
        own = out[:, list(whole.space.outputs[d])]
        torch.testing.assert_close(alone.each(own, y[:, d : d + 1])[:, 0], each[:, d])


def test_starting_values_are_those_of_the_observed_entries():
    """With outputs of 0, level shares and means are those of the table."""
    families = ("gaussian", "poisson", "negative_binomial", "bernoulli", "categorical", "ordinal")
    found = MeasurementSpace(families, (0, 0, 0, 2, 3, 4), (NO_LIMITS,) * 6)
    rng = torch.Generator().manual_seed(0)
    n = 4000
    y = torch.stack(
        [torch.randn(n, generator=rng), *torch.poisson(torch.full((2, n), 7.0), generator=rng),
         *(torch.randint(0, k, (n,), generator=rng).float() for k in (2, 3, 4))], 1,
    )  # fmt: skip
    y[:, 2] *= torch.randint(0, 3, (n,), generator=rng)
    mask = torch.rand(n, 6, generator=rng) < 0.8
    x = torch.zeros(n, 0)
    made = learn(found, Table(torch.where(mask, y, 0.0), mask, x, x.bool(), None, ()))
    out = torch.zeros(found.output_width)
    for d in (1, 2):
        assert made.mean(out)[d].item() == pytest.approx(float(y[mask[:, d], d].mean()), rel=1e-4)
    size = made.families["negative_binomial"].log_size.exp().item()
    seen = y[mask[:, 2], 2]
    assert 1 / size == pytest.approx(float((seen.var() - seen.mean()) / seen.mean() ** 2), rel=0.05)
    for d in (3, 4, 5):
        share = torch.bincount(y[mask[:, d], d].long(), minlength=4) / mask[:, d].sum()
        torch.testing.assert_close(made.level_probabilities(out)[d], share[:4], rtol=0.02, atol=0.002)


def test_features_are_numbers_logs_of_counts_and_one_hot_levels_with_the_mask():
    found = MeasurementSpace(
        ("categorical", "gaussian", "poisson", "bernoulli", "ordinal"), (3, 0, 0, 2, 2), (NO_LIMITS,) * 5
    )
    y = torch.tensor([[2.0, -1.5, 7.0, 1.0, 0.0], [1.0, 3.0, 2.0, 1.0, 1.0]])
    mask = torch.tensor([[True] * 5, [False] * 5])
    got = found.features(torch.where(mask, y, -1e30), mask)
    assert got.shape == (2, found.width)
    assert got[0].tolist() == pytest.approx([-1.5, math.log(8), 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, *[1.0] * 5])
    assert (got[1] == 0).all()
    plain = MeasurementSpace.of(2)
    assert plain.features(y[:, :2], mask[:, :2]).tolist() == [[2.0, -1.5, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    assert plain.plain
    assert plain.width == 4
