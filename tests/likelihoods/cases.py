"""Two columns of each observation family, as a likelihood has them, with their values and decoder outputs."""

import math

import torch

from lacova.data.kinds import values_of
from lacova.data.measurement_space import NO_LIMITS, MeasurementSpace
from lacova.likelihoods.likelihood import Likelihood

LIMITS = ((-1.0, math.inf), (-2.0, 0.5))  # of the two censored columns


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def space(family):
    """Return the layout of two columns of a family; columns of levels have two and four levels, or two each."""
    levels = {"bernoulli": (2, 2), "categorical": (2, 4), "ordinal": (2, 4)}.get(family, (0, 0))
    return MeasurementSpace((family,) * 2, levels, LIMITS if family == "censored" else (NO_LIMITS,) * 2)


def likelihood_of(family, dtype=torch.float64, seed=0):
    """Return the likelihood of two columns of a family, with random parameters and base values."""
    likelihood, g = Likelihood(space(family)).to(dtype), generator(seed)
    bases = (likelihood.get_buffer(name) for name in likelihood.state_dict() if name.endswith("base"))
    with torch.no_grad():
        for value in (*likelihood.parameters(), *bases):
            value.copy_(0.7 * torch.randn(value.shape, generator=g))
    return likelihood


def decoder_outputs(family, *shape, scale=1.0, dtype=torch.float64, seed=1):
    """Return random decoder outputs of the two columns (…×outputs)."""
    width = space(family).output_width
    return scale * torch.randn(*shape, width, generator=generator(seed), dtype=torch.float64).to(dtype)


def support(family, column):
    """Return all values of a column, or a grid of them, and the weight of each in a sum or integral."""
    if values_of(family) == "level":
        values = torch.arange(float(space(family).levels[column]), dtype=torch.float64)
        return values, torch.ones_like(values)
    if values_of(family) == "count":
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


def column_log_prob(likelihood, outputs, column, values):
    """Return log p of some values of one column (S,), at one row of outputs."""
    y = torch.zeros(len(values), 2, dtype=outputs.dtype)
    y[:, column] = values.to(outputs.dtype)
    return likelihood.entry_log_prob(outputs.expand(len(values), -1), y)[:, column]


def assert_log_prob_is_that_of_torch(family, column, reference):
    """Compare log p of a column with `reference(family module, its outputs, column)`, a torch distribution."""
    likelihood, outputs = likelihood_of(family, seed=7), decoder_outputs(family, 1, seed=8)[0]
    own = outputs[list(space(family).outputs[column])]
    distribution = reference(likelihood.families[family], own, column)
    values = support(family, column)[0]
    values = values if values_of(family) == "level" else values[::1000]
    expected = distribution.log_prob(values)
    if family == "censored":
        lower, upper = (torch.tensor(end, dtype=torch.float64) for end in LIMITS[column])
        expected = torch.where(values <= lower, distribution.cdf(lower).log(), expected)
        expected = torch.where(values >= upper, (1 - distribution.cdf(upper)).log(), expected)
    torch.testing.assert_close(
        column_log_prob(likelihood, outputs, column, values), expected, rtol=1e-8, atol=1e-8
    )  # fmt: skip
    return likelihood.level_probabilities(outputs), expected
